"""Each try waits for its turn, and says what it came to."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from scripted_endpoint import KEY, REQUEST, FakeClock, completion, failed, http, scripted

from infra.capabilities import Place
from infra.openai_client import Clients
from infra.openai_model import OpenAIModel
from runtime.errors import ModelRefused
from runtime.settings import EndpointSettings, ModelSettings


class Watching:
    """A pace without bounds that writes down what happens."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.told: list[Any] = []

    @asynccontextmanager
    async def request(self, place: Place, endpoint: EndpointSettings, tokens: int) -> AsyncIterator["Watching"]:
        slept = len(self.clock.slept)
        self.told.append(("asks", place.model, tokens))
        yield self
        assert len(self.clock.slept) == slept, "slept in its turn"

    def answered(self, tokens: int | None) -> None:
        self.told.append(("answered", tokens))

    def limited(self, retry_after_s: float | None) -> None:
        self.told.append(("limited", retry_after_s))


async def told(*replies: bytes) -> list[Any]:
    async with AsyncExitStack() as held, scripted(*replies) as server:
        clock = FakeClock()
        watching = Watching(clock)
        endpoint = EndpointSettings(base_url=server.url, retries=3)
        model = OpenAIModel(
            {"executor": ModelSettings(model="m")}, {"executor": endpoint}, Clients({}, clock, held), clock,
            pace=watching,  # type: ignore[arg-type] # a turn and a pace in one
        )  # fmt: skip
        try:
            await model.complete(REQUEST, KEY)
        except ModelRefused:
            watching.told.append("refused")
        return watching.told


ASKS = ("asks", "m", 1024 + 6)


async def test_an_answer_says_what_it_came_to() -> None:
    """Prompt and answer, as the endpoint counts."""
    assert await told(completion(usage={"prompt_tokens": 30, "completion_tokens": 2})) == [ASKS, ("answered", 32)]


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 10**9, "completion_tokens": -1}])
async def test_what_cannot_be_true_is_estimated(usage: Any) -> None:
    """An absurd count would hold everybody up for hours."""
    assert await told(completion(usage=usage)) == [ASKS, ("answered", 7)]


async def test_a_try_that_is_limited_says_so_and_gives_its_turn_back() -> None:
    """What the server asks for is passed on, and the pause is outside."""
    limited = http(429, {"error": {"message": "slow down"}}, retry_after="7")
    assert (await told(limited, completion()))[:3] == [ASKS, ("limited", 7.0), ASKS]


async def test_other_failures_say_nothing() -> None:
    """A refusal, an overload: the turn is given back as it was taken."""
    assert await told(failed(400, "no")) == [ASKS, "refused"]
    assert (await told(failed(503, "busy"), completion()))[:2] == [ASKS, ASKS]


async def test_asking_in_another_way_takes_another_turn() -> None:
    """It is a request like any other."""
    refused = failed(400, "Unsupported value: 'temperature' does not support 0.0 with this model.")
    assert [one[0] for one in await told(refused, completion())] == ["asks", "asks", "answered"]
