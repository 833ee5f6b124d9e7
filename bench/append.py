"""A checked append beside a bare XADD of the same entry, which checks and indexes nothing.

That is sent over the connection that our appends take, and by redis-py's own client. One by one and
16 at once, 1 KB and 24 KB, both fsyncs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from typing import cast

import anyio
from msgspec.structs import replace
from redis.asyncio import Redis

from bench.measure import Row, Scale, Subject, compared, rounds
from bench.server import Server, server
from events.codec import draft
from events.ids import RunId, Version, episode_stream
from events.kinds import Planned, Usage
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_line import SharingRedis, packed
from infra.redis_log import RedisLog
from runtime.ports import Origin

GOAL = 1.3
AT_ONCE = 16
_OURS, _BARE, _PLAIN = "checked append", "bare XADD", "redis-py's xadd"

#: puts one event behind the others of stream number k
Put = Callable[[int], Awaitable[object]]


def rows(scale: Scale) -> Iterator[Row]:
    """One for each fsync, size and way; CPU time of client and server."""
    for fsync in ("everysec", "always"):
        # Under `always` an append waits for the disk: fewer of them take as long.
        number = scale.of(2_000 if fsync == "everysec" else 600, AT_ONCE)
        with server(fsync) as there, asyncio.Runner() as runner:
            for kib in (1, 24):
                for at_once in (1, AT_ONCE):
                    way = "one by one" if at_once == 1 else f"{at_once} at once"
                    for row in _rows(there, runner, kib, at_once, number, scale.repeats):
                        yield replace(row, what=f"{kib} KB, {way}, appendfsync {fsync}")


def _rows(there: Server, runner: asyncio.Runner, kib: int, at_once: int, number: int, repeats: int) -> Iterator[Row]:
    stack = AsyncExitStack()
    redis = runner.run(stack.enter_async_context(connected(there.url)))
    plain = runner.run(stack.enter_async_context(Redis.from_url(there.url)))
    try:
        subjects = [
            Subject(what=what, run=partial(_in_turn, runner, put, at_once, number), operations=number, pids=[there.pid])
            for what, put in _ways(redis, plain, kib).items()
        ]
        found = rounds(subjects, repeats)
    finally:
        runner.run(stack.aclose())
    yield compared("append", found, _OURS, _BARE, at_most=GOAL, remark="client and server")
    yield compared("append", found, _OURS, _PLAIN, remark="client and server")


def _in_turn(runner: asyncio.Runner, put: Put, at_once: int, number: int) -> None:
    runner.run(_put(put, at_once, number))


def _ways(redis: Redis, plain: Redis, kib: int) -> dict[str, Put]:
    # The kind decides nothing here: without a server's promises nothing waits for the disk but the server itself.
    log = RedisLog(redis, RunId("bench"), "bench", SystemClock(), "bench")
    item = draft(Planned(plan="x" * (kib * 1000), usage=Usage(), calls=[]))
    origin = Origin(cause="bench/run/1")
    line = cast("SharingRedis", redis)
    versions, numbers = [count(1) for _ in range(AT_ONCE)], count(1)
    clock = SystemClock()

    async def checked(k: int) -> object:
        return await log.append(episode_stream(k), Version(next(versions[k])), [item], origin)

    def entry(k: int) -> tuple[str | int | bytes, ...]:
        return (
            "kind", item.kind, "stream", episode_stream(k), "version", next(numbers), "schema", item.schema,
            "at", clock.utc(), "cause", "bench/run/1", "attempt", origin.attempt, "sha", item.sha256, "data", item.data,
        )  # fmt: skip

    async def bare(k: int) -> object:
        return await line._reply(packed(("XADD", "bench:bare", "*", *entry(k))))  # noqa: SLF001

    async def by_redis_py(k: int) -> object:
        words = entry(k)
        return await plain.xadd("bench:plain", dict(zip(words[::2], words[1::2], strict=True)))

    return {_OURS: checked, _BARE: bare, _PLAIN: by_redis_py}


async def _put(put: Put, at_once: int, number: int) -> None:
    async def some(k: int) -> None:
        for _ in range(number // at_once):
            await put(k)

    async with anyio.create_task_group() as tasks:
        for k in range(at_once):
            tasks.start_soon(some, k)
