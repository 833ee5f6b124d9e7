"""Logs whose beginning lies in an archive: read as before, whatever was interrupted, damaged or lost on the way."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import anyio
import fsspec
import msgspec
import pytest
import structlog
from archived_runs import SEEDS, START, archived, go_on, made_run, put, read_all, small
from fsspec.implementations.memory import MemoryFileSystem

from events.codec import canonical, content_sha256, draft
from events.errors import BadInput, ChimeError, Mismatch, VersionGap
from events.fold import REPLAY_KINDS, replay
from events.ids import PROJECTOR_STREAM, RUN_STREAM, Position, RunId, StreamId, Version, episode_of
from events.kinds import Noted
from events.log import Draft, Recorded
from infra import archive
from infra.archive import _Archiving
from infra.archive_storage import ArchiveAway
from infra.clock import SystemClock
from infra.export import export_log
from infra.list_log import ListLogStore
from infra.log_import import import_log
from infra.redis_client import connected
from infra.redis_log import RedisLogStore, index_key, kept_key, log_key
from infra.segments import CorruptSegment, SegmentLog, verify_segments
from runtime.ports import Appended, Basis, Origin, Taken
from workers.run_stream import tell

PROGRAM = Path(__file__).parent / "plain" / "archived_runs.py"
STEPS = ("segment", "checkpoint", "manifest", "recorded", "noted", "trimmed")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEGMENT", "ADDITION", "TRIMMED_AT_ONCE"):
        monkeypatch.setattr(archive, name, getattr(archive, name))
    small()


@pytest.fixture
def open_store(redis_server: Any, redis_prefix: str, tmp_path: Path):
    """A way to open the same store again, as another process would."""

    @asynccontextmanager
    async def opened(home: Path = tmp_path / "home") -> AsyncIterator[RedisLogStore]:
        async with connected(redis_server.url) as redis:
            yield RedisLogStore(redis, redis_prefix, SystemClock(), "here", home=home)

    return opened


async def held(store: RedisLogStore, run: RunId, prefix: str) -> int:
    """How many events the server itself holds of the log."""
    return int(await store._redis.xlen(log_key(prefix, run)))


def of_draft(one: Recorded) -> Draft:
    return Draft(kind=one.kind, schema=one.schema, data=one.data, sha256=content_sha256(one.kind, one.data))


# -- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_finished_run_reads_as_before(seed: int, open_store, redis_prefix: str, tmp_path: Path) -> None:
    """Pages, reads, streams, index, banks and export from archive and server together; only its last event stays."""
    events = made_run(seed)
    run = events[0].run
    async with open_store() as store:
        log = await put(store, events)
        index = await log.index()
        report = await archived(store, run)
        assert (report.last, report.trimmed, report.added) == (len(events) - 1,) * 3
        assert await held(store, run, redis_prefix) == 1
    async with open_store() as store:
        for there in (log := store.open(run), store.open(run)):
            assert await read_all(there) == events
        for after in (0, 1, 2, 6, 7, 8, 50, len(events) - 2, len(events) - 1, len(events)):
            assert await read_all(store.open(run), after) == events[after:]
            assert await store.open(run).read(Position(after), 9) == events[after : after + 9]
        assert await read_all(log) == events
        assert (await log.index(), await log.head()) == (index, len(events))
        for stream in index:
            assert await log.read_stream(stream) == [one for one in events if one.stream == stream]
        folds = [one async for page in log.pages(START, frozenset({"folded"})) for one in page]
        assert folds == [one for one in events if one.kind == "folded"]
        await export_log(log, tmp_path / "after.jsonl")
        await export_log((await _listed(events)).open(run), tmp_path / "before.jsonl")
        assert (tmp_path / "after.jsonl").read_bytes() == (tmp_path / "before.jsonl").read_bytes()


async def _listed(events: list[Recorded]) -> ListLogStore:
    store = ListLogStore(SystemClock())

    async def pages() -> AsyncIterator[list[Recorded]]:
        yield events

    await store.restore(events[0].run, pages())
    return store


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_open_run_goes_on(seed: int, open_store, redis_prefix: str) -> None:
    """Archived at several moments while it goes on: every event comes once, in order, and the banks are the same."""
    events = made_run(seed, 24)
    run = events[0].run
    async with open_store() as store:
        reader = (log := await put(store, events[:20]), store.open(run))[1]
        await reader.read(START, 3)
        seen = 20
        for upto in (60, 61, 90, len(events) - 1):
            await go_on(log, events[seen:upto])
            seen = upto
            before = await read_all(log)
            report = await archived(store, run)
            assert await held(store, run, redis_prefix) == await log.head() - report.trimmed
            assert report.trimmed == report.last
            assert (await read_all(reader))[: len(before)] == before
            open_streams = {one.stream for one in before if (t := episode_of(one.stream)) is not None}
            folded = len((await log.index()).get(PROJECTOR_STREAM).positions) if report.last else 0
            for stream in open_streams:
                t = episode_of(stream)
                if t is not None and t >= folded:
                    assert (await log.index())[stream].positions[0] > report.last
        found = await read_all(store.open(run))
        assert [one.position for one in found] == list(range(1, len(found) + 1))
        assert [one.data for one in found if one.kind != "noted"] == [one.data for one in events[:-1]]
        assert report.last > 50
        notes = [one for one in found if one.kind == "noted"]
        assert len(notes) == len({one.data for one in notes}) >= 2
        whole, from_archive = replay(events), replay(found)
        assert from_archive.banks.digest() == whole.banks.digest()
        assert (await archived(store, run)).added >= 0


async def test_an_export_of_an_archive_is_the_log(open_store, tmp_path: Path) -> None:
    """The folder itself is an export: read by path, verified, imported elsewhere under another name."""
    events = made_run()
    async with open_store() as store:
        await put(store, events)
        report = await archived(store, events[0].run)
    folder = tmp_path / "home" / report.storage
    assert all(one.problem is None for one in await verify_segments(folder))
    assert await read_all(SegmentLog(folder)) == events[:-1]
    elsewhere = ListLogStore(SystemClock())
    await import_log(folder, elsewhere, run=RunId("other"))
    assert await elsewhere.open(RunId("other")).head() == len(events) - 1


async def test_the_runs_own_stream_stays_on_the_server(open_store, tmp_path: Path) -> None:
    """Header, seeds and notes are read without the archive, in order and page by page."""
    events = made_run(18)
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        await archived(store, run)
    own = [one for one in events if one.stream == RUN_STREAM]
    async with open_store(tmp_path / "no home") as store:
        log = store.open(run)
        assert await log.read_stream(RUN_STREAM) == own
        assert await log.read(START, 1) == events[:1]
        assert await log.read(Position(len(events) - 1), 1) == events[-1:]
        again = await log.append(RUN_STREAM, Version(1), [of_draft(events[0])], Origin(cause=None))
        assert again == Appended(positions=[Position(1)], written=0)


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_overview_needs_no_archive(seed: int, open_store, tmp_path: Path) -> None:
    """Scores, newest fold, header and times of an archived run are on the server."""
    events = made_run(seed)
    async with open_store() as store:
        await put(store, events)
        before = await store.overview()
        await archived(store, events[0].run)
    async with open_store(tmp_path / "no home") as store:
        assert await store.overview() == before
        assert before[0].scores
        assert not before[0].damage


# -- appending -------------------------------------------------------------------------------------------------------


async def test_a_late_append_is_answered_from_the_archive(open_store) -> None:
    """The same again has its positions, another event is taken by the stored one, a version beyond is a gap."""
    events = made_run()
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        await archived(store, run)
        log = store.open(run)
        stream = next(one.stream for one in events if one.kind == "planned")
        there = [one for one in events if one.stream == stream]
        same = [of_draft(one) for one in there]
        origin = Origin(cause=None)
        head = await log.head()
        positions = [one.position for one in there]
        assert await log.append(stream, Version(1), same, origin) == Appended(positions=positions, written=0)
        assert await log.append(stream, Version(2), same[1:3], origin) == Appended(positions=positions[1:3], written=0)
        other = draft(Noted(topic="x", facts={}))
        for version in (1, 3, len(there)):
            taken = await log.append(stream, Version(version), [*same[version - 1 : version - 1], other], origin)
            assert taken == Taken(stored=there[version - 1])
        assert await log.append(stream, Version(1), [same[0], other], origin) == Taken(stored=there[1])
        with pytest.raises(VersionGap):
            await log.append(stream, Version(len(there) + 2), [other], origin)
        assert await log.head() == head


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_archived_episode_costs_the_server_a_line(seed: int, open_store, redis_prefix: str) -> None:
    """Of what lies in the archive with its fold the index has no row; of events only the run's own and folds stay."""
    events = made_run(seed)
    run = events[0].run
    async with open_store() as store:
        log = await put(store, events)
        lengths = {stream: len(one.positions) for stream, one in (await log.index()).items()}
        await archived(store, run)
        index = await store._redis.hgetall(index_key(redis_prefix, run))
        assert {name for name in index if name.startswith((b"episode", b"projector"))} == {b"projector"}
        stay = await store._redis.xrange(kept_key(redis_prefix, run))
        assert {fields[b"kind"] for _, fields in stay if fields[b"stream"] != b"run"} == {b"folded"}
        assert {stream: await log.length(stream) for stream in lengths} == lengths
        assert await log.length(StreamId("episode-999")) == await log.length(StreamId("episode-9999")) == 0


