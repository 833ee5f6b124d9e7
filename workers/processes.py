"""Worker processes as children of a run: started with the command line's own parts, ended with their parent.

A child's standard input is a pipe from us. It closes when we end, however we end, and the child takes that as SIGTERM:
no worker outlives a killed parent.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TextIO

import anyio
import anyio.abc

from events.errors import Unreachable
from runtime.logger import Logger
from runtime.ports import JobKind

_log = Logger("chime.processes")

#: how long children may take to finish what runs, seconds; then they are killed
GRACE_S = 15.0
#: a worker that fails this often in a row has a cause that starting again does not cure
_FAILURES = 3
#: one that has worked for this long did not fail at its start, seconds
_STEADY_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One worker process to keep."""

    kind: JobKind
    #: arguments of `chime worker` after the kind
    arguments: Sequence[str]


@asynccontextmanager
async def workers(
    children: Sequence[Child], environment: Mapping[str, str], log: TextIO | None = None
) -> AsyncIterator[None]:
    """`children` running while the body runs; each one that dies is started again.

    Args:
        children: what to keep.
        environment: their variables.
        log: where they write their log lines; None = where we do.

    Raises:
        Unreachable: a worker that cannot stay up; its last line says why.
    """
    async with anyio.create_task_group() as tasks:
        for child in children:
            tasks.start_soon(_kept, child, environment, log)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


async def _kept(child: Child, environment: Mapping[str, str], log: TextIO | None) -> None:
    failures = 0
    while True:
        began = anyio.current_time()
        process = await anyio.open_process(
            # -P: a folder `events` or `workers` of the user's, where the run was started, is not taken for ours
            [sys.executable, "-P", "-m", "workers", "worker", child.kind, "--with-parent", *child.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=dict(environment),
            start_new_session=True,  # a Ctrl-C is ours to pass on
        )
        try:
            code = await process.wait()
        finally:
            await _ended(process)
        if code <= 0 or anyio.current_time() - began >= _STEADY_S:
            failures = 0  # asked to end, killed, or at work for long: not a fault that starting again repeats
        failures += code > 0
        if failures >= _FAILURES:
            raise Unreachable(f"a {child.kind} worker ended {failures} times in a row, last with exit code {code}")
        _log.warning("worker_restarted", worker=child.kind, exit_code=code)


async def _ended(process: anyio.abc.Process) -> None:
    """The process is gone when this returns: asked first, then killed."""
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            with anyio.move_on_after(GRACE_S):
                await process.wait()
        if process.returncode is None:
            process.kill()
        await process.aclose()


def end_with_parent() -> None:
    """Take the end of our standard input, which is our parent's end, as SIGTERM. Call once at the start of a child."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
