"""What lives on while processes die: the log, the queue, leases, recorded calls and bodies, all in memory."""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import trio
from simulated_faults import Faults
from trio.testing import MockClock
from typing_extensions import override

from events.errors import ChimeError
from events.ids import Position, RunId, StreamId, Version
from events.log import Draft, Recorded
from infra.failures import LocalFailures
from infra.leases import LocalLeases
from infra.list_log import ListLog
from runtime.ports import Appended, Attempts, Job, JobKind, Origin, Taken
from workers.host import BEAT_S, CLAIM_BEATS

RUN = RunId("simulated")
#: a worker's claims outlive their renewal by so many seconds
CLAIM_S = CLAIM_BEATS * BEAT_S


class VirtualClock:
    """Virtual seconds of the world that is played: trio's, which jump to the next deadline once everybody waits."""

    def __init__(self) -> None:
        self.trio = MockClock(autojump_threshold=0)

    def reset(self) -> None:
        """Back to the beginning, for the next world."""
        self.trio = MockClock(autojump_threshold=0)

    @property
    def now(self) -> float:
        return self.trio.current_time()


CLOCK = VirtualClock()


class ShortLog(ListLog):
    """A log that can lose its end."""

    def __init__(self, server: "SimulatedServer") -> None:
        super().__init__(RUN, server)
        #: when each event was written
        self.written: list[float] = []

    @property
    def events(self) -> list[Recorded]:
        return self._events

    @override
    async def append(
        self, stream: StreamId, first: Version, drafts: Sequence[Draft], origin: Origin
    ) -> Appended | Taken:
        result = await super().append(stream, first, drafts, origin)
        self.written += [CLOCK.now] * (len(self._events) - len(self.written))
        return result

    def lose(self, since: float) -> int:
        """Forget what was written after `since`, but for the run's beginning; how many events."""
        kept = sum(at <= max(since, 0.0) for at in self.written)
        lost = len(self._events) - kept
        del self._events[kept:], self.written[kept:]
        self._streams = {}
        for one in self._events:
            self._streams.setdefault(one.stream, []).append(one)
        return lost


@dataclass
class SimulatedServer:
    """What lives on while processes die: the log, the queue, leases, recorded calls and bodies."""

    #: starts a task of the server's own
    start: Callable[..., None]
    faults: Faults
    #: (virtual seconds, process, port, fate)
    trace: list[tuple[float, str, str, str]] = field(default_factory=list)
    away_until: float = 0.0
    #: no room for new episodes until then
    full_until: float = 0.0
    #: of the wall clock, seconds
    jumped_s: float = 0.0
    #: field -> record, when it was written
    calls: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    #: call field -> how often it was paid for
    paid: Counter[str] = field(default_factory=Counter)
    #: calls that were paid for though their answer was there before the job began
    paid_again: list[str] = field(default_factory=list)
    #: what coordinators did without the lease
    unled: list[str] = field(default_factory=list)
    #: episode id -> how often its host has crashed
    crashes: Counter[str] = field(default_factory=Counter)
    #: how many events were lost, each time
    tails: list[int] = field(default_factory=list)
    #: when it was away last, or lost something
    disturbed_at: float = 0.0
    #: when it last lost its tail
    lost_at: float = -math.inf

    def __post_init__(self) -> None:
        self.log = ShortLog(self)
        self.queue = QueueModel(self)
        self.leases = Offices()
        self.failures = LocalFailures(self)  # type: ignore[arg-type]  # a wall clock is all it needs

    def utc(self) -> str:
        now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=CLOCK.now + self.jumped_s)
        return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def later(self, act: Callable[[], Awaitable[Any]], delay_s: float) -> None:
        """A copy of a request acts after `delay_s`; nobody hears its reply."""

        async def acted() -> None:
            await trio.sleep(delay_s)
            if CLOCK.now < self.away_until:
                return
            # Nobody is told that the tail before it was lost meanwhile, or that the run is over.
            with suppress(ChimeError):
                await act()

        self.start(acted)

    @property
    def ended(self) -> bool:
        """Whether the run is finished."""
        return bool(self.log.events) and self.log.events[-1].kind == "run_finished"

    def lose(self, seconds: float) -> None:
        """Come back without what was written in the last `seconds`: it was not on disk."""
        since, self.lost_at = CLOCK.now - seconds, CLOCK.now
        self.tails.append(self.log.lose(since))
        self.calls = {name: one for name, one in self.calls.items() if one[1] <= since}
        self.queue.lose(since)


class Offices(LocalLeases):
    """The leases of the server, and who took them when."""

    def __init__(self) -> None:
        super().__init__(lambda: CLOCK.now)
        #: (virtual seconds, holder)
        self.taken: list[tuple[float, str]] = []

    @override
    def take(self, run: RunId, name: str, position: Position) -> int:
        if (before := self.now(run)) is None or before.name != name:
            self.taken.append((CLOCK.now, name))
        return super().take(run, name, position)


@dataclass
class _Claim:
    until: float
    jobs: set[Job]


