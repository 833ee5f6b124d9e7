"""Worlds whose runs recall from a real Weaviate, with their logs in a real Redis."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from events.ids import Position, RunId
from events.log import Recorded
from infra.banks import upkeep
from infra.banks.generations import Generations, RunGenerations
from infra.blobs import RedisBlobs
from infra.calls import RedisCalls
from infra.clock import SystemClock
from infra.leases import RedisLeases
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.weaviate_address import WeaviateAddress
from runtime.ports import EventLog, Job
from workers.stored_bank import pruned_by

RUN = "r"
#: seconds within which everything here ends, on a machine that is busy with other things
DEADLINE_S = 120.0


@dataclass
class Stored:
    """A world whose runs are recalled from Weaviate."""

    world: Any
    redis: Any
    generations: Generations

    def of(self, run: str = RUN) -> RunGenerations:
        return self.generations.of(RunId(run))

    async def differences(self, run: str = RUN) -> list[str]:
        """What the bank that serves holds otherwise than the log."""
        async with self.world.with_banks() as there:
            serving = await self.of(run).serving()
            assert serving is not None, "nothing was published"
            banks, pruned = await pruned_by(self.world.log(run), serving.version)
            found = await upkeep.verify(await there.banks.server(), self.of(run), banks, pruned)
            return list(found.differences)


@asynccontextmanager
async def stored(world: Any, url: str, prefix: str, address: WeaviateAddress, **given: Any) -> AsyncIterator[Stored]:
    """A world on a real Redis and a real Weaviate."""
    async with connected(url) as redis:
        clock = SystemClock()
        generations = Generations(redis, prefix, "here")
        made = world(**{
            "store": RedisLogStore(redis, prefix, clock, "here"), "blobs": RedisBlobs(redis, prefix, "here"),
            "calls": RedisCalls(redis, prefix, "here"), "leases": RedisLeases(redis, prefix, "here"),
            "weaviate": address, "generations": generations, **given,
        })  # fmt: skip
        yield Stored(made, redis, generations)


def sources(events: Sequence[Recorded]) -> Counter[str]:
    """Recalls by where they came from."""
    return Counter(json.loads(one.data)["source"] for one in events if one.kind == "retrieved")


async def recalled(log: EventLog, source: str, after: int) -> bool:
    """Whether a recall after that position came from there."""
    async for page in log.pages(Position(after)):
        if any(one.kind == "retrieved" and json.loads(one.data)["source"] == source for one in page):
            return True
    return False


async def until(true: Callable[[], Awaitable[Any]]) -> Any:
    """Waits for a condition; what it gave."""
    with anyio.fail_after(DEADLINE_S):
        while not (found := await true()):  # noqa: ASYNC110 - a state of the world, not of a task that could tell us
            await anyio.sleep(0.01)
    return found


def held_back(until_then: Mapping[int, anyio.Event]) -> Callable[[Callable[[Job], Any]], Any]:
    """For `World.around`: jobs of episodes from each number on wait for its event, so that no run ends before it."""

    def around(advance: Callable[[Job], Any]) -> Callable[[Job], Any]:
        async def held(job: Job) -> None:
            for first, event in until_then.items():
                if job.episode >= first:
                    await event.wait()
            await advance(job)

        return held

    return around
