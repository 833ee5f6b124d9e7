"""A loopback server that plays one row for one role and answers everything else as a healthy model would.

Raw sockets, so that HTTP itself can be broken. The role is known by the model that a request names, so it needs no
sense in the rest of it. Two addresses: `hostile` for the role that the row is for, `healthy` for the others.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import anyio
import msgspec
from hostile_wire import Asked, Body, Doing, Line, Play, http, written

from infra.environments.toy import Toy
from infra.rehearsal.asking import read_request
from infra.rehearsal.key import AnswerKey, KeyTask
from infra.rehearsal.planting import Planting, RehearsalSettings
from infra.rehearsal.playing import Played, Rehearsal, Reply, UnknownTask
from infra.rehearsal.server import _completion, _tokens
from runtime.prompting import message_text

_TEXT_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_TOLD_TOOL = re.compile(r'^{"name": "([^"]+)", "description"', re.MULTILINE)
#: nothing goes wrong by itself
FLAWLESS = RehearsalSettings(
    wrong_plan=0, wrong_execution=0, both=0, external=0, rescued=0, misled=0, foreign=0, reliability=1
)
#: seconds within which the server sees that the other side has let go
_GONE_S = 120.0


async def never() -> None:
    """The other side's time is its own."""


@cache
def toy_key() -> AnswerKey:
    """What the healthy model knows of the toy."""
    toy = Toy()
    found = {}
    for task in toy.tasks():
        known = {"domain": task["domain"], **toy.oracle(task["domain"], task["task_id"])}
        found[task["task_id"]] = msgspec.convert(known, KeyTask)
    return AnswerKey(found)


def healthy_completion(body: Body, model: Rehearsal) -> Body:
    """What a healthy server says to `body`, whichever way it asks for an object or for tools."""
    executing = body.get("model") == "executor"
    forced = not executing and body.get("tools")
    told = executing and not body.get("tools")
    if forced:
        read = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
    else:
        read = natively(body) if told else body
    try:
        played = model.play(read_request(read, toy_key()))
    except UnknownTask:
        # Of a request that lost its middle the task may be gone.
        played = Played(reply=Reply(content="I do not know what this is about."))
    found = _completion(read, played)
    found["model"] = "m-1"
    message = found["choices"][0]["message"]
    if forced:
        name = body["tools"][0]["function"]["name"]
        function = {"name": name, "arguments": message["content"]}
        message |= {"content": None, "tool_calls": [{"id": "call_0", "type": "function", "function": function}]}
        found["choices"][0]["finish_reason"] = "tool_calls"
    elif told and message.get("tool_calls"):
        message["content"] = "\n".join(map(_as_text, message.pop("tool_calls")))
        found["choices"][0]["finish_reason"] = "stop"
    return found


def natively(body: Body) -> Body:
    """A request that tells of its tools in the prompt, as one that offers them."""
    tools: list[Body] = []
    messages: list[Body] = []
    for message in body["messages"]:
        text = message_text(message)
        tools += [{"type": "function", "function": {"name": name}} for name in _TOLD_TOOL.findall(text)]
        answers = message.get("role") == "user" and text.lstrip().startswith("<tool_response>")
        messages.append(message | {"role": "tool"} if answers else message)
    return body | {"messages": messages, "tools": tools}


