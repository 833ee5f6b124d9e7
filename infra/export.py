"""Logs onto the disk, whole or not at all, in the forms of `infra.segments`, with their bodies where asked for."""

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from uuid import uuid4

import anyio.to_thread
import zstandard
from msgspec import Struct

from events.codec import canonical, export_line
from events.errors import BadInput, Mismatch, VersionGap
from events.ids import Position, RunId
from events.log import Recorded
from infra.calls import CallStore
from infra.exported_bodies import BLOBS, CALLS, bodies_folder, synced, write_blobs, write_calls
from infra.segments import FORMAT, MANIFEST, SEGMENT, Manifest, Segment, chained, read_manifest, sync_folder
from runtime.ports import Blobs, EventLog

#: smaller files for a few times the work of writing them
_LEVEL = 9
_START = Position(0)


class ExportReport(Struct, frozen=True, kw_only=True):
    """What an export holds."""

    path: str
    run: RunId
    events: int
    #: 0 for a file
    segments: int
    #: None = not asked for
    blobs: int | None
    calls: int | None


async def export_log(
    log: EventLog, path: Path, *, blobs: Blobs | None = None, calls: CallStore | None = None
) -> ExportReport:
    """Write the log as it stands to `path`: `.jsonl`, `.jsonl.zst`, or the name of a folder for segments.

    A file of that name, or an export of the same run, is replaced when the new one is complete and on the disk.

    Args:
        log: which.
        path: where to; its folder must exist.
        blobs: the run's bodies, to be written along.
        calls: the run's recorded model calls, to be written along.

    Raises:
        BadInput: the log is empty, the name says no format, or something else is in the way.
        MissingBlob: a body that the store lists is damaged or gone.
        OSError: the disk is full, or the folder cannot be written; nothing is left behind.
    """
    bodies = blobs is not None or calls is not None
    as_file = await anyio.to_thread.run_sync(_checked_form, path, log.run, bodies)
    if await log.head() == 0:
        raise BadInput(f"run {log.run} has no events; there is nothing to export")
    with _workshop(path) as shop:
        new, new_bodies = shop / path.name, shop / BLOBS if as_file else shop / path.name
        writer = _FileWriter(new, packed=path.suffix == ".zst") if as_file else _FolderWriter(new, log.run)
        with writer:
            async for page in log.pages(_START):
                await anyio.to_thread.run_sync(writer.write, page)
        if bodies:
            await anyio.to_thread.run_sync(lambda: new_bodies.mkdir(exist_ok=True))
        written = await write_blobs(blobs, log.run, new_bodies) if blobs is not None else None
        recorded = await write_calls(calls, log.run, new_bodies) if calls is not None else None
        if bodies and as_file:
            # Bodies first: where the file is there, they are too.
            await anyio.to_thread.run_sync(_put_in_place, new_bodies, bodies_folder(path))
        await anyio.to_thread.run_sync(_put_in_place, new, path)
    return ExportReport(
        path=str(path), run=log.run, events=writer.events, segments=writer.segments, blobs=written, calls=recorded
    )


def _checked_form(path: Path, run: RunId, bodies: bool) -> bool:
    """Whether `path` names a file, not a folder; refuses what would be overwritten by mistake."""
    as_file = path.name.endswith((".jsonl", ".jsonl.zst")) and not path.is_dir()
    if not as_file and path.suffix and not path.is_dir():
        raise BadInput(f"{path}: unknown format {path.suffix!r}; name FILE.jsonl, FILE.jsonl.zst, or a folder")
    if not path.parent.is_dir():
        raise BadInput(f"{path}: there is no folder {path.parent}")
    if not as_file and path.exists():
        if not path.is_dir():
            raise BadInput(f"{path} is a file; name FILE.jsonl, FILE.jsonl.zst, or a folder")
        if any(path.iterdir()) and (there := _run_of(path)) != run:
            held = f"an export of run {there}" if there else "other files"
            raise BadInput(f"{path} holds {held}; name another folder")
    beside = bodies_folder(path)
    held_names = {one.name for one in beside.iterdir()} if beside.is_dir() else set[str]()
    if as_file and bodies and held_names - {BLOBS, CALLS}:
        raise BadInput(f"{beside} holds other files; move them, or name another export")
    if held_names & {BLOBS, CALLS} and not bodies:
        raise BadInput(f"{beside} holds the bodies of an export; write them again too, or name another export")
    return as_file


