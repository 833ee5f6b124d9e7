"""The bodies of an export: `blobs/<hash>.zst` and `calls.jsonl`, one recorded model call a line, by field.

They lie inside a folder export, and in `<name>.bodies` beside a file `<name>.jsonl` or `<name>.jsonl.zst`.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import anyio.to_thread
import msgspec
from msgspec import Struct

from events.errors import BadInput
from events.ids import RunId
from infra.blobs import HASH, packed, unpacked
from infra.calls import CallRecord, CallStore, UnreadableCall, of_stream
from infra.segments import UnreadableExport
from runtime.errors import MissingBlob
from runtime.ports import Blobs

BLOBS, CALLS = "blobs", "calls.jsonl"


def bodies_folder(path: Path) -> Path:
    """Where the bodies of an export lie: inside a folder, beside a file."""
    if path.is_dir():
        return path
    name = path.name.removesuffix(".zst").removesuffix(".jsonl")
    return path.with_name(f"{name}.bodies")


@contextmanager
def synced(path: Path) -> Iterator[BinaryIO]:
    """A new file, on the disk when the body ends."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


async def write_blobs(blobs: Blobs, run: RunId, folder: Path) -> int:
    """The run's bodies into a new `folder`/blobs; how many.

    Raises:
        MissingBlob: one that the store lists is damaged or gone.
    """
    target = folder / BLOBS
    await anyio.to_thread.run_sync(target.mkdir)
    names = await blobs.hashes(run)
    for name in names:
        body = await blobs.get(run, name)
        await anyio.to_thread.run_sync(_write_blob, target / f"{name}.zst", body)
    return len(names)


def _write_blob(path: Path, body: bytes) -> None:
    with synced(path) as file:
        file.write(packed(body))


async def write_calls(calls: CallStore, run: RunId, folder: Path) -> int:
    """The run's recorded calls into a new `folder`/calls.jsonl; how many.

    Raises:
        UnreadableCall: a record is not of this format.
    """
    found = await calls.all(run)

    def write() -> None:
        with synced(folder / CALLS) as file:
            for field in sorted(found):
                _checked_call(field, found[field])
                file.write(msgspec.json.encode({"field": field, "record": msgspec.Raw(found[field])}) + b"\n")

    await anyio.to_thread.run_sync(write)
    return len(found)


def _checked_call(field: str, record: bytes) -> None:
    try:
        msgspec.json.decode(record, type=CallRecord)
    except ValueError as error:
        raise UnreadableCall(field.split(" ")[0], str(error)) from error


class ExportedBlobs:
    """`runtime.ports.Blobs` over the bodies of an export, read-only."""

    def __init__(self, export: Path) -> None:
        self._folder = bodies_folder(export) / BLOBS

    @property
    def exist(self) -> bool:
        """Whether the export has any."""
        return self._folder.is_dir()

    async def put(self, run: RunId, body: bytes) -> str:
        """Raises: BadInput, always."""
        raise BadInput(f"{self._folder}: an export is read-only; {len(body)} bytes for run {run} are not written")

    async def put_many(self, run: RunId, bodies: Sequence[bytes]) -> list[str]:
        """Raises: BadInput, always."""
        raise BadInput(f"{self._folder}: an export is read-only; {len(bodies)} bodies for run {run} are not written")

    async def get(self, run: RunId, sha256: str) -> bytes:
        """As `runtime.ports.Blobs.get`."""
        if not HASH.fullmatch(sha256):
            raise MissingBlob(run, sha256, "no SHA-256")
        try:
            stored = await anyio.to_thread.run_sync((self._folder / f"{sha256}.zst").read_bytes)
        except FileNotFoundError as error:
            raise MissingBlob(run, sha256, f"not in {self._folder}") from error
        return unpacked(run, sha256, stored)

    async def hashes(self, run: RunId) -> list[str]:
        """As `runtime.ports.Blobs.hashes`; an export has one run."""
        del run
        return await anyio.to_thread.run_sync(lambda: sorted(self._names()))

    def _names(self) -> list[str]:
        return [one.stem for one in self._folder.glob("*.zst") if HASH.fullmatch(one.stem)]

    async def discard(self, run: RunId, hashes: Collection[str]) -> None:
        """Raises: BadInput, always."""
        raise BadInput(f"{self._folder}: an export is read-only; {len(hashes)} bodies of run {run} are not removed")

    async def delete(self, run: RunId, *, dry_run: bool = False) -> int:
        """Raises: BadInput, always."""
        raise BadInput(f"{self._folder}: an export is read-only; nothing of run {run} is removed (dry run: {dry_run})")


class ExportedCalls:
    """`infra.calls.CallStore` over the calls of an export, read-only."""

    def __init__(self, export: Path) -> None:
        self._file = bodies_folder(export) / CALLS
        self._read: dict[str, bytes] | None = None

    @property
    def exist(self) -> bool:
        """Whether the export has any."""
        return self._file.is_file()

    async def get(self, run: RunId, field: str) -> bytes | None:
        """As `infra.calls.CallStore.get`."""
        return (await self.all(run)).get(field)

    async def put(self, run: RunId, field: str, record: bytes) -> bytes:
        """Raises: BadInput, always."""
        raise BadInput(f"{self._file}: an export is read-only; {field} ({len(record)} bytes) of {run} is not written")

    async def put_with(self, run: RunId, field: str, record: bytes, bodies: Mapping[str, bytes], blobs: Blobs) -> bytes:
        """Raises: BadInput, always."""
        del bodies, blobs
        return await self.put(run, field, record)

    async def discard(self, run: RunId, fields: Collection[str]) -> None:
        """Raises: BadInput, always."""
        raise BadInput(f"{self._file}: an export is read-only; {len(fields)} calls of run {run} are not removed")

    async def all(self, run: RunId, stream: str | None = None) -> dict[str, bytes]:
        """As `infra.calls.CallStore.all`; an export has one run.

        Raises:
            UnreadableCall: a record is not of this format.
            UnreadableExport: a line is not.
        """
        del run
        if self._read is None:
            self._read = await anyio.to_thread.run_sync(self._records)
        return of_stream(self._read, stream)

    def _records(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        with self._file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    one = msgspec.json.decode(line, type=_Call)
                except ValueError as error:
                    raise UnreadableExport(self._file, f"line {number}: {error}") from error
                record = bytes(one.record)
                _checked_call(one.field, record)
                found[one.field] = record
        return found


class _Call(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    field: str
    record: msgspec.Raw
