"""Logs from disk: round trips, refusals, nothing half done."""

import errno
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from disk_logs import GOLDEN, NAMES, RUN, START, begun, bytes_of, call, each_form, made_log, noted, read_all
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_events import made
from redis.asyncio import Redis

from events.codec import canonical, content_sha256, decode, draft, export_line, parse_line, recorded
from events.errors import BadInput, FoldMismatch, Mismatch, NewerSchema, UnknownKind, UnreadableEvent, VersionGap
from events.ids import PROJECTOR_STREAM, RunId, StreamId, Version, episode_stream
from events.kinds import Abandoned, Executed, Folded, Noted, Operated, Planned, Scored
from events.log import Draft, Recorded
from events.verify import verify
from infra.blobs import FolderBlobs, RedisBlobs
from infra.calls import MemoryCalls, RedisCalls
from infra.clock import SystemClock
from infra.export import export_log
from infra.list_log import ListLog, ListLogStore
from infra.log_import import import_log
from infra.redis_client import connected
from infra.redis_log import RedisLogStore, log_key
from infra.segments import SegmentLog
from runtime.ports import Origin


@each_form
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda one: one.stem)
async def test_a_round_trip_gives_the_same_bytes(
    golden: Path, name: str, open_store, tmp_path: Path, small_segments: None
) -> None:
    """Golden file -> store -> each form -> another store -> the golden file again, and the same bytes of the form."""
    async with open_store() as store:
        first = await import_log(golden, store)
        assert (first.written, first.run, await store.runs()) == (True, SegmentLog(golden).run, [first.run])
        await export_log(store.open(first.run), tmp_path / name)
    second = ListLogStore(SystemClock())
    await import_log(tmp_path / name, second)
    (tmp_path / "again").mkdir()
    await export_log(second.open(first.run), tmp_path / "again" / name)
    assert bytes_of(tmp_path / "again" / name) == bytes_of(tmp_path / name)
    await export_log(second.open(first.run), tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == bytes_of(golden)[golden.name]


#: what is under these names has no fields: whoever wrote it said what he liked, or names something
_FREE = {"parameters", "models", "environment", "protocol", "ordering", "limits", "agent", "operational", "prompts"}
_FREE |= {"depends_on", "breakdown", "facts"}


def _with_more(value: Any) -> Any:
    """Plain data as newer code may write it: one field more in each object."""
    match value:
        case dict():
            more = {name: one if name in _FREE else _with_more(one) for name, one in value.items()}
            return more | {"told_since": {"release": ["0.2.0", 1.5, None]}}
        case list():
            return [_with_more(one) for one in value]
        case _:
            return value


@each_form
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda one: one.stem)
async def test_fields_of_newer_code_are_passed_over_and_kept(
    golden: Path, name: str, open_store, tmp_path: Path, small_segments: None
) -> None:
    """A field more in every object of every event: the same folds and recalls, and the same bytes after each way."""
    lines = [json.loads(line) for line in bytes_of(golden)[golden.name].splitlines()]
    newer = [_edited(canonical(one), data=_with_more(one["data"])) for one in lines]
    (tmp_path / "newer.jsonl").write_bytes(b"".join(newer))
    async with open_store() as store:
        run = (await import_log(tmp_path / "newer.jsonl", store)).run
        there = await read_all(store.open(run))
        await export_log(store.open(run), tmp_path / name)
        again = [Draft(kind=one.kind, schema=one.schema, data=one.data, sha256=content_sha256(one.kind, one.data))
                 for one in there if one.stream == PROJECTOR_STREAM]  # fmt: skip
        assert (await store.open(run).append(PROJECTOR_STREAM, Version(1), again, Origin(cause=None))).written == 0
    assert [export_line(one) for one in there] == newer
    found, known = verify(there), verify(await read_all(SegmentLog(golden)))
    assert (found.digest, found.recalls, found.versions) == (known.digest, known.recalls, known.versions)
    assert [msgspec.to_builtins(decode(one)) for one in there] == [
        msgspec.to_builtins(decode(one)) for one in await read_all(SegmentLog(golden))
    ]
    second = ListLogStore(SystemClock())
    await import_log(tmp_path / name, second)
    await export_log(second.open(run), tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == b"".join(newer)


async def test_an_imported_log_is_a_log(open_store, tmp_path: Path) -> None:
    """Index, streams and head are there, the same append is known, and the log goes on behind it."""
    await export_log(await made_log(250), tmp_path / "log.jsonl")
    original = SegmentLog(tmp_path / "log.jsonl")
    async with open_store() as store:
        await import_log(tmp_path / "log.jsonl", store)
        log = store.open(RUN)
        assert (await log.index(), await log.head()) == (await original.index(), 250)
        assert await log.read_stream(episode_stream(10)) == await original.read_stream(episode_stream(10))
        again = await log.append(StreamId("run"), Version(1), [begun()], Origin(cause=None))
        assert (again.positions, again.written) == ([1], 0)
        more = await log.append(episode_stream(5), Version(1), [noted("more")], Origin(cause=None))
        assert more.positions == [251]
        # A run that went on since is still the one that was exported.
        assert not (await import_log(tmp_path / "log.jsonl", store)).written
        assert await log.head() == 251


async def test_the_same_import_again_changes_nothing(open_store, tmp_path: Path) -> None:
    """And says so."""
    await export_log(await made_log(120), tmp_path / "log.jsonl")
    async with open_store() as store:
        assert (await import_log(tmp_path / "log.jsonl", store)).written
        report = await import_log(tmp_path / "log.jsonl", store)
        assert (report.written, report.events, await store.open(RUN).head()) == (False, 120, 120)


async def test_another_log_of_that_name_stays(open_store, tmp_path: Path) -> None:
    """Other events, other times, or only a beginning: refused, with what to do, and nothing is touched."""
    await export_log(await made_log(7), tmp_path / "log.jsonl")
    async with open_store() as store:
        log = store.open(RUN)
        await log.append(StreamId("run"), Version(1), [noted("mine")], Origin(cause=None))
        before = await log.read(START, 10)
        with pytest.raises(Mismatch, match="another log: position 1 differs; delete it first"):
            await import_log(tmp_path / "log.jsonl", store)
        assert await log.read(START, 10) == before
        report = await import_log(tmp_path / "log.jsonl", store, run=RunId("r-2"))
        assert (report.run, await store.open(RunId("r-2")).head()) == ("r-2", 7)
    beginning = (tmp_path / "log.jsonl").read_bytes().splitlines(keepends=True)[:3]
    (tmp_path / "short.jsonl").write_bytes(b"".join(beginning))
    async with open_store() as store:
        await store.delete(RUN)
        await import_log(tmp_path / "short.jsonl", store)
        with pytest.raises(Mismatch, match="the first 3 of these events only"):
            await import_log(tmp_path / "log.jsonl", store)


async def test_another_name_renames_ids_and_causes(open_store, tmp_path: Path) -> None:
    """Times and attempts stay; a cause of another run stays too."""
    log = ListLog(RUN, SystemClock())
    for version, cause in enumerate((None, "r-1/run/1", "r-10/run/1"), 1):
        event = begun() if version == 1 else noted(str(version))
        await log.append(StreamId("run"), Version(version), [event], Origin(cause=cause, attempt=version))
    await export_log(log, tmp_path / "folder")
    async with open_store() as store:
        await import_log(tmp_path / "folder", store, run=RunId("z"))
        found = await store.open(RunId("z")).read(START, 10)
    assert [one.cause for one in found] == [None, "z/run/1", "r-10/run/1"]
    assert [one.id for one in found] == ["z/run/1", "z/run/2", "z/run/3"]
    assert [(one.at, one.attempt) for one in found] == [(one.at, one.attempt) for one in await read_all(log)]


async def test_an_import_that_fails_half_way_leaves_nothing(open_store, tmp_path: Path) -> None:
    """Readers see no part of a log, neither while it is written nor after a failure; the next try succeeds."""
    log = await made_log(250)

    async def broken() -> AsyncIterator[list[Recorded]]:
        async for page in log.pages(START):
            if page[0].position > 200:
                raise OSError(errno.EIO, "the disk is gone")
            yield page
            assert await store.open(RUN).head() == 0
            assert await store.runs() == []

    async with open_store() as store:
        with pytest.raises(OSError, match="gone"):
            await store.restore(RUN, broken())
        assert (await store.open(RUN).head(), await store.open(RUN).index(), await store.runs()) == (0, {}, [])
        assert await store.restore(RUN, log.pages(START)) == 250
        with pytest.raises(Mismatch, match="there already"):
            await store.restore(RUN, log.pages(START))
        assert await store.open(RUN).read(START, 300) == await read_all(log)
        assert (await store.delete(RUN))["events"] == 250


@pytest.mark.parametrize("change", [{"position": 3}, {"version": 2}])
async def test_a_restored_event_must_be_the_next(change: dict[str, int], open_store) -> None:
    """A position or version that is skipped is told, and nothing is written."""
    events = [one for one in await read_all(await made_log(2)) if one.position == 2]
    first = (await read_all(await made_log(2)))[0]

    async def pages() -> AsyncIterator[list[Recorded]]:
        yield [first, msgspec.structs.replace(events[0], **change)]

    async with open_store() as store:
        with pytest.raises(VersionGap):
            await store.restore(RUN, pages())
        assert await store.open(RUN).head() == 0


def _edited(line: bytes, **change: object) -> bytes:
    return canonical(json.loads(line) | change) + b"\n"


async def test_events_that_contradict_each_other_are_no_log(tmp_path: Path) -> None:
    """What only takes several events to see is refused before anything is written: here a score that is told twice."""
    golden = next(path for path in GOLDEN if path.stem == "credit")
    lines = golden.read_bytes().splitlines(keepends=True)
    at = next(place for place, line in enumerate(lines) if b'"kind":"scored"' in line)
    lines[at] = lines[at].replace(b'"success":true', b'"success":?').replace(b'"success":false', b'"success":true')
    lines[at] = lines[at].replace(b'"success":?', b'"success":false')
    (tmp_path / "log.jsonl").write_bytes(b"".join(lines))
    store = ListLogStore(SystemClock())
    with pytest.raises(FoldMismatch, match="success differs"):
        await import_log(tmp_path / "log.jsonl", store)
    assert await store.runs() == []


@pytest.mark.parametrize(
    ("edit", "error", "told"),
    [
        (lambda line: line.replace(b'"at":', b'"at": '), UnreadableEvent, "canonical"),
        (lambda line: line.replace('ü'.encode(), b"\\u00fc"), UnreadableEvent, "canonical"),
        (lambda line: line.replace(b'"facts":{', b'"facts":{"x":1.0,'), UnreadableEvent, "canonical"),
        (lambda line: line[:-1] + b"\r\n", UnreadableEvent, "canonical"),
        (lambda line: _edited(line, run="r-2", id="r-2/run/2"), UnreadableEvent, "belongs to run r-2"),
        (lambda line: _edited(line, id="r-1/run/1"), UnreadableEvent, "does not fit"),
        (lambda line: _edited(line, position=4), VersionGap, "expected 5, got 4"),
        (lambda line: _edited(line, version=3, id="r-1/run/3"), VersionGap, "expected 2, got 3"),
        (lambda line: _edited(line, kind="dreamt"), UnknownKind, "unknown kind 'dreamt' .schema 1."),
        (lambda line: _edited(line, schema=9), NewerSchema, "schema 9, this chime reads up to 1"),
        (lambda line: _edited(line, at="yesterday"), UnreadableEvent, "yesterday"),
        (lambda line: _edited(line, attempt=0), UnreadableEvent, "attempt 0"),
        (lambda line: _edited(line, data={"topic": 1}), UnreadableEvent, "topic"),
        (lambda line: _edited(line, data={"topic": "x" * 270_000, "facts": {}}), UnreadableEvent, "the cap is"),
        (lambda line: _edited(line, more=1), UnreadableEvent, "more"),
        (lambda _: b"\xff\xfe\n", UnreadableEvent, "line 5"),
        (lambda _: b"\n", UnreadableEvent, "line 5"),
        (lambda _: b"", VersionGap, "expected 5, got 6"),
        (lambda line: line + line, VersionGap, "expected 6, got 5"),
    ],
)  # fmt: skip
async def test_a_bad_line_stops_the_import_before_it_begins(
    edit: Callable[[bytes], bytes], error: type[Exception], told: str, tmp_path: Path
) -> None:
    """Damaged, out of place, of an unknown kind or newer schema, or not the bytes we write: named, nothing written."""
    path = tmp_path / "log.jsonl"
    await export_log(await made_log(9), path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = edit(lines[4])
    path.write_bytes(b"".join(lines))
    store = ListLogStore(SystemClock())
    with pytest.raises(error, match=told):
        await import_log(path, store)
    assert await store.runs() == []


#: events of kinds that say nothing about each other
FREE = st.one_of([made(kind) for kind in (Planned, Executed, Scored, Abandoned, Folded, Operated, Noted)])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_any_log_survives_a_round_trip(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Events of any kind: written in any form, read, imported and written again, they have the same bytes."""
    folder = tmp_path_factory.mktemp("x")
    episodes = st.sampled_from(("episode-0", "episode-1", "episode-10"))
    versions: dict[str, int] = {}
    lines = b""
    drafts = [("run", begun()), *((one.STREAM, draft(one)) for one in data.draw(st.lists(FREE, max_size=12)))]
    for position, (whose, item) in enumerate(drafts, 1):
        stream = data.draw(episodes) if whose == "episode" else whose
        versions[stream] = versions.get(stream, 0) + 1
        lines += export_line(
            recorded(
                item, run=RUN, stream=StreamId(stream), version=versions[stream], position=position,
                at="2026-01-01T00:00:00.000000Z", cause=data.draw(st.sampled_from((None, "r-1/run/1"))),
                attempt=data.draw(st.integers(1, 3)),
            )
        )  # fmt: skip
    (folder / "in.jsonl").write_bytes(lines)
    store = ListLogStore(SystemClock())
    await import_log(folder / "in.jsonl", store)
    name = data.draw(st.sampled_from(NAMES))
    await export_log(store.open(RUN), folder / name)
    assert (
        [parse_line(line, "line") for line in lines.splitlines(keepends=True)]
        == await read_all(SegmentLog(folder / name))
        if b"\x0b" not in lines
        else True
    )
    other = ListLogStore(SystemClock())
    await import_log(folder / name, other)
    await export_log(other.open(RUN), folder / "out.jsonl")
    assert (folder / "out.jsonl").read_bytes() == lines


@asynccontextmanager
async def redis_with_bodies(
    redis_server, prefix: str
) -> AsyncIterator[tuple[Redis, RedisLogStore, RedisBlobs, RedisCalls]]:
    """A server and what keeps a run's log, bodies and calls on it."""
    async with connected(redis_server.url) as redis:
        store = RedisLogStore(redis, prefix, SystemClock(), "here")
        yield redis, store, RedisBlobs(redis, prefix, "here"), RedisCalls(redis, prefix, "here")


@pytest.mark.parametrize("taken", ["log", "index", "blobs", "calls", "runs", "set-aside"])
async def test_a_refused_import_leaves_the_server_as_it_was(
    taken: str, redis_server, redis_prefix: str, keys_left, tmp_path: Path
) -> None:
    """Whichever of the run's keys holds something else, and with a body there before: nothing is added or removed."""
    async with redis_with_bodies(redis_server, redis_prefix) as (redis, store, blobs, calls):
        source = FolderBlobs(tmp_path / "home")
        for body in (b"one", b"two"):
            await source.put(RUN, body)
        recorded_calls = MemoryCalls()
        await recorded_calls.put(RUN, "episode-0/planning/1 x", call(1))
        await export_log(await made_log(9), tmp_path / "folder", blobs=source, calls=recorded_calls)
        key = f"{redis_prefix}:{taken}" if taken in ("runs", "set-aside") else f"{redis_prefix}:{{{RUN}}}:{taken}"
        await redis.set(key, "not ours")
        before = keys_left()
        with pytest.raises((BadInput, Mismatch)):
            await import_log(tmp_path / "folder", store, blobs, calls)
        assert keys_left() == before
        await redis.delete(key)
        body = await blobs.put(RUN, b"one")
        await redis.set(log_key(redis_prefix, RUN), "not ours")
        with pytest.raises(Mismatch):
            await import_log(tmp_path / "folder", store, blobs, calls)
        assert (await blobs.hashes(RUN), await calls.all(RUN)) == ([body], {})


async def test_a_refused_import_leaves_no_file(tmp_path: Path) -> None:
    """Bodies that go into a folder are taken back too, with the folders that hold nothing else."""
    source, home = FolderBlobs(tmp_path / "home"), tmp_path / "other"
    await source.put(RUN, b"one")
    await export_log(await made_log(9), tmp_path / "folder", blobs=source)
    store = ListLogStore(SystemClock())

    async def refuse(run: RunId, pages: object) -> None:
        raise Mismatch("somebody else was first")

    store.restore = refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(Mismatch, match="was first"):
        await import_log(tmp_path / "folder", store, FolderBlobs(home))
    assert [one for one in home.rglob("*") if one.name != "blobs"] == []


async def test_an_imported_run_is_set_aside(open_store, tmp_path: Path) -> None:
    """It is a record until somebody takes it up; the same import again does not change that, a deletion forgets it."""
    await export_log(await made_log(9), tmp_path / "log.jsonl")
    async with open_store() as store:
        assert await store.set_aside() == frozenset()
        await import_log(tmp_path / "log.jsonl", store)
        assert (await store.runs(), await store.set_aside()) == ([RUN], {RUN})
        await store.take_up(RUN)
        await import_log(tmp_path / "log.jsonl", store)
        assert await store.set_aside() == frozenset()
        await store.delete(RUN)
        await import_log(tmp_path / "log.jsonl", store)
        assert await store.set_aside() == {RUN}
        await store.delete(RUN)
        assert await store.set_aside() == frozenset()
