"""Connections below every model call: which are asked again, which never, and what a cancelled call leaves."""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from scripted_endpoint import OK, FakeClock, Reply, failed, http, scripted
from wired_clients import BODY, HEAD, STALE, asking, chunked, packed, playing, until

from infra import openai_client, watched_network
from infra.model_errors import Failed
from infra.openai_client import Clients
from runtime.settings import EndpointSettings

TLS = Path(__file__).parent / "tls"


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is not given up because a test stood still."""
    monkeypatch.setattr(watched_network, "_IDLE_S", 3600.0)


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


async def test_what_a_stream_says_after_its_end_mark_is_nobodys_answer(monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(openai_client, "_ENDS_S", 60.0)
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
            with anyio.fail_after(120):
                await ended.wait()
            assert asked.kept == 0


async def test_leaving_closes_what_is_idle() -> None:
    """The server sees the end of the connections that were kept."""
    async with scripted(OK) as server:
        async with AsyncExitStack() as held:
            clients = Clients({}, FakeClock(), held)
            await clients.post(EndpointSettings(base_url=server.url), {"model": "m", "messages": []}, 60.0)
            assert server.open == 1
        with anyio.fail_after(120):
            await server.left.wait()


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
