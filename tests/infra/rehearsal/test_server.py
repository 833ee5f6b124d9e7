"""The rehearsal model over HTTP, through the client that the runtime uses."""

import json
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from openai import AsyncOpenAI

from events.errors import BadInput
from infra.rehearsal import MODEL, OWNER
from infra.rehearsal.key import AnswerKey
from infra.rehearsal.planting import RehearsalSettings
from infra.rehearsal.server import rehearsal_server
from infra.rehearsal.truth import read_truths


@asynccontextmanager
async def client(key: AnswerKey, settings: RehearsalSettings, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    async with (
        rehearsal_server(key, settings, **options) as base_url,
        AsyncOpenAI(api_key="none", base_url=base_url, max_retries=0) as opened,
    ):
        yield opened


async def test_it_says_who_it_is(toy_key: AnswerKey, flawless: RehearsalSettings) -> None:
    """`/v1/models` names the one model and its owner, by which runs get their label; `/health` says how many tasks."""
    async with client(toy_key, flawless) as chat:
        served = (await chat.models.list()).data
        assert [(one.id, one.owned_by) for one in served] == [(MODEL, OWNER)] == [("rehearsal", "chime-rehearsal")]
        health = await chat.get("../health", cast_to=object)
    assert health == {"status": "ok", "tasks": 72}


async def test_every_role_is_answered(stage: Any, flawless: RehearsalSettings, bodies: Any) -> None:
    """A plan as text, calls as tool calls, a diagnosis as JSON; usage adds up and equal requests get equal answers."""
    task = stage.key.tasks["warehouse-frozen-0"]
    opening = stage.toy.reset("e", task.domain, "warehouse-frozen-0")
    async with client(stage.key, flawless) as chat:
        planned = await chat.chat.completions.create(**bodies.planner(task.text, offered=opening["tools"]))
        plan = planned.choices[0].message.content
        assert plan.startswith("A warehouse task.\n1. ")
        assert planned.choices[0].finish_reason == "stop"
        body = bodies.executor(opening["messages"], plan, opening["tools"])
        acted, again = [await chat.chat.completions.create(**body) for _ in range(2)]
        assert acted == again
        assert acted.choices[0].finish_reason == "tool_calls"
        assert acted.choices[0].message.tool_calls[0].function.name == "look_up"
        judged = await chat.chat.completions.create(**bodies.gate(task.text, plan, success=True))
        assert json.loads(judged.choices[0].message.content)["label"] == "both"
    for one in (planned, acted, judged):
        assert one.usage.prompt_tokens > 0 < one.usage.completion_tokens
        assert one.usage.total_tokens == one.usage.prompt_tokens + one.usage.completion_tokens
    assert planned.id != acted.id != judged.id


async def test_many_at_once(stage: Any, bodies: Any) -> None:
    """Concurrent requests get what each would get alone."""
    settings = RehearsalSettings()
    texts = [task.text for task in stage.key.tasks.values()]
    alone = [bodies.answered(stage.key, settings, bodies.planner(text)).reply.content for text in texts]
    got: dict[str, str | None] = {}
    async with client(stage.key, settings) as chat:

        async def ask(text: str) -> None:
            got[text] = (await chat.chat.completions.create(**bodies.planner(text))).choices[0].message.content

        async with anyio.create_task_group() as tasks:
            for text in texts:
                tasks.start_soon(ask, text)
    assert [got[text] for text in texts] == alone


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"model": "other"}, 404, "model_not_found"),
        ({"messages": []}, 400, "invalid_messages"),
        ({"messages": ["text"]}, 400, "invalid_messages"),
        ({"tools": ["text"]}, 400, "invalid_tools"),
        ({"stream": True}, 400, "unsupported_stream"),
        ({"n": 2}, 400, "unsupported_n"),
        ({"messages": [{"role": "user", "content": "Sing."}]}, 400, "unknown_task"),
    ],
)
async def test_what_it_cannot_serve_it_refuses(
    stage: Any, flawless: RehearsalSettings, bodies: Any, change: dict[str, Any], status: int, code: str
) -> None:
    """A request it cannot answer gets an OpenAI-shaped error that says why, and the server goes on."""
    body = bodies.planner(stage.key.tasks["shop-gift-0"].text)
    async with client(stage.key, flawless) as chat:
        with pytest.raises(openai.APIStatusError) as refused:
            await chat.post("/chat/completions", body={**body, **change}, cast_to=object)
        assert (refused.value.status_code, refused.value.code) == (status, code)
        assert (await chat.chat.completions.create(**body)).choices[0].message.content


