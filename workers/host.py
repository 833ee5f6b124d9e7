"""An rq worker that hosts one anyio loop and many episodes.

rq's own worker runs one job at a time, with some forty commands around it. `HostWorker` is a worker of rq by name and
record, takes its jobs from rq's queue by claims (`infra.rq_claims`), and runs the bodies of up to `slots` jobs as tasks
of one loop. Calls to Redis block, so they go through a thread beside the loop, what has gathered meanwhile in one call.

The rq hooks it uses, pinned by contract tests: `register_birth`, `register_death`, `heartbeat`, `set_state`.
"""

import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import anyio
from anyio import CancelScope, CapacityLimiter, Event, Semaphore, create_task_group, move_on_after, to_thread
from redis.exceptions import RedisError
from rq.timeouts import JobTimeoutException
from rq.worker import SimpleWorker, WorkerStatus
from typing_extensions import override

from infra.failures import keep
from infra.redis_client import ServerFull, our_errors, redacted
from infra.rq_claims import HOST_NAME, Claims, TakenJob
from infra.rq_keys import job_named, rq_connection, rq_queue
from infra.rq_leftovers import remove_dead_workers, sweep
from infra.telemetry import about_job
from runtime.beside import beside
from runtime.errors import NotServed
from runtime.job_time import job_time
from runtime.logger import Logger
from runtime.ports import Job, JobKind

