"""Logs on disk: written, read, damaged, imported, and what a notebook gets of them."""

import csv
import errno
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_events import events as made_events

from events.codec import canonical, draft, export_line, parse_line, recorded
from events.errors import BadInput, Mismatch, NewerSchema, UnknownKind, UnreadableEvent, VersionGap
from events.ids import Position, RunId, StreamId, Version, episode_stream
from events.kinds import Noted
from events.log import Draft, Recorded
from infra import export
from infra.blobs import FolderBlobs
from infra.calls import CallRecord, MemoryCalls
from infra.clock import SystemClock
from infra.csv_rows import COLUMNS, export_csv
from infra.export import export_log
from infra.exported_bodies import ExportedBlobs, ExportedCalls, bodies_folder
from infra.list_log import ListLog, ListLogStore
from infra.log_import import import_log
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.segments import CorruptSegment, SegmentLog, UnreadableExport, read_manifest, verify_segments
from runtime.errors import MissingBlob
from runtime.ports import LogStore, Origin, TokenUsage

GOLDEN = sorted((Path(__file__).parent.parent / "golden").glob("schema-*/*.jsonl"))
RUN = RunId("r-1")
START = Position(0)
NAMES = ("log.jsonl", "log.jsonl.zst", "folder")

each_form = pytest.mark.parametrize("name", NAMES)


def noted(topic: str) -> Draft:
    """An event that differs by its topic."""
    return draft(Noted(topic=topic, facts={"text": "ü\u2028 \N{GRINNING FACE}"}))


