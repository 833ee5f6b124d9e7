"""A loopback server that plays scripted bytes, and the model client in front of it."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from events.ids import RunId, StreamId
from infra.openai_client import Clients
from infra.openai_model import OpenAIModel
from runtime.ports import CallKey, ChatAnswer, ChatRequest, Clock, Role
from runtime.settings import EndpointSettings, ModelSettings, Thinking

#: what to do with a connection instead of a response
Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Reply = bytes | Play

KEY = CallKey(run=RunId("r"), stream=StreamId("episode-1"), stage="execution", ordinal=3)
SECRET = "sk-" + "4f9a" * 8
SCHEMA = {"title": "plan", "type": "object", "properties": {"plan": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@dataclass
class Request:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: Any
    #: from 0, in the order in which they were accepted
    connection: int


@dataclass
class Scripted:
    """An HTTP server that answers the nth request with the nth reply, and then with the last one again."""

    replies: list[Reply]
    requests: list[Request] = field(default_factory=list)
    port: int = 0
    accepted: int = 0
    open: int = 0
    asked: anyio.Event = field(default_factory=anyio.Event)
    left: anyio.Event = field(default_factory=anyio.Event)
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.accepted, self.open = self.accepted, self.accepted + 1, self.open + 1
        self.writers.add(writer)
        try:
            while (request := await self._read(reader, number)) is not None:
                self.requests.append(request)
                self.asked.set()
                reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
                if not isinstance(reply, bytes):
                    await reply(reader, writer)
                    break
                writer.write(reply)
                await writer.drain()
                if b"connection: close" in reply:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            self.writers.discard(writer)
            self.left.set()
            writer.close()

    @staticmethod
    async def _read(reader: asyncio.StreamReader, connection: int) -> Request | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Request(first.split(" ")[1], headers, json.loads(body or b"null"), connection)


@asynccontextmanager
async def scripted(*replies: Reply, port: int = 0) -> AsyncIterator[Scripted]:
    """A server that plays `replies`; its connections break off when it ends."""
    server = Scripted(list(replies))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", port)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for writer in server.writers:
            writer.transport.abort()


class FakeClock:
    """Sleeps at once, and remembers for how long."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def utc(self) -> str:
        return "2026-01-01T00:00:00.000000Z"

    def monotonic(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()
        self.slept.append(seconds)


def http(status: int, body: bytes | str | dict[str, Any], **headers: str) -> bytes:
    """A response with the body's right length."""
    if isinstance(body, dict):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode()
    lines = {"content-type": "application/json", "content-length": str(len(body))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body


def completion(message: Any = None, **more: Any) -> bytes:
    """A 200 with one choice."""
    said = {"role": "assistant", "content": "fine"} if message is None else message
    plain = {"model": "m-1", "choices": [{"message": said, "finish_reason": "stop"}]} | more
    return http(200, plain)


def failed(status: int, message: str, **more: Any) -> bytes:
    """An error as OpenAI words it."""
    return http(status, {"error": {"message": message} | more})


OK = completion()
REQUEST = ChatRequest(role="executor", messages=[{"role": "user", "content": "hello"}])
ASKING_SCHEMA = replace(REQUEST, schema=SCHEMA)


@dataclass
class Asked:
    """A server, a model that asks it, and the clock between them."""

    server: Scripted
    model: OpenAIModel
    clock: FakeClock

    async def complete(self, request: ChatRequest = REQUEST) -> ChatAnswer:
        return await self.model.complete(request, KEY)

    @property
    def bodies(self) -> list[Any]:
        return [one.body for one in self.server.requests]


@asynccontextmanager
async def openai_model(
    models: Mapping[Role, ModelSettings],
    endpoints: Mapping[Role, EndpointSettings],
    keys: Mapping[str, str],
    clock: Clock,
    rng: random.Random | None = None,
) -> AsyncIterator[OpenAIModel]:
    """A model with connections of its own."""
    async with AsyncExitStack() as stack:
        yield OpenAIModel(models, endpoints, Clients(keys, clock, stack, rest_s=0.0), clock, rng)


@asynccontextmanager
async def asking(*replies: Reply, thinking: Thinking = "none", **changes: Any) -> AsyncIterator[Asked]:
    """An executor's model in front of a server that plays `replies`."""
    async with scripted(*replies) as server:
        clock = FakeClock()
        given: dict[str, Any] = {"base_url": server.url, "api_key_env": "A_KEY", "retries": 4} | changes
        endpoint = EndpointSettings(**given)
        settings = ModelSettings(model="m", thinking=thinking)
        rng = random.Random(7)  # noqa: S311 - jitter is no secret
        models: dict[Role, ModelSettings] = {"executor": settings}
        async with openai_model(models, {"executor": endpoint}, {"A_KEY": SECRET}, clock, rng) as model:
            yield Asked(server, model, clock)