class QueueModel:
    """A queue as rq and our host workers keep it: waiting jobs, a record for each job, claims that expire."""

    def __init__(self, server: SimulatedServer) -> None:
        self._dice, self._weather = server.faults.dice, server.faults.weather
        #: kind -> (job, in sight from, queued at), first in first out
        self.waiting: dict[JobKind, list[tuple[Job, float, float]]] = {"act": [], "diagnose": []}
        self.records: set[Job] = set()
        self.claims: dict[str, _Claim] = {}
        #: (asked for at, job, its attempts), for conductors that take over
        self._asked: list[tuple[float, Job, Attempts]] = []
        #: (job, popped at, queued at): what a lost tail brings back
        self._popped: list[tuple[Job, float, float]] = []
        #: every new entry: (virtual seconds, job)
        self.entered: list[tuple[float, Job]] = []
        #: jobs that somebody was told are lost
        self.told_lost: set[Job] = set()
        #: jobs that were still there when the rest was tidied away
        self.excused: set[Job] = set()
        #: reissues whose earlier attempt had still left something
        self.untidy: list[Job] = []
        self._news = trio.Event()

    def held(self, job: Job) -> bool:
        now = CLOCK.now
        return any(job in claim.jobs and now < claim.until for claim in self.claims.values())

    def waits(self, job: Job) -> bool:
        return any(one[0] == job for one in self.waiting[job.kind])

    def there(self, job: Job) -> bool:
        return self.waits(job) or self.held(job)

    async def enqueue(self, job: Job, attempts: Attempts) -> bool:
        if job in self.records and self.there(job):
            return False
        if job.attempt > 1 and job not in self.records:
            before = Job(kind=job.kind, run=job.run, episode=job.episode, attempt=job.attempt - 1)
            if before in self.records and not self.there(before):
                self.untidy.append(job)
        self.records.add(job)
        now = CLOCK.now
        self.entered.append((now, job))
        self._asked.append((now, job, attempts))
        self._put(job, now)
        return True

    async def asked(self) -> dict[Job, Attempts]:
        folded = max((attempts.folded for _, _, attempts in self._asked), default=0)
        return {job: attempts for _, job, attempts in self._asked if job.episode >= folded}

    def _put(self, job: Job, now: float) -> None:
        self.waiting[job.kind].append((job, now + self._dice.uniform(0, self._weather.job_delay_s), now))
        self._news.set()
        self._news = trio.Event()

    async def lost(self, jobs: Iterable[Job]) -> list[Job]:
        lost = [job for job in jobs if not self.there(job)]
        self.told_lost.update(lost)
        return lost

    async def discard(self, jobs: Iterable[Job]) -> None:
        self.records.difference_update([job for job in jobs if not self.there(job)])

    async def tidy(self) -> int:
        self.records = {job for job in self.records if self.there(job)}
        self.excused |= self.records
        return len(self.records)

    @property
    def left(self) -> list[Job]:
        """Jobs that neither wait nor are held, and have a record all the same."""
        left = self.records - self.excused
        return sorted([job for job in left if not self.there(job)], key=lambda one: (one.kind, one.episode))

    async def ready(self, kind: JobKind) -> None:
        """Wait until a job of that kind is in sight."""
        while True:
            in_sight = min((one[1] for one in self.waiting[kind]), default=float("inf"))
            if in_sight <= CLOCK.now:
                return
            with trio.move_on_at(in_sight):
                await self._news.wait()

    async def take(self, worker: str, kind: JobKind) -> Job | None:
        """Pop and claim in one step."""
        now = CLOCK.now
        visible = [one for one in self.waiting[kind] if one[1] <= now]
        if not visible:
            return None
        reordered = len(visible) > 1 and self._dice.random() < self._weather.reordered
        taken = self._dice.choice(visible) if reordered else visible[0]
        self.waiting[kind].remove(taken)
        claim = self.claims.setdefault(worker, _Claim(0.0, set()))
        if now >= claim.until:
            claim.jobs.clear()
        claim.jobs.add(taken[0])
        claim.until = now + CLAIM_S
        self._popped.append((taken[0], now, taken[2]))
        return taken[0]

    async def renew(self, worker: str, jobs: Collection[Job]) -> None:
        self.claims[worker] = _Claim(CLOCK.now + CLAIM_S, set(jobs))

    async def settle(self, worker: str, job: Job, *, failed: bool, again: bool = False) -> None:
        """The job has ended with `worker`; with `again` it goes back to the queue."""
        if worker in self.claims:
            self.claims[worker].jobs.discard(job)
        if again and job in self.records and not self.there(job):
            self._put(job, CLOCK.now)
        elif not failed and not self.there(job):
            self.records.discard(job)

    def end(self, worker: str) -> None:
        self.claims.pop(worker, None)

    def held_by(self, worker: str) -> set[Job]:
        claim = self.claims.get(worker)
        return set(claim.jobs) if claim is not None and CLOCK.now < claim.until else set()

    def lose(self, since: float) -> None:
        for kind, waiting in self.waiting.items():
            back = [(job, queued, queued) for job, popped, queued in self._popped
                    if job.kind == kind and popped > since >= queued]  # fmt: skip
            self.waiting[kind] = [*back, *(one for one in waiting if one[2] <= since)]
            self.records.update(one[0] for one in back)
        self._popped = [one for one in self._popped if one[1] <= since]
        self._asked = [one for one in self._asked if one[0] <= since]
        self._news.set()
        self._news = trio.Event()
