"""What a Weaviate server says of itself, on REST and on gRPC, and what is told where it does not."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from events.errors import BadInput, Unreachable
from infra.grpc_health import grpc_serves
from infra.weaviate_address import WeaviateAddress
from infra.weaviate_asking import answering, asked
from infra.weaviate_process import VERSION


def test_a_server_says_its_version(weaviate_server: WeaviateAddress) -> None:
    """By REST, once gRPC serves too; the address is given back with it."""
    bare = msgspec.structs.replace(weaviate_server, version="")
    assert answering(bare, 60) == weaviate_server
    assert asked(bare, 60) == VERSION
    assert grpc_serves(weaviate_server.grpc_url, 60)


def test_a_wrong_key_is_told(weaviate_server: WeaviateAddress) -> None:
    """As a wrong setting, with the place of the right one, and without the key."""
    wrong = msgspec.structs.replace(weaviate_server, api_key="not-the-key")
    with pytest.raises(BadInput, match=r"refuses the key \(401\); put its key .*weaviate.api_key_env") as caught:
        answering(wrong, 60)
    assert "not-the-key" not in str(caught.value)
    assert asked(wrong) is None


def test_nobody_there_is_told(weaviate_server: WeaviateAddress) -> None:
    """On REST, or on gRPC alone."""
    with pytest.raises(Unreachable, match=r"Weaviate at http://127\.0\.0\.1:9/\S+ does not answer: .*refused"):
        answering(msgspec.structs.replace(weaviate_server, http_url="http://127.0.0.1:9"))
    with pytest.raises(Unreachable, match=r"answers, but not on gRPC at 127\.0\.0\.1:9 .*weaviate\.grpc_url"):
        answering(msgspec.structs.replace(weaviate_server, grpc_url="127.0.0.1:9"), 60)
    with pytest.raises(Unreachable, match="not on gRPC"):
        answering(msgspec.structs.replace(weaviate_server, grpc_url=weaviate_server.http_url.removeprefix("http://")))


@pytest.fixture
def imposter() -> Iterator[Callable[[int, object], str]]:
    """A server that answers everything with a status and a body; its address."""
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def serve(status: int, body: object) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode() if not isinstance(body, bytes) else body)

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield serve
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "error", "told"),
    [
        (200, {"version": "1.36.9"}, BadInput, r"is version 1\.36\.9, older than 1\.37"),
        (200, {"version": "nightly"}, BadInput, r"is version nightly, older than"),
        (200, {"name": "x"}, Unreachable, "answers, but is no Weaviate"),
        (200, b"<html>", Unreachable, "answers, but is no Weaviate"),
        (200, [], Unreachable, "answers, but is no Weaviate"),
        (503, {}, Unreachable, "answers 503"),
        (403, {}, BadInput, r"refuses the key \(403\)"),
        (404, {}, Unreachable, "answers 404"),
    ],
)
def test_what_is_no_server_of_ours(
    status: int, body: object, error: type[Exception], told: str, imposter: Callable[[int, object], str],
    weaviate_server: WeaviateAddress,
) -> None:  # fmt: skip
    """Too old, not ready, or something else: one line each."""
    address = msgspec.structs.replace(weaviate_server, http_url=imposter(status, body))
    with pytest.raises(error, match=told) as caught:
        answering(address, 60)
    assert "\n" not in str(caught.value)


@pytest.fixture
def scripted() -> Iterator[Callable[[bytes], str]]:
    """A listener that says some bytes to whoever connects, then nothing; its address."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        threads: list[threading.Thread] = []
        ended = threading.Event()

        def say(words: bytes) -> str:
            def speak() -> None:
                channel, _ = door.accept()
                with channel:
                    channel.sendall(words)
                    ended.wait(120)

            threads.append(threading.Thread(target=speak))
            threads[-1].start()
            return f"127.0.0.1:{door.getsockname()[1]}"

        yield say
        ended.set()
        for one in threads:
            one.join()


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


SETTINGS = frame(4, 0, 0, b"")


@pytest.mark.parametrize(
    ("words", "serves"),
    [
        (SETTINGS + frame(1, 4, 1, b"\x88") + frame(0, 0, 1, b"\0\0\0\0\2\x08\x01") + frame(1, 5, 1, b""), True),
        (SETTINGS + frame(1, 4, 1, b"\x88") + frame(0, 0, 1, b"\0\0\0\0\2\x08\x02") + frame(1, 5, 1, b""), False),
        (SETTINGS + frame(1, 4, 1, b"\x88") + frame(0, 0, 1, b"\0\0\0") + frame(0, 1, 1, b"\0\2\x08\x01"), True),
        (SETTINGS + frame(1, 5, 1, b"\x88"), False),
        (frame(3, 0, 1, b"\0\0\0\2"), False),
        (frame(7, 0, 0, b"\0" * 8), False),
        (frame(0, 1, 3, b"\0\0\0\0\2\x08\x01") + frame(1, 5, 1, b""), False),
    ],
)
def test_what_a_health_service_says(words: bytes, serves: bool, scripted: Callable[[bytes], str]) -> None:
    """Serving and nothing else counts: not another state, an error, an end, or an answer to somebody else."""
    assert grpc_serves(scripted(words), 60) is serves


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+PONG\r\n" * 3, SETTINGS])
def test_what_is_no_grpc(words: bytes, scripted: Callable[[bytes], str]) -> None:
    """Silence, and other protocols, are told as what the system tells of a connection."""
    with pytest.raises(OSError, match=r"HTTP/2|timed out"):
        grpc_serves(scripted(words), 0.3)
