"""Conductor and projector of the open runs of a server: one reader per run, and what follows from what it reads."""

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import anyio

from events.errors import ChimeError, Unreachable, VersionGap
from events.ids import RUN_STREAM, Position, RunId
from events.kinds import Noted
from events.log import Recorded
from infra.banks.generations import Generations
from infra.banks.mirror import MirrorView
from infra.leases import Leases
from infra.redis_client import ServerFull
from runtime.beside import beside
from runtime.errors import RunEnded, RunGone, RunSpent
from runtime.logger import Logger
from runtime.ports import Clock, EventLog, Failures, Intake, JobQueue, LogStore
from workers.conductor import Conductor, Control
from workers.connections import BankWay
from workers.gate_rates import WARN_DEGRADED
from workers.mirroring import Mirroring
from workers.projector import Projector

_log = Logger("chime.coordinator")

#: events of one read
_PAGE = 100
#: how long one wait for news lasts, seconds: a lease is renewed, or looked at, once a round
_PATIENCE_S = 0.5
#: how often a lease is renewed while there is news all the time, seconds
_RENEW_S = 0.4
#: how often outstanding jobs are looked after, seconds
_LIVENESS_S = 1.0
#: at multiples of which moment, seconds
_TOGETHER_S = 0.5
#: how long workers may take to say that they live, after we or the server were away, seconds
_GRACE_S = 3.0
#: how long after an outage the log is asked again, seconds
_AGAIN_S = 1.0
#: how often a server's list of runs is read, seconds
_RUNS_S = 1.0
#: how often the queue is looked through for jobs of finished runs, seconds
_SWEEP_S = 30.0
#: how long the workers of a finished run may take to let go of its last jobs, seconds
_TIDY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What coordinators of one server stand on."""

    queue: JobQueue
    leases: Leases
    intake: Intake
    clock: Clock
    #: who we are, in leases: another name for each process
    holder: str
    #: why jobs failed
    failures: Failures | None = None
    #: take leases from others: for a queue that nobody else can fill
    by_force: bool = False
    #: starts a server of ours again where it has died
    revive: Callable[[], Awaitable[None]] | None = None
    #: the way to the bank server, and which generation of each bank serves; None where nobody has opened one
    banks: BankWay | None = None
    generations: Generations | None = None
    #: share of degraded diagnoses, of the last 50, above which a run warns
    warn_degraded: float = WARN_DEGRADED


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What a run looks like from its coordinator, after each round."""

    run: RunId
    conductor: Conductor
    projector: Projector
    #: whether we coordinate the run; else another process does
    acting: bool
    #: why nothing new is begun: no room, or a server that is away
    waits_for: str | None
    #: how the run's bank store is kept; None where there is none, or another process keeps it
    mirror: MirrorView | None = None
    #: what somebody should look at, in the round that finds it; "" = nothing new
    warning: str = ""


