"""What an endpoint's model takes, and a request in that form: ladders that are only ever stepped down.

| what is refused | instead |
|---|---|
| a JSON schema | a JSON object; then one forced call whose arguments are the answer; then fenced text |
| `max_tokens` | `max_completion_tokens`; then no cap at all; a cap above what the endpoint allows: what it allows |
| `temperature` | none: the endpoint's own |
| the role `system` | `developer` where the refusal names it; else the head of the first user message |
| tools | told in the system text, calls asked for as text |
| several calls in one message | one call a message, in the order in which they were made, and one asked for at a time |
| the switch for several calls | nothing |
| the ids of tool calls | nine letters and digits |
| the switch for thinking | `minimal` or `low` effort where the refusal names them; else none |
| a request without the switch | DashScope's, where its words ask for it |
| tool turns without thinking text | a line of ours in its place: thinking itself never goes into a prompt |
| a stream, or an answer in one piece | the other one |
| `stream_options` | none: usage may be missing |

What was refused is known by words (`infra.model_errors`); which rung comes next is decided here. Pure.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Self

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from infra.model_errors import Failure
from infra.redaction import redacted_strictly
from infra.rewording import reworded
from runtime.ports import ChatAnswer, ChatRequest, ToolCall
from runtime.settings import EndpointSettings, ModelSettings, Thinking
from runtime.text_calls import calls_in

Format = Literal["json_schema", "json_object", "tool", "text"]

#: how each kind of endpoint is told not to think
THINKING: Mapping[Thinking, Mapping[str, Any]] = {
    "none": {},
    "dashscope": {"enable_thinking": False},
    "vllm": {"chat_template_kwargs": {"enable_thinking": False}},
    "deepseek": {"thinking": {"type": "disabled"}},
    "openai": {"reasoning_effort": "none"},
}

#: what a refusal of a cap says of the largest one
_CAPS = (
    re.compile(r"\[\s*\d+\s*,\s*(\d{1,9})\s*\]"),
    re.compile(r"\bat most `?(\d{1,9})"),
    re.compile(r"\d\s*>\s*(\d{1,9})\b"),
    re.compile(r"\bless than (?:or equal to )?`?(\d{1,9})"),
    re.compile(r"\bmax(?:imum)?\b[^0-9]{0,40}?\b(\d{1,9})", re.IGNORECASE),
)
#: an answer in one piece is refused: the endpoint streams only
_STREAM_ONLY = re.compile(
    r"only supports? (?:the )?stream|stream(?:ing)? (?:mode )?(?:is )?(?:required|only)|enable the stream"
    r"|stream[`'\" ]*(?:must|should|has to) be (?:set to )?[`'\" ]*true|set[`'\" ]+stream[`'\" ]*(?:=|to)[`'\" ]*true",
    re.IGNORECASE,
)
_SWITCH_WANTED = re.compile(r"enable[_ ]thinking\W*(?:must|should|has to|can ?not|必须)", re.IGNORECASE)
_THINKING_BACK = re.compile(r"reasoning[_ ]content", re.IGNORECASE)
#: about a tool of this request: others may be taken
_PARTICULAR = re.compile(
    r"(?:schema|parameters?|name) (?:for|of|in) (?:function|tool)|tools?(?:\.\d+|\[\d+\])|function_declarations",
    re.IGNORECASE,
)
_EFFORT = re.compile(r"\b(minimal|low)\b")


class Place(NamedTuple):
    """A model at an address, which may be a router to many servers."""

    base_url: str
    model: str


class Abilities(Struct, frozen=True, kw_only=True):
    """What an endpoint's model takes, as far as its refusals have told. Each field's first value is where all begin."""

    format: Format = "json_schema"
    max_tokens: Literal["max_tokens", "max_completion_tokens", "none"] = "max_tokens"
    #: the largest cap of one answer, tokens; 0 = any
    most_tokens: int = 0
    temperature: bool = True
    system: Literal["system", "developer", "user"] = "system"
    tools: Literal["native", "text"] = "native"
    #: several calls in one message of the history
    parallel_tools: bool = True
    #: a word that there shall be one call at a time, which is said where there may not be several
    parallel_switch: bool = True
    #: of calls and their results in the history
    tool_ids: Literal["ours", "short"] = "ours"
    #: `profile` = as the settings say
    thinking: Literal["profile", "minimal", "low", "none", "dashscope"] = "profile"
    #: tool turns come back with thinking text
    echo: bool = False
    #: `setting` = as the settings say
    stream: Literal["setting", "never", "always"] = "setting"
    stream_usage: bool = True
    #: what a refusal or a list of models has told that the model holds, prompt and answer, tokens; 0 = nothing
    window: int = 0

    def also(self, other: Self) -> Self:
        """What passes where both hold: of each the lower rung. In any order, any number of times: the same."""
        return replace(self, **{name: lower(getattr(self, name), getattr(other, name)) for name, lower in _LOWER})

    def apart_from(self, before: "Abilities") -> "Abilities":
        """What has been stepped down since `before`, alone."""
        return replace(ALL, **self.since(before))

    def since(self, before: "Abilities") -> dict[str, Any]:
        """What differs from `before`."""
        return {name: value for name, value in asdict(self).items() if value != getattr(before, name)}


#: nothing was refused yet
ALL = Abilities()


def _ladder(*rungs: object) -> Callable[[Any, Any], Any]:
    return lambda one, other: max(one, other, key=rungs.index)


def _least(one: int, other: int) -> int:
    return min(one or other, other or one)


_LOWER: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("format", _ladder("json_schema", "json_object", "tool", "text")),
    ("max_tokens", _ladder("max_tokens", "max_completion_tokens", "none")),
    ("most_tokens", _least),
    ("temperature", _ladder(True, False)),
    ("system", _ladder("system", "developer", "user")),
    ("tools", _ladder("native", "text")),
    ("parallel_tools", _ladder(True, False)),
    ("parallel_switch", _ladder(True, False)),
    ("tool_ids", _ladder("ours", "short")),
    ("thinking", _ladder("profile", "minimal", "low", "none", "dashscope")),
    ("echo", _ladder(False, True)),
    ("stream", _ladder("setting", "never", "always")),
    ("stream_usage", _ladder(True, False)),
    ("window", _least),
)


class Learnt(Struct, frozen=True, kw_only=True):
    """What the refusals of one place have taught."""

    abilities: Abilities = ALL
    #: what refused what, a short line each
    evidence: tuple[str, ...] = ()

    def also(self, other: "Learnt") -> "Learnt":
        """Both; evidence once each."""
        evidence = tuple(dict.fromkeys((*self.evidence, *other.evidence)))
        return Learnt(abilities=self.abilities.also(other.abilities), evidence=evidence)


NOTHING_LEARNT = Learnt()


def without(abilities: Abilities, failure: Failure, request: ChatRequest, model: ModelSettings) -> Abilities | None:
    """`abilities` less what was refused; None where `request` did not ask for it or nothing is left to leave out.

    Args:
        abilities: that the request was asked with.
        failure: what came back, in the endpoint's own words.
        request: before it was brought into their form.
        model: what it was asked with.
    """
    now = _without(abilities, failure, request, model)
    return now if now != abilities else None


def _without(abilities: Abilities, failure: Failure, request: ChatRequest, model: ModelSettings) -> Abilities:
    reason = failure.reason
    match failure.capability:
        case "schema" | "tools":
            return _with_form(abilities, failure, request)
        case "parallel_tools":
            if abilities.parallel_tools:
                return replace(abilities, parallel_tools=False)
            return replace(abilities, parallel_switch=False)
        case "tool_ids":
            return replace(abilities, tool_ids="short")
        case "max_tokens":
            return _with_cap(abilities, reason, model)
        case "temperature":
            return replace(abilities, temperature=False)
        case "system":
            return _with_system(abilities, reason)
        case "thinking":
            return _with_thinking(abilities, reason, model)
        case "stream":
            return _with_stream(abilities, reason)
        case _:
            return abilities


def is_particular(failure: Failure) -> bool:
    """Whether a refusal is about this request's own tools, and says nothing about others."""
    return failure.capability == "tools" and _PARTICULAR.search(failure.reason) is not None


