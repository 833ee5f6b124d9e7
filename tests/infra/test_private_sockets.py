"""A socket's folder is short, and of one user alone."""

from pathlib import Path

import pytest

from infra.private_sockets import is_ours, private_folder


def test_a_new_folder_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made where the system says, and looks like none of anybody else's."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = private_folder("s")
    assert (folder.parent, is_ours(folder)) == (tmp_path, True)
    folder.chmod(0o770)
    assert not is_ours(folder)


def test_what_we_did_not_make_is_not_ours(tmp_path: Path) -> None:
    """Another name, a link, a file, nothing."""
    other, link, file = tmp_path / "other", tmp_path / "chime-link", tmp_path / "chime-file"
    other.mkdir(mode=0o700)
    link.symlink_to(other)
    file.touch(mode=0o700)
    assert [is_ours(one) for one in (other, link, file, tmp_path / "chime-gone")] == [False] * 4
