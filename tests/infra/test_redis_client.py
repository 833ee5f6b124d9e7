"""How a server is reached: encrypted, with user and password, and what it says of itself."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest
from encrypted import CA, encrypted
from redis import Redis
from redis.asyncio import Connection

from events.codec import draft
from events.errors import BadInput, ChimeError, Unreachable
from events.ids import Position, RunId, StreamId, Version
from events.kinds import Noted
from infra.blobs import RedisBlobs
from infra.clock import SystemClock
from infra.redis_client import (
    Script,
    ServerFull,
    client,
    connected,
    durability,
    our_errors,
    redacted,
    refuses_writes,
)
from infra.redis_log import RedisLogStore
from infra.rq_queue import RqQueue
from runtime.errors import StoreAway
from runtime.ports import Appended, Job, Origin

RUN = RunId("r-1")


def tls_before(server: Any) -> AbstractAsyncContextManager[str]:
    """An encrypted way to a server, as `<host>:<port>`; the server of the wheel has no TLS of its own."""
    return encrypted(lambda: anyio.connect_unix(server.url.removeprefix("unix://")))


@pytest.fixture
def user(each_redis_server: Any, redis_prefix: str) -> Iterator[str]:
    """`name:password` of a user who may touch only the test's keys, with a password that needs quoting."""
    with Redis.from_url(each_redis_server.url) as redis:
        redis.acl_setuser(
            redis_prefix, enabled=True, passwords=["+p@ss/w:rd"], keys=[f"{redis_prefix}:*"], channels=["*"],
            commands=["+@all", "-@dangerous", "+info"],
        )  # fmt: skip
        yield f"{redis_prefix}:p%40ss%2Fw%3Ard"
        redis.acl_deluser(redis_prefix)


async def used(url: str, prefix: str) -> None:
    """Log, bodies and jobs of a run, each through its own connections."""
    where = redacted(url)
    async with connected(url) as redis, RqQueue(url, prefix) as queue:
        log = RedisLogStore(redis, prefix, SystemClock(), where).open(RUN)
        event = draft(Noted(topic="t", facts={}))
        done = await log.append(StreamId("run"), Version(1), [event], Origin(cause=None))
        assert isinstance(done, Appended)
        assert [one.data for one in await log.read_stream(StreamId("run"))] == [event.data]
        blobs = RedisBlobs(redis, prefix, where)
        assert await blobs.get(RUN, await blobs.put(RUN, b"body")) == b"body"
        assert await queue.enqueue(Job(kind="act", run=RUN, episode=0), 60)
        assert (await durability(redis, where)).product in ("redis", "valkey")


async def test_an_encrypted_server_is_used(each_redis_server: Any, redis_prefix: str, user: str) -> None:
    """`rediss://` with a CA of one's own, user and password, for log, bodies and jobs."""
    async with tls_before(each_redis_server) as address:
        await used(f"rediss://{user}@{address}/0?ssl_ca_certs={CA}", redis_prefix)


async def test_a_user_with_a_password_is_used(each_redis_server: Any, redis_prefix: str, user: str) -> None:
    """Over a unix socket, with rights to the keys of the prefix only."""
    await used(each_redis_server.url.replace("unix://", f"unix://{user}@"), redis_prefix)


async def test_a_certificate_of_a_stranger_is_refused(each_redis_server: Any) -> None:
    """An unknown CA is told with what to add to the address."""
    async with tls_before(each_redis_server) as address, connected(f"rediss://{address}/0") as redis:
        with pytest.raises(BadInput, match=r"not trusted.*ssl_ca_certs=FILE"):
            await durability(redis, address)


async def test_a_plain_address_of_an_encrypted_server_is_unreachable(each_redis_server: Any) -> None:
    """One line, no endless wait."""
    async with tls_before(each_redis_server) as address, connected(f"redis://{address}/0") as redis:
        with pytest.raises(Unreachable, match="does not answer"):
            await durability(redis, address)


@pytest.mark.parametrize("password", ["wrong", ""])
async def test_a_wrong_password_is_refused_and_never_told(
    password: str, each_redis_server: Any, redis_prefix: str, user: str
) -> None:
    """By log and queue alike; the error names the address without what was tried."""
    url = each_redis_server.url.replace("unix://", f"unix://{redis_prefix}:{password}@")
    async with connected(url) as redis, RqQueue(url, redis_prefix) as queue:
        job = Job(kind="act", run=RUN, episode=0)
        for ask in (lambda: durability(redis, redacted(url)), lambda: queue.enqueue(job, 60)):
            with pytest.raises(BadInput, match="refuses the user or password") as caught:
                await ask()
            assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_server_that_wants_a_user_refuses_an_address_without_one(
    encrypted: bool, each_redis_server: Any
) -> None:
    """At once and in our words, over unix sockets and TLS, instead of greeting it again and again."""
    with Redis.from_url(each_redis_server.url) as redis:
        redis.acl_setuser("default", enabled=False)
        try:
            async with tls_before(each_redis_server) as address:
                url = f"rediss://{address}/0?ssl_ca_certs={CA}" if encrypted else each_redis_server.url
                async with connected(url) as refused:
                    for ask in (lambda: durability(refused, "here"), lambda: _hget(refused)):
                        with anyio.fail_after(120), pytest.raises(BadInput, match="refuses the user or password"):
                            await ask()
        finally:
            redis.acl_setuser("default", enabled=True)


