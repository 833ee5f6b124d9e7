"""Prompts as files with two parts and placeholders, and the marked sections that go into them.

A prompt file holds `# system` and, where the stage has one, `# user`, each on a line of its own, with `{{names}}` to be
filled in. What is filled in stands in sections, `<task>` to `</task>` and so on. Task, memory and trajectory text is
hostile: our marks inside it are defused, so that a memory cannot close its section or pose as another one, and so are
the tokens of chat templates, which some servers obey wherever they stand.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from events.bank import Item
from events.codec import clean_text
from events.errors import BadInput, UnknownName
from events.ids import RunId, Stage
from events.late import late_pattern
from runtime.hostile import SECTION_MARKS, TEMPLATE_BRACKETS, TEMPLATE_TAGS, alike, seen
from runtime.ports import Blobs
from runtime.task import Message, Tool

#: prompt -> (placeholders it must have, placeholders it may have)
PLACEHOLDERS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "planner": (frozenset({"task", "experiences"}), frozenset({"domain", "policy", "tools"})),
    "executor": (frozenset({"plan", "experiences"}), frozenset()),
    "gate": (
        frozenset({"task", "planning_experiences", "execution_experiences", "plan", "trajectory", "outcome"}),
        frozenset(),
    ),
    "outcome": (
        frozenset({"task", "planning_experiences", "execution_experiences", "plan", "trajectory", "outcome"}),
        frozenset(),
    ),
    "merge": (frozenset({"scenario", "existing", "new"}), frozenset({"limit"})),
}

#: what begins a mark, ours or a template's, and a line that poses as a memory
_MARK = late_pattern(
    rf"(?P<tag><)(?=\s*+/?\s*+(?:{SECTION_MARKS})\b|{TEMPLATE_TAGS})|(?P<bracket>\[)(?={TEMPLATE_BRACKETS})"
    r"|^(?P<indent>[^\S\n]*)\[(?=\s*+[PE]\s*+[0-9]++\s*+\])",
    re.IGNORECASE | re.MULTILINE,
)
#: joiners that join nothing
_JOINER = re.compile("(?<=[\x21-\x7e])[\u200c\u200d]+|[\u200c\u200d]+(?=[\x21-\x7e])")
_PLACEHOLDER = re.compile(r"\{\{([a-z_]+)\}\}")
_PART = re.compile(r"^# (system|user)[ \t]*$", re.MULTILINE)

#: how indices of the two banks begin in a prompt
INDEX_LETTER: dict[Stage, str] = {"planning": "P", "execution": "E"}

#: how much of a tool's description the planner sees, characters, and of all tools together
_TOOL_CHARS, _TOOLS_CHARS = 200, 12_000
#: how much of the benchmark's own system text the planner sees, characters
_POLICY_CHARS = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt file, read."""

    name: str
    #: the file's text, as hashed
    text: str
    system: str
    #: "" for a stage without a user message of its own
    user: str

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the file's UTF-8 bytes."""
        return sha256(self.text.encode()).hexdigest()

    def messages(self, values: Mapping[str, str]) -> list[Message]:
        """The system and user message with `values` filled in, in one pass: what is filled in is never read again."""
        messages = [{"role": "system", "content": _filled(self.system, values)}]
        if self.user:
            messages.append({"role": "user", "content": _filled(self.user, values)})
        return messages


@dataclass(frozen=True, slots=True)
class Prompts:
    """Every prompt of a run by name."""

    by_name: Mapping[str, Prompt]

    def __getitem__(self, name: str) -> Prompt:
        return self.by_name[name]

    def sha256s(self) -> dict[str, str]:
        """What the run header records: name -> hex SHA-256."""
        return {name: prompt.sha256 for name, prompt in sorted(self.by_name.items())}

    async def store(self, blobs: Blobs, run: RunId) -> None:
        """Keep every text with the run, so that a worker elsewhere uses the same ones (`stored_prompts`)."""
        for _, prompt in sorted(self.by_name.items()):
            await blobs.put(run, prompt.text.encode())


def load_prompts(own: Mapping[str, Path] | None = None) -> Prompts:
    """The packaged prompts, each replaced by the user's own file where `own` names one.

    Raises:
        UnknownName: `own` names a prompt that does not exist.
        BadInput: a file that cannot be read, or a prompt without a part or placeholder it needs.
    """
    own = own or {}
    for name in own:
        if name not in PLACEHOLDERS:
            raise UnknownName("prompt", name, PLACEHOLDERS)
    packaged = files("runtime") / "prompts"
    prompts: dict[str, Prompt] = {}
    for name in PLACEHOLDERS:
        try:
            text = (own[name] if name in own else packaged / f"{name}.md").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 at byte {error.start}"
            raise BadInput(f"prompt {name}: cannot read {own.get(name, name)}: {reason}") from error
        prompts[name] = parse_prompt(name, text)
    return Prompts(prompts)


async def stored_prompts(blobs: Blobs, run: RunId, hashes: Mapping[str, str]) -> Prompts:
    """The prompts that a run's header names, from its blobs.

    Raises:
        MissingBlob: a text is not there.
        BadInput: a text that is no prompt.
    """
    return Prompts({name: parse_prompt(name, (await blobs.get(run, one)).decode()) for name, one in hashes.items()})


