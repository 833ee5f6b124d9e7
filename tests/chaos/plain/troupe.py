"""A run played by real processes on a real server over a bad line: what can be killed, and how it is started again."""

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import redis
import uvicorn
from bad_line import BadLine

from events.ids import Position, RunId
from events.log import Recorded
from infra import environments
from infra.clock import SystemClock
from infra.rehearsal import MODEL
from infra.rehearsal.planting import RehearsalSettings
from infra.rehearsal.server import application
from infra.rehearsal.truth import TruthFile
from workers.configuration import Configuration, ModelDefaults, RunSettings
from workers.connections import connections
from workers.header import begin
from workers.starting import Choice, beginning

ROOT = Path(__file__).parents[3]
RUN = RunId("r")
PREFIX = "chaos"
#: seconds within which everything happens that has to, on a machine that is busy with other things
PATIENCE_S = 240.0
#: a process that has said nothing for so long is taken for one that works, seconds
_SILENT_S = 60.0


def until(true: Callable[[], Any], what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> Any:
    """Waits for a condition; what it gave. `what` may be asked for at the end, to tell of what is there by then."""
    end = time.monotonic() + patience_s
    while not (found := true()):
        if time.monotonic() >= end:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"did not happen within {patience_s:g} s: {said}")
        time.sleep(0.05)
    return found


class Endpoint:
    """The rehearsal model over HTTP, in a thread of this process; an answer takes a while that its request decides."""

    def __init__(self, key: Any, slowest_s: float) -> None:
        self._model = application(key, RehearsalSettings(), TruthFile(None))
        self._slowest_s = slowest_s
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._answer, interface="asgi3", log_config=None, access_log=False, lifespan="off", ws="none",
                timeout_graceful_shutdown=2,
            )
        )  # fmt: skip
        self._thread = threading.Thread(target=self._server.run, args=([listener],))
        self._thread.start()
        until(lambda: self._server.started, "the endpoint starts")
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        sent: list[Any] = []

        async def keep(message: Any) -> None:
            sent.append(message)

        await self._model(scope, receive, keep)
        body = b"".join(one.get("body", b"") for one in sent)
        await asyncio.sleep(self._slowest_s * hashlib.sha256(body).digest()[0] / 255)
        for message in sent:
            await send(message)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()


@dataclass
class Member:
    """One process that is started again whenever it was killed."""

    name: str
    arguments: Sequence[str]
    #: what it says once it works
    ready_word: bytes
    process: subprocess.Popen[bytes]
    output: Path
    #: where its present life begins in the output
    begins: int
    started: float = field(default_factory=time.monotonic)
    stopped: bool = False

    @property
    def ready(self) -> bool:
        """Whether it has got as far as its work, or may be hit as if it had."""
        if self.process.poll() is not None or self.stopped:
            return False
        return self.works or time.monotonic() - self.started > _SILENT_S

    @property
    def works(self) -> bool:
        """Whether it has said that it works: from then on a signal is an order."""
        return self.ready_word in self.output.read_bytes()[self.begins :]


