"""Logs whose beginning lies in an archive: read as before, whatever was interrupted, damaged or lost on the way."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import structlog
from archived_runs import SEEDS, START, Stopped, archived, go_on, held, made_run, put, read_all

from events.codec import canonical, content_sha256, draft
from events.errors import Mismatch, VersionGap
from events.fold import REPLAY_KINDS, replay
from events.ids import PROJECTOR_STREAM, RUN_STREAM, Position, RunId, StreamId, Version, episode_of
from events.kinds import Noted
from events.log import Draft, Recorded
from infra import archive
from infra.archive import _Archiving
from infra.clock import SystemClock
from infra.export import export_log
from infra.list_log import ListLogStore
from infra.log_import import import_log
from infra.redis_log import RedisLogStore, index_key, kept_key, log_key
from infra.segments import SegmentLog, verify_segments
from runtime.ports import Appended, Basis, Origin, Taken
from workers.run_stream import tell

PROGRAM = Path(__file__).parent / "plain" / "archived_runs.py"
STEPS = ("segment", "checkpoint", "manifest", "recorded", "noted", "trimmed")


pytestmark = pytest.mark.usefixtures("small_archives")


def of_draft(one: Recorded) -> Draft:
    return Draft(kind=one.kind, schema=one.schema, data=one.data, sha256=content_sha256(one.kind, one.data))


# -- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_finished_run_reads_as_before(seed: int, archive_store, redis_prefix: str, tmp_path: Path) -> None:
    """Pages, reads, streams, index, banks and export from archive and server together; only its last event stays."""
    events = made_run(seed)
    run = events[0].run
    async with archive_store() as store:
        log = await put(store, events)
        index = await log.index()
        report = await archived(store, run)
        assert (report.last, report.trimmed, report.added) == (len(events) - 1,) * 3
        assert await held(store, run, redis_prefix) == 1
    async with archive_store() as store:
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
async def test_an_open_run_goes_on(seed: int, archive_store, redis_prefix: str) -> None:
    """Archived at several moments while it goes on: every event comes once, in order, and the banks are the same."""
    events = made_run(seed, 24)
    run = events[0].run
    async with archive_store() as store:
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


async def test_an_export_of_an_archive_is_the_log(archive_store, tmp_path: Path) -> None:
    """The folder itself is an export: read by path, verified, imported elsewhere under another name."""
    events = made_run()
    async with archive_store() as store:
        await put(store, events)
        report = await archived(store, events[0].run)
    folder = tmp_path / "home" / report.storage
    assert all(one.problem is None for one in await verify_segments(folder))
    assert await read_all(SegmentLog(folder)) == events[:-1]
    elsewhere = ListLogStore(SystemClock())
    await import_log(folder, elsewhere, run=RunId("other"))
    assert await elsewhere.open(RunId("other")).head() == len(events) - 1


async def test_the_runs_own_stream_stays_on_the_server(archive_store, tmp_path: Path) -> None:
    """Header, seeds and notes are read without the archive, in order and page by page."""
    events = made_run(18)
    run = events[0].run
    async with archive_store() as store:
        await put(store, events)
        await archived(store, run)
    own = [one for one in events if one.stream == RUN_STREAM]
    async with archive_store(tmp_path / "no home") as store:
        log = store.open(run)
        assert await log.read_stream(RUN_STREAM) == own
        assert await log.read(START, 1) == events[:1]
        assert await log.read(Position(len(events) - 1), 1) == events[-1:]
        again = await log.append(RUN_STREAM, Version(1), [of_draft(events[0])], Origin(cause=None))
        assert again == Appended(positions=[Position(1)], written=0)


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_overview_needs_no_archive(seed: int, archive_store, tmp_path: Path) -> None:
    """Scores, newest fold, header and times of an archived run are on the server."""
    events = made_run(seed)
    async with archive_store() as store:
        await put(store, events)
        before = await store.overview()
        await archived(store, events[0].run)
    async with archive_store(tmp_path / "no home") as store:
        assert await store.overview() == before
        assert before[0].scores
        assert not before[0].damage


# -- appending -------------------------------------------------------------------------------------------------------


async def test_a_late_append_is_answered_from_the_archive(archive_store) -> None:
    """The same again has its positions, another event is taken by the stored one, a version beyond is a gap."""
    events = made_run()
    run = events[0].run
    async with archive_store() as store:
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
async def test_an_archived_episode_costs_the_server_a_line(seed: int, archive_store, redis_prefix: str) -> None:
    """Of what lies in the archive with its fold the index has no row; of events only the run's own and folds stay."""
    events = made_run(seed)
    run = events[0].run
    async with archive_store() as store:
        log = await put(store, events)
        lengths = {stream: len(one.positions) for stream, one in (await log.index()).items()}
        await archived(store, run)
        index = await store._redis.hgetall(index_key(redis_prefix, run))
        assert {name for name in index if name.startswith((b"episode", b"projector"))} == {b"projector"}
        stay = await store._redis.xrange(kept_key(redis_prefix, run))
        assert {fields[b"kind"] for _, fields in stay if fields[b"stream"] != b"run"} == {b"folded"}
        assert {stream: await log.length(stream) for stream in lengths} == lengths
        assert await log.length(StreamId("episode-999")) == await log.length(StreamId("episode-9999")) == 0