def _with_form(abilities: Abilities, failure: Failure, request: ChatRequest) -> Abilities:
    """The next form of an answer, or of tools: a forced call is refused as a tool."""
    if request.schema is not None and (failure.capability == "schema" or abilities.format == "tool"):
        # A forced call has no place beside the request's own tools.
        last: Format = "text" if request.tools else "tool"
        below: dict[Format, Format] = {"json_schema": "json_object", "json_object": last}
        return replace(abilities, format=below.get(abilities.format, "text"))
    if request.tools and failure.capability == "tools":
        return replace(abilities, tools="text")
    return abilities


def _with_cap(abilities: Abilities, reason: str, model: ModelSettings) -> Abilities:
    # An endpoint may name both the parameter that it wants and a number. A number is believed once: each smaller one
    # would be one more step.
    if not abilities.most_tokens and not (abilities.max_tokens == "max_tokens" and "max_completion_tokens" in reason):
        told = (int(found[1]) for pattern in _CAPS if (found := pattern.search(reason)))
        if most := next((one for one in told if 0 < one < model.max_tokens), 0):
            return replace(abilities, most_tokens=most)
    name = "max_completion_tokens" if abilities.max_tokens == "max_tokens" else "none"
    return replace(abilities, max_tokens=name)


def _with_system(abilities: Abilities, reason: str) -> Abilities:
    wants_developer = abilities.system == "system" and "developer" in reason
    return replace(abilities, system="developer" if wants_developer else "user")


