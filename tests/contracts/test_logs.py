"""What every log must do, in memory and on real servers."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from archiving_store import ArchivingStore

from events.codec import draft
from events.errors import BadInput, Unreachable, VersionGap
from events.ids import RUN_STREAM, Position, RunId, StreamId, Version, episode_stream
from events.kinds import Abandoned, Counts, Noted, RunFinished
from events.log import Draft, Recorded
from infra.clock import SystemClock
from infra.list_log import ListLogStore
from infra.redis_client import client, connected
from infra.redis_log import RedisLogStore, log_key
from runtime.errors import RunEnded
from runtime.ports import Appended, Basis, EventLog, LogStore, Origin, Taken

RUN = RunId("r-1")
EPISODE = episode_stream(0)
ORIGIN = Origin(cause=None)


def noted(topic: str) -> Draft:
    """An event that differs by its topic."""
    return draft(Noted(topic=topic, facts={"text": "ü\u2028 \N{GRINNING FACE}"}))


@pytest.fixture(params=["list", "redis", "archived"])
def open_store(request: pytest.FixtureRequest, redis_prefix: str, tmp_path: Path):
    """A way to open an empty store of each kind."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[LogStore]:
        if request.param == "list":
            yield ListLogStore(SystemClock())
            return
        server = request.getfixturevalue("redis_server")
        kind = ArchivingStore if request.param == "archived" else RedisLogStore
        async with connected(server.url) as redis:
            yield kind(redis, redis_prefix, SystemClock(), server.url, home=tmp_path)

    return opened


async def read_all(log: EventLog, after: int = 0, kinds: frozenset[str] | None = None) -> list[Recorded]:
    """Every event above `after`."""
    return [one async for page in log.pages(Position(after), kinds) for one in page]


async def put(log: EventLog, stream: StreamId, first: int, drafts: Sequence[Draft]) -> Appended | Taken:
    """Append with nothing to say about where it came from."""
    return await log.append(stream, Version(first), drafts, ORIGIN)


async def test_events_come_back_as_they_were_put(open_store) -> None:
    """Kind, data, cause and attempt survive; positions and versions count up without gaps."""
    async with open_store() as store:
        log = store.open(RUN)
        assert await put(log, EPISODE, 1, [noted("a"), noted("b")]) == Appended(positions=[1, 2], written=2)
        origin = Origin(cause="r-1/run/1", attempt=3)
        assert await log.append(StreamId("run"), Version(1), [noted("c")], origin) == Appended(positions=[3], written=1)
        events = await read_all(log)
        assert [(one.position, one.stream, one.version) for one in events] == [
            (1, "episode-0", 1),
            (2, "episode-0", 2),
            (3, "run", 1),
        ]
        assert [one.data for one in events] == [noted(topic).data for topic in "abc"]
        assert (events[2].cause, events[2].attempt, events[2].kind, events[2].run) == ("r-1/run/1", 3, "noted", RUN)
        assert events[0].cause is None


async def test_the_same_again_is_answered_with_its_position(open_store) -> None:
    """An append that is sent twice leaves one event, and a known beginning is completed."""
    async with open_store() as store:
        log = store.open(RUN)
        await put(log, EPISODE, 1, [noted("a"), noted("b")])
        assert await put(log, EPISODE, 1, [noted("a"), noted("b")]) == Appended(positions=[1, 2], written=0)
        assert await put(log, EPISODE, 2, [noted("b"), noted("c")]) == Appended(positions=[2, 3], written=1)
        assert len(await read_all(log)) == 3


async def test_another_event_at_a_version_is_not_written(open_store) -> None:
    """The stored event comes back, and nothing of the append is written, not even what would fit."""
    async with open_store() as store:
        log = store.open(RUN)
        await put(log, EPISODE, 1, [noted("a")])
        taken = await put(log, EPISODE, 1, [noted("x"), noted("y")])
        assert isinstance(taken, Taken)
        assert (taken.stored.data, taken.stored.position, taken.stored.version) == (noted("a").data, 1, 1)
        other_kind = draft(Abandoned(stage="planning", reason="worker_lost", attempts=3))
        assert isinstance(await put(log, EPISODE, 1, [other_kind]), Taken)
        assert await log.head() == 1


