"""Conductor and projector of the open runs of a server: one reader per run, and what follows from what it reads."""

from collections.abc import Callable
from dataclasses import dataclass

import anyio
import structlog

from events.errors import ChimeError
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
        self._noted = 0

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
        wrong = self.projector.wrong_recalls
        while self._noted < len(wrong):
            await self.conductor.tell(Noted(topic="recall_differs", facts={"event": wrong[self._noted]}))
            self._noted += 1


class Coordinator:
    """Serves every open run of a server, and takes on new ones as they start."""

    def __init__(self, store: LogStore, queue: JobQueue, clock: Clock) -> None:
        self._store, self._queue, self._clock = store, queue, clock
        self._serving: set[RunId] = set()

    async def serve(self) -> None:
        """Until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                for run in await self._store.runs():
                    if run not in self._serving:
                        self._serving.add(run)
                        tasks.start_soon(self._serve_run, run)
                await self._clock.sleep(_RUNS_S)

    async def _serve_run(self, run: RunId) -> None:
        """One run; a run that cannot go on is left alone, the others go on."""
        coordinator = RunCoordinator(self._store.open(run), self._queue, self._clock)
        try:
            while (control := await coordinator.run()) != "finished":
                _log.warning("run_waits", run_id=run, control=control, reason=coordinator.conductor.reason)
                await self._clock.sleep(_RUNS_S)
        except ChimeError as error:
            _log.error("run_left", run_id=run, error=str(error))