def acts(message: Body, *, told: bool) -> str:
    """What an assistant's message does; `told`: calls are written as text."""
    calls = [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls") or ()]
    text = message_text(message)
    try:
        found = [json.loads(one) for one in _TEXT_CALL.findall(text)] if told else []
        calls += [(one["name"], json.dumps(one["arguments"])) for one in found]
        return json.dumps([[name, json.loads(arguments)] for name, arguments in calls]) if calls else text.strip()
    except (ValueError, KeyError, TypeError):
        return text.strip()


def without_mishaps(body: Body, model: Rehearsal) -> Body:
    """`body` without those answers in its history that no healthy executor gives, and what was said to them.

    A function of the request alone, so that it does not matter what else was asked before.
    """
    kept: list[Body] = []
    mishap, told = False, not body.get("tools")
    for message in body["messages"]:
        if message.get("role") == "assistant":
            healthy = healthy_completion(body | {"messages": kept}, model)["choices"][0]["message"]
            mishap = acts(message, told=told) != acts(healthy, told=told)
        if not mishap:
            kept.append(message)
    return body | {"messages": kept}


def _as_text(call: Body) -> str:
    """A tool call as a model writes it that was told of tools in its prompt."""
    function = call["function"]
    written_call = {"name": function["name"], "arguments": json.loads(function["arguments"])}
    return f"<tool_call>\n{json.dumps(written_call)}\n</tool_call>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request as it came."""

    role: str
    path: str
    headers: Mapping[str, str]
    body: Body
    #: from 0, in the order in which they were accepted
    connection: int
    #: whether it got the healthy answer
    healthy: bool


@dataclass
class HostileServer:
    """What was asked of it, and its connections."""

    play: Play
    model: Rehearsal = field(default_factory=lambda: Rehearsal(Planting(FLAWLESS)))
    #: whether a request is answered by `play`; else healthily
    plays: Callable[[Asked], bool] = lambda asked: True
    #: what becomes of a connection before it says anything
    at_accept: Doing | None = None
    #: what a silence ends with
    lapse: Callable[[], Awaitable[None]] = never
    requests: list[Seen] = field(default_factory=list)
    #: by role
    asked: Counter[str] = field(default_factory=Counter)
    #: at the hostile address
    accepted: int = 0
    #: connections that ended before a request
    refused_at_accept: int = 0
    port: int = 0
    healthy_port: int = 0
    _connections: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def hostile_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def healthy_url(self) -> str:
        return f"http://127.0.0.1:{self.healthy_port}/v1"

    @property
    def open(self) -> int:
        return len(self._writers)

    async def left(self) -> bool:
        """Whether the other side closes every connection."""
        with anyio.move_on_after(_GONE_S):
            while self._writers:  # noqa: ASYNC110 - bounded, and what is waited for is a count
                await anyio.sleep(0.005)
            return True
        return False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, hostile: bool) -> None:
        number, self._connections = self._connections, self._connections + 1
        self._writers.add(writer)
        line = Line(reader=reader, writer=writer, lapse=self.lapse)
        try:
            if hostile:
                self.accepted += 1
                if self.at_accept is not None:
                    self.refused_at_accept += 1
                    await self.at_accept(line)
                    return
            while (read := await _read(reader)) is not None:
                reply = self._reply(*read, number, hostile=hostile)
                if not isinstance(reply, bytes):
                    await reply(line)
                    break
                writer.write(reply)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self._writers.discard(writer)

    def _reply(self, path: str, headers: Mapping[str, str], body: Any, number: int, *, hostile: bool) -> bytes | Doing:
        if path.endswith("/models"):
            return http(200, {"object": "list", "data": [{"id": one} for one in ("planner", "executor", "gate")]})
        role = str(body.get("model"))
        sane = without_mishaps(body, self.model) if role == "executor" else body
        healthy = healthy_completion(sane, self.model)
        healthy["usage"]["prompt_tokens"] = _tokens(body["messages"]) + _tokens(body.get("tools") or [])
        asked = Asked(role=role, body=body, headers=headers, place=self.asked[role], healthy=healthy)
        self.asked[role] += 1
        reply = self.play(asked) if hostile and self.plays(asked) else None
        self.requests.append(
            Seen(role=role, path=path, headers=headers, body=body, connection=number, healthy=reply is None)
        )
        if isinstance(reply, dict):
            return written({"usage": healthy["usage"]} | reply, body)
        return written(healthy, body) if reply is None else reply

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], Any] | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return first.split(" ")[1], headers, json.loads(body or b"null")


@asynccontextmanager
async def hostile_server(play: Play, **given: Any) -> AsyncIterator[HostileServer]:
    """A server that plays; its connections break off when it ends."""
    server = HostileServer(play, **given)

    async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.serve(reader, writer, hostile=True)

    async def healthy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.serve(reader, writer, hostile=False)

    listening = [await asyncio.start_server(one, "127.0.0.1", 0, limit=1 << 22) for one in (hostile, healthy)]
    server.port, server.healthy_port = (one.sockets[0].getsockname()[1] for one in listening)
    try:
        yield server
    finally:
        for one in listening:
            one.close()
        server.close()
        with anyio.CancelScope(shield=True):
            await server.left()