async def test_what_was_archived_founds_what_follows(open_store) -> None:
    """An event that was made from an archived one is written; one that was made from what is nowhere is not."""
    events = made_run(5, 24)
    run = events[0].run
    async with open_store() as store:
        log = await put(store, events[:-1])
        await archived(store, run)
        episode = StreamId("episode-1")

        async def founded(stream: StreamId, version: int) -> Appended | Taken:
            basis = Basis(stream=stream, version=Version(version), sha256="not looked at in an archive")
            first, said = Version(await log.length(RUN_STREAM) + 1), draft(Noted(topic="x", facts={}))
            return await log.append(RUN_STREAM, first, [said], Origin(cause=None, basis=basis))

        last = await log.length(episode)
        for place in ((PROJECTOR_STREAM, 1), (PROJECTOR_STREAM, 7), (episode, 1), (episode, last)):
            assert await founded(*place) == Appended(positions=[await log.head()], written=1)
        for place in ((PROJECTOR_STREAM, 999), (episode, last + 1), (episode, 0), (StreamId("episode-99"), 1)):
            with pytest.raises(VersionGap, match="made from"):
                await founded(*place)


async def test_an_archived_episode_can_go_on(open_store) -> None:
    """An event after its last is the next of one stream, whoever wrote it; scores and numbers stay what they were."""
    events = made_run(5, 24)
    run = events[0].run
    async with open_store() as store:
        log = await put(store, events[:-1])
        await archived(store, run)
        [before], index, stream = await store.overview(), await log.index(), StreamId("episode-1")
        there = await log.read_stream(stream)
        more = [draft(Noted(topic="x", facts={}))]
        answer = await log.append(stream, Version(len(there) + 1), more, Origin(cause=None))
        assert answer == Appended(positions=[Position(before.head + 1)], written=1)
        assert (await log.read_stream(stream))[:-1] == there
        assert (await log.index())[stream].positions == [*index[stream].positions, before.head + 1]
        [after] = await store.overview()
        assert (after.scores, after.episodes, after.folds) == (before.scores, before.episodes, before.folds)


