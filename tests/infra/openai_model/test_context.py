"""Requests that are too long for a model: shortened before they are sent, once more where that was not enough."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from scripted_endpoint import REQUEST, Asked, asking, completion, failed

from runtime.errors import ModelRefused
from runtime.ports import ChatRequest
from runtime.task import Message

#: 40 turns of some thousand characters each
LONG: ChatRequest = replace(
    REQUEST,
    messages=[
        {"role": "system", "content": "Be good."},
        {"role": "user", "content": "The first question."},
        *({"role": role, "content": f"{n} " + "word " * 200} for n in range(20) for role in ("assistant", "user")),
        {"role": "user", "content": "The last question."},
    ],
)
#: prompt and window in each server's words
OVERFLOWS = {
    "OpenAI": "This model's maximum context length is 4096 tokens. However, your messages resulted in 10100 tokens. "
    "Please reduce the length of the messages.",
    "vLLM": "This model's maximum context length is 4096 tokens. However, you requested 11124 tokens (10100 in the "
    "messages, 1024 in the completion). Please reduce the length of the messages or completion.",
    "llama.cpp": "the request exceeds the available context size. try increasing the context size or enable context "
    "shift (n_prompt_tokens 10100, n_ctx 4096)",
    "DashScope": "Range of input length should be [1, 4096]",
    "no numbers": "prompt is too long",
}


def length(body: Any) -> int:
    return len(json.dumps(body["messages"]))


def texts(messages: list[Message]) -> str:
    return " ".join(str(one["content"]) for one in messages)


def counted(prompt: int) -> bytes:
    return completion(usage={"prompt_tokens": prompt, "completion_tokens": 1})


async def test_a_window_that_is_known_is_kept_to() -> None:
    """What is too long is never sent; the beginning and the end stay, and the answer says how much was left out."""
    async with asking(counted(2500), context_tokens=4096) as asked:
        answer = await asked.complete(LONG)
    [body] = asked.bodies
    assert length(body) / 4 < 4096
    sent = texts(body["messages"])
    assert "The first question." in sent
    assert "The last question." in sent
    assert "left out" in sent
    assert answer.left_out > length({"messages": LONG.messages}) / 2
    assert "trimmed" in answer.flags


async def test_what_fits_is_sent_as_it_is() -> None:
    """Nothing is left out, and nothing is said of it."""
    async with asking(counted(10_000), context_tokens=100_000) as asked:
        answer = await asked.complete(LONG)
    assert asked.bodies[0]["messages"] == LONG.messages
    assert (answer.left_out, answer.flags) == (0, [])


@pytest.mark.parametrize("words", OVERFLOWS.values(), ids=OVERFLOWS)
async def test_an_overflow_is_shortened_once_more(words: str) -> None:
    """To the window that the refusal tells, or to three quarters; without a pause, and not counted as a try."""
    async with asking(failed(400, words), counted(2600), retries=0) as asked:
        answer = await asked.complete(LONG)
    first, second = asked.bodies
    assert first["messages"] == LONG.messages
    assert length(second) < 0.8 * length(first)
    assert answer.left_out > 0
    assert asked.clock.slept == []


@pytest.mark.parametrize("words", OVERFLOWS.values(), ids=OVERFLOWS)
async def test_what_fitted_is_remembered(words: str) -> None:
    """The next long request is shortened before it is sent, whether the refusal had numbers or not."""
    async with asking(failed(400, words), counted(2600), retries=0) as asked:
        await asked.complete(LONG)
        await asked.complete(LONG)
    assert len(asked.bodies) == 3
    assert length(asked.bodies[2]) < 0.8 * length(asked.bodies[0])


async def test_a_limit_of_a_minute_is_no_window() -> None:
    """A request that is larger than may be sent in a minute is shortened, and the next one is sent whole again."""
    words = "Request too large for gpt-4o on tokens per min (TPM): Limit 4096, Requested 10100."
    async with asking(failed(429, words), counted(2600), retries=0) as asked:
        await asked.complete(LONG)
        await asked.complete(LONG)
    assert [one["messages"] == LONG.messages for one in asked.bodies] == [True, False, True]


@pytest.mark.parametrize("words", OVERFLOWS.values(), ids=OVERFLOWS)
async def test_an_overflow_that_stays_is_final(words: str) -> None:
    """Shortened once, refused again: kind `context`; it is not sent a third time."""
    async with asking(failed(400, words)) as asked:
        with pytest.raises(ModelRefused) as caught:
            await asked.complete(LONG)
    assert (caught.value.kind, len(asked.bodies)) == ("context", 2)


async def test_a_request_that_cannot_be_shortened_is_not_sent_again() -> None:
    """One short question: whatever the server means, the same again would not help."""
    async with asking(failed(400, "prompt is too long")) as asked:
        with pytest.raises(ModelRefused) as caught:
            await asked.complete()
    assert (caught.value.kind, len(asked.bodies)) == ("context", 1)


async def test_a_cap_that_fills_the_window_gives_way() -> None:
    """The prompt is short, its answer's cap is not: the cap goes down, and nothing is left out."""
    words = (
        "'max_tokens' or 'max_completion_tokens' is too large: 1024. This model's maximum context length is 1000 "
        "tokens and your request has 30 input tokens (1024 > 1000 - 30)."
    )
    async with asking(failed(400, words), counted(30), retries=0) as asked:
        answer = await asked.complete()
    first, second = ({name: one[name] for name in one if name != "messages"} for one in asked.bodies)
    assert first["max_tokens"] == 1024
    assert min(second.get("max_tokens", 2000), second.get("max_completion_tokens", 2000)) < 1000
    assert answer.left_out == 0


async def test_a_prompt_that_a_server_has_cut_without_a_word() -> None:
    """It counts far fewer tokens than there were: the answer is used, and says so."""
    async with asking(counted(10_000), counted(900)) as asked:
        first = await asked.complete(LONG)
        second = await asked.complete(LONG)
    assert (first.flags, second.flags) == ([], ["prompt_dropped"])


async def test_what_is_unknown_is_estimated_alike() -> None:
    """Whatever was learnt meanwhile: equal answers have equal estimates."""

    async def estimated(asked: Asked) -> int | None:
        return (await asked.complete(LONG)).usage.estimated_prompt_tokens

    async with asking(completion()) as one, asking(counted(19_000), completion()) as other:
        await other.complete(LONG)
        assert await estimated(one) == await estimated(other) is not None
