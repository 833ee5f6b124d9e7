"""Connections that break, hang, drip, flood or are poisoned."""

import gzip
from functools import cache
from typing import Any

from hostile_rows import EXECUTOR, Row, retried, stopped, unavailable, used
from hostile_wire import (
    Asked,
    Doing,
    Reply,
    always,
    cut,
    dripping,
    first,
    flooding,
    hanging,
    http,
    piecewise,
    reset,
    said,
    written,
)

#: settings of an endpoint that is given up before long: by a clock that goes ahead where the server is silent
SOON = {"timeout_s": 20.0, "retries": 1}
_TIMEOUT = unavailable("timeout", tries=2)
_OK_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@cache
def _unpacks_to_200_mb() -> bytes:
    """Packed when it is first sent: every process of a session reads these rows, and one sends it."""
    return gzip.compress(b" " * 200_000_000, 1)


def row(name: str, **given: Any) -> Row:
    return Row(name=name, area="transport", **given)


def _healthy(change: Any) -> Any:
    """The healthy response as `change` makes another reply of its bytes."""

    def play(asked: Asked) -> Reply:
        found: Reply = change(written(asked.healthy, asked.body))
        return found

    return play


def _body(response: bytes) -> bytes:
    return response.partition(b"\r\n\r\n")[2]


def _and_close(response: bytes) -> Doing:
    return cut(response)


def _chunked(response: bytes) -> bytes:
    body = _body(response)
    pieces = [body[start : start + 7] for start in range(0, len(body), 7)]
    return (
        _OK_HEAD
        + b"transfer-encoding: chunked\r\n\r\n"
        + b"".join(b"%x;ext=1\r\n%b\r\n" % (len(one), one) for one in pieces)
        + b"0\r\nx-trailer: 1\r\n\r\n"
    )


def _zipped(response: bytes) -> bytes:
    return http(200, gzip.compress(_body(response)), content_encoding="gzip")


def _poison(response: bytes) -> bytes:
    """A second response behind the first: whoever keeps the connection takes it for the next answer."""
    return response + http(200, said("POISON: this is the answer to nobody's question"))


