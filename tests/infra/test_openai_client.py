"""The wire below every model call: limits of time and size, and what is told."""

import asyncio
import gzip
import socket
import zlib
from contextlib import ExitStack, suppress

import anyio
import pytest
from scripted_endpoint import OK, Play, Reply, http, scripted
from wired_clients import BODY, HEAD, asking, dripping, packed, playing

from infra import openai_client as module
from infra.model_errors import Failed

# -- limits ----------------------------------------------------------------------------------------------------------

SILENT = playing()


@pytest.mark.parametrize(
    "play",
    [
        SILENT,
        dripping(b"HTTP/1.1 200 OK\r\nx: ", b"y"),
        dripping(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
        dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.05),
        dripping(HEAD + b"content-length: 100000\r\n\r\n", b" "),
        dripping(HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        dripping(HEAD + b"transfer-encoding: chunked\r\n\r\n", b"0"),
        dripping(HEAD + b"\r\n", b" "),
        dripping(HEAD + b"\r\n", b" " * 4096, 0),
        dripping(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", b": still there\n\n"),
        dripping(b"HTTP/1.1 500 No\r\ncontent-length: 60000\r\n\r\n", b"x"),
    ],
    ids=[
        "silent", "a header without end", "headers without end", "100 Continue without end", "a dripping body",
        "a chunked body without end", "a chunk's size without end", "a body until the end of the connection",
        "a flood", "a stream of comments", "a dripping error",
    ],
)  # fmt: skip
async def test_no_drip_holds_a_call_beyond_its_limit(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole try has one limit, told in seconds; its connection is closed."""
    monkeypatch.setattr(module, "LARGEST_ANSWER", 2**40)
    async with asking(play) as asked:
        with anyio.fail_after(120):
            failure = await asked.failure(0.3)
            await asked.gone()
    assert (failure.kind, failure.action) in {("timeout", "retry"), ("connection", "retry")}
    if failure.kind == "timeout":
        assert "within 0.3 s" in failure.reason


@pytest.mark.parametrize(
    "play",
    [SILENT, playing(HEAD + b"content-length: 10\r\n\r\n"), dripping(HEAD[:-2] + b"\r\nx: ", b"y")],
    ids=["silent", "a head only", "a dripping head"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_byte_has_a_limit_of_its_own(play: Play, stream: bool) -> None:
    """Long before the whole try's is over; a head is no answer yet."""
    async with asking(play, first_byte_timeout_s=0.2, stream=stream) as asked:
        failure = await asked.failure(3600.0)
        await asked.gone()
    assert failure.kind == "first_byte"
    assert "within 0.2 s" in failure.reason


async def test_comments_of_a_stream_are_no_first_byte() -> None:
    """A router that says that it is waiting has not begun to answer."""
    play = dripping(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", b": waiting\n\n")
    async with asking(play, first_byte_timeout_s=0.2, stream=True) as asked:
        assert (await asked.failure(3600.0)).kind == "first_byte"
        await asked.gone()


async def test_an_answer_that_has_begun_may_take_longer_than_its_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the first byte ends with it."""
    began, read, loop = module._Reading._began, anyio.Event(), asyncio.get_running_loop()
    now = loop.time

    def noted(self: module._Reading, *, at_all: bool) -> None:
        began(self, at_all=at_all)
        read.set()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + f"content-length: {len(BODY)}\r\n\r\n".encode() + BODY[:1])
        await read.wait()
        monkeypatch.setattr(loop, "time", lambda: now() + 100.0)
        await anyio.sleep(0.001)  # whoever waits for less hears of it first
        writer.write(BODY[1:])

    monkeypatch.setattr(module._Reading, "_began", noted)
    async with asking(late, first_byte_timeout_s=60.0) as asked:
        exchange = await asked.post(3600.0)
    assert exchange.body == BODY
    assert exchange.first_byte_s + 60.0 < exchange.total_s


async def test_a_connection_has_a_limit_of_its_own() -> None:
    """A server whose queue is full takes nobody on; told as what cannot be reached."""
    with socket.socket() as full, ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        base_url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
        async with asking(OK, base_url=base_url, connect_timeout_s=0.2) as asked:
            failure = await asked.failure(3600.0)
    assert (failure.kind, failure.reason, failure.unreached) == ("unreachable", "no connection within 0.2 s", True)


async def test_tls_that_is_never_begun_ends_with_the_connections_limit() -> None:
    """A server that accepts and says nothing."""
    ended = anyio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.transport.abort()
        ended.set()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with asking(OK, base_url=f"https://127.0.0.1:{port}/v1", connect_timeout_s=0.2) as asked:
            failure = await asked.failure(3600.0)
        with anyio.fail_after(120):
            await ended.wait()
    assert (failure.kind, failure.reason) == ("unreachable", "no connection within 0.2 s")


async def test_no_time_left_is_a_try_cut_off() -> None:
    """Nothing is sent."""
    async with asking(OK) as asked:
        assert (await asked.failure(-1.0)).kind == "timeout"
        assert asked.kept == 0


# -- bounds of size --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        packed("gzip", gzip.compress(BODY)),
        packed("deflate", zlib.compress(BODY)),
        packed("identity", BODY),
        packed("none", BODY),
        packed("UTF-8", BODY),
    ],
    ids=["gzip", "deflate", "identity", "none", "an encoding of characters"],
)
async def test_a_packed_answer_is_read(reply: bytes) -> None:
    """Although nobody asked for it."""
    async with asking(reply) as asked:
        assert await asked.content() == "fine"
        assert asked.server.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (packed("gzip", gzip.compress(b" " * 40_000_000)), "malformed"),
        (packed("br", BODY), "malformed"),
        (packed("gzip", BODY), "connection"),
        (packed("gzip", gzip.compress(BODY)[:-12]), "connection"),
        (packed("gzip", b""), "connection"),
        (http(200, b" " * 17_000_000), "malformed"),
        (playing(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000), "connection"),
        (playing(HEAD + b"transfer-encoding: chunked\r\n\r\n1;x=" + b"y" * 200_000), "connection"),
    ],
    ids=[
        "a bomb", "an unknown coding", "not packed at all", "packed and cut off", "packed and empty", "too long",
        "a header too long", "a chunk's extension too long",
    ],
)  # fmt: skip
async def test_what_is_too_large_or_cannot_be_unpacked_is_no_answer(reply: Reply, kind: str) -> None:
    """It is not read on, and the next question has another connection."""
    async with asking(reply, OK) as asked:
        assert (await asked.failure()).kind == kind
        assert await asked.content() == "fine"
    assert asked.connections == [0, 1]


@pytest.mark.parametrize(("status", "kind"), [(401, "key"), (429, "rate_limited"), (503, "unavailable")])
@pytest.mark.parametrize("coding", ["br", "gzip"])
async def test_an_error_that_cannot_be_unpacked_is_known_by_its_status(status: int, kind: str, coding: str) -> None:
    """Its words are not needed for that."""
    async with asking(http(status, BODY, content_encoding=coding)) as asked:
        assert (await asked.failure()).kind == kind


async def test_a_packed_errors_bomb_is_read_up_to_its_bound() -> None:
    """Its first words are enough."""
    bomb = gzip.compress(b"maximum context length exceeded " + b"x" * 40_000_000)
    async with asking(http(400, bomb, content_encoding="gzip")) as asked:
        failure = await asked.failure()
        await asked.gone()
    assert failure.kind == "context"


# -- what is told ----------------------------------------------------------------------------------------------------


async def test_an_exchange_tells_its_times_and_its_head() -> None:
    """Names in lower case; not streamed where it was not."""
    async with asking(http(200, BODY, X_Request_Id="a-1")) as asked:
        exchange = await asked.post()
    assert (exchange.body, exchange.streamed, exchange.headers["x-request-id"]) == (BODY, False, "a-1")
    assert 0 <= exchange.first_byte_s <= exchange.total_s


async def test_a_redirect_is_not_followed_and_takes_nothing_along() -> None:
    """No byte of the prompt to another origin, by whatever status."""
    async with scripted(OK) as other:
        for status in (301, 302, 303, 307, 308):
            async with asking(http(status, "", location=f"{other.url}/chat/completions")) as asked:
                failure = await asked.failure()
            assert (failure.kind, failure.action) == ("redirect", "stop")
        assert other.accepted == 0


async def test_a_request_too_large_for_the_server_is_told_as_it_says() -> None:
    """A server that answers and closes before it has read everything is heard all the same."""
    ended = anyio.Event()

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(http(413, {"error": {"message": "the prompt is too long"}}, connection="close"))
        await writer.drain()
        writer.write_eof()
        # Its kernel still takes some: closing now would take the answer back.
        with suppress(ConnectionError):
            await reader.read()
        writer.transport.abort()
        ended.set()

    async with await asyncio.start_server(hasty, "127.0.0.1", 0, limit=1024) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with asking(OK, base_url=f"http://127.0.0.1:{port}/v1") as asked:
            with pytest.raises(Failed) as caught:
                await asked.post(messages=["x" * 20_000_000])
            with anyio.fail_after(120):
                await ended.wait()
    assert caught.value.failure.status == 413


@pytest.mark.parametrize("value", [{1, 2}.__iter__(), "\ud800"])
async def test_what_json_has_no_form_for_is_refused(value: object) -> None:
    """A failure like any other, and nothing is sent."""
    async with asking(OK) as asked:
        with pytest.raises(Failed) as caught:
            await asked.post(messages=[value])
        assert not asked.server.accepted
    assert (caught.value.failure.kind, caught.value.failure.action) == ("unsendable", "refuse")
