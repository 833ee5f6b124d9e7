"""Exchanges with OpenAI-compatible endpoints: within bounds of time and size, and over connections that can be trusted.

| limit | from | to | when it is over |
|---|---|---|---|
| `connect_timeout_s` | the beginning | a connection, its TLS and a proxy's tunnel | `unreachable` |
| `first_byte_timeout_s` | the request | the answer's first byte; of a stream its first chunk | `first_byte` |
| `timeout_s`, and what is left of `deadline_s` | the beginning | the whole answer, however it drips | `timeout` |

A connection is used again after a whole answer that is one, if nothing has come over it since. It is closed after
anything else: an error while reading, a limit, a bound of size, a cancelled call, more bytes than were declared, a
second response, HTTP/1.0, `Connection: close`, a 200 that holds something else.
"""

import ssl
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any, Final

import anyio
import msgspec
from msgspec import Raw, Struct

from events.errors import BadInput
from infra.breaker import Breaker
from infra.capabilities import Learnt, Place
from infra.event_stream import Assembly, begins_no_document, is_event_stream, looks_like_events
from infra.http_connection import REST_S, Connection, Connections, Head
from infra.http_route import Broken, NoConnection, route_to
from infra.model_errors import Failed, Failure, broken, late, malformed, of_status, too_slow, unreachable
from runtime.ports import Clock
from runtime.settings import EndpointSettings, ServerSettings