async def made_log(count: int, run: RunId = RUN) -> ListLog:
    """`count` events that go round over four streams, with a cause and an attempt now and then."""
    log = ListLog(run, SystemClock())
    streams = [StreamId("run"), episode_stream(0), episode_stream(1), episode_stream(10)]
    for i in range(count):
        origin = Origin(cause=f"{run}/run/1" if i % 3 else None, attempt=1 + i % 2)
        await log.append(streams[i % 4], Version(i // 4 + 1), [noted(str(i))], origin)
    return log


async def read_all(log: SegmentLog | ListLog, after: int = 0) -> list[Recorded]:
    """Every event above `after`."""
    return [one async for page in log.pages(Position(after)) for one in page]


def bytes_of(path: Path) -> dict[str, bytes]:
    """Every file of an export by its name."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return {one.relative_to(path.parent).as_posix(): one.read_bytes() for one in files}


def names_in(folder: Path) -> list[str]:
    """What a folder holds, sorted."""
    return sorted(one.name for one in folder.iterdir())


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five events a segment."""
    monkeypatch.setattr(export, "SEGMENT", 5)


@pytest.fixture(params=["list", "redis"])
def open_store(request: pytest.FixtureRequest, redis_prefix: str) -> Callable[[], object]:
    """A way to open an empty store of each kind."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[LogStore]:
        if request.param == "list":
            yield ListLogStore(SystemClock())
            return
        server = request.getfixturevalue("redis_server")
        async with connected(server.url) as redis:
            yield RedisLogStore(redis, redis_prefix, SystemClock(), server.url)

    return opened


# -- reading ---------------------------------------------------------------------------------------------------------


@each_form
async def test_every_form_reads_like_the_log(name: str, tmp_path: Path, small_segments: None) -> None:
    """Pages from anywhere, streams, index and head are those of the log that was exported."""
    log = await made_log(23)
    report = await export_log(log, tmp_path / name)
    assert (report.events, report.segments) == (23, 5 if name == "folder" else 0)
    there = SegmentLog(tmp_path / name)
    assert (there.run, await there.head()) == (RUN, 23)
    for after in (0, 1, 4, 5, 6, 19, 20, 22, 23):
        assert await read_all(there, after) == await read_all(log, after)
        assert await there.read(Position(after), 7) == await log.read(Position(after), 7)
    assert await there.index() == await log.index()
    for stream in [*await log.index(), episode_stream(99)]:
        assert await there.read_stream(stream) == await log.read_stream(stream)


@each_form
async def test_pages_are_of_a_hundred_and_skip_kinds(name: str, tmp_path: Path) -> None:
    """More events than a page holds come once each; of other kinds none."""
    await export_log(await made_log(250), tmp_path / name)
    log = SegmentLog(tmp_path / name)
    assert [len(page) async for page in log.pages(START)] == [100, 100, 50]
    assert [one async for page in log.pages(START, frozenset({"folded"})) for one in page] == []
    assert len(await log.read(START, 300, frozenset({"noted"}))) == 250


@each_form
async def test_an_export_is_read_only_and_has_no_news(name: str, tmp_path: Path) -> None:
    """An append is refused; a wait ends; a position beyond the end is told."""
    await export_log(await made_log(3), tmp_path / name)
    log = SegmentLog(tmp_path / name)
    with pytest.raises(BadInput, match="read-only"):
        await log.append(StreamId("run"), Version(4), [noted("x")], Origin(cause=None))
    assert await log.wait(Position(2), 0.01)
    assert not await log.wait(Position(3), 0.01)
    for ask in (log.read(Position(9), 1), log.wait(Position(9), 0.01), read_all(log, 9)):
        with pytest.raises(VersionGap):
            await ask


async def test_the_manifest_chains_the_hashes(tmp_path: Path, small_segments: None) -> None:
    """Hash and chain of each segment can be computed from the page that describes them."""
    await export_log(await made_log(12), tmp_path / "folder")
    manifest = json.loads((tmp_path / "folder" / "manifest.json").read_bytes())
    assert {key: manifest[key] for key in ("format", "run", "events")} == {"format": 1, "run": RUN, "events": 12}
    chain = ""
    for one, (first, last) in zip(manifest["segments"], [(1, 5), (6, 10), (11, 12)], strict=True):
        packed = (tmp_path / "folder" / one["file"]).read_bytes()
        lines = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
        assert (one["first"], one["last"], lines.count(b"\n")) == (first, last, last - first + 1)
        assert one["sha256"] == hashlib.sha256(lines).hexdigest()
        chain = hashlib.sha256((chain + one["sha256"]).encode()).hexdigest()
        assert one["chain"] == chain


async def test_a_foreign_compressor_is_read(tmp_path: Path) -> None:
    """Frames behind one another and another level are the same file."""
    log = await made_log(20)
    lines = [export_line(one) for one in await read_all(log)]
    packed = zstandard.ZstdCompressor(level=1).compress(b"".join(lines[:7]))
    packed += zstandard.ZstdCompressor(level=1).compress(b"".join(lines[7:]))
    (tmp_path / "two-frames").write_bytes(packed)
    assert await read_all(SegmentLog(tmp_path / "two-frames")) == await read_all(log)


# -- damage ----------------------------------------------------------------------------------------------------------


async def test_a_damaged_segment_is_named_and_the_others_stay_readable(tmp_path: Path, small_segments: None) -> None:
    """Flipped bits, a cut, another segment's bytes and a missing file: file, positions and reason are told."""
    folder = tmp_path / "folder"
    await export_log(await made_log(15), folder)
    second, whole = folder / "000002.jsonl.zst", (folder / "000002.jsonl.zst").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for damage in (
        bytes(flipped),
        whole[:-1],
        whole[: len(whole) // 2],
        b"",
        (folder / "000001.jsonl.zst").read_bytes(),
        None,
    ):
        if damage is None:
            second.unlink()
        else:
            second.write_bytes(damage)
        checks = await verify_segments(folder)
        assert [one.problem is None for one in checks] == [True, False, True]
        assert (checks[1].file, checks[1].first, checks[1].last) == ("000002.jsonl.zst", 6, 10)
        log = SegmentLog(folder)
        assert [one.position for one in await log.read(START, 5)] == [1, 2, 3, 4, 5]
        assert [one.position for one in await read_all(log, 10)] == [11, 12, 13, 14, 15]
        with pytest.raises(CorruptSegment, match=r"000002\.jsonl\.zst \(positions 6 to 10\)"):
            await read_all(log)
        with pytest.raises(CorruptSegment):
            await import_log(folder, ListLogStore(SystemClock()))


@pytest.mark.parametrize("cut", [1, 2, 40])
@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.zst"])
async def test_a_file_that_is_cut_short_is_noticed(name: str, cut: int, tmp_path: Path) -> None:
    """Be it at the last line feed or inside the last event: never a shorter log."""
    path = tmp_path / name
    await export_log(await made_log(9), path)
    path.write_bytes(path.read_bytes()[:-cut])
    [check] = await verify_segments(path)
    assert check.problem is not None
    assert "cut short" in check.problem
    with pytest.raises(CorruptSegment, match="cut short"):
        await read_all(SegmentLog(path))


async def test_what_is_readable_of_a_cut_file_is_told(tmp_path: Path) -> None:
    """The position up to which it can be used."""
    path = tmp_path / "log.jsonl"
    await export_log(await made_log(9), path)
    path.write_bytes(path.read_bytes()[:-1])
    [check] = await verify_segments(path)
    assert check.problem == "its last line is cut short (readable up to position 8)"
    assert [one.position for one in await SegmentLog(path).read(START, 8)] == list(range(1, 9))


async def test_a_broken_chain_is_named(tmp_path: Path, small_segments: None) -> None:
    """Whoever swaps a segment and its hash breaks the chain at that place."""
    folder = tmp_path / "folder"
    await export_log(await made_log(15), folder)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["segments"][1]["sha256"] = "0" * 64
    (folder / "manifest.json").write_bytes(canonical(manifest))
    with pytest.raises(CorruptSegment, match=r"000002\.jsonl\.zst \(positions 6 to 10\) is damaged: the chain"):
        SegmentLog(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "format 2, this chime reads up to 1; use a newer chime"),
        ({"format": "x"}, "format"),
        ({"run": "No Run"}, "no run id"),
        ({"events": 4}, "counts 4 events"),
        ({"segments": []}, "counts 5 events"),
        ({"segments": [], "events": 0}, "no event"),
        (
            {"segments": [{"file": "../../etc/passwd", "first": 1, "last": 5, "sha256": "0" * 64, "chain": ""}]},
            "no segm",
        ),
        ({"segments": [{"file": "000001.jsonl.zst", "first": 2, "last": 6, "sha256": "0" * 64, "chain": ""}]}, "first"),
    ],
)
async def test_a_manifest_that_is_none_is_refused(change: dict[str, object], reason: str, tmp_path: Path) -> None:
    """Each with its reason; a newer format before all else."""
    await export_log(await made_log(5), tmp_path / "folder")
    path = tmp_path / "folder" / "manifest.json"
    path.write_bytes(canonical(json.loads(path.read_bytes()) | change))
    with pytest.raises(BadInput, match=reason):
        SegmentLog(tmp_path / "folder")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "no event"), (b"PK\x03\x04zip", "unknown format"), (b"{}\n", "missing"), (b"\x28\xb5\x2f\xfdxx", "damaged"),
     (b"{" * 1000, "cut short"), (b"{" * 600_000, "longer than any event")],
)  # fmt: skip
def test_a_file_that_is_no_export_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    """Empty, another format, another JSON, a damaged frame, an endless line."""
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises((BadInput, CorruptSegment), match=reason):
        SegmentLog(path)


