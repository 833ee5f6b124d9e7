"""The network below the SDK, watched: a connection that something odd lies on is never asked again.

HTTP/1.1 does not say which request a response answers. A second one, left in the parser's buffer, in TLS or in the
socket, or still on its way, would be taken for the answer to the next question; the HTTP client's own check looks at
the socket alone. So each connection is followed with a parser of ours, and looked at before its next request. One
that does not pass is closed, and the client's pool takes another.
"""

import ssl
import urllib.request
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import h11
import httpcore2
import httpx2
from typing_extensions import override

#: how long nothing may have come over a connection before it is asked again, seconds
REST_S = 0.25
#: how long an idle one is kept, seconds: many servers close theirs after 5, and the next request would run into that
_IDLE_S = 4.0
#: all that the layer below has received: what it keeps back could not be seen, bytes
_ALL = 1 << 24
#: connections of one endpoint
_MOST = 1000

_REQUEST = h11.Request(method="POST", target="/", headers=[("host", "any")])
_END = h11.EndOfMessage()


class _Watched(httpcore2.AsyncNetworkStream):
    """One connection, or the TLS on it."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream, rest_s: float) -> None:
        self._stream, self._rest_s = stream, rest_s
        self._parser: h11.Connection | None = None
        self._is_odd = False
        self._heard_at = 0.0

    @override
    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(max(max_bytes, _ALL), timeout)
        self._heard_at = anyio.current_time()
        self._follow(data)
        return data

    @override
    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """As the layer below.

        Raises:
            ConnectionNotAvailable: a request begins here, and may not: the pool makes it over another connection.
        """
        if self._parser is None or self._parser.their_state is not h11.SEND_RESPONSE:
            if self._parser is not None and not self._is_clean(self._parser):
                raise httpcore2.ConnectionNotAvailable
            self._parser = h11.Connection(h11.CLIENT)
            self._parser.send(_REQUEST)
            self._parser.send(_END)
        await self._stream.write(buffer, timeout)

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()

    @override
    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _Watched(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._rest_s)

    @override
    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _follow(self, data: bytes) -> None:
        if self._parser is None:
            self._is_odd = True
            return
        try:
            self._parser.receive_data(data)
            while (event := self._parser.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
                if isinstance(event, h11.ConnectionClosed):
                    break
        except (h11.RemoteProtocolError, RuntimeError):
            self._is_odd = True

    def _is_clean(self, parser: h11.Connection) -> bool:
        """Whether the last response is over, has rested, and was the last thing that came."""
        whole = parser.their_state is h11.DONE and not parser.trailing_data[0] and not self._is_odd
        rested = anyio.current_time() - self._heard_at >= self._rest_s
        return whole and rested and not self._is_hidden() and not self._stream.get_extra_info("is_readable")

    def _is_hidden(self) -> bool:
        """Whether TLS holds something that the socket does not show any more."""
        tls = self._stream.get_extra_info("ssl_object")
        if tls is None:
            return False
        try:
            tls.read(1)
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError:
            return True
        return True


class _WatchedNetwork(httpcore2.AsyncNetworkBackend):
    """What the SDK's transport connects with."""

    def __init__(self, rest_s: float) -> None:
        # Its stand-in, where anyio is missing, is no backend: the type is of either.
        self._network = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())
        self._rest_s = rest_s

    @override
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        stream = await self._network.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Watched(stream, self._rest_s)

    @override
    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


class WatchedTransport(httpx2.AsyncHTTPTransport):
    """The SDK's own transport, over connections that are watched."""

    def __init__(self, base_url: str, *, is_local: bool, rest_s: float) -> None:
        """Nothing is connected yet.

        Args:
            base_url: what it is for.
            is_local: whether that is this machine: proxies of the environment are for the network.
            rest_s: as `REST_S`.

        Raises:
            ValueError, ImportError: a proxy of the environment that nothing can be sent through.
        """
        limits = httpx2.Limits(max_connections=_MOST, max_keepalive_connections=_MOST, keepalive_expiry=_IDLE_S)
        # Where nothing is encrypted, no certificates need be read, which takes longer than all the rest.
        is_tls = urlsplit(base_url).scheme == "https"
        super().__init__(verify=is_tls, limits=limits, proxy=None if is_local else _proxy(base_url))
        # The pool takes a network, its transport has no name for it.
        self._pool._network_backend = _WatchedNetwork(rest_s)  # noqa: SLF001

    @property
    def connections(self) -> int:
        """How many there are, idle ones among them."""
        return len(self._pool.connections)


def _proxy(base_url: str) -> str | None:
    parts, proxies = urlsplit(base_url), urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
