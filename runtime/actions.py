"""A model's answer as one assistant message that an environment can take, or a complaint that the model can act on.

Tolerant where a reading is certain, never guessing: arguments are read as a JSON object (also in a code fence, or once
encoded as a string); anything else is a failed step, as is a call of a tool that is not offered, arguments that do not
fit the tool's own schema, and a call that is written as text. What goes into the history is written anew from what was
read, since an endpoint refuses, or fails on, a history with arguments that are no JSON.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from events.codec import canonical, clean_text
from events.errors import NestedTooDeep
from runtime.code_spans import last_fence
from runtime.errors import UnreadableAnswer
from runtime.json_values import misfit, read_json
from runtime.ports import ChatAnswer, ToolCall
from runtime.task import Message, Mode, Tool
from runtime.text_calls import calls_in

#: calls in one answer; one with more is a failed step. Tasks that want calls side by side want a dozen at most
MOST_CALLS = 32

_NAME = re.compile(r"[^\w.-]")
#: modes whose answers are not code: there a call that is written as text is one
_SPOKEN: frozenset[Mode] = frozenset({"dialog", "answer"})
#: how much of what was written, and of the tools' names, a complaint repeats, characters
_SHOWN, _LISTED = 300, 2000

_EMPTY = "Your answer was empty. Call a tool, or answer in text."
_LOST = "Your tool call did not arrive. Send it again, or answer in text."
#: an assistant message must not be empty, and the complaint must follow one: what comes before is the task
_SILENCE = "(empty)"
_CUT = "Your answer was cut off at the length limit and was not used. Answer again, much shorter."
_WRITTEN = (
    "Your answer is a tool call that is written as text; it was not executed. Make the call as a tool call, not in the"
    " text of the answer, or answer without it."
)
_NOT_RUN = "Not executed, because another call in the same message could not be read. Send it again."


class Action(Struct, frozen=True, kw_only=True):
    """What one answer comes to."""

    #: what the environment gets; None for a failed step
    message: Message | None
    #: what the history gets before the environment's answer, or instead of one
    history: list[Message]


def tool_name(tool: Tool) -> str:
    """The name a model calls this tool by."""
    return str(tool.get("function", {}).get("name", ""))


def tool_schema(tool: Tool) -> Any:
    """The JSON schema of its arguments; None where it has none."""
    return tool.get("function", {}).get("parameters")


def read_action(answer: ChatAnswer, tools: Mapping[str, Any], ids: str, mode: Mode) -> Action:
    """What `answer` does, its tool calls under our own ids `<ids>-0`, `<ids>-1` ...

    Args:
        answer: of the executor's model.
        tools: what is offered now: name -> JSON schema of its arguments.
        ids: prefix of the call ids, unique in the history.
        mode: in `single_shot` there is no second try: unknown names and arguments of any shape go to the evaluator as
            they are, and calls that cannot be read go as the text they are.
    """
    if answer.tool_calls:
        return _calling(answer, tools, ids, mode)
    content = clean_text(answer.content)
    said: Message = {"role": "assistant", "content": _SILENCE if answer.silent else content}
    complaint = _unsaid(answer, content, tools, mode)
    if complaint is not None:
        return _failed([said, {"role": "user", "content": complaint}], mode, content)
    return Action(message=said, history=[said])


def _unsaid(answer: ChatAnswer, content: str, tools: Mapping[str, Any], mode: Mode) -> str | None:
    """Why a text is no action."""
    if answer.finish_reason == "length":
        return _CUT
    if answer.silent:
        return _LOST if answer.finish_reason in ("tool_calls", "malformed_function_call") else _EMPTY
    if tools and mode in _SPOKEN and calls_in(content, tools, tools) is not None:
        return _WRITTEN
    return None


def _calling(answer: ChatAnswer, tools: Mapping[str, Any], ids: str, mode: Mode) -> Action:
    content = clean_text(answer.content)
    number = len(answer.tool_calls)
    if number > MOST_CALLS and mode != "single_shot":
        told = f"Your answer held {number} tool calls, and none was executed. Send {MOST_CALLS} at most in one answer."
        said = {"role": "assistant", "content": content or f"({number} tool calls)"}
        return _failed([said, {"role": "user", "content": told}], mode, content)
    calls: list[dict[str, Any]] = []
    complaints: list[str | None] = []
    for place, call in enumerate(answer.tool_calls):
        arguments: dict[str, Any] = {}
        cut = answer.finish_reason == "length" and place == number - 1
        complaint = None if mode == "single_shot" else _unknown(call, tools)
        if complaint is None:
            try:
                arguments = read_arguments(call, cut=cut and mode != "single_shot")
            except UnreadableAnswer as error:
                complaint = error.reason
            else:
                complaint = None if mode == "single_shot" else _misfit(call, arguments, tools)
        complaints.append(complaint)
        calls.append(_call(f"{ids}-{place}", call.name, arguments, tools))
    message: Message = {"role": "assistant", "content": content, "tool_calls": calls}
    if not any(complaints):
        return Action(message=message, history=[message])
    told_each = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"Error: {complaint}" if complaint else _NOT_RUN}
        for call, complaint in zip(calls, complaints, strict=True)
    ]
    written = "\n".join(f"{call.name}({call.arguments})" for call in answer.tool_calls)
    return _failed([message, *told_each], mode, clean_text(f"{content}\n{written}".strip()))


def read_arguments(call: ToolCall, *, cut: bool = False) -> dict[str, Any]:
    """The arguments of `call` as the object they are; {} where none are given.

    Args:
        call: as the model made it.
        cut: the answer ended with it, at the length limit: what is missing may have been meant.

    Raises:
        UnreadableAnswer: no JSON object, or one with a number that JSON does not have, a name that stands twice, or
            more levels than an event. The reason is meant for the model.
    """
    text = clean_text(call.arguments)
    fence = last_fence(text)
    if fence is not None and not fence[0].strip() and fence[1] in ("", "json"):
        text = fence[2]
    if not text.strip() and not cut:
        return {}
    try:
        value = read_json(text)
        if isinstance(value, str):
            value = read_json(value)
        # 1e999 parses to infinity, which no JSON can hold: found by writing it.
        canonical(value)
    except (ValueError, NestedTooDeep) as error:
        why = "they were cut off at the length limit" if cut else str(error)
        raise UnreadableAnswer("arguments", _unfit(call, f"are no JSON object: {why}", text)) from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnreadableAnswer("arguments", _unfit(call, f"are no JSON object but {type(value).__name__}", text))
    return value


def resent(given: object) -> list[dict[str, Any]]:
    """The tool calls of a message that somebody else wrote, as a history may hold them.

    What is no call is left out; arguments that cannot be read are none.
    """
    calls: list[dict[str, Any]] = []
    for place, one in enumerate(given if isinstance(given, list) else ()):
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict) or not isinstance(name := function.get("name"), str):
            continue
        written = function.get("arguments")
        try:
            text = written if isinstance(written, str) else canonical(written).decode()
            arguments = read_arguments(ToolCall(id="", name=name, arguments=text))
        except (UnreadableAnswer, NestedTooDeep, ValueError, TypeError):
            arguments = {}
        calls.append(_call(str(one.get("id") or f"given-{place}"), name, arguments, ()))
    return calls


def _unfit(call: ToolCall, why: str, text: str) -> str:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
    return f"The arguments of {call.name!r} {why}. You wrote: {shown}"


def _misfit(call: ToolCall, arguments: dict[str, Any], tools: Mapping[str, Any]) -> str | None:
    wrong = misfit(arguments, tools[call.name])
    return None if wrong is None else f"The arguments of {call.name!r} do not fit the tool: {wrong}. Send it again."


def _unknown(call: ToolCall, tools: Collection[str]) -> str | None:
    if call.name in tools:
        return None
    listed = ", ".join(sorted(tools)) or "none"
    listed = listed if len(listed) <= _LISTED else f"{listed[:_LISTED]} ..."
    if not call.name:
        return f"This call has no name, or a form that nobody can read: {call.arguments[:_SHOWN]}. The tools: {listed}."
    return f"There is no tool {call.name!r}. The tools are: {listed}."


def _call(id_: str, name: str, arguments: dict[str, Any], tools: Collection[str]) -> dict[str, Any]:
    # Endpoints refuse a history with a name outside this alphabet, but for one that they have been offered.
    safe = name if name in tools else _NAME.sub("_", clean_text(name))[:64] or "unnamed"
    function = {"name": safe, "arguments": clean_text(json.dumps(arguments, ensure_ascii=False))}
    return {"id": id_, "type": "function", "function": function}


def _failed(history: list[Message], mode: Mode, text: str) -> Action:
    if mode == "single_shot":
        message = {"role": "assistant", "content": text}
        return Action(message=message, history=[message])
    return Action(message=None, history=history)
