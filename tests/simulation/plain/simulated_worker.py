"""A worker process as `workers.host` is one: it pops and claims in one step, renews its claims, settles what has ended.

What it does with a job is the product's engine.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio
from simulated_ports import (
    BEGAN,
    BlobsClient,
    CallsClient,
    FailuresClient,
    Hosts,
    ModelClient,
    Process,
    ProcessClock,
    StoreClient,
)
from simulated_server import CLOCK
from typing_extensions import override

from events.errors import ChimeError
from runtime.errors import StoreAway
from runtime.ports import ChatAnswer, ChatModel, Environment, Job, JobKind
from workers.connections import Server
from workers.engine import Engine
from workers.host import BEAT_S
from workers.starting import Beginning

#: jobs at once
SLOTS = 3
#: how often it looks into its queue, seconds
_POLL_S = 0.05

#: done with a job before the engine has it; may raise, or kill the process
Before = Callable[[Process, Job], None]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What worlds of one configuration share."""

    beginning: Beginning
    model: ChatModel
    #: what it has answered in earlier worlds
    answers: dict[str, ChatAnswer] = field(default_factory=dict)


class _WorkerEngine(Engine):
    """The product's engine; its model and environment are those of a simulated process."""

    def __init__(self, process: Process, there: Server, parts: Parts, stack: AsyncExitStack) -> None:
        super().__init__(there, Path(), {}, ProcessClock(process), SLOTS, stack)
        self._process, self._parts = process, parts

    @override
    def _asking(self, *_: object) -> ChatModel:
        return ModelClient(self._process, self._parts.model, self._parts.answers)

    @override
    async def environment(self, name: str) -> Environment:
        return Hosts(self._process)


class Worker:
    """The jobs of one kind, up to SLOTS at once, for as long as the process lives."""

    def __init__(self, process: Process, kind: JobKind, parts: Parts, before: Before) -> None:
        self._process, self._kind, self._parts, self._before = process, kind, parts, before
        self._queue, self._dice = process.server.queue, process.faults.dice
        self._held: set[Job] = set()
        self._free = trio.Semaphore(SLOTS)

    async def work(self) -> None:
        me = self._process
        there = Server(
            store=StoreClient(me), blobs=BlobsClient(me), calls=CallsClient(me), failures=FailuresClient(me),
            url="", prefix="s", where="here",
        )  # fmt: skip
        async with AsyncExitStack() as stack:
            working = _WorkerEngine(self._process, there, self._parts, stack)
            async with trio.open_nursery() as tasks:
                tasks.start_soon(self._beat)
                while True:
                    await self._free.acquire()
                    await self._queue.ready(self._kind)
                    await trio.sleep(self._dice.uniform(0, _POLL_S))
                    job = await _quietly(partial(self._call, "take", self._kind))
                    if job is None:
                        self._free.release()
                        continue
                    self._held.add(job)
                    tasks.start_soon(self._host, job, working)

    async def _beat(self) -> None:
        while True:
            await _quietly(partial(self._call, "renew", self._held))
            await trio.sleep(BEAT_S)

    async def _host(self, job: Job, working: Engine) -> None:
        failed = again = False
        BEGAN.set(CLOCK.now)
        try:
            self._before(self._process, job)
            await working.advance(job)
        except ChimeError:
            failed = True
        except trio.Cancelled:
            again = True
            raise
        finally:
            self._held.discard(job)
            self._free.release()
            if not self._process.dead:
                with trio.CancelScope(shield=True):
                    await _quietly(partial(self._call, "settle", job, failed=failed, again=again))

    async def _call(self, what: str, *given: Any, **named: Any) -> Any:
        act = getattr(self._queue, what)
        return await self._process.call(f"queue.{what}", lambda: act(self._process.name, *given, **named))


async def _quietly(act: Callable[[], Awaitable[Any]]) -> Any:
    """What a worker's bookkeeping does where the server is away: it goes on; the log is the truth."""
    try:
        return await act()
    except StoreAway:
        return None
