"""Files that appear whole: nobody ever reads a part of one, and a process that is killed leaves none either.

The bytes go into a file without a name, which Linux and most of its file systems have, and get their name at the end;
where something else has that name already, a second one for an instant. Elsewhere they are written beside their place,
under a name that begins with a dot and that a kill leaves there.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

#: files without a name, and the folder that such a file is named from; 0 where the system has none
_NAMELESS, _OPEN_FILES = getattr(os, "O_TMPFILE", 0), Path("/proc/self/fd")


@contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Open for writing; after the body its bytes are on the disk, under `path` in place of what was there.

    The name is on the disk when the file system writes its folder, or whoever wants it sooner asks for that.

    Args:
        path: its folder exists.
        mode: of the file, before the process's umask.

    Raises:
        OSError: the disk is full, or the folder cannot be written; nothing is left behind, as after any other error.
    """
    beside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        descriptor, named = _opened(path.parent, beside, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
            named = named or _name(descriptor, path, beside)
        if named:
            beside.replace(path)
    finally:
        with suppress(OSError):  # a file system that is read-only refuses this too: the first error is the one
            beside.unlink(missing_ok=True)


def _opened(folder: Path, beside: Path, mode: int) -> tuple[int, bool]:
    """A file without a name, or the one `beside`; whether it has one."""
    if _NAMELESS and _OPEN_FILES.is_dir():
        with suppress(OSError):  # the file system has none, or refuses the folder: the next line says which
            return os.open(folder, _NAMELESS | os.O_WRONLY, mode), False
    return os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), True


def _name(descriptor: int, path: Path, beside: Path) -> bool:
    """Give a file without a name its own where that is free; else the one `beside`, and True."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for place in (path, beside):
            with suppress(FileExistsError):
                # A folder is named so that the link is followed: Python's plain link() does not.
                os.link(_OPEN_FILES / str(descriptor), place.name, dst_dir_fd=folder, follow_symlinks=True)
                return place == beside
    finally:
        os.close(folder)
    raise FileExistsError(str(beside))