class RedisProcess:
    """A server that writes every command to disk before it answers."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.socket = folder / "s"
        self._argv = [
            binary, "--port", "0", "--unixsocket", str(self.socket), "--dir", str(folder), "--appendonly", "yes",
            "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction",
        ]  # fmt: skip
        self.client = redis.Redis(unix_socket_path=str(self.socket), socket_timeout=30)
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(self._argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._answers, "the server answers")

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def restart(self, away_s: float) -> None:
        """SIGKILL, and a new one on the same files after a while."""
        self.process.kill()
        self.process.wait()
        time.sleep(away_s)
        self._start()

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.client.close()


class Troupe:
    """Coordinators, workers, model, server and line of one run. Nothing of it is left after `close`."""

    def __init__(self, binary: str, folder: Path, sockets: Path, key: Any, *, slowest_s: float) -> None:
        self.folder, self.sockets = folder, sockets
        for name in ("home", "tmp", "said"):
            (folder / name).mkdir()
        self.server = RedisProcess(binary, sockets)
        self.line = BadLine(self.server.socket)
        self.endpoint = Endpoint(key, slowest_s)
        self._mark = uuid4().hex
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CHIME_")}
        (sockets / "runtime").mkdir()
        self.environment = {
            **kept, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), "XDG_RUNTIME_DIR": str(sockets / "runtime"),
            "CHIME_HOME": str(folder / "home"), "CHIME_REDIS_URL": f"redis://127.0.0.1:{self.line.port}/0",
            "CHIME_REDIS_PREFIX": PREFIX, "OPENAI_API_KEY": "any", "TROUPE": self._mark,
        }  # fmt: skip
        self.members: list[Member] = []
        #: processes that end by themselves
        self.passing: list[subprocess.Popen[bytes]] = []

    # -- the run -------------------------------------------------------------------------------------------------------

    def begin(self, *, limit: int, concurrency: int, lag: int, epochs: int = 1) -> None:
        """The run's head in the log, as `chime run start` puts it there."""
        configuration = Configuration(
            models=ModelDefaults(model=MODEL, base_url=self.endpoint.url),
            run=RunSettings(concurrency=concurrency, lag=lag, epochs=epochs),
        )

        async def work() -> None:
            home = self.folder / "home"
            environment = environments.load("toy", home, environ=self.environment)
            try:
                choice = Choice(environment="toy", ordering=42, limit=limit)
                made = await beginning(configuration, choice, environment, None)
            finally:
                await environment.aclose()
            async with connections(home, f"unix://{self.server.socket}", PREFIX, SystemClock()) as there:
                await made.prompts.store(there.blobs, RUN)
                await begin(there.store.open(RUN), made.head)

        anyio.run(work)

    def begin_and_die(self, *, limit: int, concurrency: int, lag: int) -> None:
        """As `begin`, by a `chime run start` that is killed as soon as the run is there, its workers with it."""
        numbers = ("--limit", str(limit), "--concurrency", str(concurrency), "--lag", str(lag))
        model = ("--base-url", self.endpoint.url, "--model", MODEL)
        started = self.once("start", "run", "start", "toy", *model, *numbers, "--run", RUN)
        until(self.length, "the run is begun")
        started.kill()
        started.wait()

    def log(self) -> list[Recorded]:
        """Every event that the server has, read past the line."""

        async def work() -> list[Recorded]:
            url = f"unix://{self.server.socket}"
            async with connections(self.folder / "home", url, PREFIX, SystemClock()) as there:
                log = there.store.open(RUN)
                return [one async for page in log.pages(Position(0)) for one in page]

        return anyio.run(work)

    def length(self) -> int:
        """How many events the log has."""
        return int(self.server.client.hget(f"{PREFIX}:{{{RUN}}}:index", "@head") or 0)

    def finished(self) -> bool:
        """Whether the log's last event ends the run."""
        last = self.server.client.xrevrange(f"{PREFIX}:{{{RUN}}}:log", count=1)
        return bool(last) and last[0][1][b"kind"] == b"run_finished"

    def keys(self) -> dict[str, int]:
        """Every key on the server, and in how many seconds it expires; -1 = never."""
        client = self.server.client
        return {key.decode(): int(client.ttl(key)) for key in client.scan_iter(count=1000)}

    # -- processes -----------------------------------------------------------------------------------------------------

    def start(self, name: str, ready_word: bytes, *arguments: str) -> Member:
        """`chime` with `arguments`, to be kept."""
        output = self.folder / "said" / name
        output.touch()
        member = Member(name, arguments, ready_word, self._process(arguments, output), output, 0)
        self.members.append(member)
        return member

    def start_all(self, *, acting: int = 2, diagnosing: int = 1, coordinators: int = 2, slots: int = 4) -> None:
        """The usual processes."""
        for i in range(coordinators):
            self.start(f"coordinator-{i}", b"serving the open runs", "coordinator")
        for kind, count in (("act", acting), ("diagnose", diagnosing)):
            for i in range(count):
                arguments = ("worker", kind, "--slots", str(slots), "--hosts", str(slots), "--grace", "5")
                self.start(f"{kind}-{i}", b"worker started", *arguments)

    def _process(self, arguments: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
        with output.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "workers", *arguments], env=self.environment, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip

    def once(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """`chime` with `arguments`, once."""
        self.passing.append(self._process(arguments, self.folder / "said" / name))
        return self.passing[-1]

    def kill(self, member: Member) -> None:
        """SIGKILL, and another one in its place."""
        member.process.kill()
        member.process.wait()
        self.again(member)

    def again(self, member: Member) -> None:
        """Another process in the place of one that has ended."""
        member.begins = member.output.stat().st_size
        member.process = self._process(member.arguments, member.output)
        member.started, member.stopped = time.monotonic(), False

    def pause(self, member: Member) -> None:
        member.stopped = True
        member.process.send_signal(signal.SIGSTOP)

    def go_on(self, member: Member) -> None:
        member.stopped = False
        member.process.send_signal(signal.SIGCONT)

    def hosts(self) -> list[int]:
        """Pids of the environment's processes."""
        return [pid for pid in self.alive() if b"host.py" in _read(Path(f"/proc/{pid}/cmdline"))]

    def alive(self) -> list[int]:
        """Pids of every process that descends from one of ours, zombies aside."""
        mark = f"TROUPE={self._mark}".encode()
        found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in found if mark in _read(Path(f"/proc/{pid}/environ")).split(b"\0")]

    def orphans(self) -> list[int]:
        """Pids of those whose parent is gone: of whoever was killed; they end by themselves."""
        alive, ours = self.alive(), {one.pid for one in [*self.passing, *(member.process for member in self.members)]}
        return [pid for pid in alive if pid not in ours and _parent(pid) not in alive]

    def end(self) -> dict[str, int]:
        """SIGTERM to everybody who goes on, once they are at work; exit codes by name."""
        for process in self.passing:
            process.wait(PATIENCE_S)
        for member in self.members:
            self.go_on(member)
        until(self._all_ready, "everybody is at work")
        for member in self.members:
            member.process.terminate()
        return {member.name: member.process.wait(PATIENCE_S) for member in self.members}

    def revive(self) -> None:
        """Another process for each one that has ended by itself: at its start it found no server."""
        for member in self.members:
            if member.process.poll() is not None:
                self.again(member)

    def _all_ready(self) -> bool:
        self.revive()
        return all(member.works for member in self.members)

    def said(self, word: str) -> list[str]:
        """Every line with `word` that a process wrote."""
        return [
            f"{path.name}: {line}"
            for path in sorted((self.folder / "said").iterdir())
            for line in path.read_text(errors="replace").splitlines()
            if word in line
        ]

    def close(self) -> None:
        for process in [*self.passing, *(member.process for member in self.members)]:
            if process.poll() is None:
                process.kill()
            process.wait()
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.line.close()
        self.endpoint.close()
        self.server.close()


def _parent(pid: int) -> int:
    """Of a process; 0 where it has ended."""
    # The name before the state may hold anything, a bracket too.
    return int((_read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split() or [b"", b"0"])[1])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