def _run_of(folder: Path) -> RunId | None:
    try:
        return read_manifest(folder).run
    except (BadInput, Mismatch):
        return None


@contextmanager
def _workshop(path: Path) -> Iterator[Path]:
    """A folder beside `path`, on the same disk: what is finished in it needs a new name only; removed at the end."""
    shop = path.with_name(f".{path.name}.{uuid4().hex}")
    shop.mkdir()
    try:
        yield shop
    finally:
        shutil.rmtree(shop, ignore_errors=True)


def _put_in_place(new: Path, path: Path) -> None:
    """`new` under the name `path`, which is free, a file, or a folder that may be replaced."""
    if new.is_dir():
        for folder, _, _ in os.walk(new):
            sync_folder(Path(folder))
    if path.is_dir():
        # Two names cannot change in one step; what was there leaves with the workshop.
        path.rename(new.with_name(f"{new.name}.old"))
        new.rename(path)
    else:
        new.replace(path)
    sync_folder(path.parent)


class _Lines:
    """Lines into one file, compressed or not."""

    def __init__(self, path: Path, *, packed: bool) -> None:
        self._file = path.open("xb")
        self._writer = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).stream_writer(
            self._file, closefd=False
        ) if packed else None  # fmt: skip
        self.sha256 = hashlib.sha256()

    def write(self, line: bytes) -> None:
        self.sha256.update(line)
        (self._writer or self._file).write(line)

    def finish(self) -> None:
        """The end of the frame, and all of it on the disk."""
        if self._writer is not None:
            self._writer.flush(zstandard.FLUSH_FRAME)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class _FileWriter:
    """All events into one file."""

    segments = 0

    def __init__(self, path: Path, *, packed: bool) -> None:
        self._lines = _Lines(path, packed=packed)
        self.events = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._lines.finish()
        finally:
            self._lines.close()

    def write(self, page: Sequence[Recorded]) -> None:
        for one in page:
            _check_next(one, self.events)
            self._lines.write(export_line(one))
            self.events += 1


class _FolderWriter:
    """Events into numbered segments, then the manifest."""

    def __init__(self, folder: Path, run: RunId) -> None:
        folder.mkdir()
        self._folder, self._run = folder, run
        self._segments: list[Segment] = []
        self._lines: _Lines | None = None
        self.events = 0

    @property
    def segments(self) -> int:
        return len(self._segments)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._end_segment()
                manifest = Manifest(format=FORMAT, run=self._run, events=self.events, segments=self._segments)
                with synced(self._folder / MANIFEST) as file:
                    file.write(canonical(manifest) + b"\n")
        finally:
            if self._lines is not None:
                self._lines.close()

    def write(self, page: Sequence[Recorded]) -> None:
        for one in page:
            _check_next(one, self.events)
            if self._lines is None:
                self._lines = _Lines(self._folder / self._name(), packed=True)
            self._lines.write(export_line(one))
            self.events += 1
            if self.events % SEGMENT == 0:
                self._end_segment()

    def _name(self) -> str:
        return f"{len(self._segments) + 1:06}.jsonl.zst"

    def _end_segment(self) -> None:
        if self._lines is None:
            return
        self._lines.finish()
        self._lines.close()
        sha256 = self._lines.sha256.hexdigest()
        chain = chained(self._segments[-1].chain if self._segments else "", sha256)
        first = Position(SEGMENT * len(self._segments) + 1)
        self._segments.append(
            Segment(file=self._name(), first=first, last=Position(self.events), sha256=sha256, chain=chain)
        )
        self._lines = None


def _check_next(one: Recorded, before: int) -> None:
    if one.position != before + 1:
        raise VersionGap(f"log of run {one.run}", before + 1, one.position)