def _with_thinking(abilities: Abilities, reason: str, model: ModelSettings) -> Abilities:
    if _THINKING_BACK.search(reason):
        return replace(abilities, echo=True)
    sent = _switch(model.thinking, abilities)
    if _SWITCH_WANTED.search(reason) and "enable_thinking" not in sent:
        return replace(abilities, thinking="dashscope")
    if not sent or abilities.thinking == "dashscope":
        return abilities
    tried = abilities.thinking
    if model.thinking == "openai" and tried in ("profile", "minimal"):
        offered = [one for one in _EFFORT.findall(reason) if one != tried]
        if offered:
            return replace(abilities, thinking="minimal" if "minimal" in offered else "low")
    return replace(abilities, thinking="none")


def _with_stream(abilities: Abilities, reason: str) -> Abilities:
    if "stream_options" in reason and abilities.stream_usage:
        return replace(abilities, stream_usage=False)
    if abilities.stream != "setting":
        return abilities
    return replace(abilities, stream="always" if _STREAM_ONLY.search(reason) else "never")


def streamed(endpoint: EndpointSettings, abilities: Abilities) -> EndpointSettings:
    """`endpoint` as far as it streams."""
    if abilities.stream == "setting":
        return endpoint
    return replace(endpoint, stream=abilities.stream == "always")


def window_of(endpoint: EndpointSettings, abilities: Abilities) -> int:
    """What the model holds, prompt and answer, tokens, as far as it is known; 0 = not."""
    return _least(endpoint.context_tokens, abilities.window)


def parameters(
    request: ChatRequest, model: ModelSettings, endpoint: EndpointSettings, abilities: Abilities, cap: int = 0
) -> dict[str, Any]:
    """What a chat completion is asked with; whether as a stream is said by `streamed`.

    Args:
        request: as a stage asks it.
        model: of its role.
        endpoint: of its role.
        abilities: of the place that is asked.
        cap: of the answer, tokens, where the settings' does not fit into the window; 0 = the settings'.
    """
    native = abilities.tools == "native" and model.tools == "native"
    told = abilities.format if request.schema is not None else None
    asked: dict[str, Any] = {
        "model": model.model,
        "messages": reworded(
            request,
            tools="native" if native else "text",
            schema="text" if told == "text" else "object" if told == "json_object" else "silent",
            system=abilities.system,
            parallel=abilities.parallel_tools,
            echo=abilities.echo,
            ids=abilities.tool_ids,
        ),
    }
    if abilities.max_tokens != "none":
        most = min(one for one in (model.max_tokens, abilities.most_tokens, cap) if one)
        asked[abilities.max_tokens] = most
    if abilities.temperature:
        asked["temperature"] = model.temperature
    if request.tools and native:
        asked["tools"] = request.tools
        if not abilities.parallel_tools and abilities.parallel_switch:
            asked["parallel_tool_calls"] = False
    if request.schema is not None:
        asked |= _format(request.schema, abilities.format)
    if extra := _switch(model.thinking, abilities):
        asked["extra_body"] = extra
    if streamed(endpoint, abilities).stream and not abilities.stream_usage:
        asked["stream_options"] = None
    return asked


