"""Tool calls that cannot be read, that nobody offered, or that are written as text."""

import json
from typing import Any

from hostile_rows import EXECUTOR, PLANNER, Row, failed_steps, out_of_errors, used
from hostile_wire import Asked, Body, Reply, always, answering, call, called, completion, failed, first, said

_ORDER = '{"order": "1"}'


def row(name: str, **given: Any) -> Row:
    return Row(name=name, area="tools", roles=given.pop("roles", EXECUTOR), **given)


def _calls(plain: Body) -> list[Body]:
    found: list[Body] = plain["choices"][0]["message"].get("tool_calls") or []
    return found


def _each(change: Any) -> Any:
    """The healthy answer with each of its calls changed in place."""

    def do(plain: Body, asked: Asked) -> None:
        for place, one in enumerate(_calls(plain)):
            change(one, place)

    return answering(do)


def _arguments(write: Any) -> Any:
    return _each(lambda one, place: one["function"].update(arguments=write(json.loads(one["function"]["arguments"]))))


def _as_text(write: Any, places: range | None = None) -> Any:
    """The healthy calls as a text of the form that `write` gives (name, arguments)."""

    def do(plain: Body, asked: Asked) -> None:
        message = plain["choices"][0]["message"]
        if calls := message.pop("tool_calls", None):
            written = [write(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in calls]
            message["content"] = "\n".join(written)
            plain["choices"][0]["finish_reason"] = "stop"

    return answering(do, places)


def _object(name: str, arguments: Any, key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments})


def _many(plain: Body, asked: Asked) -> None:
    if (calls := _calls(plain)) and asked.place == 0:
        calls[:] = [call("inspect", calls[0]["function"]["arguments"], f"call_{n}") for n in range(100)]


def _poisoned(asked: Asked) -> Reply:
    """A call that is no JSON, and a 500 for every history in which it stands as it was written."""
    if asked.place == 0:
        return called(call("inspect", '{"order": '))
    written = [one["function"]["arguments"] for message in asked.body["messages"]
               for one in message.get("tool_calls") or ()]  # fmt: skip
    try:
        sound = all(isinstance(json.loads(one), dict) for one in written)
    except ValueError:
        sound = False
    return None if sound else failed(500, "Failed to parse tool call arguments as JSON", code=500)


#: one answer, after which all is well: a failed step with a message, no more
FAILED: dict[str, Body] = {
    "arguments that are no JSON": called(call("inspect", "order 1")),
    "arguments that end early": called(call("inspect", '{"order": "10')),
    "arguments with a leaked tag": called(call("inspect", '{"order": "1"}</tool_call>')),
    "arguments in single quotes": called(call("inspect", "{'order': '1'}")),
    "arguments with a comma too many": called(call("inspect", '{"order": "1",}')),
    "arguments twice": called(call("inspect", _ORDER * 2)),
    "arguments that are a list": called(call("inspect", '["1"]')),
    "arguments that are a text": called(call("inspect", '"1"')),
    "arguments that are a number": called(call("inspect", "1")),
    "arguments with NaN": called(call("inspect", '{"order": NaN}')),
    "arguments with 1e999": called(call("inspect", '{"order": 1e999}')),
    "arguments that nest too deep": called(call("inspect", '{"a":' * 100)),
    "a list in place of arguments": called(call("inspect", ["1"])),
    "a number in place of arguments": called(call("inspect", 1)),
    "a tool that nobody has": called(call("launch_rockets", "{}")),
    "a tool that nobody has, with bad arguments": called(call("launch_rockets", "{{{")),
    "a tool name with a space": called(call("pack it", _ORDER)),
    "a tool name in Cyrillic letters": called(call("p\u0430ck", _ORDER)),
    "no tool name": called({"id": "a", "type": "function", "function": {"arguments": _ORDER}}),
    "an empty tool name": called(call("", _ORDER)),
    "a tool name that is a number": called(call(7, _ORDER)),
    "a call without a function": called({"id": "a", "type": "function"}),
    "a call that is null": called(None),
    "a call that is a text": called("inspect"),
    "calls that are an object": completion({"role": "assistant", "tool_calls": call("inspect", _ORDER)}, "tool_calls"),
    "no calls in a list of calls": called(),
    "one call that can be read and one that cannot": called(call("inspect", _ORDER, "a"), call("pack", "{", "b")),
}  # fmt: skip

