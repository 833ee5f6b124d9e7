"""An environment in processes of its own: a pool of hosts that speak the protocol over their stdin and stdout.

A host is leased to one episode at a time, killed with its whole process group when it does not answer in time or the
caller is cancelled, and replaced after a number of episodes. Nothing here needs a background task: a host's stderr
goes to a file of which the tail is kept.
"""

import fcntl
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import Process

from infra.environments.limits import Limits, of_operation
from infra.environments.scratch import Scratch, sweep
from infra.environments.wire import PROTOCOL, answer_of, request_line, result_of, typed
from runtime.errors import EnvironmentCrashed, EnvironmentFailed, EnvironmentTimeout, EnvironmentUnavailable
from runtime.logger import Logger
from runtime.task import Description, Evaluation, Message, Opening, StepResult, Task

_log = Logger(__name__)

#: how much of a host's stderr is kept for a crash report, bytes
STDERR_TAIL = 16_384
#: size at which a host's stderr file is emptied, bytes
STDERR_FILE = 1 << 20
#: what the operating system gets to report the end of a killed process, seconds
REAP_S = 5.0


#: how many lines of a host that did not start are told
_LAST_LINES = 3


def _last(stderr: str) -> str:
    """What a host said at its end, on one line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return f"its last words: {' / '.join(lines[-_LAST_LINES:])}" if lines else "it said nothing on stderr"


class _Stderr:
    """The stderr of one host: an unnamed file that never grows far beyond STDERR_FILE."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with the host
        self.fd = self._file.fileno()
        # whoever holds the file writes at its end, wherever that is after it was emptied
        fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) | os.O_APPEND)
        self._before = b""

    def trim(self) -> None:
        """Empty the file once it is large; its tail is kept."""
        if os.fstat(self.fd).st_size > STDERR_FILE:
            self._before = self._read()
            os.ftruncate(self.fd, 0)

    def tail(self) -> str:
        """The last STDERR_TAIL bytes."""
        return (self._before + self._read())[-STDERR_TAIL:].decode(errors="replace")

    def close(self) -> None:
        self._file.close()

    def _read(self) -> bytes:
        size = os.fstat(self.fd).st_size
        return os.pread(self.fd, STDERR_TAIL, max(0, size - STDERR_TAIL))


async def _started(
    argv: Sequence[str], environ: Mapping[str, str], cwd: Path | None, stderr: int
) -> tuple[Process, Scratch]:
    """A process in a group of its own, and the folder that its temporary files go to.

    Raises:
        EnvironmentUnavailable: it cannot be started.
    """
    scratch = Scratch()
    try:
        process = await anyio.open_process(
            argv,
            stderr=stderr,
            start_new_session=True,
            env={**environ, "TMPDIR": str(scratch.path)},
            cwd=cwd,
            pass_fds=[scratch.fd],
        )
    except OSError as problem:
        scratch.remove()
        raise EnvironmentUnavailable(f"cannot start {argv[0]}: {problem.strerror or problem}") from problem
    except BaseException:
        scratch.remove()
        raise
    return process, scratch


async def _ended(process: Process) -> None:
    """End a whole process group, now; harmless when it is gone."""
    # the group, also when its first process is gone: what that one started may not be
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with anyio.move_on_after(REAP_S, shield=True):
        await process.aclose()


