"""The home's own Weaviate: found or built, started or adopted by whoever needs it, stopped by the last one out.

As with the home's Redis, every user holds a shared lock for as long as it lives, whoever is alone on its way out stops
the server, and one that a killed user left behind is adopted by the next. `keep` makes it outlast its users until
`stop`. What it holds is a copy: the log rebuilds it.
"""

import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Literal

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
from typing_extensions import override

from events.errors import BadInput, Unreachable
from infra.process_identity import ProcessIdentity, identity_of, pid_in
from infra.server_locks import ServerLocks
from infra.weaviate_address import WeaviateAddress
from infra.weaviate_asking import asked
from infra.weaviate_building import Waiter
from infra.weaviate_finding import ADVICE, Program, Way, programs, provided, sound, ways
from infra.weaviate_launching import launch_of, namespace, remove_container
from infra.weaviate_process import VERSION, Ports, free_ports, last_words, launch
from runtime.logger import Logger

_log = Logger("chime.weaviate")

#: how long a server may take to read its files and answer, seconds
START_S = 60.0
#: how long it may take to write its files and end before it is killed, seconds
STOP_S = 30.0
#: how long a server that holds the data may be silent before another command gives up, seconds
SILENT_S = 30.0
#: how long it may take to end before somebody who waits is told
_MOMENT_S = 1.0
_POLL_S = 0.02
#: how often other ports are tried where somebody took one between the look and the start
_PORT_TRIES = 4


def silent(line: str) -> None:
    """Progress that nobody watches."""
    del line


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a server is started, where it has to be."""

    #: the folder of programs that were built or fetched; None = `tools` of the home
    tools: Path | None = None
    #: gets a line at each step that takes long, and one that says what was chosen
    progress: Callable[[str], None] = silent
    #: asked again and again while something takes long; raises where nobody waits any more
    go_on: Callable[[], None] = lambda: None
    #: in a network namespace of its own, so that no other machine reaches any port; None = as it was started before
    isolated: bool | None = None
    #: how long a server that holds the data and says nothing is waited for
    silent_s: float = SILENT_S
    #: settings of the server beside and over ours
    extra: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """The home's server as its file names it."""

    #: None where its starter was killed before it could write this
    process: ProcessIdentity | None
    ports: Ports
    api_key: str
    version: str
    #: how it was found, by the name of the way
    way: str
    path: str
    #: the container engine's client; "" for a program
    engine: str = ""
    #: whether it stays when its last user goes
    kept: bool = False
    #: whether it is in a network namespace of its own
    isolated: bool = False

    @override
    def __repr__(self) -> str:
        """Without the key: this lands in logs."""
        pid = self.process.pid if self.process is not None else None
        return f"Running(pid {pid}, {self.ports}, {self.version} from {self.way})"

    @property
    def address(self) -> WeaviateAddress:
        return self.ports.address(self.api_key, self.version)


def folder_of(home: Path) -> Path:
    """Where the home's server keeps its files."""
    return home.resolve() / "weaviate"


def running(home: Path) -> Running | None:
    """The home's server, if it answers on REST and gRPC and takes its key."""
    one = named(home)
    if one is None or one.process is None or not one.process.lives:
        return None
    version = asked(one.address)
    return msgspec.structs.replace(one, version=version) if version is not None else None


def named(home: Path) -> Running | None:
    """The server that the home's file names, whether it lives or not."""
    folder = folder_of(home)
    try:
        one = msgspec.json.decode((folder / "server.json").read_bytes(), type=Running)
    except (OSError, msgspec.DecodeError):
        return None
    return one if one.process is not None else msgspec.structs.replace(one, process=_by_pidfile(folder))


def _by_pidfile(folder: Path) -> ProcessIdentity | None:
    """The server whose starter was killed before it could write more than its pid: it holds the server's lock open."""
    pid = pid_in(folder / "pid")
    return identity_of(pid) if pid is not None and ServerLocks(folder).kept_by(pid) else None


def _of_this_boot(one: Running) -> bool:
    now = identity_of(os.getpid())
    return one.process is not None and now is not None and one.process.boot == now.boot


