"""Jobs inside one process: for `--in-process`, notebooks and tests."""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from anyio import Event, create_task_group

from events.ids import RunId
from runtime.job_time import job_time
from runtime.logger import Logger
from runtime.ports import FIRST_ATTEMPTS, Attempts, Job, JobKind

_log = Logger("chime.queue")

KINDS: tuple[JobKind, JobKind] = ("act", "diagnose")

Handler = Callable[[Job], Awaitable[None]]


class LocalQueue:
    """The `JobQueue` of one process: first in, first out, for each kind by itself.

    It belongs to one event loop (asyncio or trio). Jobs do not outlive it: the log says what is missing.
    """

    def __init__(self) -> None:
        #: job -> its time limit in seconds, oldest first
        self._waiting: dict[JobKind, dict[Job, float]] = {kind: {} for kind in KINDS}
        self._running: set[Job] = set()
        self._asked: dict[RunId, dict[Job, Attempts]] = {}
        self._more = Event()
        self._closed = False

    async def enqueue(self, job: Job, timeout_s: float, attempts: Attempts = FIRST_ATTEMPTS) -> bool:
        """Queue `job` unless the same one waits or runs; whether it was new."""
        if job in self._waiting[job.kind] or job in self._running:
            return False
        self._waiting[job.kind][job] = timeout_s
        asked = self._asked.get(job.run, {}).items()
        self._asked[job.run] = {one: its for one, its in asked if one.episode >= attempts.folded} | {job: attempts}
        self._wake()
        return True

    async def enqueue_all(self, jobs: Mapping[Job, Attempts], timeout_s: float) -> None:
        """As `runtime.ports.JobQueue.enqueue_all`."""
        for job, attempts in jobs.items():
            await self.enqueue(job, timeout_s, attempts)

    async def asked(self, run: RunId) -> dict[Job, Attempts]:
        """What was asked for of the episodes of `run` that are not over, in this process."""
        return dict(self._asked.get(run, {}))

    async def lost(self, jobs: Iterable[Job]) -> list[Job]:
        """Those of `jobs` that neither wait nor run: ended, failed, or never queued here."""
        return [job for job in jobs if job not in self._waiting[job.kind] and job not in self._running]

    async def depths(self) -> dict[JobKind, int]:
        """How many jobs wait."""
        return {kind: len(waiting) for kind, waiting in self._waiting.items()}

    async def discard(self, jobs: Iterable[Job]) -> None:
        """Nothing: a job that is lost here has left nothing behind."""

    async def refused(self, run: RunId) -> str | None:  # noqa: ARG002 - the protocol names it
        """None: whoever serves this queue is the only one, and stops the run itself."""
        return None

    async def runs(self) -> set[RunId]:
        """The runs that have a job that waits or runs."""
        return {job.run for waiting in self._waiting.values() for job in waiting} | {job.run for job in self._running}

    async def tidy(self, run: RunId) -> int:
        """How many of the run's jobs wait or run; with none of them it is forgotten what was asked for."""
        if not (still := await self.forget(run, dry_run=True)):
            self._asked.pop(run, None)
        return still

    async def forget(self, run: RunId, *, dry_run: bool = False) -> int:
        """Remove the run's waiting jobs; how many wait or run. What runs goes on to its end."""
        mine = [job for waiting in self._waiting.values() for job in waiting if job.run == run]
        if not dry_run:
            for job in mine:
                del self._waiting[job.kind][job]
        return len(mine) + sum(job.run == run for job in self._running)

    def close(self) -> None:
        """Let every `serve` end once what it runs has ended; what waits stays."""
        self._closed = True
        self._wake()

    async def serve(self, handler: Handler, slots: int = 16, kind: JobKind | None = None) -> None:
        """Run `handler` on jobs of `kind` (None: each kind by itself), up to `slots` at once, until `close`.

        A handler that raises or overruns its job's time limit is logged and its job dropped: it is then `lost`.
        """
        async with create_task_group() as group:
            for each in KINDS if kind is None else (kind,):
                for _ in range(slots):
                    group.start_soon(self._slot, handler, each)

    async def _slot(self, handler: Handler, kind: JobKind) -> None:
        waiting = self._waiting[kind]
        while not self._closed:
            if not waiting:
                await self._more.wait()
                continue
            job = next(iter(waiting))
            timeout_s = waiting.pop(job)
            self._running.add(job)
            try:
                await self._run(handler, job, timeout_s)
            finally:
                self._running.discard(job)

    async def _run(self, handler: Handler, job: Job, timeout_s: float) -> None:
        facts = {"run_id": job.run, "episode_id": f"episode-{job.episode}", "attempt": job.attempt, "queue": job.kind}
        try:
            with job_time(timeout_s) as limit:
                await handler(job)
        except Exception as error:  # noqa: BLE001 - the outermost loop of in-process work: one job must not end it
            _log.error("job failed", exc_info=error, **facts)
        else:
            if limit.cancelled_caught:
                _log.error("job overran its time limit", timeout_s=timeout_s, **facts)

    def _wake(self) -> None:
        self._more.set()
        self._more = Event()
