"""Where the segments of archived logs lie: a folder, or anything that fsspec reaches.

A place is written down in the log: `archive/<run>` inside the home of whoever reads, an absolute folder, or a URL.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import BufferedWriter
from pathlib import Path
from typing import Protocol, cast
from urllib.parse import urlsplit
from uuid import uuid4

import anyio.to_thread

from events.errors import BadInput, Unreachable
from events.ids import RunId
from infra.redis_client import redacted
from infra.segments import sync_folder

#: the folder of a home that holds archives
HOME_FOLDER = "archive"

#: what lies in a place; anything else there is somebody's own
OURS = re.compile(r"[0-9]{6,}\.jsonl\.zst|manifest(-[0-9]+)?\.json|checkpoint-[0-9]+\.json\.zst")
#: one of them that is being written, or was when its writer was killed
_UNFINISHED = re.compile(rf"\.({OURS.pattern})\.[0-9a-f]{{32}}")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://")
_ADAPTER = "infra.archive_fsspec"


class ArchiveAway(Unreachable):
    """A place that cannot be reached from here, or does not hold what it should."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"archive at {where}: {reason}")


class MissingFile(ArchiveAway):
    """The place is there, a file of it is not."""


class ArchiveStorage(Protocol):
    """One run's place. Files are whole or not there, and durable when `write` returns."""

    @property
    def where(self) -> str:
        """The place, for people."""
        ...

    async def read(self, name: str) -> bytes:
        """The file of that name.

        Raises:
            MissingFile: there is none.
            ArchiveAway: the place cannot be reached.
        """
        ...

    async def write(self, name: str, body: bytes) -> None:
        """Raises: ArchiveAway, the place cannot be written."""
        ...

    async def names(self) -> list[str]:
        """Our files, sorted; none where the place does not exist.

        Raises:
            ArchiveAway: the place cannot be reached.
        """
        ...

    async def remove(self, name: str) -> None:
        """Remove a file, where it is there.

        Raises:
            ArchiveAway: it cannot be removed.
        """
        ...

    async def sweep(self) -> None:
        """Remove what writes have left whose process was killed.

        Raises:
            ArchiveAway: the place cannot be reached.
        """
        ...

    async def clear(self) -> None:
        """Remove our files, and the place where nothing else is in it.

        Raises:
            ArchiveAway: they cannot be removed.
        """
        ...


class FolderStorage:
    """`ArchiveStorage` as a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def where(self) -> str:
        return f"folder {self._folder}"

    async def read(self, name: str) -> bytes:
        """As `ArchiveStorage.read`."""
        try:
            return await anyio.to_thread.run_sync((self._folder / name).read_bytes)
        except FileNotFoundError as error:
            if not self._folder.is_dir():
                raise ArchiveAway(self.where, "there is no such folder on this machine") from error
            raise MissingFile(self.where, f"it has no {name}") from error
        except OSError as error:
            raise ArchiveAway(self.where, str(error)) from error

    async def write(self, name: str, body: bytes) -> None:
        """As `ArchiveStorage.write`."""
        try:
            await anyio.to_thread.run_sync(self._write, name, body)
        except OSError as error:
            raise ArchiveAway(self.where, f"{name} cannot be written: {error}") from error

    def _write(self, name: str, body: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _unfinished(self._folder, name) as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(self._folder / name)
        for folder in (self._folder, self._folder.parent):
            sync_folder(folder)

    async def names(self) -> list[str]:
        """As `ArchiveStorage.names`."""
        try:
            return await anyio.to_thread.run_sync(self._names)
        except OSError as error:
            raise ArchiveAway(self.where, str(error)) from error

    def _names(self) -> list[str]:
        if not self._folder.is_dir():
            return []
        return sorted(one.name for one in self._folder.iterdir() if OURS.fullmatch(one.name))

    async def remove(self, name: str) -> None:
        """As `ArchiveStorage.remove`."""
        try:
            await anyio.to_thread.run_sync(lambda: (self._folder / name).unlink(missing_ok=True))
        except OSError as error:
            raise ArchiveAway(self.where, f"{name} cannot be removed: {error}") from error

    async def sweep(self) -> None:
        """As `ArchiveStorage.sweep`."""
        try:
            await anyio.to_thread.run_sync(self._sweep)
        except OSError as error:
            raise ArchiveAway(self.where, str(error)) from error

    def _sweep(self) -> None:
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            if _UNFINISHED.fullmatch(path.name):
                # Its writer holds it for as long as it lives, or is done with it by now.
                with suppress(OSError), path.open("r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()

    async def clear(self) -> None:
        """As `ArchiveStorage.clear`."""
        try:
            await anyio.to_thread.run_sync(self._clear)
        except OSError as error:
            raise ArchiveAway(self.where, f"it cannot be removed: {error}") from error

    def _clear(self) -> None:
        self._sweep()
        for name in self._names():
            (self._folder / name).unlink(missing_ok=True)
        if self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()


@contextmanager
def _unfinished(folder: Path, name: str) -> Iterator[BufferedWriter]:
    """A file beside its place, held until the body is done; gone then, unless it was given its name."""
    while True:
        path = folder / f".{name}.{uuid4().hex}"
        try:
            with path.open("xb") as file:
                with suppress(OSError):  # where a file system has no locks, nobody sweeps
                    fcntl.flock(file, fcntl.LOCK_EX)
                # Whoever sweeps may have come before the lock.
                if os.fstat(file.fileno()).st_nlink:
                    yield file
                    return
        finally:
            path.unlink(missing_ok=True)


def place_of(run: RunId, base: str | None) -> str:
    """The place of a run's archive: inside the home, or below `base`, a folder or URL.

    Raises:
        BadInput: a URL with a password: places are written down in the log.
    """
    if base is None:
        return f"{HOME_FOLDER}/{run}"
    if not _URL.match(base):
        return str(Path(base).expanduser().absolute() / run)
    if urlsplit(base).password:
        raise BadInput(f"{redacted(base)}: a password has no place in a log; configure it where fsspec looks for it")
    return f"{base.rstrip('/')}/{run}"


def storage_at(place: str, home: Path | None) -> ArchiveStorage:
    """The storage at a place.

    Args:
        place: as `place_of` gives it.
        home: what a place inside the home is relative to.

    Raises:
        BadInput: a URL of a kind that this installation does not reach, or a place that is none.
    """
    if _URL.match(place):
        try:
            adapter = import_module(_ADAPTER)
        except ImportError as error:
            raise BadInput(f"{place} needs fsspec: install chime-runtime[archive] ({error})") from error
        return cast("ArchiveStorage", adapter.FsspecStorage(place))
    path = Path(place)
    if path.is_absolute():
        return FolderStorage(path)
    if home is None or path.parts[:1] != (HOME_FOLDER,) or ".." in path.parts:
        raise BadInput(f"{place!r} is no place of an archive")
    return FolderStorage(home.absolute() / path)
