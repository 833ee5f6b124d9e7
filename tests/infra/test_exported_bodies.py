"""Bodies and recorded calls that go along with a log on disk."""

from collections.abc import Callable
from pathlib import Path

import pytest
from disk_logs import RUN, bytes_of, call, each_form, made_log

from events.errors import BadInput
from events.ids import RunId
from infra.blobs import FolderBlobs
from infra.calls import MemoryCalls
from infra.clock import SystemClock
from infra.export import export_log
from infra.exported_bodies import ExportedBlobs, ExportedCalls, bodies_folder
from infra.list_log import ListLogStore
from infra.log_import import import_log
from infra.segments import SegmentLog
from runtime.errors import MissingBlob


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
    with pytest.raises(BadInput, match="read-only"):
        await there.put_many(RUN, [b"x"])
    with pytest.raises(BadInput, match="read-only"):
        await recorded_calls.put_with(RUN, "f", b"x", {}, there)
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


@pytest.mark.parametrize(
    "damage",
    [lambda _: b"x", lambda body: body + b"\0", lambda body: body[:-1], lambda body: body * 2, lambda _: b""],
)
async def test_a_damaged_body_stops_the_import_before_it_begins(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """Other bytes, one more, one fewer: named by its hash; neither log nor bodies are written."""
    blobs, calls = await with_bodies(tmp_path / "home")
    await export_log(await made_log(3), tmp_path / "folder", blobs=blobs, calls=calls)
    name = (await blobs.hashes(RUN))[1]
    path = tmp_path / "folder" / "blobs" / f"{name}.zst"
    path.write_bytes(damage(path.read_bytes()))
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
