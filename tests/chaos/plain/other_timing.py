"""Whole runs in this process with other timing: delays, jobs and appends that come twice, at once and later."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anyio

from events.ids import Position, RunId
from runtime.ports import Appended, CallKey, ChatAnswer, ChatModel, ChatRequest, Job

#: how long an answer or an append may take, seconds
_DELAYS_S = (0.0, 0.0, 0.0, 0.001, 0.004, 0.02)


class DelayedModel:
    """A model that takes a random time for each answer."""

    def __init__(self, model: ChatModel, seed: int) -> None:
        self._model, self._dice = model, Random(seed)  # noqa: S311 - chance, no secret

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        await anyio.sleep(self._dice.choice(_DELAYS_S))
        answer = await self._model.complete(request, key)
        await anyio.sleep(self._dice.choice(_DELAYS_S))
        return answer


class TwiceLog:
    """A log to which every append goes twice: one after the other or at the same time, and all once more on demand."""

    def __init__(self, log: Any, dice: Random, sent: list[Any]) -> None:
        self._log, self._dice, self._sent = log, dice, sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, *arguments: Any) -> Any:
        await anyio.sleep(self._dice.choice(_DELAYS_S))
        self._sent.append((self._log, arguments))
        if self._dice.random() < 0.5:
            first = await self._log.append(*arguments)
            second = await self._log.append(*arguments)
        else:
            answers: list[Any] = []

            async def send() -> None:
                answers.append(await self._log.append(*arguments))

            async with anyio.create_task_group() as both:
                both.start_soon(send)
                both.start_soon(send)
            first, second = answers
        assert type(first) is type(second)
        if isinstance(first, Appended):
            assert first.positions == second.positions
        return second


@dataclass
class TwiceStore:
    """Opens logs of that kind; `sent` holds every append."""

    store: Any
    seed: int
    sent: list[Any] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def open(self, run: Any) -> TwiceLog:
        return TwiceLog(self.store.open(run), Random(self.seed), self.sent)  # noqa: S311 - chance, no secret

    async def send_all_again(self) -> None:
        """Every append once more, in another order; each event is there already, or another one in its place."""
        again = list(self.sent)
        Random(self.seed).shuffle(again)  # noqa: S311 - chance, no secret
        for log, arguments in again:
            answer = await log.append(*arguments)
            assert not isinstance(answer, Appended) or not answer.written


def jobs_again(seed: int) -> Callable[[Callable[[Job], Any]], Callable[[Job], Any]]:
    """For `World.around`: every job handled twice, at the same time or after a while, and once more much later."""
    dice, before = Random(seed), list[Job]()  # noqa: S311 - chance, no secret

    def around(advance: Callable[[Job], Any]) -> Callable[[Job], Any]:
        async def late(job: Job, delay_s: float) -> None:
            await anyio.sleep(delay_s)
            await advance(job)

        async def handle(job: Job) -> None:
            before.append(job)
            async with anyio.create_task_group() as all_of_them:
                all_of_them.start_soon(late, job, dice.choice(_DELAYS_S))
                all_of_them.start_soon(late, job, dice.choice((*_DELAYS_S, 0.2)))
                all_of_them.start_soon(late, dice.choice(before), dice.choice(_DELAYS_S))

        return handle

    return around


class NoLease:
    """The lease of every run as somebody sees it who never asks whether another one has it. Implements `Lease`."""

    async def hold(self, position: Position) -> int | None:
        return 1

    async def release(self) -> None:
        pass


class EverybodyHolds:
    """`infra.leases.Leases` that keep nobody out: two coordinators act at the same time."""

    def of(self, run: RunId, holder: str, *, by_force: bool = False) -> NoLease:
        return NoLease()

    async def holder(self, run: RunId) -> None:
        return None
