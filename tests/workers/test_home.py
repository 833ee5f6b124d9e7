"""A home is refused by one rule: what a command says before it starts is what `chime doctor` says."""

import errno
import os
from pathlib import Path

import anyio
import pytest

from events.errors import BadInput
from workers.doctor import examine
from workers.home import fault, opened
from workers.layers import Flags, resolve


def made(folder: Path, what: str) -> str:
    """A home of each kind, as a user would name it."""
    match what:
        case "a broken link":
            (folder / "link").symlink_to("nowhere")
            return "link"
        case "below a broken link":
            (folder / "link").symlink_to("nowhere")
            return "link/home"
        case "a circle of links":
            (folder / "link").symlink_to("link")
            return "link"
        case "a file":
            (folder / "file").write_text("")
            return "file"
        case "below a file":
            (folder / "file").write_text("")
            return "file/home"
        case "no place for files":
            return "/proc/chime"
        case "below no place for files":
            return "/proc/self/task/chime/home"
        case "a name that is too long":
            return "n" * 300
        case _:
            raise AssertionError(what)


REFUSED = [
    ("a broken link", "link to nowhere, which is not there"),
    ("below a broken link", "link to nowhere, which is not there"),
    ("a circle of links", "link"),
    ("a file", "is a file"),
    ("below a file", "is a file"),
    ("no place for files", "/proc cannot be written"),
    ("below no place for files", "cannot be written"),
    ("a name that is too long", "too long"),
]


@pytest.mark.parametrize(("what", "why"), REFUSED)
def test_doctor_and_commands_agree(tmp_path, what, why):
    """A home that cannot be one is refused when it is opened, and is a failure of `doctor` in the same words."""
    resolved = resolve(Flags(named={"home": ("--home", made(tmp_path, what))}), {}, tmp_path)
    with pytest.raises(BadInput) as refused:
        opened(resolved.home)
    assert why in str(refused.value)
    assert "--home or CHIME_HOME" in str(refused.value)

    async def row():
        return next(row for row in [row async for row in examine(resolved, {})] if row.check == "home")

    told = anyio.run(row)
    assert told.status == "fail"
    assert told.detail in str(refused.value)
    assert "--home or CHIME_HOME" in told.fix


def test_a_folder_without_permission(tmp_path, monkeypatch):
    """A folder that is not ours to write is refused; root, who may all, is told so by the file system only."""

    def refuse(*_args, **_named):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    assert fault(tmp_path / "home") == f"{tmp_path} is read-only"


def test_looking_leaves_nothing(tmp_path):
    """A home that can be made is none yet once that was found out; opening makes it, for its owner alone."""
    assert fault(tmp_path / "a" / "home") is None
    assert list(tmp_path.iterdir()) == []
    home = opened(tmp_path / "a" / "home")
    assert home.stat().st_mode & 0o777 == 0o700
    assert opened(home) == home
    assert list(home.iterdir()) == []


def test_a_link_to_a_folder_is_a_home(tmp_path):
    """A home may lie elsewhere."""
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    assert fault(tmp_path / "link") is None


def test_a_null_character(tmp_path):
    """A name that no file can have is refused before it is looked for."""
    with pytest.raises(BadInput, match="null character"):
        resolve(Flags(named={"home": ("--home", "a\0b")}), {}, tmp_path)


def test_the_home_of_nobody(tmp_path):
    """`~name` of nobody's is refused, for every path that people write."""
    with pytest.raises(BadInput, match="no home folder of that name"):
        resolve(Flags(named={"home": ("--home", "~nobody-of-that-name/x")}), {}, tmp_path)
    with pytest.raises(BadInput, match="no home folder of that name"):
        resolve(Flags(file="~nobody-of-that-name/x"), {}, tmp_path)
