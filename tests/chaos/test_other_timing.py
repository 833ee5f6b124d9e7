"""Timing does not matter, and twice is once: any number in flight, any delays, everything again: one digest."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import anyio
import held
import pytest
from chaos_budget import LONG, SEED, limit_s, rounds, told
from other_timing import DelayedModel, EverybodyHolds, TwiceStore, jobs_again
from troupe import RUN, Troupe, until

from events.log import Recorded
from infra.blobs import RedisBlobs
from infra.calls import RedisCalls
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore

#: more tasks than the lag: the last ones read what the first ones taught
EPISODES, LAG = 72, 64
#: the same with a lag that lets a bank grow under it
SMALL, SMALL_LAG = 24, 16
#: what each search may take of the minutes of `make chaos`
SHARE = 0.1
#: an episode may be given up where workers stand still for seconds, as on a busy machine; of so many runs one is whole
_WHOLE_AMONG = 3


@pytest.fixture(scope="module")
def logs() -> dict[tuple[int, int], Any]:
    """(episodes, lag) -> the log of one episode at a time, played once."""
    return {}


@pytest.fixture
def undisturbed(world: Any, playing: Any, logs: dict[tuple[int, int], Any]) -> Callable[..., Any]:
    """The run with one episode at a time: what every other timing must give."""

    async def play(episodes: int, lag: int) -> Any:
        if (episodes, lag) not in logs:
            configuration = playing.configured(concurrency=1, lag=lag)
            logs[episodes, lag] = await world().play(RUN, configuration, limit=episodes, ordering=42)
        return logs[episodes, lag]

    return play


@pytest.mark.chaos
@pytest.mark.timeout(limit_s(300, SHARE))
@pytest.mark.parametrize("concurrency", [4, 16, 64] if LONG else [64])
async def test_in_flight(world: Any, playing: Any, undisturbed: Any, concurrency: int) -> None:
    """4, 16 and 64 episodes in flight under any delays give what one at a time gives."""
    alone = await undisturbed(EPISODES, LAG)
    assert len(set(playing.digests(alone))) > EPISODES // 4, "a run that learns nothing would prove nothing"
    for seed in rounds(SHARE):
        with told(seed):
            there = world()
            there.model = DelayedModel(there.model, seed)
            await there.begin(RUN, playing.configured(concurrency=concurrency, lag=LAG), limit=EPISODES, ordering=42)
            assert await there.drive(RUN, slots=64) == ["finished"]
            events = await there.recorded(RUN)
            assert playing.digests(events) == playing.digests(alone)
            assert playing.contents(events) == playing.contents(alone)


@pytest.mark.chaos
@pytest.mark.timeout(limit_s(300, SHARE))
@pytest.mark.parametrize("on_redis", [False, True], ids=["memory", "redis"])
async def test_everything_twice(
    world: Any,
    playing: Any,
    undisturbed: Any,
    redis_server: Any,
    redis_prefix: str,
    tmp_path: Path,
    on_redis: bool,
) -> None:
    """Jobs, appends, the start and the coordinator twice, at once and later: the fold is the same, to the last byte."""
    alone = await undisturbed(SMALL, SMALL_LAG)
    async with connected(redis_server.url) as redis:
        for seed in rounds(SHARE):
            with told(seed):
                given = {
                    "store": RedisLogStore(redis, redis_prefix, SystemClock(), "here", home=tmp_path),
                    "blobs": RedisBlobs(redis, redis_prefix, "here"),
                    "calls": RedisCalls(redis, redis_prefix, "here"),
                }
                there = world(**(given if on_redis else {}))
                events = await _twice(there, playing, seed)
                assert playing.contents(events) == playing.contents(alone)
                assert playing.digests(events) == playing.digests(alone)
                assert [one.kind for one in events].count("run_finished") == 1
                await there.store.delete(RUN)


async def _twice(there: Any, playing: Any, seed: int) -> Any:
    """A run of which everything happens twice; its log."""
    configuration = playing.configured(concurrency=8, lag=SMALL_LAG)
    there.model = DelayedModel(there.model, seed)
    there.around = jobs_again(seed)
    there.store = twice = TwiceStore(there.store, seed)
    there.leases = EverybodyHolds()

    async def begin() -> None:
        await there.begin(RUN, configuration, limit=SMALL, ordering=42)

    async with anyio.create_task_group() as both:
        both.start_soon(begin)
        both.start_soon(begin)
    assert await there.drive(RUN, coordinators=2) == ["finished"]
    before = await there.recorded(RUN)
    # Later: after its end the run is started, coordinated and written once more.
    await begin()
    await twice.send_all_again()
    assert await there.drive(RUN, coordinators=2) == ["finished"]
    events = await there.recorded(RUN)
    assert events == before
    return events


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_worker_processes(
    world: Any, playing: Any, toy_key: Any, new_folder: Callable[[], Path], server_binaries: list[str]
) -> None:
    """One to four worker processes over a line whose delays change write what one process writes."""
    episodes, lag = (48, 8) if LONG else (12, 6)
    configuration = playing.configured(concurrency=6, lag=lag)

    async def play() -> Any:
        return await world().play(RUN, configuration, limit=episodes, ordering=42)

    alone = anyio.run(play)
    contents = []
    for acting in (1, 2, 3, 4) if LONG else (3,):
        runs = (_delayed(new_folder, server_binaries, toy_key, acting, episodes, lag) for _ in range(_WHOLE_AMONG))
        whole = (events for events in runs if held.outcome(events, episodes).whole)
        events = next(whole, None)
        assert events, "every run lost an episode: no digest was compared"
        assert held.outcome(events, episodes).digests == playing.digests(alone)
        contents.append(playing.contents(events))
    assert all(one == contents[0] for one in contents)


def _delayed(
    new_folder: Callable[[], Path], binaries: list[str], key: Any, acting: int, episodes: int, lag: int
) -> list[Recorded]:
    """A run on so many worker processes, whose line is now slow, now fast; its log."""
    troupe = Troupe(binaries[acting % len(binaries)], new_folder(), new_folder(), key, slowest_s=0.2)
    try:
        return _played(troupe, acting, episodes, lag)
    finally:
        troupe.close()


def _played(troupe: Troupe, acting: int, episodes: int, lag: int) -> list[Recorded]:
    dice = Random(SEED + acting)  # noqa: S311 - chance, no secret
    troupe.begin(limit=episodes, concurrency=6, lag=lag)
    troupe.start_all(acting=acting, coordinators=1, slots=3)

    def ended() -> bool:
        troupe.line.delay(dice.choice((0.0, 0.0, 0.005, 0.03)))
        return troupe.finished()

    until(ended, "the run ends")
    troupe.line.delay(0)
    assert set(troupe.end().values()) == {0}
    return troupe.log()
