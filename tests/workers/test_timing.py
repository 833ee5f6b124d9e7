"""Timing does not matter: the same answers give the same log, whoever plays it, how many at once, how often."""

import random
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from infra.blobs import RedisBlobs
from infra.calls import RedisCalls
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from runtime.ports import CallKey, ChatAnswer, ChatModel, ChatRequest, Job

EPISODES = 12


class Delayed:
    """A model that takes a random time for each answer."""

    def __init__(self, model: ChatModel, seed: int) -> None:
        self._model, self._chance = model, random.Random(seed)  # noqa: S311 - delays, no secret

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        await anyio.sleep(self._chance.choice((0, 0, 0.002, 0.01)))
        return await self._model.complete(request, key)


@pytest.fixture
async def undisturbed(world: Any, playing: Any) -> Any:
    """The log of the run with one episode at a time: what every other timing must give."""
    return await world().play("r", playing.configured(concurrency=1), limit=EPISODES)


@pytest.mark.parametrize(("concurrency", "seed"), [(1, 1), (4, 2), (16, 3), (16, 4)])
async def test_concurrency_and_delays(world: Any, playing: Any, undisturbed: Any, concurrency: int, seed: int):
    """Any concurrency and any delays give one digest at every version and the same contents."""
    there = world()
    there.model = Delayed(there.model, seed)
    events = await there.play("r", playing.configured(concurrency=concurrency), limit=EPISODES)
    assert playing.digests(events) == playing.digests(undisturbed)
    assert playing.contents(events) == playing.contents(undisturbed)
    assert len(set(playing.digests(events))) > EPISODES // 2, "a run that learns nothing would prove nothing"


async def test_every_job_twice(world: Any, playing: Any, undisturbed: Any):
    """Every job handled twice at once, under two coordinators, leaves the same log."""
    there = world()

    def twice(advance: Callable[[Job], Any]) -> Callable[[Job], Any]:
        async def handle(job: Job) -> None:
            async with anyio.create_task_group() as both:
                both.start_soon(advance, job)
                both.start_soon(advance, job)

        return handle

    there.around = twice
    there.model = Delayed(there.model, 5)
    await there.begin("r", playing.configured(concurrency=4), limit=EPISODES)
    assert await there.drive("r", coordinators=2) == ["finished"]
    events = await there.recorded("r")
    assert playing.contents(events) == playing.contents(undisturbed)
    assert [one.kind for one in events].count("run_finished") == 1
    assert events[-1].kind == "run_finished"


async def test_started_twice(world: Any, playing: Any, undisturbed: Any):
    """The same start again while the run goes on, and after its end, changes nothing."""
    there = world()
    await there.begin("r", playing.configured(concurrency=4), limit=EPISODES)
    await there.begin("r", playing.configured(concurrency=4), limit=EPISODES)
    assert await there.drive("r") == ["finished"]
    length = len(await there.recorded("r"))
    await there.begin("r", playing.configured(concurrency=4), limit=EPISODES)
    assert await there.drive("r") == ["finished"]
    events = await there.recorded("r")
    assert len(events) == length
    assert playing.contents(events) == playing.contents(undisturbed)


async def test_on_redis(world: Any, playing: Any, undisturbed: Any, redis_server: Any, redis_prefix: str):
    """A log on a real server ends with the same contents as one in memory."""
    async with connected(redis_server.url) as redis:
        there = world(
            store=RedisLogStore(redis, redis_prefix, SystemClock(), "here"),
            blobs=RedisBlobs(redis, redis_prefix, "here"),
            calls=RedisCalls(redis, redis_prefix, "here"),
        )
        events = await there.play("r", playing.configured(concurrency=4), limit=EPISODES)
        assert playing.contents(events) == playing.contents(undisturbed)
        assert playing.digests(events) == playing.digests(undisturbed)


#: the scope of the job that runs here, as a worker's life
_LIFE: ContextVar[anyio.CancelScope] = ContextVar("life")


class MortalLog:
    """A log that kills, once each, whoever appends at given places: before the event is written, or after."""

    def __init__(self, log: Any, places: dict[tuple[str, int], str]) -> None:
        self._log, self._places = log, places

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, stream: Any, first: Any, drafts: Any, origin: Any) -> Any:
        when = self._places.pop((stream, first), None)
        if when == "before":
            await self._die()
        result = await self._log.append(stream, first, drafts, origin)
        if when == "after":
            await self._die()
        return result

    async def _die(self) -> None:
        _LIFE.get().cancel()
        await anyio.sleep_forever()


@dataclass
class MortalStore:
    store: Any
    places: dict[tuple[str, int], str]

    def open(self, run: Any) -> MortalLog:
        return MortalLog(self.store.open(run), self.places)


async def test_worker_dies_at_every_append(world: Any, playing: Any, undisturbed: Any):
    """A worker that dies before or after any append leaves no trace in the log but attempt numbers."""
    there = world()
    appends = [(version, when) for version in (1, 2, 4, 6) for when in ("before", "after")]
    places = {(f"episode-{t}", appends[t % 8][0]): appends[t % 8][1] for t in range(EPISODES)}
    there.workers_store = MortalStore(there.store, places)

    def mortal(advance: Callable[[Job], Any]) -> Callable[[Job], Any]:
        async def handle(job: Job) -> None:
            with anyio.CancelScope() as life:
                _LIFE.set(life)
                await advance(job)

        return handle

    there.around = mortal
    events = await there.play("r", playing.configured(concurrency=4), limit=EPISODES)
    assert not places
    assert playing.contents(events) == playing.contents(undisturbed)
    assert playing.digests(events) == playing.digests(undisturbed)
    assert {one.attempt for one in events} == {1, 2}