async def test_an_episode_across_the_cut_is_one_stream(open_store) -> None:
    """Its first events in the archive, the others on the server: read whole, and appended to as ever."""
    events = made_run(5, 24)
    run = events[0].run
    async with open_store() as store:
        log = await put(store, events[:-1])
        report = await archived(store, run)
        index = await log.index()
        across = [s for s, one in index.items() if one.positions[0] <= report.last < one.positions[-1]]
        for stream in across:
            assert await log.read_stream(stream) == [one for one in await read_all(log) if one.stream == stream]
        folds = [of_draft(one) for one in events if one.kind == "folded"]
        answer = await log.append(PROJECTOR_STREAM, Version(1), folds, Origin(cause=None))
        assert answer == Appended(positions=index[PROJECTOR_STREAM].positions, written=0)
        assert PROJECTOR_STREAM in across


# -- interruptions ---------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """The command ends here."""


@pytest.mark.parametrize("finished", [True, False])
async def test_an_interrupted_archive_is_completed(finished: bool, open_store, redis_prefix: str) -> None:
    """Ended after each step, its first and its last, and given again: the same archive, one note an addition."""
    events = made_run(6, 14)[: None if finished else -1]
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        steps: list[str] = []
        await archived(store, run, None, steps.append)
        assert set(steps) == set(STEPS)
        whole = await read_all(store.open(run))
        await store.delete(run)
        last = {step: place for place, step in enumerate(steps)}
        for place in {steps.index(step) for step in STEPS} | set(last.values()):
            await put(store, events)
            done: list[str] = []

            def stop(step: str, done: list[str] = done, place: int = place) -> None:
                done.append(step)
                if len(done) == place + 1:
                    raise Stopped

            with pytest.raises(Stopped):
                await archived(store, run, None, stop)
            assert [one.data for one in (await read_all(store.open(run)))[: len(events)]] == [
                one.data for one in events
            ]
            report = await archived(store, run)
            log = store.open(run)
            found = await read_all(log)
            assert [(one.position, one.kind) for one in found] == [(one.position, one.kind) for one in whole]
            assert [one.data for one in found if one.kind != "noted"] == [one.data for one in events]
            notes = [one.data for one in found if one.kind == "noted"]
            assert (
                len(notes) == len(set(notes)) == (0 if finished else len([one for one in whole if one.kind == "noted"]))
            )
            assert await held(store, run, redis_prefix) == len(found) - report.trimmed
            assert (checkpoint := await log.checkpoint()) is not None
            assert checkpoint.state.position == report.last
            await store.delete(run)


