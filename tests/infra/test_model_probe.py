"""What a probe finds out about endpoints that do as asked, ignore what they are asked, refuse it, or are not there."""

from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from answering_endpoint import answering
from scripted_endpoint import SECRET, FakeClock, Request, completion, failed, http

from infra.model_findings import MARK, Probed
from infra.model_probe import probe
from infra.openai_client import Clients
from infra.rehearsal.key import AnswerKey
from infra.rehearsal.planting import RehearsalSettings
from infra.rehearsal.server import rehearsal_server
from runtime.settings import EndpointSettings, ModelSettings


async def probed(url: str, *, briefly: bool = False, **settings: Any) -> Probed:
    async with AsyncExitStack() as stack:
        clients = Clients({"A_KEY": SECRET}, FakeClock(), stack)
        model = ModelSettings(**{"model": "m", **settings})
        with anyio.fail_after(120):
            return await probe(
                clients, EndpointSettings(base_url=url, api_key_env="A_KEY"), model, FakeClock(), limit_s=100,
                briefly=briefly,
            )  # fmt: skip


def verdicts(found: Probed) -> dict[str, str]:
    return {one.ability: one.verdict for one in found.findings}


def listing(**more: Any) -> bytes:
    return http(200, {"data": [{"id": "m", "owned_by": "us"} | more, {"id": "other"}]})


def usage(prompt: int, answer: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": answer}


async def test_the_rehearsal_model_takes_everything_but_streams() -> None:
    """What a newcomer sees first: one word for each ability, with what came back."""
    async with rehearsal_server(AnswerKey({}), RehearsalSettings()) as url:
        found = await probed(url, model="rehearsal")
    assert found.answers
    assert found.served == "rehearsal"
    assert found.settings == {}
    told = verdicts(found)
    assert told.pop("stream") == "no"
    assert set(told.values()) == {"yes"}
    assert list(told)[:5] == ["listed", "answer", "usage", "json_schema", "json_object"]
    assert all(one.sent and one.got and one.status in (200, 400) for one in found.findings)


def obstinate(request: Request) -> bytes:
    """Takes everything and keeps to nothing; thinks unless vLLM's switch says not to."""
    if request.path.endswith("/models"):
        return listing(max_model_len=4096)
    thinks = request.body.get("chat_template_kwargs") != {"enable_thinking": False}
    prose = "Hello, I am a model of many words. " * 20
    said = {"content": prose, "reasoning_content": "Let me think."} if thinks else {"content": prose}
    return completion(said, model="m-1", system_fingerprint="fp", usage=usage(40, 30))


async def test_accepted_is_not_enforced() -> None:
    """A server that ignores schema, forced call, tools, cap, stream and switch is told apart from one that obeys."""
    async with answering(obstinate) as server:
        found = await probed(server.url)
    told = verdicts(found)
    ignored = ("json_schema", "json_object", "forced call", "cap kept", "thinking off", "stream")
    assert {told[name] for name in ignored} == {"accepted, not enforced"}
    assert told["tools"] == "dropped"
    assert told["thinking = vllm"] == "yes"
    assert told["thinking = dashscope"] == "accepted, not enforced"
    assert found.settings == {"thinking": "vllm", "tools": "text", "context_tokens": 4096}
    assert (found.served, found.fingerprint, found.context_tokens) == ("m-1", "fp", 4096)


async def test_a_switch_that_works_is_not_looked_for() -> None:
    """With the right profile there is nothing to suggest, and no other switch is sent."""
    async with answering(obstinate) as server:
        found = await probed(server.url, thinking="vllm")
        sent = [name for one in server.requests for name in one.body or {}]
    assert verdicts(found)["thinking off"] == "yes"
    assert "thinking" not in found.settings
    assert {"thinking", "enable_thinking", "reasoning_effort"}.isdisjoint(sent)


def refusing(request: Request) -> bytes:
    """Refuses by name whatever can be refused."""
    if request.path.endswith("/models"):
        return http(404, {"detail": "Not Found"})
    body = request.body
    roles = [one["role"] for one in body["messages"]]
    for is_there, said in (
        ("max_tokens" in body, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
        ("temperature" in body, "Unsupported value: 'temperature' does not support 0.0 with this model."),
        ("system" in roles, "System role not supported"),
        ("enable_thinking" in body, "Unrecognized request argument supplied: enable_thinking"),
        ("response_format" in body, "This response_format type is unavailable now"),
        ("tools" in body, "m does not support tools"),
        (body.get("stream"), "Streaming is not supported"),
    ):
        if is_there:
            return failed(400, f"{said} (key {SECRET})")
    return completion({"content": "ready"}, usage=usage(40, 1))


async def test_what_is_refused_is_found_on_the_way() -> None:
    """A plain question is asked without it, and the rest is asked in that form; no secret is shown."""
    async with answering(refusing) as server:
        found = await probed(server.url, thinking="dashscope")
    told = verdicts(found)
    refused = (
        "listed", "max_tokens", "temperature", "system role", "thinking off", "json_schema", "json_object",
        "forced call", "tools", "several calls", "one at a time", "tool history", "stream",
    )  # fmt: skip
    assert {name: told[name] for name in refused} == dict.fromkeys(refused, "no")
    assert told["answer"] == "yes"
    assert found.settings == {"thinking": "none", "tools": "text"}
    assert SECRET[:8] not in str(found)


async def test_few_questions_for_a_short_look() -> None:
    """A list, a plain one, a schema and a tool: what could change a configuration."""
    async with answering(obstinate) as server:
        found = await probed(server.url, thinking="vllm", briefly=True)
        assert len(server.requests) == 4
    assert found.settings == {"tools": "text", "context_tokens": 4096}


async def test_calls_as_text_are_known_from_dropped_tools() -> None:
    """The tools cost tokens of the prompt, so the model has seen them; its call came as text."""

    def answer(request: Request) -> bytes:
        if request.path.endswith("/models"):
            return listing()
        if "tools" not in request.body:
            return completion(usage=usage(40, 1))
        written = '<tool_call>\n{"name": "city_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
        return completion({"content": written}, usage=usage(140, 30))

    async with answering(answer) as server:
        found = await probed(server.url, briefly=True)
    assert verdicts(found)["tools"] == "as text"
    assert "tools" not in found.settings


async def test_an_object_that_is_cut_off_says_nothing() -> None:
    """It may have been the one that was asked for; cut prose was not."""

    def answer(request: Request) -> bytes:
        if request.path.endswith("/models"):
            return listing()
        text = '{ "colour": "red", "cou' if "response_format" in request.body else "Hello, I"
        choice = {"message": {"content": text}, "finish_reason": "length"}
        return completion(choices=[choice], usage=usage(40, 30))

    async with answering(answer) as server:
        told = verdicts(await probed(server.url))
    assert (told["json_schema"], told["json_object"], told["forced call"]) == (
        "unknown", "unknown", "accepted, not enforced",
    )  # fmt: skip


async def test_a_server_that_is_busy_is_not_one_that_refuses() -> None:
    """What was not answered for another reason is unknown, and leads to no setting."""

    def answer(request: Request) -> bytes:
        if request.path.endswith("/models") or {"tools", "response_format"} & set(request.body):
            return failed(429, "slow down")
        return completion({"content": "ready"}, usage=usage(40, 1))

    async with answering(answer) as server:
        found = await probed(server.url)
    told = verdicts(found)
    names = ("listed", "json_schema", "json_object", "forced call", "tools", "several calls", "tool history")
    assert {told[name] for name in names} == {"unknown"}
    assert (told["answer"], found.settings) == ("yes", {})


async def test_an_answer_that_repeats_the_key_does_not_show_it() -> None:
    """Nor does an error; what was sent stays between us and the endpoint."""
    async with answering(lambda _: completion({"content": f"You sent {SECRET}."}, model=SECRET)) as server:
        assert SECRET[:8] not in str(await probed(server.url))


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (failed(401, "Incorrect API key provided"), "key"),
        (failed(404, "The model `m` does not exist", code="model_not_found"), "model_not_found"),
        (http(200, "<html>Log in</html>"), "malformed"),
        (failed(503, "Loading model"), "warming_up"),
    ],
    ids=["key", "model", "html", "loading"],
)
async def test_who_does_not_answer_says_why(reply: bytes, kind: str) -> None:
    """One plain question and the list: nothing else is asked."""
    async with answering(lambda _: reply) as server:
        found = await probed(server.url)
        assert len(server.requests) == 2
    assert (found.answers, found.kind, found.settings) == (False, kind, {})
    assert found.reason