class RunCoordinator:
    """Serves one run until it is finished or stopped; while another process holds its lease, only reads along."""

    def __init__(self, log: EventLog, ground: Ground, on_round: Callable[[RunView], None] | None = None) -> None:
        self._events, self._ground, self._clock = log, ground, ground.clock
        self._on_round = on_round
        self._lease = ground.leases.of(log.run, ground.holder, by_force=ground.by_force)
        self.conductor = Conductor(log, ground.queue, ground.failures)
        self.projector = Projector(log)
        #: what feeds the run's bank store: its `run` belongs beside ours
        self.mirroring = Mirroring(log.run, self.projector, ground.banks, ground.generations, ground.clock)
        self._position = Position(0)
        self._term: int | None = None
        self._intake: str | None = None
        self._next_look = 0.0
        self._renewed = 0.0

    @property
    def position(self) -> Position:
        """The last event read."""
        return self._position

    async def run(self) -> Control:
        """Work until nothing is left to do or the run was stopped; how it stands then. May be called again.

        Raises:
            FoldMismatch: the log holds a fold that this code would not make.
            RunGone: there is no log.
            Unreachable: the server does not answer; what was read stands.
            VersionGap: the server lost the log's tail; what was read does not stand.
        """
        self._rest()
        await self._begin()
        while True:
            await self._read()
            if self._position == 0:
                raise RunGone(self._events.run)
            holds = await self._holds()
            if self.conductor.control != "finished":
                self.mirroring.follow(self.conductor.store)
            if holds:
                # Where another one has finished the run meanwhile, the next read says so.
                with suppress(RunEnded):
                    await self._act()
            warning = self._warned(holds=holds)
            if self._on_round:
                self._on_round(self.view(self._intake, warning))
            if await self._over(holds=holds):
                await self.mirroring.settle()
                await self._lease.release()
                return self.conductor.control
            await self._events.wait(self._position, self._patience_s())

    async def _over(self, *, holds: bool) -> bool:
        """Whether nothing is left to do: a run whose budget is spent finishes what is under way, as far as that may."""
        if self.conductor.control == "stopped" and self.conductor.kind == RunSpent.kind and holds:
            return not await self.conductor.under_way()
        return self.conductor.control in ("finished", "stopped")

    def _patience_s(self) -> float:
        """Until jobs are to be looked after, and no longer: half a second more and lost work comes back after 5 s."""
        left_s = self._next_look - self._clock.monotonic()
        return min(left_s, _PATIENCE_S) if self._term is not None and left_s > 0 else _PATIENCE_S

    def _warned(self, *, holds: bool) -> str:
        """That the gate gives too few judgements; logged by whoever coordinates the run."""
        above = self._ground.warn_degraded
        warning = self.conductor.progress.gate.warning(above)
        if warning and holds:
            figures = self.conductor.progress.gate.figures()
            _log.warning(
                "gate_degraded", run_id=self._events.run, reason=warning, repaired=figures.repaired,
                misleading_dropped=figures.misleading_dropped, unread=figures.unread,
            )  # fmt: skip
        return warning

    def view(self, waits_for: str | None, warning: str = "") -> RunView:
        """What the run looks like now."""
        return RunView(
            run=self._events.run,
            conductor=self.conductor,
            projector=self.projector,
            acting=self._term is not None,
            waits_for=waits_for,
            mirror=self.mirroring.view,
            warning=warning,
        )

    async def leave(self) -> None:
        """Let another one take over at once; nothing where the server is away, as the lease expires."""
        with suppress(Unreachable), anyio.move_on_after(_AGAIN_S, shield=True):
            await self._lease.release()

    async def _holds(self, *, surely: bool = False) -> bool:
        """Whether it is us who coordinates the run; `surely`: asked now, not a moment ago."""
        now = self._clock.monotonic()
        if self._term is not None and now - self._renewed < _RENEW_S and not surely:
            return True
        before, term = self._term, await self._lease.hold(self._position)
        if term is not None and term != before:
            await self.conductor.take_over()
            # That may have taken longer than a lease lasts.
            now = self._clock.monotonic()
            term = term if await self._lease.hold(self._position) == term else None
        self._term, self._renewed = term, now
        self.mirroring.hold(term)
        if term is not None and term != before:
            _log.info("lease_taken", run_id=self._events.run, term=term, position=self._position)
            self._rest()
        elif term is None and before is not None:
            _log.warning("lease_lost", run_id=self._events.run, term=before)
        return term is not None

    def _rest(self) -> None:
        """Judge no worker for a while: it may not have been able to say that it lives."""
        self._next_look = self._clock.monotonic() + _GRACE_S

    async def _act(self) -> None:
        await self.projector.fold()
        await self._note_wrong_recalls()
        folded = self.projector.version
        if (outcome := self.conductor.ended(folded)) is not None:
            await self.conductor.finish(outcome, folded)
            await self._read()
            await self._tidy()
        self._intake = await self._ground.intake.stopped() if self.conductor.control == "running" else None
        await self.conductor.enqueue_due(folded, begin=self._intake is None)
        # Of a run that has stopped no job is asked for again, and none is given up.
        if (now := self._clock.monotonic()) >= self._next_look and self.conductor.control != "stopped":
            # All runs of a process at the same moments: the queue answers them together.
            self._next_look = now + _LIVENESS_S - (now + _LIVENESS_S) % _TOGETHER_S
            await self._look_after_jobs()

    async def _begin(self) -> None:
        """Where an archive holds the beginning of the log, begin with its checkpoint."""
        if self._position == 0 and (found := await self._events.checkpoint()) is not None:
            self.conductor.begin(found, await self._events.read_stream(RUN_STREAM))
            self.projector.begin(found.state)
            self._position = found.state.position

    async def _read(self) -> None:
        before = self.conductor.control
        page: Sequence[Recorded] | None = None
        while page is None or len(page) == _PAGE:
            page = await self._events.read(self._position, _PAGE)
            for recorded in page:
                self.conductor.see(recorded)
                self.projector.see(recorded)
                self._position = recorded.position
        if (now := self.conductor.control) != before and now != "finished":
            reason = self.conductor.reason
            _log.warning(f"run_{now}", run_id=self._events.run, reason=reason)

    async def _look_after_jobs(self) -> None:
        if lost := await self.conductor.lost():
            # A job that has just ended is in no queue either: its events tell it from a lost one. And where we were
            # stopped meanwhile, another one has looked after it.
            await self._read()
            if await self._holds(surely=True):
                await self.conductor.reissue(lost)
        await self.conductor.look_for_workers()

    async def _tidy(self) -> None:
        """Nothing of the run's jobs is left in the queue."""
        until = self._clock.monotonic() + _TIDY_S
        while await self._ground.queue.tidy(self._events.run) and self._clock.monotonic() < until:
            await self._clock.sleep(_PATIENCE_S)

    async def _note_wrong_recalls(self) -> None:
        if self.conductor.control == "finished":
            return
        for event, source in self.projector.wrong_recalls.items():
            if event not in self.conductor.recalls_noted:
                # Kept here too: what is written is read only in the next round.
                self.conductor.recalls_noted.add(event)
                if source == "weaviate":
                    self.mirroring.doubt(f"recall {event} differs")
                await self.conductor.tell(Noted(topic="recall_differs", facts={"event": event}))