async def test_nothing_follows_the_end(open_store) -> None:
    """After `run_finished` nothing is written; what is there already is answered as ever."""
    counts = Counts(episodes=1, diagnosed=0, degraded=0, abandoned=0, folded=0)
    end = draft(RunFinished(outcome="stopped", counts=counts))
    async with open_store() as store:
        log = store.open(RUN)
        await put(log, EPISODE, 1, [noted("a")])
        await put(log, RUN_STREAM, 1, [end])
        for stream, first, drafts in (
            (EPISODE, 2, [noted("b")]),
            (EPISODE, 1, [noted("a"), noted("b")]),
            (episode_stream(9), 1, [noted("b")]),
            (RUN_STREAM, 2, [noted("b")]),
        ):
            with pytest.raises(RunEnded, match="run r-1 is finished"):
                await put(log, stream, first, drafts)
        assert await put(log, EPISODE, 1, [noted("a")]) == Appended(positions=[1], written=0)
        assert await put(log, RUN_STREAM, 1, [end]) == Appended(positions=[2], written=0)
        assert isinstance(await put(log, RUN_STREAM, 1, [noted("b")]), Taken)
        assert await log.head() == 2


async def test_what_was_made_from_a_lost_event_is_refused(open_store) -> None:
    """An event that names its basis is written while that very event is in the log, and not otherwise."""
    there, other, new = noted("there"), noted("other"), noted("new")
    async with open_store() as store:
        log = store.open(RUN)
        await put(log, StreamId("projector"), 1, [there])
        for lost in (
            Basis(stream=StreamId("projector"), version=Version(1), sha256=other.sha256),
            Basis(stream=StreamId("projector"), version=Version(2), sha256=there.sha256),
            Basis(stream=StreamId("episode-7"), version=Version(1), sha256=there.sha256),
        ):
            with pytest.raises(VersionGap, match=f"made from r-1/{lost.stream}/{lost.version}"):
                await log.append(EPISODE, Version(1), [new], Origin(cause=None, basis=lost))
        basis = Basis(stream=StreamId("projector"), version=Version(1), sha256=there.sha256)
        assert await log.append(EPISODE, Version(1), [new], Origin(cause=None, basis=basis)) == Appended(
            positions=[2], written=1
        )
        gone = Basis(stream=StreamId("projector"), version=Version(9), sha256=there.sha256)
        again = await log.append(EPISODE, Version(1), [new], Origin(cause=None, basis=gone))
        assert again == Appended(positions=[2], written=0), "what is written is written"
        assert isinstance(await log.append(EPISODE, Version(1), [other], Origin(cause=None, basis=gone)), Taken)


async def test_a_gap_is_refused(open_store) -> None:
    """An append above the next version names both versions and writes nothing."""
    async with open_store() as store:
        log = store.open(RUN)
        with pytest.raises(VersionGap) as caught:
            await put(log, EPISODE, 2, [noted("a")])
        assert (caught.value.expected, caught.value.got) == (1, 2)
        assert await log.head() == 0


async def test_a_stream_is_read_by_itself(open_store) -> None:
    """Only its own events, in order; none for a stream that does not exist."""
    async with open_store() as store:
        log = store.open(RUN)
        for t in range(3):
            await put(log, episode_stream(t), 1, [noted(f"a{t}")])
        await put(log, episode_stream(1), 2, [noted("b1")])
        assert [one.position for one in await log.read_stream(episode_stream(1))] == [2, 4]
        assert await log.read_stream(episode_stream(10)) == []


async def test_the_index_says_where_each_stream_stands(open_store) -> None:
    """Positions and last kind of every stream."""
    async with open_store() as store:
        log = store.open(RUN)
        assert await log.index() == {}
        await put(log, EPISODE, 1, [noted("a")])
        await put(log, StreamId("run"), 1, [noted("b")])
        await put(log, EPISODE, 2, [draft(Abandoned(stage="planning", reason="x", attempts=1))])
        index = await log.index()
        assert {name: (one.positions, one.last_kind) for name, one in index.items()} == {
            "episode-0": ([1, 3], "abandoned"),
            "run": ([2], "noted"),
        }


