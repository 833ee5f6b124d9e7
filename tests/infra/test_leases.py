"""Leases: one holder at a time, a term for each, gone soon after the holder; on a server and in one process."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from events.ids import Position, RunId
from infra.leases import Holder, Leases, LocalLeases, RedisLeases, term_key
from infra.redis_client import connected

RUN = RunId("r")
FIRST, LATER = Position(1), Position(7)

#: makes leases that live for so many seconds, and waits until one that is not renewed is gone
Made = Callable[[float], Any]


@asynccontextmanager
async def on_server(url: str, prefix: str) -> AsyncIterator[Made]:
    async with connected(url) as redis:
        yield lambda ttl_s: RedisLeases(redis, prefix, "here", ttl_s=ttl_s)


@pytest.fixture(params=["local", "server"])
def leases(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """Opens the leases under test."""
    if request.param == "local":

        @asynccontextmanager
        async def local() -> AsyncIterator[Made]:
            yield lambda ttl_s: LocalLeases(anyio.current_time, ttl_s=ttl_s)

        return local
    server, prefix = request.getfixturevalue("redis_server"), request.getfixturevalue("redis_prefix")
    return lambda: on_server(server.url, prefix)


async def gone(there: Leases) -> None:
    with anyio.fail_after(120):
        while await there.holder(RUN) is not None:  # noqa: ASYNC110 - the server's clock tells nobody
            await anyio.sleep(0.01)


async def test_one_holds_it(leases: Any) -> None:
    """The first to ask holds the lease and keeps it by asking again; others are told that it is taken."""
    async with leases() as made:
        there = made(60.0)
        mine, other = there.of(RUN, "a"), there.of(RUN, "b")
        assert await there.holder(RUN) is None
        assert await mine.hold(FIRST) == 1
        assert await other.hold(FIRST) is None
        assert await mine.hold(LATER) == 1
        assert await there.holder(RUN) == Holder(name="a", term=1, position=7)
        assert await there.of(RunId("s"), "b").hold(FIRST) == 1


async def test_a_run_that_is_deleted_while_its_holder_is_read_has_none(redis_server: Any, redis_prefix: str) -> None:
    """Its lease was still there, its term no more."""
    async with connected(redis_server.url) as redis:
        there = RedisLeases(redis, redis_prefix, "here", ttl_s=60.0)
        assert await there.of(RUN, "a").hold(FIRST) == 1
        await redis.delete(term_key(redis_prefix, RUN))
        assert await there.holder(RUN) is None


async def test_a_released_lease_is_free(leases: Any) -> None:
    """Only its holder releases a lease; the next one has the next term, and so has the first when it comes back."""
    async with leases() as made:
        there = made(60.0)
        mine, other = there.of(RUN, "a"), there.of(RUN, "b")
        await mine.hold(FIRST)
        await other.release()
        assert await other.hold(FIRST) is None
        await mine.release()
        assert await other.hold(FIRST) == 2
        await other.release()
        assert await mine.hold(FIRST) == 3


async def test_a_lease_that_is_not_renewed_goes_to_the_next(leases: Any) -> None:
    """A holder that was stopped loses it, and is told so when it asks again."""
    async with leases() as made:
        there = made(0.05)
        mine, other = there.of(RUN, "a"), made(60.0).of(RUN, "b") if not isinstance(there, LocalLeases) else None
        assert await mine.hold(FIRST) == 1
        await gone(there)
        assert await (other or there.of(RUN, "b")).hold(FIRST) == 2
        if other is not None:
            assert await mine.hold(FIRST) is None


async def test_force_takes_it(leases: Any) -> None:
    """Whoever has a queue that nobody else can fill takes the lease from the holder, with a term of its own."""
    async with leases() as made:
        there = made(60.0)
        await there.of(RUN, "a").hold(FIRST)
        forced = there.of(RUN, "b", by_force=True)
        assert await forced.hold(FIRST) == 2
        assert await forced.hold(LATER) == 2
        assert await there.of(RUN, "a").hold(FIRST) is None