async def test_what_was_archived_founds_what_follows(archive_store) -> None:
    """An event that was made from an archived one is written; one that was made from what is nowhere is not."""
    events = made_run(5, 24)
    run = events[0].run
    async with archive_store() as store:
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


async def test_an_archived_episode_can_go_on(archive_store) -> None:
    """An event after its last is the next of one stream, whoever wrote it; scores and numbers stay what they were."""
    events = made_run(5, 24)
    run = events[0].run
    async with archive_store() as store:
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


async def test_an_episode_across_the_cut_is_one_stream(archive_store) -> None:
    """Its first events in the archive, the others on the server: read whole, and appended to as ever."""
    events = made_run(5, 24)
    run = events[0].run
    async with archive_store() as store:
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


@pytest.mark.parametrize("finished", [True, False])
async def test_an_interrupted_archive_is_completed(finished: bool, archive_store, redis_prefix: str) -> None:
    """Ended after each step, its first and its last, and given again: the same archive, one note an addition."""
    events = made_run(6, 14)[: None if finished else -1]
    run = events[0].run
    async with archive_store() as store:
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


async def test_a_server_that_lost_its_tail_reads_its_archive(archive_store, redis_prefix: str, tmp_path: Path) -> None:
    """It knows an older addition than the place holds: nothing of the log is missing, and what comes is added."""
    events = made_run(6, 24)
    run = events[0].run
    async with archive_store() as store:
        log = await put(store, events[:60])
        report = await archived(store, run)
        keys = [key(redis_prefix, run) for key in (log_key, index_key, kept_key)]
        before = {key: await store._redis.dump(key) for key in keys}
        known = await read_all(log)
        await go_on(log, events[60:100])
        later = await archived(store, run)
        assert later.last > report.last + 7
        for key, there in before.items():
            await store._redis.restore(key, 0, there, replace=True)
        log = store.open(run)
        assert await read_all(log) == known
        assert [one.position for one in await log.read(START, 9)] == list(range(1, 10))
        await go_on(log, events[60:-1])
        whole = await read_all(log)
        again = await archived(store, run)
        assert again.last > report.last + 7
        assert await read_all(store.open(run), again.trimmed) == (await read_all(log))[again.trimmed :]
        found = await read_all(store.open(run))
        assert found[: len(whole)] == whole
        assert [one.data for one in found if one.kind != "noted"] == [one.data for one in events[:-1]]
        assert (await store.open(run).checkpoint()).state.position == again.last
    folder = tmp_path / "home" / report.storage
    assert all(one.problem is None for one in await verify_segments(folder))
    # What the server lost is still there, beside what took its place.
    assert list(folder.glob(f"{'?' * 12}.jsonl.zst"))
    assert list(folder.glob(f"{'?' * 13}.jsonl.zst"))


