"""One connection for the many small commands of a process.

What is asked within one turn of the loop goes out as one write, and what has come back is read as one: a tenth of what
a connection for each command costs, and the server is woken less often. Commands that wait, those that say much and
those that need a connection of their own go on as redis-py has it.
"""

import asyncio
from collections import deque
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
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []
        self._heard_s = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        #: nothing can be asked any more
        self.lost = False
        self._transport.set_protocol(self)

    async def ask(self, command: bytes) -> Any:
        """The reply to a packed command, as the server sent it. Only while the line is not lost.

        Raises:
            RedisError: the server's refusal, or a line that broke before the reply.
        """
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(command)
        if not self._asked:
            self._heard_s = self._loop.time()
        if self._watch is None:
            self._watch = self._loop.call_later(self._patience_s, self._look)
        reply = self._loop.create_future()
        self._asked.append(reply)
        found = await reply
        if isinstance(found, Exception):
            raise found
        return found

    async def aclose(self) -> None:
        """Close it; whoever waits is told."""
        self._broken(RedisError("the client was closed"))
        await self._connection.disconnect()

    def _send(self) -> None:
        if not self.lost:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

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
                # One of its own for each: a raised error carries its traceback.
                reply.set_exception(type(error)(str(error)))

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
                if not asked.done():  # its caller was cancelled
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

    async def _reply(self, command: bytes) -> Any:
        failures = 0
        while True:
            line = self._line
            if line is None or line.lost:
                line = await self._connected()
            try:
                return await line.ask(command)
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
