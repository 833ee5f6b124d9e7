"""How long a run takes, 16 at once and lag 32, beside the same stages without waiting for anything, and in batches.

A stage takes as long as a log-normal number says (sigma 0.5), the same in all three: planning and gate a quarter of an
execution. This is the one row about wall time: on a machine that is busy with other work it says little.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import numpy as np
from typing_extensions import override

from bench.free import TASKS, FreeEngine, begun, freed, played, served
from bench.measure import Row, Sample, Scale, share_asked, spread, timing
from bench.server import server
from infra.telemetry import configure
from runtime.ports import CallKey, ChatRequest

EPISODES = 100
AT_ONCE = 16
#: medians, seconds
STAGE_S = {"planner": 0.4, "executor": 1.6, "gate": 0.4}
SIGMA = 0.5
#: stages of a small measurement take less time
SHRUNK = min(1.0, max(0.02, 10 * share_asked()))
GOAL = 1.15
REPEATS = 2


class Waiting(FreeEngine):
    """An engine whose model takes its time."""

    @staticmethod
    @override
    async def pause(request: ChatRequest, key: CallKey) -> None:
        await anyio.sleep(stage_s(request.role, int(key.stream.rpartition("-")[2])))


def stage_s(role: str, episode: int) -> float:
    """How long a stage of an episode takes, seconds: the same number whoever asks and whenever."""
    rng = np.random.default_rng([list(STAGE_S).index(role), episode])
    return STAGE_S[role] * SHRUNK * float(rng.lognormal(0.0, SIGMA))


def rows(scale: Scale) -> Iterator[Row]:
    """Beside free running, and beside a batch barrier."""
    episodes = -(-scale.of(EPISODES, TASKS) // TASKS) * TASKS
    freed(Waiting)
    found: dict[str, list[Sample]] = {}
    with tempfile.TemporaryDirectory(prefix="cb") as home, server() as there, (Path(home) / "log").open("w") as log:
        configure(log, json=True, level="info", service="run")
        for at in range(REPEATS if scale.share >= 1 else 1):
            for name, run in (
                ("this run", partial(_ours, there.url, Path(home), f"r{at}")),
                ("free running", _free),
                ("a barrier after every 16", _batches),
            ):
                start = time.process_time(), time.perf_counter()
                asyncio.run(run(episodes))
                sample = Sample(cpu_s=time.process_time() - start[0], wall_s=time.perf_counter() - start[1])
                found.setdefault(name, []).append(sample)
    ours = found.pop("this run")
    for name, theirs in found.items():
        figure = spread([one.wall_s / other.wall_s for one, other in zip(ours, theirs, strict=True)])
        goal = GOAL if name == "free running" else None
        yield Row(
            group="makespan", what=f"{episodes} episodes in process, wall time", beside=name, ours=timing(ours),
            theirs=timing(theirs), figure=figure, unit="x", goal=f"<= {goal:g} x" if goal else "",
            met=figure.median <= goal if goal else None,
        )  # fmt: skip


async def _ours(url: str, home: Path, name: str, episodes: int) -> None:
    async with served(url, home) as there:
        await played(there, home, [await begun(there, home, name, episodes, AT_ONCE)], AT_ONCE)


async def _episode(t: int) -> None:
    for role in STAGE_S:
        await anyio.sleep(stage_s(role, t))


async def _free(episodes: int) -> None:
    """Sixteen at once, the next one as soon as one ends."""
    places = anyio.Semaphore(AT_ONCE)

    async def one(t: int) -> None:
        try:
            await _episode(t)
        finally:
            places.release()

    async with anyio.create_task_group() as tasks:
        for t in range(episodes):
            await places.acquire()
            tasks.start_soon(one, t)


async def _batches(episodes: int) -> None:
    """Sixteen at once, the next sixteen when all have ended."""
    for first in range(0, episodes, AT_ONCE):
        async with anyio.create_task_group() as tasks:
            for t in range(first, min(episodes, first + AT_ONCE)):
                tasks.start_soon(_episode, t)
