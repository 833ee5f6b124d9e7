"""A model's answer as one assistant message that an environment can take, or a complaint that the model can act on.

Tolerant where a reading is certain, never guessing: arguments are read as a JSON object (also in a code fence, or once
encoded as a string); anything else is a failed step. What goes into the history is written anew from what was
read, since an endpoint refuses, or fails on, a history with arguments that are no JSON.
"""

import json
import re
from collections.abc import Collection
from typing import Any

from msgspec import Struct

from events.codec import clean_text
from runtime.errors import UnreadableAnswer
from runtime.ports import ChatAnswer, ToolCall
from runtime.task import Message, Mode, Tool

_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL | re.IGNORECASE)
_NAME = re.compile(r"[^\w.-]")

_EMPTY = "Your answer was empty. Call a tool, or answer in text."
#: an assistant message must not be empty, and the complaint must follow one: what comes before is the task
_SILENCE = "(empty)"
_CUT = "Your answer was cut off at the length limit and was not used. Answer again, much shorter."
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


def read_action(answer: ChatAnswer, tools: Collection[str], ids: str, mode: Mode) -> Action:
    """What `answer` does, its tool calls under our own ids `<ids>-0`, `<ids>-1` ...

    Args:
        answer: of the executor's model.
        tools: names that are offered now.
        ids: prefix of the call ids, unique in the history.
        mode: in `single_shot` there is no second try: an unknown name goes to the evaluator as it is, and calls
            that cannot be read go as the text they are.
    """
    content = clean_text(answer.content)
    if not answer.tool_calls:
        if not content.strip():
            return _failed([{"role": "assistant", "content": _SILENCE}, {"role": "user", "content": _EMPTY}], mode, "")
        if answer.finish_reason == "length" and mode != "single_shot":
            return _failed(
                [{"role": "assistant", "content": content}, {"role": "user", "content": _CUT}], mode, content
            )
        said: Message = {"role": "assistant", "content": content}
        return Action(message=said, history=[said])
    calls: list[dict[str, Any]] = []
    complaints: list[str | None] = []
    for place, call in enumerate(answer.tool_calls):
        arguments: dict[str, Any] = {}
        complaint = None if mode == "single_shot" else _unknown(call, tools)
        if complaint is None:
            try:
                arguments = read_arguments(call, cut=answer.finish_reason == "length")
            except UnreadableAnswer as error:
                complaint = error.reason
        complaints.append(complaint)
        calls.append(_call(f"{ids}-{place}", call.name, arguments))
    message: Message = {"role": "assistant", "content": content, "tool_calls": calls}
    if not any(complaints):
        return Action(message=message, history=[message])
    told = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"Error: {complaint}" if complaint else _NOT_RUN}
        for call, complaint in zip(calls, complaints, strict=True)
    ]
    written = "\n".join(f"{call.name}({call.arguments})" for call in answer.tool_calls)
    return _failed([message, *told], mode, clean_text(f"{content}\n{written}".strip()))


def read_arguments(call: ToolCall, *, cut: bool = False) -> dict[str, Any]:
    """The arguments of `call` as the object they are; {} where none are given.

    Raises:
        UnreadableAnswer: no JSON object, or a number that JSON does not have. The reason is meant for the model.
    """
    text = clean_text(call.arguments)
    if fenced := _FENCE.match(text):
        text = fenced[1]
    if not text.strip():
        return {}
    try:
        value = _parsed(text)
        if isinstance(value, str):
            value = _parsed(value)
        # 1e999 parses to infinity, which no JSON can hold: found by writing it.
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError) as error:
        why = "they were cut off at the length limit" if cut else str(error)
        raise UnreadableAnswer("arguments", f"The arguments of {call.name!r} are no JSON object: {why}.") from error
    if not isinstance(value, dict):
        raise UnreadableAnswer(
            "arguments", f"The arguments of {call.name!r} are no JSON object but {type(value).__name__}."
        )
    return value


def _unknown(call: ToolCall, tools: Collection[str]) -> str | None:
    if call.name in tools:
        return None
    return f"There is no tool {call.name!r}. The tools are: {', '.join(sorted(tools)) or 'none'}."


def _parsed(text: str) -> Any:
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _call(id_: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    # Endpoints refuse a history with a name outside this alphabet.
    safe = _NAME.sub("_", clean_text(name))[:64] or "unnamed"
    function = {"name": safe, "arguments": clean_text(json.dumps(arguments, ensure_ascii=False))}
    return {"id": id_, "type": "function", "function": function}


def _failed(history: list[Message], mode: Mode, text: str) -> Action:
    if mode == "single_shot":
        message = {"role": "assistant", "content": text}
        return Action(message=message, history=[message])
    return Action(message=None, history=history)