async def test_pages_cover_everything_and_skip_kinds(open_store) -> None:
    """More events than a page holds come once each; a filter leaves the others out."""
    async with open_store() as store:
        log = store.open(RUN)
        for start in range(0, 250, 50):
            await put(log, EPISODE, start + 1, [noted(str(start + i)) for i in range(50)])
        await put(log, EPISODE, 251, [draft(Abandoned(stage="planning", reason="x", attempts=1))])
        assert [one.position for one in await read_all(log)] == list(range(1, 252))
        assert [one.position for one in await read_all(log, 240)] == list(range(241, 252))
        assert [one.position for one in await read_all(log, 0, frozenset({"abandoned"}))] == [251]
        assert [one.position for one in await log.read(Position(249), 10)] == [250, 251]


async def test_waiting_ends_with_news(open_store) -> None:
    """A wait returns at once when there is news, when news comes, and without news after its time."""
    async with open_store() as store:
        log = store.open(RUN)
        assert not await log.wait(Position(0), 0.01)
        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(120):
                tasks.start_soon(put, log, EPISODE, 1, [noted("a")])
                assert await log.wait(Position(0), 15)
        assert await log.wait(Position(0), 15)
        assert not await log.wait(Position(1), 0.01)


async def test_positions_that_went_back_are_noticed(open_store) -> None:
    """A reader that has seen more than the log holds is told, whatever it asks."""
    async with open_store() as store:
        log = store.open(RUN)
        await put(log, EPISODE, 1, [noted("a")])
        for ask in (log.read(Position(5), 10), log.wait(Position(5), 0.01), read_all(log, 5)):
            with pytest.raises(VersionGap):
                await ask


async def test_runs_are_listed_and_deleted(open_store) -> None:
    """Only runs with a header are there; deleting one leaves the others."""
    async with open_store() as store:
        assert await store.runs() == []
        for name in ("b", "a"):
            started = draft(Noted(topic="t", facts={}))
            # The store lists runs by their first event, whatever else a log may begin with in a test.
            await store.open(RunId(name)).append(
                StreamId("run"), Version(1), [Draft(kind="run_started", schema=1, data=started.data, sha256="0" * 64)],
                ORIGIN,
            )  # fmt: skip
        assert await store.runs() == ["a", "b"]
        assert (await store.delete(RunId("a"), dry_run=True))["events"] == 1
        assert await store.runs() == ["a", "b"]
        await store.delete(RunId("a"))
        assert await store.runs() == ["b"]
        assert await store.open(RunId("a")).head() == 0


async def test_two_writers_leave_one_event_per_version(open_store) -> None:
    """Twenty tasks race for the same versions: each version has one event, and the losers are told."""
    async with open_store() as store:
        log = store.open(RUN)
        results: list[Appended | Taken] = []

        async def race(name: str) -> None:
            results.append(await put(log, EPISODE, 1, [noted(name)]))

        async with anyio.create_task_group() as tasks:
            for i in range(20):
                tasks.start_soon(race, str(i))
        assert sum(isinstance(one, Appended) for one in results) == 1
        assert await log.head() == 1


async def test_the_script_runs_on_every_server(each_redis_server, redis_prefix: str) -> None:
    """Redis and Valkey give the same answers."""
    async with connected(each_redis_server.url) as redis:
        log = RedisLogStore(redis, redis_prefix, SystemClock(), "here").open(RUN)
        await put(log, EPISODE, 1, [noted("a"), noted("b")])
        assert await put(log, EPISODE, 2, [noted("b"), noted("c")]) == Appended(positions=[2, 3], written=1)
        assert isinstance(await put(log, EPISODE, 1, [noted("z")]), Taken)


async def test_a_key_of_another_type_is_named(redis_server, redis_prefix: str) -> None:
    """Somebody else's key under our name is one clear error, and is left as it is."""
    async with connected(redis_server.url) as redis:
        await redis.set(log_key(redis_prefix, RUN), "not a log")
        log = RedisLogStore(redis, redis_prefix, SystemClock(), "here").open(RUN)
        with pytest.raises(BadInput, match="another type"):
            await put(log, EPISODE, 1, [noted("a")])
        assert await redis.get(log_key(redis_prefix, RUN)) == b"not a log"


async def test_a_dead_server_is_unreachable() -> None:
    """No server: one error that names the address and not the password."""
    redis = client("redis://user:secret@127.0.0.1:1/0")
    try:
        log = RedisLogStore(redis, "p", SystemClock(), "redis://user:***@127.0.0.1:1/0").open(RUN)
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1") as caught:
            await log.head()
        assert "secret" not in str(caught.value)
    finally:
        await redis.aclose()