#: an answer, or an error, is not read beyond this, bytes; a stream says around each word what an answer says once
LARGEST_ANSWER, LARGEST_ERROR, LARGEST_STREAM = 2**24, 2**16, 2**26
#: how long a stream may take to end after its end mark, seconds; the answer is there already
_ENDS_S: Final = 0.25
#: what we ask not to be sent, and can read all the same
_PACKED: Final = frozenset({"gzip", "x-gzip", "deflate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One answer of a completion, whole."""

    #: of a completion in one piece, also where it came as a stream
    body: bytes
    #: names in lower case
    headers: Mapping[str, str]
    #: from the request to the first byte of the body, to the first text of a stream
    first_byte_s: float
    #: with connecting
    total_s: float
    streamed: bool


class _Completion(Struct):
    choices: list[Raw]


class _Rows(Struct):
    data: list[Raw]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One request."""

    method: str
    path: str
    body: bytes = b""
    #: what a whole answer holds, at least
    shape: type[Struct]
    #: the request's own, tokens; None = none
    cap: int | None = None
    #: seconds
    limit_s: float
    first_byte_s: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """One address, asked with one key."""

    connections: Connections
    target: Callable[[str], str]
    authority: str
    key: str = field(repr=False)
    proxy: str = field(repr=False)

    def head(self, asked: _Asked) -> list[tuple[str, str]]:
        """All that is sent beside the body: nothing of the environment, and nothing about this machine."""
        head = [
            ("Host", self.authority),
            ("Accept", "application/json"),
            ("Accept-Encoding", "identity"),
            ("User-Agent", "chime"),
        ]
        if asked.body:
            head += [("Content-Type", "application/json"), ("Content-Length", str(len(asked.body)))]
        if self.key:
            head.append(("Authorization", f"Bearer {self.key}"))
        if self.proxy:
            head.append(("Proxy-Authorization", self.proxy))
        return head


class Clients:
    """Made inside the loop it is used in; its connections are closed with `stack`."""

    def __init__(self, keys: Mapping[str, str], clock: Clock, stack: AsyncExitStack, *, rest_s: float = REST_S) -> None:
        """Nothing is connected yet.

        Args:
            keys: name of an environment variable -> the key it holds; the proxies are read from them too.
            clock: what a Retry-After date is compared with.
            stack: of whoever holds these clients.
            rest_s: how long a connection must have been silent to be used again.
        """
        self._keys = {name: key.strip() for name, key in keys.items()}
        self._clock, self._rest_s = clock, rest_s
        self._context: ssl.SSLContext | None = None
        self._servers: dict[tuple[str, str], _Server] = {}
        stack.callback(self._close)
        #: what answered requests have gone without
        self.learnt: dict[Place, Learnt] = {}
        self.breakers: defaultdict[Place, Breaker] = defaultdict(Breaker)

    def key(self, endpoint: ServerSettings) -> str:
        """The key that is sent to `endpoint`; "" = none."""
        return self._keys.get(endpoint.api_key_env, "")

    def of(self, endpoint: ServerSettings) -> _Server:
        """The connections of this address and key, shared.

        Raises:
            BadInput: an address or a key that no request can be made with.
        """
        same = (endpoint.base_url, endpoint.api_key_env)
        if (known := self._servers.get(same)) is not None:
            return known
        route, key = route_to(endpoint.base_url, self._keys), self.key(endpoint)
        if not (key.isascii() and key.isprintable()):
            raise BadInput(f"{endpoint.api_key_env} holds characters that no key has; is it a line of something else?")
        proxy = route.proxy.authorization if route.proxy is not None and not route.tls else ""
        connections = Connections(route, self._tls, self._rest_s)
        made = _Server(connections=connections, target=route.target, authority=route.authority, key=key, proxy=proxy)
        self._servers[same] = made
        return made

    @property
    def idle(self) -> int:
        """Connections that are kept and carry nothing."""
        return sum(one.connections.idle for one in self._servers.values())

    async def post(self, endpoint: EndpointSettings, parameters: Mapping[str, Any], limit_s: float) -> Exchange:
        """The answer to a chat completion's `parameters`, whole within `limit_s`; streamed where `endpoint.stream`.

        Args:
            endpoint: where to ask.
            parameters: the body's fields; those of `extra_body` beside them; `stream_options` None = not sent.
            limit_s: for all of it.

        Raises:
            Failed: with what it means.
        """
        fields = {name: value for name, value in parameters.items() if name != "extra_body"}
        if endpoint.stream:
            fields = {"stream": True, "stream_options": {"include_usage": True}, **fields}
            if fields["stream_options"] is None:
                del fields["stream_options"]
        cap = parameters.get("max_completion_tokens", parameters.get("max_tokens"))
        asked = _Asked(
            method="POST",
            path="/chat/completions",
            body=_encoded({**fields, **parameters.get("extra_body", {})}),
            shape=_Completion,
            cap=cap if isinstance(cap, int) else None,
            limit_s=limit_s,
            first_byte_s=endpoint.first_byte_timeout_s or inf,
        )
        return await self._asked(endpoint, asked)

    async def embeddings(self, endpoint: ServerSettings, parameters: Mapping[str, Any], limit_s: float) -> bytes:
        """The body of one answer to an embedding's `parameters`, whole within `limit_s`.

        Raises:
            Failed: with what it means.
        """
        body = _encoded(parameters)
        asked = _Asked(method="POST", path="/embeddings", body=body, shape=_Rows, limit_s=limit_s)
        return (await self._asked(endpoint, asked)).body

    async def models(self, endpoint: ServerSettings, limit_s: float) -> bytes:
        """The body of the endpoint's list of models, whole within `limit_s`.

        Raises:
            Failed: with what it means.
        """
        return (await self._asked(endpoint, _Asked(method="GET", path="/models", shape=_Rows, limit_s=limit_s))).body

    async def _asked(self, endpoint: ServerSettings, asked: _Asked) -> Exchange:
        """One exchange; its connection is closed where it does not end well.

        Raises:
            Failed: with what it means.
        """
        server, began = self.of(endpoint), anyio.current_time()
        try:
            with anyio.fail_after(asked.limit_s):
                connection = await server.connections.take(endpoint.connect_timeout_s)
                try:
                    exchange = await self._exchange(server, connection, asked, began)
                    if not _holds(exchange.body, asked.shape):
                        connection.distrust()
                finally:
                    server.connections.give_back(connection)
        except TimeoutError as error:
            raise Failed(too_slow(asked.limit_s)) from error
        except NoConnection as error:
            raise Failed(unreachable(str(error))) from error
        except Broken as error:
            raise Failed(broken(str(error))) from error
        return exchange

    async def _exchange(self, server: _Server, connection: Connection, asked: _Asked, began: float) -> Exchange:
        sent = anyio.current_time()
        with anyio.CancelScope(deadline=sent + asked.first_byte_s) as waiting:
            head = await connection.ask(asked.method, server.target(asked.path), server.head(asked), asked.body)
            if not 200 <= head.status < 300:
                waiting.deadline = inf
                raise Failed(await self._refusal(connection, head, asked.body))
            reading = _Reading(connection, head, asked.cap, waiting)
            body = await reading.body()
            return Exchange(
                body=body,
                headers=head.headers,
                first_byte_s=reading.first_at - sent,
                total_s=anyio.current_time() - began,
                streamed=reading.is_stream,
            )
        raise Failed(late(asked.first_byte_s))

    async def _refusal(self, connection: Connection, head: Head, sent: bytes) -> Failure:
        """What an error says, as far as it is read."""
        packing, body = _Unpacking(head, LARGEST_ERROR), bytearray()
        while not packing.is_full and (part := await connection.more()) is not None:
            body += packing.opened(part)
        if packing.is_full:
            connection.distrust()
        told = body[:LARGEST_ERROR].decode("utf-8", "replace")
        return of_status(head.status, told, head.headers, datetime.fromisoformat(self._clock.utc()), sent)

    def _tls(self) -> ssl.SSLContext:
        """What certificates are checked with; read once."""
        if self._context is None:
            self._context = ssl.create_default_context()
        return self._context

    def _close(self) -> None:
        for one in self._servers.values():
            one.connections.close()


class _Reading:
    """The body of a 200, in one piece or as a stream, whichever the server has chosen.

    Args:
        connection: that it comes over.
        head: of it.
        cap: the request's own, tokens.
        waiting: for the first byte; given up once it is there.
    """

    def __init__(self, connection: Connection, head: Head, cap: int | None, waiting: anyio.CancelScope) -> None:
        self._connection, self._head, self._waiting = connection, head, waiting
        self._assembly = Assembly(cap)
        self.is_stream = False
        self.first_at = 0.0

    async def body(self) -> bytes:
        """Of the completion.

        Raises:
            Broken, Failed: there is none.
        """
        is_labelled = is_event_stream(self._head.headers.get("content-type", ""))
        packing, body = _Unpacking(self._head, LARGEST_STREAM if is_labelled else LARGEST_ANSWER), bytearray()
        while (part := await self._next()) is not None:
            body += packing.opened(part)
            self.is_stream = self.is_stream or (is_labelled and begins_no_document(body))
            if self.is_stream:
                self._assembly.feed(bytes(body))
                body.clear()
            self._began(at_all=self._assembly.has_begun if self.is_stream else bool(body))
            if packing.is_full:
                self._connection.distrust()
                raise Failed(malformed(f"more than {packing.most} bytes"))
            if self._assembly.is_over:
                break
        packing.check_whole(is_cut=self._assembly.is_over)
        self.first_at = self.first_at or anyio.current_time()
        if not self.is_stream and looks_like_events(body):
            self.is_stream = True
            self._assembly.feed(bytes(body))
        if not self.is_stream:
            return bytes(body)
        await self._end()
        return self._assembly.end()

    async def _next(self) -> bytes | None:
        try:
            return await self._connection.more()
        except Broken:
            # What was still to come can only have been its tokens' count.
            if not self._assembly.is_whole:
                raise
            self._connection.distrust()
            return None

    def _began(self, *, at_all: bool) -> None:
        if at_all:
            self._waiting.deadline = inf
        if not self.first_at and (self._assembly.has_text if self.is_stream else at_all):
            self.first_at = anyio.current_time()

    async def _end(self) -> None:
        """Past the end mark: a connection with something behind it is not used again."""
        if self._assembly.is_stopped or not self._assembly.is_over:
            return
        with anyio.move_on_after(_ENDS_S):
            while (part := await self._next()) is not None:
                if part.strip():
                    self._connection.distrust()
                    return


class _Unpacking:
    """A body as it was meant, up to `most` bytes of it: what is packed small may be large.

    Raises:
        Failed: it is packed in a way that we did not ask for and cannot read.
    """

    def __init__(self, head: Head, most: int) -> None:
        coding = head.headers.get("content-encoding", "identity").strip().lower() or "identity"
        if coding not in _PACKED | {"identity"}:
            raise Failed(malformed(f"packed as {coding[:40]}, which nobody asked for"))
        # Either of the two heads that packed bytes begin with.
        self._unpacker = None if coding == "identity" else zlib.decompressobj(32 + zlib.MAX_WBITS)
        self.most = self._left = most

    @property
    def is_full(self) -> bool:
        """Whether there was more than `most`."""
        return self._left < 0

    def opened(self, part: bytes) -> bytes:
        """The next part.

        Raises:
            Broken: it cannot be unpacked.
        """
        if self._unpacker is not None:
            try:
                part = self._unpacker.decompress(part, max(1, self._left + 1))
            except zlib.error as error:
                raise Broken(f"packed wrongly: {error}") from error
        self._left -= len(part)
        return part

    def check_whole(self, *, is_cut: bool) -> None:
        """At the end of the body.

        Raises:
            Broken: something packed is missing.
        """
        if self._unpacker is not None and not is_cut and not self._unpacker.eof:
            raise Broken("packed, and cut off")


def _encoded(fields: Mapping[str, Any]) -> bytes:
    """The body of a request.

    Raises:
        Failed: it holds something that JSON has no form for.
    """
    try:
        return msgspec.json.encode(fields)
    except (ValueError, TypeError, RecursionError) as error:
        reason = f"the request cannot be written as JSON: {error}"
        raise Failed(Failure(kind="unsendable", action="refuse", reason=reason)) from error


def _holds(body: bytes, shape: type[Struct]) -> bool:
    """Whether `body` is an answer at first sight; what it is exactly is for who has asked."""
    try:
        msgspec.json.decode(body, type=shape)
    except (ValueError, RecursionError):
        return False
    return True