async def coordinated(
    log: EventLog,
    ground: Ground,
    on_round: Callable[[RunView], None] | None = None,
    *,
    patience_s: float = math.inf,
) -> RunCoordinator:
    """A run served until it is finished or stopped, over outages of the server; the coordinator at its end.

    Where the server lost its tail, everything derived is dropped and the log is read again.

    Args:
        log: of the run.
        ground: the server's queue, leases and room, and the clock.
        on_round: told after each round.
        patience_s: how long the server may be away; one that is full is waited for until there is room.

    Raises:
        Unreachable: it is away for longer.
        RunGone: the log was deleted, or its server has lost it whole.
        FoldMismatch: the log holds a fold that this code would not make.
    """
    outage = _Outage(log.run, ground, patience_s)

    def reached(view: RunView) -> None:
        outage.over()
        if on_round is not None:
            on_round(view)

    coordinator = RunCoordinator(log, ground, reached)
    try:
        while True:
            try:
                async with beside() as tasks:
                    tasks.start_soon(coordinator.mirroring.run)
                    await _over_outages(coordinator, outage, on_round)
            except VersionGap as error:
                _log.warning("log_read_again", run_id=log.run, reason=str(error))
                coordinator = RunCoordinator(log, ground, reached)
                await ground.clock.sleep(_AGAIN_S)
            else:
                return coordinator
    finally:
        await coordinator.leave()


async def _over_outages(
    coordinator: RunCoordinator, outage: "_Outage", on_round: Callable[[RunView], None] | None
) -> None:
    """The coordinator's work to its end. Raises: as `coordinated`, and VersionGap."""
    while True:
        try:
            await coordinator.run()
        except RunGone:
            raise  # its server answers
        except Unreachable as error:
            if on_round is not None:
                on_round(coordinator.view(str(error)))
            await outage.waited(error)
        else:
            return