def _switch(profile: Thinking, abilities: Abilities) -> dict[str, Any]:
    match abilities.thinking:
        case "profile":
            return dict(THINKING[profile])
        case "dashscope":
            return dict(THINKING["dashscope"])
        case "minimal" | "low" as effort:
            return {"reasoning_effort": effort}
        case "none":
            return {}


def _format(schema: Mapping[str, Any], form: Format) -> dict[str, Any]:
    name = answer_name(schema)
    match form:
        case "json_schema":
            wanted = {"name": name, "strict": True, "schema": schema}
            return {"response_format": {"type": "json_schema", "json_schema": wanted}}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case "tool":
            function = {"name": name, "description": "Takes your answer.", "parameters": schema}
            choice = {"type": "function", "function": {"name": name}}
            return {"tools": [{"type": "function", "function": function}], "tool_choice": choice}
        case "text":
            return {}


def answer_name(schema: Mapping[str, Any]) -> str:
    """What the answer is called: the schema's title."""
    return str(schema.get("title", "answer"))


def as_asked(answer: ChatAnswer, request: ChatRequest, model: ModelSettings, abilities: Abilities) -> ChatAnswer:
    """`answer` as if the endpoint had taken `request` as it is.

    The arguments of a forced call are its content; calls that were asked for as text are its calls.
    """
    if request.tools and "text" in (abilities.tools, model.tools) and not answer.tool_calls:
        functions = [tool.get("function", {}) for tool in request.tools]
        schemas = {str(one.get("name", "")): one.get("parameters") or {} for one in functions}
        if (calls := calls_in(answer.content, schemas.keys(), schemas)) is not None:
            return _with_calls(answer, "", calls, "text_call", "tool_calls")
    if request.schema is not None and abilities.format == "tool" and not request.tools and answer.tool_calls:
        name = answer_name(request.schema)
        call = next((one for one in answer.tool_calls if one.name == name), answer.tool_calls[0])
        return _with_calls(answer, call.arguments, [], "answer_as_call", "stop")
    return answer


def _with_calls(answer: ChatAnswer, content: str, calls: list[ToolCall], flag: str, finish: str) -> ChatAnswer:
    # Cut off, filtered or refused stays so.
    kept = answer.finish_reason if answer.finish_reason not in ("stop", "tool_calls") else finish
    flags = sorted({*answer.flags, flag})
    return replace(answer, content=content, tool_calls=calls, finish_reason=kept, flags=flags)


def shown(place: Place) -> Place:
    """`place` as it may be written down: no part of an address that may be a secret."""
    return place._replace(base_url=redacted_strictly(place.base_url))


def facts(place: Place, learnt: Learnt) -> dict[str, Any]:
    """What the log notes of `place`."""
    base_url, model = shown(place)
    return {
        "base_url": base_url,
        "model": model,
        "abilities": asdict(learnt.abilities),
        "evidence": list(learnt.evidence),
    }


def learnt_from(noted: Iterable[Mapping[str, Any]]) -> dict[Place, Learnt]:
    """What notes say of each place as it is shown, all of them together; one that cannot be read says nothing."""
    found: dict[Place, Learnt] = {}
    for one in noted:
        try:
            note = msgspec.convert(one, _Note)
        except msgspec.ValidationError:
            continue
        place = Place(note.base_url, note.model)
        learnt = Learnt(abilities=note.abilities, evidence=note.evidence)
        found[place] = found.get(place, NOTHING_LEARNT).also(learnt)
    return found


class _Note(Struct, frozen=True, kw_only=True):
    base_url: str
    model: str
    abilities: Abilities
    evidence: tuple[str, ...] = ()
