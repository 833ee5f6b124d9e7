"""A log on disk, as an export or an archive: one file of lines, or a folder of segments under a manifest.

- `FILE.jsonl`: the lines of docs/events.md in position order.
- `FILE.jsonl.zst`: the same lines, compressed.
- a folder: `000001.jsonl.zst`, `000002.jsonl.zst` ... of up to 2,000 events each, and `manifest.json` (canonical JSON,
  one newline): `format` 1, `run`, `events`, and for each of `segments` its `file`, its `first` and `last` position, the
  hex SHA-256 of its uncompressed lines, and `chain`, the hex SHA-256 of the ASCII text `<chain before><sha256>` (""
  before the first). The last `chain` stands for the whole log.

Nothing of a segment is answered before its hash is checked; the others stay readable beside a damaged one.
"""

import hashlib
import os
import re
from array import array
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import islice
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from events.checkpoint import Checkpoint
from events.codec import EVENT_CAP, export_line, parse_line
from events.errors import BadInput, Mismatch, UnreadableEvent, VersionGap
from events.ids import Position, RunId, StreamId, Version, run_id
from events.log import Draft, Recorded
from events.skim import Skim
from infra.segment_bytes import ZSTD, Damaged, unpacked
from runtime.ports import Appended, Origin, StreamIndex, Taken

MANIFEST = "manifest.json"
#: the format of the manifest that is written, and the newest that is read
FORMAT = 1
#: events in one segment
SEGMENT = 2000
#: events in one page
PAGE = 100

#: so much `data` is read ahead at a time, bytes: going to a thread costs what reading 50 events does
_AHEAD = 1 << 22

_SEGMENT_NAME = re.compile(r"[0-9]{6,}\.jsonl\.zst")
_HEX = re.compile(r"[0-9a-f]{64}")
#: a segment up to this many bytes is unpacked once, checked and then read; a larger one twice
_HELD = 1 << 28
#: a longer line is no event: the cap on `data`, and generous room for what stands around it
_LONGEST = EVENT_CAP + (64 << 10)


class UnreadableExport(BadInput):
    """A file or folder that is no export of this format."""

    def __init__(self, path: Path | str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path} cannot be read as an export: {reason}")


class CorruptSegment(Mismatch):
    """A segment, or a whole file, whose bytes are damaged, cut short, or not the ones its manifest names."""

    def __init__(self, path: Path | str, first: int, last: int | None, reason: str) -> None:
        self.path, self.first, self.last, self.reason = path, first, last, reason
        where = f"positions {first} to {last}" if last is not None else f"from position {first}"
        super().__init__(f"{path} ({where}) is damaged: {reason}")


class Segment(Struct, frozen=True, kw_only=True):
    """One segment as the manifest names it."""

    file: str
    first: Position
    last: Position
    #: hex, of the uncompressed lines
    sha256: str
    #: hex, of the chain before followed by `sha256`
    chain: str


class Manifest(Struct, frozen=True, kw_only=True):
    """What a folder of segments holds."""

    format: int
    run: RunId
    events: int
    segments: list[Segment]


class SegmentCheck(Struct, frozen=True, kw_only=True):
    """One segment, or a whole file, and what is wrong with it."""

    file: str
    first: int
    #: None where it is not known: a file has no manifest
    last: int | None
    #: None = sound
    problem: str | None