#: the same, and a mark that says what was odd
FLAGGED: dict[str, tuple[str, Body]] = {
    "a tool name with a line and an escape": ("name", called(call("pack\n\x1b[31m", _ORDER))),
    "a tool name of ten kilobytes": ("name", called(call("p" * 10_000, _ORDER))),
    "a tool name with half a surrogate": ("name", called(call("pack\ud800", _ORDER))),
    "calls that are a text": ("tool_calls", completion({"role": "assistant", "tool_calls": "inspect"}, "tool_calls")),
    "an old function_call": ("function_call", completion({"role": "assistant", "content": None, "function_call": {
        "name": "launch_rockets", "arguments": "{}"}}, "function_call")),
}  # fmt: skip

#: calls written as text -> how
TEXTS: dict[str, Any] = {
    "in tool_call tags": lambda name, arguments: f"<tool_call>\n{_object(name, arguments)}\n</tool_call>",
    "in a tool_call tag that does not close": lambda name, arguments: f"<tool_call>\n{_object(name, arguments)}",
    "in function tags": lambda name, arguments: f"<function={name}>{json.dumps(arguments)}</function>",
    "as Qwen's coder writes it": lambda name, arguments: (
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        + "</function>\n</tool_call>"
    ),
    "behind Mistral's mark": lambda name, arguments: f"[TOOL_CALLS] [{_object(name, arguments)}]",
    "behind Llama's mark": lambda name, arguments: f"<|python_tag|>{_object(name, arguments, 'parameters')}",
    "as a bare object": _object,
    "as a bare object with parameters": lambda name, arguments: _object(name, arguments, "parameters"),
    "in a fence": lambda name, arguments: f"```json\n{_object(name, arguments)}\n```",
    "with a word before the tags": lambda name, arguments: (
        f"I shall look.\n<tool_call>{_object(name, arguments)}</tool_call>"
    ),
}

ROWS: list[Row] = [
    *(row(name, play=first(reply), expect=failed_steps(1)) for name, reply in FAILED.items()),
    *(row(name, play=first(reply), expect=failed_steps(1, flags=(flag,))) for name, (flag, reply) in FLAGGED.items()),
    row("arguments that are never JSON", play=always(called(call("inspect", "order 1"))), expect=out_of_errors()),
    row("a tool that nobody has, for ever", play=always(called(call("launch_rockets", "{}"))), expect=out_of_errors()),
    *(row(f"a call {name}, where calls are expected", play=_as_text(write, range(1)), expect=failed_steps(1))
      for name, write in TEXTS.items()),
    *(row(f"a call {name}, where texts are", play=_as_text(write), model={"tools": "text"},
          expect=used(flags=("text_call",))) for name, write in TEXTS.items()),
    row("arguments in a fence", play=_arguments(lambda given: f"```json\n{json.dumps(given)}\n```"), expect=used()),
    row("arguments encoded twice", play=_arguments(lambda given: json.dumps(json.dumps(given))), expect=used()),
    row("arguments as an object", play=_arguments(lambda given: given), expect=used()),
    row("arguments with white space around", play=_arguments(lambda given: f"\n {json.dumps(given)} \n"),
        expect=used()),
    row("calls without ids", play=_each(lambda one, place: one.pop("id")), expect=used()),
    row("calls whose id is null", play=_each(lambda one, place: one.update(id=None)), expect=used()),
    row("calls whose id is a number", play=_each(lambda one, place: one.update(id=0)), expect=used()),
    row("calls that all have one id", play=_each(lambda one, place: one.update(id="call_0")), expect=used()),
    row("calls with an id of 10 kB", play=_each(lambda one, place: one.update(id="x" * 10_000)), expect=used()),
    row("calls without a type", play=_each(lambda one, place: one.pop("type")), expect=used()),
    row("calls of another type", play=_each(lambda one, place: one.update(type="custom")), expect=used()),
    row("calls with an index", play=_each(lambda one, place: one.update(index=0)), expect=used()),
    row("calls with words beside them", expect=used(),
        play=answering(lambda plain, asked: plain["choices"][0]["message"].update(
            content=plain["choices"][0]["message"]["content"] or "I shall look."))),
    row("a hundred calls at once", play=answering(_many), expect=failed_steps(1)),
    row("a planner's answer that calls a tool", roles=PLANNER, play=first(called(call("inspect", _ORDER))),
        expect=lambda role: {"answers": 2}),
    row("a message with every field null", play=first(completion({"role": None, "content": None, "tool_calls": None,
        "refusal": None, "function_call": None, "audio": None})), expect=failed_steps(1)),
    row("arguments a hundred thousand deep", play=first(called(call("inspect", '{"a":' * 100_000))),
        expect=failed_steps(1, usage="estimated", flags=("usage_estimated",))),
    row("a text that speaks of a call, which is an answer", expect=used(success=False, label="none"),
        play=first(said('I would call inspect with {"order": "1"} now.'))),
    row("bad arguments, and a server that fails on them in a history", play=_poisoned, expect=failed_steps(1)),
]  # fmt: skip