BROKEN: dict[str, Doing] = {
    "closes the connection without a word": cut(b""),
    "resets the connection without a word": reset(),
    "breaks off in the status line": cut(b"HTTP/1.1 20"),
    "breaks off in the headers": cut(b"HTTP/1.1 200 OK\r\ncontent-ty"),
    "breaks off before the body": cut(_OK_HEAD + b"content-length: 400\r\n\r\n"),
    "breaks off in the body": cut(http(200, said("half of it"))[:-25]),
    "resets in the body": reset(http(200, said("half of it"))[:-25]),
    "breaks off in a chunk": cut(_OK_HEAD + b"transfer-encoding: chunked\r\n\r\n40\r\n{\"choi"),
    "breaks off between chunks": cut(_OK_HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{\"\r\n"),
    "breaks off in an error": cut(http(500, "x" * 400)[:-100]),
    "gives a chunk no size": cut(_OK_HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"),
    "gives a chunk a negative size": cut(_OK_HEAD + b"transfer-encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n"),
    "gives a negative length": cut(_OK_HEAD + b"content-length: -1\r\n\r\n{}"),
    "gives a length that is no number": cut(_OK_HEAD + b"content-length: many\r\n\r\n{}"),
    "gives a length with a sign": cut(_OK_HEAD + b"content-length: +2\r\n\r\n{}"),
    "gives a chunk a size in another form": cut(_OK_HEAD + b"transfer-encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n"),
    "packs its transfer": cut(_OK_HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "switches protocols": cut(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"),
    "gives two lengths": cut(_OK_HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{} "),
    "speaks no HTTP": cut(b"\x16\x03\x01\x02\x00 this is TLS\r\n\r\n"),
    "greets as SSH": cut(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "speaks HTTP/2": cut(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
    "gives a status that is no number": cut(b"HTTP/1.1 OK 200\r\ncontent-length: 0\r\n\r\n"),
    "writes a header of 200 kB": cut(_OK_HEAD + b"x-long: " + b"a" * 200_000 + b"\r\ncontent-length: 2\r\n\r\n{}"),
    "writes ten thousand headers": cut(_OK_HEAD + b"x-more: a header of some length\r\n" * 10_000 + b"\r\n{}"),
    "writes a NUL into a header": cut(_OK_HEAD + b"x-bad: a\x00b\r\ncontent-length: 2\r\n\r\n{}"),
    "writes a header without a name": cut(_OK_HEAD + b": nameless\r\ncontent-length: 2\r\n\r\n{}"),
    "says gzip and sends something else": cut(_OK_HEAD + b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\nnope"),
}  # fmt: skip

HANGING: dict[str, Doing] = {
    "reads and says nothing": hanging(),
    "stops in the status line": hanging(b"HTTP/1.1 20"),
    "stops in the headers": hanging(b"HTTP/1.1 200 OK\r\ncontent-"),
    "stops before the body": hanging(_OK_HEAD + b"content-length: 10\r\n\r\n"),
    "stops in the body": hanging(http(200, said("half of it"))[:-5]),
    "stops in a chunk": hanging(_OK_HEAD + b"transfer-encoding: chunked\r\n\r\n40\r\n{\"cho"),
    "never ends its chunks": hanging(_OK_HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"),
    "promises more than it sends": hanging(_OK_HEAD + b"content-length: 999\r\n\r\n{}"),
    "drips white space": dripping(_OK_HEAD + b"content-length: 900000\r\n\r\n"),
    "drips chunks": dripping(_OK_HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "drips a header": dripping(_OK_HEAD + b"x-slow: ", b"a"),
    "drips interim responses": dripping(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "drips an error": dripping(b"HTTP/1.1 500 Bad\r\ncontent-length: 9000\r\n\r\n"),
}  # fmt: skip

ROWS: list[Row] = [
    *(row(name, play=always(doing), expect=unavailable("connection")) for name, doing in BROKEN.items()),
    *(row(f"{name}, once", play=first(doing), expect=retried("connection")) for name, doing in BROKEN.items()
      if name in ("closes the connection without a word", "resets in the body", "speaks no HTTP")),
    *(row(name, play=always(doing), expect=_TIMEOUT, endpoint=SOON) for name, doing in HANGING.items()),
    row(
        "says nothing within the time to the first byte", play=always(hanging()),
        expect=unavailable("first_byte", tries=2),
        endpoint={"first_byte_timeout_s": 20.0, "retries": 1},
    ),
    row(
        "accepts and closes", play=always(None), at_accept=cut(b""), expect=unavailable("connection"),
    ),
    row(
        "accepts and resets", play=always(None), at_accept=reset(), expect=unavailable("connection"),
    ),
    row(
        "accepts and speaks first", play=always(None), at_accept=cut(b"220 mail.example.org ESMTP\r\n"),
        expect=unavailable("connection"),
    ),
    row(
        "accepts and says nothing", play=always(None), at_accept=hanging(), expect=_TIMEOUT, endpoint=SOON,
    ),
    row(
        "floods with an endless 200", play=always(flooding(_OK_HEAD + b"\r\n", b" " * (1 << 20))),
        expect=unavailable("malformed"),
    ),
    row(
        "floods with endless headers", play=always(flooding(_OK_HEAD, b"x-more: a header of some length\r\n" * 900)),
        expect=unavailable("connection"),
    ),
    row(
        "sends a gzip that unpacks to 200 MB",
        play=lambda _: http(200, _unpacks_to_200_mb(), content_encoding="gzip"),
        expect=unavailable("malformed"), roles=EXECUTOR,
    ),
    row(
        "breaks off in a gzip without a length", expect=unavailable("connection"),
        play=always(cut(_OK_HEAD + b"content-encoding: gzip\r\n\r\n" + gzip.compress(b'{"choices": []}' * 50)[:30])),
    ),
    row("writes byte by byte", play=_healthy(piecewise), expect=used(), roles=EXECUTOR),
    row("writes in chunks with extensions and a trailer", play=_healthy(_chunked), expect=used()),
    row("packs an answer that nobody wanted packed", play=_healthy(_zipped), expect=used()),
    row(
        "gives no length and closes",
        play=_healthy(lambda response: cut(_OK_HEAD + b"\r\n" + _body(response))), expect=used(),
    ),
    row(
        "calls its packing by an encoding of characters", expect=used(),
        play=_healthy(lambda response: response.replace(b"\r\n\r\n", b"\r\ncontent-encoding: utf-8\r\n\r\n", 1)),
    ),
    row("refuses a key, packed as nobody can read", expect=stopped("key"),
        play=always(http(401, b"\x8b\x02\x80{}\x03", content_encoding="br"))),
    row("says slow down, packed wrongly", expect=retried("rate_limited"),
        play=first(http(429, b"slow down", content_encoding="gzip"))),
    row("says 100 Continue fifty times first", expect=used(),
        play=_healthy(lambda response: b"HTTP/1.1 100 Continue\r\n\r\n" * 50 + response)),
    row("sets a hundred cookies", expect=used(), play=_healthy(lambda response: response.replace(
        b"\r\n\r\n", b"".join(b"\r\nset-cookie: a%d=b; Max-Age=9999999999" % n for n in range(100)) + b"\r\n\r\n", 1))),
    row("closes after each answer without a word", play=_healthy(_and_close), expect=used()),
    row(
        "says that it closes, and does",
        play=_healthy(lambda response: cut(response.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))),
        expect=used(),
    ),
    row(
        "says 100 Continue first",
        play=_healthy(lambda response: b"HTTP/1.1 100 Continue\r\n\r\n" + response), expect=used(),
    ),
    row(
        "says 103 Early Hints first",
        play=_healthy(lambda response: b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + response), expect=used(),
    ),
    row(
        "speaks HTTP/1.0",
        play=_healthy(lambda response: cut(response.replace(b"HTTP/1.1", b"HTTP/1.0", 1))), expect=used(),
    ),
    row("leaves a second answer on the connection", play=_healthy(_poison), expect=used()),
    row(
        "leaves an error behind an answer",
        play=_healthy(lambda response: response + http(401, "no key")), expect=used(),
    ),
    row(
        "leaves noise behind an answer", play=_healthy(lambda response: response + b"\x00\xff noise"), expect=used(),
    ),
    row(
        "counts its body too short",
        play=first(http(200, said("a whole answer")).replace(b"content-length: ", b"content-length: 1\r\nx-was: ", 1)),
        expect=retried("malformed"),
    ),
    row(
        "leaves a good answer behind a refusal",
        play=first(http(503, "busy") + http(200, said("POISON: an answer to nobody's question"))),
        expect=retried("unavailable"),
    ),
]  # fmt: skip
