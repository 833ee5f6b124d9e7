"""Answers that are none, and connections that break, drip or hang."""

import asyncio
import socket
from typing import Any

import anyio
import pytest
from openai import APIConnectionError
from scripted_endpoint import (
    KEY,
    OK,
    REQUEST,
    FakeClock,
    Play,
    asking,
    completion,
    failed,
    http,
    openai_model,
    scripted,
)

from infra import openai_client as module
from infra.clock import SystemClock
from infra.error_table import MALFORMED_RETRIES
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped
from runtime.ports import Role
from runtime.settings import EndpointSettings, ModelSettings

SSE = 'data: {"choices": [{"delta": {"content": "fi"}}]}\n\n'


@pytest.mark.parametrize(
    "reply",
    [
        http(200, "<!doctype html><title>Log in</title>", content_type="text/html"),
        http(200, SSE, content_type="text/event-stream"),
        http(200, {"error": {"message": "upstream is busy"}}),
        http(200, "[]"),
        http(200, '"fine"'),
        http(200, "null"),
        http(200, ""),
        http(204, "")[:-1] + b"\n",
        http(200, {"choices": None}),
        http(200, {"choices": []}),
        http(200, {"choices": ["fine"]}),
        http(200, {"choices": [{"message": None}]}),
        http(200, {"choices": [{"error": {"message": "provider failed"}, "message": {"content": ""}}]}),
        http(200, {"id": "x", "object": "chat.completion"}),
        http(200, b'{"choices": [{"message": {"content": "fi'),
        http(200, b'{"choices": [{"message": {"content": "\xff\xfe\xfa"}}]}'),
        http(200, b"[" * 100_000),
        http(200, b'{"usage": ' + b"9" * 10_000 + b"}"),
    ],
    ids=range(18),
)
async def test_what_is_no_completion_is_tried_again_twice(reply: bytes) -> None:
    """Three requests in all, then unavailable; an answer in between counts."""
    async with asking(reply) as asked:
        with pytest.raises(ModelUnavailable) as caught:
            await asked.complete()
    assert caught.value.kind == "malformed"
    assert len(asked.bodies) == 1 + MALFORMED_RETRIES
    async with asking(reply, reply, OK) as asked:
        assert (await asked.complete()).content == "fine"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"message": "rate limited", "code": 429}, ModelUnavailable),
        ({"message": "No auth credentials found", "code": 401}, RunStopped),
        ({"message": "This endpoint's maximum context length is 8 tokens", "code": 400}, ModelRefused),
        ("the request exceeds the available context size", ModelRefused),
    ],
)
async def test_an_error_inside_a_200_means_what_it_says(error: Any, expected: type[Exception]) -> None:
    """Its code counts as the status."""
    async with asking(http(200, {"error": error})) as asked:
        with pytest.raises(expected):
            await asked.complete()


async def test_an_answer_beyond_the_cap_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is given up and the answer counts as malformed."""
    monkeypatch.setattr(module, "LARGEST_ANSWER", 1000)
    async with asking(completion({"content": "x" * 2000}), OK) as asked:
        assert (await asked.complete()).content == "fine"
    assert [one.connection for one in asked.server.requests] == [0, 1]


async def test_an_endless_error_is_read_up_to_the_cap() -> None:
    """The start of an error's body is enough to know it."""

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad\r\ncontent-type: text/plain\r\n\r\nmaximum context length exceeded ")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    async with asking(endless) as asked:
        with pytest.raises(ModelRefused) as caught:
            await asked.complete()
    assert caught.value.kind == "context"
    assert len(caught.value.reason) < 500


