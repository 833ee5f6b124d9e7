"""What an executor's answer comes to: an action, or a failed step that the model can act on."""

import json
import re

import pytest

from runtime.actions import MOST_CALLS, read_action, read_arguments, resent
from runtime.errors import UnreadableAnswer
from runtime.ports import ToolCall

LIGHT = {
    "type": "object",
    "properties": {
        "room": {"type": "string"},
        "level": {"type": "integer"},
        "mode": {"enum": ["warm", "cold"]},
        "names": {"type": "array", "items": {"type": "string"}},
    },
}
TOOLS = {"set_light": LIGHT, "get.weather": None, "my tool": {}}


def read(answer, mode="dialog"):
    return read_action(answer, TOOLS, "episode-0-1", mode)


def arguments(text):
    return read_arguments(ToolCall(id="x", name="set_light", arguments=text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("  \n", {}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ("null", {}),
        ("```\n{}\n```", {}),
        ('{"a": "\\ud800"}', {"a": "\ud800"}),
        ('{"a": 1.0, "b": 1e3}', {"a": 1.0, "b": 1000.0}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
    ],
)
def test_arguments(text, value):
    """An object is read as it is, in a fence, or encoded once more; nothing means no arguments."""
    assert arguments(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        "3",
        "true",
        '"a"',
        '"[1]"',
        '"\\"{}\\""',
        "{'a': 1}",
        '{"a": True}',
        '{"a": None}',
        "{a: 1}",
        '{"a": 1,}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": 1} and more',
        '{"a": 1}{"a": 2}',
        '{"a": 1, "a": 2}',
        '{"a": {"b": 1, "b": 1}}',
        "a=1",
        "```python\n{}\n```",
        "Here:\n```json\n{}\n```",
        "[" * 100_000,
        '{"a":' * 100 + "1" + "}" * 100,
        "9" * 5000,
    ],
    ids=lambda text: text[:40],
)
def test_arguments_refused(text):
    """Anything else is refused, with a reason that names the tool."""
    with pytest.raises(UnreadableAnswer, match="set_light"):
        arguments(text)


def test_calls_get_our_own_ids(calls):
    """Calls that share a foreign id, or have none, go out under ids of ours with arguments written anew."""
    action = read(calls(("set_light", '{ "room":"kitchen"}'), ("get.weather", ""), content="Now."))
    assert action.message == {
        "role": "assistant",
        "content": "Now.",
        "tool_calls": [
            {
                "id": "episode-0-1-0",
                "type": "function",
                "function": {"name": "set_light", "arguments": '{"room": "kitchen"}'},
            },
            {"id": "episode-0-1-1", "type": "function", "function": {"name": "get.weather", "arguments": "{}"}},
        ],
    }
    assert action.history == [action.message]


def test_one_bad_call_stops_the_message(calls):
    """Where one call cannot be read none is executed; each is answered, and no bad argument enters the history."""
    action = read(calls(("set_light", '{"room": '), ("get.weather", '{"city": "Oslo"}')))
    assert action.message is None
    assistant, first, second = action.history
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == ["{}", '{"city": "Oslo"}']
    assert first["content"].startswith("Error: The arguments of 'set_light' are no JSON object")
    assert second["content"].startswith("Not executed")
    assert [first["tool_call_id"], second["tool_call_id"]] == ["episode-0-1-0", "episode-0-1-1"]


@pytest.mark.parametrize(
    "name", ["rm -rf /", " set_light", "set_light\n", "functions.set_light", "SET_LIGHT", "set_light\ufffd", "x" * 200]
)
def test_unknown_tool(calls, name):
    """A name that is not exactly one that is offered is a failed step that lists the tools, and enters no history."""
    action = read(calls((name, "{}")))
    assert action.message is None
    written = action.history[0]["tool_calls"][0]["function"]["name"]
    assert re.fullmatch(r"[\w.-]{1,64}", written)
    assert f"There is no tool {name!r}. The tools are: get.weather, my tool, set_light." in action.history[1]["content"]


def test_a_name_that_is_offered_is_kept(calls):
    """Even outside the alphabet of names: the endpoint took it."""
    assert read(calls(("my tool", "{}"))).message["tool_calls"][0]["function"]["name"] == "my tool"


def test_very_many_tools_are_not_all_listed(calls):
    """A complaint stays short."""
    action = read_action(calls(("x", "{}")), {f"tool_{n}": None for n in range(5000)}, "e", "dialog")
    assert len(action.history[1]["content"]) < 2500


def test_a_call_without_a_name(calls):
    """What nobody can read of a call is shown to whoever wrote it."""
    action = read(calls(("", '{"function": null}')))
    assert action.message is None
    assert action.history[0]["tool_calls"][0]["function"]["name"] == "unnamed"
    assert 'no name, or a form that nobody can read: {"function": null}' in action.history[1]["content"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ('{"room": 3}', "'room' must be a string, not 3"),
        ('{"level": "3"}', "'level' must be an integer, not \"3\""),
        ('{"level": 3.5}', "'level' must be an integer, not 3.5"),
        ('{"level": true}', "'level' must be an integer, not true"),
        ('{"mode": "hot"}', '\'mode\' must be one of "warm", "cold", not "hot"'),
        ('{"names": ["a", 2]}', "'names[1]' must be a string, not 2"),
        ('{"names": "a"}', "'names' must be a list, not \"a\""),
    ],
)
def test_arguments_that_do_not_fit_the_tool(calls, given, told):
    """Wrong types and values are a failed step that names the field; in one shot they go to the evaluator."""
    action = read(calls(("set_light", given)))
    assert action.message is None
    assert f"The arguments of 'set_light' do not fit the tool: {told}." in action.history[1]["content"]
    assert read(calls(("set_light", given)), "single_shot").message is not None


