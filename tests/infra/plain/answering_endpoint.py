"""A loopback server whose answers depend on what it is asked."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from scripted_endpoint import Request, Scripted

Answering = Callable[[Request], bytes | Awaitable[bytes]]


@asynccontextmanager
async def answering(answer: Answering) -> AsyncIterator[Scripted]:
    """A server that answers each request with what `answer` says to it; its connections break off when it ends."""
    server = Scripted([])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.writers.add(writer)
        try:
            while (request := await server._read(reader, 0)) is not None:
                server.requests.append(request)
                reply = answer(request)
                writer.write(reply if isinstance(reply, bytes) else await reply)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            server.writers.discard(writer)
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for writer in server.writers:
            writer.transport.abort()
