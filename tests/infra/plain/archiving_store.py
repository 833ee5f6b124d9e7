"""A store whose logs are archived after every append, all but the last event."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from events.errors import Mismatch
from events.ids import Position, RunId, StreamId, Version
from events.log import Draft, Recorded
from infra import archive
from infra.redis_log import RedisLog, RedisLogStore
from runtime.ports import Appended, Origin, Taken


class _Unfolded:
    """Events that are no run's do not fold."""

    #: never behind what is archived: there is nothing to catch up with
    position = Position(1 << 60)

    def feed(self, page: Sequence[Recorded]) -> None:
        """Nothing."""

    def checkpoint(self) -> None:
        """None."""


async def _untold(event: object) -> None:
    """The log is to hold what the test puts into it."""


async def archive_all(store: RedisLogStore, run: RunId) -> None:
    """Archive what no rule would let go yet."""
    work = await archive._Archiving.begun(store, run, None, _untold, lambda _: None)
    work._fold = _Unfolded()  # type: ignore[assignment]
    await work.stands()
    await work.go_on()
    last = Position(await store.open(run).head() - 1)
    while work.there.last < last:
        await work.add(last)


class _ArchivingLog:
    """A `RedisLog` in which nothing stays long."""

    def __init__(self, store: RedisLogStore, log: RedisLog) -> None:
        self._store, self._log = store, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(
        self, stream: StreamId, first: Version, drafts: Sequence[Draft], origin: Origin
    ) -> Appended | Taken:
        """Append, then archive; of two at once one archives."""
        done = await self._log.append(stream, first, drafts, origin)
        with suppress(Mismatch):
            await archive_all(self._store, self._log.run)
        return done


class ArchivingStore(RedisLogStore):
    """As `RedisLogStore`, with a home for the archives."""

    def open(self, run: RunId) -> Any:
        """Its log, archived as it grows."""
        return _ArchivingLog(
            RedisLogStore(self._redis, self._prefix, self._clock, self._where, home=self.home), super().open(run)
        )
