"""The model client against a loopback server that plays scripted bytes: whatever comes, an answer or our error."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace
from openai import APIConnectionError

from events.errors import BadInput
from events.ids import RunId, StreamId
from infra import openai_client as module
from infra.clock import SystemClock
from infra.model_errors import LONGEST_WARM_UP_PAUSE_S, MALFORMED_RETRIES
from infra.openai_client import Clients
from infra.openai_model import OpenAIModel
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped
from runtime.ports import CallKey, ChatAnswer, ChatRequest, Clock, Role, TokenUsage, ToolCall
from runtime.settings import EndpointSettings, ModelSettings, Thinking

#: what to do with a connection instead of a response
Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Reply = bytes | Play

KEY = CallKey(run=RunId("r"), stream=StreamId("episode-1"), stage="execution", ordinal=3)
SECRET = "sk-" + "4f9a" * 8
SCHEMA = {"title": "plan", "type": "object", "properties": {"plan": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@dataclass
class Request:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: Any
    #: from 0, in the order in which they were accepted
    connection: int


@dataclass
class Scripted:
    """An HTTP server that answers the nth request with the nth reply, and then with the last one again."""

    replies: list[Reply]
    requests: list[Request] = field(default_factory=list)
    port: int = 0
    accepted: int = 0
    open: int = 0
    asked: anyio.Event = field(default_factory=anyio.Event)
    left: anyio.Event = field(default_factory=anyio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.accepted, self.open = self.accepted, self.accepted + 1, self.open + 1
        try:
            while (request := await self._read(reader, number)) is not None:
                self.requests.append(request)
                self.asked.set()
                reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
                if not isinstance(reply, bytes):
                    await reply(reader, writer)
                    break
                writer.write(reply)
                await writer.drain()
                if b"connection: close" in reply:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            self.left.set()
            writer.close()

    @staticmethod
    async def _read(reader: asyncio.StreamReader, connection: int) -> Request | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Request(first.split(" ")[1], headers, json.loads(body or b"null"), connection)


@asynccontextmanager
async def scripted(*replies: Reply) -> AsyncIterator[Scripted]:
    """A server that plays `replies`."""
    server = Scripted(list(replies))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


class FakeClock:
    """Sleeps at once, and remembers for how long."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def utc(self) -> str:
        return "2026-01-01T00:00:00.000000Z"

    def monotonic(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()
        self.slept.append(seconds)


def http(status: int, body: bytes | str | dict[str, Any], **headers: str) -> bytes:
    """A response with the body's right length."""
    if isinstance(body, dict):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode()
    lines = {"content-type": "application/json", "content-length": str(len(body))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body


def completion(message: Any = None, **more: Any) -> bytes:
    """A 200 with one choice."""
    said = {"role": "assistant", "content": "fine"} if message is None else message
    plain = {"model": "m-1", "choices": [{"message": said, "finish_reason": "stop"}]} | more
    return http(200, plain)


def failed(status: int, message: str, **more: Any) -> bytes:
    """An error as OpenAI words it."""
    return http(status, {"error": {"message": message} | more})


OK = completion()
REQUEST = ChatRequest(role="executor", messages=[{"role": "user", "content": "hello"}])
ASKING_SCHEMA = replace(REQUEST, schema=SCHEMA)


@dataclass
class Asked:
    """A server, a model that asks it, and the clock between them."""

    server: Scripted
    model: OpenAIModel
    clock: FakeClock

    async def complete(self, request: ChatRequest = REQUEST) -> ChatAnswer:
        return await self.model.complete(request, KEY)

    @property
    def bodies(self) -> list[Any]:
        return [one.body for one in self.server.requests]


@asynccontextmanager
async def openai_model(
    models: Mapping[Role, ModelSettings],
    endpoints: Mapping[Role, EndpointSettings],
    keys: Mapping[str, str],
    clock: Clock,
    rng: random.Random | None = None,
) -> AsyncIterator[OpenAIModel]:
    """A model with connections of its own."""
    async with AsyncExitStack() as stack:
        yield OpenAIModel(models, endpoints, Clients(keys, clock, stack), clock, rng)


@asynccontextmanager
async def asking(*replies: Reply, thinking: Thinking = "none", **changes: Any) -> AsyncIterator[Asked]:
    """An executor's model in front of a server that plays `replies`."""
    async with scripted(*replies) as server:
        clock = FakeClock()
        given: dict[str, Any] = {"base_url": server.url, "api_key_env": "A_KEY", "retries": 4} | changes
        endpoint = EndpointSettings(**given)
        settings = ModelSettings(model="m", thinking=thinking)
        rng = random.Random(7)  # noqa: S311 - jitter is no secret
        models: dict[Role, ModelSettings] = {"executor": settings}
        async with openai_model(models, {"executor": endpoint}, {"A_KEY": SECRET}, clock, rng) as model:
            yield Asked(server, model, clock)


# -- the request -----------------------------------------------------------------------------------------------------


async def test_a_plain_question_carries_model_messages_limits_and_key() -> None:
    """The body holds what the settings say and nothing more; the header holds the key and nothing of this machine."""
    async with asking(OK) as asked:
        answer = await asked.complete()
        [request] = asked.server.requests
    assert answer == ChatAnswer(content="fine", tool_calls=[], finish_reason="stop", usage=TokenUsage(), model="m-1")
    assert request.path == "/v1/chat/completions"
    assert request.body == {"model": "m", "messages": REQUEST.messages, "temperature": 0.0, "max_tokens": 1024}
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    kept = {"host", "accept", "accept-encoding", "content-type", "content-length", "user-agent", "authorization"}
    assert set(request.headers) == kept | {"x-stainless-raw-response"}


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
        clients = Clients({}, FakeClock(), held)
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
    ["", "localhost:8000/v1", "ftp://host/v1", "http://", "http://host:99999/v1", "http://host:x/v1", "http://[::1/v1"],
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


# -- tries and pauses ------------------------------------------------------------------------------------------------


async def test_a_rate_limit_is_waited_out() -> None:
    """429, then an answer: two requests, one pause of at most the base."""
    async with asking(failed(429, "slow down"), OK) as asked:
        assert (await asked.complete()).content == "fine"
    [pause] = asked.clock.slept
    assert 0 <= pause <= 1.0
    assert len(asked.bodies) == 2


async def test_pauses_double_with_jitter_up_to_the_number_of_tries() -> None:
    """Five requests at 4 retries, the nth pause within base * 2^(n-1); the error says what came last."""
    async with asking(failed(502, "bad gateway"), retry_base_s=2.0) as asked:
        with pytest.raises(ModelUnavailable, match=r"502 bad gateway.*5 tries") as caught:
            await asked.complete()
    assert caught.value.kind == "unavailable"
    assert len(asked.bodies) == 5
    assert len(asked.clock.slept) == 4
    assert all(0 <= pause <= 2.0 * 2**n for n, pause in enumerate(asked.clock.slept))
    assert len(set(asked.clock.slept)) == 4


@pytest.mark.parametrize(
    ("name", "value", "asked_s"),
    [
        ("retry_after", "17", 17.0),
        ("retry_after", "Thu, 01 Jan 2026 00:01:00 GMT", 60.0),
        ("retry_after_ms", "2500", 2.5),
        ("retry_after", "Thu, 01 Jan 2020 00:00:00 GMT", 0.0),
        ("retry_after", "-3", 0.0),
        ("retry_after", "soon", 0.0),
        ("retry_after", "nan", 0.0),
        ("retry_after", "Thu, 01 Jan 99999999999 00:00:00 GMT", 0.0),
    ],
)
async def test_a_server_is_not_asked_sooner_than_it_says(name: str, value: str, asked_s: float) -> None:
    """Seconds, milliseconds or a date, with jitter on top; what is none of them counts as not said."""
    async with asking(http(429, "{}", **{name: value}), OK) as asked:
        await asked.complete()
    [pause] = asked.clock.slept
    assert asked_s <= pause <= asked_s + 1.0


@pytest.mark.parametrize("value", ["86400", "Fri, 02 Jan 2026 00:00:00 GMT", "inf"])
async def test_a_server_that_asks_for_too_long_is_unavailable(value: str) -> None:
    """No worker waits a day: the try was the last one."""
    async with asking(http(429, "{}", retry_after=value)) as asked:
        with pytest.raises(ModelUnavailable, match="asks us to wait"):
            await asked.complete()
    assert (len(asked.bodies), asked.clock.slept) == (1, [])


async def test_a_server_may_say_that_no_retry_helps() -> None:
    """x-should-retry: false ends the tries."""
    async with asking(http(503, "{}", x_should_retry="false")) as asked:
        with pytest.raises(ModelUnavailable):
            await asked.complete()
    assert len(asked.bodies) == 1


async def test_a_server_that_loads_its_model_is_asked_again_soon() -> None:
    """Warm-up pauses stay short whatever the base is."""
    loading = failed(503, "Loading model", type="unavailable_error", code=503)
    async with asking(loading, loading, loading, OK, retry_base_s=50.0) as asked:
        await asked.complete()
    assert len(asked.clock.slept) == 3
    assert all(pause <= LONGEST_WARM_UP_PAUSE_S for pause in asked.clock.slept)


async def test_a_500_that_repeats_itself_is_refused() -> None:
    """The same body twice: this request poisons the server, a third try is not made."""
    async with asking(failed(500, "Failed to parse tool call arguments")) as asked:
        with pytest.raises(ModelRefused, match="twice the same") as caught:
            await asked.complete()
    assert caught.value.kind == "server_error"
    assert len(asked.bodies) == 2


async def test_different_500s_are_tried_again() -> None:
    """A server in trouble, not a poisonous request."""
    async with asking(failed(500, "a"), failed(500, "b"), failed(500, "a"), OK) as asked:
        assert (await asked.complete()).content == "fine"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (failed(401, "Incorrect API key provided"), "key"),
        (failed(403, "Forbidden"), "key"),
        (failed(402, "Insufficient Balance"), "quota"),
        (failed(404, "The model `m` does not exist", code="model_not_found"), "model_not_found"),
        (failed(404, "The model `m/Qwen2.5` does not exist.", type="NotFoundError", code=404), "model_not_found"),
        (failed(400, "Model Not Exist", type="invalid_request_error"), "model_not_found"),
        (http(404, "<html><h1>Not Found</h1></html>", content_type="text/html"), "not_found"),
        (failed(429, "You exceeded your current quota", code="insufficient_quota"), "quota"),
    ],
)
async def test_what_no_request_can_cure_stops_the_run(reply: bytes, kind: str) -> None:
    """One request, no pause, and an error that names the endpoint."""
    async with asking(reply) as asked:
        with pytest.raises(RunStopped) as caught:
            await asked.complete()
    assert caught.value.kind == kind
    assert asked.server.url in caught.value.reason
    assert (len(asked.bodies), asked.clock.slept) == (1, [])


