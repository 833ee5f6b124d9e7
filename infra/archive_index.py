"""What a server knows of a run's archive: where it lies, what it holds, what was trimmed for it.

In the index of the run: `@archive` -> the facts of the newest note (docs/events.md), `@archived` -> the last position
that the archive holds, `@checkpoint` -> the newest checkpoint's, `@trimmed` -> the last position that lies there only.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import accumulate
from typing import Any, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from events.codec import canonical
from events.errors import Mismatch
from events.ids import BankVersion, Position, RunId
from infra.redis_client import Script, our_errors
from infra.segments import Segment

#: what precedes every script that reads an index
ARCHIVED_ROWS = (files("infra") / "archived_rows.lua").read_text()
_TRIM = Script(ARCHIVED_ROWS + (files("infra") / "archive_trim.lua").read_text())
#: the fields that hold those rows
_PAST = b"@past/"

#: KEYS index; ARGV the last position archived before, then field, value ...: written where nobody archived meanwhile
_RECORD = Script("""
local archived, head = unpack(redis.call('HMGET', KEYS[1], '@archived', '@head'))
if (archived or '0') ~= ARGV[1] or not head then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
""")


def past_fields(index: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The fields that a run's index does without, as it has them of other episodes; `archived_rows.lua` says how."""
    found: dict[bytes, bytes] = {}
    for field, lines in index.items():
        if field.startswith(_PAST):
            for line in lines.splitlines():
                t, events, last_kind, _, *steps = line.split(b" ")
                *places, folded = (b"%d" % at for at in accumulate(map(int, steps)))
                found[b"episode-%s" % t] = b"%s %s" % (events, last_kind)
                found |= {b"episode-%s/%d" % (t, version): place for version, place in enumerate(places, 1)}
                found[b"projector/%d" % (int(t) + 1)] = folded
    return found


def past_field(t: int) -> str:
    """The field that holds the line of episode `t`, where there is one."""
    return f"{_PAST.decode()}{t // 64}"


class CheckpointFile(Struct, frozen=True, kw_only=True):
    """A checkpoint as a note names it."""

    file: str
    #: what it holds everything up to
    position: Position
    bank_version: BankVersion
    #: of the banks at that version
    digest: str
    #: hex, of the file's uncompressed bytes
    sha256: str


class ArchiveNote(Struct, frozen=True, kw_only=True):
    """The facts of a `noted` with topic `archive`: what was added to a run's archive."""

    #: `archive/<run>` inside a home, an absolute folder, or a URL
    storage: str
    #: lists every segment up to `last`
    manifest: str
    #: of `segments`
    first: Position
    last: Position
    #: of the last segment: stands for the whole log up to `last`
    chain: str
    segments: list[Segment]
    #: None where this addition brings none
    checkpoint: CheckpointFile | None


class Archived(Struct, frozen=True, kw_only=True):
    """How a run's log stands with its archive."""

    head: Position
    #: the last position that lies in the archive only
    trimmed: Position
    #: None = nothing is archived
    note: ArchiveNote | None
    #: the newest there is
    checkpoint: CheckpointFile | None

    @property
    def last(self) -> Position:
        """The last position that the archive holds."""
        return self.note.last if self.note is not None else Position(0)


class ArchiveIndex:
    """Those fields of one run.

    Args:
        redis: the client.
        run: whose.
        keys: its log, its index, and where some events stay when the log is trimmed.
        where: the server, for errors.
    """

    def __init__(self, redis: Redis, run: RunId, keys: Sequence[str], where: str) -> None:
        self._redis, self._run, self._keys = redis, run, list(keys)
        self._where = f"{where}, key {keys[1]}"

    async def look(self) -> Archived:
        """How the log stands with its archive.

        Raises:
            Mismatch: the fields are not ours.
        """
        with our_errors(self._where):
            found = cast(
                "list[bytes | None]",
                await self._redis.hmget(self._keys[1], ["@head", "@trimmed", "@archive", "@checkpoint"]),
            )
        head, trimmed, note, checkpoint = found
        try:
            return Archived(
                head=Position(int(head or 0)),
                trimmed=Position(int(trimmed or 0)),
                note=msgspec.json.decode(note, type=ArchiveNote) if note else None,
                checkpoint=msgspec.json.decode(checkpoint, type=CheckpointFile) if checkpoint else None,
            )
        except ValueError as error:
            raise Mismatch(f"run {self._run}: its index says nothing readable of its archive: {error}") from error

    async def record(self, before: Position, note: ArchiveNote) -> None:
        """Write down that the archive holds what `note` says, having held everything up to `before`.

        Raises:
            Mismatch: somebody else has archived meanwhile.
        """
        fields: list[Any] = ["@archive", canonical(note), "@archived", note.last]
        if note.checkpoint is not None:
            fields += ["@checkpoint", canonical(note.checkpoint)]
        with our_errors(self._where):
            done = await _RECORD.run(self._redis, [self._keys[1]], [before, *fields])
        # A reply that was lost: the same words are there.
        if not done and (await self.look()).note != note:
            raise Mismatch(f"run {self._run} was archived by another process meanwhile; give the command once more")

    async def trim(self, upto: Position, staying: Sequence[Position], folds: Sequence[int]) -> None:
        """Let go of every position up to `upto`; the events at `staying` stay, in another key.

        Of the episodes `folds`, whose folds go, the index keeps a line each.

        Raises:
            Mismatch: they are not recorded as archived, or the log was cut by hand.
        """
        with our_errors(self._where):
            try:
                await _TRIM.run(self._redis, self._keys, [upto, len(staying), *staying, *folds])
            except ResponseError as error:
                if str(error).startswith("BROKEN"):
                    raise Mismatch(f"run {self._run}: {str(error).removeprefix('BROKEN ')}") from error
                raise
