"""What is sent where not all fits: what stays, what goes, in which order; laws for any conversation."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.model_context import KEPT_OF_A_RESULT, KEPT_OF_A_TEXT, Fitted, characters_in, fitted

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def quarter(characters: int) -> int:
    """Four characters a token."""
    return -(-characters // 4)


def said(role: str, content: Any = "", **more: Any) -> dict[str, Any]:
    """A message."""
    return {"role": role, "content": content, **more}


def call(number: int, arguments: str = "{}") -> dict[str, Any]:
    """A call of a tool."""
    return {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": arguments}}


def turn(number: int, result: str, calls: int = 1) -> list[dict[str, Any]]:
    """An assistant's calls with their answers."""
    ids = [10 * number + place for place in range(calls)]
    answers = [said("tool", result, tool_call_id=f"c{one}") for one in ids]
    return [said("assistant", f"step {number}", tool_calls=[call(one) for one in ids]), *answers]


def at_most(messages: list[dict[str, Any]], characters: int) -> Fitted:
    """What is sent of `messages` in so many characters."""
    return fitted(messages, [], characters, lambda given: given)


HEAD = [said("system", "rules"), said("user", "task")]


def test_what_fits_is_sent_as_it_is() -> None:
    """Nothing is said of it."""
    messages = [*HEAD, *turn(1, "x" * 5000)]
    whole = characters_in(messages, [TOOL])
    assert fitted(messages, [TOOL], quarter(whole), quarter) == Fitted(messages=messages, left_out=0)
    assert fitted(messages, [TOOL], quarter(whole) - 1, quarter).left_out > 0


def test_old_results_lose_their_middle_first() -> None:
    """As many as it takes from the oldest on; beginning and end of each stay, with a line that counts the rest."""
    messages = [*HEAD, *turn(1, "x" * 4000), *turn(2, "y" * 4000), *turn(3, "z" * 4000)]
    sent = at_most(messages, characters_in(messages) - 2500)
    results = [one["content"] for one in sent.messages if one["role"] == "tool"]
    assert [len(one) for one in results] == [KEPT_OF_A_RESULT, 4000, 4000]
    assert sent.left_out == 4000 - results[0].count("x")
    assert f"\n[... {sent.left_out} characters left out ...]\n" in results[0]
    assert results[0].startswith("xxx")
    assert results[0].endswith("xxx")
    assert [one for one in sent.messages if one["role"] != "tool"] == [one for one in messages if one["role"] != "tool"]


def test_then_whole_turns_go() -> None:
    """The oldest, each with all its answers; a line in their place says how many messages they were."""
    messages = [*HEAD, *turn(1, "a" * 900, calls=2), *turn(2, "b" * 900), *turn(3, "c" * 900)]
    sent = at_most(messages, characters_in(messages) - 1000)
    assert sent.messages == [HEAD[0], said("user", "task\n[... 3 earlier messages left out ...]"), *messages[5:]]
    assert sent.left_out == 1800 + len("step 1")
    sent = at_most(messages, characters_in(messages[:2] + messages[7:]) + 100)
    assert sent.messages == [HEAD[0], said("user", "task\n[... 5 earlier messages left out ...]"), *messages[7:]]


def test_then_the_longest_texts_lose_their_middle() -> None:
    """As little as it takes, the shorter ones nothing."""
    messages = [said("system", "r" * 500), said("user", "t" * 3000), *turn(1, "a" * 5000)]
    sent = at_most(messages, characters_in(messages) - 3000)
    lengths = [len(one["content"]) for one in sent.messages]
    assert lengths[0] == 500
    assert lengths[1] == lengths[3] == 2500
    assert characters_in(sent.messages) == characters_in(messages) - 3000


def test_the_last_turn_stays_whole_as_long_as_others_can_go() -> None:
    """Its results are what the model is to act on."""
    messages = [*HEAD, *turn(1, "a" * 3000), *turn(2, "b" * 3000, calls=2)]
    sent = at_most(messages, characters_in(HEAD + messages[4:]) + 100)
    assert sent.messages[2:] == messages[4:]


def test_a_longer_history_is_cut_at_the_same_places() -> None:
    """One more turn leaves what was sent before as it was, while results alone are cut."""
    messages = [*HEAD, *(one for number in range(1, 9) for one in turn(number, "r" * 3000))]
    before = at_most(messages, 16_000).messages
    after = at_most([*messages, *turn(9, "z" * 300)], 16_000).messages
    assert after[:8] == before[:8]


