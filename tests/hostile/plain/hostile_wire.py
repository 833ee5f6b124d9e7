"""Bytes and doings of a server that answers badly: what the rows are written in."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

Role = str
Body = dict[str, Any]

#: how a completion, or a chunk of a stream, begins
_HEAD = {"id": "chatcmpl-1", "created": 1, "model": "m-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One connection in the middle of an exchange."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    #: the time is over that the other side waits, where the server has it in hand
    lapse: Callable[[], Awaitable[None]]

    async def send(self, *pieces: bytes, pause_s: float = 0.0) -> None:
        """`pieces` one after the other, each as a packet of its own where there is a pause between them."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            if pause_s:
                await anyio.sleep(pause_s)

    async def silent(self) -> None:
        """Nothing more, until the other side has gone."""
        await self.lapse()
        while await self.reader.read(1 << 16):
            pass

    def reset(self) -> None:
        """End the connection with an RST."""
        self.writer.transport.abort()


#: what becomes of a connection after a request; it ends when this returns
Doing = Callable[[Line], Awaitable[None]]
#: None = a healthy answer; an object is written as it is asked for, with plausible counts
Reply = bytes | Body | Doing | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request as a row's server sees it."""

    #: of the model it names
    role: Role
    body: Body
    headers: Mapping[str, str]
    #: from 0, among the requests of its role
    place: int
    #: what a healthy server would say
    healthy: Body

    @property
    def text(self) -> str:
        """Everything that stands in the request."""
        return json.dumps(self.body, ensure_ascii=False)

    def has(self, name: str) -> bool:
        """Whether a parameter is there and says something."""
        return bool(self.body.get(name))


#: what a row's server does with a request
Play = Callable[[Asked], Reply]

# -- responses -----------------------------------------------------------------------------------------------------


def http(status: int, body: bytes | str | Mapping[str, Any] | Sequence[Any], **headers: str) -> bytes:
    """A response with the body's right length."""
    if isinstance(body, str):
        body = body.encode()
    elif not isinstance(body, bytes):
        body = json.dumps(body).encode("utf-8", "surrogatepass")
    lines = {"content-type": "application/json", "content-length": str(len(body))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body


def failed(status: int, message: str, *, headers: Mapping[str, str] | None = None, **more: Any) -> bytes:
    """An error as OpenAI words it."""
    return http(status, {"error": {"message": message} | more}, **(headers or {}))


def completion(message: Any, finish: Any = "stop") -> Body:
    """A completion with one choice."""
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {**_HEAD, "object": "chat.completion", "choices": [choice]}


def said(content: Any, finish: Any = "stop", **more: Any) -> Body:
    """A completion that is a text."""
    return completion({"role": "assistant", "content": content} | more, finish)


def called(*calls: Any, content: Any = None, finish: str | None = "tool_calls") -> Body:
    """A completion with tool calls as they are given."""
    return completion({"role": "assistant", "content": content, "tool_calls": list(calls)}, finish)


def call(name: Any, arguments: Any, id_: Any = "call_0") -> Body:
    """One tool call."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


# -- streams -------------------------------------------------------------------------------------------------------


def chunks_of(plain: Body, *, usage: bool = True, size: int = 12) -> list[Body]:
    """A completion as the chunks of a stream: the text in pieces of `size`, each call in two, then the end."""
    choice = plain["choices"][0]
    message, finish = choice["message"], choice["finish_reason"]
    deltas: list[Body] = [{"role": "assistant", "content": ""}]
    text = message.get("content") or ""
    deltas += [{"content": text[start : start + size]} for start in range(0, len(text), size)]
    for index, one in enumerate(message.get("tool_calls") or ()):
        name, arguments = one["function"]["name"], one["function"]["arguments"]
        half = len(arguments) // 2
        first = {"index": index, "id": one["id"], "type": "function"}
        deltas.append({"tool_calls": [first | {"function": {"name": name, "arguments": arguments[:half]}}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments[half:]}}]})
    found = [chunk(delta) for delta in deltas]
    found.append(chunk({}, finish))
    if usage:
        found.append(_chunk([]) | {"usage": plain["usage"]})
    return found


def chunk(delta: Any, finish: str | None = None) -> Body:
    """One chunk with one choice."""
    return _chunk([{"index": 0, "delta": delta, "finish_reason": finish}])


def _chunk(choices: list[Body]) -> Body:
    return {**_HEAD, "object": "chat.completion.chunk", "choices": choices}


def event(plain: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(plain, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def events(plains: Sequence[Any], *, done: bool = True) -> bytes:
    """Events one after the other, and the end."""
    return b"".join(map(event, plains)) + (DONE if done else b"")


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def piece(data: bytes) -> bytes:
    """`data` as one piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def streamed(data: bytes, content_type: str = "text/event-stream") -> bytes:
    """A whole chunked response."""
    head = STREAM_HEAD.replace(b"text/event-stream", content_type.encode())
    return head + piece(data) + LAST_CHUNK


def written(plain: Body, asked: Body) -> bytes:
    """A completion as `asked` wants it: whole, or as a stream."""
    if not asked.get("stream"):
        return http(200, plain)
    options = asked.get("stream_options") or {}
    return streamed(events(chunks_of(plain, usage=bool(options.get("include_usage")))))


# -- doings --------------------------------------------------------------------------------------------------------


def cut(sent: bytes) -> Doing:
    """Send this and end the connection."""

    async def do(line: Line) -> None:
        await line.send(sent)

    return do


def reset(sent: bytes = b"") -> Doing:
    """Send this and reset the connection."""

    async def do(line: Line) -> None:
        await line.send(sent)
        line.reset()

    return do


def hanging(sent: bytes = b"") -> Doing:
    """Send this and then nothing, for as long as the other side waits."""

    async def do(line: Line) -> None:
        await line.send(sent)
        await line.silent()

    return do


def dripping(sent: bytes, drop: bytes = b" ") -> Doing:
    """Send this, and then one drop after the other without end."""

    async def do(line: Line) -> None:
        await line.send(sent)
        await line.send(*[drop] * 5, pause_s=0.02)
        await line.lapse()
        while True:
            await line.send(drop, pause_s=0.02)

    return do


def flooding(sent: bytes, wave: bytes) -> Doing:
    """Send this, and then as much as the other side takes."""

    async def do(line: Line) -> None:
        await line.send(sent)
        while True:
            await line.send(wave)

    return do


def piecewise(sent: bytes) -> Doing:
    """Send this byte by byte, and end the connection."""

    async def do(line: Line) -> None:
        await line.send(*(sent[place : place + 1] for place in range(len(sent))))

    return do


# -- plays ---------------------------------------------------------------------------------------------------------


def always(reply: Reply) -> Play:
    """The same for every request."""
    return lambda asked: reply


def first(*replies: Reply) -> Play:
    """These, one after the other; then a healthy answer to everything."""
    return lambda asked: replies[asked.place] if asked.place < len(replies) else None


def unless(fits: Callable[[Asked], bool], reply: Reply) -> Play:
    """`reply` to whatever does not fit, a healthy answer to what does."""
    return lambda asked: None if fits(asked) else reply


def answering(change: Callable[[Body, Asked], Any], places: range | None = None) -> Play:
    """The healthy completion as `change` leaves it, or what `change` gives instead; at `places` only."""

    def play(asked: Asked) -> Reply:
        if places is not None and asked.place not in places:
            return None
        plain = json.loads(json.dumps(asked.healthy))
        changed = change(plain, asked)
        if isinstance(changed, bytes):
            return changed
        return written(changed if isinstance(changed, dict) else plain, asked.body)

    return play
