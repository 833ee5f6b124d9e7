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

import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_address
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import httpx2
import msgspec
from msgspec import Raw, Struct

from events.errors import BadInput
from events.late import Late
from infra.breaker import Breaker
from infra.capabilities import Learnt, Place
from infra.event_stream import Assembly, begins_no_document, is_event_stream, looks_like_events
from infra.model_errors import Failed, Failure, broken, late, malformed, of_status, too_slow, unreachable
from infra.token_estimates import TokenEstimates
from infra.watched_network import REST_S, WatchedTransport
from runtime.ports import Clock
from runtime.settings import EndpointSettings, ServerSettings

if TYPE_CHECKING:
    import openai
else:
    openai = Late("openai")

#: an answer, or an error, is not read beyond this, bytes; a stream says around each word what an answer says once
LARGEST_ANSWER, LARGEST_ERROR, LARGEST_STREAM = 2**24, 2**16, 2**26
#: how long a stream may take to end after its end mark, seconds; the answer is there already
_ENDS_S = 0.25
#: the SDK's own mark on a request, which is not sent: who made it reads the body
_UNREAD = {"x-stainless-raw-response": "stream"}
#: what we ask not to be sent, and can read all the same
_PACKED = frozenset({"gzip", "x-gzip", "deflate"})
#: what some servers call a body that is not packed
_PLAIN = frozenset({"identity", "none", "utf-8", "utf8"})


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


@dataclass(slots=True, kw_only=True)
class _Call:
    """One request under way, for the hooks that it passes through."""

    #: what a whole answer holds, at least
    shape: type[Struct]
    #: of the request's body: an error may repeat its words
    sent: bytes
    #: the request's own, tokens; None = none
    cap: int | None
    first_byte_s: float
    #: for the first byte; without a deadline before the request and after the byte
    waiting: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    sent_at: float = 0.0
    first_at: float = 0.0
    streamed: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


#: of this task
_CALL: ContextVar[_Call] = ContextVar("call")


