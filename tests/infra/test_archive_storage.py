"""Archives that are damaged, elsewhere, or of another kind of place: named, left alone, and never let go of."""

import fcntl
import re
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import msgspec
import pytest
from archived_runs import Stopped, archived, go_on, held, made_run, put, read_all
from fsspec.implementations.memory import MemoryFileSystem

from events.codec import canonical
from events.errors import BadInput, ChimeError, Mismatch
from events.ids import Position, RunId
from infra.archive_storage import ArchiveAway, FolderStorage
from infra.export import export_log
from infra.log_import import import_log
from infra.redis_log import kept_key, log_key
from infra.segments import CorruptSegment

pytestmark = pytest.mark.usefixtures("small_archives")


async def test_a_damaged_segment_is_named_and_the_rest_stays_readable(archive_store, tmp_path: Path) -> None:
    """Another byte, a cut, another segment, none: file and positions are told; what lies in others is answered."""
    events = made_run()
    run = events[0].run
    async with archive_store() as store:
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


async def test_nothing_is_let_go_of_that_does_not_read_back(archive_store, redis_prefix: str, tmp_path: Path) -> None:
    """A segment damaged between two commands: the server keeps what it has, until the segment is there again."""
    events = made_run()
    run = events[0].run

    def stop(step: str) -> None:
        if step == "recorded":
            raise Stopped

    async with archive_store() as store:
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


async def test_an_archive_that_is_elsewhere_is_named(archive_store, tmp_path: Path) -> None:
    """On a machine without the folder: one line that names it, for readers and for the command itself."""
    events = made_run()
    run = events[0].run
    async with archive_store() as store:
        await put(store, events)
        await archived(store, run)
    other = tmp_path / "other"
    async with archive_store(other) as store:
        told = re.escape(f"archive at folder {other / 'archive' / run}: there is no such folder on this machine")
        with pytest.raises(ArchiveAway, match=told):
            await read_all(store.open(run))


async def test_a_place_that_holds_another_log_is_left_alone(archive_store, tmp_path: Path) -> None:
    """Another run of the same name was archived there: named; its files stay, and the log stays on the server."""
    first, second = made_run(5), made_run(6)
    base = tmp_path / "shared"
    async with archive_store() as store:
        await put(store, first)
        await archived(store, first[0].run, str(base))
        keep = {one.name: one.read_bytes() for one in (base / first[0].run).iterdir()}
        await store._redis.flushdb()
        await put(store, second)
        with pytest.raises(Mismatch, match=r"holds the archive of another log of run .* name another place"):
            await archived(store, second[0].run, str(base))
        assert {one.name: one.read_bytes() for one in (base / first[0].run).iterdir()} == keep
        assert await read_all(store.open(second[0].run)) == second


async def test_another_log_in_the_place_is_not_read_for_ours(archive_store, tmp_path: Path) -> None:
    """A place overwritten with the sound archive of another run of the same name: refused, its events are not ours."""
    other, ours = made_run(5), made_run(6)
    run = ours[0].run
    async with archive_store() as store:
        await put(store, other)
        await archived(store, run, str(tmp_path / "other"))
        await store._redis.flushdb()
        await put(store, ours)
        await archived(store, run, str(tmp_path / "ours"))
        (manifest,) = (tmp_path / "ours" / run).glob("manifest-*.json")
        for file in (tmp_path / "other" / run).iterdir():
            (manifest.parent / file.name).write_bytes(file.read_bytes())
        manifest.write_bytes((tmp_path / "other" / run / "manifest.json").read_bytes())
        with pytest.raises(Mismatch, match="it is not the manifest that run"):
            await read_all(store.open(run))


async def test_a_run_has_one_place(archive_store, tmp_path: Path) -> None:
    """Another one is refused; without a name it is the one it has."""
    events = made_run(5, 24)
    run = events[0].run
    async with archive_store() as store:
        log = await put(store, events[:-20])
        report = await archived(store, run, str(tmp_path / "there"))
        assert report.storage == str(tmp_path / "there" / run)
        with pytest.raises(BadInput, match="one place"):
            await archived(store, run, str(tmp_path / "elsewhere"))
        await go_on(log, events[-20:-1])
        assert (await archived(store, run)).storage == report.storage


