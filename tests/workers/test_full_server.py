"""A server that refuses writes in the middle of a run: everybody waits, nothing is lost, and the run ends as ever."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from structlog.testing import capture_logs

from infra.blobs import RedisBlobs
from infra.calls import RedisCalls
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore

RUN = "r"


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Waits for a condition."""
    with anyio.fail_after(120):
        while not await true():  # noqa: ASYNC110 - a state of the world, not of a task that could tell us
            await anyio.sleep(0.01)


async def test_a_server_without_memory_is_waited_for(world: Any, playing: Any, own_redis_server: Any, monkeypatch: Any):
    """At maxmemory no event, answer or body is dropped: jobs and coordinator go on once there is room."""
    monkeypatch.setattr("workers.engine._AWAY_S", (0.05, 0.1))
    plan = playing.configured(concurrency=4, lag=4)
    expected = playing.digests(await world().play(RUN, plan, limit=8))
    async with connected(own_redis_server.url) as redis, connected(own_redis_server.url) as operator:
        clock = SystemClock()
        shared = world(
            store=RedisLogStore(redis, "t", clock, "here"),
            blobs=RedisBlobs(redis, "t", "here"),
            calls=RedisCalls(redis, "t", "here"),
        )
        log = await shared.begin(RUN, plan, limit=8)

        async def disturb() -> None:
            for position in (10, 30):

                async def far(position: int = position) -> bool:
                    return bool(await log.head() > position)

                await until(far)
                await operator.config_set("maxmemory", 1)
                told = len(said)

                async def noticed(told: int = told) -> bool:
                    return sum(line["event"] == "store_waited_for" for line in said[told:]) > 2

                await until(noticed)
                await operator.config_set("maxmemory", 0)

        with capture_logs() as said:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(disturb)
                assert await shared.drive(RUN) == ["finished"]
        events = await shared.recorded(RUN)
    assert playing.digests(events) == expected
    assert {one.attempt for one in events} == {1}