class Clients:
    """Made inside the loop it is used in; its connections are closed with `stack`."""

    def __init__(self, keys: Mapping[str, str], clock: Clock, stack: AsyncExitStack, *, rest_s: float = REST_S) -> None:
        """Nothing is connected yet.

        Args:
            keys: name of an environment variable -> the key it holds.
            clock: what a Retry-After date is compared with.
            stack: of whoever holds these clients.
            rest_s: how long a connection must have been silent to be used again.
        """
        self._keys = {name: key.strip() for name, key in keys.items()}
        self._clock, self._stack, self._rest_s = clock, stack, rest_s
        # Loaded now, which takes half a second: at the first call a loop would stand still that holds leases.
        _ = openai.AsyncOpenAI
        self._clients: dict[tuple[str, str], openai.AsyncOpenAI] = {}
        #: what answered requests have gone without
        self.learnt: dict[Place, Learnt] = {}
        #: what requests come to, by what endpoints have counted
        self.estimates = TokenEstimates()
        self.breakers: defaultdict[Place, Breaker] = defaultdict(Breaker)

    def key(self, endpoint: ServerSettings) -> str:
        """The key that is sent to `endpoint`; "" = none."""
        return self._keys.get(endpoint.api_key_env, "")

    def of(self, endpoint: ServerSettings) -> "openai.AsyncOpenAI":
        """The client of this address and key, shared.

        Raises:
            BadInput: an address or a key that no request can be made with.
        """
        same = (endpoint.base_url, endpoint.api_key_env)
        if same not in self._clients:
            client = _client(endpoint, self.key(endpoint), self._clock, self._rest_s)
            self._stack.push_async_callback(client.close)
            self._clients[same] = client
        return self._clients[same]

    async def post(self, endpoint: EndpointSettings, parameters: Mapping[str, Any], limit_s: float) -> Exchange:
        """The answer to a chat completion's `parameters`, whole within `limit_s`; streamed where `endpoint.stream`.

        Args:
            endpoint: where to ask.
            parameters: the body's fields, those of `extra_body` beside them; `stream_options` None = not sent.
            limit_s: for all of it.

        Raises:
            Failed: with what it means.
        """
        fields = {name: value for name, value in parameters.items() if name != "extra_body"}
        if endpoint.stream:
            fields = {"stream": True, "stream_options": {"include_usage": True}, **fields}
        if fields.get("stream_options", 0) is None:
            del fields["stream_options"]
        cap = parameters.get("max_completion_tokens", parameters.get("max_tokens"))
        call = _Call(
            shape=_Completion,
            sent=_encoded({**fields, **parameters.get("extra_body", {})}),
            cap=cap if isinstance(cap, int) else None,
            first_byte_s=endpoint.first_byte_timeout_s or inf,
        )
        return await self._exchanged(endpoint, "/chat/completions", call, limit_s)

    async def embeddings(self, endpoint: ServerSettings, parameters: Mapping[str, Any], limit_s: float) -> bytes:
        """The body of one answer to an embedding's `parameters`, whole within `limit_s`.

        Raises:
            Failed: with what it means.
        """
        call = _Call(shape=_Rows, sent=_encoded(parameters), cap=None, first_byte_s=inf)
        return (await self._exchanged(endpoint, "/embeddings", call, limit_s)).body

    async def models(self, endpoint: ServerSettings, limit_s: float) -> bytes:
        """The body of the endpoint's list of models, whole within `limit_s`.

        Raises:
            Failed: with what it means.
        """
        call = _Call(shape=_Rows, sent=b"", cap=None, first_byte_s=inf)
        return (await self._exchanged(endpoint, "/models", call, limit_s)).body

    async def _exchanged(self, endpoint: ServerSettings, path: str, call: _Call, limit_s: float) -> Exchange:
        """What the response hook has read.

        Raises:
            Failed: there is nothing within `limit_s`; what there is instead.
        """
        if limit_s <= 0:
            raise Failed(too_slow(limit_s))
        client, began, within = self.of(endpoint), anyio.current_time(), _CALL.set(call)
        try:
            with anyio.fail_after(limit_s), call.waiting:
                async with aclosing(await _asked(client, path, call.sent, endpoint.connect_timeout_s)):
                    return Exchange(
                        body=call.body,
                        headers=call.headers,
                        first_byte_s=call.first_at - call.sent_at,
                        total_s=anyio.current_time() - began,
                        streamed=call.streamed,
                    )
        except TimeoutError as error:
            raise Failed(too_slow(limit_s)) from error
        except Failed:
            raise
        except Exception as error:  # the SDK raises outside its own tree too: nothing of it passes
            raise Failed(_failure(error, endpoint.connect_timeout_s)) from error
        finally:
            _CALL.reset(within)
        raise Failed(late(call.first_byte_s))


async def _asked(client: "openai.AsyncOpenAI", path: str, sent: bytes, connect_s: float) -> httpx2.Response:
    """The SDK's request with a body of ours: it would look at every field of every message, and write it once more."""
    # The SDK's other limits would begin anew with each byte of a slow answer.
    options = openai.RequestOptions(timeout=openai.Timeout(None, connect=connect_s), headers=_UNREAD)
    if sent:
        return await client.post(path, cast_to=httpx2.Response, content=sent, options=options)
    return await client.get(path, cast_to=httpx2.Response, options=options)


def _failure(error: Exception, connect_s: float) -> Failure:
    """Of the transport's own error, which the SDK keeps as the cause of its own; of anything else as of a break."""
    cause = error.__cause__ or error
    if isinstance(cause, httpx2.ConnectTimeout):
        return unreachable(f"no connection within {connect_s:g} s")
    told = ": ".join(filter(None, (type(cause).__name__, str(cause))))
    return unreachable(told) if isinstance(cause, httpx2.ConnectError | httpx2.ProxyError) else broken(told)


