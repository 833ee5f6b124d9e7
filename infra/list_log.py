"""Logs in memory: for tests, simulations and runs that nobody needs to keep."""

from collections.abc import AsyncIterator, Sequence

import anyio
import anyio.lowlevel

from events.checkpoint import Checkpoint
from events.codec import content_sha256, decode_as, recorded
from events.errors import Mismatch, VersionGap
from events.ids import PROJECTOR_STREAM, RUN_STREAM, Position, RunId, StreamId, Version, episode_of
from events.kinds import Scored
from events.log import Draft, Recorded
from runtime.errors import RunEnded
from runtime.ports import Appended, Clock, LogOverview, Origin, StreamIndex, Taken

#: events in one page
PAGE = 100


class ListLog:
    """`runtime.ports.EventLog` over a list."""

    def __init__(self, run: RunId, clock: Clock) -> None:
        self._run, self._clock = run, clock
        self._events: list[Recorded] = []
        self._streams: dict[StreamId, list[Recorded]] = {}
        self._news = anyio.Event()

    @property
    def run(self) -> RunId:
        return self._run

    async def append(
        self, stream: StreamId, first: Version, drafts: Sequence[Draft], origin: Origin
    ) -> Appended | Taken:
        """As `runtime.ports.EventLog.append`."""
        await anyio.lowlevel.checkpoint()
        there = self._streams.setdefault(stream, [])
        if first > len(there) + 1:
            raise VersionGap(f"append to {self._run}/{stream}", len(there) + 1, first)
        known = there[first - 1 : first - 1 + len(drafts)]
        for old, new in zip(known, drafts, strict=False):
            if content_sha256(old.kind, old.data) != new.sha256:
                return Taken(stored=old)
        if len(known) < len(drafts) and self._events and self._events[-1].kind == "run_finished":
            raise RunEnded(self._run)
        if len(known) < len(drafts) and (basis := origin.basis) is not None:
            made_from = self._streams.get(basis.stream, [])[basis.version - 1 : basis.version]
            if not made_from or content_sha256(made_from[0].kind, made_from[0].data) != basis.sha256:
                lost = f"{self._run}/{basis.stream}/{basis.version}"
                raise VersionGap(f"append to {self._run}/{stream}, made from {lost}", basis.version, 0)
        for new in drafts[len(known) :]:
            event = recorded(
                new,
                run=self._run,
                stream=stream,
                version=len(there) + 1,
                position=len(self._events) + 1,
                at=self._clock.utc(),
                cause=origin.cause,
                attempt=origin.attempt,
            )
            there.append(event)
            self._events.append(event)
        if len(known) < len(drafts):
            self._news.set()
            self._news = anyio.Event()
        positions = [one.position for one in there[first - 1 : first - 1 + len(drafts)]]
        return Appended(positions=positions, written=len(drafts) - len(known))

    async def read_stream(self, stream: StreamId) -> list[Recorded]:
        """As `runtime.ports.EventLog.read_stream`."""
        await anyio.lowlevel.checkpoint()
        return list(self._streams.get(stream, ()))

    async def read(self, after: Position, limit: int, kinds: frozenset[str] | None = None) -> list[Recorded]:
        """As `runtime.ports.EventLog.read`."""
        await anyio.lowlevel.checkpoint()
        self._check(after)
        return [one for one in self._events[after : after + limit] if kinds is None or one.kind in kinds]

    async def pages(self, after: Position, kinds: frozenset[str] | None = None) -> AsyncIterator[list[Recorded]]:
        """As `runtime.ports.EventLog.pages`."""
        self._check(after)
        head = len(self._events)
        for start in range(after, head, PAGE):
            yield await self.read(Position(start), min(PAGE, head - start), kinds)

    async def wait(self, after: Position, timeout_s: float) -> bool:
        """As `runtime.ports.EventLog.wait`."""
        self._check(after)
        with anyio.move_on_after(timeout_s):
            while len(self._events) <= after:
                await self._news.wait()
        return len(self._events) > after

    async def index(self) -> dict[StreamId, StreamIndex]:
        """As `runtime.ports.EventLog.index`."""
        await anyio.lowlevel.checkpoint()
        return {
            stream: StreamIndex(positions=[one.position for one in events], last_kind=events[-1].kind)
            for stream, events in self._streams.items()
            if events
        }

    async def length(self, stream: StreamId) -> int:
        """As `runtime.ports.EventLog.length`."""
        return len(await self.read_stream(stream))

    async def checkpoint(self) -> Checkpoint | None:
        """As `runtime.ports.EventLog.checkpoint`: there is none."""
        return None

    async def head(self) -> Position:
        """As `runtime.ports.EventLog.head`."""
        await anyio.lowlevel.checkpoint()
        return Position(len(self._events))

    def overview(self) -> LogOverview:
        """As `runtime.ports.LogStore.overview`, of a log with events."""
        folds = self._streams.get(PROJECTOR_STREAM, [])
        episodes = {t: there for stream, there in self._streams.items() if (t := episode_of(stream)) is not None}
        scored = {t: decode_as(one, Scored) for t, there in episodes.items() for one in there if one.kind == "scored"}
        return LogOverview(
            run=self._run,
            head=Position(len(self._events)),
            first_kind=self._events[0].kind,
            first_at=self._events[0].at,
            last_at=self._events[-1].at,
            told=[one for one in self._streams.get(RUN_STREAM, []) if one.kind != "seeded"],
            folded=folds[-1] if folds else None,
            folds=len(folds),
            episodes=len(episodes),
            scores={t: one.success if one.valid else None for t, one in scored.items()},
        )

    def restore(self, events: Sequence[Recorded]) -> None:
        """Events as they were recorded, into this empty log; see `runtime.ports.LogStore.restore`."""
        if self._events:
            raise Mismatch(f"run {self._run} is there already, with {len(self._events)} events")
        streams: dict[StreamId, list[Recorded]] = {}
        for position, one in enumerate(events, 1):
            there = streams.setdefault(one.stream, [])
            if (one.position, one.version) != (position, len(there) + 1):
                where = f"restore to {self._run}, stream {one.stream}"
                if one.position != position:
                    raise VersionGap(where, position, one.position)
                raise VersionGap(where, len(there) + 1, one.version)
            there.append(one)
        self._events, self._streams = list(events), streams
        self._news.set()
        self._news = anyio.Event()

    def _check(self, after: Position) -> None:
        if after > len(self._events):
            raise VersionGap(f"head of run {self._run}", after, len(self._events))