@pytest.mark.parametrize("step", STEPS)
async def test_a_killed_archive_is_completed(
    step: str, open_store, redis_server: Any, redis_prefix: str, tmp_path: Path
) -> None:
    """SIGKILL at each step, twice at different times: nothing is lost, and the next command completes it."""
    events = made_run(11, 20)[:-1]
    run = events[0].run
    home = tmp_path / "home"
    paths = [str(Path(__file__).parents[2]), *(str(PROGRAM.parents[1] / one) for one in ("plain", "../events/plain"))]
    async with open_store() as store:
        await put(store, events)
        for time in ("1", "2" if step != "checkpoint" else "1"):
            killed = await anyio.run_process(
                [sys.executable, str(PROGRAM), redis_server.url, redis_prefix, run, str(home), step, time],
                check=False, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )  # fmt: skip
            assert killed.returncode == -9 or (time, killed.returncode) == ("2", 0), killed.stderr.decode()
            found = await read_all(store.open(run))
            assert [one.data for one in found if one.kind != "noted"] == [one.data for one in events]
        report = await archived(store, run)
        assert report.trimmed == report.last > 50
        found = await read_all(store.open(run))
        assert [one.data for one in found if one.kind != "noted"] == [one.data for one in events]


async def test_two_archivings_at_once_leave_one_archive(open_store, redis_prefix: str) -> None:
    """One of them may be told to come again; the log is whole whatever happened."""
    events = made_run(5, 24)
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        told: list[str] = []

        async def one() -> None:
            try:
                await archived(store, run)
            except Mismatch as error:
                told.append(str(error))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(one)
        assert all("another process meanwhile" in one for one in told)
        await archived(store, run)
        assert await read_all(store.open(run)) == events
        assert await held(store, run, redis_prefix) == 1


async def test_an_archiving_that_another_has_overtaken_goes_on_from_there(open_store) -> None:
    """Both add the same, then the other one adds more: the slower one neither folds a gap nor fails."""
    events = made_run(5, 24)
    run = events[0].run
    async with open_store() as store:
        await put(store, events)

        async def note(event: Noted) -> None:
            await tell(store.open(run), event)

        slow, fast = [await _Archiving.begun(store, run, None, note, lambda _: None) for _ in range(2)]
        _, last = await slow.last()
        record = slow._index.record

        async def recorded(*given: Any) -> None:
            await fast.add(last)
            await record(*given)
            await fast.add(last)

        slow._index.record = recorded
        await slow.add(last)
        assert slow.there.last == fast.there.last == 2 * archive.ADDITION * archive.SEGMENT
        slow._index.record = record
        await slow.add(last)
        assert slow.there.last == 3 * archive.ADDITION * archive.SEGMENT
        assert await read_all(store.open(run)) == events