@asynccontextmanager
async def weaviate_server(home: Path, start: Start | None = None) -> AsyncIterator[WeaviateAddress]:
    """The home's server for as long as the body runs; found, built, started, adopted and stopped as needed.

    Raises:
        Unreachable: no way leads to a server, or it does not start; says what to do.
        BadInput: the home cannot be written.
    """
    using = _Use(home, replace(start or Start(), go_on=anyio.from_thread.check_cancelled))
    server = await anyio.to_thread.run_sync(using.begin)
    try:
        yield server.address
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(using.end)


@contextmanager
def weaviate_server_sync(home: Path, start: Start | None = None) -> Iterator[WeaviateAddress]:
    """As `weaviate_server`, for code without a loop."""
    using = _Use(home, start or Start())
    server = using.begin()
    try:
        yield server.address
    finally:
        using.end()


def revive(home: Path, start: Start | None = None) -> WeaviateAddress:
    """Start the home's server again where it has died, at the same address unless somebody took it; nothing while it
    lives.

    For whoever uses it: the server's own end is then the end of the use.

    Raises:
        Unreachable: it does not start, or holds its data and is silent.
    """
    return _Use(home, start or Start()).again().address


def keep(home: Path, start: Start | None = None) -> tuple[Running, bool]:
    """Let the home's server run until `stop`, started where it does not; whether it had to be started.

    Raises:
        Unreachable: as `weaviate_server`.
        BadInput: too; or it is to be isolated and runs without.
    """
    return _Use(home, start or Start()).keep()


def stop(home: Path, *, now: bool, progress: Callable[[str], None] = silent) -> "Stopped":
    """Let the home's server end: with its last user, or `now`, whoever uses it.

    Args:
        home: whose.
        now: or with its last user.
        progress: gets a line where that takes a while.

    Raises:
        Unreachable: somebody else starts or stops it, or it cannot be ended.
    """
    return _Use(home, Start(progress=progress)).stop(now=now)


def state_of(home: Path) -> Literal["running", "silent", "stopped"]:
    """How the home's server stands: `silent` holds its data and does not answer, or starts, or ends."""
    if running(home) is not None:
        return "running"
    return "silent" if ServerLocks(folder_of(home)).held else "stopped"


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """What `stop` has found."""

    #: what ran; None where nothing did
    server: Running | None
    #: whether it has ended; otherwise it does so with its last user
    ended: bool


