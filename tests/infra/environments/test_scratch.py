"""Temporary folders of hosts: kept for as long as somebody holds them, swept after that, whoever made them."""

import os
import subprocess
import sys
import tempfile
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
    make, made = tempfile.mkdtemp, list[str]()

    def swept_once(prefix: str) -> str:
        made.append(make(prefix=prefix))
        if len(made) == 1:
            sweep()
        return made[-1]

    monkeypatch.setattr("tempfile.mkdtemp", swept_once)
    scratch = Scratch()
    assert list(place.iterdir()) == [scratch.path]
    assert [Path(one) == scratch.path for one in made] == [False, True]
    scratch.remove()


async def test_a_program_by_itself_leaves_no_files(misbehaving: Callable[[], ChildEnvironment], place: Path) -> None:
    """Outside the pool too, a program's temporary files go with it."""
    environment = misbehaving()
    async with environment.process():
        assert len(folders(place)) == 1
    assert folders(place) == []