async def test_tidying_leaves_what_is_not_recorded_yet(open_store, tmp_path: Path) -> None:
    """Files of another command that is further on stay; those of older additions go."""
    events = made_run(5, 24)
    run = events[0].run
    async with open_store() as store:
        log = await put(store, events[:-20])
        await archived(store, run)
        folder = tmp_path / "home" / "archive" / run
        newer = [folder / "manifest-000000999999.json", folder / "checkpoint-000000999999.json.zst"]
        for one in newer:
            one.write_bytes(b"of another command")
        older = {one.name for one in folder.iterdir() if one.name.startswith(("manifest-", "checkpoint-"))}
        await go_on(log, events[-20:-1])
        report = await archived(store, run)
        names = {one.name for one in folder.iterdir()}
        assert names & older == {one.name for one in newer}
        assert {f"manifest-{report.last:012}.json", "manifest.json", f"checkpoint-{report.last:012}.json.zst"} <= names


# -- damage ----------------------------------------------------------------------------------------------------------


async def test_a_damaged_segment_is_named_and_the_rest_stays_readable(open_store, tmp_path: Path) -> None:
    """Another byte, a cut, another segment, none: file and positions are told; what lies in others is answered."""
    events = made_run()
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        report = await archived(store, run)
        folder = tmp_path / "home" / report.storage
        segment = folder / "000000000014.jsonl.zst"
        whole = segment.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 0xFF
        for damage in (bytes(flipped), whole[:-1], b"", (folder / "000000000021.jsonl.zst").read_bytes(), None):
            if damage is None:
                segment.unlink()
            else:
                segment.write_bytes(damage)
            log = store.open(run)
            with pytest.raises(CorruptSegment, match=r"000000000014\.jsonl\.zst \(positions 8 to 14\) is damaged"):
                await read_all(log)
            assert await read_all(log, 14) == events[14:]
            assert await log.read(Position(1), 5) == events[1:6]
            hurt = next(one.stream for one in events[7:14])
            with pytest.raises(CorruptSegment):
                await log.read_stream(hurt)
            fine = events[30].stream
            assert await log.read_stream(fine) == [one for one in events if one.stream == fine]


async def test_nothing_is_let_go_of_that_does_not_read_back(open_store, redis_prefix: str, tmp_path: Path) -> None:
    """A segment damaged between two commands: the server keeps what it has, until the segment is there again."""
    events = made_run()
    run = events[0].run

    def stop(step: str) -> None:
        if step == "recorded":
            raise Stopped

    async with open_store() as store:
        await put(store, events)
        with pytest.raises(Stopped):
            await archived(store, run, None, stop)
        segment = tmp_path / "home" / "archive" / run / "000000000007.jsonl.zst"
        whole = segment.read_bytes()
        segment.write_bytes(whole[:-3])
        with pytest.raises(CorruptSegment, match=r"positions 1 to 7"):
            await archived(store, run)
        assert await held(store, run, redis_prefix) == len(events)
        assert await read_all(store.open(run)) == events
        segment.write_bytes(whole)
        await archived(store, run)
        assert await held(store, run, redis_prefix) == 1


async def test_an_archive_that_is_elsewhere_is_named(open_store, tmp_path: Path) -> None:
    """On a machine without the folder: one line that names it, for readers and for the command itself."""
    events = made_run()
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        await archived(store, run)
    other = tmp_path / "other"
    async with open_store(other) as store:
        told = re.escape(f"archive at folder {other / 'archive' / run}: there is no such folder on this machine")
        with pytest.raises(ArchiveAway, match=told):
            await read_all(store.open(run))


async def test_a_place_that_holds_another_log_is_left_alone(open_store, tmp_path: Path) -> None:
    """Another run of the same name was archived there: named; its files stay, and the log stays on the server."""
    first, second = made_run(5), made_run(6)
    base = tmp_path / "shared"
    async with open_store() as store:
        await put(store, first)
        await archived(store, first[0].run, str(base))
        keep = {one.name: one.read_bytes() for one in (base / first[0].run).iterdir()}
        await store._redis.flushdb()
        await put(store, second)
        with pytest.raises(Mismatch, match=r"holds the archive of another log of run .* name another place"):
            await archived(store, second[0].run, str(base))
        assert {one.name: one.read_bytes() for one in (base / first[0].run).iterdir()} == keep
        assert await read_all(store.open(second[0].run)) == second


