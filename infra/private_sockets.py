"""Folders of ours alone for unix sockets: a socket's path is short, and a home's may be long."""

import os
import stat
import tempfile
from pathlib import Path

from events.errors import Unreachable

#: a unix socket's path, with its closing zero
_LONGEST = 107
_PREFIX = "chime-"
#: where every user may make a folder of its own
_TEMPORARY = "/tmp"  # noqa: S108 - the folder made inside is private


def private_folder(socket: str) -> Path:
    """A new folder for a socket of that name, which nobody else can look into.

    Raises:
        Unreachable: no folder that we may write to has a short enough path; says what to set.
    """
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    for folder in (own, tempfile.gettempdir(), _TEMPORARY):
        if folder and os.access(folder, os.W_OK) and len(f"{folder}/{_PREFIX}12345678/{socket}") <= _LONGEST:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
    raise Unreachable("no writable folder with a short path for the server's socket; set TMPDIR to one")


def is_ours(folder: Path) -> bool:
    """Whether `folder` is one that we made for a socket, and that nobody else can write to."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    return folder.name.startswith(_PREFIX) and private and found.st_uid == os.getuid()