def cut(sent: bytes) -> Play:
    """Send the start of a response and close the connection."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()

    return reply


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        OK[:-10],
        failed(500, "half an error")[:-5],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nnope",
        b"\x16\x03\x01 this is no HTTP\r\n\r\n",
    ],
    ids=["nothing", "head", "body", "error", "chunk", "gzip", "no-http"],
)
async def test_a_broken_connection_is_tried_again(start: bytes) -> None:
    """Wherever it breaks, the next try is made on a new connection."""
    async with asking(cut(start), OK) as asked:
        assert (await asked.complete()).content == "fine"
    assert [one.connection for one in asked.server.requests] == [0, 1]
    async with asking(cut(start)) as asked:
        with pytest.raises(ModelUnavailable) as caught:
            await asked.complete()
    assert caught.value.kind == "connection"
    assert len(asked.bodies) == 5


async def test_nobody_listening_stops_the_run() -> None:
    """After all tries, with the address in the error."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        async with asking(OK, base_url=f"http://127.0.0.1:{port}/v1") as asked:
            with pytest.raises(RunStopped, match=str(port)) as caught:
                await asked.complete()
    assert caught.value.kind == "unreachable"
    assert isinstance(caught.value.__cause__, APIConnectionError)
    assert len(asked.clock.slept) == 4


async def test_a_slow_answer_is_cut_off_however_often_a_byte_comes() -> None:
    """The time limit is one of the whole try."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _, body = completion().partition(b"\r\n\r\n")
        slowly = b" " * 200 + body
        writer.write(head.replace(f"{len(body)}".encode(), f"{len(slowly)}".encode()) + b"\r\n\r\n")
        for byte in slowly:
            writer.write(bytes([byte]))
            await writer.drain()
            await anyio.sleep(0.01)

    async with asking(drip, timeout_s=0.3, retries=0) as asked:
        with pytest.raises(ModelUnavailable, match=r"within 0\.3 s") as caught:
            await asked.complete()
        with anyio.fail_after(120):
            await asked.server.left.wait()
        assert asked.server.open == 0
    assert caught.value.kind == "timeout"


async def test_a_call_has_a_deadline_over_all_its_tries() -> None:
    """No pause is begun that ends after it, however many tries are left."""
    async with asking(failed(429, "slow down"), retries=50, retry_base_s=8.0, deadline_s=60.0) as asked:
        with pytest.raises(ModelUnavailable, match="no time for another within 60 s") as caught:
            await asked.complete()
    assert (caught.value.kind, caught.value.status) == ("rate_limited", 429)
    assert len(asked.server.requests) == len(asked.clock.slept) + 1 < 50
    assert 0 < sum(asked.clock.slept) < 60


async def test_the_deadline_cuts_off_a_try_that_has_time_left() -> None:
    """A try ends with the call, and is the last one."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with scripted(silent) as server:
        endpoint = EndpointSettings(base_url=server.url, api_key_env="", deadline_s=0.2, retry_base_s=0.0)
        models: dict[Role, ModelSettings] = {"executor": ModelSettings(model="m")}
        async with openai_model(models, {"executor": endpoint}, {}, SystemClock()) as model:
            with pytest.raises(ModelUnavailable, match=r"no time for another within 0\.2 s") as caught:
                await model.complete(REQUEST, KEY)
    assert caught.value.kind == "timeout"
    assert len(server.requests) == 1


async def test_cancellation_leaves_no_connection_open() -> None:
    """The server sees the end of a question that nobody waits for any more; the model can be asked again."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with asking(silent, OK) as asked:
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(asked.complete)
                await asked.server.asked.wait()
                tasks.cancel_scope.cancel()
            await asked.server.left.wait()
        assert asked.server.open == 0
        assert (await asked.complete()).content == "fine"


async def test_leaving_closes_the_connections() -> None:
    """Kept-alive connections end with the model."""
    async with scripted(OK) as server:
        endpoints: dict[Role, EndpointSettings] = {"executor": EndpointSettings(base_url=server.url)}
        async with openai_model({"executor": ModelSettings(model="m")}, endpoints, {}, FakeClock()) as model:
            await model.complete(REQUEST, KEY)
            assert server.open == 1
        with anyio.fail_after(120):
            await server.left.wait()
        assert server.open == 0