async def test_a_401_without_a_key_says_so() -> None:
    """The variable that is not set is named."""
    async with asking(failed(401, "no"), api_key_env="NOT_SET") as asked:
        with pytest.raises(RunStopped, match="no key was sent: NOT_SET is empty"):
            await asked.complete()


async def test_a_key_that_a_server_repeats_stays_secret() -> None:
    """An error's text never holds the key."""
    async with asking(failed(401, f"Incorrect API key provided: {SECRET}.")) as asked:
        with pytest.raises(RunStopped, match=r"provided: \*\*\*") as caught:
            await asked.complete()
    assert SECRET not in str(caught.value)


async def test_a_redirect_is_not_followed() -> None:
    """307 stops the run; the address it names sees no request, no key and no prompt."""
    async with (
        scripted(OK) as other,
        asking(http(307, "", location=f"{other.url}/chat/completions")) as asked,
    ):
        with pytest.raises(RunStopped, match=other.url) as caught:
            await asked.complete()
    assert caught.value.kind == "redirect"
    assert (other.accepted, len(asked.bodies)) == (0, 1)


# -- what an endpoint does not take ----------------------------------------------------------------------------------


async def test_formats_step_down_and_are_remembered() -> None:
    """json_schema, then json_object, then text, without a pause; the next question starts where this one ended."""
    refused = "This response_format type is unavailable now"
    async with asking(failed(400, refused), failed(400, refused), OK, retries=0) as asked:
        await asked.complete(ASKING_SCHEMA)
        await asked.complete(ASKING_SCHEMA)
    formats = [body.get("response_format", {}).get("type") for body in asked.bodies]
    assert formats == ["json_schema", "json_object", None, None]
    assert asked.clock.slept == []


