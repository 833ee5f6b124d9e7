"""`chime log archive`: the beginning of a run's log, out of its server and into segments on disk or elsewhere.

One addition after another, each in this order: segments (and, with the last one, a checkpoint) and a manifest that
lists them are written and read back; the server records them; the log notes them; only then the server lets go of what
they hold, in slices. Every file has a name of its own that says where it ends, so an addition that was cut short is
overwritten by the same bytes or never named by anything.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from typing import Literal, Self

import anyio.to_thread
import msgspec
import zstandard
from msgspec import Struct
from msgspec.structs import replace

from events.checkpoint import Checkpoint, Tally, written
from events.codec import canonical, decode_as, export_line
from events.errors import BadInput, FoldMismatch, Mismatch, Unreachable, VersionGap
from events.fold import State, step
from events.ids import PROJECTOR_STREAM, RUN_STREAM, Position, RunId, StreamId, episode_of
from events.kinds import Folded, Noted, RunConfig
from events.log import Recorded
from infra.archive_index import Archived, ArchiveIndex, ArchiveNote, CheckpointFile
from infra.archive_reading import Archive
from infra.archive_storage import ArchiveStorage, MissingFile, place_of, storage_at
from infra.redis_log import RedisLog, RedisLogStore
from infra.segments import FORMAT, MANIFEST, SEGMENT, CorruptSegment, Manifest, Segment, chained, segment_lines
from runtime.logger import Logger
from runtime.ports import StreamIndex

_log = Logger("chime.archive")

TOPIC = "archive"

#: events that are read at once
_PAGE = 200
#: segments of one addition: what a note lists
ADDITION = 20
#: entries that the server lets go of at once: a million would stop it for seconds
TRIMMED_AT_ONCE = 2000
#: vectors are most of a log and hardly get smaller: 9 takes four times as long for 2 % less
_LEVEL = 3
_NOTHING = Position(0)

#: tells the log what was archived; on a finished run nothing
Note = Callable[[Noted], Awaitable[object]]


class ArchiveReport(Struct, frozen=True, kw_only=True):
    """What a run's archive holds, and what this command added."""

    run: RunId
    #: as it is written down
    storage: str
    #: for people
    where: str
    #: the last position that the archive holds
    last: Position
    #: that the server holds no more
    trimmed: Position
    head: Position
    #: by this command
    added: int
    segments: int
    checkpoint: CheckpointFile | None


def cut(index: dict[StreamId, StreamIndex], config: RunConfig, head: Position, *, finished: bool) -> Position:
    """The last position that may be archived: nobody who works on the run needs what lies before.

    Every event up to it belongs to episodes that are folded, or to the run itself, and every bank version that an open
    episode may read, in any mode, is made behind it. The last event always stays.
    """
    last = head - 1
    projector = index.get(PROJECTOR_STREAM)
    folds = projector.positions if projector is not None else []
    for stream, there in index.items():
        t = episode_of(stream)
        if t is not None and t >= len(folds):
            last = min(last, there.positions[0] - 1)
    if not finished:
        # As `events.window` holds them.
        oldest = len(folds) - (config.lag if config.lag != "latest" else 0) - 2 * config.concurrency
        last = min(last, folds[oldest] - 1) if oldest > 0 else 0
    return Position(max(0, last))


async def archive_log(
    store: RedisLogStore,
    run: RunId,
    base: str | None,
    note: Note,
    on_step: Callable[[str], None] = lambda _: None,
    *,
    dry_run: bool = False,
) -> ArchiveReport:
    """Archive all of `run` that may be; what an earlier command left undone is done first.

    Args:
        store: holds the log.
        run: which.
        base: where to, a folder or URL below which each run has its place; None = where the run is archived already,
            or else the home.
        note: writes into the run's log.
        on_step: told what was done, for tests: `segment`, `checkpoint`, `manifest`, `recorded`, `noted`, `trimmed`.
        dry_run: only say what there is to be done.

    Raises:
        ArchiveAway: the place cannot be written or read.
        Mismatch: the place holds another archive, what was written does not read back, the log does not fold, or
            somebody else is archiving the same run.
        BadInput: the run has another place, or the place is none that this installation reaches.
    """
    work = await _Archiving.begun(store, run, base, note, on_step)
    head, last = await work.last()
    before = work.there.last
    segments = 0
    async with work.alone():
        await work.stands()
        if not dry_run:
            await work.go_on()
            while work.there.last < last:
                segments += await work.add(last)
            # Also where nothing is to be added: the command before may have been killed before it came to this.
            await work.tidy()
    there = work.there
    if segments:
        _log.info("archived", run_id=run, position=there.last, where=work.where)
    return ArchiveReport(
        run=run,
        storage=work.place,
        where=work.where,
        last=there.last,
        trimmed=there.trimmed,
        head=head,
        added=max(0, (last if dry_run else there.last) - before),
        segments=segments,
        checkpoint=there.checkpoint,
    )


