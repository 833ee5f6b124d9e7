"""The wire's clients in front of a server that plays bytes, pauses and ends of connections."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from scripted_endpoint import OK, FakeClock, Play, Reply, Scripted, completion, http, scripted

from infra.model_errors import Failed, Failure
from infra.openai_client import Clients, Exchange
from infra.watched_network import WatchedTransport
from runtime.settings import EndpointSettings

STALE = completion({"role": "assistant", "content": "of another question"})
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
BODY = OK.partition(b"\r\n\r\n")[2]


@dataclass
class Asked:
    """A server and the clients in front of it."""

    server: Scripted
    clients: Clients
    endpoint: EndpointSettings

    async def post(self, limit_s: float = 60.0, **parameters: Any) -> Exchange:
        return await self.clients.post(self.endpoint, {"model": "m", "messages": []} | parameters, limit_s)

    async def content(self) -> str:
        text = json.loads((await self.post()).body)["choices"][0]["message"]["content"]
        assert isinstance(text, str)
        return text

    async def failure(self, limit_s: float = 60.0) -> Failure:
        with pytest.raises(Failed) as caught:
            await self.post(limit_s)
        return caught.value.failure

    async def gone(self) -> None:
        """Until the server has seen the end of every connection."""
        await until(lambda: not self.server.open)
        assert self.kept == 0

    @property
    def kept(self) -> int:
        """Connections of the client."""
        transport = self.clients.of(self.endpoint)._client._transport
        assert isinstance(transport, WatchedTransport)
        return transport.connections

    @property
    def connections(self) -> list[int]:
        return [one.connection for one in self.server.requests]


async def until(holds: Callable[[], bool]) -> None:
    """A condition of the loop's other end."""
    with anyio.fail_after(120):
        while not holds():  # noqa: ASYNC110 - the server tells nobody
            await anyio.sleep(0.001)


@asynccontextmanager
async def asking(*replies: Reply, rest_s: float = 0.0, **changes: Any) -> AsyncIterator[Asked]:
    async with scripted(*replies) as server:
        async with AsyncExitStack() as held:
            clients = Clients({}, FakeClock(), held, rest_s=rest_s)
            yield Asked(server, clients, EndpointSettings(**({"base_url": server.url} | changes)))
        await until(lambda: not server.open)


def playing(*parts: bytes | float, then: str = "read") -> Play:
    """Write `parts`, a pause for each number; then read until the client closes, or close."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            if isinstance(part, bytes):
                writer.write(part)
                await writer.drain()
            else:
                await anyio.sleep(part)
        if then == "read":
            await reader.read()

    return play


def chunked(body: bytes, *, end: bytes = b"0\r\n\r\n") -> bytes:
    return HEAD + b"transfer-encoding: chunked\r\n\r\n" + f"{len(body):x}\r\n".encode() + body + b"\r\n" + end


async def forever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, part: bytes, pause_s: float) -> None:
    while True:
        writer.write(part)
        await writer.drain()
        await anyio.sleep(pause_s)


def dripping(head: bytes, part: bytes, pause_s: float = 0.002) -> Play:
    """Write `head`, and then `part` again and again."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await forever(reader, writer, part, pause_s)

    return play


def packed(coding: str, body: bytes) -> bytes:
    return http(200, body, content_encoding=coding)