async def test_a_format_refused_with_500_steps_down() -> None:
    """Some servers fail over a grammar; the words tell."""
    async with asking(failed(500, "Failed to parse grammar"), OK, retries=0) as asked:
        await asked.complete(ASKING_SCHEMA)
    assert [body.get("response_format", {}).get("type") for body in asked.bodies] == ["json_schema", "json_object"]


async def test_what_did_not_help_is_not_remembered() -> None:
    """A request that is refused in every format leaves the next one its schema."""
    wrong = failed(400, "Invalid schema for function 'look'")
    async with asking(wrong, wrong, wrong, OK) as asked:
        with pytest.raises(ModelRefused):
            await asked.complete(ASKING_SCHEMA)
        await asked.complete(ASKING_SCHEMA)
    formats = [body.get("response_format", {}).get("type") for body in asked.bodies]
    assert formats == ["json_schema", "json_object", None, "json_schema"]


async def test_a_request_without_a_schema_has_no_format_to_step_down() -> None:
    """The refusal is final at once."""
    async with asking(failed(400, "Invalid schema for function 'look'")) as asked:
        with pytest.raises(ModelRefused):
            await asked.complete()
    assert len(asked.bodies) == 1


async def test_the_newer_name_of_the_output_limit_is_learnt() -> None:
    """max_tokens, then max_completion_tokens with the same number."""
    told = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    async with asking(failed(400, told, param="max_tokens", code="unsupported_parameter"), OK, retries=0) as asked:
        await asked.complete()
        await asked.complete()
    limits = [(body.get("max_tokens"), body.get("max_completion_tokens")) for body in asked.bodies]
    assert limits == [(1024, None), (None, 1024), (None, 1024)]


