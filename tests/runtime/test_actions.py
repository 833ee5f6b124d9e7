"""What an executor's answer comes to: an action, or a failed step that the model can act on."""

import json

import pytest

from runtime.actions import read_action, read_arguments
from runtime.errors import UnreadableAnswer
from runtime.ports import ToolCall

TOOLS = {"set_light", "get.weather"}


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
        ('{"a": "\\ud800"}', {"a": "\ud800"}),
    ],
)
def test_arguments(text, value):
    """An object is read as it is, in a fence, or encoded once more; nothing means no arguments."""
    assert arguments(text) == value


@pytest.mark.parametrize(
    "text", ["{", "[1]", "3", "null", '"a"', "{'a': 1}", '{"a": NaN}', '{"a": 1e999}', "[" * 100_000, "9" * 5000]
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


def test_unknown_tool(calls):
    """An unknown name is a failed step that lists the tools; the history holds it in a harmless form."""
    action = read(calls(("rm -rf /", "{}")))
    assert action.message is None
    assert action.history[0]["tool_calls"][0]["function"]["name"] == "rm_-rf__"
    assert "get.weather, set_light" in action.history[1]["content"]


def test_cut_off_arguments(calls):
    """Arguments that ended at the length limit are named as such."""
    action = read(calls(("set_light", '{"room": '), finish="length"))
    assert "cut off at the length limit" in action.history[1]["content"]


def test_text(says):
    """Text alone goes to the environment; empty or cut text does not, and keeps the roles alternating."""
    assert read(says("Done.")).message == {"role": "assistant", "content": "Done."}
    for answer in (says("  "), says("Half a sent", finish="length")):
        action = read(answer)
        assert action.message is None
        assert [message["role"] for message in action.history] == ["assistant", "user"]
        assert all(message["content"].strip() for message in action.history)


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