async def test_nobody_there() -> None:
    """A refused connection is a finding, not an error."""
    found = await probed("http://127.0.0.1:1/v1")
    assert (found.answers, found.kind) == (False, "unreachable")


async def test_a_bounded_number_of_questions_at_once() -> None:
    """Six, however many there are."""
    now, most = 0, 0

    async def answer(request: Request) -> bytes:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        now -= 1
        return obstinate(request)

    async with answering(answer) as server:
        await probed(server.url)
    assert 1 < most <= 6


async def test_probes_can_be_told_from_tasks() -> None:
    """Each question carries the mark, whatever form the endpoint takes."""
    for server_of in (obstinate, refusing):
        async with answering(server_of) as server:
            await probed(server.url)
        asked = [one.body for one in server.requests if one.body]
        assert all(MARK in one["messages"][0]["content"] for one in asked)


async def test_a_call_whose_arguments_nobody_can_read_is_no_yes() -> None:
    """A tool that is called with prose is not one that works."""

    def answer(request: Request) -> bytes:
        if request.path.endswith("/models"):
            return listing()
        if "tools" not in request.body:
            return completion(usage=usage(40, 1))
        call = {"id": "a", "type": "function", "function": {"name": "city_weather", "arguments": "in Paris"}}
        return completion({"content": None, "tool_calls": [call]}, usage=usage(140, 30))

    async with answering(answer) as server:
        assert verdicts(await probed(server.url, briefly=True))["tools"] == "accepted, not enforced"


@pytest.mark.parametrize(("obeys", "verdict"), [(True, "yes"), (False, "accepted, not enforced")])
async def test_one_call_at_a_time(obeys: bool, verdict: str) -> None:
    """A switch that is taken and does nothing is told from one that works."""

    def answer(request: Request) -> bytes:
        if request.path.endswith("/models"):
            return listing()
        if "tools" not in request.body or request.body["messages"][-1]["role"] == "tool":
            return completion(usage=usage(40, 1))
        call = {"type": "function", "function": {"name": "city_weather", "arguments": '{"city": "Paris"}'}}
        number = 1 if obeys and request.body.get("parallel_tool_calls") is False else 2
        return completion({"content": None, "tool_calls": [call] * number}, usage=usage(140, 30))

    async with answering(answer) as server:
        told = verdicts(await probed(server.url))
    assert (told["several calls"], told["one at a time"]) == ("yes", verdict)
