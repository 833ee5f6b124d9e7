"""A request's messages in the form that an endpoint takes: its schema or tools told in words, its roles as it has them.

Words of ours go to the end of the system text, the same in every step of an episode, so that what an endpoint has read
before stays the beginning of what it reads next.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, groupby
from typing import Any, Literal

from runtime.ports import ChatRequest
from runtime.prompting import message_text
from runtime.task import Message, Tool

_OBJECT = "Answer with one JSON object and nothing else. It follows this JSON schema:\n{schema}\nIts shape:\n{shape}"
_FENCED = (
    "Answer with one JSON object in a code fence that begins with ```json, and nothing else. It follows this JSON "
    "schema:\n{schema}\nIts shape:\n```json\n{shape}\n```"
)
#: what stands before the tools that are told in words, behind them, and before each result
OFFERED, OFFERED_UNTIL, RESULT = (
    "You can call these tools, one JSON object a line:\n",
    "\nTo call one, write\n",
    "<tool_response>",
)
_TOOLS = (
    OFFERED
    + "{tools}"
    + OFFERED_UNTIL
    + '<tool_call>\n{{"name": "the tool\'s name", "arguments": {{"an argument": "its value"}}}}\n</tool_call>\n'
    "and nothing after it; several calls stand one after the other. Results come back in <tool_response> marks. "
    "Where no call is needed, answer in plain text."
)


def reworded(
    request: ChatRequest,
    *,
    tools: Literal["native", "text"],
    schema: Literal["silent", "object", "text"],
    system: Literal["system", "developer", "user"],
    parallel: bool,
    echo: bool,
    ids: Literal["ours", "short"],
) -> list[Message]:
    """The messages of `request`; itself is not changed.

    Args:
        request: as a stage asks it.
        tools: `text` = described in the system text, and calls of the history written out.
        schema: `object`, `text` = told in the system text.
        system: which role the system text has; `user` = it begins the first user message, and no two messages of one
            role follow each other.
        parallel: False = one call a message.
        echo: whether a tool turn needs thinking text.
        ids: of calls and their results; `short` = nine letters and digits.
    """
    messages = request.messages
    if words := _words(request, tools, schema):
        messages = _with_system_text(messages, words)
    if tools == "text":
        messages = [_without_calls(message) for message in messages]
    if not parallel:
        messages = list(_one_call_each(messages))
    if ids == "short":
        messages = _with_short_ids(messages)
    if echo:
        messages = [_with_thinking(message, turn) for turn, message in enumerate(messages)]
    if system == "developer":
        messages = [{**one, "role": "developer"} if one.get("role") == "system" else one for one in messages]
    elif system == "user":
        messages = _alternating([{**one, "role": "user"} if one.get("role") == "system" else one for one in messages])
    return list(messages)


def _words(request: ChatRequest, tools: str, schema: str) -> str:
    told: list[str] = []
    if request.tools and tools == "text":
        told.append(_TOOLS.format(tools="\n".join(_described(tool) for tool in request.tools)))
    if request.schema is not None and schema != "silent":
        form = _FENCED if schema == "text" else _OBJECT
        plain = json.dumps(request.schema, ensure_ascii=False)
        told.append(form.format(schema=plain, shape=json.dumps(shape_of(request.schema), ensure_ascii=False)))
    return "\n\n".join(told)


def _described(tool: Tool) -> str:
    function = tool.get("function", {})
    kept = {name: function[name] for name in ("name", "description", "parameters") if function.get(name)}
    return json.dumps(kept, ensure_ascii=False)


def shape_of(schema: Mapping[str, Any]) -> Any:
    """An example of what `schema` describes. Copied as it stands it is no answer: a choice shows all there is."""
    if choices := schema.get("anyOf"):
        return shape_of(choices[0])
    if allowed := schema.get("enum"):
        return " | ".join(str(one) for one in allowed)
    match schema.get("type"):
        case "object":
            return {name: shape_of(one) for name, one in schema.get("properties", {}).items()}
        case "array":
            return [shape_of(schema["items"])] if "items" in schema else []
        case "boolean":
            return False
        case "number" | "integer":
            return 0
        case "null":
            return None
        case _:
            return "..."


def _with_system_text(messages: Sequence[Message], words: str) -> list[Message]:
    """`words` at the end of the system text, which is made where there is none."""
    first = messages[0] if messages else {}
    if first.get("role") != "system":
        return [{"role": "system", "content": words}, *messages]
    return [{**first, "content": f"{message_text(first)}\n\n{words}"}, *messages[1:]]


def _without_calls(message: Message) -> Message:
    """A call or a result as the text that tools in words are used with."""
    match message.get("role"):
        case "assistant" if calls := message.get("tool_calls"):
            written = [f"<tool_call>\n{_called(one)}\n</tool_call>" for one in calls]
            text = message_text(message)
            return {"role": "assistant", "content": "\n".join([text, *written] if text else written)}
        case "tool":
            return {"role": "user", "content": f"{RESULT}\n{message_text(message)}\n</tool_response>"}
        case _:
            return message


def _called(call: Mapping[str, Any]) -> str:
    """`call` as an object; arguments of a history are JSON, as `runtime.actions` wrote them anew."""
    function = call.get("function", {})
    arguments = function.get("arguments", "{}")
    return f'{{"name": {json.dumps(function.get("name", ""), ensure_ascii=False)}, "arguments": {arguments}}}'


def _turns(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """What begins with calls, up to the next that does: an id may come again in every turn."""
    turn: list[Message] = []
    for message in messages:
        if message.get("tool_calls") and turn:
            yield turn
            turn = []
        turn.append(message)
    if turn:
        yield turn


def _one_call_each(messages: Sequence[Message]) -> Iterator[Message]:
    """Each call in a message of its own, its result behind it."""
    for first, *others in _turns(messages):
        calls = first.get("tool_calls") or ()
        if len(calls) <= 1:
            yield first
        else:
            for place, call in enumerate(calls):
                yield {**first, "content": first.get("content") if place == 0 else "", "tool_calls": [call]}
                results = (one for one in others if _answers(one, call))
                if (result := next(results, None)) is not None:
                    others.remove(result)
                    yield result
        yield from others


def _answers(message: Message, call: Mapping[str, Any]) -> bool:
    return message.get("role") == "tool" and message.get("tool_call_id") == call.get("id")


def _with_short_ids(messages: Sequence[Message]) -> list[Message]:
    """Calls numbered as they come, and each result with its call's number."""
    numbers = (f"call{number:05}" for number in count())
    #: an id -> the calls with it in the last turn that has some, as numbered, until the last of them has its result
    opened: dict[Any, list[str]] = {}

    def numbered(message: Message) -> Message:
        if calls := message.get("tool_calls"):
            opened.update({call.get("id"): [] for call in calls})
            short = [next(numbers) for _ in calls]
            for call, number in zip(calls, short, strict=True):
                opened[call.get("id")].append(number)
            return {**message, "tool_calls": [{**call, "id": id_} for call, id_ in zip(calls, short, strict=True)]}
        if "tool_call_id" not in message:
            return message
        own = opened.get(message["tool_call_id"]) or [next(numbers)]
        return {**message, "tool_call_id": own.pop(0) if len(own) > 1 else own[0]}

    return [numbered(message) for message in messages]


def _with_thinking(message: Message, turn: int) -> Message:
    """A tool turn with a line in place of its thinking.

    Another one each turn: a model that reads the same line again and again begins to write nothing else.
    """
    if message.get("role") != "assistant" or not (calls := message.get("tool_calls")):
        return message
    names = ", ".join(str(call.get("function", {}).get("name")) for call in calls)
    return {**message, "reasoning_content": f"Turn {turn}: I call {names}."}


def _alternating(messages: Sequence[Message]) -> list[Message]:
    """`messages` in which texts of one role that follow each other are one message; calls and results stay."""
    made: list[Message] = []
    for is_plain, group in groupby(messages, key=lambda one: (one.get("role"), _is_plain(one))):
        same = list(group)
        if is_plain[1] and len(same) > 1:
            made.append({**same[0], "content": "\n\n".join(message_text(one) for one in same)})
        else:
            made.extend(same)
    return made


def _is_plain(message: Message) -> bool:
    return message.get("role") in ("user", "assistant") and not message.get("tool_calls")
