"""What is sent: the body, the header, the connection, and what cannot be sent."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from scripted_endpoint import (
    ASKING_SCHEMA,
    KEY,
    OK,
    REQUEST,
    SCHEMA,
    SECRET,
    TOOL,
    FakeClock,
    asking,
    completion,
    failed,
    http,
    openai_model,
    scripted,
)

from events.errors import BadInput
from infra.openai_client import Clients
from infra.openai_model import OpenAIModel
from runtime.errors import ModelRefused
from runtime.ports import ChatAnswer, Role, TokenUsage
from runtime.settings import EndpointSettings, ModelSettings, Thinking


async def test_a_plain_question_carries_model_messages_limits_and_key() -> None:
    """The body holds what the settings say and nothing more; the header holds the key and nothing of this machine."""
    async with asking(OK) as asked:
        answer = await asked.complete()
        [request] = asked.server.requests
    assert replace(answer, usage=TokenUsage(), flags=[]) == ChatAnswer(
        content="fine", tool_calls=[], finish_reason="stop", usage=TokenUsage(), model="m-1"
    )
    assert request.path == "/v1/chat/completions"
    assert request.body == {"model": "m", "messages": REQUEST.messages, "temperature": 0.0, "max_tokens": 1024}
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    kept = {"host", "accept", "accept-encoding", "content-type", "content-length", "user-agent", "authorization"}
    assert set(request.headers) == kept


@pytest.mark.parametrize("variable", ["", "NOT_SET"])
async def test_no_key_no_header(variable: str) -> None:
    """An empty name, or a variable that is not set: no Authorization header at all."""
    async with asking(OK, api_key_env=variable) as asked:
        await asked.complete()
    assert "authorization" not in asked.server.requests[0].headers


async def test_nothing_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's own variables and the machine's proxies change neither header nor address."""
    async with scripted(OK) as other:
        monkeypatch.setenv("OPENAI_API_KEY", "leaked-1")
        monkeypatch.setenv("OPENAI_ADMIN_KEY", "leaked-2")
        monkeypatch.setenv("OPENAI_ORG_ID", "leaked-3")
        monkeypatch.setenv("OPENAI_PROJECT_ID", "leaked-4")
        monkeypatch.setenv("OPENAI_BASE_URL", other.url)
        monkeypatch.setenv(
            "OPENAI_CUSTOM_HEADERS", "X-Mine: leaked-5\nAuthorization: leaked-6\nUser-Agent: leaked-7\nHost: leaked-8"
        )
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{other.port}")
        monkeypatch.setenv("no_proxy", "")
        for variable in ("", "A_KEY"):
            async with asking(OK, api_key_env=variable) as asked:
                await asked.complete()
            [request] = asked.server.requests
            assert "leaked" not in json.dumps(request.headers)
            assert request.headers["host"] == f"127.0.0.1:{asked.server.port}"
        assert other.accepted == 0


async def test_cookies_are_not_kept() -> None:
    """What one answer sets is not sent with the next question."""
    async with asking(http(200, json.loads(OK.split(b"\r\n\r\n")[1]), set_cookie="who=you; Path=/")) as asked:
        await asked.complete()
        await asked.complete()
    assert all("cookie" not in one.headers for one in asked.server.requests)


async def test_roles_of_one_endpoint_share_a_connection() -> None:
    """Three roles asked one after the other use one TCP connection; another key has its own."""
    async with scripted(OK) as server:
        roles: list[Role] = ["planner", "executor", "gate"]
        endpoint = EndpointSettings(base_url=server.url, api_key_env="")
        endpoints = dict.fromkeys(roles, endpoint) | {"gate": replace(endpoint, timeout_s=9.0)}
        models = {role: ModelSettings(model=role) for role in roles}
        async with openai_model(models, endpoints, {}, FakeClock()) as model:
            for role in roles:
                await model.complete(replace(REQUEST, role=role), KEY)
        assert [one.body["model"] for one in server.requests] == roles
        assert {one.connection for one in server.requests} == {0}
        async with openai_model(models, endpoints | {"gate": replace(endpoint, api_key_env="B")}, {}, FakeClock()) as m:
            for role in roles:
                await m.complete(replace(REQUEST, role=role), KEY)
        assert [one.connection for one in server.requests[3:]] == [1, 1, 2]


async def test_runs_of_a_process_share_connections_and_what_is_learnt() -> None:
    """Two models over the same clients: one TCP connection, and the second asks as the first one has found out."""
    models: dict[Role, ModelSettings] = {"executor": ModelSettings(model="m")}
    async with (
        scripted(failed(400, "response_format json_schema is unavailable"), OK) as server,
        AsyncExitStack() as held,
    ):
        clients = Clients({}, FakeClock(), held, rest_s=0.0)
        for _ in range(2):
            endpoints: dict[Role, EndpointSettings] = {"executor": EndpointSettings(base_url=server.url)}
            await OpenAIModel(models, endpoints, clients, FakeClock()).complete(ASKING_SCHEMA, KEY)
    assert {one.connection for one in server.requests} == {0}
    formats = [one.body["response_format"]["type"] for one in server.requests]
    assert formats == ["json_schema", "json_object", "json_object"]


