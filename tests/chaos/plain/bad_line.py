"""A TCP way to a Redis server that cuts, delays and swallows, and remembers every append whose answer it delivered."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import hiredis

#: (stream, version) -> position
Acknowledged = dict[tuple[str, int], int]

#: what the append script is told of one event, arguments
_WIDTH = 7


class BadLine:
    """Runs in a thread of its own until `close`.

    Commands and answers pass unchanged, unless told otherwise; a fault hits every connection that is open or opened
    while it lasts.
    """

    def __init__(self, server: Path) -> None:
        self._server = server
        #: events whose writers were told that they are there
        self.acknowledged: Acknowledged = {}
        #: appends that were acknowledged in another place than before
        self.moved: list[tuple[str, int, int, int]] = []
        self._delay_s = 0.0
        #: `answers`: commands are carried out, nobody hears; `commands`: nothing arrives
        self._swallowed = ""
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._listening = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._listening.sockets[0].getsockname()[1]

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._tasks)

    def cut(self) -> None:
        """End every connection, in the middle of whatever it carries."""

        async def end() -> None:
            for writer in self._open:
                writer.transport.abort()

        self._call(end())

    def delay(self, seconds: float) -> None:
        """Hold back whatever passes for so long, from now on; 0 ends it."""
        self._delay_s = seconds

    def swallow(self, what: str) -> None:
        """Let `answers` or `commands` disappear from now on; "" ends it, and the connections that missed something."""
        ended, self._swallowed = self._swallowed, what
        if ended:
            self.cut()

    def close(self) -> None:
        """End everything."""

        async def end() -> None:
            self._listening.close()
            await _ended(list(self._tasks))
            await self._listening.wait_closed()

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        others: list[asyncio.StreamWriter] = [writer]
        try:
            with suppress(OSError):
                there, here = await asyncio.open_unix_connection(str(self._server))
                others.append(here)
                self._open |= set(others)
                asked: deque[list[Any]] = deque()
                commands, answers = hiredis.Reader(), hiredis.Reader()

                def seen_commands(data: bytes) -> Callable[[], None]:
                    commands.feed(data)
                    while (command := commands.gets()) is not False:
                        asked.append(command)
                    return lambda: None

                def seen_answers(data: bytes) -> Callable[[], None]:
                    answers.feed(data)
                    found = []
                    while (answer := answers.gets()) is not False:
                        if not isinstance(answer, hiredis.PushNotification) and asked:
                            found.append((asked.popleft(), answer))
                    return lambda: [self._note(*one) for one in found] and None

                pumps = [
                    asyncio.ensure_future(self._pump(reader, here, "commands", seen_commands)),
                    asyncio.ensure_future(self._pump(there, writer, "answers", seen_answers)),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await _ended(pumps)
        finally:
            for one in others:
                one.transport.abort()
            self._open -= set(others)
            self._tasks.discard(task)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        what: str,
        seen: Callable[[bytes], Callable[[], None]],
    ) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                delivered = seen(data)
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                if self._swallowed == what:
                    continue
                target.write(data)
                await target.drain()
                delivered()

    def _note(self, command: list[Any], answer: Any) -> None:
        """Remember appends that were answered with positions."""
        if not isinstance(answer, list) or bytes(command[0]).upper() != b"EVALSHA" or not command[3].endswith(b":log"):
            return
        given = command[3 + int(command[2]) :]
        # The others of a log's scripts begin with a stream's name, or have no arguments.
        if not (given and given[0].isdigit()):
            return
        streams, rest = [one.decode() for one in given[1 : int(given[0]) + 1]], given[int(given[0]) + 1 :]
        for stream, said in zip(streams, answer, strict=True):
            first, count, basis = int(rest[0]), int(rest[1]), rest[2]
            rest = rest[(4 if basis else 3) + _WIDTH * count :]
            match said:
                case int():
                    self._acknowledged(stream, first, range(said, said + count))
                case [b"ok", _, *positions]:
                    self._acknowledged(stream, first, positions)
                case _:
                    pass

    def _acknowledged(self, stream: str, first: int, positions: Sequence[int]) -> None:
        for version, position in enumerate(positions, first):
            before = self.acknowledged.setdefault((stream, version), int(position))
            if before != position:
                self.moved.append((stream, version, before, int(position)))


async def _ended(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Cancelled, and over."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