def test_a_path_that_is_no_export_is_refused(tmp_path: Path) -> None:
    """Nothing there, a file on the way, a folder of something else."""
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path / "x", "no such file"),
        (tmp_path / "file" / "x", "no such"),
        (tmp_path, "manifest"),
    ):
        with pytest.raises(UnreadableExport, match=reason):
            SegmentLog(path)


# -- exporting -------------------------------------------------------------------------------------------------------


@each_form
async def test_an_export_replaces_an_older_one(name: str, tmp_path: Path, small_segments: None) -> None:
    """Of the same run; and nothing but it is left."""
    await export_log(await made_log(17), tmp_path / name)
    await export_log(await made_log(4), tmp_path / name)
    assert await SegmentLog(tmp_path / name).head() == 4
    assert names_in(tmp_path) == [name]
    if name == "folder":
        assert names_in(tmp_path / name) == ["000001.jsonl.zst", "manifest.json"]


async def test_what_is_in_the_way_is_left_alone(tmp_path: Path) -> None:
    """Another run's folder, other files, a file of the folder's name, an unknown format, a folder that is not there."""
    log = await made_log(3)
    await export_log(await made_log(1, RunId("other")), tmp_path / "other")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (tmp_path / "plain").write_text("text")
    before = bytes_of(tmp_path)
    for name, reason in (
        ("other", "an export of run other"),
        ("mine", "other files"),
        ("plain", "is a file"),
        ("x.parquet", "unknown format '.parquet'"),
        ("no/such/x.jsonl", "no folder"),
    ):
        with pytest.raises(BadInput, match=reason):
            await export_log(log, tmp_path / name)
    assert bytes_of(tmp_path) == before


