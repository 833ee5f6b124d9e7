"""An rq worker that hosts one anyio loop and many episodes.

rq's own worker runs one job at a time. `HostWorker` keeps rq's bookkeeping (registries, executions, failed jobs) and
runs the bodies of up to `slots` jobs as tasks of one loop. rq's calls block, so they go one by one through a thread
beside the loop; nothing else touches the worker's state.

The rq hooks it uses, pinned by contract tests: `prepare_execution`, `prepare_job_execution`, `_finalize_success`,
`_finalize_failure`, `cleanup_execution`, `maintain_heartbeats`, `heartbeat`, `get_heartbeat_ttl`, `handle_exception`,
`register_birth`, `register_death`, `set_state`.
"""

import math
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import anyio
import structlog
from anyio import CancelScope, CapacityLimiter, Event, Semaphore, create_task_group, move_on_after, to_thread
from redis.exceptions import RedisError
from rq.exceptions import NoSuchJobError
from rq.executions import Execution
from rq.job import Job as RqJob
from rq.timeouts import JobTimeoutException
from rq.utils import now
from rq.worker import SimpleWorker, WorkerStatus
from typing_extensions import override

from infra.redis_client import our_errors, redacted
from infra.rq_claims import HOST_NAME, Claims
from infra.rq_keys import job_of, rq_connection, rq_queue
from infra.rq_leftovers import sweep
from infra.rq_queue import exists
from infra.telemetry import about_job
from runtime.errors import NotServed
from runtime.ports import Job, JobKind

_log = structlog.get_logger("chime.worker")

#: advances one episode
Advance = Callable[[Job], Awaitable[None]]
#: opened inside the loop: where clients are made, and closed once the last job has ended
Lifespan = Callable[[], AbstractAsyncContextManager[Advance]]

#: how long a stopping worker waits for Redis to take its jobs back, seconds
RELEASE_S = 10.0
#: how often claims are renewed, seconds
BEAT_S = 1.0
#: claims that were not renewed for so many beats are gone: the process is dead, or as good as dead
CLAIM_BEATS = 3.5
#: every so many beats rq's own heartbeats are sent too: they expire after 60 s and cost seven commands a job
RQ_EVERY_BEATS = 10
#: runs that a worker remembers it cannot serve
_REFUSED = 64
#: how long a job that this worker cannot serve is held before others see it again, seconds
NOT_SERVED_S = 1.0
#: how often rq's registries are swept of what died workers left, seconds
SWEEP_S = 60.0

_T = TypeVar("_T")