async def test_a_run_has_one_place(open_store, tmp_path: Path) -> None:
    """Another one is refused; without a name it is the one it has."""
    events = made_run(5, 24)
    run = events[0].run
    async with open_store() as store:
        log = await put(store, events[:-20])
        report = await archived(store, run, str(tmp_path / "there"))
        assert report.storage == str(tmp_path / "there" / run)
        with pytest.raises(BadInput, match="one place"):
            await archived(store, run, str(tmp_path / "elsewhere"))
        await go_on(log, events[-20:-1])
        assert (await archived(store, run)).storage == report.storage


async def test_a_log_that_does_not_fold_is_not_archived(open_store, redis_prefix: str) -> None:
    """A digest that the banks do not have: nothing is trimmed."""
    events = made_run()
    place = max(i for i, one in enumerate(events) if one.kind == "folded")
    data = msgspec.json.decode(events[place].data) | {"digest": "0" * 64}
    events[place] = msgspec.structs.replace(events[place], data=canonical(data))
    async with open_store() as store:
        await put(store, events)
        with pytest.raises(Mismatch, match="digest differs"):
            await archived(store, events[0].run)
        assert await read_all(store.open(events[0].run)) == events


@pytest.mark.parametrize("position", [1, 40])
async def test_a_log_that_was_cut_by_hand_is_not_archived(position: int, open_store, redis_prefix: str) -> None:
    """What is missing is told, and nothing more is taken away."""
    events = made_run()
    async with open_store() as store:
        await put(store, events)
        await store._redis.xdel(log_key(redis_prefix, events[0].run), f"{position}-0")
        with pytest.raises(Mismatch, match=f"expected {position}, got {position + 1}|cut by hand"):
            await archived(store, events[0].run)
        assert await held(store, events[0].run, redis_prefix) == len(events) - 1


async def test_an_imported_copy_of_an_archived_log_stands_alone(open_store, tmp_path: Path) -> None:
    """Its notes of the other's archive mean nothing to it: it is archived anew, into its own place."""
    events = made_run(5, 24)
    run = events[0].run
    async with open_store() as store:
        await put(store, events[:-1])
        await archived(store, run)
        await export_log(store.open(run), tmp_path / "log.jsonl")
        whole = await read_all(store.open(run))
        assert any(one.kind == "noted" for one in whole)
        await import_log(tmp_path / "log.jsonl", store, run=RunId("copy"))
        report = await archived(store, RunId("copy"))
        assert report.added == report.last > 50
        there = await read_all(store.open(RunId("copy")))
        assert [one.data for one in there[: len(whole)]] == [one.data for one in whole]
        assert len(there) > len(whole)


# -- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_reader_begins_at_the_checkpoint(seed: int, open_store) -> None:
    """From there on the log makes the same banks as the whole, and no open episode reads a version before it."""
    events = made_run(seed, 30)[:-1]
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        report = await archived(store, run)
        log = store.open(run)
        there = await log.checkpoint()
        assert there is not None
        assert report.checkpoint is not None
        assert there.state.position == report.last == report.checkpoint.position
        rest = [one async for page in log.pages(there.state.position, REPLAY_KINDS) for one in page]
        assert replay(rest, there.state).banks.digest() == replay(events).banks.digest()
        assert there.tally.episodes == len(
            {one.stream for one in events[: report.last] if episode_of(one.stream) is not None}
        )


@pytest.mark.parametrize("damage", ["digest", "bytes", "missing"])
async def test_a_checkpoint_that_cannot_be_used_costs_one_warning(damage: str, open_store, tmp_path: Path) -> None:
    """Readers fold the whole log instead, with the same result."""
    events = made_run()
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        report = await archived(store, run)
        assert report.checkpoint is not None
        file = tmp_path / "home" / report.storage / report.checkpoint.file
        match damage:
            case "digest":
                other = canonical(msgspec.structs.replace(report.checkpoint, digest="0" * 64))
                await store._redis.hset(store.archived(run)._keys[1], "@checkpoint", other)
            case "bytes":
                file.write_bytes(file.read_bytes()[:-1])
            case _:
                file.unlink()
        with structlog.testing.capture_logs() as lines:
            assert await store.open(run).checkpoint() is None
        assert [one["event"] for one in lines] == ["checkpoint_not_used"]
        assert replay(await read_all(store.open(run))).banks.digest() == replay(events).banks.digest()


