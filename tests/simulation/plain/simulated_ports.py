"""Doubles of the ports: for each process the clients of the server, of the model and of the environment.

A `Process` is a cancel scope with a name. All that it asks of the world goes through `Process.call`, where its fate is
decided; once dead, none of its tasks is heard again, as after SIGKILL: not even what code does on its way out.
"""

import errno
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, NoReturn, TypeVar

import trio
from simulated_faults import CRASHES, LATE_S, Fate, Faults
from simulated_server import CLOCK, RUN, SimulatedServer
from trio.lowlevel import checkpoint

from events.checkpoint import Checkpoint
from events.errors import VersionGap
from events.ids import Position, RunId, StreamId, Version
from events.log import Draft, Recorded
from infra.calls import of_stream
from infra.environments.toy import Toy
from infra.environments.wire import typed
from infra.leases import LEASE_S
from infra.list_log import PAGE
from runtime.errors import EnvironmentCrashed, MissingBlob, StoreAway
from runtime.ports import (
    Appended,
    Attempts,
    Blobs,
    CallKey,
    ChatAnswer,
    ChatModel,
    ChatRequest,
    Job,
    Origin,
    StreamIndex,
    Taken,
)
from runtime.task import Description, Evaluation, Message, Opening, StepResult, Task

T = TypeVar("T")

#: when the job of this task began
BEGAN: ContextVar[float] = ContextVar("BEGAN")
#: the record of calls that this task looked for last
_SOUGHT: ContextVar[str] = ContextVar("_SOUGHT")


class Killed(BaseException):
    """The process is dead; whatever of it still runs ends here."""


# -- processes ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Process:
    """One incarnation of a coordinator or worker."""

    name: str
    server: SimulatedServer
    faults: Faults
    #: told of its death, before anything else happens
    on_death: Callable[["Process"], None]
    born: float
    dead: bool = False
    frozen_until: float = 0.0
    #: when something last went wrong with it, its birth included
    disturbed_at: float = 0.0
    #: of its own monotonic clock
    origin: float = 0.0
    #: how many leases it has asked for, and when one was last its own
    leases: int = 0
    held_at: float = -math.inf
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def die(self) -> None:
        """As by SIGKILL."""
        if not self.dead:
            self.dead = True
            self.on_death(self)
            self.scope.cancel()

    def killed(self) -> NoReturn:
        """Die in the middle of a call."""
        self.die()
        raise Killed(self.name)

    async def awake(self) -> None:
        """Wait while the process is frozen.

        Raises:
            Killed: it is dead.
        """
        while CLOCK.now < self.frozen_until and not self.dead:  # noqa: ASYNC110 - it may be frozen once more meanwhile
            await trio.sleep_until(self.frozen_until)
        if self.dead:
            raise Killed(self.name)

    async def call(self, port: str, act: Callable[[], Awaitable[T]], crashes: Callable[[], bool] = bool) -> T:
        """The reply of `act`, unless a fault strikes the call; `crashes` says whether an environment may crash.

        Raises:
            Killed: the process died.
            StoreAway: the server is away, or seems so.
            OSError: no room.
        """
        if self.dead or self.frozen_until > CLOCK.now:
            await self.awake()
        fate = self.faults.fate(port)
        self.server.trace.append((CLOCK.now, self.name, port, fate or ""))
        if fate is not None:
            return await self._struck(port, act, crashes, fate)
        request_s, reply_s = self.faults.delays_s()
        await self._travel(request_s)
        self._reach(port)
        reply = await act()
        await self._travel(reply_s)
        if self.dead or self.frozen_until > CLOCK.now:
            await self.awake()
        return reply

    async def _struck(self, port: str, act: Callable[[], Awaitable[T]], crashes: Callable[[], bool], fate: Fate) -> T:
        """As `call`, of a call that `fate` strikes."""
        if fate == "kill_before":
            self.killed()
        request_s, reply_s = self.faults.delays_s(slow=fate == "slow")
        if fate not in ("doubled", "late"):
            self.disturbed_at = max(self.disturbed_at, CLOCK.now + request_s + reply_s)
        await self._travel(request_s)
        self._reach(port)
        if fate == "lost_request":
            raise StoreAway(f"{port}: the request is lost")
        if fate == "crash" and crashes():
            raise EnvironmentCrashed(-9, "simulated")
        if fate == "full":
            raise OSError(errno.ENOSPC, "no room (simulated)")
        self._meanwhile(act, fate)
        reply = await act()
        if fate == "doubled":
            reply = await act()
        if fate == "kill_after":
            self.killed()
        await self._travel(reply_s)
        self._reach(port)
        if fate == "lost_reply":
            raise StoreAway(f"{port}: the reply is lost")
        await self.awake()
        return reply

    def _meanwhile(self, act: Callable[[], Awaitable[Any]], fate: Fate) -> None:
        """What befalls the server itself while the request is on its way."""
        if fate == "late":
            self.server.later(act, self.faults.dice.uniform(0.0, LATE_S))
        if fate == "tail" and not self.server.ended:
            self.server.disturbed_at = max(self.server.disturbed_at, CLOCK.now)
            self.server.lose(self.faults.dice.uniform(0.1, 2))

    async def _travel(self, delay_s: float) -> None:
        if delay_s:
            await trio.sleep(delay_s)
        if self.dead:
            raise Killed(self.name)

    def _reach(self, port: str) -> None:
        if CLOCK.now < self.server.away_until and port.partition(".")[0] in _SERVERS:
            self.disturbed_at = max(self.disturbed_at, CLOCK.now)
            raise StoreAway("the server is away")