async def test_a_refused_temperature_is_left_out() -> None:
    """Models with one temperature only are asked without it."""
    told = "Unsupported value: 'temperature' does not support 0.0 with this model. Only the default (1) is supported."
    async with asking(failed(400, told, param="temperature", code="unsupported_value"), OK, retries=0) as asked:
        await asked.complete()
        await asked.complete()
    assert ["temperature" in body for body in asked.bodies] == [True, False, False]


async def test_a_context_overflow_is_refused_at_once() -> None:
    """Asking again cannot help; the kind tells the episode why."""
    told = "This model's maximum context length is 4096 tokens."
    async with asking(failed(400, told)) as asked:
        with pytest.raises(ModelRefused) as caught:
            await asked.complete()
    assert (caught.value.kind, len(asked.bodies)) == ("context", 1)


# -- answers that are none -------------------------------------------------------------------------------------------

SSE = 'data: {"choices": [{"delta": {"content": "fi"}}]}\n\ndata: [DONE]\n\n'


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
        with anyio.fail_after(20):
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
        with anyio.fail_after(20):
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
        with anyio.fail_after(20):
            await server.left.wait()
        assert server.open == 0


# -- answers that are odd --------------------------------------------------------------------------------------------


def called(*calls: Any) -> bytes:
    """A completion that asks for tools."""
    return completion({"content": None, "tool_calls": list(calls)})


async def test_content_in_parts_is_joined() -> None:
    """Text parts in order; parts of another kind are left out."""
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "fi"}, {"type": "text", "text": "ne"}, 3]
    async with asking(completion({"content": parts})) as asked:
        assert (await asked.complete()).content == "fine"


async def test_half_a_surrogate_pair_is_replaced() -> None:
    """What UTF-8 has no bytes for never gets into a record."""
    async with asking(completion({"content": "a\ud83d b"})) as asked:
        assert (await asked.complete()).content == "a? b"


async def test_tool_calls_keep_good_ids_and_get_others() -> None:
    """A missing, doubled or wrong id is replaced by one that no other call of the answer has."""
    call = {"function": {"name": "look", "arguments": "{}"}}
    given = [{"id": "call-3-2"} | call, call, {"id": "b"} | call, {"id": "b"} | call, {"id": 7} | call]
    async with asking(called(*given)) as asked:
        answer = await asked.complete()
    assert [one.id for one in answer.tool_calls] == ["call-3-2", "call-3-2+", "b", "call-3-4", "call-3-5"]


async def test_arguments_are_text_whatever_came() -> None:
    """An object becomes JSON text, nothing becomes {}, text stays as it is even where it is no JSON."""
    arguments = [{"room": "Küche"}, None, '{"room": ', "{}"]
    calls = [{"id": str(n), "function": {"name": "look", "arguments": one}} for n, one in enumerate(arguments)]
    async with asking(called(*calls)) as asked:
        answer = await asked.complete()
    assert [one.arguments for one in answer.tool_calls] == ['{"room": "Küche"}', "{}", '{"room": ', "{}"]