class _Use:
    """One use of the home's server by this process."""

    def __init__(self, home: Path, start: Start) -> None:
        self._home, self._folder, self._how = home, folder_of(home), start
        self._tools = start.tools or home.resolve() / "tools"
        self._locks = ServerLocks(self._folder)
        self._waiter = Waiter(start.progress, start.go_on)
        self._users: IO[bytes] | None = None

    def begin(self) -> Running:
        self._prepare()
        with self._locks.alone(self._waiter.go_on):
            self._unforbid()
            self._users = self._locks.use()
            try:
                return self._found()[0]
            except BaseException:
                self._users.close()
                raise

    def again(self) -> Running:
        self._locks.prepare()
        with self._locks.alone():
            if self._forbidden.exists():
                raise Unreachable(
                    f"the Weaviate of {self._folder} was stopped by hand; `chime services start weaviate` starts it"
                )
            one, begun = self._found()
            if begun:
                _log.warning("weaviate_started_again", folder=str(self._folder))
            return one

    def keep(self) -> tuple[Running, bool]:
        self._prepare()
        with self._locks.alone(self._waiter.go_on):
            self._unforbid()
            one, begun = self._found()
            if self._how.isolated and not one.isolated:
                raise BadInput(
                    f"the Weaviate of {self._folder} runs already, without a namespace; "
                    "`chime services stop weaviate` first"
                )
            one = msgspec.structs.replace(one, kept=True)
            self._write(one)
            return one, begun

    def end(self) -> None:
        """Stop the server, if nobody else uses it and it is not kept."""
        if self._users is None:
            return
        with self._locks.alone(), self._users as users:
            one = named(self._home)
            if not self._locks.last(users) or (one is not None and one.kept and self._locks.held):
                return
            self._end(one)
            self._unforbid()

    def stop(self, *, now: bool) -> Stopped:
        if not self._folder.is_dir():
            return Stopped(server=None, ended=True)
        self._locks.prepare()
        with self._locks.alone():
            one = named(self._home)
            if not self._locks.held:
                self._forget()
                return Stopped(server=None, ended=True)
            if self._locks.used and not now:
                if one is not None:
                    self._write(msgspec.structs.replace(one, kept=False))
                return Stopped(server=one, ended=False)
            if self._locks.used:
                self._forbidden.touch(mode=0o600)  # those who use it must not bring it back
            self._end(one)
            if self._locks.held:
                lock = self._folder / "server.lock"
                raise Unreachable(f"the Weaviate of {self._folder} does not end; `fuser {lock}` names the process")
            return Stopped(server=one, ended=True)

    def _prepare(self) -> None:
        """Have the folder, and a program where one is needed: building one takes longer than a lock may be held."""
        self._locks.prepare()
        if not self._locks.held:
            provided(self._tools, self._waiter, [])

    @property
    def _forbidden(self) -> Path:
        """Is there while nobody but a new user or `keep` may start the server."""
        return self._folder / "stopped"

    def _unforbid(self) -> None:
        self._forbidden.unlink(missing_ok=True)

    def _found(self) -> tuple[Running, bool]:
        """The server, and whether it had to be started."""
        one = running(self._home) or self._awaited()
        if one is not None:
            self._write(one)
            return one, False
        return self._start(), True

    def _awaited(self) -> Running | None:
        """The server that holds the data but was silent, once it answers; None where no server holds them."""
        deadline = time.monotonic() + self._how.silent_s
        while self._locks.held:
            self._waiter.go_on()
            if (one := running(self._home)) is not None:
                return one
            if time.monotonic() > deadline:
                raise Unreachable(
                    self._in_the_way(named(self._home), f"has not answered for {self._how.silent_s:.0f} s")
                )
            time.sleep(_POLL_S)
        return None

    def _in_the_way(self, one: Running | None, what: str) -> str:
        pid = f" (pid {one.process.pid})" if one is not None and one.process is not None else ""
        return (
            f"a Weaviate server{pid} holds the data of {self._folder} and {what}; "
            "`chime services stop weaviate --now` ends it, whoever uses it"
        )

    def _start(self) -> Running:
        before = named(self._home)
        if self._isolated(before):
            namespace()  # said before anything is built for it
        misses: list[str] = []
        for program in programs(self._tools, self._waiter, misses):
            one = self._started(program, before, misses)
            if one is not None:
                self._say(one, program)
                return one
            if before is None and not self._locks.held:
                self._forget()
            if self._locks.held or sound(program, self._waiter):
                # Another one would meet the same: a folder that is full or cannot be written, files it cannot read.
                raise Unreachable(f"no Weaviate starts on {self._folder}: {misses[-1]}")
        raise Unreachable(f"no Weaviate {VERSION} to be had ({'; '.join(misses)}): {ADVICE}")

    def _say(self, one: Running, program: Program) -> None:
        if self._how.progress is silent:
            return  # what comes next is not looked up for nobody
        later = [way.name for way in after(program.way, ways(self._tools)) if way.open]
        then = f"; without it: {', '.join(later)}" if later else ""
        self._how.progress(f"Weaviate {one.version} from {program.way} ({program.image or program.path}){then}")

    def _started(self, program: Program, before: Running | None, misses: list[str]) -> Running | None:
        for attempt in range(_PORT_TRIES):
            again = before is not None and attempt == 0 and before.ports.free
            ports = before.ports if before is not None and again else free_ports()
            one = Running(
                process=None,
                ports=ports,
                api_key=before.api_key if before is not None else secrets.token_urlsafe(32),
                version=VERSION,
                way=program.way,
                path=program.image or program.path,
                engine=program.path if program.image else "",
                kept=before is not None and before.kept and _of_this_boot(before),
                isolated=self._isolated(before),
            )
            self._write(one)  # before the start: where we are killed now, the next one finds the server by it
            try:
                ready = self._ready(self._launched(program, one), one)
            except Unreachable as error:
                reason = last_words(self._folder / "server.log") or str(error)
                misses.append(f"{program.way} does not start: {reason}")
                if "address already in use" in reason:
                    continue
                return None
            if ready.version != VERSION:
                self._end(ready)
                misses.append(f"{program.way} is version {ready.version}, not {VERSION}")
                return None
            self._write(ready)
            _log.debug("weaviate_started", server_version=ready.version, pid=ready.process and ready.process.pid)
            return ready
        return None

    def _isolated(self, before: Running | None) -> bool:
        if self._how.isolated is None:
            return before is not None and before.isolated
        return self._how.isolated

    def _launched(self, program: Program, one: Running) -> ProcessIdentity:
        log = self._folder / "server.log"
        log.unlink(missing_ok=True)
        os.close(os.open(log, os.O_CREAT | os.O_WRONLY, 0o600))
        started = launch_of(
            program, self._folder, one.ports, one.api_key, isolated=one.isolated, extra=self._how.extra
        )  # fmt: skip
        with started as how, self._locks.given() as lock:
            pid = launch(
                how.command, how.environment, self._folder, pidfile=self._folder / "pid", log=log,
                keep=(lock, *how.keep),
            )  # fmt: skip
        process = identity_of(pid)
        if process is None:
            raise Unreachable("it ended at once")
        return process

    def _ready(self, process: ProcessIdentity, one: Running) -> Running:
        """The server once it answers; one that does not is ended."""
        deadline = time.monotonic() + START_S
        try:
            while self._locks.held and time.monotonic() < deadline:
                self._waiter.go_on()
                version = asked(one.address)
                if version is not None:
                    return msgspec.structs.replace(one, process=process, version=version)
                time.sleep(_POLL_S)
        except BaseException:  # interrupted: nobody would end it
            self._signalled(process, signal.SIGKILL)
            raise
        if not self._locks.held:
            raise Unreachable("it ended at once")
        self._signalled(process, signal.SIGKILL)
        raise Unreachable(f"it was not ready within {START_S:.0f} s")

    def _end(self, one: Running | None) -> None:
        """End the server: asked first, then killed."""
        process = one.process if one is not None else _by_pidfile(self._folder)
        if self._locks.held and process is not None:
            self._signalled(
                process, signal.SIGTERM, f"waiting for Weaviate (pid {process.pid}) to close its connections; "
                f"it is killed after {STOP_S:.0f} s",
            )  # fmt: skip
            if self._locks.held or process.lives:
                self._signalled(process, signal.SIGKILL)
            if one is not None and one.engine:
                remove_container(one.engine, self._folder)  # its client may have ended without it
        if self._locks.held:
            _log.warning("weaviate_left_running", folder=str(self._folder), reason="it does not end")
            return  # whoever comes next finds it by its file
        self._forget()

    def _signalled(self, process: ProcessIdentity, number: signal.Signals, telling: str = "") -> None:
        """Send a signal, and wait for the end; `telling` is said where it takes longer than a moment."""
        began = time.monotonic()
        deadline = began + STOP_S
        with suppress(PermissionError):
            process.signal_group(number)
        # What is left of it goes a moment after its lock.
        while (self._locks.held or process.lives) and time.monotonic() < deadline:
            if telling and time.monotonic() - began >= _MOMENT_S:
                self._waiter.tell(telling)
                telling = ""
            time.sleep(_POLL_S)

    def _forget(self) -> None:
        for name in ("server.json", "pid"):
            (self._folder / name).unlink(missing_ok=True)

    def _write(self, one: Running) -> None:
        """The server's file, whole or not at all, for its owner alone: it holds the key."""
        draft = self._folder / f".server.json.{os.getpid()}"
        try:
            draft.unlink(missing_ok=True)
            with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(one)))
            draft.replace(self._folder / "server.json")
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise BadInput(f"{self._folder} cannot be written ({error.strerror or error})") from error


def after(name: str, all_ways: list[Way]) -> list[Way]:
    """The ways behind the one of this name."""
    names = [way.name for way in all_ways]
    return all_ways[names.index(name) + 1 :] if name in names else all_ways
