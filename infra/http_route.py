"""How a server is reached: its address, the proxy on the way, a socket, and TLS on it. No byte of it is read unasked.

A library's stream reads ahead into buffers of its own; whether something lies on a connection that nobody asked for
could not be told. Here what was not read is in the socket, or in what TLS has not opened yet, and can be looked for.
"""

import errno
import os
import socket
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote, urlsplit

import anyio
import h11

from events.errors import BadInput

#: read at once, bytes
_PART: Final = 65536
#: a peer that has vanished is noticed after these seconds of silence and five unanswered questions so far apart
_SILENCE_S: Final = 60
_KEEPALIVE = ("TCP_KEEPIDLE", _SILENCE_S), ("TCP_KEEPINTVL", _SILENCE_S), ("TCP_KEEPCNT", 5)
_PORTS = {"http": 80, "https": 443}

#: family and address of a socket
_Place = tuple[int, tuple[Any, ...]]


class NoConnection(Exception):
    """Nothing could be connected to: refused, no such host, no TLS, a proxy's refusal, too slow."""


class Broken(Exception):
    """A connection that there was broke, or what came over it is no HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """What stands between us and a server."""

    host: str
    port: int
    #: value of `Proxy-Authorization`; "" = none
    authorization: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a server is, and the way to it."""

    tls: bool
    #: as it is connected to: ASCII, no brackets
    host: str
    port: int
    #: what comes before the path of a request, without a slash at its end
    path: str
    #: what comes after it; "" = none
    query: str
    proxy: Proxy | None

    @property
    def authority(self) -> str:
        """Value of `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.tls else "http"] else f"{host}:{self.port}"

    def target(self, path: str) -> str:
        """Of a request for `path`, which begins with a slash."""
        asked = f"{self.path}{path}{self.query and '?'}{self.query}"
        # A proxy that cannot see into TLS need not be told where to: there is a tunnel.
        return f"http://{self.authority}{asked}" if self.proxy is not None and not self.tls else asked


def route_to(base_url: str, environ: Mapping[str, str]) -> Route:
    """The way to `base_url`; through the environment's proxy, unless the server is on this machine.

    Raises:
        BadInput: an address, or a proxy's address, that nothing can be connected to.
    """
    try:
        parts = urlsplit(base_url)
        # Reading the port checks it.
        usable = parts.scheme in _PORTS and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        host = _ascii(parts.hostname or "")
    except ValueError as error:
        raise BadInput(f"base_url {base_url!r}: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise BadInput("base_url holds a user or password; put the key into the variable that api_key_env names")
    if not usable:
        raise BadInput(f"base_url {base_url!r} is no address that begins with http:// or https://")
    return Route(
        tls=parts.scheme == "https",
        host=host,
        port=parts.port or _PORTS[parts.scheme],
        path=quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"),
        query=quote(parts.query, safe="/?%:@!$&'()*+,;=~"),
        proxy=None if is_loopback(host) else _proxy(parts.scheme, host, environ),
    )


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _ascii(host: str) -> str:
    return host if host.isascii() else host.encode("idna").decode("ascii")


def _proxy(scheme: str, host: str, environ: Mapping[str, str]) -> Proxy | None:
    def named(name: str) -> str:
        return environ.get(f"{name}_proxy") or environ.get(f"{name}_proxy".upper()) or ""

    given = named(scheme) or named("all")
    if not given or any(_is_within(host, one.strip()) for one in named("no").split(",")):
        return None
    try:
        parts = urlsplit(given if "://" in given else f"http://{given}")
        name, port = _ascii(parts.hostname or ""), parts.port or _PORTS["http"]
    except ValueError as error:
        raise BadInput(f"the proxy for {scheme} in the environment: {error}") from error
    if parts.scheme != "http" or not name:
        raise BadInput(f"the proxy for {scheme} in the environment: only http:// proxies are supported")
    user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    authorization = f"Basic {b64encode(user.encode()).decode()}" if parts.username is not None else ""
    return Proxy(host=name, port=port, authorization=authorization)


def _is_within(host: str, domain: str) -> bool:
    """Whether an entry of `no_proxy` means `host`."""
    domain = domain.rpartition(":")[0] if domain.count(":") == 1 else domain
    domain = domain.lower().lstrip(".")
    return domain == "*" or (bool(domain) and f".{host}".endswith(f".{domain}"))


class Stream(Protocol):
    """Bytes both ways."""

    async def receive(self) -> bytes:
        """What comes next; b"" = the end.

        Raises:
            Broken: the connection did.
        """
        ...

    async def send(self, data: bytes) -> None:
        """All of `data`.

        Raises:
            Broken: the connection did.
        """
        ...

    def is_silent(self) -> bool:
        """Whether there is nothing to receive, no end either."""
        ...

    def close(self) -> None:
        """At once, in any state."""
        ...


async def connected(route: Route, context: Callable[[], ssl.SSLContext], connect_s: float) -> Stream:
    """A stream to the server, its proxy and its TLS behind us.

    Args:
        route: the way to it.
        context: what its certificate is checked with, asked for where there is TLS.
        connect_s: for all of it.

    Raises:
        NoConnection: there is none within `connect_s`.
    """
    try:
        with anyio.fail_after(connect_s), ExitStack() as undo:
            nearest = route.proxy or route
            plain = _Plain(await _socket_to(nearest.host, nearest.port, connect_s))
            undo.callback(plain.close)
            if not route.tls:
                undo.pop_all()
                return plain
            if route.proxy is not None:
                await _tunnel(plain, route, route.proxy)
            encrypted = _Encrypted(plain, context(), route.host)
            await encrypted.shake_hands()
            undo.pop_all()
            return encrypted
    except TimeoutError as error:
        raise NoConnection(f"no connection within {connect_s:g} s") from error
    except (OSError, Broken, ValueError) as error:
        raise NoConnection(f"{type(error).__name__}: {error}") from error


async def _socket_to(host: str, port: int, connect_s: float) -> socket.socket:
    """The first of the host's addresses that answers, each asked for its share of the time."""
    try:
        ip_address(host)
        # No thread where there is no name to look up.
        known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        places: list[_Place] = [(family, address) for family, _, _, _, address in known]
    except ValueError:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        places = [(family, address) for family, _, _, _, address in found]
    told = OSError(f"none of {len(places)} addresses answers")
    for left, (family, address) in zip(range(len(places), 0, -1), places, strict=True):
        with anyio.move_on_after(connect_s / left if left > 1 else None):
            try:
                return await _socket_at(family, address)
            except OSError as error:
                told = error
    raise told