@each_form
async def test_an_empty_run_is_not_exported(name: str, tmp_path: Path) -> None:
    """One line, and no file."""
    with pytest.raises(BadInput, match="no events"):
        await export_log(ListLog(RUN, SystemClock()), tmp_path / name)
    assert names_in(tmp_path) == []


class _FullDisk(ListLog):
    """A log whose second page meets a full disk."""

    async def pages(self, after: Position, kinds: frozenset[str] | None = None) -> AsyncIterator[list[Recorded]]:
        async for page in super().pages(after, kinds):
            yield page
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("name", [*NAMES, "rows.csv"])
async def test_a_full_disk_leaves_what_was_there(name: str, tmp_path: Path) -> None:
    """The error passes through, the older export stays whole, nothing unfinished is left."""
    log = _FullDisk(RUN, SystemClock())
    await log.append(StreamId("run"), Version(1), [noted("x")], Origin(cause=None))
    (tmp_path / "older").mkdir()
    if name != "rows.csv":
        await export_log(await made_log(2), tmp_path / name)
    before = bytes_of(tmp_path)
    with pytest.raises(OSError, match="No space"):
        await (export_csv(log, tmp_path / name) if name == "rows.csv" else export_log(log, tmp_path / name))
    assert bytes_of(tmp_path) == before
    assert set(names_in(tmp_path)) <= {"older", name}


async def test_a_name_is_replaced_not_written_through(tmp_path: Path) -> None:
    """A link of that name gives way; what it pointed to stays as it was."""
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "log.jsonl").symlink_to(tmp_path / "elsewhere")
    await export_log(await made_log(2), tmp_path / "log.jsonl")
    assert (await SegmentLog(tmp_path / "log.jsonl").head(), (tmp_path / "elsewhere").read_text()) == (2, "mine")


# -- importing -------------------------------------------------------------------------------------------------------


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


async def test_an_imported_log_is_a_log(open_store, tmp_path: Path) -> None:
    """Index, streams and head are there, the same append is known, and the log goes on behind it."""
    await export_log(await made_log(250), tmp_path / "log.jsonl")
    original = SegmentLog(tmp_path / "log.jsonl")
    async with open_store() as store:
        await import_log(tmp_path / "log.jsonl", store)
        log = store.open(RUN)
        assert (await log.index(), await log.head()) == (await original.index(), 250)
        assert await log.read_stream(episode_stream(10)) == await original.read_stream(episode_stream(10))
        again = await log.append(StreamId("run"), Version(1), [noted("0")], Origin(cause=None))
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
        await log.append(StreamId("run"), Version(version), [noted(str(version))], Origin(cause=cause, attempt=version))
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


# -- bodies ----------------------------------------------------------------------------------------------------------


def call(ordinal: int) -> bytes:
    """A recorded model call."""
    return msgspec.json.encode(
        CallRecord(
            id=f"episode-0/planning/{ordinal}", role="planner", model="m", usage=TokenUsage(), latency_ms=1,
            finish_reason="stop", messages="a" * 64, request="b" * 64, answer="c" * 64, sha256="d" * 64, at="now",
        )
    )  # fmt: skip


async def with_bodies(folder: Path) -> tuple[FolderBlobs, MemoryCalls]:
    """Two bodies and two calls of `RUN`."""
    blobs, calls = FolderBlobs(folder), MemoryCalls()
    await blobs.put(RUN, b"first")
    await blobs.put(RUN, b"second")
    for ordinal in (2, 1):
        await calls.put(RUN, f"episode-0/planning/{ordinal} {'d' * 64}", call(ordinal))
    return blobs, calls