@pytest.mark.parametrize("given", [{"id": "a"}, {"id": "a", "function": {"arguments": "{}"}}, None, "look"])
async def test_a_tool_call_without_a_name_is_none(given: Any) -> None:
    """It is left out; the ones beside it stay."""
    good = {"id": "b", "function": {"name": "look", "arguments": "{}"}}
    async with asking(called(given, good)) as asked:
        answer = await asked.complete()
    assert answer.tool_calls == [ToolCall(id="b", name="look", arguments="{}")]


@pytest.mark.parametrize("given", [None, {}, "look()", 3])
async def test_tool_calls_of_another_type_are_none(given: Any) -> None:
    """The answer has its content and no calls."""
    async with asking(completion({"content": "fine", "tool_calls": given})) as asked:
        assert (await asked.complete()).tool_calls == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, TokenUsage()),
        ("many", TokenUsage()),
        ({"prompt_tokens": 5, "completion_tokens": 2}, TokenUsage(prompt_tokens=5, completion_tokens=2)),
        (
            {"prompt_tokens": 5, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 4}},
            TokenUsage(prompt_tokens=5, completion_tokens=0, cached_tokens=4),
        ),
        ({"prompt_tokens": -1, "completion_tokens": 10**30, "prompt_tokens_details": []}, TokenUsage()),
        ({"prompt_tokens": 1.5, "completion_tokens": True, "prompt_tokens_details": None}, TokenUsage()),
    ],
)
async def test_usage_is_what_can_be_a_count(given: Any, expected: TokenUsage) -> None:
    """Everything else is unknown, not 0."""
    async with asking(completion(usage=given)) as asked:
        assert (await asked.complete()).usage == expected


@pytest.mark.parametrize("given", [None, "", 3, {"reason": "stop"}])
async def test_a_missing_finish_reason_follows_from_the_answer(given: Any) -> None:
    """`tool_calls` where there are some, `stop` elsewhere."""
    call = {"id": "a", "function": {"name": "look", "arguments": "{}"}}
    for message, expected in (({"content": "fine"}, "stop"), ({"tool_calls": [call]}, "tool_calls")):
        async with asking(completion(choices=[{"message": message, "finish_reason": given}])) as asked:
            assert (await asked.complete()).finish_reason == expected


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_json_in_the_reasoning_is_the_answer_where_there_is_no_other(name: str) -> None:
    """Only with a schema asked for, no content, and an object there."""
    async with asking(completion({"content": None, name: '{"plan": "x"}'})) as asked:
        assert (await asked.complete(ASKING_SCHEMA)).content == '{"plan": "x"}'
        plain = await asked.complete()
    assert (plain.content, plain.reasoning) == ("", '{"plan": "x"}')
    for message in ({"content": "fine", name: '{"plan": "x"}'}, {"content": "fine", name: "hm"}):
        async with asking(completion(message)) as asked:
            assert (await asked.complete(ASKING_SCHEMA)).content == "fine"
    async with asking(completion({"content": "", name: "let me think"})) as asked:
        assert (await asked.complete(ASKING_SCHEMA)).content == ""


@pytest.mark.parametrize(
    ("said", "content", "reasoning"),
    [
        ("<think>\nhm <b>\n</think>\n\nyes", "yes", "hm <b>"),
        ("<think></think>yes", "yes", ""),
        ("\n<think>cut o", "", "cut o"),
        ("the tag <think>x</think>", "the tag <think>x</think>", ""),
    ],
)
async def test_thinking_in_front_of_the_answer_is_no_part_of_it(said: str, content: str, reasoning: str) -> None:
    """A server without a parser for thinking leaves it in the content; a tag further on is the model's own."""
    async with asking(completion({"content": said})) as asked:
        answer = await asked.complete()
    assert (answer.content, answer.reasoning) == (content, reasoning)


async def test_a_refusal_is_an_answer() -> None:
    """What the model says instead of an answer, marked as filtered."""
    async with asking(completion({"content": None, "refusal": "I cannot help."})) as asked:
        answer = await asked.complete()
    assert (answer.content, answer.finish_reason) == ("I cannot help.", "content_filter")