class _Archiving:
    """One command at work; `there` is what the server says."""

    def __init__(
        self, store: RedisLogStore, run: RunId, place: str, there: Archived, note: Note, on_step: Callable[[str], None]
    ) -> None:
        self._run, self.place, self.there, self._note, self._step = run, place, there, note, on_step
        self._home = store.home
        self._events: RedisLog = store.open(run)
        self._index: ArchiveIndex = store.archived(run)
        self._storage: ArchiveStorage = storage_at(place, store.home)
        #: files of the place, before this command writes any
        self._names: frozenset[str] = frozenset()
        self._fold: _Folding | None = None
        #: what this command has recorded, or is about to
        self._mine: ArchiveNote | None = None

    @classmethod
    async def begun(
        cls, store: RedisLogStore, run: RunId, base: str | None, note: Note, on_step: Callable[[str], None]
    ) -> Self:
        """With what the server says of the run's archive."""
        there = await store.archived(run).look()
        place = there.note.storage if there.note is not None and base is None else place_of(run, base)
        if there.note is not None and there.note.storage != place:
            raise BadInput(f"run {run} is archived at {there.note.storage} already, and a run has one place")
        return cls(store, run, place, there, note, on_step)

    @property
    def where(self) -> str:
        """The place, for people."""
        return self._storage.where

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """What fails in the body while somebody else archives the same run fails for that reason.

        Raises:
            Mismatch: it does.
        """
        try:
            yield
        except (Unreachable, Mismatch) as error:
            if (await self._index.look()).note in (self.there.note, self._mine):
                raise
            raise self._overtaken() from error

    def _overtaken(self) -> Mismatch:
        return Mismatch(f"run {self._run} was archived by another process meanwhile; give the command once more")

    async def stands(self) -> None:
        """What was archived before is where the server says: its names, as reading it all takes as long as it is.

        Raises:
            ArchiveAway: the place cannot be reached, or holds no manifest.
            CorruptSegment: a segment is missing; nothing is added beside it.
        """
        self._names = frozenset(await self._storage.names())
        if self.there.note is not None:
            await Archive(self._run, self.there.note, self._home).there(self._names)

    async def go_on(self) -> None:
        """Finish the newest addition, where it was cut short."""
        await self._storage.sweep()
        note = self.there.note
        if note is not None and self.there.trimmed < note.last:
            await self._read_back(note)
            await self._noted_and_trimmed(note)

    async def last(self) -> tuple[Position, Position]:
        """The log's head, and the last position that may be archived now."""
        head = await self._events.head()
        header = (await self._events.read(_NOTHING, 1))[:1]
        state = step(State(), header[0]) if header else State()
        ending = await self._events.read(Position(head - 1), 1)
        finished = bool(ending) and ending[0].kind == "run_finished"
        return head, cut(await self._events.index(), state.begun().config, head, finished=finished)

    async def add(self, last: Position) -> int:
        """The next addition, up to `last` at most; how many segments it has."""
        fold = await self._folding()
        note = self.there.note
        segments = await Archive(self._run, note, self._home).segments() if note is not None else []
        new: list[Segment] = []
        while len(new) < ADDITION and (new[-1].last if new else self.there.last) < last:
            before = [*segments, *new]
            new.append(await self._segment(before[-1] if before else None, last, fold))
            self._step("segment")
        checkpoint = None
        if new[-1].last == last and (made := fold.checkpoint()) is not None:
            checkpoint = await self._checkpoint(made)
            self._step("checkpoint")
        everything = [*segments, *new]
        manifest = Manifest(format=FORMAT, run=self._run, events=new[-1].last, segments=everything)
        name = f"manifest-{new[-1].last:012}.json"
        await self._storage.write(name, canonical(manifest) + b"\n")
        self._step("manifest")
        made_note = ArchiveNote(
            storage=self.place, manifest=name, first=new[0].first, last=new[-1].last, chain=new[-1].chain,
            segments=new, checkpoint=checkpoint,
        )  # fmt: skip
        await self._read_back(made_note)
        self._mine = made_note
        await self._index.record(self.there.last, made_note)
        self._step("recorded")
        await self._noted_and_trimmed(made_note)
        return len(new)

    async def _segment(self, before: Segment | None, last: Position, fold: "_Folding") -> Segment:
        first = Position(before.last + 1 if before is not None else 1)
        position, digest, lines = Position(first - 1), hashlib.sha256(), BytesIO()
        upto = Position(min(last, position + SEGMENT))
        while position < upto:
            page = await self._events.read(position, min(_PAGE, upto - position))
            if not page:
                raise VersionGap(f"log of run {self._run}", upto, position)
            for line in await anyio.to_thread.run_sync(_lines, page, fold):
                digest.update(line)
                lines.write(line)
            position = page[-1].position
        name, sha256 = f"{upto:012}.jsonl.zst", digest.hexdigest()
        segment = Segment(
            file=name, first=first, last=upto, sha256=sha256,
            chain=chained(before.chain if before is not None else "", sha256),
        )  # fmt: skip
        while (there := await self._there(segment)) == "other":
            if self.there.note is None:
                raise Mismatch(
                    f"{self._storage.where} holds the archive of another log of run {self._run}: {segment.file} differs"
                    "; name another place (--to), or move it away"
                )
            # The place is ours: what was archived before the server lost it is left there.
            segment = replace(segment, file=f"0{segment.file}")
        if there == "none":
            await self._storage.write(segment.file, await anyio.to_thread.run_sync(_packed, lines.getvalue()))
        return segment

    async def _there(self, segment: Segment) -> Literal["none", "same", "other"]:
        """What the place has under a segment's name; what a write that was cut short has left counts as nothing."""
        if segment.file not in self._names:
            return "none"
        packed = await self._storage.read(segment.file)
        try:
            await anyio.to_thread.run_sync(segment_lines, packed, segment, segment.file)
        except CorruptSegment:
            return "other" if await anyio.to_thread.run_sync(_is_sound, packed) else "none"
        return "same"

    async def _checkpoint(self, made: Checkpoint) -> CheckpointFile:
        body = await anyio.to_thread.run_sync(written, made)
        position = made.state.position
        name = f"checkpoint-{position:012}.json.zst"
        await self._storage.write(name, await anyio.to_thread.run_sync(_packed, body))
        return CheckpointFile(
            file=name, position=position, bank_version=made.state.banks.version, digest=made.state.banks.digest(),
            sha256=hashlib.sha256(body).hexdigest(),
        )  # fmt: skip

    async def _read_back(self, note: ArchiveNote) -> None:
        """What the server is about to let go of can be read from where it lies now.

        Raises:
            ArchiveAway, Mismatch, BadInput: it cannot.
        """
        archive = Archive(self._run, note, self._home)
        await archive.segments()
        for segment in note.segments:
            await archive.checked(segment)
        if note.checkpoint is not None:
            await archive.checkpoint(note.checkpoint)

    async def _noted_and_trimmed(self, note: ArchiveNote) -> None:
        await self._tell(note)
        self._step("noted")
        trimmed = (await self._index.look()).trimmed
        while trimmed < note.last:
            upto = Position(min(note.last, trimmed + TRIMMED_AT_ONCE))
            await self._index.trim(upto, *await self._staying(trimmed, upto))
            self._step("trimmed")
            trimmed = upto
        self.there = await self._index.look()

    async def _staying(self, after: Position, upto: Position) -> tuple[list[Position], list[int]]:
        """Positions of small events that stay on the server, in another key; and the episodes folded among the others.

        What is asked for often stays: the run's own stream, the newest fold; and a score until its episode is folded.
        """
        found: list[Position] = []
        folds: dict[int, Position] = {}
        while after < upto:
            page = await self._events.read(after, min(_PAGE, upto - after))
            found += [one.position for one in page if one.stream == RUN_STREAM or one.kind == "scored"]
            folds |= {one.version - 1: one.position for one in page if one.kind == "folded"}
            after = page[-1].position
        return sorted([*found, *([max(folds.values())] if folds else [])]), sorted(folds)

    async def _tell(self, note: ArchiveNote) -> None:
        """The log notes the addition, once however often this is tried."""
        event = Noted(topic=TOPIC, facts=msgspec.to_builtins(note))
        for one in await self._events.read_stream(RUN_STREAM):
            if one.kind == "noted" and decode_as(one, Noted) == event:
                return
        await self._note(event)

    async def _folding(self) -> "_Folding":
        """The fold of the log up to where the archive ends: from the newest checkpoint, or from the beginning.

        Raises:
            Mismatch: another command has archived more by now.
        """
        if self._fold is None:
            begin = await self._events.checkpoint() or Checkpoint(state=State(), tally=Tally())
            if begin.state.position > self.there.last:
                raise self._overtaken()
            self._fold = _Folding(begin)
        fold = self._fold
        # Another command may have added the same as this one, and more.
        while fold.position < self.there.last:
            limit = min(_PAGE, self.there.last - fold.position)
            page = await self._events.read(fold.position, limit)
            await anyio.to_thread.run_sync(fold.feed, page)
        return fold

    async def tidy(self) -> None:
        """Remove what no reader needs any more, and name the newest manifest as that of an export for people."""
        shown = None
        # Once more where another command has added something meanwhile: what it shows is not undone for long.
        while (note := self.there.note) is not None and note != shown:
            # It is missing where the server has lost newer additions, or another command was faster.
            with suppress(MissingFile):
                manifest = await self._storage.read(note.manifest)
                if await self._shown() != manifest:
                    await self._storage.write(MANIFEST, manifest)
            shown, self.there = note, await self._index.look()
        if note is not None:
            await self._remove_older(note)

    async def _shown(self) -> bytes | None:
        """The manifest for people; None where there is none."""
        try:
            return await self._storage.read(MANIFEST)
        except MissingFile:
            return None

    async def _remove_older(self, note: ArchiveNote) -> None:
        checkpoint = self.there.checkpoint
        # Older ones only: another command may have written newer ones, and not have recorded them yet.
        old = [(f"manifest-{note.last:012}", "manifest-")]
        old += [(f"checkpoint-{checkpoint.position:012}", "checkpoint-")] if checkpoint is not None else []
        for name in await self._storage.names():
            if any(name.startswith(kind) and name < newest for newest, kind in old):
                await self._storage.remove(name)


