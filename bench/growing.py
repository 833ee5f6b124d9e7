"""A run that stands at some episode, played on as asked: a process of its own for `bench.growth`.

`python -m bench.growing URL HOME EPISODES RUNS` makes a run that stands at EPISODES on a server with RUNS runs, and
serves it as `chime coordinator` and a worker do. A line with a number on stdin plays as many episodes more; the answer
is a line.
"""

import sys
from pathlib import Path

import anyio
from anyio import to_thread
from msgspec.structs import replace

from bench.free import TASKS, FreeEngine, begun, freed, played, served
from events import policies
from events.bank import Banks, evolve
from events.codec import decode, draft
from events.ids import PROJECTOR_STREAM, RUN_STREAM, BankVersion, Position, RunId, Version, episode_of, episode_stream
from events.kinds import AnyEvent, Counts, Diagnosed, Folded, Retrieved, RunFinished
from events.policies import Policy
from events.recall import recall
from infra.clock import SystemClock
from infra.local_queue import LocalQueue
from infra.telemetry import configure
from runtime.gate import retrieved_ids
from runtime.ports import EventLog, Job, Origin
from runtime.settings import IntakeSettings
from workers import driving
from workers.connections import Server
from workers.coordinator import Coordinator
from workers.driving import grounded

RUN = RunId("growing")
AT_ONCE = 16
LAG = 2 * AT_ONCE
#: episodes that a run may be asked to play on
MORE = 2_000
_NOWHERE = Origin(cause=None)
#: jobs that wait for their turn hold a slot each
_SLOTS = 4 * AT_ONCE


async def stands_at(there: Server, home: Path, episodes: int) -> EventLog:
    """A run of ours that stands at `episodes`.

    Its texts are those of a short run that was played; recalls, decisions and digests are what they would have been.
    """
    bodies = await _bodies(there, home)
    run = await begun(there, home, RUN, episodes + MORE, AT_ONCE)
    log = there.store.open(run)
    policy, versions = policies.load("credit"), [Banks()]
    for t in range(episodes):
        # The first fifty teach something new, later ones find it known.
        events = _made(bodies[t if t < 2 * TASKS else TASKS + t % TASKS], versions, policy)
        diagnosed = events[-1]
        assert isinstance(diagnosed, Diagnosed)
        operations = policy.decide(versions[-1], t, diagnosed)
        versions = [*versions[1 - LAG :], evolve(versions[-1], diagnosed, operations)]
        folded = Folded(
            episode=t, bank_version=BankVersion(t + 1), digest=versions[-1].digest(), operations=operations
        )  # fmt: skip
        await log.append(episode_stream(t), Version(1), [draft(one) for one in events], _NOWHERE)
        await log.append(PROJECTOR_STREAM, Version(t + 1), [draft(folded)], _NOWHERE)
    return log


async def _bodies(there: Server, home: Path) -> list[list[AnyEvent]]:
    """The events of the episodes of a short run."""
    run = await begun(there, home, "short", 2 * TASKS, AT_ONCE)
    await played(there, home, [run], AT_ONCE)
    bodies: dict[int, list[AnyEvent]] = {}
    async for page in there.store.open(run).pages(Position(0)):
        for recorded in page:
            if (t := episode_of(recorded.stream)) is not None:
                bodies.setdefault(t, []).append(decode(recorded))
    await there.store.delete(run)
    return [bodies[t] for t in range(2 * TASKS)]


def _made(body: list[AnyEvent], versions: list[Banks], policy: Policy) -> list[AnyEvent]:
    """The next episode, with the words of `body`."""
    banks = versions[0]  # max(0, t + 1 - L)
    events: list[AnyEvent] = []
    for event in body:
        match event:
            case Retrieved():
                candidates = recall(banks, (event.stage,), event.query.vector, policy.parameters)
                events.append(replace(event, bank_version=banks.version, candidates=candidates))
            case Diagnosed():
                found = retrieved_ids([one for one in events if isinstance(one, Retrieved)])
                events.append(replace(event, retrieved=found, misleading=[]))
            case _:
                events.append(event)
    return events


async def _others(there: Server, home: Path, runs: int) -> None:
    """Finished runs beside ours."""
    counts = Counts(episodes=0, diagnosed=0, degraded=0, abandoned=0, folded=0)
    for number in range(runs):
        run = await begun(there, home, f"other-{number}", TASKS, AT_ONCE)
        finished = draft(RunFinished(outcome="stopped", counts=counts))
        await there.store.open(run).append(RUN_STREAM, Version(2), [finished], _NOWHERE)


class Turns:
    """Lets a worker begin as many episodes as it is told to."""

    def __init__(self) -> None:
        self._left = 0
        self._more = anyio.Event()

    def give(self, episodes: int) -> None:
        self._left += episodes
        self._more.set()
        self._more = anyio.Event()

    async def take(self) -> None:
        while not self._left:
            await self._more.wait()
        self._left -= 1


async def _serve(url: str, home: Path, episodes: int, runs: int) -> None:
    freed(FreeEngine)
    turns, queue, clock = Turns(), LocalQueue(), SystemClock()
    async with served(url, home) as there:
        log = await stands_at(there, home, episodes)
        await _others(there, home, runs - 1)
        async with (
            driving.engine(there, home, {}, clock, AT_ONCE) as engine,  # type: ignore[attr-defined]
            anyio.create_task_group() as tasks,
        ):

            async def advance(job: Job) -> None:
                if job.kind == "act":
                    await turns.take()
                await engine.advance(job)

            tasks.start_soon(queue.serve, advance, _SLOTS)
            ground = grounded(there, queue, clock, IntakeSettings(), by_force=True)
            tasks.start_soon(Coordinator(there.store, ground).serve)
            while asked := await to_thread.run_sync(sys.stdin.readline):
                turns.give(int(asked))
                episodes += int(asked)
                while await log.length(PROJECTOR_STREAM) < episodes:  # noqa: ASYNC110 - what another connection wrote
                    await anyio.sleep(0.02)
                print(await log.head(), flush=True)
            tasks.cancel_scope.cancel()


if __name__ == "__main__":
    with (Path(sys.argv[2]) / "log").open("a") as lines:
        configure(lines, json=True, level="info", service="run")
        anyio.run(_serve, sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
