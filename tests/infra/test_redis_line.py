"""Many commands over one connection: each caller gets its own reply, whatever happens to the others or to the line."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from infra.redis_client import Script, connected
from infra.redis_line import SharingRedis

NAME = "line-under-test"


@asynccontextmanager
async def lined(server: Any, retries: int = 3, patience_s: float = 15.0) -> AsyncIterator[tuple[Redis, Redis]]:
    """A client under a name of its own, and another one that watches."""
    async with connected(f"{server.url}?client_name={NAME}", retries) as redis, connected(server.url) as other:
        assert isinstance(redis, SharingRedis)
        redis.patience_s = patience_s
        yield redis, other


async def connections(other: Redis) -> int:
    """How many connections the client has."""
    return sum(one["name"] == NAME for one in await other.client_list())


async def gone(other: Redis) -> None:
    """The client has no connection: a server may list one that was closed for a moment longer."""
    with anyio.fail_after(120):
        while await connections(other):  # noqa: ASYNC110 - the server's state
            await anyio.sleep(0.02)


@contextmanager
def silent(server: Any) -> Iterator[None]:
    """The server keeps its connections and says nothing."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_many_at_once_share_one_connection(each_redis_server: Any, redis_prefix: str) -> None:
    """Each gets its own reply, short or long; what needs more than that gets a connection beside it."""
    async with lined(each_redis_server) as (redis, other):
        found: dict[int, bytes | None] = {}

        async def one(i: int) -> None:
            body = b"%d " % i * (1 if i % 7 else 20_000)
            assert await redis.hsetnx(redis_prefix, str(i), body)
            found[i] = await redis.hget(redis_prefix, str(i))
            assert found[i] == body

        async with anyio.create_task_group() as tasks:
            for i in range(200):
                tasks.start_soon(one, i)
        assert len(found) == 200
        assert await connections(other) == 1
        await redis.unlink(redis_prefix)
        assert await connections(other) == 2


async def test_a_reply_whose_caller_went_goes_to_nobody(redis_server: Any, redis_prefix: str) -> None:
    """Half of the callers are cancelled while their commands are under way; the others get what they asked for."""
    async with lined(redis_server) as (redis, other):
        await redis.hset(redis_prefix, mapping={str(i): i for i in range(100)})
        found: list[tuple[int, bytes | None]] = []

        async def one(i: int, scope: anyio.CancelScope) -> None:
            with scope:
                found.append((i, await redis.hget(redis_prefix, str(i))))

        scopes = [anyio.CancelScope() for _ in range(100)]
        async with anyio.create_task_group() as tasks:
            for i, scope in enumerate(scopes):
                tasks.start_soon(one, i, scope)
            await anyio.lowlevel.checkpoint()
            for scope in scopes[::2]:
                scope.cancel()
        assert sorted(found) == [(i, b"%d" % i) for i in range(1, 100, 2)]
        assert await redis.hget(redis_prefix, "7") == b"7"
        assert await connections(other) == 2


async def test_a_refusal_is_its_callers_alone(redis_server: Any, redis_prefix: str) -> None:
    """The commands before and after it, in one write with it, are answered."""
    async with lined(redis_server) as (redis, _):
        await redis.set(f"{redis_prefix}:text", "x")
        told: list[Any] = []

        async def one(key: str) -> None:
            try:
                told.append(await redis.hsetnx(key, "f", "v"))
            except ResponseError as error:
                told.append(str(error))

        async with anyio.create_task_group() as tasks:
            for key in ("a", "text", "b"):
                tasks.start_soon(one, f"{redis_prefix}:{key}")
        assert told == [True, "WRONGTYPE Operation against a key holding the wrong kind of value", True]


async def test_a_line_that_breaks_is_made_anew(redis_server: Any, redis_prefix: str) -> None:
    """By the server, idle or under way: every command is answered, over one new connection."""
    async with lined(redis_server) as (redis, other):
        await redis.hset(redis_prefix, "f", "v")
        await redis.connection_pool.disconnect()
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(redis.hget, redis_prefix, "f")
                for one in await other.client_list():
                    if one["name"] == NAME:
                        await other.client_kill_filter(_id=one["id"])
            assert await redis.hget(redis_prefix, "f") == b"v"
        assert await connections(other) == 1


async def test_a_silent_server_is_waited_for_so_long(own_redis_server: Any) -> None:
    """The command fails when its tries are spent; with more of them it is answered once the server speaks."""
    async with lined(own_redis_server, retries=1000, patience_s=0.1) as (redis, _):
        assert isinstance(redis, SharingRedis)
        await redis.hsetnx("k", "f", "v")
        redis.retries = 0
        with silent(own_redis_server), pytest.raises(RedisTimeoutError, match=r"0\.1 s"):
            await redis.hget("k", "f")
        redis.retries = 1000
        assert await redis.hget("k", "f") == b"v"
        line, found = redis._line, list[bytes | None]()
        assert line is not None

        async def one() -> None:
            found.append(await redis.hget("k", "f"))

        async with anyio.create_task_group() as tasks:
            with silent(own_redis_server):
                tasks.start_soon(one)
                with anyio.fail_after(120):
                    while not line.lost:  # noqa: ASYNC110 - it tells nobody
                        await anyio.sleep(0.02)
        assert found == [b"v"]


async def test_a_closed_client_leaves_no_connection(redis_server: Any, redis_prefix: str) -> None:
    """The line goes too, and a client that is used again makes another."""
    async with connected(redis_server.url) as other:
        async with connected(f"{redis_server.url}?client_name={NAME}") as redis:
            await redis.hget(redis_prefix, "f")
            await redis.aclose()
            await gone(other)
            await redis.hget(redis_prefix, "f")
            assert await connections(other) == 1
        await gone(other)


async def test_whoever_waits_while_the_client_is_closed_is_told(own_redis_server: Any) -> None:
    """And no connection is made for them again."""
    async with lined(own_redis_server) as (redis, other):
        await redis.hget("k", "f")
        told: list[str] = []

        async def one() -> None:
            try:
                await redis.hget("k", "f")
            except RedisError as error:
                told.append(str(error))

        made = (await other.info("stats"))["total_connections_received"]
        with silent(own_redis_server):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(one)
                await anyio.wait_all_tasks_blocked()
                await redis.aclose()
        assert told == ["the client was closed"] * 3
        await gone(other)
        assert (await other.info("stats"))["total_connections_received"] == made


async def test_a_script_is_told_once(own_redis_server: Any) -> None:
    """And again to a server that has forgotten it."""
    script = Script("return ARGV[1]")
    async with lined(own_redis_server) as (redis, other):
        for said in ("a", "b"):
            assert await script.run(redis, [], [said]) == said.encode()
        await other.script_flush()
        assert await script.run(redis, [], ["c"]) == b"c"
        stats = await other.info("commandstats")
        assert (stats["cmdstat_script|load"]["calls"], stats["cmdstat_evalsha"]["calls"]) == (2, 5)
