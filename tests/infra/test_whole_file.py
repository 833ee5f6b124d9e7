"""Files that appear whole, on file systems that have files without a name and on those that have none."""

import os
import signal
from pathlib import Path

import pytest

from infra import whole_file as module
from infra.whole_file import whole_file


@pytest.fixture(params=["nameless", "named"])
def named(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the system has no files without a name."""
    if request.param == "named":
        monkeypatch.setattr(module, "_NAMELESS", 0)
    return request.param == "named"


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("before", [b"", b"what was there"])
def test_it_appears_at_the_end(tmp_path: Path, before: bytes) -> None:
    """Until then a reader sees what was there, or nothing; then all of it, and no other file."""
    path = tmp_path / "one"
    if before:
        path.write_bytes(before)
    with whole_file(path, 0o600) as file:
        file.write(b"all of it")
        file.flush()
        assert path.exists() == bool(before)
        assert not before or path.read_bytes() == before
    assert path.read_bytes() == b"all of it"
    assert before or path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("named")
def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    """Of the body, as of the disk."""
    path = tmp_path / "one"
    path.write_bytes(b"before")

    def cut_short() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        cut_short()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("named")
def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    """Its name is in the error."""
    with pytest.raises(FileNotFoundError, match="gone"), whole_file(tmp_path / "gone" / "one"):
        pass


def test_a_system_that_names_no_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc a file is written beside its place, and none without a name is begun."""
    monkeypatch.setattr(module, "_OPEN_FILES", tmp_path / "none")
    with whole_file(tmp_path / "one") as file:
        file.write(b"all of it")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


@pytest.mark.parametrize("before", [b"", b"what was there"])
def test_a_kill_leaves_no_part(tmp_path: Path, named: bool, before: bytes) -> None:
    """SIGKILL in the middle of a write: nothing of it, wherever there are files without a name."""
    if before:
        (tmp_path / "one").write_bytes(before)
    child = os.fork()
    if child == 0:
        with whole_file(tmp_path / "one") as file:
            file.write(b"half")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    left = [path.name for path in tmp_path.iterdir()]
    assert named or left == ["one"][: len(before)]
    assert not before or (tmp_path / "one").read_bytes() == before
