"""When the run stops: an endpoint that cannot be reached, or that fails one call after the other."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
import structlog
from scripted_endpoint import (
    KEY,
    OK,
    REQUEST,
    SECRET,
    FakeClock,
    Scripted,
    asking,
    failed,
    http,
    scripted,
)

from infra.openai_client import Clients
from infra.openai_model import OpenAIModel
from infra.telemetry import configure
from infra.tries import DOWN
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped
from runtime.ports import Role
from runtime.settings import EndpointSettings, ModelSettings

BUSY = failed(503, "overloaded")


async def test_a_run_goes_on_when_its_endpoint_is_back() -> None:
    """Stopped while nobody listens, and again when resumed too early; then the same model is asked as before."""
    async with AsyncExitStack() as held:
        clients = Clients({}, FakeClock(), held, rest_s=0.0)
        async with scripted(OK) as server:
            model = executor(clients, server.url, retries=2)
            await model.complete(REQUEST, KEY)
        for _ in range(2):
            with pytest.raises(RunStopped, match=f"{server.port}.*3 tries") as caught:
                await model.complete(REQUEST, KEY)
            assert caught.value.kind == "unreachable"
        async with scripted(OK, port=server.port):
            assert (await model.complete(REQUEST, KEY)).content == "fine"


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_no_tls_is_no_connection(greeting: bytes) -> None:
    """A server that closes during the handshake, or speaks plain HTTP, cannot be reached."""

    async def plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()
        writer.close()

    async with AsyncExitStack() as held, await asyncio.start_server(plain, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        model = executor(Clients({}, FakeClock(), held, rest_s=0.0), f"https://127.0.0.1:{port}/v1", retries=1)
        with pytest.raises(RunStopped) as caught:
            await model.complete(REQUEST, KEY)
    assert caught.value.kind == "unreachable"


@pytest.mark.parametrize(
    "reply",
    [BUSY, http(200, "<html>"), failed(429, "slow down"), http(503, "{}", x_should_retry="false"), failed(500, "a")],
    ids=["503", "html", "429", "hopeless", "500-twice"],
)
async def test_calls_in_a_row_without_an_answer_stop_the_run(reply: bytes) -> None:
    """The last one that may fail says so, with what came last; the ones before are about a request each."""
    async with asking(reply, stop_after=3) as asked:
        for _ in range(2):
            with pytest.raises((ModelUnavailable, ModelRefused)):
                await asked.complete()
        with pytest.raises(RunStopped, match="3 calls in a row") as caught:
            await asked.complete()
    assert caught.value.kind == DOWN
    assert asked.server.url in caught.value.reason


@pytest.mark.parametrize("between", [OK, failed(400, "maximum context length exceeded")], ids=["answer", "refusal"])
async def test_an_answer_in_between_sets_the_count_back(between: bytes) -> None:
    """A refusal of one request too: the endpoint works."""
    async with asking(BUSY, BUSY, between, BUSY, BUSY, BUSY, stop_after=3, retries=0) as asked:
        outcomes = [await outcome(asked.model) for _ in range(6)]
    assert outcomes[:2] == outcomes[3:5] == ["unavailable"] * 2
    assert outcomes[5] == DOWN


async def test_an_endpoint_that_was_given_up_needs_one_answer() -> None:
    """A run that is resumed too early stops at its first failed call; an answer makes everything as before."""
    async with asking(*[BUSY] * 4, OK, BUSY, stop_after=3, retries=0) as asked:
        outcomes = [await outcome(asked.model) for _ in range(6)]
    assert outcomes == ["unavailable", "unavailable", DOWN, DOWN, "fine", "unavailable"]


async def test_runs_of_a_process_count_together() -> None:
    """Whoever asks the same model at the same endpoint; another model there is not concerned."""
    async with AsyncExitStack() as held, scripted(BUSY) as server:
        clients = Clients({}, FakeClock(), held, rest_s=0.0)
        models = [executor(clients, server.url, retries=0, stop_after=2) for _ in range(2)]
        other = executor(clients, server.url, model="other", retries=0, stop_after=2)
        outcomes = [await outcome(one) for one in (*models, other)]
    assert outcomes == ["unavailable", DOWN, "unavailable"]


async def test_calls_under_way_do_not_go_on_trying() -> None:
    """Once another call has given the endpoint up, the next failed try of each one is its last."""
    async with under_way() as (server, clients, arrived, release):
        model = executor(clients, server.url, retries=9, stop_after=1)
        reasons: list[str] = []

        async def ask() -> None:
            with pytest.raises(RunStopped) as caught:
                await model.complete(REQUEST, KEY)
            reasons.append(caught.value.reason)

        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(ask)
                for _ in range(3):
                    await arrived.acquire()
                assert await outcome(executor(clients, server.url, retries=0, stop_after=1)) == DOWN
                release.set()
    assert len(reasons) == 3
    assert all("1 try; another call gave the endpoint up" in one for one in reasons)
    assert len(server.requests) == 4


HOSTILE = {
    "bearer": {"error": {"message": "no", "headers": {"Authorization": "Bearer hunter22hunter22"}}},
    "header": "upstream said: authorization: Token hunter22hunter22",
    "proxied": {"error": {"message": "Incorrect API key provided: sk-hunter22hunter22."}},
    "field": {"detail": [{"loc": ["header"], "msg": 'bad {"api_key": "hunter22"}'}]},
    "address": {"message": "cannot reach https://user:hunter22@inner/v1?key=hunter22"},
    "hex": {"error": "token hunter22" + "0123456789abcdef" * 4},
    "ours": "x" * 290 + " " + SECRET,
    "lines": "one\ntwo\r\n\x1b[31mthree",
}


@pytest.mark.parametrize("status", [200, 400, 401, 503])
@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
async def test_secrets_of_an_errors_text_reach_neither_error_nor_log(status: int, body: object) -> None:
    """One short line, and nothing of what a server may repeat of keys, whatever the status is."""
    stream = io.StringIO()
    configure(stream, json=True)
    try:
        text = body if isinstance(body, str) else json.dumps(body)
        async with asking(http(status, text), retries=1) as asked:
            with pytest.raises((ModelUnavailable, ModelRefused, RunStopped)) as caught:
                await asked.complete()
    finally:
        structlog.reset_defaults()
    for shown in (str(caught.value), caught.value.reason, stream.getvalue()):
        assert "hunter22" not in shown
        assert SECRET[:8] not in shown
    assert caught.value.reason.isprintable()
    assert len(caught.value.reason) < 450


def executor(clients: Clients, base_url: str, model: str = "m", **changes: Any) -> OpenAIModel:
    """A model of one role over `clients`."""
    endpoints: dict[Role, EndpointSettings] = {"executor": EndpointSettings(base_url=base_url, **changes)}
    return OpenAIModel({"executor": ModelSettings(model=model)}, endpoints, clients, FakeClock())


async def outcome(model: OpenAIModel) -> str:
    """The answer's text, or the kind of the error."""
    try:
        return (await model.complete(REQUEST, KEY)).content
    except (ModelUnavailable, ModelRefused, RunStopped) as error:
        return error.kind


@asynccontextmanager
async def under_way() -> AsyncIterator[tuple[Scripted, Clients, anyio.Semaphore, anyio.Event]]:
    """A server that fails; its first three answers count their arrival and wait for the event."""
    arrived, release = anyio.Semaphore(0), anyio.Event()

    async def late(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.release()
        await release.wait()
        writer.write(BUSY)
        await writer.drain()

    async with AsyncExitStack() as held, scripted(late, late, late, BUSY) as server:
        yield server, Clients({}, FakeClock(), held, rest_s=0.0), arrived, release
