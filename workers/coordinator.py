"""Conductor and projector of the open runs of a server: one reader per run, and what follows from what it reads."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import structlog

from events.errors import ChimeError, Unreachable, VersionGap
from events.ids import Position, RunId
from events.kinds import Noted
from runtime.ports import Clock, EventLog, JobQueue, LogStore
from workers.conductor import Conductor, Control
from workers.projector import Projector

_log = structlog.get_logger("chime.coordinator")

#: how long one wait for news lasts, seconds
_PATIENCE_S = 1.0
#: how often outstanding jobs are looked after, seconds
_LIVENESS_S = 2.0
#: how long after an outage the log is asked again, seconds
_AGAIN_S = 1.0
#: how often a server's list of runs is read, seconds
_RUNS_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What a run looks like from its coordinator, after each round."""

    conductor: Conductor
    projector: Projector


class RunCoordinator:
    """Serves one run until it is finished, paused, or cancelled."""

    def __init__(
        self, log: EventLog, queue: JobQueue, clock: Clock, on_round: Callable[[RunView], None] | None = None
    ) -> None:
        self._events, self._clock = log, clock
        self._on_round = on_round
        self.conductor = Conductor(log, queue)
        self.projector = Projector(log)
        self._position = Position(0)

    async def run(self) -> Control:
        """Work until nothing is left to do or somebody stopped the run; how it stands then.

        Raises:
            FoldMismatch: the log holds a fold that this code would not make.
            Unreachable: the server does not answer.
        """
        looked = self._clock.monotonic()
        while True:
            await self._read()
            await self.projector.fold()
            await self._note_wrong_recalls()
            folded = self.projector.version
            if (outcome := self.conductor.ended(folded)) is not None:
                await self.conductor.finish(outcome, folded)
                await self._read()
            if self._on_round:
                self._on_round(RunView(conductor=self.conductor, projector=self.projector))
            if self.conductor.control in ("finished", "paused", "stopped"):
                return self.conductor.control
            await self.conductor.enqueue_due(folded)
            if self._clock.monotonic() - looked >= _LIVENESS_S:
                await self._look_after_jobs()
                looked = self._clock.monotonic()
            await self._events.wait(self._position, _PATIENCE_S)

    @property
    def position(self) -> Position:
        """The last event read."""
        return self._position

    async def _read(self) -> None:
        async for page in self._events.pages(self._position):
            for recorded in page:
                self.conductor.see(recorded)
                self.projector.see(recorded)
                self._position = recorded.position

    async def _look_after_jobs(self) -> None:
        lost = await self.conductor.lost()
        if lost:
            # A job that has just ended is in no queue either: its events tell it from a lost one.
            await self._read()
            await self.conductor.reissue(lost)

    async def _note_wrong_recalls(self) -> None:
        if self.conductor.control == "finished":
            return
        for event in self.projector.wrong_recalls:
            if event not in self.conductor.recalls_noted:
                # Kept here too: what is written is read only in the next round.
                self.conductor.recalls_noted.add(event)
                await self.conductor.tell(Noted(topic="recall_differs", facts={"event": event}))


async def coordinated(
    log: EventLog,
    queue: JobQueue,
    clock: Clock,
    on_round: Callable[[RunView], None] | None = None,
    *,
    patience_s: float = math.inf,
) -> RunCoordinator:
    """A run served until it is finished, paused or stopped, over outages of the server; the coordinator at its end.

    After an outage, and where the server lost its tail, everything derived is dropped and the log is read again.

    Args:
        log: of the run.
        queue: takes its jobs.
        clock: of the machine.
        on_round: told after each round.
        patience_s: how long the server may be away.

    Raises:
        Unreachable: it is away for longer.
        FoldMismatch: the log holds a fold that this code would not make.
    """
    away_since: float | None = None

    def reached(view: RunView) -> None:
        nonlocal away_since
        away_since = None
        if on_round is not None:
            on_round(view)

    while True:
        coordinator = RunCoordinator(log, queue, clock, reached)
        try:
            await coordinator.run()
        except (Unreachable, VersionGap) as error:
            now = clock.monotonic()
            away_since = now if away_since is None else away_since
            if isinstance(error, Unreachable) and now - away_since >= patience_s:
                raise
            _log.warning("log_read_again", run_id=log.run, reason=str(error))
            await clock.sleep(_AGAIN_S)
        else:
            return coordinator


class Coordinator:
    """Serves every open run of a server, and takes on new ones as they start."""

    def __init__(self, store: LogStore, queue: JobQueue, clock: Clock) -> None:
        self._store, self._queue, self._clock = store, queue, clock
        self._serving: set[RunId] = set()

    async def serve(self) -> None:
        """Until cancelled, over outages of the server."""
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    runs = await self._store.runs()
                except Unreachable as error:
                    _log.warning("runs_not_listed", reason=str(error))
                    runs = []
                for run in runs:
                    if run not in self._serving:
                        self._serving.add(run)
                        tasks.start_soon(self._serve_run, run)
                await self._clock.sleep(_RUNS_S)

    async def _serve_run(self, run: RunId) -> None:
        """One run; a run that cannot go on is left alone, the others go on."""
        log = self._store.open(run)
        while True:
            try:
                if await _finished(log):
                    return
                await self._serve_until_it_stands(log)
            except (Unreachable, VersionGap) as error:
                _log.warning("log_read_again", run_id=run, reason=str(error))
                await self._clock.sleep(_AGAIN_S)
            except ChimeError as error:
                _log.error("run_left", run_id=run, error=str(error))
                return

    async def _serve_until_it_stands(self, log: EventLog) -> None:
        """One run until it is finished, or has something new to say after somebody stopped it."""
        coordinator = await coordinated(log, self._queue, self._clock)
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