#: ports that a server answers
_SERVERS = frozenset({"log", "store", "queue", "lease", "intake", "calls", "failures"})


class ProcessClock:
    """A process's clock: wall clocks jump, monotonic ones begin anywhere and do not jump."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def utc(self) -> str:
        return self._process.server.utc()

    def monotonic(self) -> float:
        return self._process.origin + CLOCK.now

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)
        await self._process.awake()


# -- clients: server ---------------------------------------------------------------------------------------------------


class LogClient:
    """`EventLog` of one process. Like the client of a real server it notices a log that was written anew."""

    run = RUN

    def __init__(self, process: Process) -> None:
        self._process, self._log = process, process.server.log
        #: position -> the last event of an earlier read
        self._ends: dict[int, Recorded] = {}

    async def append(
        self, stream: StreamId, first: Version, drafts: Sequence[Draft], origin: Origin
    ) -> Appended | Taken:
        return await self._process.call("log.append", lambda: self._log.append(stream, first, drafts, origin))

    async def read_stream(self, stream: StreamId) -> list[Recorded]:
        return await self._process.call("log.read_stream", lambda: self._log.read_stream(stream))

    async def length(self, stream: StreamId) -> int:
        return await self._process.call("log.length", lambda: self._log.length(stream))

    async def read(self, after: Position, limit: int, kinds: frozenset[str] | None = None) -> list[Recorded]:
        return await self._process.call("log.read", lambda: self._read(after, limit, kinds))

    async def _read(self, after: Position, limit: int, kinds: frozenset[str] | None) -> list[Recorded]:
        known, there = self._ends.get(after), self._log.events
        if known is not None and after <= len(there) and there[after - 1] is not known:
            self._ends.clear()
            raise VersionGap("log written anew", after, after - 1)
        page = await self._log.read(after, limit)
        if page:
            self._ends[page[-1].position] = page[-1]
        return [one for one in page if kinds is None or one.kind in kinds]

    async def pages(self, after: Position, kinds: frozenset[str] | None = None) -> AsyncIterator[list[Recorded]]:
        head = await self.head()
        if head < after:
            raise VersionGap("head", after, head)
        for start in range(after, head, PAGE):
            yield await self.read(Position(start), min(PAGE, head - start), kinds)

    async def wait(self, after: Position, timeout_s: float) -> bool:
        return await self._process.call("log.wait", lambda: self._log.wait(after, timeout_s))

    async def checkpoint(self) -> Checkpoint | None:
        return await self._process.call("log.checkpoint", self._log.checkpoint)

    async def index(self) -> dict[StreamId, StreamIndex]:
        return await self._log.index()

    async def head(self) -> Position:
        return await self._process.call("log.head", self._log.head)


class StoreClient:
    """`LogStore` of one process, as far as coordinators and workers use it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def open(self, run: RunId) -> LogClient:
        del run
        return LogClient(self._process)

    async def runs(self) -> list[RunId]:
        async def runs() -> list[RunId]:
            await checkpoint()
            return [RUN] if self._process.server.log.events else []

        return await self._process.call("store.runs", runs)

    async def set_aside(self) -> frozenset[RunId]:
        return await self._process.call("store.set_aside", _none_aside)