@each_form
async def test_bodies_go_along(name: str, tmp_path: Path) -> None:
    """Blobs and calls are beside or inside the export, readable there, and come back byte for byte."""
    blobs, calls = await with_bodies(tmp_path / "home")
    report = await export_log(await made_log(3), tmp_path / name, blobs=blobs, calls=calls)
    assert (report.blobs, report.calls) == (2, 2)
    assert bodies_folder(tmp_path / name).name == ("folder" if name == "folder" else "log.bodies")
    there, recorded_calls = ExportedBlobs(tmp_path / name), ExportedCalls(tmp_path / name)
    assert (there.exist, recorded_calls.exist) == (True, True)
    assert await there.hashes(RUN) == await blobs.hashes(RUN)
    assert [await there.get(RUN, one) for one in await there.hashes(RUN)] == [
        await blobs.get(RUN, one) for one in await blobs.hashes(RUN)
    ]
    assert await recorded_calls.all(RUN) == await calls.all(RUN)
    with pytest.raises(BadInput, match="read-only"):
        await there.put(RUN, b"x")
    other, other_calls, target = FolderBlobs(tmp_path / "other"), MemoryCalls(), RunId("z")
    done = await import_log(tmp_path / name, ListLogStore(SystemClock()), other, other_calls, target)
    assert (done.blobs, done.calls) == (2, 2)
    assert await other.hashes(target) == await blobs.hashes(RUN)
    assert await other_calls.all(target) == await calls.all(RUN)
    (tmp_path / "again").mkdir()
    again = tmp_path / "again" / name
    await export_log(await made_log(3, target), again, blobs=other, calls=other_calls)
    for folder in (bodies_folder(again) / "blobs", bodies_folder(tmp_path / name) / "blobs"):
        assert bytes_of(folder) == bytes_of(bodies_folder(again) / "blobs")
    assert (bodies_folder(again) / "calls.jsonl").read_bytes() == (
        bodies_folder(tmp_path / name) / "calls.jsonl"
    ).read_bytes()


@each_form
async def test_bodies_are_not_lost_to_an_export_without(name: str, tmp_path: Path) -> None:
    """An export that would drop the bodies of an older one is refused; with bodies it replaces them."""
    blobs, calls = await with_bodies(tmp_path / "home")
    await export_log(await made_log(3), tmp_path / name, blobs=blobs, calls=calls)
    with pytest.raises(BadInput, match="bodies"):
        await export_log(await made_log(4), tmp_path / name)
    await blobs.put(RUN, b"third")
    await export_log(await made_log(4), tmp_path / name, blobs=blobs)
    assert len(await ExportedBlobs(tmp_path / name).hashes(RUN)) == 3
    assert not ExportedCalls(tmp_path / name).exist
    assert await SegmentLog(tmp_path / name).head() == 4


async def test_a_damaged_body_stops_the_import_before_it_begins(tmp_path: Path) -> None:
    """Named by its hash; neither log nor bodies are written."""
    blobs, calls = await with_bodies(tmp_path / "home")
    await export_log(await made_log(3), tmp_path / "folder", blobs=blobs, calls=calls)
    name = (await blobs.hashes(RUN))[1]
    (tmp_path / "folder" / "blobs" / f"{name}.zst").write_bytes(b"x")
    store, other = ListLogStore(SystemClock()), FolderBlobs(tmp_path / "other")
    with pytest.raises(MissingBlob, match=name):
        await import_log(tmp_path / "folder", store, other)
    assert (await store.runs(), await other.hashes(RUN)) == ([], [])


@pytest.mark.parametrize("line", [b"{}\n", b"x\n", b'{"field":"f","record":{"id":"f"}}\n'])
async def test_a_damaged_call_stops_the_import_before_it_begins(line: bytes, tmp_path: Path) -> None:
    """A line that is none, a record that is none."""
    await export_log(await made_log(3), tmp_path / "folder", calls=MemoryCalls())
    (tmp_path / "folder" / "calls.jsonl").write_bytes(line)
    store = ListLogStore(SystemClock())
    with pytest.raises(BadInput):
        await import_log(tmp_path / "folder", store, calls=MemoryCalls())
    assert await store.runs() == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "x" * 64, "A" * 64, "/" * 64])
async def test_a_hostile_hash_reads_nothing(name: str, tmp_path: Path) -> None:
    """Only a SHA-256 names a file."""
    await export_log(await made_log(3), tmp_path / "folder", blobs=FolderBlobs(tmp_path))
    with pytest.raises(MissingBlob):
        await ExportedBlobs(tmp_path / "folder").get(RUN, name)


