"""Temporary folders of hosts: kept for as long as somebody holds them, swept after that, whoever made them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.environments.child import ChildEnvironment
from infra.environments.scratch import PREFIX, Scratch, sweep


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's temporary folder, for this test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def folders(place: Path) -> list[Path]:
    """Those of hosts."""
    return list(place.glob(f"{PREFIX}*"))


def test_a_folder_in_use_is_not_swept(place: Path) -> None:
    """Neither by the process that made it nor, once that is gone, while the one it was passed to lives."""
    ours = Scratch()
    theirs = Scratch()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[theirs.fd]) as process:
        os.close(theirs.fd)
        sweep()
        assert (ours.path.is_dir(), theirs.path.is_dir()) == (True, True)
        process.kill()
    (theirs.path / "inner").mkdir()
    (theirs.path / "inner" / "file").touch()
    sweep()
    assert (ours.path.is_dir(), theirs.path.exists()) == (True, False)
    ours.remove()
    assert list(place.iterdir()) == []


def test_only_our_folders_are_swept(place: Path) -> None:
    """A file of that name, a link to a folder of somebody's, and other folders stay as they are."""
    (place / "other").mkdir()
    (place / f"{PREFIX}file").touch()
    (place / f"{PREFIX}link").symlink_to(place / "other")
    sweep()
    assert len(list(place.iterdir())) == 3


def test_a_folder_swept_before_it_is_held_is_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep between making and holding a folder costs another try, never a folder that is gone."""
    sweeps = iter((True, False))

    def opened(path: Path, flags: int) -> int:
        if next(sweeps):
            monkeypatch.setattr("os.open", kept)
            sweep()
            monkeypatch.setattr("os.open", opened)
        return kept(path, flags)

    kept = os.open
    monkeypatch.setattr("os.open", opened)
    scratch = Scratch()
    assert list(place.iterdir()) == [scratch.path]
    scratch.remove()


async def test_a_program_by_itself_leaves_no_files(misbehaving: Callable[[], ChildEnvironment], place: Path) -> None:
    """Outside the pool too, a program's temporary files go with it."""
    environment = misbehaving()
    async with environment.process():
        assert len(folders(place)) == 1
    assert folders(place) == []