async def _hget(redis: Any) -> None:
    with our_errors("here"):
        await redis.hget("key", "field")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("return 1 + {}", BadInput),
        ("return redis.call('INCRBY', KEYS[1], 'x')", BadInput),
        ("return redis.call('NONSENSE', KEYS[1])", BadInput),
        ("return redis.error_reply('TRYAGAIN a slot is on its way')", StoreAway),
        ("return redis.error_reply('READONLY You can not write against a read only replica.')", StoreAway),
        ("return redis.error_reply('LOADING the dataset')", StoreAway),
        ("error('Script killed by user with SCRIPT KILL...')", StoreAway),
    ],
)
async def test_what_a_server_can_never_do_is_not_waited_for(
    each_redis_server: Any, redis_prefix: str, script: str, error: type[ChimeError]
) -> None:
    """An error of a script says so at once; a server that is on its way back is away."""
    async with connected(each_redis_server.url, retries=0) as redis:
        with pytest.raises(error) as caught, our_errors("here"):
            await Script(script).run(redis, [f"{redis_prefix}:key"], [])
    assert "user_script" not in str(caught.value)


@pytest.mark.parametrize("command", [("NONSENSE",), ("GET",), ("INCRBY", "key", "x")])
async def test_a_command_that_a_server_can_never_do(each_redis_server: Any, command: tuple[str, ...]) -> None:
    """Likewise: it is no Redis, or no new one."""
    async with connected(each_redis_server.url) as redis:
        with pytest.raises(BadInput, match="cannot do what it is asked"), our_errors("here"):
            await redis.execute_command(*command)


async def test_a_full_server_says_what_helps(each_redis_server: Any, redis_prefix: str) -> None:
    """Whoever asks, alone, in a pipeline of either client or in a script, hears the server's words and no command."""
    key = f"{redis_prefix}:key"

    async def in_pipeline(redis: Any) -> None:
        async with redis.pipeline(transaction=False) as pipeline:
            await pipeline.get(key).set(key, "(x) of pipeline").execute()

    async def in_blocking_pipeline(_: Any) -> None:
        with Redis.from_url(each_redis_server.url) as blocking, blocking.pipeline() as pipeline:
            pipeline.hexists(key, "(x) of pipeline").hset(key, "x", "y").execute()

    async def in_script(redis: Any) -> None:
        await Script("return redis.call('SET', KEYS[1], 'x')").run(redis, [key], [])

    async with connected(each_redis_server.url, retries=0) as redis:
        await redis.config_set("maxmemory", 1)
        try:
            assert "of its maxmemory 0 MiB" in str(await refuses_writes(redis, "here"))
            for ask in (lambda r: r.set(key, "x"), in_pipeline, in_blocking_pipeline, in_script):
                with pytest.raises(ServerFull) as caught, our_errors("here"):
                    await ask(redis)
                told = (
                    "Redis at here is full and refuses writes: command not allowed when used memory > 'maxmemory'; give"
                )
                assert str(caught.value).startswith(told), ask
        finally:
            await redis.config_set("maxmemory", 0)
        assert await refuses_writes(redis, "here") is None


async def test_keys_that_are_not_ours_are_refused(each_redis_server: Any, redis_prefix: str, user: str) -> None:
    """A user whose rights end at another prefix: one line that says it is about rights."""
    async with connected(each_redis_server.url.replace("unix://", f"unix://{user}@")) as redis:
        log = RedisLogStore(redis, "elsewhere", SystemClock(), "here").open(RUN)
        with pytest.raises(BadInput, match=r"refuses"):
            await log.head()


async def test_a_server_that_may_lose_events_is_warned_about(each_redis_server: Any) -> None:
    """The tests' servers write their file once a second; that is said, and nothing else."""
    async with connected(each_redis_server.url) as redis:
        found = await durability(redis, "here")
    assert [one.split(":")[0] for one in found.warnings] == ["appendfsync everysec"]
    assert found.waitaof == (found.product == "valkey" or not found.version.startswith("7.0"))


@pytest.mark.parametrize(
    "url", ["", "localhost", "http://localhost", "redis://localhost:port", "redis://h/0?nonsense=1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    """Before anything is connected."""
    with pytest.raises(ChimeError, match="no Redis URL"):
        client(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@h", "redis://:***@h"),
        ("unix:///run/s.sock?password=secret&db=1", "unix:///run/s.sock?password=***&db=1"),
        ("rediss://u:secret@h:1/0?ssl_password=secret", "rediss://u:***@h:1/0?ssl_password=***"),
        ("redis://u:secret@h:port/0", "redis://u:***@h:port/0"),
        ("unix:///run/s.sock", "unix:///run/s.sock"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    """Neither the one before the host nor those among the parameters, and nothing else changes."""
    assert redacted(url) == shown


@pytest.mark.parametrize("url", ["redis://h/0", "rediss://h/0", "unix:///run/s.sock"])
def test_commands_are_packed_as_redis_py_packs_them(url: str) -> None:
    """The same bytes for every kind of argument, over every kind of connection."""
    arguments = ("CONFIG GET", "naïve", b"\x00\r\n", 7, -0.5, "", "x" * 20_000)
    ours = client(url).connection_pool.make_connection()
    theirs = Connection()
    assert b"".join(ours.pack_command(*arguments)) == b"".join(theirs.pack_command(*arguments))


async def test_many_runs_are_waited_on_at_once(redis_server: Any, redis_prefix: str) -> None:
    """More waits than redis-py has connections by default leave room for other commands."""
    async with connected(redis_server.url) as redis:
        store = RedisLogStore(redis, redis_prefix, SystemClock(), "here")
        async with anyio.create_task_group() as tasks:
            for number in range(150):
                tasks.start_soon(store.open(RunId(f"r-{number}")).wait, Position(0), 600.0)
            with anyio.fail_after(120):
                while (await redis.info("clients"))["blocked_clients"] < 150:  # noqa: ASYNC110 - the server's state
                    await anyio.sleep(0.01)
            assert await store.runs() == []
            tasks.cancel_scope.cancel()