async def test_a_log_that_does_not_fold_is_not_archived(archive_store, redis_prefix: str) -> None:
    """A digest that the banks do not have: nothing is trimmed."""
    events = made_run()
    place = max(i for i, one in enumerate(events) if one.kind == "folded")
    data = msgspec.json.decode(events[place].data) | {"digest": "0" * 64}
    events[place] = msgspec.structs.replace(events[place], data=canonical(data))
    async with archive_store() as store:
        await put(store, events)
        with pytest.raises(Mismatch, match="digest differs"):
            await archived(store, events[0].run)
        assert await read_all(store.open(events[0].run)) == events


@pytest.mark.parametrize("position", [1, 40])
async def test_a_log_that_was_cut_by_hand_is_not_archived(position: int, archive_store, redis_prefix: str) -> None:
    """What is missing is told, and nothing more is taken away."""
    events = made_run()
    async with archive_store() as store:
        await put(store, events)
        await store._redis.xdel(log_key(redis_prefix, events[0].run), f"{position}-0")
        with pytest.raises(Mismatch, match=f"expected {position}, got {position + 1}|cut by hand"):
            await archived(store, events[0].run)
        assert await held(store, events[0].run, redis_prefix) == len(events) - 1


async def test_an_imported_copy_of_an_archived_log_stands_alone(archive_store, tmp_path: Path) -> None:
    """Its notes of the other's archive mean nothing to it: it is archived anew, into its own place."""
    events = made_run(5, 24)
    run = events[0].run
    async with archive_store() as store:
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


def _there(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def test_what_a_killed_write_has_left_is_swept(tmp_path: Path) -> None:
    """A file beside its place goes, unless its writer lives and holds it; what is not ours stays, whatever its name."""
    storage = FolderStorage(tmp_path)
    left = [tmp_path / f".{name}.{'0' * 31}{at}" for at, name in enumerate(["000000000007.jsonl.zst", "manifest.json"])]
    others = [tmp_path / f".{name}" for name in ("manifest.json.mine", f"notes.{'0' * 32}")]
    for one in [*left, *others]:
        one.write_bytes(b"half")
    with left[1].open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        await storage.sweep()
        assert _there(tmp_path) == sorted([left[1], *others])
    await storage.clear()
    assert _there(tmp_path) == sorted(others)


async def test_a_write_that_is_swept_before_it_holds_its_file_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the file and its lock there is an instant: whoever sweeps then does no harm."""
    storage, flock, swept = FolderStorage(tmp_path), fcntl.flock, list[str]()

    def late(file: Any, how: int) -> None:
        if not swept and not how & fcntl.LOCK_NB:
            swept.extend(one.name for one in tmp_path.iterdir())
            storage._sweep()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    await storage.write("manifest.json", b"whole")
    assert swept
    assert [(one.name, one.read_bytes()) for one in _there(tmp_path)] == [("manifest.json", b"whole")]


async def test_an_archive_behind_a_url(archive_store, redis_prefix: str) -> None:
    """Whatever fsspec reaches: written, read by another process's store, completed, deleted."""
    events = made_run()
    run = events[0].run
    base = f"memory://{redis_prefix}"
    async with archive_store() as store:
        await put(store, events)
        report = await archived(store, run, base)
        assert report.storage == f"{base}/{run}"
    async with archive_store() as store:
        assert await read_all(store.open(run)) == events
        assert await store.open(run).checkpoint() is not None
        counts = await store.delete(run)
        assert counts["archived files"] == report.segments + 3
        await put(store, events)
        assert (await archived(store, run, base)).segments == report.segments


async def test_a_bucket_is_not_made_by_the_way(archive_store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place in a bucket that does not exist is refused, and nothing is let go of; with the bucket it is written."""
    fsspec.register_implementation("buckets", Buckets, clobber=True)
    monkeypatch.setattr(Buckets, "buckets", {"there"})
    monkeypatch.setattr(Buckets, "store", {})
    events = made_run()
    run = events[0].run
    async with archive_store() as store:
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
async def test_a_place_that_is_none_is_refused(base: str, reason: str, archive_store, redis_prefix: str) -> None:
    """Before anything is written, and without its password."""
    events = made_run()
    async with archive_store() as store:
        await put(store, events)
        with pytest.raises(ChimeError, match=reason) as caught:
            await archived(store, events[0].run, base)
        assert "secret" not in str(caught.value)
        assert await held(store, events[0].run, redis_prefix) == len(events)


async def test_a_deleted_run_leaves_no_archive(archive_store, redis_prefix: str, keys_left, tmp_path: Path) -> None:
    """Asked first: how many files; then keys and files are gone, and somebody's own file stays."""
    events = made_run()
    run = events[0].run
    async with archive_store() as store:
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
