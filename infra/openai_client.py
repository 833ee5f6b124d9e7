"""The connections to OpenAI-compatible endpoints: one SDK client per endpoint and key, for all runs of a process."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from datetime import datetime
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import anyio
from openai import APIConnectionError, AsyncOpenAI, DefaultAsyncHttpx2Client, Timeout

from events.errors import BadInput
from infra.breaker import Breaker
from infra.capabilities import Learnt, Place
from infra.model_errors import Failed, malformed, of_status, too_slow, unreachable
from runtime.ports import Clock
from runtime.settings import ServerSettings

#: an answer, or an error, is not read beyond this, bytes
LARGEST_ANSWER, LARGEST_ERROR = 16 * 1024 * 1024, 64 * 1024

#: where the response hook leaves a body for `post`
_BODY = "chime_body"
#: the SDK's own mark on a request: who made it reads the body
_UNREAD = "x-stainless-raw-response"


class Clients:
    """Made inside the loop it is used in; its connections are closed with `stack`."""

    def __init__(self, keys: Mapping[str, str], clock: Clock, stack: AsyncExitStack) -> None:
        """Nothing is connected yet.

        Args:
            keys: name of an environment variable -> the key it holds.
            clock: what a Retry-After date is compared with.
            stack: of whoever holds these clients.
        """
        self._keys = {name: key.strip() for name, key in keys.items()}
        self._clock, self._stack = clock, stack
        self._clients: dict[tuple[str, str], AsyncOpenAI] = {}
        #: what answered requests have gone without
        self.learnt: dict[Place, Learnt] = {}
        self.breakers: defaultdict[Place, Breaker] = defaultdict(Breaker)

    def key(self, endpoint: ServerSettings) -> str:
        """The key that is sent to `endpoint`; "" = none."""
        return self._keys.get(endpoint.api_key_env, "")

    def of(self, endpoint: ServerSettings) -> AsyncOpenAI:
        """The client of this address and key, shared.

        Raises:
            BadInput: an address or a key that no request can be made with.
        """
        same = (endpoint.base_url, endpoint.api_key_env)
        if same not in self._clients:
            client = _client(endpoint, self.key(endpoint), self._clock)
            self._stack.push_async_callback(client.close)
            self._clients[same] = client
        return self._clients[same]

    async def post(self, endpoint: ServerSettings, parameters: Mapping[str, Any], limit_s: float) -> bytes:
        """The body of one answer to a chat completion's `parameters`, whole within `limit_s`.

        Raises:
            Failed: with what it means.
        """
        asking = self.of(endpoint).chat.completions.with_streaming_response.create(
            **parameters, timeout=Timeout(None, connect=endpoint.connect_timeout_s)
        )
        return await _whole(asking, limit_s)

    async def embeddings(self, endpoint: ServerSettings, parameters: Mapping[str, Any], limit_s: float) -> bytes:
        """The body of one answer to an embedding's `parameters`, whole within `limit_s`.

        Raises:
            Failed: with what it means.
        """
        asking = self.of(endpoint).embeddings.with_streaming_response.create(
            **parameters, timeout=Timeout(None, connect=endpoint.connect_timeout_s)
        )
        return await _whole(asking, limit_s)

    async def models(self, endpoint: ServerSettings, limit_s: float) -> bytes:
        """The body of the endpoint's list of models, whole within `limit_s`.

        Raises:
            Failed: with what it means.
        """
        asking = self.of(endpoint).models.with_streaming_response.list(
            timeout=Timeout(None, connect=endpoint.connect_timeout_s)
        )
        return await _whole(asking, limit_s)


async def _whole(asking: AbstractAsyncContextManager[Any], limit_s: float) -> bytes:
    """The body that the response hook has read.

    Raises:
        Failed: there is none within `limit_s`.
    """
    try:
        # The whole exchange: a read time-out would start anew with every byte of a slow answer.
        with anyio.fail_after(limit_s):
            async with asking as response:
                body: bytes = response.http_response.extensions[_BODY]
    except TimeoutError as error:
        raise Failed(too_slow(limit_s)) from error
    except APIConnectionError as error:
        raise Failed(unreachable(error)) from error
    return body


def _client(endpoint: ServerSettings, key: str, clock: Clock) -> AsyncOpenAI:
    """A client that sends what we say and nothing of the environment, and reads a body with a bound.

    Raises:
        BadInput: as `Clients.of`.
    """
    host = _host(endpoint.base_url)
    if not (key.isascii() and key.isprintable()):
        raise BadInput(f"{endpoint.api_key_env} holds characters that no key has; is it a line of something else?")
    http = DefaultAsyncHttpx2Client(
        follow_redirects=False,
        # Proxies of the environment are for the network, not for this machine.
        trust_env=not _is_loopback(host),
        event_hooks={"request": [_headers_of(key)], "response": [_reader(clock)]},
    )
    return AsyncOpenAI(api_key=key or "none", base_url=endpoint.base_url, max_retries=0, http_client=http)


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


# The hooks' arguments are an httpx2.Request and an httpx2.Response: types of the SDK's dependency, which is not ours.


def _headers_of(key: str) -> Callable[[Any], Awaitable[None]]:
    """A request hook that writes the header anew.

    The SDK adds organization, project and any header at all from `OPENAI_*` variables, and facts about this machine;
    the HTTP client adds cookies that another answer has set.
    """

    async def rewrite(request: Any) -> None:
        headers = {
            "host": request.url.netloc.decode("ascii"),
            "accept": "application/json",
            "accept-encoding": "identity",
            "user-agent": "chime",
            _UNREAD: request.headers[_UNREAD],
        }
        if (length := request.headers.get("content-length")) is not None:
            headers |= {"content-type": "application/json", "content-length": length}
        if key:
            headers["authorization"] = f"Bearer {key}"
        request.headers = type(request.headers)(headers)

    return rewrite


def _reader(clock: Clock) -> Callable[[Any], Awaitable[None]]:
    """A response hook that reads the body.

    Here, because whatever breaks inside a hook reaches us as the SDK's own error, and because the SDK reads errors
    without a bound.
    """

    async def read(response: Any) -> None:
        longest = LARGEST_ANSWER if response.is_success else LARGEST_ERROR
        body = bytearray()
        async with aclosing(response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > longest:
                    break
        if not response.is_success:
            headers = {name.lower(): value for name, value in response.headers.items()}
            text = body[:longest].decode("utf-8", "replace")
            raise Failed(of_status(response.status_code, text, headers, datetime.fromisoformat(clock.utc())))
        if len(body) > longest:
            raise Failed(malformed(f"more than {longest} bytes"))
        response.extensions[_BODY] = bytes(body)

    return read
