"""Archives behind a URL: object stores and file systems that fsspec knows. Imported by name: an extra."""

import posixpath
from collections.abc import Callable
from typing import Any, TypeVar

import anyio.to_thread
import fsspec
from fsspec.core import url_to_fs

from events.errors import BadInput
from infra.archive_storage import OURS, ArchiveAway, MissingFile

T = TypeVar("T")


class FsspecStorage:
    """`infra.archive_storage.ArchiveStorage` at a URL; credentials stand where fsspec looks for them.

    Raises:
        BadInput: no such kind of URL, or its package is not installed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            self._files, self._path = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise BadInput(f"{url}: fsspec {fsspec.__version__} cannot reach it: {error}") from error

    @property
    def where(self) -> str:
        return self._url

    async def read(self, name: str) -> bytes:
        """As `infra.archive_storage.ArchiveStorage.read`."""
        try:
            found: bytes = await self._asked(lambda: self._files.cat_file(self._at(name)))
        except FileNotFoundError as error:
            raise MissingFile(self._url, f"it has no {name}") from error
        return found

    async def write(self, name: str, body: bytes) -> None:
        """As `infra.archive_storage.ArchiveStorage.write`."""

        def write() -> None:
            try:
                self._files.pipe_file(self._at(name), body)
            except FileNotFoundError:
                self._make_folder()
                self._files.pipe_file(self._at(name), body)

        await self._asked(write)

    def _make_folder(self) -> None:
        """The place exists. A bucket is nothing that a slip of the pen should make, for good and for money.

        Raises:
            ArchiveAway: its bucket does not exist.
        """
        top = self._path.partition("/")[0]
        # Where paths have a root there are folders and no buckets.
        if not self._files.root_marker and top and not self._files.exists(top):
            raise ArchiveAway(self._url, f"there is no {top}; make it first")
        self._files.makedirs(self._path, exist_ok=True)

    async def names(self) -> list[str]:
        """As `infra.archive_storage.ArchiveStorage.names`."""

        def names() -> list[str]:
            # Another process may have written since.
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path, detail=False)
            except FileNotFoundError:
                return []
            return sorted(name for one in found if OURS.fullmatch(name := posixpath.basename(str(one))))

        return await self._asked(names)

    async def remove(self, name: str) -> None:
        """As `infra.archive_storage.ArchiveStorage.remove`."""

        def remove() -> None:
            if self._files.exists(self._at(name)):
                self._files.rm_file(self._at(name))

        await self._asked(remove)

    async def sweep(self) -> None:
        """As `infra.archive_storage.ArchiveStorage.sweep`: nothing lies beside the files themselves."""

    async def clear(self) -> None:
        """As `infra.archive_storage.ArchiveStorage.clear`."""
        for name in await self.names():
            await self.remove(name)

        def clear() -> None:
            if self._files.exists(self._path) and not self._files.ls(self._path):
                self._files.rmdir(self._path)

        await self._asked(clear)

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    async def _asked(self, ask: Callable[[], T]) -> T:
        """What `ask` gives, in a thread; every file system has errors of its own.

        Raises:
            FileNotFoundError: a file that is not there.
            ArchiveAway: anything else.
        """

        def asked() -> Any:
            try:
                return ask()
            except (FileNotFoundError, ArchiveAway):
                raise
            except Exception as error:  # the border to a storage's own library: each has errors of its own
                raise ArchiveAway(self._url, f"{type(error).__name__}: {error}") from error

        found: T = await anyio.to_thread.run_sync(asked)
        return found