_log = Logger("chime.worker")

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
#: every so many beats rq is told too that the worker lives: its record expires after 75 s
RQ_EVERY_BEATS = 10
#: runs that a worker remembers it cannot serve
_REFUSED = 64
#: a worker that has looked so often in vain looks half as often, and so on, down to one look in so many polls
IDLE_LOOKS, IDLE_POLLS = 40, 4
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
        #: when claims were renewed last, monotonic seconds; touched in the thread only, as is what we hold
        self._renewed = 0.0
        #: whether rq has our birth, as far as we know
        self._registered = False
        #: job id -> since when
        self._held: dict[str, str] = {}
        #: run -> why this process cannot serve it
        self._refuses: dict[str, str] = {}
        self._thread = CapacityLimiter(1)
        self._reachable = True
        #: whether no refusal was said since the last beat that Redis took
        self._noted = True
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
            Unreachable: the server does not answer at the start. One that is full is waited for, and later one that is
                away.
        """
        self._stopping, self._hurry, self._taking = Event(), Event(), CancelScope()
        self._free = Semaphore(self._slots)
        self._ended: list[str] = []
        async with AsyncExitStack() as stack:
            # Before anybody can see that we are there: from then on a signal is an order, not our death.
            orders = stack.enter_context(anyio.open_signal_receiver(*signals)) if signals else None
            advance = await stack.enter_async_context(self._lifespan())
            if not await self._seen(orders):
                return
            _log.info("worker started", worker_id=self.name, queue=self._queue.name, slots=self._slots)
            try:
                async with create_task_group() as others:
                    others.start_soon(self._beat)
                    if orders is not None:
                        others.start_soon(self._obey, orders)
                    await self._serve(advance, burst)
                    others.cancel_scope.cancel()
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

    async def _seen(self, orders: AsyncIterator[signal.Signals] | None) -> bool:
        """Others can see that this worker is there, once the server has room for that; False if it is to end before.

        Raises:
            Unreachable: the server does not answer.
        """
        async with beside() as tasks:
            if orders is not None:
                tasks.start_soon(self._obey, orders)
            said = False
            while not self._stopping.is_set():
                try:
                    with our_errors(self._where):
                        await self._call(self._renew)
                except ServerFull as full:
                    if not said:
                        _log.warning("server full, waiting for room", worker_id=self.name, reason=str(full))
                    said = True
                    with move_on_after(self._beat_s):
                        await self._stopping.wait()
                else:
                    return True
        return False

    async def _serve(self, advance: Advance, burst: bool) -> None:
        async with create_task_group() as drain:
            async with create_task_group() as jobs:
                drain.start_soon(self._drain, jobs.cancel_scope)
                idle = 0
                with self._taking:
                    while True:
                        await self._free.acquire()
                        self._free.release()  # we are the only one who takes slots: the number free can only grow
                        # A pop that is under way is not given up: its jobs would be held by nobody.
                        with CancelScope(shield=True):
                            taken = await self._take_or_wait(self._free.value)
                        for job in taken:
                            self._free.acquire_nowait()
                            jobs.start_soon(self._host, job, advance)
                        if taken:
                            idle = 0
                            continue
                        if burst and self._reachable and self._free.value == self._slots:
                            break
                        idle += 1
                        await anyio.sleep(self._pause_s(idle))
            drain.cancel_scope.cancel()

    def _pause_s(self, idle: int) -> float:
        """Until the next look into the queue, after so many in vain: many idle workers must not keep a server busy."""
        if not self._reachable:
            return max(self._poll_s, 1.0)
        return self._poll_s * min(1 + idle / IDLE_LOOKS, IDLE_POLLS)

    async def _take_or_wait(self, count: int) -> list[TakenJob]:
        try:
            taken = await self._call(partial(self._take, count))
        except RedisError as error:
            if self._reachable:
                _log.warning("redis unreachable, waiting for it", worker_id=self.name, exc_info=error)
            self._reachable = False
            return []
        if not self._reachable:
            _log.info("redis answers again", worker_id=self.name)
        self._reachable = True
        return taken

    async def _host(self, taken: TakenJob, advance: Advance) -> None:
        """One job from begin to end; never raises but for cancellation."""
        try:
            try:
                failure = await self._failure_of(taken, advance)
                if isinstance(failure, NotServed):
                    await self._refuse(taken, failure)
            except anyio.get_cancelled_exc_class():
                with CancelScope(shield=True):
                    await self._quietly(partial(self._hand_back, taken.id, at_front=True))
                raise
            with CancelScope(shield=True):
                if isinstance(failure, NotServed):
                    await self._quietly(partial(self._hand_back, taken.id, at_front=False))
                    return
                if failure is not None:
                    _log.error("job failed", job_id=taken.id, worker_id=self.name, exc_info=failure)
                if isinstance(failure, JobTimeoutException):
                    # Nobody inside the job could say it: what it raises itself is kept by the engine.
                    await self._quietly(
                        partial(keep, self.connection, self._prefix, job_named(taken.id), failure, _utc())
                    )
                self.ended += 1
                self._ended.append(taken.id)
                await self._quietly(self._settle)
        finally:
            self._free.release()

    async def _refuse(self, taken: TakenJob, why: NotServed) -> None:
        """Say that this process cannot serve the job's run, and hold the job while others may see that."""
        run = job_named(taken.id).run
        if run not in self._refuses:
            _log.warning("run left to other workers", run_id=run, worker_id=self.name, reason=str(why))
            while len(self._refuses) >= _REFUSED:
                del self._refuses[next(iter(self._refuses))]
        self._refuses[run] = str(why)
        await self._quietly(self._renew)
        await anyio.sleep(NOT_SERVED_S)

    async def _failure_of(self, taken: TakenJob, advance: Advance) -> Exception | None:
        """Run the job's body under its deadline; what went wrong."""
        try:
            job = job_named(taken.id)
            with (
                about_job(job, job_id=taken.id, worker_id=self.name, queue_wait_ms=taken.queue_wait_ms),
                job_time(taken.timeout_s if taken.timeout_s > 0 else None) as deadline,
            ):
                await advance(job)
                self._refuses.pop(job.run, None)
        except Exception as error:  # noqa: BLE001 - the outermost loop of a job: it is said, and the host lives on
            return error
        return JobTimeoutException(f"job overran its {taken.timeout_s:g} s") if deadline.cancelled_caught else None

    async def _drain(self, jobs: CancelScope) -> None:
        await self._stopping.wait()
        with move_on_after(self._grace_s):
            await self._hurry.wait()
        jobs.cancel()

    async def _obey(self, orders: AsyncIterator[signal.Signals]) -> None:
        async for signum in orders:
            _log.info("stopping on signal", worker_id=self.name, signal=signum.name, running=len(self._held))
            self.stop()

    async def _beat(self) -> None:
        beats, swept = 0, -SWEEP_S
        while True:
            asked = await self._quietly(self._renew)
            self._noted = asked is not None and not self._claims.stale
            if asked and not self._stopping.is_set():
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
            # Once, until it takes a beat again: a server can be full for hours.
            if self._noted:
                _log.warning("redis did not take a worker's note", worker_id=self.name, exc_info=error)
            self._noted = False
            return None

    # -- rq's thread -----------------------------------------------------------------------------------------------

    def _register(self) -> None:
        self.connection.delete(self.key)
        self.register_birth()  # type: ignore[no-untyped-call]  # rq leaves it untyped
        self._tell_rq()

    def _unregister(self) -> None:
        try:
            self._claims.end()
            # Those that died beside us too: we may be the last one who looks.
            remove_dead_workers(self._queue, self._prefix)
            self.register_death()  # type: ignore[no-untyped-call]  # rq leaves it untyped
            self.connection.delete(self.key)
        finally:
            self.connection.close()

    def _renew(self) -> bool:
        now = time.monotonic()
        state = {"state": "draining" if self._stopping.is_set() else "serving"}
        asked = self._claims.renew(self._held, self._facts | state, self._refuses)
        self._renewed = now
        if self._claims.lapsed:
            # At the start; and after we were stopped for so long, or the server lost so much, that we count as dead.
            self._registered = False
        if not self._registered:
            self._register()
            self._registered = True
        return asked

    def _tell_rq(self) -> None:
        self.set_state(WorkerStatus.BUSY if self._held else WorkerStatus.IDLE)
        self.heartbeat()

    def _take(self, count: int) -> list[TakenJob]:
        if time.monotonic() - self._renewed > CLAIM_BEATS * self._beat_s:
            # Stopped for so long that others took us for dead: what we take now would count as lost.
            self._renew()
        since = _utc()
        taken = self._claims.take(count, since)
        self._held.update((one.id, since) for one in taken)
        return taken

    def _settle(self) -> None:
        """Everything that has ended since the last call, in one."""
        ended, self._ended = self._ended, []
        if ended:
            for id_ in ended:
                self._held.pop(id_, None)
            self._claims.settle(ended)

    def _hand_back(self, id_: str, *, at_front: bool) -> None:
        self._held.pop(id_, None)
        if self._claims.hand_back(id_, _utc(), at_front=at_front):
            _log.info("job handed back", job_id=id_, worker_id=self.name)

    # -- rq's hooks ------------------------------------------------------------------------------------------------

    @override
    def procline(self, message: str) -> None:
        """Leave the process title alone: one title cannot name sixteen jobs."""


def _utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