class ListLogStore:
    """`runtime.ports.LogStore` over a dictionary."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logs: dict[RunId, ListLog] = {}
        self._aside: set[RunId] = set()

    def open(self, run: RunId) -> ListLog:
        """The log of `run`; the same object every time."""
        return self._logs.setdefault(run, ListLog(run, self._clock))

    async def runs(self) -> list[RunId]:
        """Every run with at least one event, in id order."""
        return sorted([run for run, log in self._logs.items() if await log.head() > 0])

    async def overview(self) -> list[LogOverview]:
        """As `runtime.ports.LogStore.overview`."""
        return [self._logs[run].overview() for run in await self.runs()]

    async def set_aside(self) -> frozenset[RunId]:
        """As `runtime.ports.LogStore.set_aside`."""
        return frozenset(self._aside)

    async def take_up(self, run: RunId) -> None:
        """As `runtime.ports.LogStore.take_up`."""
        self._aside.discard(run)

    async def delete(self, run: RunId, *, dry_run: bool = False) -> dict[str, int]:
        """Forget a run; how many events it had."""
        log = self._logs.get(run)
        if log is None:
            return {"events": 0}
        if not dry_run:
            del self._logs[run]
            self._aside.discard(run)
        return {"events": await log.head()}

    async def restore(self, run: RunId, pages: AsyncIterator[Sequence[Recorded]]) -> Position:
        """As `runtime.ports.LogStore.restore`."""
        events = [one async for page in pages for one in page]
        self.open(run).restore(events)
        self._aside |= {run} if events else set()
        return Position(len(events))