class Host:
    """One process of an environment. Made by `start`, ended by `end`; one request at a time."""

    def __init__(self, process: Process, stderr: _Stderr, scratch: Scratch, limits: Limits) -> None:
        self._process = process
        self._stderr = stderr
        self._scratch = scratch
        self._limits = limits
        self._requests = 0
        #: bytes after the last complete line
        self._rest = b""
        self.alive = True
        self.episodes = 0

    @property
    def pid(self) -> int:
        """Also the id of its process group."""
        return self._process.pid

    @classmethod
    async def start(
        cls, argv: Sequence[str], limits: Limits, environ: Mapping[str, str], cwd: Path | None
    ) -> tuple["Host", Description]:
        """A running host that has described itself.

        Raises:
            EnvironmentUnavailable: it cannot be started, ends or is silent before it has said what it is.
        """
        stderr = _Stderr()
        try:
            process, scratch = await _started(argv, environ, cwd, stderr.fd)
        except BaseException:
            stderr.close()
            raise
        host = cls(process, stderr, scratch, limits)
        try:
            description = typed(await host.ask("describe"), Description, "describe")
        except EnvironmentCrashed as problem:
            ended = f"ended with {problem.exit_code} before it was ready; {_last(problem.stderr_tail)}"
            raise EnvironmentUnavailable(f"the environment's host {ended}") from problem
        except (EnvironmentTimeout, EnvironmentFailed) as problem:
            await host.end()
            raise EnvironmentUnavailable(f"the environment's host is not usable: {problem}") from problem
        if description.protocol != PROTOCOL:
            await host.end()
            raise EnvironmentUnavailable(
                f"{description.env} speaks protocol {description.protocol}, this chime speaks {PROTOCOL}"
            )
        return host, description

    async def ask(self, op: str, **fields: Any) -> Any:
        """Send one request and wait for its answer; a host that is not done when this leaves is dead.

        Raises:
            EnvironmentCrashed: the host ended.
            EnvironmentTimeout: no answer within the operation's limit.
            EnvironmentFailed: the host answered with an error.
        """
        if not self.alive:
            raise EnvironmentCrashed(self._process.returncode, "the host had been ended before")
        self._requests += 1
        limit_s = of_operation(self._limits, op)
        answer: dict[str, Any] | None = None
        try:
            with anyio.move_on_after(limit_s):
                await self._send(request_line(self._requests, op, fields))
                while answer is None:
                    answer = answer_of(await self._line(), self._requests)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError) as problem:
            raise await self._crash() from problem
        finally:
            # timed out, cancelled or dead: what it is doing cannot be interrupted, and its next line answers nobody
            if answer is None:
                await self.kill()
        if answer is None:
            raise EnvironmentTimeout(op, limit_s)
        self._stderr.trim()
        return result_of(answer, op)

    async def kill(self) -> None:
        """End the host's whole process group, now; harmless when it is gone."""
        if not self.alive:
            return
        self.alive = False
        await _ended(self._process)
        self._stderr.close()
        self._scratch.remove()

    async def end(self) -> None:
        """Let the host end by itself, if it does so soon, then end whatever is left of its process group."""
        if self.alive:
            with suppress(EnvironmentCrashed, EnvironmentTimeout, EnvironmentFailed):
                await self.ask("close")
        await self.kill()

    async def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None  # noqa: S101 - open_process pipes it
        await self._process.stdin.send(line)

    async def _line(self) -> bytes:
        """The next line, however long.

        Raises:
            EndOfStream: the host closed its stdout.
        """
        assert self._process.stdout is not None  # noqa: S101 - open_process pipes it
        parts = []
        chunk = self._rest
        while b"\n" not in chunk:
            parts.append(chunk)
            chunk = await self._process.stdout.receive(1 << 16)
        last, self._rest = chunk.split(b"\n", 1)
        return b"".join([*parts, last])

    async def _crash(self) -> EnvironmentCrashed:
        with anyio.move_on_after(self._limits.close_s, shield=True):
            await self._process.wait()
        return EnvironmentCrashed(self._process.returncode, self._stderr.tail())


class ChildSession:
    """One host, leased to one episode. Implements `runtime.ports.EnvironmentSession`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._open = False

    @property
    def clean(self) -> bool:
        """Whether the host can be given to another episode."""
        return self._host.alive and not self._open

    @property
    def pid(self) -> int:
        """The host's process."""
        return self._host.pid

    async def reset(self, task: Task, episode_id: str, seed: int, options: Mapping[str, Any]) -> Opening:
        """Raises: EnvironmentCrashed, EnvironmentTimeout, EnvironmentFailed."""
        self._open = True
        self._host.episodes += 1
        try:
            answer = await self._host.ask(
                "reset",
                episode_id=episode_id,
                domain=task.domain,
                task_id=task.task_id,
                seed=seed,
                options=dict(options),
            )
        except EnvironmentFailed:
            self._open = False
            raise
        return typed(answer, Opening, "reset")

    async def step(self, action: Message) -> StepResult:
        """One assistant message. Raises: as `reset`."""
        return typed(await self._host.ask("step", action=action), StepResult, "step")

    async def evaluate(self) -> Evaluation:
        """Once, after done or an abort. Raises: as `reset`."""
        try:
            answer = await self._host.ask("evaluate")
        finally:
            self._open = False
        return typed(answer, Evaluation, "evaluate")

    async def plant(self, op: str, kind: str) -> None:
        """Spoil the next `op` (kinds: see the host); refused by a host that was not started for tests."""
        await self._host.ask("fault", **{"in": op, "kind": kind})

    async def oracle(self, task: Task) -> dict[str, Any]:
        """The reference solution; refused by a host that was not started for tests."""
        return typed(await self._host.ask("oracle", domain=task.domain, task_id=task.task_id), dict, "oracle")


