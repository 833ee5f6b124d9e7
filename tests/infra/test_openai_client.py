"""The wire below every model call: limits, bounds, and connections that are never trusted twice without reason."""

import asyncio
import gzip
import json
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from scripted_endpoint import OK, FakeClock, Play, Reply, Scripted, completion, failed, http, scripted

from infra import openai_client as module
from infra.model_errors import Failed, Failure
from infra.openai_client import Clients, Exchange
from infra.watched_network import WatchedTransport
from runtime.settings import EndpointSettings

TLS = Path(__file__).parent / "tls"
STALE = completion({"role": "assistant", "content": "of another question"})
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
BODY = OK.partition(b"\r\n\r\n")[2]


@dataclass
class Asked:
    """A server and the clients in front of it."""

    server: Scripted
    clients: Clients
    endpoint: EndpointSettings

    async def post(self, limit_s: float = 60.0, **parameters: Any) -> Exchange:
        return await self.clients.post(self.endpoint, {"model": "m", "messages": []} | parameters, limit_s)

    async def content(self) -> str:
        text = json.loads((await self.post()).body)["choices"][0]["message"]["content"]
        assert isinstance(text, str)
        return text

    async def failure(self, limit_s: float = 60.0) -> Failure:
        with pytest.raises(Failed) as caught:
            await self.post(limit_s)
        return caught.value.failure

    async def gone(self) -> None:
        """Until the server has seen the end of every connection."""
        await until(lambda: not self.server.open)
        assert self.kept == 0

    @property
    def kept(self) -> int:
        """Connections of the client."""
        transport = self.clients.of(self.endpoint)._client._transport
        assert isinstance(transport, WatchedTransport)
        return transport.connections

    @property
    def connections(self) -> list[int]:
        return [one.connection for one in self.server.requests]


async def until(holds: Callable[[], bool]) -> None:
    """A condition of the loop's other end."""
    with anyio.fail_after(60):
        while not holds():  # noqa: ASYNC110 - the server tells nobody
            await anyio.sleep(0.001)


@asynccontextmanager
async def asking(*replies: Reply, rest_s: float = 0.0, **changes: Any) -> AsyncIterator[Asked]:
    async with scripted(*replies) as server:
        async with AsyncExitStack() as held:
            clients = Clients({}, FakeClock(), held, rest_s=rest_s)
            yield Asked(server, clients, EndpointSettings(**({"base_url": server.url} | changes)))
        await until(lambda: not server.open)


def playing(*parts: bytes | float, then: str = "read") -> Play:
    """Write `parts`, a pause for each number; then read until the client closes, or close."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            if isinstance(part, bytes):
                writer.write(part)
                await writer.drain()
            else:
                await anyio.sleep(part)
        if then == "read":
            await reader.read()

    return play


def chunked(body: bytes, *, end: bytes = b"0\r\n\r\n") -> bytes:
    return HEAD + b"transfer-encoding: chunked\r\n\r\n" + f"{len(body):x}\r\n".encode() + body + b"\r\n" + end


async def forever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, part: bytes, pause_s: float) -> None:
    while True:
        writer.write(part)
        await writer.drain()
        await anyio.sleep(pause_s)


def dripping(head: bytes, part: bytes, pause_s: float = 0.002) -> Play:
    """Write `head`, and then `part` again and again."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await forever(reader, writer, part, pause_s)

    return play


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
        with anyio.fail_after(60):
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


async def test_an_answer_that_has_begun_may_take_longer_than_its_first_byte() -> None:
    """The limit of the first byte ends with it."""
    play = playing(HEAD + f"content-length: {len(BODY)}\r\n\r\n".encode() + BODY[:1], 0.5, BODY[1:], then="close")
    async with asking(play, first_byte_timeout_s=0.4) as asked:
        exchange = await asked.post()
    assert exchange.body == BODY
    assert exchange.first_byte_s < exchange.total_s


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
        with anyio.fail_after(60):
            await ended.wait()
    assert (failure.kind, failure.reason) == ("unreachable", "no connection within 0.2 s")


async def test_no_time_left_is_a_try_cut_off() -> None:
    """Nothing is sent."""
    async with asking(OK) as asked:
        assert (await asked.failure(-1.0)).kind == "timeout"
        assert asked.kept == 0


# -- bounds of size --------------------------------------------------------------------------------------------------


def packed(coding: str, body: bytes) -> bytes:
    return http(200, body, content_encoding=coding)