async def _socket_at(family: int, address: tuple[Any, ...]) -> socket.socket:
    with ExitStack() as undo:
        made = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if (option := getattr(socket, name, None)) is not None:
                made.setsockopt(socket.IPPROTO_TCP, option, value)
        code = made.connect_ex(address)
        if code == errno.EINPROGRESS:
            await anyio.wait_writable(made)
            code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        undo.pop_all()
        return made


async def _tunnel(plain: "_Plain", route: Route, proxy: Proxy) -> None:
    """Have the proxy connect us.

    Raises:
        Broken: it does not.
    """
    where = f"[{route.host}]:{route.port}" if ":" in route.host else f"{route.host}:{route.port}"
    headers = [("Host", where)] + ([("Proxy-Authorization", proxy.authorization)] if proxy.authorization else [])
    parser = h11.Connection(h11.CLIENT)
    asked = parser.send(h11.Request(method="CONNECT", target=where, headers=headers)) or b""
    await plain.send(asked + (parser.send(h11.EndOfMessage()) or b""))
    while True:
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError as error:
            raise Broken(f"the proxy at {proxy.host} speaks no HTTP: {error}") from error
        if event is h11.NEED_DATA:
            if not (data := await plain.receive()):
                raise Broken(f"the proxy at {proxy.host} has closed the connection")
            parser.receive_data(data)
        elif isinstance(event, h11.Response):
            if not 200 <= event.status_code < 300:
                raise Broken(f"the proxy at {proxy.host} refuses: {event.status_code}")
            return


class _Plain:
    """A connected socket."""

    def __init__(self, connected_: socket.socket) -> None:
        self._socket = connected_

    async def receive(self) -> bytes:
        """As `Stream.receive`."""
        while True:
            # Waited for each time: what a server never stops sending must not keep a deadline from being noticed.
            await _broken_by_nothing(anyio.wait_readable, self._socket)
            try:
                return self._socket.recv(_PART)
            except BlockingIOError:
                continue
            except OSError as error:
                raise Broken(f"{type(error).__name__}: {error}") from error

    async def send(self, data: bytes) -> None:
        """As `Stream.send`."""
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await _broken_by_nothing(anyio.wait_writable, self._socket)
            except OSError as error:
                raise Broken(f"{type(error).__name__}: {error}") from error

    def is_silent(self) -> bool:
        """As `Stream.is_silent`."""
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """As `Stream.close`."""
        self._socket.close()


async def _broken_by_nothing(wait: Callable[[socket.socket], Awaitable[None]], waited: socket.socket) -> None:
    """`wait` for `waited`, which somebody may close meanwhile."""
    try:
        await wait(waited)
    except (anyio.ClosedResourceError, ValueError, OSError) as error:
        raise Broken("the connection was closed") from error


class _Encrypted:
    """TLS over a stream, with buffers that can be looked into."""

    def __init__(self, plain: _Plain, context: ssl.SSLContext, host: str) -> None:
        self._plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    async def shake_hands(self) -> None:
        """Until both sides know each other.

        Raises:
            Broken, OSError: they do not.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._more()
            else:
                return await self._flush()

    async def receive(self) -> bytes:
        """As `Stream.receive`."""
        while True:
            try:
                return self._tls.read(_PART)
            except ssl.SSLWantReadError:
                await self._more()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                # Many servers say no goodbye; whether an answer was whole is seen by itself.
                return b""
            except ssl.SSLError as error:
                raise Broken(f"TLS: {error}") from error

    async def send(self, data: bytes) -> None:
        """As `Stream.send`."""
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise Broken(f"TLS: {error}") from error
        await self._flush()

    def is_silent(self) -> bool:
        """As `Stream.is_silent`."""
        try:
            self._tls.read(1)
        except ssl.SSLWantReadError:
            return self._plain.is_silent()
        except ssl.SSLError:
            return False
        return False

    def close(self) -> None:
        """As `Stream.close`; without a goodbye, for which nobody waits."""
        self._plain.close()

    async def _more(self) -> None:
        await self._flush()
        if data := await self._plain.receive():
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        if data := self._outgoing.read():
            await self._plain.send(data)
