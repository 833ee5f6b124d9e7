"""A process of its own for a model: one for a home, however many workers embed with it.

torch takes seconds to import, in which no other thread of its process runs, and a model takes its memory once for each
process that loads it. So workers hand their texts to this one over a unix socket. It is started by whoever needs it
first, and ends by itself when nobody has been connected for a while.

A frame is its length in four bytes and a message in MessagePack. First comes the `Greeting`, once the model is there.
From the beginning on an empty frame every few seconds says that the process lives.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct

from infra.embedding_batches import Batches
from runtime.errors import EmbeddingFailed
from runtime.ports import Side

#: how long nobody may be connected before it ends, seconds
IDLE_S = 30.0
#: a frame is no longer, bytes
LARGEST = 256 * 1024 * 1024
#: how often it says that it lives, seconds; importing torch keeps it from that for some
BEAT_S = 5.0
_BEAT = bytes(4)
#: what reading and writing raise once the other end has gone away
_GONE = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError)


class Greeting(Struct, frozen=True, kw_only=True):
    """How loading went: the dimension, or why there is no model."""

    dimension: int = 0
    error: str = ""


class Asked(Struct, frozen=True, kw_only=True, tag="asked"):
    """Texts of one caller."""

    number: int
    side: Side
    texts: list[str]


class Left(Struct, frozen=True, kw_only=True, tag="left"):
    """That caller waits no more."""

    number: int


class Answered(Struct, frozen=True, kw_only=True):
    """Its vectors as int32 bytes, in order, or why there are none."""

    number: int
    vectors: list[bytes] = []
    error: str = ""


def frame(message: Struct) -> bytes:
    """As it goes over the socket."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


class Host:
    """Serves one model until nobody has been connected for `idle_s`."""

    def __init__(self, batches: Batches, idle_s: float) -> None:
        self._batches, self._idle_s = batches, idle_s
        self._connected = 0
        self._changed = anyio.Event()
        #: there will be no model: whoever comes later may fare better in another process
        self._failed = False

    async def serve(self, socket: Path) -> None:
        """Listen on `socket`, which is there once this listens, until it is time to end."""
        listener = await anyio.create_unix_listener(socket, mode=0o600)
        self._batches.start()
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self._answer)
            await self._unused()
            tasks.cancel_scope.cancel()

    async def _unused(self) -> None:
        """Until nobody has been connected for a while."""
        while True:
            changed = self._changed = anyio.Event()
            with anyio.move_on_after(None if self._connected else self._idle_s):
                await changed.wait()
            if not self._connected and (self._failed or not changed.is_set()):
                return

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self._connected += 1
        self._changed.set()
        try:
            yield
        finally:
            self._connected -= 1
            self._changed.set()

    async def _answer(self, stream: ByteStream) -> None:
        """One connection, from the greeting to its end."""
        sending = anyio.Lock()
        async with self._counted(), stream, anyio.create_task_group() as tasks:
            tasks.start_soon(self._beat, stream, sending)
            greeting = await self._greeting()
            with suppress(*_GONE):
                async with sending:
                    await stream.send(frame(greeting))
                if not greeting.error:
                    await self._requests(stream, sending)
            tasks.cancel_scope.cancel()

    async def _beat(self, stream: ByteStream, sending: anyio.Lock) -> None:
        with suppress(*_GONE):
            while True:
                await anyio.sleep(BEAT_S)
                async with sending:
                    await stream.send(_BEAT)

    async def _greeting(self) -> Greeting:
        try:
            loaded = asyncio.wrap_future(self._batches.start())
            return Greeting(dimension=await asyncio.shield(loaded))
        except Exception as error:  # noqa: BLE001 - told to whoever asked for the model
            self._failed = True
            return Greeting(error=str(error) or type(error).__name__)

    async def _requests(self, stream: ByteStream, sending: anyio.Lock) -> None:
        received, decoder = BufferedByteReceiveStream(stream), msgspec.msgpack.Decoder(Asked | Left)
        asked: dict[int, anyio.CancelScope] = {}

        async def embed(request: Asked) -> None:
            with asked[request.number]:
                try:
                    vectors = await self._batches.embed(request.texts, request.side)
                    answer = Answered(number=request.number, vectors=[one.q24 for one in vectors])
                except EmbeddingFailed as error:
                    answer = Answered(number=request.number, error=str(error))
                # Half a frame would be the end of the connection.
                with anyio.CancelScope(shield=True), suppress(*_GONE):
                    async with sending:
                        await stream.send(frame(answer))
            asked.pop(request.number, None)

        async with anyio.create_task_group() as tasks:
            # Inside the group: what is raised through it comes out in a group of its own.
            with suppress(*_GONE, msgspec.DecodeError):
                while True:
                    length = int.from_bytes(await received.receive_exactly(4), "big")
                    message = decoder.decode(await received.receive_exactly(min(length, LARGEST)))
                    if isinstance(message, Asked):
                        asked[message.number] = anyio.CancelScope()
                        tasks.start_soon(embed, message)
                    elif (scope := asked.get(message.number)) is not None:
                        scope.cancel()
            tasks.cancel_scope.cancel()


def main(socket: str, idle_s: str, model: str, loading: str) -> None:
    """Serve in the background until nobody needs it, then take the socket's folder away.

    Args:
        socket: path, in a folder of its own.
        idle_s: as of `Host`.
        model: dotted name of the module that holds `load`.
        loading: JSON, what `load` is called with; `batch_size` beside it.
    """
    # Twice: whoever started it is not its parent, and has nobody to wait for.
    if os.fork():
        os._exit(0)
    given: dict[str, Any] = msgspec.json.decode(loading)
    batch_size: int = given.pop("batch_size")
    batches = Batches(lambda: import_module(model).load(given), batch_size, "embedder")
    try:
        anyio.run(Host(batches, float(idle_s)).serve, Path(socket))
    finally:
        shutil.rmtree(Path(socket).parent, ignore_errors=True)
    # The model's thread may be inside torch, which does not like to be torn down there.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