class ChildEnvironment:
    """An environment behind `argv`. Implements `runtime.ports.Environment`; one object serves all runs of a process."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        limits: Limits | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._argv = list(argv)
        self._environ = dict(environ)
        self._limits = limits or Limits()
        self._cwd = cwd
        self._free: list[Host] = []
        self._hosts: set[Host] = set()
        self._places = anyio.Semaphore(self._limits.max_hosts)
        self._description: Description | None = None
        self._tasks: dict[tuple[str | None, str | None], list[Task]] = {}

    async def describe(self) -> Description:
        """What the environment says of itself.

        Raises:
            EnvironmentUnavailable: no host starts.
        """
        if self._description is None:
            async with self.session():
                pass
        assert self._description is not None  # noqa: S101 - every start of a host sets it
        return self._description

    async def tasks(self, domain: str | None = None, split: str | None = None) -> list[Task]:
        """In the benchmark's canonical order; asked once.

        Raises:
            EnvironmentUnavailable: no host starts.
            EnvironmentCrashed, EnvironmentTimeout, EnvironmentFailed: as `Host.ask`.
        """
        if (domain, split) not in self._tasks:
            async with self._lease() as host:
                answer = await host.ask("tasks", domain=domain, split=split)
            self._tasks[domain, split] = typed(answer, list[Task], "tasks")
        return list(self._tasks[domain, split])

    @asynccontextmanager
    async def session(self) -> AsyncIterator[ChildSession]:
        """A host of its own, once one is free; leaving gives it back, or ends it where an episode is still open.

        Raises:
            EnvironmentUnavailable: no host starts.
        """
        async with self._lease() as host:
            session = ChildSession(host)
            try:
                yield session
            finally:
                if not session.clean:
                    await host.kill()

    @asynccontextmanager
    async def process(self) -> AsyncIterator[Process]:
        """The program by itself, outside the pool, its stderr discarded; leaving ends its process group.

        Raises:
            EnvironmentUnavailable: it cannot be started.
        """
        process, scratch = await _started(self._argv, self._environ, self._cwd, subprocess.DEVNULL)
        try:
            yield process
        finally:
            await _ended(process)
            scratch.remove()

    async def aclose(self) -> None:
        """End every host, leased ones too: their sessions see a crash."""
        leased, free = self._hosts.difference(self._free), self._free
        self._hosts, self._free = set(), []
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as ends:
                for host in leased:
                    ends.start_soon(host.kill)
                for host in free:
                    ends.start_soon(host.end)

    @asynccontextmanager
    async def _lease(self) -> AsyncIterator[Host]:
        async with self._places:
            host = await self._take()
            try:
                yield host
            finally:
                await self._give_back(host)

    async def _take(self) -> Host:
        while self._free:
            host = self._free.pop()
            if host.alive:
                return host
        if self._description is None:
            await anyio.to_thread.run_sync(sweep)  # what killed processes could not take with them
        host, self._description = await Host.start(self._argv, self._limits, self._environ, self._cwd)
        self._hosts.add(host)
        _log.debug("host_started", env=self._description.env, pid=host.pid)
        return host

    async def _give_back(self, host: Host) -> None:
        known = host in self._hosts
        if known and host.alive and host.episodes < self._limits.episodes_per_host:
            self._free.append(host)
            return
        self._hosts.discard(host)
        with anyio.CancelScope(shield=True):
            await host.end()