def test_texts_in_parts_are_texts() -> None:
    """Each part for itself; what is no text stays."""
    image = {"type": "image_url", "image_url": {"url": "http://x"}}
    parts = [{"type": "text", "text": "a" * 3000}, image, {"type": "text", "text": "b" * 100}]
    messages = [said("user", parts), *turn(1, "c"), said("user", "go on")]
    sent = at_most(messages, 900)
    assert [one.get("type") for one in sent.messages[0]["content"]] == ["text", "image_url", "text"]
    assert sent.messages[0]["content"][1] == image
    assert sent.messages[0]["content"][2]["text"] == "b" * 100 + "\n[... 2 earlier messages left out ...]"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [said("user", "x" * 5000)],
        [said("user", None), said("assistant", None, tool_calls=[call(1)]), said("tool", None, tool_call_id="c1")],
        [said("tool", "x" * 5000, tool_call_id="nobody"), said("tool", "y" * 5000, tool_call_id="nobody")],
        [said("assistant", "x" * 5000), said("user", "y" * 5000)],
        [{"role": "user"}, {}],
        [said("user", 3), said("assistant", {"odd": 1}, tool_calls="odd"), said("user", ["a", 1, {"text": 3}])],
        [said("user", "é\ud800" * 3000), said("user", "汉" * 3000)],
    ],
)
def test_any_conversation_can_be_shortened(messages: list[dict[str, Any]]) -> None:
    """Odd messages are carried along."""
    assert at_most(messages, 0).messages or not messages
    assert at_most(messages, 1000).left_out >= 0


TEXTS = st.one_of(
    st.none(),
    st.integers(0, 6000).map(lambda n: "word " * (n // 5)),
    st.text(max_size=300),
    st.lists(st.text(max_size=2000).map(lambda one: {"type": "text", "text": one}), max_size=3),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What a stage may send: any order of turns, calls answered in any order."""
    messages = [said("system", draw(TEXTS))] if draw(st.booleans()) else []
    number = 0
    for kind in draw(st.lists(st.sampled_from(["user", "assistant", "calls", "system"]), max_size=8)):
        if kind != "calls":
            messages.append(said(kind, draw(TEXTS)))
            continue
        calls = [call(number + place, "x" * draw(st.integers(0, 50))) for place in range(draw(st.integers(1, 4)))]
        number += len(calls)
        messages.append(said("assistant", draw(TEXTS), tool_calls=calls))
        messages += [said("tool", draw(TEXTS), tool_call_id=one["id"]) for one in draw(st.permutations(calls))]
    return messages


def shape(message: dict[str, Any]) -> str:
    """A message without its texts: what it must keep."""
    return json.dumps([message["role"], message.get("tool_calls"), message.get("tool_call_id")])


@given(conversations(), st.integers(0, 6000), st.booleans())
def test_laws(messages: list[dict[str, Any]], limit: int, with_tools: bool) -> None:
    """Calls keep their answers; system, task and last message stay; order stays; the limit holds where it can."""
    tools = [TOOL] if with_tools else []
    before = copy.deepcopy(messages)
    sent = fitted(messages, tools, limit, quarter)
    assert messages == before

    kept = iter(map(shape, messages))
    assert all(any(shape(one) == other for other in kept) for one in sent.messages)
    called = [one["id"] for message in sent.messages for one in message.get("tool_calls", [])]
    answered = [message["tool_call_id"] for message in sent.messages if message["role"] == "tool"]
    assert sorted(called) == sorted(answered)

    stays = [one for one in messages if one["role"] == "system"]
    stays += [one for one in messages if one["role"] == "user"][:1]
    shapes = [shape(one) for one in sent.messages]
    assert all(shapes.count(shape(one)) for one in stays)
    assert shapes[-1:] == [shape(one) for one in messages[-1:]]

    shortest = fitted(messages, tools, 0, quarter).messages
    assert quarter(characters_in(sent.messages, tools)) <= max(limit, quarter(characters_in(shortest, tools)))
    again = fitted(sent.messages, tools, limit, quarter)
    assert (again.messages, again.left_out) == (sent.messages, 0)
    assert 0 <= sent.left_out <= characters_in(messages)
    assert not (sent.left_out and sent.messages == messages)


@given(conversations())
def test_no_text_is_cut_below_what_can_be_read(messages: list[dict[str, Any]]) -> None:
    """However little room there is."""
    for message in at_most(messages, 0).messages:
        content = message.get("content")
        for text in [content] if isinstance(content, str) else [part["text"] for part in content or []]:
            assert len(text) <= KEPT_OF_A_TEXT