async def test_a_run_without_an_archive_has_no_checkpoint(open_store) -> None:
    """Nothing to read, nothing to warn of."""
    events = made_run(5, 4)
    async with open_store() as store:
        log = await put(store, events)
        with structlog.testing.capture_logs() as lines:
            assert await log.checkpoint() is None
        assert lines == []


# -- places ----------------------------------------------------------------------------------------------------------


async def test_an_archive_behind_a_url(open_store, redis_prefix: str) -> None:
    """Whatever fsspec reaches: written, read by another process's store, completed, deleted."""
    events = made_run()
    run = events[0].run
    base = f"memory://{redis_prefix}"
    async with open_store() as store:
        await put(store, events)
        report = await archived(store, run, base)
        assert report.storage == f"{base}/{run}"
    async with open_store() as store:
        assert await read_all(store.open(run)) == events
        assert await store.open(run).checkpoint() is not None
        counts = await store.delete(run)
        assert counts["archived files"] == report.segments + 3
        await put(store, events)
        assert (await archived(store, run, base)).segments == report.segments


async def test_a_bucket_is_not_made_by_the_way(open_store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place in a bucket that does not exist is refused, and nothing is let go of; with the bucket it is written."""
    fsspec.register_implementation("buckets", Buckets, clobber=True)
    monkeypatch.setattr(Buckets, "buckets", {"there"})
    monkeypatch.setattr(Buckets, "store", {})
    events = made_run()
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        with pytest.raises(ArchiveAway, match="there is no elsewhere; make it first"):
            await archived(store, run, "buckets://elsewhere/chime")
        assert (await store.archived(run).look()).trimmed == 0
        assert Buckets.buckets == {"there"}
        assert (await archived(store, run, "buckets://there/chime")).trimmed == len(events) - 1
        assert await read_all(store.open(run)) == events


class Buckets(MemoryFileSystem):
    """A store of objects, as fsspec shows one: no root, no folders, and buckets that have to be made."""

    protocol = "buckets"
    root_marker = ""
    buckets: ClassVar[set[str]] = set()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("buckets://").strip("/")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **given: Any) -> None:
        if self._strip_protocol(path).partition("/")[0] not in self.buckets:
            raise FileNotFoundError(path)
        super().pipe_file(path, value, mode, **given)

    def exists(self, path: str, **given: Any) -> bool:
        return self._strip_protocol(path) in self.buckets or super().exists(path, **given)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.buckets.add(self._strip_protocol(path).partition("/")[0])


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        ("ftp://user:secret@example.org/x", "no place in a log"),
        ("nowhere://x", "cannot reach it"),
    ],
)
async def test_a_place_that_is_none_is_refused(base: str, reason: str, open_store, redis_prefix: str) -> None:
    """Before anything is written, and without its password."""
    events = made_run()
    async with open_store() as store:
        await put(store, events)
        with pytest.raises(ChimeError, match=reason) as caught:
            await archived(store, events[0].run, base)
        assert "secret" not in str(caught.value)
        assert await held(store, events[0].run, redis_prefix) == len(events)


async def test_a_deleted_run_leaves_no_archive(open_store, redis_prefix: str, keys_left, tmp_path: Path) -> None:
    """Asked first: how many files; then keys and files are gone, and somebody's own file stays."""
    events = made_run()
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        report = await archived(store, run)
        folder = tmp_path / "home" / report.storage
        files = sorted(one.name for one in folder.iterdir())
        counts = await store.delete(run, dry_run=True)
        assert (counts["events"], counts["archived files"]) == (len(events), len(files))
        assert await read_all(store.open(run)) == events
        (folder / "notes.txt").write_text("mine")
        await store.delete(run)
        assert keys_left() == []
        assert [one.name for one in folder.iterdir()] == ["notes.txt"]
        assert not await store._redis.exists(kept_key(redis_prefix, run))
