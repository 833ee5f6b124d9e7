"""A request's messages in the form that an endpoint takes: nothing is lost, and the beginning stays the same."""

import copy
import json
from typing import Any

from msgspec.structs import replace

from infra.rewording import reworded, shape_of
from runtime.ports import ChatRequest
from runtime.task import Message

TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"at": {}}}},
}


def call(number: int, **arguments: str) -> dict[str, Any]:
    return {
        "id": f"id-{number}",
        "type": "function",
        "function": {"name": "look", "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def result(number: int, content: str) -> Message:
    return {"role": "tool", "tool_call_id": f"id-{number}", "content": content}


HISTORY: list[Message] = [
    {"role": "system", "content": "Be good."},
    {"role": "user", "content": "hello"},
    {"role": "user", "content": "and look"},
    {"role": "assistant", "content": "I look.", "tool_calls": [call(1, at="Küche"), call(2)]},
    result(1, "a pan"),
    result(2, "a door"),
    {"role": "assistant", "content": "", "tool_calls": [call(3)]},
    result(3, "nothing"),
    {"role": "user", "content": "go on"},
]
ACTING = ChatRequest(role="executor", messages=HISTORY, tools=[TOOL])


def words(request: ChatRequest = ACTING, **changes: Any) -> list[Message]:
    given: dict[str, Any] = {
        "tools": "native", "schema": "silent", "system": "system", "parallel": True, "echo": False, "ids": "ours",
    }  # fmt: skip
    before = copy.deepcopy(request)
    made = reworded(request, **given | changes)
    assert request == before
    return made


def test_an_endpoint_that_takes_everything_gets_the_messages_as_they_are() -> None:
    """Not a copy with differences."""
    assert words() == HISTORY


def test_tools_in_words() -> None:
    """Offered in the system text; calls and results of the history are text, in their places."""
    system, *rest = words(tools="text")
    assert system["content"].startswith("Be good.\n\n")
    assert json.dumps(TOOL["function"]) in system["content"]
    assert "<tool_call>" in system["content"]
    assert [one["role"] for one in rest] == [
        "user", "user", "assistant", "user", "user", "assistant", "user", "user",
    ]  # fmt: skip
    assert not any("tool_calls" in one or "tool_call_id" in one for one in rest)
    assert rest[2]["content"] == (
        'I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "Küche"}}\n</tool_call>'
        '\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    )
    assert rest[3]["content"] == "<tool_response>\na pan\n</tool_response>"
    assert rest[5]["content"] == '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


def test_words_without_a_system_text_make_one() -> None:
    """It stands first."""
    first, *rest = words(replace(ACTING, messages=HISTORY[1:2]), tools="text")
    assert (first["role"], rest) == ("system", HISTORY[1:2])


def test_one_call_a_message() -> None:
    """Each call is followed by its own result; the text stands with the first one."""
    made = words(parallel=False)
    assert made[:3] == HISTORY[:3]
    assert made[3:7] == [
        {"role": "assistant", "content": "I look.", "tool_calls": [call(1, at="Küche")]},
        result(1, "a pan"),
        {"role": "assistant", "content": "", "tool_calls": [call(2)]},
        result(2, "a door"),
    ]
    assert made[7:] == HISTORY[6:]


def test_system_text_in_the_first_user_message() -> None:
    """And texts of one role that follow each other are one message; calls and results stay apart."""
    made = words(system="user")
    assert made[0] == {"role": "user", "content": "Be good.\n\nhello\n\nand look"}
    assert made[1:] == HISTORY[3:]
    roles = [one["role"] for one in words(system="user", tools="text")]
    assert roles == ["user", "assistant", "user", "assistant", "user"]


def test_system_text_for_a_developer() -> None:
    """Only the role has another name."""
    assert words(system="developer") == [{**HISTORY[0], "role": "developer"}, *HISTORY[1:]]


def test_short_ids() -> None:
    """Nine letters and digits, numbered as they come; each result has its call's, and all else stays."""
    made = words(ids="short")
    called = [[one["id"] for one in message.get("tool_calls", ())] for message in made]
    answered = [message.get("tool_call_id") for message in made]
    assert called == [[], [], [], ["call00000", "call00001"], [], [], ["call00002"], [], []]
    assert answered == [None, None, None, None, "call00000", "call00001", None, "call00002", None]
    for message, before in zip(made, HISTORY, strict=True):
        assert {**message, "tool_calls": 0, "tool_call_id": 0} == {**before, "tool_calls": 0, "tool_call_id": 0}


def test_an_id_that_comes_again_is_another_call() -> None:
    """A server may count from the start in every answer, or give none: each result stays with the call before it."""
    turns = [
        [{"role": "assistant", "content": "", "tool_calls": [call(1), call(2)]}, result(2, f"{turn}b"), result(1, turn)]
        for turn in "xy"
    ]
    nameless = {"role": "assistant", "content": "", "tool_calls": [{**call(1), "id": None}, {**call(2), "id": None}]}
    results = [{**result(1, content), "tool_call_id": None} for content in "pq"]
    request = replace(ACTING, messages=[*turns[0], *turns[1], nameless, *results])
    assert [(one["id"], content) for one, content in answered(words(request, ids="short"))] == [
        ("call00000", "x"), ("call00001", "xb"), ("call00002", "y"), ("call00003", "yb"), ("call00004", "p"),
        ("call00005", "q"),
    ]  # fmt: skip
    for changes in ({}, {"ids": "short"}):
        single = words(request, parallel=False, **changes)
        assert [one["role"] for one in single] == ["assistant", "tool"] * 6
        assert [one["content"] for one in single[1::2]] == ["x", "xb", "y", "yb", "p", "q"]
        assert [one["tool_calls"][0]["id"] for one in single[::2]] == [one["tool_call_id"] for one in single[1::2]]


def answered(messages: list[Message]) -> list[tuple[dict[str, Any], str]]:
    """Every call with the content of the result that has its id."""
    contents = {one["tool_call_id"]: one["content"] for one in messages if one["role"] == "tool"}
    return [(one, contents[one["id"]]) for message in messages for one in message.get("tool_calls", ())]


def test_tool_turns_with_a_line_for_their_thinking() -> None:
    """Each one another, made of its calls: what a model thought never goes into a prompt."""
    made = words(echo=True)
    lines = [one.get("reasoning_content") for one in made]
    assert lines == [
        None, None, None, "Turn 3: I call look, look.", None, None, "Turn 6: I call look.", None, None,
    ]  # fmt: skip


def test_the_beginning_is_the_same_in_every_step() -> None:
    """Of each form: what was sent for the first step begins what is sent for the next, message by message."""
    for changes in (
        {}, {"tools": "text"}, {"parallel": False}, {"echo": True}, {"ids": "short"}, {"system": "developer"},
        {"tools": "text", "parallel": False, "echo": True},
    ):  # fmt: skip
        whole = words(**changes)
        for end in (3, 6, 8):
            part = words(replace(ACTING, messages=HISTORY[:end]), **changes)
            assert whole[: len(part)] == part
            assert len(part) < len(whole)


def test_a_shape_follows_its_schema() -> None:
    """Every field of an object, in order; of several schemas the first."""
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "one": {"anyOf": [{"type": "object", "properties": {"n": {"type": "number"}}}, {"type": "null"}]},
            "many": {"type": "array", "items": {"type": "boolean"}},
            "any": {"type": "array"},
            "none": {"type": "null"},
            "odd": {},
        },
    }
    assert shape_of(schema) == {
        "text": "...", "one": {"n": 0}, "many": [False], "any": [], "none": None, "odd": "...",
    }  # fmt: skip