@pytest.mark.parametrize("noticed", ["read", "pages", "wait", "append", "founded append"])
async def test_a_reader_forgets_an_archive_that_the_server_has_lost(
    noticed: str, archive_store, redis_prefix: str
) -> None:
    """The server is back before its newest addition and goes on otherwise: told once, then read as the log is now."""
    events = made_run(6, 24)
    run = events[0].run
    async with archive_store() as store:
        log = await put(store, events[:60])
        await archived(store, run)
        keys = [key(redis_prefix, run) for key in (log_key, index_key, kept_key)]
        before = {key: await store._redis.dump(key) for key in keys}
        await go_on(log, events[60:100])
        lost = await archived(store, run)
        reader = store.open(run)
        (*_, fold) = [one for one in await read_all(reader) if one.kind == "folded"]
        for key, there in before.items():
            await store._redis.restore(key, 0, there, replace=True)
        other = [draft(Noted(topic="x", facts={}))]
        match noticed:
            case "read":
                asked = reader.read(lost.head, 9)
            case "pages":
                asked = read_all(reader, lost.head)
            case "wait":
                asked = reader.wait(lost.head, 0.001)
            case "append":
                asked = reader.append(PROJECTOR_STREAM, Version(fold.version + 1), other, Origin(cause=None))
            case _:
                sha256 = content_sha256(fold.kind, fold.data)
                basis = Basis(stream=PROJECTOR_STREAM, version=fold.version, sha256=sha256)
                asked = reader.append(StreamId("episode-99"), Version(1), other, Origin(cause=None, basis=basis))
        with pytest.raises(VersionGap):
            await asked
        for number in range(lost.head):
            await tell(log, Noted(topic="other", facts={"number": number}))
        found = await read_all(reader)
        assert found == await read_all(store.open(run))
        assert found[-1].position > lost.head


@pytest.mark.parametrize("step", STEPS)
async def test_a_killed_archive_is_completed(
    step: str, archive_store, redis_server: Any, redis_prefix: str, tmp_path: Path
) -> None:
    """SIGKILL at each step, twice at different times: nothing is lost, and the next command completes it."""
    events = made_run(11, 20)[:-1]
    run = events[0].run
    home = tmp_path / "home"
    paths = [str(Path(__file__).parents[2]), *(str(PROGRAM.parents[1] / one) for one in ("plain", "../events/plain"))]
    async with archive_store() as store:
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


async def test_two_archivings_at_once_leave_one_archive(archive_store, redis_prefix: str) -> None:
    """One of them may be told to come again; the log is whole whatever happened."""
    events = made_run(5, 24)
    run = events[0].run
    async with archive_store() as store:
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


async def begun(store: RedisLogStore, run: RunId) -> _Archiving:
    """An archiving that has looked at the run's log and done nothing yet."""
    return await _Archiving.begun(store, run, None, lambda event: tell(store.open(run), event), lambda _: None)


async def test_an_archiving_that_another_has_overtaken_goes_on_from_there(archive_store) -> None:
    """Both add the same, then the other one adds more: the slower one neither folds a gap nor fails."""
    events = made_run(5, 24)
    run = events[0].run
    async with archive_store() as store:
        await put(store, events)
        slow, fast = await begun(store, run), await begun(store, run)
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


async def test_an_archiving_that_another_has_finished_says_so(archive_store) -> None:
    """What it would add is there before it has begun: its fold does not begin at a checkpoint further on."""
    events = made_run(5, 24)
    run = events[0].run
    async with archive_store() as store:
        await put(store, events)
        slow = await begun(store, run)
        _, last = await slow.last()
        await archived(store, run)
        checkpoint = await store.open(run).checkpoint()
        with pytest.raises(Mismatch, match="archived by another process meanwhile"):
            async with slow.alone():
                await slow.add(last)
        assert checkpoint is not None
        assert (await store.open(run).checkpoint()).tally == checkpoint.tally
        assert await read_all(store.open(run)) == events


async def test_tidying_leaves_what_is_not_recorded_yet(archive_store, tmp_path: Path) -> None:
    """Files of another command that is further on stay; those of older additions go."""
    events = made_run(5, 24)
    run = events[0].run
    async with archive_store() as store:
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


# -- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_reader_begins_at_the_checkpoint(seed: int, archive_store) -> None:
    """From there on the log makes the same banks as the whole, and no open episode reads a version before it."""
    events = made_run(seed, 30)[:-1]
    run = events[0].run
    async with archive_store() as store:
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
async def test_a_checkpoint_that_cannot_be_used_costs_one_warning(damage: str, archive_store, tmp_path: Path) -> None:
    """Readers fold the whole log instead, with the same result."""
    events = made_run()
    run = events[0].run
    async with archive_store() as store:
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


async def test_a_run_without_an_archive_has_no_checkpoint(archive_store) -> None:
    """Nothing to read, nothing to warn of."""
    events = made_run(5, 4)
    async with archive_store() as store:
        log = await put(store, events)
        with structlog.testing.capture_logs() as lines:
            assert await log.checkpoint() is None
        assert lines == []