class HostWorker(SimpleWorker):
    """A worker of one queue: the queue of `kind`. Two queues would lose a job between pop and begin (rq uses the
    list of popped jobs for one queue only).

    Args:
        kind: which jobs.
        url, prefix: as `infra.rq_queue.RqQueue`.
        lifespan: gives the async body of a job.
        slots: jobs at once.
        grace_s: how long running jobs may go on after the first signal.
        beat_s: how often claims are renewed, seconds; they expire after CLAIM_BEATS of them.
        poll_s: how often an idle worker looks into its queue, seconds.

    Raises:
        Unreachable: the server does not answer.
    """

    def __init__(
        self,
        kind: JobKind,
        url: str,
        prefix: str,
        lifespan: Lifespan,
        *,
        slots: int = 16,
        grace_s: float = 30.0,
        beat_s: float = BEAT_S,
        poll_s: float = 0.05,
    ) -> None:
        connection = rq_connection(url, prefix)
        queue = rq_queue(kind, connection)
        name = f"{HOST_NAME}{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._where = f"{redacted(url)}, worker"
        with our_errors(self._where):
            # 15 s: the record of a dead worker expires after 75 s, and rq leaves the socket's time-out as it is.
            super().__init__([queue], name=name, connection=connection, serializer="json", worker_ttl=15)
        self.log_result_lifespan = self.log_job_description = False
        self._queue, self._prefix, self._lifespan, self._slots = queue, prefix, lifespan, slots
        self._grace_s, self._beat_s, self._poll_s = grace_s, beat_s, poll_s
        self._claims = Claims(connection, prefix, name, queue, ttl_s=CLAIM_BEATS * beat_s)
        self._facts = {
            "queue": queue.name,
            "host": socket.gethostname(),
            "pid": str(os.getpid()),
            "slots": str(slots),
            "since": _utc(),
        }
        #: job id -> since when; touched in the thread only
        self._held: dict[str, str] = {}
        #: run -> why this process cannot serve it
        self._refuses: dict[str, str] = {}
        self._thread = CapacityLimiter(1)
        self._reachable = True
        #: jobs that ended here, well or not
        self.ended = 0

    # -- outside ---------------------------------------------------------------------------------------------------

    @override
    def work(self, burst: bool = False, *_: Any, **__: Any) -> bool:
        """Serve in a loop of its own until a signal comes; with `burst`, until the queue is empty."""
        anyio.run(partial(self.serve, burst=burst, signals=(signal.SIGTERM, signal.SIGINT)))
        return self.ended > 0

    async def serve(self, *, burst: bool = False, signals: Sequence[signal.Signals] = ()) -> None:
        """Take jobs and run them until `stop`, a signal, or, with `burst`, an empty queue.

        Raises:
            Unreachable: the server does not answer at the start. Later the worker waits for it.
        """
        self._stopping, self._hurry, self._taking = Event(), Event(), CancelScope()
        self._free = Semaphore(self._slots)
        async with self._lifespan() as advance:
            with our_errors(self._where):
                await self._call(self._register)
            _log.info("worker started", worker_id=self.name, queue=self._queue.name, slots=self._slots)
            try:
                async with create_task_group() as beside:
                    beside.start_soon(self._beat)
                    if signals:
                        beside.start_soon(self._obey, signals)
                    await self._serve(advance, burst)
                    beside.cancel_scope.cancel()
            finally:
                with move_on_after(RELEASE_S, shield=True):
                    await self._quietly(self._unregister)
                _log.info("worker stopped", worker_id=self.name, jobs=self.ended)

    def stop(self) -> None:
        """Take no more jobs; end once the running ones have, or hand them back after the grace. Again: at once."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()
        self._taking.cancel()

    # -- the loop --------------------------------------------------------------------------------------------------

    async def _serve(self, advance: Advance, burst: bool) -> None:
        async with create_task_group() as drain:
            async with create_task_group() as jobs:
                drain.start_soon(self._drain, jobs.cancel_scope)
                with self._taking:
                    while True:
                        await self._free.acquire()
                        # A pop that is under way is not given up: its job would be held by nobody.
                        with CancelScope(shield=True):
                            taken = await self._take_or_wait()
                        if taken is not None:
                            jobs.start_soon(self._host, taken, advance)
                            continue
                        self._free.release()
                        if burst and self._reachable and self._free.value == self._slots:
                            break
                        await anyio.sleep(self._poll_s if self._reachable else max(self._poll_s, 1.0))
            drain.cancel_scope.cancel()

    async def _take_or_wait(self) -> RqJob | None:
        try:
            taken = await self._call(self._take)
        except RedisError as error:
            if self._reachable:
                _log.warning("redis unreachable, waiting for it", worker_id=self.name, exc_info=error)
            self._reachable = False
            return None
        if not self._reachable:
            _log.info("redis answers again", worker_id=self.name)
        self._reachable = True
        return taken

    async def _host(self, rq_job: RqJob, advance: Advance) -> None:
        """One job from begin to end; never raises but for cancellation."""
        try:
            with CancelScope(shield=True):
                execution = await self._quietly(partial(self._begin, rq_job))
            if execution is None:
                return  # not begun: whoever asks for lost jobs finds it
            try:
                failure = await self._failure_of(rq_job, advance)
                if isinstance(failure, NotServed):
                    await self._refuse(rq_job, failure)
            except anyio.get_cancelled_exc_class():
                with CancelScope(shield=True):
                    await self._quietly(partial(self._hand_back, rq_job, execution))
                raise
            end = partial(self._settle, rq_job, execution, failure)
            if isinstance(failure, NotServed):
                end = partial(self._hand_back, rq_job, execution, at_front=False)
            with CancelScope(shield=True):
                await self._quietly(end)
        finally:
            self._free.release()

    async def _refuse(self, rq_job: RqJob, why: NotServed) -> None:
        """Say that this process cannot serve the job's run, and hold the job while others may see that."""
        run = job_of(rq_job.args).run
        if run not in self._refuses:
            _log.warning("run left to other workers", run_id=run, worker_id=self.name, reason=str(why))
            while len(self._refuses) >= _REFUSED:
                del self._refuses[next(iter(self._refuses))]
        self._refuses[run] = str(why)
        await self._quietly(self._renew)
        await anyio.sleep(NOT_SERVED_S)

    async def _failure_of(self, rq_job: RqJob, advance: Advance) -> Exception | None:
        """Run the job's body under its deadline; what went wrong."""
        try:
            job = job_of(rq_job.args)
            with about_job(job, job_id=rq_job.id, worker_id=self.name):
                with move_on_after(rq_job.timeout if (rq_job.timeout or 0) > 0 else None) as deadline:
                    await advance(job)
                    self._refuses.pop(job.run, None)
        except Exception as error:  # noqa: BLE001 - the outermost loop of a job: rq records it, the host lives on
            return error
        return JobTimeoutException(f"job overran its {rq_job.timeout} s") if deadline.cancelled_caught else None

    async def _drain(self, jobs: CancelScope) -> None:
        await self._stopping.wait()
        with move_on_after(self._grace_s):
            await self._hurry.wait()
        jobs.cancel()

    async def _obey(self, signals: Sequence[signal.Signals]) -> None:
        with anyio.open_signal_receiver(*signals) as received:
            async for signum in received:
                _log.info("stopping on signal", worker_id=self.name, signal=signum.name, running=len(self._held))
                self.stop()

    async def _beat(self) -> None:
        beats, swept = 0, -SWEEP_S
        while True:
            if await self._quietly(self._renew) and not self._stopping.is_set():
                _log.info("asked to drain", worker_id=self.name, running=len(self._held))
                self.stop()
            if beats % RQ_EVERY_BEATS == 0:
                await self._quietly(self._tell_rq)
            if beats * self._beat_s - swept >= SWEEP_S:
                swept = beats * self._beat_s
                await self._quietly(partial(sweep, self._queue, self._prefix))
            beats += 1
            await anyio.sleep(self._beat_s)

    async def _call(self, call: Callable[[], _T]) -> _T:
        """The answer of a blocking call, from the one thread that is rq's."""
        return await to_thread.run_sync(call, limiter=self._thread)

    async def _quietly(self, call: Callable[[], _T]) -> _T | None:
        """As `_call`; where Redis does not answer, None: the log is the truth, and what rq missed expires."""
        try:
            return await self._call(call)
        except RedisError as error:
            _log.warning("redis did not take a worker's note", worker_id=self.name, exc_info=error)
            return None

    # -- rq's thread -----------------------------------------------------------------------------------------------

    def _register(self) -> None:
        self.register_birth()  # type: ignore[no-untyped-call]  # rq leaves it untyped
        self.set_state(WorkerStatus.IDLE)
        self._renew()

    def _unregister(self) -> None:
        try:
            self._claims.end()
            self.register_death()  # type: ignore[no-untyped-call]  # rq leaves it untyped
            self.connection.delete(self.key)
        finally:
            self.connection.close()

    def _renew(self) -> bool:
        state = {"state": "draining" if self._stopping.is_set() else "serving"}
        return self._claims.renew(self._held, self._facts | state, self._refuses)

    def _tell_rq(self) -> None:
        self.heartbeat()
        for execution in list(self.executions.values()):
            self.maintain_heartbeats(execution.job, execution)

    def _take(self) -> RqJob | None:
        since = _utc()
        while (taken := self._claims.take(since)) is not None:
            try:
                rq_job = RqJob.fetch(taken, connection=self.connection, serializer=self.serializer)
            except NoSuchJobError:
                self._queue.intermediate_queue.remove(taken)
                self._claims.let_go(taken)
                continue
            self._held[taken] = since
            return rq_job
        return None

    def _begin(self, rq_job: RqJob) -> Execution:
        try:
            execution = self.prepare_execution(rq_job)
            self.prepare_job_execution(rq_job, remove_from_intermediate_queue=True)
        except RedisError:
            self._held.pop(rq_job.id, None)
            raise
        rq_job.started_at = now()
        return execution

    def _settle(self, rq_job: RqJob, execution: Execution, failure: Exception | None) -> None:
        self.ended += 1
        try:
            if not exists(rq_job.id, self.connection):
                # Given up as lost while this process hung: rq would write its record anew, for good.
                with self.connection.pipeline() as pipeline:
                    self.cleanup_execution(rq_job, pipeline, execution)
                    pipeline.execute()
            elif failure is None:
                self._finalize_success(rq_job, self._queue, execution, None)
            else:
                self._finalize_failure(rq_job, self._queue, execution, (type(failure), failure, failure.__traceback__))
        finally:
            self._release(rq_job, execution)

    def _hand_back(self, rq_job: RqJob, execution: Execution, *, at_front: bool = True) -> None:
        """Back to the queue, as if it had never been taken; a job of a forgotten run is dropped."""
        try:
            with self.connection.pipeline() as pipeline:
                if exists(rq_job.id, self.connection):
                    rq_job.started_at = rq_job.worker_name = None
                    # First: rq opens the transaction here.
                    self._queue.enqueue_job(rq_job, pipeline=pipeline, at_front=at_front)
                self.cleanup_execution(rq_job, pipeline, execution)
                pipeline.execute()
            _log.info("job handed back", job_id=rq_job.id, worker_id=self.name)
        finally:
            self._release(rq_job, execution)

    def _release(self, rq_job: RqJob, execution: Execution) -> None:
        self._held.pop(rq_job.id, None)
        self.executions.pop(execution.id, None)
        self._claims.let_go(rq_job.id)
        if not self.executions:
            self.set_state(WorkerStatus.IDLE)

    # -- rq's hooks ------------------------------------------------------------------------------------------------

    @override
    def get_heartbeat_ttl(self, job: RqJob, working_time: float = 0.0) -> int:
        """How long rq believes in a job without a heartbeat, seconds."""
        return math.ceil(3 * RQ_EVERY_BEATS * self._beat_s)

    @override
    def handle_exception(self, job: RqJob, *exc_info: Any) -> None:
        """One line for a job that raised."""
        _log.error("job failed", job_id=job.id, worker_id=self.name, queue=self._queue.name, exc_info=exc_info)

    @override
    def procline(self, message: str) -> None:
        """Leave the process title alone: one title cannot name sixteen jobs."""


def _utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
