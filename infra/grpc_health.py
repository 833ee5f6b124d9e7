"""Whether a gRPC server serves: one call to its standard health service, without a gRPC library.

A library of some ten megabytes, and a second to import it, for one call on one connection would slow down every
command that only wants to know whether a server is up.
"""

import socket
import ssl
import struct
from urllib.parse import urlsplit

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _GOAWAY = 0, 1, 3, 4, 7
_END_STREAM, _END_HEADERS = 1, 4
#: the longest frame that a server may send to a client that has said nothing else, bytes
_FRAME = 1 << 14
#: of a length-prefixed message: not compressed, two bytes, field 1 = SERVING
_SERVING = b"\x00\x00\x00\x00\x02\x08\x01"


def grpc_serves(address: str, timeout_s: float) -> bool:
    """Whether the server at `address` (`host:port`, or `https://host:port`) says that it serves.

    Raises:
        OSError: nobody is there, or it is silent for `timeout_s`, or what answers does not speak HTTP/2.
    """
    parts = urlsplit(address if "://" in address else f"//{address}")
    host, port, secure = parts.hostname or "", parts.port or 443, parts.scheme == "https"
    with socket.create_connection((host, port), timeout_s) as plain:
        if not secure:
            return _asked(plain, address, b"\x86")
        context = ssl.create_default_context()
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(plain, server_hostname=host) as channel:
            return _asked(channel, address, b"\x87")


def _asked(channel: socket.socket, address: str, scheme: bytes) -> bool:
    authority = address.removeprefix("https://").encode()
    headers = (
        b"\x83" + scheme
        + b"\x04" + _text(b"/grpc.health.v1.Health/Check")
        + b"\x01" + _text(authority)
        + b"\x0f\x10" + _text(b"application/grpc")
        + b"\x00" + _text(b"te") + _text(b"trailers")
    )  # fmt: skip
    channel.sendall(
        _PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS, 1, headers)
        + _frame(_DATA, _END_STREAM, 1, b"\x00\x00\x00\x00\x00")
    )  # fmt: skip
    body = b""
    while True:
        size, kind, flags, stream = struct.unpack(">IBBI", b"\x00" + _exactly(channel, 9))
        if size > _FRAME or kind > 0x0F:
            raise ConnectionError("what answers does not speak HTTP/2")
        payload = _exactly(channel, size)
        if kind in (_RESET, _GOAWAY):
            return False
        if stream == 1 and kind == _DATA:
            body += payload
        if stream == 1 and flags & _END_STREAM and kind in (_DATA, _HEADERS):
            return body == _SERVING


def _text(value: bytes) -> bytes:
    """A string of a header block, as it is; below 127 bytes."""
    return bytes([len(value)]) + value


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = channel.recv(size - len(data))
        if not chunk:
            raise ConnectionError("the connection ended before an answer")
        data += chunk
    return data