@pytest.mark.parametrize("given", ['{"level": 3.0}', '{"room": null}', '{"other": 1}', "{}", "", "null"])
def test_arguments_that_may_be_meant_so_pass(calls, given):
    """Never stricter than the tool's own schema."""
    assert read(calls(("set_light", given))).message is not None


def test_more_calls_than_are_allowed(calls):
    """A failed step that says how many are, and that puts none of them into the history."""
    call = ("set_light", "{}")
    assert read(calls(*[call] * MOST_CALLS)).message is not None
    for number in (MOST_CALLS + 1, 100):
        action = read(calls(*[call] * number))
        assert action.message is None
        assert action.history[0] == {"role": "assistant", "content": f"({number} tool calls)"}
        assert f"held {number} tool calls, and none was executed. Send 32 at most" in action.history[1]["content"]
    assert len(read(calls(*[call] * 200), "single_shot").message["tool_calls"]) == 200


@pytest.mark.parametrize(
    "content",
    [
        '<tool_call>{"name": "set_light", "arguments": {}}</tool_call>',
        "<function=set_light>{}</function>",
        '{"name": "set_light", "parameters": {}}',
        '```json\n{"name": "set_light", "arguments": {}}\n```',
        '<tool_call>{"name": "set_light", "arguments": {"room": </tool_call>',
    ],
)
def test_a_call_that_is_written_as_text(says, content):
    """A failed step that says how calls are made; where there is no second try, or the answer is code, it is text."""
    for mode in ("dialog", "answer"):
        action = read(says(content), mode)
        assert action.message is None
        assert [message["role"] for message in action.history] == ["assistant", "user"]
        assert "tool call that is written as text" in action.history[1]["content"]
    for mode in ("single_shot", "code"):
        assert read(says(content), mode).message == {"role": "assistant", "content": content}
    assert read_action(says(content), {}, "e", "dialog").message is not None


def test_an_answer_that_speaks_of_a_call(says):
    """A mark in code is an answer like any other."""
    content = "Qwen writes `<tool_call>{}</tool_call>`."
    assert read(says(content)).message == {"role": "assistant", "content": content}


def test_a_call_that_did_not_arrive(says):
    """An endpoint that says that there were calls, and sends none."""
    for finish in ("tool_calls", "malformed_function_call"):
        assert "did not arrive" in read(says("", finish=finish)).history[1]["content"]


@pytest.mark.parametrize("given", ['{"room": ', ""])
def test_cut_off_arguments(calls, given):
    """Arguments that ended at the length limit are named as such, where nothing was written of them, too."""
    action = read(calls(("get.weather", ""), ("set_light", given), finish="length"))
    assert action.history[1]["content"].startswith("Not executed")
    assert "cut off at the length limit" in action.history[2]["content"]


def test_whole_calls_before_the_length_limit(calls):
    """Calls that were written to their end are executed."""
    assert read(calls(("set_light", '{"room": "a"}'), finish="length")).message is not None


def test_a_complaint_repeats_what_was_written(calls):
    """The history holds no bad arguments, so the model sees them there; of long ones the beginning."""
    action = read(calls(("set_light", "{'room': 1}")))
    assert action.history[1]["content"].endswith("You wrote: {'room': 1}")
    long = read(calls(("set_light", "{" + "x" * 10_000)))
    assert len(long.history[1]["content"]) < 600


def test_text(says):
    """Text alone goes to the environment; empty or cut text does not, and keeps the roles alternating."""
    assert read(says("Done.")).message == {"role": "assistant", "content": "Done."}
    for answer in (
        says("  "),
        says("\x00"),
        says("\u200b\n"),
        says("Half a sent", finish="length"),
        says("", finish="length"),
    ):
        action = read(answer)
        assert action.message is None
        assert [message["role"] for message in action.history] == ["assistant", "user"]
        assert all(message["content"].strip() for message in action.history)
        assert action.history[0]["content"].isprintable()


def test_single_shot_has_no_second_try(calls, says):
    """In one shot an unknown tool goes to the evaluator as it is, and what cannot be read goes as text."""
    unknown = read(calls(("nothing", "{}")), "single_shot")
    assert unknown.message["tool_calls"][0]["function"]["name"] == "nothing"
    unreadable = read(calls(("set_light", "{")), "single_shot")
    assert unreadable.message == {"role": "assistant", "content": "set_light({)"}
    assert read(says(""), "single_shot").message == {"role": "assistant", "content": ""}


def test_surrogates_are_replaced(calls):
    """What a wire cannot carry never enters the history."""
    action = read(calls(("set_light", '{"room": "\\ud800"}'), content="\ud800"))
    assert json.dumps(action.message, ensure_ascii=False).encode()


def test_calls_that_somebody_else_wrote():
    """An environment's own assistant message gets into the history in a form that no endpoint fails on."""
    good = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{ "x": 1}'}}
    given = [
        good,
        {"id": "b", "function": {"name": "look", "arguments": {"x": 1}}},
        {"function": {"name": "look up", "arguments": '{"x": '}},
        {"function": {"name": "look"}},
        {"id": "c"},
        {"function": {"name": 3}},
        None,
    ]
    assert resent(given) == [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}},
        {"id": "given-2", "type": "function", "function": {"name": "look_up", "arguments": "{}"}},
        {"id": "given-3", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    assert resent(None) == resent("look()") == []
