"""Bodies in a folder: whole files only, and the owner's alone."""

import errno
import os
from pathlib import Path

import pytest

from events.ids import RunId
from infra.blobs import FolderBlobs

RUN = RunId("r-1")


def files(folder: Path) -> list[str]:
    """Every file below a folder."""
    return [one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()]


async def test_a_body_is_a_file_named_by_its_hash(tmp_path: Path) -> None:
    """Two levels below the run, compressed."""
    name = await FolderBlobs(tmp_path).put(RUN, b"a" * 10_000)
    assert files(tmp_path) == [f"blobs/r-1/{name[:2]}/{name}.zst"]
    assert (tmp_path / files(tmp_path)[0]).stat().st_size < 100


async def test_a_full_disk_leaves_no_part_of_a_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error passes through, no file is there, and the next try succeeds."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    blobs = FolderBlobs(tmp_path)
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            await blobs.put(RUN, b"body")
        assert files(tmp_path) == []
    assert await blobs.get(RUN, await blobs.put(RUN, b"body")) == b"body"


async def test_a_file_of_somebody_else_is_no_body(tmp_path: Path) -> None:
    """What a crash or an editor leaves in the folder is not listed."""
    blobs = FolderBlobs(tmp_path)
    name = await blobs.put(RUN, b"body")
    folder = tmp_path / "blobs" / RUN / name[:2]
    for other in (f".{name}.zst.abc", f"{name}.zst~", "notes.zst"):
        (folder / other).touch()
    assert await blobs.hashes(RUN) == [name]
