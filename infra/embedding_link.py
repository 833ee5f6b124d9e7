"""The way from a worker to the process that holds its model (`infra.embedding_host`), which is started when needed."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import msgspec
from anyio import to_thread
from typing_extensions import override

from events.errors import BadInput, Unreachable
from events.vectors import Vector, of_raw
from infra.embedding_host import IDLE_S, LARGEST, Answered, Asked, Greeting, Left, frame
from infra.private_sockets import is_ours, private_folder
from infra.server_locks import ServerLocks
from runtime.errors import EmbedderUnavailable, EmbeddingFailed
from runtime.logger import Logger
from runtime.ports import Side

_log = Logger("chime.embedder")

_T = TypeVar("_T")

#: how long a process may take to listen, seconds: a busy machine's Python
_LISTEN_S = 60.0
_POLL_S = 0.02
#: how long the process may be silent, and how long what it has said is waited for at least, seconds
_SILENT_S, _READ_S = 60.0, 0.5
#: how long a process that has let go of a connection may take to be gone, seconds
_ENDING_S = 10.0
#: how often a request is begun again in a new process, after the one that had it died
_AGAIN = 2


class _Lost(Exception):
    """The process ended, or the connection to it broke."""


class _Silent(Exception):
    """The process is there and says nothing, not even that it lives."""


class _Line(asyncio.Protocol):
    """One connection to the process that listens on `socket`; answers come in any order."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._loop = loop = asyncio.get_running_loop()
        self._heard_s = loop.time()
        self.greeting: asyncio.Future[Greeting] = loop.create_future()
        self._answers: dict[int, asyncio.Future[Answered]] = {}
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._number = 0
        self.lost = False

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        self._received += data
        self._heard_s = self._loop.time()
        while len(self._received) >= 4:
            length = int.from_bytes(self._received[:4], "big")
            if len(self._received) < 4 + length:
                return
            body = bytes(self._received[4 : 4 + length])
            del self._received[: 4 + length]
            if not body:
                continue  # it lives
            if not self.greeting.done():
                self.greeting.set_result(msgspec.msgpack.decode(body, type=Greeting))
                continue
            answer = msgspec.msgpack.decode(body, type=Answered)
            waiting = self._answers.pop(answer.number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        waiting: list[asyncio.Future[Any]] = [self.greeting, *self._answers.values()]
        for one in waiting:
            if not one.done():
                one.set_exception(_Lost())
                # Where nobody waits for it any more, nobody need hear of it.
                one.exception()

    async def greeted(self) -> Greeting:
        """How loading went. Raises as `ask`."""
        return await self._heard(self.greeting)

    async def _heard(self, wanted: "asyncio.Future[_T]") -> _T:
        while not wanted.done():
            left_s = self._heard_s + _SILENT_S - self._loop.time()
            # Whoever has slept himself first reads what has come meanwhile.
            await asyncio.wait({wanted}, timeout=max(left_s, _READ_S))
            if left_s <= 0 and not wanted.done() and self._loop.time() - self._heard_s >= _SILENT_S:
                raise _Silent
        return wanted.result()

    async def ask(self, texts: Sequence[str], side: Side) -> Answered:
        """The answer to one request; cancelled, the other end is told.

        Raises:
            _Lost: the connection broke first.
            _Silent: the process has not said for long that it lives.
        """
        assert self._transport is not None  # noqa: S101 - greeted
        if self.lost:
            raise _Lost
        self._number += 1
        number, waiting = self._number, asyncio.get_running_loop().create_future()
        self._answers[number] = waiting
        sent = frame(Asked(number=number, side=side, texts=list(texts)))
        if len(sent) > LARGEST:
            raise EmbeddingFailed(f"{len(texts)} texts of {len(sent)} bytes together are too long for one request")
        self._transport.write(sent)
        try:
            return cast("Answered", await self._heard(waiting))
        finally:
            if self._answers.pop(number, None) is not None and not self.lost:
                self._transport.write(frame(Left(number=number)))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Hosted:
    """A model in the process of its own.

    Args:
        folder: of this model in the home: locks, the socket's place, what the process says.
        model: dotted name of the module that holds `load`.
        loading: what it is called with, and `batch_size`.
        idle_s: how long the process stays when nobody is connected.
    """

    def __init__(self, folder: Path, model: str, loading: dict[str, Any], idle_s: float = IDLE_S) -> None:
        self._folder, self._model, self._loading, self._idle_s = folder, model, loading, idle_s
        self._locks = ServerLocks(folder)
        self._line: _Line | None = None
        self._connecting = anyio.Lock()

    async def start(self) -> int:
        """Connected, and the model is there: its dimension.

        Raises:
            BadInput: the model cannot be loaded.
            EmbedderUnavailable: no process, or it dies as it loads, or says nothing.
        """
        for _ in range(_AGAIN + 1):
            try:
                line = await self._connected()
                greeting = await line.greeted()
            except _Silent:
                raise self._silent() from None
            except _Lost:
                _log.warning("embedder_process_lost", folder=str(self._folder))
                continue
            if greeting.error:
                raise BadInput(greeting.error)
            return greeting.dimension
        raise self._died()

    async def embed(self, texts: Sequence[str], side: Side) -> list[Vector]:
        """As `runtime.ports.Embedder.embed`; begun again in a new process where one dies.

        Raises:
            EmbedderUnavailable: process after process dies, or says nothing.
        """
        for _ in range(_AGAIN + 1):
            await self.start()
            try:
                line = await self._connected()
                answer = await line.ask(texts, side)
            except _Silent:
                raise self._silent() from None
            except _Lost:
                _log.warning("embedder_process_lost", folder=str(self._folder), texts=len(texts))
                continue
            if answer.error:
                raise EmbeddingFailed(answer.error)
            return [of_raw(raw) for raw in answer.vectors]
        raise self._died()

    def close(self) -> None:
        """Leave; the process ends a while after the last has left."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _died(self) -> EmbedderUnavailable:
        try:
            said = (self._folder / "host.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            said = []
        told = f": {said[-1][:200]}" if said else ""
        return EmbedderUnavailable("died", f"the process of the model died {_AGAIN + 1} times{told}")

    def _silent(self) -> EmbedderUnavailable:
        lock = self._folder / "server.lock"
        return EmbedderUnavailable(
            "silent",
            f"the process of the model has said nothing for {_SILENT_S:g} s: it is stopped, or the machine is out of "
            f"breath; `fuser {lock}` names it, and once it has ended another one is started",
        )

    async def _connected(self) -> _Line:
        async with self._connecting:
            if self._line is None or self._line.lost:
                if self._line is not None:
                    await self._gone(self._line.socket)
                self._line = await self._connection() or await self._started()
            return self._line

    async def _connection(self) -> _Line | None:
        """A connection to the process that listens; None where none does."""
        try:
            socket = (self._folder / "socket").read_text()
            _, line = await asyncio.get_running_loop().create_unix_connection(lambda: _Line(socket), socket)
        except OSError:
            return None
        return line

    async def _gone(self, socket: str) -> None:
        """The process that listened on `socket` has ended, or is at it for too long.

        One that dies lets go of its connections before it stops listening: whoever came back at once would take its
        one death for two.
        """

        def listens() -> bool:
            return self._locks.held and (self._folder / "socket").read_text() == socket

        with anyio.move_on_after(_ENDING_S), suppress(OSError):
            while listens():  # noqa: ASYNC110 - in another process
                await anyio.sleep(_POLL_S)

    async def _started(self) -> _Line:
        """A connection to a process that somebody has started, perhaps this one.

        Raises:
            _Lost: it ended before anybody could connect.
        """
        # A process that ends as we connect takes its socket away: then there is another one to start.
        deadline, is_ours = anyio.current_time() + _LISTEN_S, False
        while anyio.current_time() < deadline:
            if is_ours and not self._locks.held:
                raise _Lost
            is_ours |= await to_thread.run_sync(self._start)
            if (line := await self._connection()) is not None:
                return line
            await anyio.sleep(_POLL_S)
        raise EmbedderUnavailable("not_started", f"no process of the model listens within {_LISTEN_S:g} s")

    def _tidy(self) -> None:
        """The socket's folder of a process that was killed."""
        with suppress(OSError):
            before = Path((self._folder / "socket").read_text()).parent
            if is_ours(before):
                shutil.rmtree(before)

    def _start(self) -> bool:
        """Start a process unless one lives; whether one was started."""
        self._locks.prepare()
        with self._locks.alone():
            if self._locks.held:
                return False
            self._tidy()
            try:
                socket = private_folder("s") / "s"
            except Unreachable as error:
                raise EmbedderUnavailable("not_started", str(error)) from error
            command = [
                sys.executable, "-P", "-m", "infra.embedding_host", str(socket), str(self._idle_s), self._model,
                msgspec.json.encode(self._loading).decode(),
            ]  # fmt: skip
            with (self._folder / "host.log").open("wb") as log, self._locks.given() as lock:
                # It keeps the lock open, and with it shows that it lives.
                subprocess.run(  # noqa: S603 - this interpreter, a module of ours
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, check=False,
                    pass_fds=(lock,),
                )  # fmt: skip
            (self._folder / "socket").write_text(str(socket))
            ends = time.monotonic() + _LISTEN_S
            while not socket.exists() and self._locks.held and time.monotonic() < ends:
                time.sleep(_POLL_S)
            _log.info("embedder_process_started", folder=str(self._folder))
        return True