async def test_a_call_that_found_out_nothing_forgets_nothing() -> None:
    """A question without a schema, in flight while another one steps down, does not undo that."""
    begun, released = anyio.Event(), anyio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await released.wait()
        writer.write(completion())
        await writer.drain()

    refused = failed(400, "response_format json_schema is unavailable")
    async with asking(slow, refused, OK, OK) as asked:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked.complete)
            await begun.wait()
            await asked.complete(ASKING_SCHEMA)
            released.set()
        await asked.complete(ASKING_SCHEMA)
    formats = [body["response_format"]["type"] for body in asked.bodies if "response_format" in body]
    assert formats == ["json_schema", "json_object", "json_object"]


@pytest.mark.parametrize(
    ("thinking", "sent"),
    [
        ("none", {}),
        ("dashscope", {"enable_thinking": False}),
        ("vllm", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("deepseek", {"thinking": {"type": "disabled"}}),
        ("openai", {"reasoning_effort": "none"}),
    ],
)
async def test_thinking_is_switched_off_in_the_endpoints_own_way(thinking: Thinking, sent: dict[str, Any]) -> None:
    """Each profile adds its own field and no other one's."""
    async with asking(OK, thinking=thinking) as asked:
        await asked.complete()
    plain = {"model": "m", "messages": REQUEST.messages, "temperature": 0.0, "max_tokens": 1024}
    assert asked.bodies == [plain | sent]


async def test_tools_and_schema_are_sent_as_given() -> None:
    """Tools unchanged; the schema as a strict json_schema under its title."""
    async with asking(OK) as asked:
        await asked.complete(replace(ASKING_SCHEMA, tools=[TOOL]))
    [body] = asked.bodies
    assert body["tools"] == [TOOL]
    wanted = {"name": "plan", "strict": True, "schema": SCHEMA}
    assert body["response_format"] == {"type": "json_schema", "json_schema": wanted}


async def test_half_a_surrogate_pair_in_a_question_is_replaced() -> None:
    """What a tool answered may hold one."""
    async with asking(OK) as asked:
        await asked.complete(replace(REQUEST, messages=[{"role": "user", "content": "a\ud800b"}]))
    assert asked.bodies[0]["messages"] == [{"role": "user", "content": "a\ufffdb"}]


@pytest.mark.parametrize("value", [float("nan"), object()])
async def test_a_question_that_json_has_no_form_for_is_refused(value: object) -> None:
    """Before anything is sent."""
    async with asking(OK) as asked:
        with pytest.raises(ModelRefused) as caught:
            await asked.complete(replace(ASKING_SCHEMA, schema={"default": value}))
    assert caught.value.kind == "unsendable"
    assert not asked.server.requests


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "localhost:8000/v1",
        "ftp://host/v1",
        "http://",
        "http://host:99999/v1",
        "http://host:x/v1",
        "http://[::1/v1",
        "http://ho\x00st/v1",
        "http://host/\x7f",
        "http://xn--zz\u2603/v1",
        "http://" + "h" * 70_000,
    ],
)
async def test_an_address_that_cannot_be_asked_is_refused_at_once(base_url: str) -> None:
    """No retries over a typing error."""
    endpoints: dict[Role, EndpointSettings] = {"gate": EndpointSettings(base_url=base_url)}
    with pytest.raises(BadInput, match="base_url"):
        async with openai_model({"gate": ModelSettings(model="m")}, endpoints, {}, FakeClock()):
            pass


async def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    """The error names the place for keys, and does not hold the password."""
    endpoints: dict[Role, EndpointSettings] = {"gate": EndpointSettings(base_url=f"http://me:{SECRET}@host/v1")}
    with pytest.raises(BadInput, match="api_key_env") as caught:
        async with openai_model({"gate": ModelSettings(model="m")}, endpoints, {}, FakeClock()):
            pass
    assert SECRET not in str(caught.value)


async def test_a_key_that_is_none_is_refused_and_not_repeated() -> None:
    """A key of two lines fails by the name of its variable; white space around a key is cut off."""
    endpoints: dict[Role, EndpointSettings] = {"gate": EndpointSettings(base_url="http://h/v1", api_key_env="K")}
    with pytest.raises(BadInput, match="K holds") as caught:
        async with openai_model({"gate": ModelSettings(model="m")}, endpoints, {"K": f"{SECRET}\nx"}, FakeClock()):
            pass
    assert SECRET not in str(caught.value)
    async with scripted(OK) as server:
        endpoints = {"executor": EndpointSettings(base_url=server.url, api_key_env="K")}
        models: dict[Role, ModelSettings] = {"executor": ModelSettings(model="m")}
        async with openai_model(models, endpoints, {"K": f" {SECRET}\n"}, FakeClock()) as model:
            await model.complete(REQUEST, KEY)
    assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