@pytest.mark.parametrize(
    "reply",
    [packed("gzip", gzip.compress(BODY)), packed("deflate", zlib.compress(BODY)), packed("identity", BODY)],
    ids=["gzip", "deflate", "identity"],
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


async def test_a_packed_errors_bomb_is_read_up_to_its_bound() -> None:
    """Its first words are enough."""
    bomb = gzip.compress(b"maximum context length exceeded " + b"x" * 40_000_000)
    async with asking(http(400, bomb, content_encoding="gzip")) as asked:
        failure = await asked.failure()
        await asked.gone()
    assert failure.kind == "context"


# -- trust -----------------------------------------------------------------------------------------------------------


async def test_a_healthy_connection_is_used_again() -> None:
    """One after the other over the same one, an error's included; each side by side has its own."""
    async with asking(OK, failed(429, "slow down"), OK) as asked:
        assert await asked.content() == "fine"
        assert (await asked.failure()).kind == "rate_limited"
        assert await asked.content() == "fine"
        assert asked.connections == [0, 0, 0]
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(asked.post)
        assert asked.server.accepted == 3


@pytest.mark.parametrize(
    "reply",
    [
        playing(OK + STALE),
        playing(OK, STALE),
        playing(OK + b"HTTP/1.1 100 Continue\r\n\r\n"),
        playing(OK + b"\r\n"),
        playing(OK + b"surplus"),
        playing(chunked(BODY) + STALE),
        playing(chunked(BODY), STALE),
        playing(HEAD + b"content-length: %d\r\n\r\n" % (len(BODY) - 1) + BODY + STALE),
        playing(HEAD + b"content-length: 2\r\n\r\n" + BODY + STALE),
        playing(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY + STALE),
        playing(HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY + STALE),
        playing(b"HTTP/1.0 200 OK\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY + STALE),
        playing(b"HTTP/1.0 200 OK\r\n\r\n" + BODY, then="close"),
        playing(HEAD + b"\r\n" + BODY, then="close"),
        playing(HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n" + BODY + STALE),
        playing(chunked(BODY, end=b"0\r\nx-trailer") + b"\r\n\r\n" + STALE),
        playing(chunked(BODY)[:-7] + STALE),
        playing(HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\n" + BODY + STALE),
        playing(HEAD + b"content-length: -5\r\n\r\n" + BODY + STALE),
        playing(b"HTTP/1.1 204 None\r\n\r\n" + STALE),
        playing(b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n" + STALE),
        http(204, ""),
        http(200, "<html>Log in</html>", content_type="text/html"),
        http(200, ""),
        http(200, "[]"),
        http(200, '{"choices": null}'),
        http(200, '{"choices": [}'),
        http(200, {"error": {"message": "upstream is busy"}}),
        http(200, BODY.decode().encode("utf-16")),
        http(200, BODY.replace(b"fine", b"f\xff\xfe")),
        http(200, "data: {}\n\n", content_type="text/event-stream"),
        packed("gzip", gzip.compress(BODY) + b"more")[:-1] + b"e",
        playing(OK, then="close"),
        playing(OK[:-10], then="close"),
        playing(b"HTTP/1.1 400 Bad\r\ncontent-length: 2\r\n\r\n{}" + STALE),
    ],
    ids=range(35),
)
async def test_after_anything_odd_the_connection_is_never_used_again(reply: Reply) -> None:
    """Whatever this answer is taken for, a second one behind it is not the next question's."""
    async with asking(reply, OK, OK) as asked:
        with suppress(Failed):
            assert b"another question" not in (await asked.post()).body
        for _ in range(2):
            assert await asked.content() == "fine"
    if not isinstance(reply, bytes) or b"more" not in reply:
        assert asked.connections == [0, 1, 1]


async def test_a_second_response_that_comes_later_is_nobodys_answer() -> None:
    """After the first was taken, and before the next question: the connection is looked at before it is used."""
    taken, written = anyio.Event(), anyio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        await taken.wait()
        writer.write(STALE)
        await writer.drain()
        written.set()
        await reader.read()

    async with asking(late, OK) as asked:
        assert await asked.content() == "fine"
        assert asked.kept == 1
        taken.set()
        await written.wait()
        assert await asked.content() == "fine"
    assert asked.connections == [0, 1]


async def test_a_connection_rests_before_it_is_used_again() -> None:
    """A second response may come when the next question is under way: no connection is asked so soon."""
    late = playing(OK, 0.05, STALE)
    async with asking(late, OK, rest_s=3600.0) as asked:
        assert [await asked.content(), await asked.content()] == ["fine", "fine"]
        assert asked.connections == [0, 1]
        # One at a time: a server may keep a thread for each.
        await until(lambda: asked.server.open < 2)


async def test_what_a_stream_says_after_its_end_mark_is_nobodys_answer() -> None:
    """Neither of this question nor of the next one."""
    whole = b'data: {"choices": [{"delta": {"content": "fine"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    for reply in (
        playing(http(200, whole + b'data: {"choices": []}\n\n', content_type="text/event-stream")),
        playing(http(200, whole, content_type="text/event-stream") + STALE),
        playing(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + whole),
    ):
        async with asking(reply, OK, stream=True) as asked:
            assert await asked.content() == "fine"
            assert await asked.content() == "fine"
        assert asked.connections == [0, 1]
    async with asking(http(200, whole, content_type="text/event-stream"), stream=True) as asked:
        assert [await asked.content(), await asked.content()] == ["fine", "fine"]
    assert asked.connections == [0, 0]


# -- cancellation ----------------------------------------------------------------------------------------------------

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@pytest.mark.parametrize(
    "parts",
    [[], [b"HTTP/1.1 200 OK\r\nx:"], [HEAD + b"content-length: 90\r\n\r\n{"], [SSE], [SSE + b'data: {"choices": ['],
     [SSE + b'data: {"choices": [{"delta": {"content": "fi"}}]}\n\n']],
    ids=["before the head", "in the head", "in the body", "before a stream's first", "in a chunk", "between chunks"],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_call_leaves_no_connection_behind(parts: list[bytes], stream: bool) -> None:
    """Wherever it was: the server sees the end, no task is left, and the next question has another connection."""
    written = anyio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.writelines(parts)
        await writer.drain()
        written.set()
        await reader.read()

    async with asking(play, OK, stream=stream) as asked:
        before = asyncio.all_tasks()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked.post)
            await written.wait()
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert {one for one in asyncio.all_tasks() - before if "serve" not in repr(one)} == set()
        await asked.gone()
        assert await asked.content() == "fine"
    assert asked.connections == [0, 1]


async def test_a_call_cancelled_before_it_is_connected_leaves_nothing() -> None:
    """The handshake hangs; nothing is kept."""
    accepted, ended = anyio.Event(), anyio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await reader.read()
        ended.set()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with asking(OK, base_url=f"https://127.0.0.1:{port}/v1") as asked:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(asked.post)
                await accepted.wait()
                tasks.cancel_scope.cancel()
            with anyio.fail_after(60):
                await ended.wait()
            assert asked.kept == 0


async def test_leaving_closes_what_is_idle() -> None:
    """The server sees the end of the connections that were kept."""
    async with scripted(OK) as server:
        async with AsyncExitStack() as held:
            clients = Clients({}, FakeClock(), held)
            await clients.post(EndpointSettings(base_url=server.url), {"model": "m", "messages": []}, 60.0)
            assert server.open == 1
        with anyio.fail_after(60):
            await server.left.wait()


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
            with anyio.fail_after(60):
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


# -- TLS -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def encrypted(play: Callable[[int, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    """A TLS server that answers with `play(connection, writer)`; its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    accepted = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        number, accepted = accepted, accepted + 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(line for line in head.decode().lower().split("\r\n") if line.startswith("content-length"))
                await reader.readexactly(int(length.partition(":")[2]))
                await play(number, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as listening:
        yield listening.sockets[0].getsockname()[1]


async def test_a_certificate_is_checked_with_what_the_machine_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's is no connection; one signed by an authority that is trusted is asked, over one connection."""

    async def fine(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(http(200, BODY, x_number=str(number)))

    async with encrypted(fine) as port:
        for base_url in (f"https://127.0.0.1:{port}/v1", f"https://localhost:{port}/v1"):
            async with asking(OK, base_url=base_url) as asked:
                failure = await asked.failure()
            assert (failure.kind, failure.unreached) == ("unreachable", True)
            assert "certificate" in failure.reason.lower()
        monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
        async with asking(OK, base_url=f"https://127.0.0.1:{port}/v1") as asked:
            numbers = [(await asked.post()).headers["x-number"] for _ in range(3)]
    assert len(set(numbers)) == 1


async def test_a_second_response_inside_tls_is_nobodys_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same record, or in one that has been received and not been opened yet."""
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    for together in (True, False):

        async def twice(number: int, writer: asyncio.StreamWriter, together: bool = together) -> None:
            if number:
                writer.write(OK)
            elif together:
                writer.write(OK + STALE)
            else:
                writer.write(OK)
                writer.write(STALE)

        async with encrypted(twice) as port, asking(OK, base_url=f"https://127.0.0.1:{port}/v1") as asked:
            assert [await asked.content() for _ in range(3)] == ["fine"] * 3
