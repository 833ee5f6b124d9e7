"""Logs on disk: read in every form, and told apart from what is damaged or none."""

import hashlib
import json
from pathlib import Path

import pytest
import zstandard
from disk_logs import RUN, START, each_form, made_log, noted, read_all

from events.codec import canonical, export_line
from events.errors import BadInput, VersionGap
from events.ids import Position, StreamId, Version, episode_stream
from infra import segment_bytes
from infra.clock import SystemClock
from infra.export import export_log
from infra.list_log import ListLogStore
from infra.log_import import import_log
from infra.segments import CorruptSegment, SegmentLog, UnreadableExport, read_manifest, verify_segments
from runtime.ports import Origin


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
    noted = [one for one in await read_all(log) if one.kind == "noted"]
    assert [one.position for one in noted] == list(range(5, 250, 4))
    assert [one async for page in log.pages(START, frozenset({"noted"})) for one in page] == noted
    assert await log.read(START, 300, frozenset({"noted"})) == noted


@pytest.mark.parametrize("piece", [1, 2, 7, 90, 700, 5000])
async def test_a_line_may_lie_in_any_pieces_of_its_file(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several lines in one piece, one line in many, ends on edges: the same events, of any kinds, from anywhere."""
    log = await made_log(30)
    await export_log(log, tmp_path / "run.jsonl")
    monkeypatch.setattr(segment_bytes, "_CHUNK", piece)
    there = SegmentLog(tmp_path / "run.jsonl")
    for after in (0, 1, 12, 29):
        for kinds in (None, frozenset({"noted"}), frozenset({"planned", "run_started"})):
            expected = [one for one in await read_all(log, after) if kinds is None or one.kind in kinds]
            assert [one async for page in there.pages(Position(after), kinds) for one in page] == expected


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


async def test_the_manifest_is_read_by_itself(tmp_path: Path, small_segments: None) -> None:
    """Whoever wants the last chain or the counts needs no segment."""
    await export_log(await made_log(12), tmp_path / "folder")
    for one in (tmp_path / "folder").glob("*.zst"):
        one.unlink()
    manifest = read_manifest(tmp_path / "folder")
    assert (manifest.run, manifest.events, [one.last for one in manifest.segments]) == (RUN, 12, [5, 10, 12])


# -- damage -----------------------------------------------------------------------------------------------------------


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
