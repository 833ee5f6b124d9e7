"""One connection for the many small commands of a process.

What is asked within one turn of the loop goes out as one write, and what has come back is read as one: a tenth of what
a connection for each command costs, and the server is woken less often. Commands that wait, those that say much and
those that need a connection of their own go on as redis-py has it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import anyio
import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, InvalidResponse, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from typing_extensions import override

#: commands that go over the shared connection: short, and harmless when they run twice
SHARED = frozenset({"EVALSHA", "HGET", "HSETNX", "XRANGE"})
#: between the tries of a command whose connection broke
BACKOFF = ExponentialBackoff(cap=1.0, base=0.05)
#: arguments of a command that several callers share: with more of them the next one begins another command
_MOST_TOGETHER = 2048
_MORE = object()


def packed(command: tuple[Any, ...]) -> bytes:
    """A command as it is sent. Its first word may be several, as redis-py has them.

    Raises:
        DataError: an argument that a command cannot have.
    """
    first = command[0]
    if isinstance(first, str) and " " in first:
        command = (*first.split(), *command[1:])
    try:
        return cast("bytes", hiredis.pack_command(command))
    except TypeError as error:
        raise DataError(str(error)) from error


class _Together:
    """One command for what several callers ask within one turn of the loop. Its reply is a list, a part for each."""

    __slots__ = ("arguments", "askers", "head", "names")

    def __init__(self, head: tuple[Any, ...]) -> None:
        self.head = head
        self.names: list[str] = []
        self.arguments: list[Any] = []
        self.askers: list[asyncio.Future[Any]] = []

    def packed(self) -> bytes:
        """As it is sent: how many there are, the name of each, their arguments."""
        return packed((*self.head, len(self.names), *self.names, *self.arguments))

    # -- what a line does with the reply of one caller -----------------------------------------------------------------

    def done(self) -> bool:
        """Never: each caller is asked where its part has come."""
        return False

    def set_result(self, reply: Any) -> None:
        for asker, part in zip(self.askers, reply, strict=True):
            if not asker.done():
                asker.set_result(part)

    def set_exception(self, error: Exception) -> None:
        for asker in self.askers:
            if not asker.done():
                asker.set_exception(_another(error))


def _another(error: Exception) -> Exception:
    """One of its own for each caller: a raised error carries its traceback."""
    return type(error)(str(error))


class Line(asyncio.Protocol):
    """A connection that redis-py has made, over which replies come in the order of the commands.

    Args:
        connection: connected, with nothing under way.
        patience_s: how long the server may say nothing while commands wait.
    """

    def __init__(self, connection: AbstractConnection, patience_s: float) -> None:
        self._connection, self._patience_s = connection, patience_s
        self._loop = asyncio.get_running_loop()
        # redis-py's own reader would be asked for each reply; the loop tells us of all of them at once.
        writer, parser = connection._writer, connection._parser  # noqa: SLF001 - redis-py makes no other way out
        assert writer is not None  # noqa: S101 - it is connected
        self._transport = cast("asyncio.Transport", writer.transport)
        self._replaced = self._transport.get_protocol()
        self._replies = hiredis.Reader(
            protocolError=InvalidResponse, replyError=parser.parse_error, notEnoughData=_MORE
        )
        self._asked: deque[asyncio.Future[Any] | _Together] = deque()
        self._unsent: list[bytes | _Together] = []
        #: by how they begin, those that others may still join
        self._joined: dict[tuple[Any, ...], _Together] = {}
        self._heard_s = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        #: nothing can be asked any more
        self.lost = False
        self._transport.set_protocol(self)

    def ask(self, command: bytes) -> "asyncio.Future[Any]":
        """The reply to a packed command, as the server sent it. Only while the line is not lost.

        Raises:
            RedisError: the server's refusal, or a line that broke before the reply.
        """
        reply = self._loop.create_future()
        self._queue(command, reply)
        return reply

    def ask_with_others(self, head: tuple[Any, ...], name: str, arguments: Sequence[Any]) -> "asyncio.Future[Any]":
        """A part of the reply to `head`, the number and names of all who ask it in this turn, and their arguments.

        Raises:
            RedisError: as `ask`; for all of them.
        """
        together = self._joined.get(head)
        if together is None or len(together.arguments) > _MOST_TOGETHER:
            together = self._joined[head] = _Together(head)
            self._queue(together, together)
        together.names.append(name)
        together.arguments += arguments
        reply = self._loop.create_future()
        together.askers.append(reply)
        return reply

    def _queue(self, command: bytes | _Together, reply: "asyncio.Future[Any] | _Together") -> None:
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(command)
        if not self._asked:
            self._heard_s = self._loop.time()
        if self._watch is None:
            self._watch = self._loop.call_later(self._patience_s, self._look)
        self._asked.append(reply)

    async def aclose(self) -> None:
        """Close it; whoever waits is told."""
        self._broken(RedisError("the client was closed"))
        await self._connection.disconnect()

    def _send(self) -> None:
        if not self.lost:
            self._transport.write(b"".join([one if isinstance(one, bytes) else one.packed() for one in self._unsent]))
        self._unsent.clear()
        self._joined.clear()

    def _look(self) -> None:
        """Break a line whose server keeps silent."""
        self._watch = None
        if not self._asked:
            return
        silent_s = self._loop.time() - self._heard_s
        if silent_s >= self._patience_s:
            self._broken(RedisTimeoutError(f"no reply within {self._patience_s:g} s"))
            self._transport.abort()
        else:
            self._watch = self._loop.call_later(self._patience_s - silent_s, self._look)

    def _broken(self, error: Exception) -> None:
        self.lost = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        while self._asked:
            if not (reply := self._asked.popleft()).done():
                reply.set_exception(_another(error))

    # -- what the loop calls -------------------------------------------------------------------------------------------

    @override
    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        try:
            self._replies.feed(data)
            while (reply := self._replies.gets()) is not _MORE:
                if isinstance(reply, hiredis.PushNotification):
                    continue
                asked = self._asked.popleft()
                if asked.done():
                    continue  # its caller was cancelled
                if isinstance(reply, Exception):
                    asked.set_exception(reply)
                else:
                    asked.set_result(reply)
        except (InvalidResponse, IndexError) as error:
            self._broken(RedisConnectionError(f"the server's reply is none: {error}"))
            self._transport.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._broken(RedisConnectionError(f"Connection closed by server{f': {exc}' if exc else ''}"))
        # redis-py waits for its own protocol to hear of it.
        self._replaced.connection_lost(exc)
        self._connection._close()  # type: ignore[no-untyped-call]  # noqa: SLF001 - it warns of a writer that it still has


class SharingRedis(Redis):
    """redis-py's client whose short commands share one connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: tries after the first
        self.retries = 0
        self.patience_s = 15.0
        #: what redis-py makes of a reply; its own table is asked letter by letter
        self._shaped = {name: self.response_callbacks.get(name) for name in SHARED}
        self._line: Line | None = None
        self._connecting = anyio.Lock()

    @override
    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """As redis-py's."""
        if args[0] not in SHARED or self.single_connection_client:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        reply = await self._reply(packed(args))
        options.pop("keys", None)
        callback = self._shaped[args[0]]
        return reply if callback is None else callback(reply, **options)

    def ask_with_others(self, head: tuple[Any, ...], name: str, arguments: Sequence[Any]) -> Awaitable[Any]:
        """As `Line.ask_with_others`: for commands that may share one, and are harmless when they run twice."""
        return self._tried(lambda line: line.ask_with_others(head, name, arguments))

    async def entries(self, key: str, first: int, count: int) -> list[Any]:
        """Up to `count` entries of a stream from `first` on, each [id, [name, value, ...]] as it came.

        redis-py makes a dictionary of each, which a reader that passes most of them over does not need.
        """
        return cast("list[Any]", await self._reply(packed(("XRANGE", key, f"{first}-0", "+", "COUNT", count))))

    def _reply(self, command: bytes) -> Awaitable[Any]:
        return self._tried(lambda line: line.ask(command))

    async def _tried(self, ask: Callable[[Line], Awaitable[Any]]) -> Any:
        failures = 0
        while True:
            line = self._line
            if line is None or line.lost:
                line = await self._connected()
            try:
                return await ask(line)
            except (RedisConnectionError, RedisTimeoutError):
                failures += 1
                if failures > self.retries:
                    raise
            await anyio.sleep(BACKOFF.compute(failures))

    async def _connected(self) -> Line:
        """The line, made anew where it broke. Whoever comes while it is being made gets the same."""
        async with self._connecting:
            if self._line is None or self._line.lost:
                connection = self.connection_pool.make_connection()  # type: ignore[no-untyped-call]
                # It tries again by itself.
                await connection.connect()
                self._line = Line(connection, self.patience_s)
            return self._line

    @override
    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """As redis-py's."""
        line, self._line = self._line, None
        if line is not None:
            await line.aclose()
        await super().aclose(close_connection_pool)