class QueueClient:
    """`JobQueue` of one process."""

    def __init__(self, process: Process) -> None:
        self._process, self._queue = process, process.server.queue

    async def enqueue_all(self, jobs: Mapping[Job, Attempts], timeout_s: float) -> None:
        del timeout_s
        for job, attempts in jobs.items():
            self._acts("enqueue", job)
            await self._process.call("queue.enqueue", partial(self._queue.enqueue, job, attempts))

    async def asked(self, run: RunId) -> dict[Job, Attempts]:
        del run
        return await self._process.call("queue.asked", self._queue.asked)

    async def lost(self, jobs: Iterable[Job]) -> list[Job]:
        asked = list(jobs)
        return await self._process.call("queue.lost", lambda: self._queue.lost(asked))

    async def discard(self, jobs: Iterable[Job]) -> None:
        asked = list(jobs)
        if asked:
            self._acts("discard", asked[0])
            await self._process.call("queue.discard", lambda: self._queue.discard(asked))

    def _acts(self, what: str, job: Job) -> None:
        """Only who holds the lease, or has lost it a moment ago without a chance to know, asks for jobs."""
        now = CLOCK.now
        if now - self._process.held_at > LEASE_S and self._process.disturbed_at < now - LEASE_S:
            self._process.server.unled.append(f"{self._process.name} asked for {what} of {job} without the lease")

    async def refused(self, run: RunId) -> str | None:
        del run
        return await self._process.call("queue.refused", _nothing)

    async def runs(self) -> set[RunId]:
        async def runs() -> set[RunId]:
            return {job.run for job in self._queue.records}

        return await self._process.call("queue.runs", runs)

    async def tidy(self, run: RunId) -> int:
        del run
        return await self._process.call("queue.tidy", self._queue.tidy)

    async def forget(self, run: RunId, *, dry_run: bool = False) -> int:
        raise AssertionError(f"nobody forgets the jobs of {run} ({dry_run=})")


class LeasesClient:
    """`Leases` of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def of(self, run: RunId, holder: str, *, by_force: bool = False) -> "LeaseClient":
        return LeaseClient(self._process, self._process.server.leases.of(run, holder, by_force=by_force))

    async def holder(self, run: RunId) -> Any:
        return self._process.server.leases.now(run)


class LeaseClient:
    """`Lease` of one process; a process has one coordinator of a run at a time, and so one lease."""

    def __init__(self, process: Process, lease: Any) -> None:
        self._process, self._lease = process, lease
        process.leases += 1
        self._number = process.leases

    async def hold(self, position: Position) -> int | None:
        assert self._number == self._process.leases, "an earlier coordinator of the same process still acts"
        term: int | None = await self._process.call("lease.hold", lambda: self._lease.hold(position))
        if term is not None:
            self._process.held_at = CLOCK.now
        return term

    async def release(self) -> None:
        await self._process.call("lease.release", self._lease.release)


class IntakeClient:
    """`Intake` of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def stopped(self) -> str | None:
        async def look() -> str | None:
            return "no room" if CLOCK.now < self._process.server.full_until else None

        return await self._process.call("intake.stopped", look)