def chained(chain: str, sha256: str) -> str:
    """The chain of a segment with `sha256` behind one that ends with `chain` ("" for the first)."""
    return hashlib.sha256(f"{chain}{sha256}".encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder, its segments gapless from position 1 on and its chain whole.

    Raises:
        UnreadableExport: there is none, it is malformed, or of a newer format.
        CorruptSegment: its chain does not hold.
    """
    path = folder / MANIFEST
    try:
        written = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnreadableExport(folder, f"it has no {MANIFEST}") from error
    return manifest_of(written, path, f"{folder}/")


def manifest_of(written: bytes, path: Path | str, beside: str) -> Manifest:
    """The manifest that `written` holds, its segments gapless from position 1 on and its chain whole.

    Args:
        written: the bytes of the file.
        path: names it in errors.
        beside: goes before the name of a segment, in errors.

    Raises:
        UnreadableExport: malformed, or of a newer format.
        CorruptSegment: its chain does not hold.
    """
    try:
        number = msgspec.json.decode(written, type=_Format).format
        if number > FORMAT:
            raise UnreadableExport(path, f"it has format {number}, this chime reads up to {FORMAT}; use a newer chime")
        manifest = msgspec.json.decode(written, type=Manifest)
        run_id(manifest.run)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableExport(path, str(error)) from error
    last, chain = 0, ""
    for one in manifest.segments:
        if not _SEGMENT_NAME.fullmatch(one.file) or not _HEX.fullmatch(one.sha256):
            raise UnreadableExport(path, f"{one.file!r} with hash {one.sha256!r} is no segment")
        if one.first != last + 1 or one.last < one.first:
            raise UnreadableExport(path, f"{one.file} holds {one.first} to {one.last}, expected {last + 1} first")
        last, chain = one.last, chained(chain, one.sha256)
        if one.chain != chain:
            raise CorruptSegment(f"{beside}{one.file}", one.first, one.last, "the chain of its manifest breaks here")
    if manifest.events != last:
        raise UnreadableExport(path, f"it counts {manifest.events} events, its segments hold {last}")
    return manifest


class _Format(Struct):
    format: int


def segment_lines(packed: bytes, segment: Segment, where: str) -> list[bytes]:
    """The lines of a segment's file, without line feeds, checked against the manifest.

    Args:
        packed: the bytes of the file.
        segment: as the manifest names it.
        where: names the file in errors.

    Raises:
        CorruptSegment: damaged, cut short, or other bytes.
    """
    try:
        return _checked_lines(b"".join(unpacked(BytesIO(packed))), segment)
    except Damaged as error:
        raise CorruptSegment(where, segment.first, segment.last, str(error)) from error


def _checked_lines(body: bytes, segment: Segment) -> list[bytes]:
    _check_body(body, segment)
    return body.split(b"\n")[:-1]


def _check_body(body: bytes, segment: Segment) -> None:
    _check_segment(segment, hashlib.sha256(body).hexdigest(), body.count(b"\n"))
    if not body.endswith(b"\n"):
        raise Damaged("its last line is cut short")


def _check_segment(segment: Segment, sha256: str, lines: int) -> None:
    if sha256 != segment.sha256:
        raise Damaged("its lines have another hash than the manifest says")
    if lines != segment.last - segment.first + 1:
        raise Damaged(f"it has {lines} lines")


class _Part:
    """A run of lines in one file: a segment, or a whole file."""

    def __init__(self, path: Path, first: Position, segment: Segment | None = None, *, exact: bool = False) -> None:
        self.path, self.first, self._segment, self._exact = path, first, segment, exact
        self.last = segment.last if segment else None
        self._sound = segment is None
        self._name = str(path)

    def damaged(self, reason: str) -> CorruptSegment:
        return CorruptSegment(self.path, self.first, self.last, reason)

    def check(self) -> None:
        """Compare the bytes with the manifest, once; a file by itself has nothing to compare with.

        Raises:
            CorruptSegment: missing, damaged or other bytes.
        """
        if self._sound or self._segment is None:
            return
        digest, lines = hashlib.sha256(), 0
        for chunk in self._chunks():
            digest.update(chunk)
            lines += chunk.count(b"\n")
        with self._told():
            _check_segment(self._segment, digest.hexdigest(), lines)
        self._sound = True

    def lines(self, skip: int = 0, offset: int = 0) -> Iterator[bytes]:
        """Each line without its line feed, from byte `offset` of the uncompressed lines on, without the first `skip`.

        Raises:
            CorruptSegment: cut short, or not readable from here on.
        """
        rest = b""
        for chunk in self._chunks(offset):
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            yield from lines[skip:]
            skip = max(0, skip - len(lines))
            if len(rest) > _LONGEST:
                raise self.damaged("a line is longer than any event")
        if rest:
            raise self.damaged("its last line is cut short")

    def _chunks(self, offset: int = 0) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file, self._told():
                for chunk in unpacked(file):
                    if len(chunk) > offset:
                        yield chunk[offset:] if offset else chunk
                    offset = max(0, offset - len(chunk))
        except FileNotFoundError as error:
            raise self.damaged("it is missing") from error

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except Damaged as error:
            raise self.damaged(str(error)) from error

    def _whole(self) -> bytes | None:
        """Every line of a segment, checked; None where it is too large to be held."""
        assert self._segment is not None  # noqa: S101 - asked of segments only
        chunks, size = list[bytes](), 0
        for chunk in self._chunks():
            chunks.append(chunk)
            size += len(chunk)
            if size > _HELD:
                return None
        body = b"".join(chunks)
        with self._told():
            _check_body(body, self._segment)
        self._sound = True
        return body

    def events(
        self, run: RunId, after: int, offset: int = 0, kinds: frozenset[str] | None = None
    ) -> Iterator[Recorded]:
        """The events above `after`, which lie in this part.

        Args:
            run: whose they are.
            after: a position.
            offset: where the first of them begins, if known.
            kinds: of these kinds only; lines of others are passed over.

        Raises:
            CorruptSegment: damaged bytes, or a line that is no event.
            VersionGap: a position that is not the next.
        """
        position = max(after, self.first - 1)
        skip = position - self.first + 1
        whole = None if offset or self._sound else self._whole()
        if whole is None:
            self.check()
        if not self._exact:
            chunks = self._chunks(offset) if whole is None else [whole]
            yield from self._skimmed(chunks, run, position + 1 if offset else self.first, position, kinds)
            return
        for line in self.lines(0 if offset else skip, offset) if whole is None else whole.split(b"\n")[skip:-1]:
            position += 1
            one = self.event(line, run, position)
            if kinds is None or one.kind in kinds:
                yield one

    def _skimmed(
        self, chunks: Iterable[bytes], run: RunId, first: int, after: int, kinds: frozenset[str] | None
    ) -> Iterator[Recorded]:
        """The events of `kinds` behind `after`; the first line of `chunks` is at `first`."""
        skim, rest = Skim(run, kinds, lambda line, at: self.event(line, run, at), first, after), b""
        for chunk in chunks:
            start = 0
            if rest and (start := chunk.find(b"\n") + 1):
                # The line that two chunks share alone: what is left of this one is not copied.
                yield from skim.events(rest + chunk[:start], 0)
                rest = b""
            if rest:
                rest += chunk
            else:
                yield from skim.events(chunk, start)
                rest = chunk[chunk.rfind(b"\n") + 1 :]
            if len(rest) > _LONGEST:
                raise self.damaged("a line is longer than any event")
        if rest:
            raise self.damaged("its last line is cut short")

    def event(self, line: bytes, run: RunId, position: int) -> Recorded:
        one = event_at(line, run, position, f"{self._name} line {position - self.first + 1}")
        if self._exact and export_line(one) != line + b"\n":
            where = f"{self._name} line {position - self.first + 1}"
            raise UnreadableEvent(where, "not in canonical form (sorted keys, no spaces, no ASCII escapes)")
        return one


def event_at(line: bytes, run: RunId, position: int, where: str) -> Recorded:
    """The event of one line, which is `run`'s at `position`; `where` names the line in errors.

    Raises:
        UnreadableEvent: no event, or another run's.
        VersionGap: another position.
    """
    one = parse_line(line, where)
    if one.run != run:
        raise UnreadableEvent(where, f"it belongs to run {one.run}, the export to {run}")
    if one.position != position:
        raise VersionGap(where, position, one.position)
    return one


class _Index:
    """Where the events of each stream stand, from one pass over the lines."""

    def __init__(self) -> None:
        self.streams: dict[StreamId, list[Position]] = {}
        self.last_kinds: dict[StreamId, str] = {}
        #: byte of each event's line inside the uncompressed lines of its part
        self.offsets = array("Q")


class SegmentLog:
    """`runtime.ports.EventLog` over an export, read-only; memory for an index of offsets, not for events.

    Args:
        path: a file of lines, compressed or not, or a folder of segments.
        exact: refuse a line whose bytes around `data` are not the ones that `export_line` writes.

    Raises:
        UnreadableExport: it is neither, it is empty, or of a newer format.
        CorruptSegment: the manifest's chain does not hold, or a file's first line is damaged.
    """

    def __init__(self, path: Path, *, exact: bool = False) -> None:
        self.path = path
        self._parts, self._run = _opened(path, exact)
        self._built: _Index | None = None

    @property
    def run(self) -> RunId:
        return self._run

    async def append(
        self,
        stream: StreamId,
        first: Version,
        drafts: Sequence[Draft],
        origin: Origin,
    ) -> Appended | Taken:
        """An export takes no events.

        Raises:
            BadInput: always.
        """
        del stream, first, drafts, origin
        raise BadInput(f"{self.path}: an export is read-only; import it with `chime log import` to go on with it")

    async def read_stream(self, stream: StreamId) -> list[Recorded]:
        """As `runtime.ports.EventLog.read_stream`."""
        return await anyio.to_thread.run_sync(lambda: list(self._stream(stream)))

    def _stream(self, stream: StreamId) -> Iterator[Recorded]:
        index = self._index()
        positions = index.streams.get(stream, [])
        for part in self._parts:
            mine = [one for one in positions if part.first <= one and (part.last is None or one <= part.last)]
            if mine:
                wanted = set(mine)
                events = part.events(self._run, mine[0] - 1, index.offsets[mine[0] - 1])
                yield from (one for one in islice(events, mine[-1] - mine[0] + 1) if one.position in wanted)

    async def read(self, after: Position, limit: int, kinds: frozenset[str] | None = None) -> list[Recorded]:
        """As `runtime.ports.EventLog.read`."""
        found = await anyio.to_thread.run_sync(lambda: list(islice(self._events(after), limit)))
        if not found:
            await self._check(after)
        return [one for one in found if kinds is None or one.kind in kinds]

    async def pages(self, after: Position, kinds: frozenset[str] | None = None) -> AsyncIterator[list[Recorded]]:
        """As `runtime.ports.EventLog.pages`."""
        events, empty = self._events(after, kinds), True
        while ahead := await anyio.to_thread.run_sync(_some, events):
            empty = False
            for start in range(0, len(ahead), PAGE):
                yield ahead[start : start + PAGE]
        if empty:
            await self._check(after)

    def _events(self, after: Position, kinds: frozenset[str] | None = None) -> Iterator[Recorded]:
        for part in self._parts:
            if part.last is None or part.last > after:
                yield from part.events(self._run, after, kinds=kinds)

    async def wait(self, after: Position, timeout_s: float) -> bool:
        """As `runtime.ports.EventLog.wait`: an export gets no news."""
        head = await self._check(after)
        if head == after:
            await anyio.sleep(timeout_s)
        return head > after

    async def index(self) -> dict[StreamId, StreamIndex]:
        """As `runtime.ports.EventLog.index`."""
        index = await anyio.to_thread.run_sync(self._index)
        return {
            stream: StreamIndex(positions=list(positions), last_kind=index.last_kinds[stream])
            for stream, positions in index.streams.items()
        }

    def _index(self) -> _Index:
        if self._built is None:
            built = _Index()
            for part in self._parts:
                part.check()
                offset = 0
                for line in part.lines():
                    one = part.event(line, self._run, len(built.offsets) + 1)
                    there = built.streams.setdefault(one.stream, [])
                    if one.version != len(there) + 1:
                        raise VersionGap(f"{part.path}, stream {one.stream}", len(there) + 1, one.version)
                    there.append(one.position)
                    built.last_kinds[one.stream] = one.kind
                    built.offsets.append(offset)
                    offset += len(line) + 1
            self._built = built
        return self._built

    async def length(self, stream: StreamId) -> int:
        """As `runtime.ports.EventLog.length`."""
        index = (await self.index()).get(stream)
        return 0 if index is None else len(index.positions)

    async def checkpoint(self) -> Checkpoint | None:
        """As `runtime.ports.EventLog.checkpoint`: there is none."""
        return None

    async def head(self) -> Position:
        """As `runtime.ports.EventLog.head`."""
        last = self._parts[-1].last
        if last is not None:
            return last
        index = await anyio.to_thread.run_sync(self._index)
        return Position(len(index.offsets))

    async def _check(self, after: Position) -> Position:
        if (head := await self.head()) < after:
            raise VersionGap(f"head of {self.path}", after, head)
        return head


def _some(events: Iterator[Recorded]) -> list[Recorded]:
    """The next events, as many as it is worth to go to a thread for."""
    found, size = list[Recorded](), 0
    for one in events:
        found.append(one)
        size += len(one.data)
        if size > _AHEAD or len(found) == 10 * PAGE:
            break
    return found


def _opened(path: Path, exact: bool) -> tuple[list[_Part], RunId]:
    """The parts of an export and the run it holds."""
    if path.is_dir():
        manifest = read_manifest(path)
        if not manifest.segments:
            raise UnreadableExport(path, "it holds no event")
        parts = [_Part(path / one.file, one.first, one, exact=exact) for one in manifest.segments]
        return parts, manifest.run
    try:
        with path.open("rb") as file:
            beginning = file.read(len(ZSTD))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnreadableExport(path, "there is no such file or folder") from error
    if not beginning:
        raise UnreadableExport(path, "it holds no event")
    if beginning != ZSTD and not beginning.startswith(b"{"):
        raise UnreadableExport(path, "unknown format: neither JSON lines, nor zstd, nor a folder of segments")
    part = _Part(path, Position(1), exact=exact)
    first = next(part.lines(), None)
    if first is None:
        raise UnreadableExport(path, "it holds no event")
    return [part], parse_line(first, f"{path} line 1").run


async def verify_segments(path: Path) -> list[SegmentCheck]:
    """Each segment of a folder, or the one file, with what is wrong with it: bytes, hash, and every line's place.

    Raises:
        UnreadableExport: no export of this format at all.
    """
    return await anyio.to_thread.run_sync(_verified, path)


def _verified(path: Path) -> list[SegmentCheck]:
    try:
        parts, run = _opened(path, exact=True)
    except CorruptSegment as error:
        return [SegmentCheck(file=Path(error.path).name, first=error.first, last=error.last, problem=error.reason)]
    return [_checked(part, run) for part in parts]


def _checked(part: _Part, run: RunId) -> SegmentCheck:
    last, problem = part.last, None
    position = part.first - 1
    try:
        for one in part.events(run, part.first - 1):
            position = one.position
        last = Position(position)
    except (CorruptSegment, BadInput, VersionGap) as error:
        problem = error.reason if isinstance(error, CorruptSegment) else str(error)
        problem = f"{problem} (readable up to position {position})" if position >= part.first else problem
    return SegmentCheck(file=part.path.name, first=part.first, last=last, problem=problem)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` as durable as the files behind them."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
