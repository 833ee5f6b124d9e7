"""The beginning of a run's log that its server has let go of: read from the archive, but for some events that stay."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from redis.asyncio import Redis

from events.checkpoint import Checkpoint
from events.errors import BadInput, Mismatch, Unreachable
from events.ids import Position, RunId
from events.log import Recorded
from infra.archive_index import ArchiveIndex
from infra.archive_reading import Archive
from infra.archive_storage import MissingFile
from infra.redis_client import our_errors
from runtime.logger import Logger

T = TypeVar("T")

_log = Logger("chime.archive")


class Past:
    """Events up to `trimmed`, for `infra.redis_log.RedisLog`; costs nothing where nothing was trimmed.

    Args:
        redis: the client.
        run: whose.
        keys: the run's log, its index, and where some events stay.
        home: what a place inside the home is relative to.
        where: the server, for errors.
        recorded: makes an event of an entry of a stream.
    """

    def __init__(
        self,
        redis: Redis,
        run: RunId,
        keys: Sequence[str],
        home: Path | None,
        where: str,
        recorded: Callable[[Any], Recorded],
    ) -> None:
        self._redis, self._run, self._home, self._recorded = redis, run, home, recorded
        self._kept, self._where = keys[2], f"{where}, key {keys[2]}"
        self._index = ArchiveIndex(redis, run, keys, where)
        self._archive: Archive | None = None
        #: where a stretch of events that stay has ended
        self._kept_end = Position(0)
        self.trimmed = Position(0)

    async def look(self) -> Position:
        """Ask again what was trimmed.

        Raises:
            BadInput: the archive lies where this installation does not reach.
        """
        found = await self._index.look()
        if found.note is not None and (self._archive is None or self._archive.note != found.note):
            self._archive = Archive(self._run, found.note, self._home)
        self.trimmed = found.trimmed
        return self.trimmed

    def forget(self) -> None:
        """The server lost its tail: ask again before anything is read here, lest events come that it has lost."""
        self.trimmed, self._archive = Position(0), None

    async def read(self, after: Position, limit: int) -> list[Recorded]:
        """Up to `limit` events above `after`, which was trimmed; at least one.

        Raises:
            ArchiveAway: the archive cannot be reached from here.
            CorruptSegment: a segment of it is damaged; the others stay readable.
            Mismatch: the server names no archive that holds it.
        """
        limit = min(limit, self.trimmed - after)
        if after in (0, self._kept_end):
            with our_errors(self._where):
                entries = await self._redis.xrange(self._kept, min=f"{after + 1}-0", count=limit)
            kept = [self._recorded(one) for one in cast("list[Any]", entries)]
            stretch = [one for place, one in enumerate(kept, after + 1) if one.position == place]
            if stretch:
                self._kept_end = stretch[-1].position
                return stretch
        return await self._asked(Position(after + 1), lambda archive: archive.read(after, limit))

    async def at(self, positions: Sequence[Position]) -> dict[Position, Recorded]:
        """The events at `positions`, which were trimmed.

        Raises:
            As `read`.
        """
        return await self._asked(max(positions), lambda archive: archive.at(positions))

    async def _asked(self, position: Position, ask: Callable[[Archive], Awaitable[T]]) -> T:
        if self._archive is None or self._archive.note.last < position:
            await self.look()
        archive = self._archive
        if archive is None or archive.note.last < position:
            raise Mismatch(f"run {self._run}: the server holds position {position} no more, and names no archive of it")
        try:
            return await ask(archive)
        except MissingFile:
            # A manifest goes when the next one is recorded.
            await self.look()
            if self._archive is None or self._archive is archive:
                raise
            return await ask(self._archive)

    async def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint; None where there is none, or, after a warning, where it cannot be used."""
        found = await self._index.look()
        if found.checkpoint is None or found.note is None:
            return None
        try:
            return await Archive(self._run, found.note, self._home).checkpoint(found.checkpoint)
        except (Unreachable, Mismatch, BadInput) as error:
            _log.warning("checkpoint_not_used", run_id=self._run, reason=str(error))
            return None
