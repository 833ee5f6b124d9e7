"""Runs driven to their end by this process: workers beside it, a coordinator for each run, and what a person sees."""

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO
from uuid import uuid4

import anyio
import msgspec

from events.ids import RunId
from infra.intake import Depths
from infra.local_queue import LocalQueue
from infra.rq_queue import RqQueue
from infra.telemetry import configure
from runtime.errors import NotServed, RunStopped
from runtime.logger import Logger
from runtime.ports import Clock, Job, JobQueue
from runtime.settings import IntakeSettings
from workers.conductor import Control
from workers.configuration import Configuration, WeaviateSettings
from workers.connections import Server
from workers.coordinator import Ground, RunView, coordinated
from workers.engine import Engine, engine, note_stopped
from workers.gate_rates import WARN_DEGRADED
from workers.layers import variable
from workers.processes import Child, workers
from workers.version import VERSION

_log = Logger("chime.run")

#: how long the server may be away before a run is given back to its user, seconds
_PATIENCE_S = 60.0


_MARKS, _WEAVIATE = IntakeSettings(), WeaviateSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """Who does the work of a run, and how much of it at once."""

    #: episodes at once in one worker process
    slots: int
    #: act worker processes; the gate has one
    processes: int = 1
    #: no worker processes: everything in this one
    in_process: bool = False
    #: environment processes at once, in each act worker
    hosts: int = 4
    #: where intake stops
    marks: IntakeSettings = _MARKS
    #: share of degraded diagnoses above which a run warns
    warn_degraded: float = WARN_DEGRADED
    #: where children find the bank server of runs that have one
    weaviate: WeaviateSettings = _WEAVIATE


class Interrupted(BaseException):
    """SIGINT or SIGTERM: everything is closed on the way out, and the run can be resumed."""


@asynccontextmanager
async def hands(
    there: Server, home: Path, environment: Mapping[str, str], clock: Clock, doing: Hands, log: TextIO | None
) -> AsyncIterator[Ground]:
    """Workers that take jobs while the body runs; what a coordinator that gives them some stands on.

    Args:
        there: the server.
        home: of this run.
        environment: variables for children, and API keys by name.
        clock: of the machine.
        doing: how many of what.
        log: where children write their log lines; None = where we do.
    """
    if doing.in_process:
        async with (
            engine(there, home, environment, clock, doing.hosts) as working,
            _alone(there, working, doing.slots) as queue,
        ):
            yield grounded(there, queue, clock, doing.marks, doing.warn_degraded, by_force=True)
        return
    shared = ["--home", str(home), "--slots", str(doing.slots), "-s", f"redis.prefix={there.prefix}"]
    if not there.embedded:
        # The address may hold a password: children get it as a variable, not as an argument that everybody can list.
        environment = {**environment, "CHIME_REDIS_URL": there.url}
    given = {f"weaviate.{name}": value for name, value in msgspec.structs.asdict(doing.weaviate).items()}
    environment = {**environment, **{variable(name): value for name, value in given.items() if value}}
    children = [Child(kind="act", arguments=[*shared, "--hosts", str(doing.hosts)])] * doing.processes
    children.append(Child(kind="diagnose", arguments=shared))
    async with RqQueue(there.url, there.prefix) as rq, workers(children, environment, log):
        yield grounded(there, rq, clock, doing.marks, doing.warn_degraded)


@asynccontextmanager
async def _alone(there: Server, working: Engine, slots: int) -> AsyncIterator[LocalQueue]:
    """Jobs of this process, played in it: what it cannot serve, nobody will."""
    queue = LocalQueue()

    async def advance(job: Job) -> None:
        try:
            await working.advance(job)
        except NotServed as refused:
            await note_stopped(there.store.open(job.run), RunStopped("not_served", str(refused)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.serve, advance, slots)
        try:
            yield queue
        finally:
            queue.close()
            tasks.cancel_scope.cancel()


class CountedQueue(JobQueue, Depths, Protocol):
    """A queue that says how many jobs wait in it."""


def grounded(
    there: Server,
    queue: CountedQueue,
    clock: Clock,
    marks: IntakeSettings,
    warn_degraded: float = WARN_DEGRADED,
    *,
    by_force: bool = False,
) -> Ground:
    """What the coordinators of this process stand on."""
    return Ground(
        queue=queue,
        leases=there.leases,
        intake=there.intake(queue, marks),
        failures=there.failures,
        clock=clock,
        holder=f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}",
        by_force=by_force,
        revive=there.revive,
        banks=there.banks,
        generations=there.generations,
        warn_degraded=warn_degraded,
    )


async def drive(
    there: Server, ground: Ground, runs: Sequence[RunId], on_round: Callable[[RunId, RunView], None]
) -> dict[RunId, Control]:
    """Coordinate `runs` until each one is finished or stopped; how each one stands then.

    Raises:
        FoldMismatch: a log that holds a fold we would not make.
        Unreachable: the server does not answer any more.
    """
    controls: dict[RunId, Control] = {}

    async def one(run: RunId) -> None:
        coordinator = await coordinated(
            there.store.open(run), ground, lambda view: on_round(run, view), patience_s=_PATIENCE_S
        )
        controls[run] = coordinator.conductor.control

    async with anyio.create_task_group() as tasks:
        for run in runs:
            tasks.start_soon(one, run)
    return controls


@asynccontextmanager
async def interruptible() -> AsyncIterator[None]:
    """The body ends with `Interrupted` when SIGINT or SIGTERM arrives, closing what it has opened.

    Raises:
        Interrupted: a signal came.
    """
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with _cancelled_by(signals) as came:
            yield
    if came.is_set():
        raise Interrupted


@asynccontextmanager
async def until_signal() -> AsyncIterator[None]:
    """The body is cancelled when SIGINT or SIGTERM arrives: what serves for ever ends so."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with _cancelled_by(signals):
            yield


@asynccontextmanager
async def _cancelled_by(signals: AsyncIterator[signal.Signals]) -> AsyncIterator[anyio.Event]:
    """The body is cancelled by the first of `signals`; whether one came."""
    came = anyio.Event()

    async def watch(scope: anyio.CancelScope) -> None:
        async for _ in signals:
            came.set()
            scope.cancel()
            return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, tasks.cancel_scope)
        yield came
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def log_lines(configuration: Configuration, home: Path, quiet: bool) -> AsyncIterator[TextIO | None]:
    """Where this process and its children write their log lines: stderr, or a file of the home beside a live line.

    Args:
        configuration: format and level.
        home: holds `logs/`.
        quiet: stderr belongs to a person.
    """
    settings = configuration.log
    as_json = None if settings.format == "auto" else settings.format == "json"
    if not quiet:
        configure(sys.stderr, json=as_json, level=settings.level, service="run", version=VERSION)
        yield None
        return
    folder = home / "logs"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / f"{os.getpid()}.log").open("a", encoding="utf-8", buffering=1) as file:
        configure(file, json=True, level=settings.level, service="run", version=VERSION)
        yield file