# -- property --------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_any_log_survives_a_round_trip(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Events of any kind: written in any form, read, imported and written again, they have the same bytes."""
    folder = tmp_path_factory.mktemp("x")
    streams = st.sampled_from(("run", "projector", "episode-0", "episode-1", "episode-10"))
    versions: dict[str, int] = {}
    lines = b""
    for position, event in enumerate(data.draw(st.lists(made_events(), min_size=1, max_size=12)), 1):
        stream = data.draw(streams)
        versions[stream] = versions.get(stream, 0) + 1
        lines += export_line(
            recorded(
                draft(event), run=RUN, stream=StreamId(stream), version=versions[stream], position=position,
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


# -- rows ------------------------------------------------------------------------------------------------------------


async def test_rows_say_what_happened(tmp_path: Path) -> None:
    """One row an episode, in order; what did not happen is empty; sizes are those after the fold."""
    path = next(one for one in GOLDEN if one.stem == "abandoned")
    assert await export_csv(SegmentLog(path), tmp_path / "rows.csv") == 7
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [row["episode"] for row in rows] == [str(t) for t in range(7)]
    whole, early, middle, late, unread, _, last = rows
    assert whole == {
        "run": "golden-abandoned", "episode": "0", "task_id": "toy-0", "epoch": "0", "success": "true", "reward": "1.0",
        "label": "both", "confidence": "1.0", "degraded": "", "abandoned": "", "stop": "done", "steps": "3",
        "errors": "0", "planning_version": "0", "execution_version": "0", "planning_ids": "", "execution_ids": "",
        "bank_planning": "1", "bank_execution": "1", "planning_prompt_tokens": "10", "planning_completion_tokens": "5",
        "execution_prompt_tokens": "10", "execution_completion_tokens": "5", "gate_prompt_tokens": "10",
        "gate_completion_tokens": "5", "calls": "3", "first_at": "2026-01-01T00:00:01.000000Z",
        "last_at": "2026-01-01T00:00:06.000000Z",
    }  # fmt: skip
    assert [row["abandoned"] for row in (early, middle, late)] == ["worker lost"] * 3
    assert (early["execution_version"], early["success"], early["label"], early["calls"]) == ("", "", "", "0")
    assert (middle["planning_prompt_tokens"], middle["execution_prompt_tokens"], middle["epoch"]) == ("10", "", "1")
    assert (late["stop"], late["success"]) == ("done", "")
    assert (unread["degraded"], unread["label"]) == ("unreadable", "none")
    assert (last["planning_ids"], last["execution_ids"], last["label"]) == ("planning-0", "execution-0", "execution")


async def test_rows_of_a_run_under_way(tmp_path: Path) -> None:
    """Episodes that are not folded yet come last, in order, without sizes; seeds count from the beginning."""
    lines = next(one for one in GOLDEN if one.stem == "seeded").read_bytes().splitlines(keepends=True)
    whole = [json.loads(line) for line in lines]
    folds = [one["position"] for one in whole if one["kind"] == "folded"]
    (tmp_path / "part.jsonl").write_bytes(b"".join(lines[: folds[1] - 1]))
    assert await export_csv(SegmentLog(tmp_path / "part.jsonl"), tmp_path / "rows.csv") == 2
    with (tmp_path / "rows.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["episode"], first["bank_planning"], first["bank_execution"]) == ("0", "3", "2")
    assert (second["episode"], second["bank_planning"], second["label"]) == ("1", "", "planning")


async def test_rows_of_no_run(tmp_path: Path) -> None:
    """A log without a header is told, and no file appears."""
    with pytest.raises(UnreadableEvent, match="run_started"):
        await export_csv(await made_log(5), tmp_path / "rows.csv")
    assert names_in(tmp_path) == []


async def test_the_manifest_is_read_by_itself(tmp_path: Path, small_segments: None) -> None:
    """Whoever wants the last chain or the counts needs no segment."""
    await export_log(await made_log(12), tmp_path / "folder")
    for one in (tmp_path / "folder").glob("*.zst"):
        one.unlink()
    manifest = read_manifest(tmp_path / "folder")
    assert (manifest.run, manifest.events, [one.last for one in manifest.segments]) == (RUN, 12, [5, 10, 12])
