"""How the rehearsal model reads a request: which role it is asked to play, for which task, with what before its eyes.

It sees the chat completion request and nothing else, so it depends on the marks that our prompts set: `<task>`,
`<experiences>`, `<plan>`, `<outcome>`. A gate is known by `<outcome>`, a merge by `<existing>`, so both are also known
when the client no longer sends a schema.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from events.ids import Stage
from infra.rehearsal.key import AnswerKey, KnownTask, meant
from infra.rewording import OFFERED, OFFERED_UNTIL, RESULT
from runtime.prompting import INDEX_LETTER, message_text
from runtime.task import Message

Part = Literal["planner", "executor", "gate", "merge"]

_EXPERIENCES = re.compile(r"<experiences>(.*?)</experiences>", re.DOTALL)
_MEMORY = re.compile(
    r"^\[(?P<index>[PE][0-9]+)\] When:(?P<scenario>.*?)\nDo:(?P<experience>.*?)(?=^\[[PE][0-9]+\] When:|\Z)",
    re.DOTALL | re.MULTILINE,
)
_PLAN = re.compile(r"<plan>\n?(.*?)\n?</plan>", re.DOTALL)
_EXISTING = re.compile(r"<existing>\n?(.*?)\n?</existing>", re.DOTALL)
_NEW = re.compile(r"<new>\n?(.*?)\n?</new>", re.DOTALL)
#: the domain and the tools as a planner sees them
_DOMAIN = re.compile(r"^Domain: (.*)$", re.MULTILINE)
_TOOLS = re.compile(r"<tools>\n?(.*?)\n?</tools>", re.DOTALL)
_TOOL = re.compile(r"^- ([^(\s]+)\(", re.MULTILINE)
_OUTCOME = re.compile(r"<outcome>\s*(success|failure)\s*</outcome>")
_TASK = re.compile(r"<task>\n?(.*?)\n?</task>", re.DOTALL)


class ShownMemory(Struct, frozen=True, kw_only=True):
    """A memory as a prompt shows it."""

    #: `P1`, `P2` ... of the planning bank, `E1` ... of the execution bank
    index: str
    scenario: str
    #: base text and bullets
    experience: str

    @property
    def stage(self) -> Stage:
        return "planning" if self.index.startswith(INDEX_LETTER["planning"]) else "execution"


class Asked(Struct, frozen=True, kw_only=True):
    """One request, read."""

    part: Part
    known: KnownTask | None
    memories: list[ShownMemory]
    #: the text inside `<plan>`; "" where there is none
    plan: str
    #: None where no outcome is told
    success: bool | None
    #: texts that are to become one
    merging: list[str]
    #: top-level names the answer's schema allows; None without a schema
    fields: frozenset[str] | None
    #: whether each experience is to say how useful it is
    usefulness: bool
    #: the request's messages, system ones aside
    history: list[Message]
    #: names of the tools that are offered
    tools: list[str]
    #: whether they are offered in words, and called so
    in_words: bool
    #: how many earlier answers of this request were sent back
    repairs: int

    def shown(self, stage: Stage) -> list[ShownMemory]:
        return [memory for memory in self.memories if memory.stage == stage]


def shown_memories(text: str) -> Iterator[ShownMemory]:
    """The memories inside every `<experiences>` of `text`, in order."""
    for block in _EXPERIENCES.finditer(text):
        for match in _MEMORY.finditer(block[1]):
            yield ShownMemory(
                index=match["index"], scenario=match["scenario"].strip(), experience=match["experience"].strip()
            )


def _schema(body: dict[str, Any]) -> tuple[str, frozenset[str] | None]:
    """Name and top-level properties of the request's JSON schema; ("", None) where it asks for none."""
    response_format = body.get("response_format")
    if not isinstance(response_format, dict) or response_format.get("type") != "json_schema":
        return "", None
    wrapped = response_format.get("json_schema")
    wrapped = wrapped if isinstance(wrapped, dict) else {}
    schema = wrapped.get("schema")
    schema = schema if isinstance(schema, dict) else {}
    properties = schema.get("properties")
    fields = frozenset(properties) if isinstance(properties, dict) else None
    return str(wrapped.get("name") or schema.get("title") or ""), fields


def _task(key: AnswerKey, messages: Sequence[Message]) -> list[KnownTask]:
    """The tasks that the first user message, or a `<task>` anywhere, can mean."""
    users = [message_text(message) for message in messages if message.get("role") == "user"]
    if not users:
        return []
    if exact := key.named(users[0]):
        return exact
    for message in messages:
        for match in _TASK.finditer(message_text(message)):
            # a task of several opening messages shows them all; the key has the first
            if found := key.named(match[1]) or key.inside(match[1]):
                return found
    return key.inside(users[0])


def _part(name: str, fields: frozenset[str] | None, tools: Sequence[str], text: str) -> Part:
    if tools:
        return "executor"
    if name == "merged" or _EXISTING.search(text):
        return "merge"
    if name == "diagnosis" or fields is not None or _OUTCOME.search(text):
        return "gate"
    return "executor" if _PLAN.search(text) else "planner"


def read_request(body: dict[str, Any], key: AnswerKey) -> Asked:
    """A chat completion request as the model understands it. Expects `messages` to be a list of objects."""
    messages: list[Message] = [_as_result(message) for message in body["messages"]]
    tools = [str(tool.get("function", {}).get("name", "")) for tool in body.get("tools") or []]
    in_words = list(_offered(messages)) if not tools else []
    tools = tools or in_words
    name, fields = _schema(body)
    texts = [message_text(message) for message in messages]
    everything = "\n".join(texts)
    part = _part(name, fields, tools, everything)
    # an executor's history may quote anything; its own prompt comes before the first assistant message
    opening = _opening(messages) if part == "executor" else messages
    said = "\n".join(message_text(message) for message in opening)
    plan = _PLAN.search(said)
    outcome = _OUTCOME.search(said)
    described, domain = _TOOLS.search(said), _DOMAIN.search(said)
    if part == "planner":
        kind, offers = domain[1] if domain else "", _TOOL.findall(described[1]) if described else []
    else:  # the plan says which kind of task it is for
        kind, offers = plan[1] if plan else "", tools
    return Asked(
        part=part,
        known=meant(_task(key, messages), kind, offers),
        memories=list(shown_memories(said)),
        plan=plan[1].strip() if plan else "",
        success=outcome[1] == "success" if outcome else None,
        merging=[match[1] for mark in (_EXISTING, _NEW) if (match := mark.search(said))],
        fields=fields,
        usefulness='"usefulness"' in json.dumps(body.get("response_format")),
        history=[message for message in messages if message.get("role") != "system"],
        tools=tools,
        in_words=bool(in_words),
        repairs=0 if part == "executor" else sum(message.get("role") == "assistant" for message in messages),
    )


def _offered(messages: Sequence[Message]) -> Iterator[str]:
    """Names of the tools that the first message describes in words."""
    _, _, behind = message_text(messages[0]).partition(OFFERED)
    for line in behind.partition(OFFERED_UNTIL)[0].splitlines():
        try:
            yield str(json.loads(line)["name"])
        except (ValueError, TypeError, LookupError):
            continue


def _as_result(message: Message) -> Message:
    """`message` as a tool's, where it is a user's with a result in words."""
    is_result = message.get("role") == "user" and message_text(message).startswith(RESULT)
    return {**message, "role": "tool"} if is_result else message


def _opening(messages: Sequence[Message]) -> list[Message]:
    """The messages before the first assistant message."""
    opening: list[Message] = []
    for message in messages:
        if message.get("role") == "assistant":
            break
        opening.append(message)
    return opening