def parse_prompt(name: str, text: str) -> Prompt:
    """The prompt that `text` holds.

    Raises:
        UnknownName: no prompt of that name.
        BadInput: no `# system` part, no `# user` part where one is needed, a placeholder missing or unknown.
    """
    if name not in PLACEHOLDERS:
        raise UnknownName("prompt", name, PLACEHOLDERS)
    pieces = _PART.split(text)
    parts = {part: body.strip() for part, body in zip(pieces[1::2], pieces[2::2], strict=True)}
    needed, allowed = PLACEHOLDERS[name]
    if not parts.get("system") or (name != "executor" and not parts.get("user")):
        lines = "the line '# system'" if name == "executor" else "the lines '# system' and '# user'"
        raise BadInput(f"prompt {name}: needs {lines}, and text below")
    found = set(_PLACEHOLDER.findall(text))
    if missing := sorted(needed - found):
        raise BadInput(f"prompt {name}: misses the placeholder {{{{{missing[0]}}}}}")
    if unknown := sorted(found - needed - allowed):
        raise BadInput(f"prompt {name}: has no placeholder {{{{{unknown[0]}}}}} to fill")
    user = "" if name == "executor" else parts["user"]
    return Prompt(name=name, text=text, system=parts["system"], user=user)


def _filled(template: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], ""), template)


def defused(text: str) -> str:
    """`text` in which no mark works, ours or a chat template's, and every line ends in one way.

    `</task>` reads `&lt;/task>`, `[INST]` reads `&#91;INST]`, a line's `[P1]` reads `([P1]`, in whatever characters
    they are written. What shows nothing is gone.
    """
    text = _unbroken(seen(clean_text(text)))
    if not text.isascii():
        text = _edited(text, _JOINER)
    elif "<" not in text and "[" not in text:
        return text  # no mark begins otherwise, and most texts hold none
    return _edited(text, _MARK)


def _unbroken(text: str) -> str:
    """`text` with a line feed for whatever ends a line for some reader."""
    # The dot keeps the end of the last line.
    return "\n".join(f"{text}.".splitlines())[:-1]


def _edited(text: str, what: re.Pattern[str]) -> str:
    """`text` with each place defused where `what` is found in its like."""
    parts, at = list[str](), 0
    for found in what.finditer(alike(text)):
        parts += [text[at : found.start()], _instead(found)]
        at = found.end()
    return "".join([*parts, text[at:]])


def _instead(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "tag":
            return "&lt;"
        case "bracket":
            return "&#91;"
        case "indent":
            return f"{found['indent']}(["
        case _:
            return ""


def section(mark: str, text: str) -> str:
    """`text`, defused, between `<mark>` and `</mark>`."""
    return f"<{mark}>\n{defused(text)}\n</{mark}>"


def experiences(stage: Stage, items: Sequence[Item]) -> str:
    """`items` numbered P1, P2 ... or E1, E2 ... in rank order, as a section."""
    lines = [
        f"[{INDEX_LETTER[stage]}{i}] When: {_one_line(item.scenario)}\nDo: {defused(item.experience)}"
        for i, item in enumerate(items, 1)
    ]
    return "<experiences>\n{}\n</experiences>".format("\n".join(lines) or "(none)")


def _one_line(text: str) -> str:
    return " ".join(defused(text).split())


def outcome(success: bool) -> str:
    """s_t as a section."""
    return f"<outcome>{'success' if success else 'failure'}</outcome>"


def policy(text: str) -> str:
    """The benchmark's own system text as a section, its end cut when it is long; "" without one."""
    if not text.strip():
        return ""
    shown = text if len(text) <= _POLICY_CHARS else f"{text[:_POLICY_CHARS]}\n[the rest is left out]"
    return section("policy", shown) + "\n"


def tools(offered: Iterable[Tool]) -> str:
    """Names, parameters and the beginning of each description, as a section; "" without tools."""
    lines: list[str] = []
    room = _TOOLS_CHARS
    for tool in offered:
        function = tool.get("function", {})
        parameters = function.get("parameters") or {}
        names = ", ".join(parameters.get("properties") or ())
        description = " ".join(str(function.get("description") or "").split())[:_TOOL_CHARS]
        line = f"- {function.get('name')}({names}): {description}"
        room -= len(line)
        if room < 0:
            lines.append("- and more")
            break
        lines.append(line)
    return section("tools", "\n".join(lines)) + "\n" if lines else ""


def message_text(message: Message) -> str:
    """The text of a message whose content is a string, a list of parts, or null."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def task_text(messages: Iterable[Message]) -> str:
    """x_t as an agent may see it before it starts: the user's side of the opening messages."""
    return "\n\n".join(message_text(message) for message in messages if message.get("role") == "user")


def trajectory_text(messages: Iterable[Message], limit: int) -> str:
    """What happened, message by message, system text aside; head and tail when it is longer than `limit` characters.

    Only a message begins at the start of a line: further lines are set in, so that none can pose as another message.
    """
    text = "\n".join(line for message in messages for line in _told(message))
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    return f"{text[:head]}\n[{len(text) - limit} characters are left out here]\n{text[len(text) - tail :]}"


def _told(message: Message) -> list[str]:
    text = _set_in(message_text(message))
    match message.get("role"):
        case "assistant":
            calls = message.get("tool_calls") or []
            lines = [f"agent: {text}"] if text or not calls else []
            return lines + [
                _set_in(f"agent calls {call['function']['name']}({call['function']['arguments']})") for call in calls
            ]
        case "tool":
            return [f"tool: {text}"]
        case "user":
            return [f"user: {text}"]
        case _:
            return []


def _set_in(text: str) -> str:
    return _unbroken(text).replace("\n", "\n  ")
