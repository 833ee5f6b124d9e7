"""What only a log on a server has to do: notice what the server lost, and wait for its disk."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace
from redis.asyncio.connection import AbstractConnection

from events.codec import draft
from events.errors import Mismatch, VersionGap
from events.ids import Position, RunId, Version, episode_stream
from events.kinds import Executed, Noted, Usage
from events.log import Draft
from infra.clock import SystemClock
from infra.redis_client import Durability, connected
from infra.redis_log import RedisLog, RedisLogStore, index_key, log_key
from runtime.ports import Appended, Origin, Taken

RUN = RunId("r-1")
EPISODE = episode_stream(0)
ORIGIN = Origin(cause=None)


def noted(topic: str) -> Draft:
    """An event that differs by its topic."""
    return draft(Noted(topic=topic, facts={}))


async def put(log: RedisLog, *topics: str) -> None:
    """An episode of these events."""
    await log.append(EPISODE, Version(1), [noted(topic) for topic in topics], ORIGIN)


@pytest.mark.parametrize("after", [["a", "X", "Y", "Z"], ["a", "b", "c", "d"]])
async def test_a_tail_that_was_lost_and_grown_again_is_noticed(
    after: list[str], redis_server: Any, redis_prefix: str
) -> None:
    """The head is beyond the reader again, with other or the same events written later: told once, then read anew."""
    async with connected(redis_server.url) as redis:
        store = RedisLogStore(redis, redis_prefix, SystemClock(), "here")
        log = store.open(RUN)
        await put(log, "a", "b", "c")
        assert len(await log.read(Position(0), 100)) == 3
        assert await log.read(Position(3), 100) == []
        await store.delete(RUN)
        await put(store.open(RUN), *after)
        with pytest.raises(VersionGap, match="written anew"):
            await log.read(Position(3), 100)
        events = [one async for page in log.pages(Position(0)) for one in page]
        assert [one.data for one in events] == [noted(topic).data for topic in after]
        assert [one.position for one in await log.read(Position(3), 100)] == [4]


async def test_reading_on_skips_and_repeats_nothing(redis_server: Any, redis_prefix: str) -> None:
    """Whatever the steps, each event comes once."""
    async with connected(redis_server.url) as redis:
        log = RedisLogStore(redis, redis_prefix, SystemClock(), "here").open(RUN)
        await put(log, *(str(number) for number in range(250)))
        for step in (1, 7, 100):
            found: list[int] = []
            while page := await log.read(Position(len(found)), step):
                assert len(page) <= step
                found += [one.position for one in page]
            assert found == list(range(1, 251))


async def test_a_durable_append_waits_on_its_own_connection(
    each_redis_server: Any, redis_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WAITAOF waits for what its connection wrote: of many appends at once, and of one that an earlier try wrote."""
    sent: list[tuple[int, str, str]] = []
    send = AbstractConnection.send_command

    async def recorded(self: AbstractConnection, *args: Any, **options: Any) -> None:
        sent.append((id(self), str(args[0]), anyio.get_current_task().name or ""))
        await send(self, *args, **options)

    monkeypatch.setattr(AbstractConnection, "send_command", recorded)
    waited: list[str] = []

    async def on_disk(redis: Any, run: str, where: str) -> None:
        # A server without WAITAOF is asked something else: which connection is asked is what counts.
        waited.append(run)
        await redis.echo("WAIT")

    monkeypatch.setattr("infra.redis_log._written_to_disk", on_disk)
    server = Durability(version="", product="", waitaof=True)
    executed = draft(
        Executed(trajectory="0" * 64, steps=1, errors=0, stop="done", attempts=[], usage=Usage(), calls=[])
    )
    async with connected(each_redis_server.url) as redis:
        store = RedisLogStore(redis, redis_prefix, SystemClock(), "here", server)

        async def twice(run: RunId) -> None:
            for written in (1, 0):
                answer = await store.open(run).append(EPISODE, Version(1), [executed], ORIGIN)
                assert answer == Appended(positions=[Position(1)], written=written)

        async with anyio.create_task_group() as tasks:
            for number in range(16):
                tasks.start_soon(twice, RunId(f"r-{number}"), name=f"task {number}")
    assert len(waited) == 32
    for number in range(16):
        mine = [(one, name) for one, name, task in sent if task == f"task {number}" and name != "SCRIPT LOAD"]
        asked = [place for place, (_, name) in enumerate(mine) if name == "ECHO"]
        assert len(asked) == 2
        assert [mine[place - 1][1] for place in asked] == ["EVALSHA", "EVAL"]
        assert all(mine[place][0] == mine[place - 1][0] for place in asked)


