"""What failed tries came to is counted, as far as the endpoint says so and it can be true."""

from typing import Any

import pytest
from scripted_endpoint import asking, completion, failed, http

from runtime.errors import ModelRefused, ModelUnavailable
from runtime.ports import TokenUsage

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
EMPTY = http(200, {"choices": [], "usage": USAGE})
ANSWER = completion({"content": "fine and well"}, usage={"prompt_tokens": 5, "completion_tokens": 3})


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ([ANSWER], TokenUsage(prompt_tokens=5, completion_tokens=3)),
        ([EMPTY, EMPTY, ANSWER], TokenUsage(prompt_tokens=15, completion_tokens=7)),
        ([http(200, {"choices": []}), ANSWER], TokenUsage(prompt_tokens=5, completion_tokens=3)),
        ([http(200, {"choices": [], "usage": {"prompt_tokens": 10**9}}), ANSWER],
         TokenUsage(prompt_tokens=5, completion_tokens=3)),
        ([failed(500, "no"), ANSWER], TokenUsage(prompt_tokens=5, completion_tokens=3)),
    ],
    ids=["at once", "two empty ones", "a try that says nothing", "a try that cannot be", "an error"],
)  # fmt: skip
async def test_an_answer_costs_what_all_its_tries_did(replies: list[Any], expected: TokenUsage) -> None:
    """Tokens of a try without a usable answer are paid for like the others."""
    async with asking(*replies) as asked:
        usage = (await asked.complete()).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (expected.prompt_tokens, expected.completion_tokens)
    assert not usage.estimated


async def test_a_call_that_failed_says_what_it_came_to() -> None:
    """Where the endpoint has said so; else nothing, which is no zero."""
    async with asking(EMPTY) as asked:
        with pytest.raises(ModelUnavailable) as caught:
            await asked.complete()
    assert caught.value.usage == TokenUsage(prompt_tokens=15, completion_tokens=6, cached_tokens=3)
    async with asking(failed(400, "no such thing")) as asked:
        with pytest.raises(ModelRefused) as refused:
            await asked.complete()
    assert refused.value.usage is None