async def test_bodies_that_are_no_requests(toy_key: AnswerKey, flawless: RehearsalSettings) -> None:
    """Bytes that are no JSON, or no object, are refused likewise."""
    async with client(toy_key, flawless) as chat:
        for content in (b"{", b"[]", b"\xff"):
            with pytest.raises(openai.BadRequestError) as refused:
                await chat.post("/chat/completions", content=content, cast_to=object)
            assert refused.value.code == "invalid_json"


async def test_the_truth_goes_to_the_side_file_only(stage: Any, bodies: Any, tmp_path: Path) -> None:
    """Each judgement adds a line under the task's next ordinal; a second server appends; only the owner reads it."""
    path, settings = tmp_path / "truth.jsonl", RehearsalSettings(external=1)
    body = bodies.gate(stage.key.tasks["shop-gift-0"].text, "1. Go.", success=False)
    for _ in range(2):
        async with client(stage.key, settings, truth=path) as chat:
            for _ in range(2):
                answer = await chat.chat.completions.create(**body)
                assert "external" not in answer.to_json()
    truths = read_truths(path)
    assert [(one.task, one.ordinal, one.fault, one.label) for one in truths] == [
        ("shop-gift-0", ordinal, "external", "none") for ordinal in (0, 1, 0, 1)
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_port_in_use_is_named(toy_key: AnswerKey, flawless: RehearsalSettings) -> None:
    """Another server's port is refused in one line; a port it chose itself is free again afterwards."""
    async with rehearsal_server(toy_key, flawless) as base_url:
        port = int(base_url.removesuffix("/v1").rsplit(":", 1)[1])
        with pytest.raises(BadInput, match=f"port {port} on 127.0.0.1 is in use"):
            async with rehearsal_server(toy_key, flawless, port=port):
                pass
    async with rehearsal_server(toy_key, flawless, port=port) as again:
        assert again == base_url


async def test_an_error_inside_comes_out_as_it_is(toy_key: AnswerKey, flawless: RehearsalSettings) -> None:
    """What the body raises is not wrapped, and the port is free afterwards."""
    ports = []

    async def fail() -> None:
        async with rehearsal_server(toy_key, flawless) as base_url:
            ports.append(int(base_url.removesuffix("/v1").rsplit(":", 1)[1]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    (port,) = ports
    with socket.socket() as closed:
        assert closed.connect_ex(("127.0.0.1", port)) != 0


async def test_cancelling_ends_it(toy_key: AnswerKey, flawless: RehearsalSettings) -> None:
    """A cancelled caller leaves no socket open."""
    port = 0
    with anyio.CancelScope() as scope:
        async with rehearsal_server(toy_key, flawless) as base_url:
            port = int(base_url.removesuffix("/v1").rsplit(":", 1)[1])
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    with socket.socket() as closed:
        assert closed.connect_ex(("127.0.0.1", port)) != 0


async def test_a_truth_that_cannot_be_written_is_named(
    toy_key: AnswerKey, flawless: RehearsalSettings, tmp_path: Path
) -> None:
    """A side file in a folder that does not exist stops the server before it starts."""
    with pytest.raises(BadInput, match="cannot write the truth"):
        async with rehearsal_server(toy_key, flawless, truth=tmp_path / "no" / "truth.jsonl"):
            pass