async def test_appends_of_one_turn_are_one_command(own_redis_server: Any, redis_prefix: str) -> None:
    """Each gets its own answer: written, there already, taken, a gap; one that nobody waits for is written too."""
    async with connected(own_redis_server.url) as redis:
        log = RedisLogStore(redis, redis_prefix, SystemClock(), "here").open(RUN)
        other = RedisLogStore(redis, redis_prefix, SystemClock(), "here").open(RUN)
        await put(log, "a", "b")
        calls = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
        told: dict[str, Any] = {}

        async def one(name: str, log: RedisLog, stream: int, first: int, *topics: str) -> None:
            drafts = [noted(topic) for topic in topics]
            try:
                told[name] = await log.append(episode_stream(stream), Version(first), drafts, ORIGIN)
            except VersionGap as gap:
                told[name] = gap.expected

        left = anyio.CancelScope()

        async def leaving() -> None:
            with left:
                await one("left", log, 7, 1, "x")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, "there", log, 0, 1, "a", "b")
            tasks.start_soon(one, "behind", other, 0, 2, "b", "c")
            tasks.start_soon(one, "taken", log, 0, 3, "d")
            tasks.start_soon(leaving)
            tasks.start_soon(one, "gap", other, 8, 2, "x")
            tasks.start_soon(one, "new", log, 9, 1, "x", "y")
            await anyio.lowlevel.checkpoint()
            left.cancel()
        assert (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"] == calls + 1
        taken = told.pop("taken")
        assert isinstance(taken, Taken)
        assert (taken.stored.position, taken.stored.data) == (3, noted("c").data)
        assert told == {
            "there": Appended(positions=[Position(1), Position(2)], written=0),
            "behind": Appended(positions=[Position(2), Position(3)], written=1),
            "gap": 1,
            "new": Appended(positions=[Position(5), Position(6)], written=2),
        }
        assert [one.stream for one in await log.read(Position(3), 10)] == ["episode-7", "episode-9", "episode-9"]


async def test_an_append_that_fails_leaves_those_beside_it(each_redis_server: Any, redis_prefix: str) -> None:
    """An index that lacks an event, as if somebody had cut it: what others append is in the log and its index."""
    async with connected(each_redis_server.url) as redis:
        log = RedisLogStore(redis, redis_prefix, SystemClock(), "here").open(RUN)
        await put(log, "a", "b")
        await redis.hdel(index_key(redis_prefix, RUN), f"{EPISODE}/2")
        told: list[str] = []

        async def broken() -> None:
            try:
                await put(log, "a", "b", "c")
            except Mismatch as error:
                told.append(str(error))

        async with anyio.create_task_group() as tasks:
            for stream in (1, 2):
                tasks.start_soon(log.append, episode_stream(stream), Version(1), [noted("x")], ORIGIN)
                tasks.start_soon(broken)
        assert told == [f"run {RUN}: the index names position none, which the log does not hold"] * 2
        assert [one.stream for one in await log.read(Position(2), 10)] == ["episode-1", "episode-2"]
        assert await log.append(episode_stream(3), Version(1), [noted("x")], ORIGIN) == Appended(
            positions=[Position(5)], written=1
        )


@pytest.mark.parametrize("cut", ["front", "tail", "middle", "all", "index", "one more"])
async def test_a_stream_that_was_cut_by_hand_takes_no_event(
    cut: str, each_redis_server: Any, redis_prefix: str
) -> None:
    """What is left is told with both counts; nothing is written, be it new or there already."""
    async with connected(each_redis_server.url) as redis:
        log = RedisLogStore(redis, redis_prefix, SystemClock(), "here").open(RUN)
        await put(log, "a", "b", "c")
        key = log_key(redis_prefix, RUN)
        match cut:
            case "front":
                await redis.xtrim(key, minid="2-0", approximate=False)
            case "tail":
                await redis.xdel(key, "3-0")
            case "middle":
                await redis.xdel(key, "2-0")
            case "all":
                await redis.delete(key)
            case "index":
                await redis.delete(index_key(redis_prefix, RUN))
            case _:
                await redis.xadd(key, {"kind": "noted"})
        length = await redis.xlen(key)
        for topics in (["a", "b", "c"], ["a", "b", "c", "d"]):
            with pytest.raises(Mismatch, match=f"run {RUN}: its stream holds {length} events, its index counts"):
                await put(log, *topics)
        assert await redis.xlen(key) == length


async def test_an_entry_is_read_whatever_the_order_of_its_fields(redis_server: Any, redis_prefix: str) -> None:
    """What another tool has copied into another order, or with a field of its own, is the same event."""
    async with connected(redis_server.url) as redis:
        store = RedisLogStore(redis, redis_prefix, SystemClock(), "here")
        await put(store.open(RUN), "a", "b")
        copied = store.open(RunId("copied"))
        entries = await redis.xrange(log_key(redis_prefix, RUN))
        for (name, fields), more in zip(entries, [{}, {b"more": b"1"}], strict=True):
            turned = dict(reversed(fields.items()))
            await redis.xadd(log_key(redis_prefix, copied.run), turned | more, id=name)
        await redis.copy(index_key(redis_prefix, RUN), index_key(redis_prefix, copied.run))
        for kinds in (None, frozenset({"noted"})):
            expected = [replace(one, run=copied.run) for one in await store.open(RUN).read(Position(0), 10, kinds)]
            assert len(expected) == 2
            assert await copied.read(Position(0), 10, kinds) == expected
        assert await copied.read(Position(0), 10, frozenset({"scored"})) == []
        assert await copied.read_stream(EPISODE) == expected


@pytest.mark.parametrize("gone", [1, 2, 150, 249])
async def test_a_hole_in_a_stream_is_noticed(gone: int, redis_server: Any, redis_prefix: str) -> None:
    """An entry that somebody removed: told with its position, wherever in a page it was; never a shorter log."""
    async with connected(redis_server.url) as redis:
        log = RedisLogStore(redis, redis_prefix, SystemClock(), "here").open(RUN)
        await put(log, *(str(number) for number in range(250)))
        await redis.xdel(log_key(redis_prefix, RUN), f"{gone}-0")
        told = f"expected {gone}, got {gone + 1}"
        with pytest.raises(VersionGap, match=told):
            _ = [page async for page in log.pages(Position(0))]
        with pytest.raises(VersionGap, match=told):
            await log.read(Position(0), 300)
        with pytest.raises(Mismatch, match=f"names position {gone}, which"):
            await log.read_stream(EPISODE)
        assert [one.position for one in await log.read(Position(gone), 300)] == list(range(gone + 1, 251))