def _client(endpoint: ServerSettings, key: str, clock: Clock, rest_s: float) -> "openai.AsyncOpenAI":
    """A client that sends what we say and nothing of the environment, and reads a body with a bound.

    Raises:
        BadInput: as `Clients.of`.
    """
    host = _host(endpoint.base_url)
    if not (key.isascii() and key.isprintable()):
        raise BadInput(f"{endpoint.api_key_env} holds characters that no key has; is it a line of something else?")
    try:
        transport = WatchedTransport(endpoint.base_url, is_local=_is_loopback(host), rest_s=rest_s)
    except (ValueError, ImportError, httpx2.InvalidURL) as error:
        raise BadInput(f"the environment's proxy for {endpoint.base_url}: {error}") from error
    http = openai.DefaultAsyncHttpx2Client(
        follow_redirects=False,
        transport=transport,
        event_hooks={"request": [_headers_of(key)], "response": [_reader(clock)]},
    )
    try:
        return openai.AsyncOpenAI(api_key=key or "none", base_url=endpoint.base_url, max_retries=0, http_client=http)
    except (ValueError, httpx2.InvalidURL) as error:
        raise BadInput(f"base_url {endpoint.base_url!r}: {error}") from error


def _host(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        # Reading the port checks it.
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise BadInput(f"base_url {base_url!r}: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise BadInput("base_url holds a user or password; put the key into the variable that api_key_env names")
    if not usable:
        raise BadInput(f"base_url {base_url!r} is no address that begins with http:// or https://")
    return parts.hostname or ""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _headers_of(key: str) -> Callable[[httpx2.Request], Awaitable[None]]:
    """A request hook that writes the header anew.

    The SDK adds organization, project and any header at all from `OPENAI_*` variables, and facts about this machine;
    the HTTP client adds cookies that another answer has set.
    """

    async def rewrite(request: httpx2.Request) -> None:
        headers = {
            "host": request.url.netloc.decode("ascii"),
            "accept": "application/json",
            "accept-encoding": "identity",
            "user-agent": "chime",
        }
        if (length := request.headers.get("content-length")) is not None:
            headers |= {"content-type": "application/json", "content-length": length}
        if key:
            headers["authorization"] = f"Bearer {key}"
        request.headers = httpx2.Headers(headers)
        request.extensions["trace"] = _traced

    return rewrite


async def _traced(name: str, _: object) -> None:
    """Told by the transport: time for the first byte begins with the request."""
    if name == "http11.send_request_headers.started":
        call = _CALL.get()
        call.sent_at = anyio.current_time()
        call.waiting.deadline = call.sent_at + call.first_byte_s


def _reader(clock: Clock) -> Callable[[httpx2.Response], Awaitable[None]]:
    """A response hook that reads the body.

    Here, because whatever breaks inside a hook reaches us as the SDK's own error, and because the SDK reads errors
    without a bound. What was not read to its end is closed by the HTTP client; what was, and is odd, here.
    """

    async def read(response: httpx2.Response) -> None:
        call = _CALL.get()
        call.headers = {name.lower(): value for name, value in response.headers.items()}
        async with aclosing(response.aiter_raw()) as parts:
            if not response.is_success:
                told = await _told(parts, call)
                now = datetime.fromisoformat(clock.utc())
                raise Failed(of_status(response.status_code, told, call.headers, now, call.sent))
            reading = _Reading(parts, call)
            try:
                call.body = await reading.body()
            except Failed:
                await response.extensions["network_stream"].aclose()
                raise
        if reading.is_odd or not _holds(call.body, call.shape):
            await response.extensions["network_stream"].aclose()

    return read


async def _told(parts: AsyncIterator[bytes], call: _Call) -> str:
    """What an error says, as far as it is read: of one that is packed as nobody asked for its status must do."""
    call.waiting.deadline = inf
    body = bytearray()
    try:
        unpacking = _Unpacking(call.headers, LARGEST_ERROR)
        async for part in parts:
            body += unpacking.opened(part)
            if unpacking.is_full:
                break
    except Failed:
        body.clear()
    return body[:LARGEST_ERROR].decode("utf-8", "replace")


class _Reading:
    """The body of a 200, in one piece or as a stream, whichever the server has chosen.

    Args:
        parts: as they come over the connection.
        call: that it answers.
    """

    def __init__(self, parts: AsyncIterator[bytes], call: _Call) -> None:
        self._parts, self._call = parts, call
        self._assembly = Assembly(call.cap)
        #: whether its connection is not to be used again
        self.is_odd = False

    async def body(self) -> bytes:
        """Of the completion.

        Raises:
            Failed, httpx2.TransportError: there is none.
        """
        call, assembly = self._call, self._assembly
        is_labelled = is_event_stream(call.headers.get("content-type", ""))
        unpacking, body = _Unpacking(call.headers, LARGEST_STREAM if is_labelled else LARGEST_ANSWER), bytearray()
        while (part := await self._next()) is not None:
            body += unpacking.opened(part)
            call.streamed = call.streamed or (is_labelled and begins_no_document(body))
            if call.streamed:
                assembly.feed(bytes(body))
                body.clear()
            self._began(at_all=assembly.has_begun if call.streamed else bool(body))
            if unpacking.is_full:
                raise Failed(malformed(f"more than {unpacking.most} bytes"))
            if assembly.is_over:
                break
        unpacking.check_whole(is_cut=assembly.is_over)
        call.first_at = call.first_at or anyio.current_time()
        if not call.streamed and looks_like_events(body):
            call.streamed = True
            assembly.feed(bytes(body))
        if not call.streamed:
            return bytes(body)
        await self._end()
        return assembly.end()

    async def _next(self) -> bytes | None:
        try:
            return await anext(self._parts, None)
        except httpx2.TransportError:
            # What was still to come can only have been its tokens' count.
            if not self._assembly.is_whole:
                raise
            self.is_odd = True
            return None

    def _began(self, *, at_all: bool) -> None:
        if at_all:
            self._call.waiting.deadline = inf
        if not self._call.first_at and (self._assembly.has_text if self._call.streamed else at_all):
            self._call.first_at = anyio.current_time()

    async def _end(self) -> None:
        """Past the end mark: a connection with something behind it is not used again."""
        if self._assembly.is_stopped or not self._assembly.is_over:
            return
        self.is_odd = self._assembly.has_surplus
        with anyio.move_on_after(_ENDS_S):
            while (part := await self._next()) is not None:
                if part.strip():
                    self.is_odd = True
                    return
            return
        self.is_odd = True


class _Unpacking:
    """A body as it was meant, up to `most` bytes of it: what is packed small may be large.

    Raises:
        Failed: it is packed in a way that we did not ask for and cannot read.
    """

    def __init__(self, headers: Mapping[str, str], most: int) -> None:
        coding = headers.get("content-encoding", "").strip().lower() or "identity"
        if coding not in _PACKED | _PLAIN:
            raise Failed(malformed(f"packed as {coding[:40]}, which nobody asked for"))
        # Either of the two heads that packed bytes begin with.
        self._unpacker = None if coding in _PLAIN else zlib.decompressobj(32 + zlib.MAX_WBITS)
        self.most = self._left = most

    @property
    def is_full(self) -> bool:
        """Whether there was more than `most`."""
        return self._left < 0

    def opened(self, part: bytes) -> bytes:
        """The next part.

        Raises:
            Failed: it cannot be unpacked.
        """
        if self._unpacker is not None:
            try:
                part = self._unpacker.decompress(part, max(1, self._left + 1))
            except zlib.error as error:
                raise Failed(broken(f"packed wrongly: {error}")) from error
        self._left -= len(part)
        return part

    def check_whole(self, *, is_cut: bool) -> None:
        """At the end of the body.

        Raises:
            Failed: something packed is missing.
        """
        if self._unpacker is not None and not is_cut and not self._unpacker.eof:
            raise Failed(broken("packed, and cut off"))


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
        # What is passed over is not looked into otherwise.
        _ = body.isascii() or body.decode()
        msgspec.json.decode(body, type=shape)
    except (ValueError, RecursionError):
        return False
    return True