class FailuresClient:
    """`Failures` of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def record(self, job: Job, error: BaseException) -> None:
        await self._process.call("failures.record", lambda: self._process.server.failures.record(job, error))


class CallsClient:
    """`CallStore` of one process."""

    def __init__(self, process: Process) -> None:
        self._process, self._server = process, process.server

    async def get(self, run: RunId, field: str) -> bytes | None:
        del run
        _SOUGHT.set(field)

        async def get() -> bytes | None:
            return self._server.calls.get(field, (None,))[0]

        return await self._process.call("calls.get", get)

    async def put_with(self, run: RunId, field: str, record: bytes, bodies: Mapping[str, bytes], blobs: Blobs) -> bytes:
        await blobs.put_many(run, list(bodies.values()))
        return await self.put(run, field, record)

    async def put(self, run: RunId, field: str, record: bytes) -> bytes:
        del run

        async def put() -> bytes:
            return self._server.calls.setdefault(field, (record, CLOCK.now))[0]

        return await self._process.call("calls.put", put)

    async def all(self, run: RunId, stream: str | None = None) -> dict[str, bytes]:
        del run

        async def found() -> dict[str, bytes]:
            return of_stream({field: record for field, (record, _) in self._server.calls.items()}, stream)

        return await self._process.call("calls.all", found)

    async def discard(self, run: RunId, fields: Collection[str]) -> None:
        raise AssertionError(f"nobody forgets calls of {run}: {fields}")


class BlobsClient:
    """`Blobs` of one process: files of a home, which a server's lost tail does not touch."""

    def __init__(self, process: Process) -> None:
        self._process, self._blobs = process, process.server.blobs

    async def put(self, run: RunId, body: bytes) -> str:
        del run
        name = sha256(body).hexdigest()

        async def put() -> str:
            self._blobs[name] = body
            return name

        return await self._process.call("blobs.put", put)

    async def put_many(self, run: RunId, bodies: Sequence[bytes]) -> list[str]:
        return [await self.put(run, body) for body in bodies]

    async def get(self, run: RunId, sha256: str) -> bytes:
        async def get() -> bytes:
            if sha256 not in self._blobs:
                raise MissingBlob(run, sha256, "not there")
            return self._blobs[sha256]

        return await self._process.call("blobs.get", get)


async def _nothing() -> None:
    return None


async def _none_aside() -> frozenset[RunId]:
    return frozenset()


# -- clients: model and environment ------------------------------------------------------------------------------------


class ModelClient:
    """`ChatModel` of one process: answers take seconds and are a function of the request, so they are worked out once.

    Args:
        process: who asks.
        model: which model.
        answers: of all worlds so far, by the field of the record of calls.
    """

    def __init__(self, process: Process, model: ChatModel, answers: dict[str, ChatAnswer]) -> None:
        self._process, self._model, self._answers = process, model, answers

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        server = self._process.server

        async def paid() -> ChatAnswer:
            known = _SOUGHT.get()
            server.paid[known] += 1
            if known in server.calls and server.calls[known][1] < BEGAN.get():
                server.paid_again.append(known)
            await trio.sleep(self._process.faults.dice.uniform(0.1, 1.5))
            if known not in self._answers:
                self._answers[known] = await self._model.complete(request, key)
            return self._answers[known]

        return await self._process.call("model.complete", paid)


class Hosts:
    """`Environment` of one process: the toy, whose hosts may end in the middle of an episode.

    Args:
        process: None for one that only says what it is.
    """

    def __init__(self, process: Process | None = None) -> None:
        self._process = process

    async def describe(self) -> Description:
        return typed({"protocol": 1, **Toy().describe()}, Description, "describe")

    async def tasks(self, domain: str | None = None, split: str | None = None) -> list[Task]:
        return [typed(one, Task, "tasks") for one in _TOY.tasks(domain, split)]

    @asynccontextmanager
    async def session(self) -> AsyncIterator["_Session"]:
        assert self._process is not None
        yield _Session(self._process)

    async def aclose(self) -> None:
        """No host outlives its session."""


_TOY = Toy()


class _Session:
    """`EnvironmentSession` over a toy of its own."""

    def __init__(self, process: Process) -> None:
        self._process, self._toy, self._episode = process, copy(_TOY), ""

    async def reset(self, task: Task, episode_id: str, seed: int, options: Mapping[str, Any]) -> Opening:
        self._episode = episode_id
        return await self._call(
            "reset", Opening, lambda: self._toy.reset(episode_id, task.domain, task.task_id, seed, dict(options))
        )

    async def step(self, action: Message) -> StepResult:
        return await self._call("step", StepResult, lambda: self._toy.step(action))

    async def evaluate(self) -> Evaluation:
        return await self._call("evaluate", Evaluation, self._toy.evaluate)

    async def _call(self, op: str, type_: type[T], act: Callable[[], Any]) -> T:
        async def acted() -> T:
            await checkpoint()
            return typed(act(), type_, op)

        return await self._process.call(f"environment.{op}", acted, self._crashes)

    def _crashes(self) -> bool:
        crashes = self._process.server.crashes
        crashes[self._episode] += 1
        return crashes[self._episode] <= CRASHES