class _Outage:
    """How long a run's server has been away, and what is done about it."""

    def __init__(self, run: RunId, ground: Ground, patience_s: float) -> None:
        self._run, self._ground, self._patience_s = run, ground, patience_s
        self._since: float | None = None

    def over(self) -> None:
        """The server has answered."""
        self._since = None

    async def waited(self, error: Unreachable) -> None:
        """A moment later; a server of ours that has died was started again.

        Raises:
            Unreachable: the patience is over. A server that is full is waited for without end.
        """
        now = self._ground.clock.monotonic()
        if self._since is None:
            _log.warning("server_away", run_id=self._run, reason=str(error))
            self._since = now
        if now - self._since >= self._patience_s and not isinstance(error, ServerFull):
            raise error
        if self._ground.revive is not None:
            with suppress(Unreachable):
                await self._ground.revive()
        await self._ground.clock.sleep(_AGAIN_S)


class Coordinator:
    """Serves every open run of a server, and takes on new ones as they start."""

    def __init__(self, store: LogStore, ground: Ground) -> None:
        self._store, self._ground, self._clock = store, ground, ground.clock
        self._serving: set[RunId] = set()
        #: runs that were served to their end, or cannot go on
        self._left: set[RunId] = set()
        #: runs that were finished when we looked
        self._finished: set[RunId] = set()
        #: when the queue is looked through for their jobs
        self._next_tidy = 0.0

    async def serve(self) -> None:
        """Until cancelled, over outages of the server."""
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    aside = await self._store.set_aside()
                    runs = [run for run in await self._store.runs() if run not in aside]
                except Unreachable as error:
                    _log.warning("runs_not_listed", reason=str(error))
                else:
                    # One that was deleted may come again under its name.
                    self._left.intersection_update(runs)
                    self._finished.intersection_update(runs)
                    for run in runs:
                        if run not in self._serving | self._left:
                            self._serving.add(run)
                            tasks.start_soon(self._serve_run, run)
                await self._clock.sleep(_RUNS_S)
                if self._clock.monotonic() >= self._next_tidy:
                    self._next_tidy = self._clock.monotonic() + _SWEEP_S
                    await self._tidy_finished()

    async def _tidy_finished(self) -> None:
        """Jobs of runs that are finished or gone go from the queue: whoever ended them may have died before that."""
        with suppress(Unreachable):
            queued = await self._ground.queue.runs()
            # Asked after it: a run has a log before it has jobs.
            for run in queued & self._finished | queued.difference(await self._store.runs()):
                await self._ground.queue.tidy(run)

    async def _serve_run(self, run: RunId) -> None:
        """One run; a run that cannot go on is left alone, the others go on."""
        try:
            await self._serve_to_its_end(run)
        except RunGone as gone:
            _log.warning("run_gone", run_id=run, reason=str(gone))
        except ChimeError as error:
            self._left.add(run)
            _log.error("run_left", run_id=run, error=str(error))
        else:
            self._left.add(run)
        self._serving.remove(run)

    async def _serve_to_its_end(self, run: RunId) -> None:
        """One run over outages, until it is finished. Raises: as `coordinated`, but for a server that is away."""
        log, served = self._store.open(run), False
        while True:
            try:
                if await _finished(log):
                    self._finished.add(run)
                    self._next_tidy = 0.0
                    if not served:
                        return
                    # Once more, later: a server can lose the end of what it has just acknowledged.
                    served = False
                    await self._clock.sleep(_SWEEP_S)
                    continue
                self._finished.discard(run)
                served = True
                await self._serve_until_it_stands(log)
            except RunGone:
                raise
            except (Unreachable, VersionGap) as error:
                _log.warning("log_read_again", run_id=run, reason=str(error))
                await self._clock.sleep(_AGAIN_S)

    async def _serve_until_it_stands(self, log: EventLog) -> None:
        """One run until it is finished, or has something new to say after somebody stopped it."""
        coordinator = await coordinated(log, self._ground)
        if coordinator.conductor.control != "finished":
            reason = coordinator.conductor.reason
            _log.warning("run_waits", run_id=log.run, control=coordinator.conductor.control, reason=reason)
            while not await log.wait(coordinator.position, _PATIENCE_S):
                pass


async def _finished(log: EventLog) -> bool:
    """Whether the last event ends the run; one look, however long the log is."""
    head = await log.head()
    last = await log.read(Position(head - 1), 1) if head else []
    return bool(last) and last[0].kind == "run_finished"
