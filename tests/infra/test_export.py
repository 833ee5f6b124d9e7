"""Logs onto disk: what is replaced, what is left alone, what a full disk leaves."""

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from disk_logs import NAMES, RUN, bytes_of, each_form, made_log, names_in, noted

from events.errors import BadInput
from events.ids import Position, RunId, StreamId, Version
from events.log import Recorded
from infra.clock import SystemClock
from infra.csv_rows import export_csv
from infra.export import export_log
from infra.list_log import ListLog
from infra.segments import SegmentLog
from runtime.ports import Origin


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
