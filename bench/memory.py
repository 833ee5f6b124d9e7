"""What one more episode at once costs in memory: in one worker with 16 and with 256, and in rq's own fork workers.

Every episode is held in its execution, its plan and recalls read, its conversation begun. Proportional set sizes: a
page that a fork shares with its parent counts half.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TextIO

import anyio

from bench.free import begun, queued, served
from bench.measure import Row, Scale, Spread, spread
from bench.server import Server, server
from infra.rq_keys import rq_connection, rq_queue
from infra.rq_standing import standing
from infra.telemetry import configure
from runtime.ports import EventLog

AT_ONCE = (16, 256)
FORKS = 4
GOAL_MIB = 2.0
_PREFIX = "chime"
_DEADLINE_S = 180.0


def rows(scale: Scale) -> Iterator[Row]:
    """One for each number of episodes, beside a fork for each."""
    with tempfile.TemporaryDirectory(prefix="cb") as folder, (Path(folder) / "log").open("w") as log:
        configure(log, json=True, level="info", service="run")
        forked = _over(scale, lambda: _held(Path(folder), log, FORKS if scale.share >= 1 else 1, forks=True))
        for many in sorted({AT_ONCE[0], scale.of(AT_ONCE[1], AT_ONCE[0])}):
            figure = _over(scale, partial(_held, Path(folder), log, many, forks=False))
            yield Row(
                group="memory", what=f"one of {many} at once in one worker", beside="rq fork worker", figure=figure,
                unit="MiB", goal=f"<= {GOAL_MIB:g} MiB", met=figure.median <= GOAL_MIB,
                remark=f"rq's fork, same imports: {forked.median:.1f} MiB ({forked.low:.1f} .. {forked.high:.1f})",
            )  # fmt: skip


def _over(scale: Scale, measure: Callable[[], float]) -> Spread:
    return spread([measure() for _ in range(2 if scale.share >= 1 else 1)])


def _held(folder: Path, log: TextIO, episodes: int, *, forks: bool) -> float:
    """MiB that one of `episodes` at once adds to its worker, or to its own fork and parent."""
    with server() as there, ExitStack() as stack:
        environment = {
            **os.environ, "CHIME_REDIS_URL": there.url, "CHIME_HOME": str(folder), "CHIME_REDIS_PREFIX": _PREFIX,
        }  # fmt: skip
        # One worker that holds them all, or a worker for each.
        arguments = ["--fork"] if forks else ["--slots", str(episodes), "--hosts", str(episodes)]
        command = [sys.executable, "-m", "bench.free_worker", "holding", "act", *arguments]
        started: list[int] = []
        for _ in range(episodes if forks else 1):
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            stack.callback(process.wait)
            stack.callback(_end, process.pid)
            started.append(process.pid)
        return asyncio.run(_measured(there, folder, started, episodes)) / episodes


def _end(pid: int) -> None:
    for one in reversed([pid, *_descendants(pid)]):
        try:
            os.kill(one, 9)
        except ProcessLookupError:
            continue


async def _measured(there: Server, folder: Path, workers: Sequence[int], episodes: int) -> float:
    """MiB that the workers and what they forked need beyond what they needed with nothing to do."""
    async with served(there.url, folder, _PREFIX) as known:
        await _until_registered(there, len(workers))
        idle = sum(map(_mib, workers))
        run = await begun(known, folder, "held", 2 * episodes, episodes)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(queued, known, [run])
            await _until_planned(known.store.open(run), episodes)
            await anyio.sleep(1)  # whoever has planned is about to ask for its first step
            busy = sum(_mib(one) for pid in workers for one in (pid, *_descendants(pid)))
            tasks.cancel_scope.cancel()
    return busy - idle


async def _until_planned(log: EventLog, episodes: int) -> None:
    with anyio.fail_after(_DEADLINE_S):
        while True:
            streams = [one for stream, one in (await log.index()).items() if stream.startswith("episode")]
            if sum(len(one.positions) >= 3 for one in streams) >= episodes:
                return
            await anyio.sleep(0.2)


async def _until_registered(there: Server, workers: int) -> None:
    connection = rq_connection(there.url, _PREFIX)
    with anyio.fail_after(_DEADLINE_S):
        while len(standing(rq_queue("act", connection)).workers) < workers:  # noqa: ASYNC110 - another process's state
            await anyio.sleep(0.2)
    connection.close()
    # A worker tells rq of itself before it has opened everything.
    await anyio.sleep(1)


def _descendants(pid: int) -> list[int]:
    """What `pid` has started, and what that has started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [one for child in map(int, children) for one in (child, *_descendants(child))]


def _mib(pid: int) -> float:
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0
