"""Temporary folders that do not outlive the processes that use them, however these end.

Whoever uses a folder holds a lock on it, and the kernel drops the lock when the last holder is gone. So a folder whose
lock is free belongs to nobody, and whoever comes next may sweep it: no pid is stored that another process may have by
then. The folders are in the machine's temporary folder, not in a home, because locks and sockets work there and homes
on one machine then clear up after one another.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "chime-host-"

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Scratch:
    """A private folder for temporary files, in use until `remove`.

    Pass `fd` on to the process that works in it: then it is in use for as long as that process lives, whatever becomes
    of us.
    """

    def __init__(self) -> None:
        found: tuple[Path, int] | None = None
        while found is None:
            found = _made()
        self.path, self.fd = found

    def remove(self) -> None:
        """The folder and all in it are gone, also where somebody still writes there; once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.fd)


def sweep() -> None:
    """Remove the folders of this user that nobody holds any more. Blocking."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # gone meanwhile, another user's, in use, or on a disk without locks
            fd = os.open(path, _OPEN)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_uid == os.getuid():
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)


def _made() -> tuple[Path, int] | None:
    """A new folder and a descriptor that holds it; None where a sweep came between making and holding."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        fd = os.open(path, _OPEN)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        return path, fd  # a disk without locks: no sweep can lock it either, and ours is left to `remove`
    if not path.is_dir():
        os.close(fd)
        return None
    return path, fd