class _Folding:
    """The log folded as it goes into the archive."""

    def __init__(self, begin: Checkpoint) -> None:
        self._state, self._tally = begin.state, begin.tally
        #: of the newest `folded`
        self._digest: tuple[str, str] | None = None

    @property
    def position(self) -> Position:
        return self._state.position

    def feed(self, page: Sequence[Recorded]) -> None:
        """The next events.

        Raises:
            FoldMismatch, UnreadableEvent: the log does not fold.
        """
        for one in page:
            self._tally.count(one)
            self._state = step(self._state, one)
            if one.kind == "folded":
                self._digest = one.id, decode_as(one, Folded).digest

    def checkpoint(self) -> Checkpoint | None:
        """Where the fold stands; None for a frozen run, whose readers want version 0.

        Raises:
            FoldMismatch: the banks are not what the log says.
        """
        if self._state.begun().config.frozen:
            return None
        if self._digest is not None and self._digest[1] != (digest := self._state.banks.digest()):
            raise FoldMismatch(self._digest[0], "digest", self._digest[1], digest)
        return Checkpoint(state=self._state, tally=self._tally)


def _lines(page: Sequence[Recorded], fold: _Folding) -> list[bytes]:
    fold.feed(page)
    return [export_line(one) for one in page]


def _packed(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(body)


def _is_sound(packed: bytes) -> bool:
    """Whether these are whole lines, whatever they say: not what a write that was cut short leaves."""
    try:
        body = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    except zstandard.ZstdError:
        return False
    return body.endswith(b"\n")
