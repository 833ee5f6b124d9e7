"""What an endpoint does not take: asked for in another way, and remembered."""

import pytest
from msgspec.structs import replace
from scripted_endpoint import ASKING_SCHEMA, OK, REQUEST, TOOL, asking, failed

from runtime.errors import ModelRefused


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
