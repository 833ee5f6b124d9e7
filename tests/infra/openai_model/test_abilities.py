"""What an endpoint does not take: asked for in another way, and remembered."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from scripted_endpoint import ASKING_SCHEMA, OK, REQUEST, TOOL, asking, failed, http

from runtime.errors import ModelRefused
from runtime.ports import ChatRequest
from runtime.settings import Thinking


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
    wrong = failed(400, "Invalid schema for response_format 'plan'")
    async with asking(wrong, wrong, wrong, wrong, OK) as asked:
        with pytest.raises(ModelRefused):
            await asked.complete(ASKING_SCHEMA)
        await asked.complete(ASKING_SCHEMA)
    formats = [body.get("response_format", {}).get("type") for body in asked.bodies]
    assert formats == ["json_schema", "json_object", None, None, "json_schema"]


async def test_one_refused_tool_is_told_in_words_and_others_are_not() -> None:
    """The request is answered, and the next one offers its tools natively."""
    async with asking(failed(400, "Invalid schema for function 'look'"), OK) as asked:
        for _ in range(2):
            await asked.complete(replace(REQUEST, tools=[TOOL]))
    assert ["tools" in body for body in asked.bodies] == [True, False, True]


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


def has(name: str) -> Callable[[Any], bool]:
    return lambda body: name in body


def roles(body: Any) -> list[str]:
    return [one["role"] for one in body["messages"]]


ACTING = replace(
    REQUEST,
    messages=[
        {"role": "system", "content": "Be good."},
        *REQUEST.messages,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": f"e-{n}", **TOOL, "function": {"name": "look", "arguments": "{}"}} for n in "01"],
        },
        *({"role": "tool", "tool_call_id": f"e-{n}", "content": "a pan"} for n in "01"),
    ],
    tools=[TOOL],
)
JUDGING = replace(ASKING_SCHEMA, messages=ACTING.messages[:2])

#: status and message -> the request, and what the request after it looks like
REFUSALS: dict[str, tuple[int, str, ChatRequest, Callable[[Any], object], object]] = {
    "DeepSeek has no schemas": (
        400, "This response_format type is unavailable now", JUDGING,
        lambda body: body["response_format"]["type"], "json_object",
    ),
    "ik_llama fails over a schema with 500": (
        500, '"response_format" type must be one of "text" or "json_object", but got: json_schema', JUDGING,
        lambda body: body["response_format"]["type"], "json_object",
    ),
    "llama.cpp cannot make a grammar": (
        400, "failed to parse grammar", JUDGING, lambda body: body["response_format"]["type"], "json_object",
    ),
    "OpenAI's newer models name the cap otherwise": (
        400, "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
        "instead.", REQUEST, lambda body: body["max_completion_tokens"], 1024,
    ),
    "DashScope has a largest cap": (
        400, "Range of max_tokens should be [1, 512]", REQUEST, lambda body: body["max_tokens"], 512,
    ),
    "OpenAI has a largest cap": (
        400, "max_tokens is too large: 1024. This model supports at most 256 completion tokens, whereas you provided "
        "1024.", REQUEST, lambda body: body["max_tokens"], 256,
    ),
    "a temperature only": (
        400, "Unsupported value: 'temperature' does not support 0.0 with this model. Only the default (1) value is "
        "supported.", REQUEST, has("temperature"), False,
    ),
    "Gemma has no system role": (400, "System role not supported", ACTING, lambda body: roles(body)[0], "user"),
    "a template wants turns": (
        500, "Conversation roles must alternate user/assistant/user/assistant/...", JUDGING, roles, ["user"],
    ),
    "o1 has no system role": (
        400, "Unsupported value: 'messages[0].role' does not support 'system' with this model.", JUDGING, roles,
        ["user"],
    ),
    "vLLM without a parser for tools": (
        400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', ACTING,
        has("tools"), False,
    ),
    "Ollama's model has no tools": (400, "m does not support tools", ACTING, has("tools"), False),
    "Llama's template has one call a message": (
        500, "This model only supports single tool-calls at once!", ACTING,
        lambda body: [len(one.get("tool_calls", ())) for one in body["messages"]], [0, 0, 1, 0, 1, 0],
    ),
    "and is asked for one call at a time": (
        500, "This model only supports single tool-calls at once!", ACTING,
        lambda body: body.get("parallel_tool_calls"), False,
    ),
    "Mistral has ids of its own": (
        400, "Tool call id was e-0 but must be a-z, A-Z, 0-9, with a length of 9.", ACTING,
        lambda body: body["messages"][-1]["tool_call_id"], "call00001",
    ),
    "Gemini wants its thoughts back with calls": (
        400, "Function call is missing a thought_signature in functionCall parts.", ACTING, has("tools"), False,
    ),
    "DashScope wants its switch": (
        400, "parameter.enable_thinking must be set to false for non-streaming calls", REQUEST,
        lambda body: body.get("enable_thinking"), False,
    ),
    "DashScope streams only": (
        400, "This model only support stream mode, please enable the stream parameter to access the model.", REQUEST,
        lambda body: body.get("stream"), True,
    ),
    "DeepSeek wants thinking back": (
        400, "The `reasoning_content` in the thinking mode must be passed back to the API.", ACTING,
        lambda body: body["messages"][2].get("reasoning_content"), "Turn 2: I call look, look.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("status", "message", "request_", "looks", "expected"), REFUSALS.values(), ids=REFUSALS)
async def test_refusals_as_servers_word_them(
    status: int, message: str, request_: ChatRequest, looks: Callable[[Any], object], expected: object
) -> None:
    """The next request is in the form that is taken, at once and without a try; the one after begins so."""
    async with asking(failed(status, message), OK, retries=0) as asked:
        await asked.complete(request_)
        await asked.complete(request_)
    assert asked.clock.slept == []
    first, *later = asked.bodies
    assert len(later) == 2
    assert all(looks(body) == expected for body in later)
    assert first != later[0]


@pytest.mark.parametrize("profile", ["dashscope", "vllm", "deepseek", "openai"])
async def test_a_switch_that_is_refused_is_left_out(profile: Thinking) -> None:
    """Whichever it is, in the words that servers with checked fields have for it."""
    name = {"vllm": "chat_template_kwargs", "deepseek": "thinking", "openai": "reasoning_effort"}.get(
        profile, "enable_thinking"
    )
    refused = http(400, {"error": {"message": f"Unknown parameter: '{name}'.", "param": name}})
    async with asking(refused, OK, retries=0, thinking=profile) as asked:
        await asked.complete()
    assert [name in body for body in asked.bodies] == [True, False]


async def test_a_refused_stream_is_asked_for_in_one_piece() -> None:
    """And a refused count of a stream's tokens is not asked for."""
    refused = failed(400, "Streaming is not supported for this model")
    async with asking(refused, OK, retries=0, stream=True) as asked:
        await asked.complete()
    assert [body.get("stream") for body in asked.bodies] == [True, None]
    async with asking(failed(400, "Unknown parameter: 'stream_options'"), OK, retries=0, stream=True) as asked:
        await asked.complete()
    assert [("stream_options" in body, body.get("stream")) for body in asked.bodies] == [(True, True), (False, True)]


async def test_a_word_for_one_call_at_a_time_that_is_refused_is_left_out() -> None:
    """The calls of the history stay apart."""
    single = failed(500, "This model only supports single tool-calls at once!")
    unknown = failed(400, "Unknown parameter: 'parallel_tool_calls'.", param="parallel_tool_calls")
    async with asking(single, unknown, OK, retries=0) as asked:
        await asked.complete(ACTING)
        await asked.complete(ACTING)
    assert [body.get("parallel_tool_calls") for body in asked.bodies] == [None, False, None, None]
    assert all(len(one.get("tool_calls", ())) < 2 for body in asked.bodies[1:] for one in body["messages"])
