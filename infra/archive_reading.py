"""A run's archive as its readers see it: events by position, and the newest checkpoint."""

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path

import anyio.to_thread
import zstandard

from events.checkpoint import Checkpoint
from events.checkpoint import read as read_checkpoint
from events.errors import BadInput, Mismatch
from events.ids import Position, RunId
from events.log import Recorded
from infra.archive_index import ArchiveNote, CheckpointFile
from infra.archive_storage import ArchiveStorage, MissingFile, storage_at
from infra.segments import MANIFEST, CorruptSegment, Segment, event_at, manifest_of, segment_lines

#: a checkpoint that unpacks to more is not ours, bytes
_LARGEST = 1 << 33


class Archive:
    """What a note says there is, read from where it lies. Nothing of a segment is answered before its hash is checked.

    Args:
        run: whose.
        note: the newest.
        home: what a place inside the home is relative to.

    Raises:
        BadInput: a place that this installation does not reach.
    """

    def __init__(self, run: RunId, note: ArchiveNote, home: Path | None) -> None:
        self._run, self.note = run, note
        self.storage: ArchiveStorage = storage_at(note.storage, home)
        self._segments: list[Segment] | None = None
        #: the segment that was read last
        self._held: tuple[Segment, list[bytes]] | None = None

    async def segments(self) -> list[Segment]:
        """Every segment, from position 1 to the note's last.

        Raises:
            ArchiveAway: the place cannot be reached.
            Mismatch: what is there is not what the note says.
        """
        if self._segments is None:
            written, name = await self._manifest()
            where = f"{self.storage.where}, {name}"
            manifest = manifest_of(written, where, f"{self.storage.where}, ")
            segments = [one for one in manifest.segments if one.last <= self.note.last]
            if manifest.run != self._run or [(one.last, one.chain) for one in segments[-1:]] != [
                (self.note.last, self.note.chain)
            ]:
                raise Mismatch(f"{where}: it is not the manifest that run {self._run} names")
            self._segments = segments
        return self._segments

    async def there(self, names: Collection[str]) -> None:
        """Every segment is among `names`, the files of the place.

        Raises:
            As `segments`.
            CorruptSegment: one is not.
        """
        for one in await self.segments():
            if one.file not in names:
                raise self._missing(one)

    def _missing(self, segment: Segment) -> CorruptSegment:
        where = f"{self.storage.where}, {segment.file}"
        return CorruptSegment(where, segment.first, segment.last, "it is missing")

    async def _manifest(self) -> tuple[bytes, str]:
        """The note's manifest and its name; where a later addition has removed it, the newest, which begins as it does.

        A server that lost its tail names an older addition than the place holds.
        """
        try:
            return await self.storage.read(self.note.manifest), self.note.manifest
        except MissingFile as missing:
            try:
                return await self.storage.read(MANIFEST), MANIFEST
            except MissingFile:
                raise missing from None

    async def read(self, after: Position, limit: int) -> list[Recorded]:
        """Up to `limit` events above `after`, fewer at the end of a segment; `after` lies before the archive's end.

        Raises:
            ArchiveAway: the place cannot be reached.
            CorruptSegment: damaged; the other segments stay readable.
        """
        segment, lines = await self._lines(Position(after + 1))
        skip = after + 1 - segment.first
        return await anyio.to_thread.run_sync(self._events, segment, lines[skip : skip + limit], after)

    async def at(self, positions: Sequence[Position]) -> dict[Position, Recorded]:
        """The events at `positions`.

        Raises:
            As `read`.
        """
        found: dict[Position, Recorded] = {}
        for position in sorted(positions):
            segment, lines = await self._lines(position)
            line = lines[position - segment.first]
            found[position] = self._events(segment, [line], Position(position - 1))[0]
        return found

    async def _lines(self, position: Position) -> tuple[Segment, list[bytes]]:
        if self._held is not None and self._held[0].first <= position <= self._held[0].last:
            return self._held
        segment = next(one for one in await self.segments() if position <= one.last)
        self._held = segment, await self.checked(segment)
        return self._held

    async def checked(self, segment: Segment) -> list[bytes]:
        """The lines of a segment.

        Raises:
            As `read`.
        """
        where = f"{self.storage.where}, {segment.file}"
        try:
            packed = await self.storage.read(segment.file)
        except MissingFile as error:
            raise self._missing(segment) from error
        return await anyio.to_thread.run_sync(segment_lines, packed, segment, where)

    def _events(self, segment: Segment, lines: Sequence[bytes], after: int) -> list[Recorded]:
        where = f"{self.storage.where}, {segment.file}"
        return [
            event_at(line, self._run, position, f"{where} line {position - segment.first + 1}")
            for position, line in enumerate(lines, after + 1)
        ]

    async def checkpoint(self, file: CheckpointFile) -> Checkpoint:
        """The checkpoint in that file.

        Raises:
            ArchiveAway: the place, or the file, cannot be reached.
            Mismatch, BadInput: damaged, or of other code.
        """
        where = f"{self.storage.where}, {file.file}"
        packed = await self.storage.read(file.file)

        def made() -> Checkpoint:
            try:
                body = zstandard.ZstdDecompressor().decompress(packed, _LARGEST, allow_extra_data=False)
            except zstandard.ZstdError as error:
                raise Mismatch(f"{where} is damaged: {error}") from error
            if hashlib.sha256(body).hexdigest() != file.sha256:
                raise Mismatch(f"{where} is damaged: it has another hash than the log says")
            found = read_checkpoint(body, where)
            state = found.state
            if (state.run, state.position, state.banks.version) != (self._run, file.position, file.bank_version):
                raise BadInput(f"{where}: it is the checkpoint of another place")
            if state.banks.digest() != file.digest:
                raise Mismatch(f"{where}: its banks have another digest than the log says")
            return found

        return await anyio.to_thread.run_sync(made)
