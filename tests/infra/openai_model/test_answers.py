"""Answers that are odd, over a wire: read for what they hold. The tables are in `tests/infra/test_completion.py`."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from scripted_endpoint import SECRET, asking, completion, http

from runtime.ports import TokenUsage


def called(*calls: Any) -> bytes:
    """A completion that asks for tools."""
    return completion({"content": None, "tool_calls": list(calls)})


async def test_content_in_parts_is_joined() -> None:
    """Text parts in order; parts of another kind are left out."""
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "fi"}, {"type": "text", "text": "ne"}, 3]
    async with asking(completion({"content": parts})) as asked:
        assert (await asked.complete()).content == "fine"


@pytest.mark.parametrize("escaped", [False, True])
async def test_an_answer_that_repeats_the_key(escaped: bool) -> None:
    """The key comes into no plan, call, name or thought, in whatever way it is written."""
    call = {"id": SECRET, "function": {"name": "look", "arguments": {"key": SECRET}}}
    message = {"content": f"Use {SECRET}.", "reasoning_content": SECRET, "tool_calls": [call]}
    whole = {"model": SECRET, "system_fingerprint": f"f {SECRET}", "choices": [{"message": message}]}
    body = json.dumps(whole)
    if escaped:
        body = body.replace(SECRET, f"\\u{ord(SECRET[0]):04x}{SECRET[1:]}")
    async with asking(http(200, body)) as asked:
        answer = await asked.complete()
    assert (answer.content, answer.reasoning, answer.model, answer.fingerprint) == ("Use ***.", "***", "***", "f ***")
    assert [(one.id, one.arguments) for one in answer.tool_calls] == [("***", '{"key": "***"}')]


async def test_half_a_surrogate_pair_is_replaced() -> None:
    """What UTF-8 has no bytes for never gets into a record."""
    async with asking(completion({"content": "a\ud83d b"})) as asked:
        assert (await asked.complete()).content == "a? b"


async def test_tool_calls_keep_good_ids_and_get_others() -> None:
    """A missing, doubled or wrong id is replaced by one that no other call of the answer has."""
    call = {"function": {"name": "look", "arguments": "{}"}}
    given = [{"id": "call-3-2"} | call, call, {"id": "b"} | call, {"id": "b"} | call, {"id": 7} | call]
    async with asking(called(*given)) as asked:
        answer = await asked.complete()
    assert [one.id for one in answer.tool_calls] == ["call-3-2", "call-3-2+", "b", "call-3-4", "call-3-5"]


async def test_arguments_are_text_whatever_came() -> None:
    """An object becomes JSON text, nothing becomes {}, text stays as it is even where it is no JSON."""
    arguments = [{"room": "Küche"}, None, '{"room": ', "{}"]
    calls = [{"id": str(n), "function": {"name": "look", "arguments": one}} for n, one in enumerate(arguments)]
    async with asking(called(*calls)) as asked:
        answer = await asked.complete()
    assert [one.arguments for one in answer.tool_calls] == ['{"room": "Küche"}', "{}", '{"room": ', "{}"]


@pytest.mark.parametrize("given", [None, {}, "look()", 3])
async def test_tool_calls_of_another_type_are_none(given: Any) -> None:
    """The answer has its content and no calls."""
    async with asking(completion({"content": "fine", "tool_calls": given})) as asked:
        assert (await asked.complete()).tool_calls == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, TokenUsage()),
        ("many", TokenUsage()),
        ({"prompt_tokens": 5, "completion_tokens": 2}, TokenUsage(prompt_tokens=5, completion_tokens=2)),
        (
            {"prompt_tokens": 5, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 4}},
            TokenUsage(prompt_tokens=5, cached_tokens=4),
        ),
        ({"prompt_tokens": -1, "completion_tokens": 10**30, "prompt_tokens_details": []}, TokenUsage()),
        ({"prompt_tokens": 1.5, "completion_tokens": True, "prompt_tokens_details": None}, TokenUsage()),
    ],
)
async def test_usage_is_what_can_be_a_count(given: Any, expected: TokenUsage) -> None:
    """Everything else is unknown, not 0."""
    async with asking(completion(usage=given)) as asked:
        usage = (await asked.complete()).usage
    assert replace(usage, estimated_prompt_tokens=None, estimated_completion_tokens=None) == expected
    assert (usage.estimated_prompt_tokens is None) == (usage.prompt_tokens is not None)
    assert (usage.estimated_completion_tokens is None) == (usage.completion_tokens is not None)
