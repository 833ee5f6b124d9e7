"""Ladders of what an endpoint takes: which rung follows a refusal, what is sent on each, how notes come together."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, fields, replace

from infra.capabilities import (
    ALL,
    NOTHING_LEARNT,
    Abilities,
    Learnt,
    Place,
    as_asked,
    facts,
    is_particular,
    learnt_from,
    parameters,
    streamed,
    without,
)
from infra.error_table import Capability
from infra.model_errors import Failure
from runtime.gate import MERGED_SCHEMA, diagnosis_schema
from runtime.ports import ChatAnswer, ChatRequest, TokenUsage, ToolCall
from runtime.settings import EndpointSettings, ModelSettings

SCHEMA = {
    "title": "plan",
    "type": "object",
    "properties": {"plan": {"type": "string"}, "label": {"type": "string", "enum": ["a", "b"]}},
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SAID = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "hello"}]
PLAIN = ChatRequest(role="planner", messages=SAID)
JUDGING = replace(PLAIN, role="gate", schema=SCHEMA)
ACTING = replace(PLAIN, role="executor", tools=[TOOL])
BOTH = replace(ACTING, schema=SCHEMA)
MODEL = ModelSettings(model="m", max_tokens=16_384)


def refused(capability: Capability, reason: str = "400 not supported") -> Failure:
    return Failure(kind=f"no_{capability}", action="change", reason=reason, status=400, capability=capability)


#: what stood, what was refused in which words, of which request, with which profile -> what differs from then on
STEPS: dict[str, tuple[dict[str, Any], Failure, ChatRequest, str, dict[str, Any] | None]] = {
    "schema to object": ({}, refused("schema"), JUDGING, "none", {"format": "json_object"}),
    "object to tool": ({"format": "json_object"}, refused("schema"), JUDGING, "none", {"format": "tool"}),
    "object to text beside tools": ({"format": "json_object"}, refused("schema"), BOTH, "none", {"format": "text"}),
    "tool to text": ({"format": "tool"}, refused("schema"), JUDGING, "none", {"format": "text"}),
    "a forced call is refused as a tool": ({"format": "tool"}, refused("tools"), JUDGING, "none", {"format": "text"}),
    "text is the last form": ({"format": "text"}, refused("schema"), JUDGING, "none", None),
    "no schema was sent": ({}, refused("schema"), PLAIN, "none", None),
    "tools to text": ({}, refused("tools", '400 "auto" tool choice requires --enable-auto-tool-choice'), ACTING,
                      "none", {"tools": "text"}),
    "no tools were sent": ({}, refused("tools"), PLAIN, "none", None),
    "tools are text already": ({"tools": "text"}, refused("tools"), ACTING, "none", None),
    "one call a message": ({}, refused("parallel_tools", "500 only supports single tool-calls at once"), ACTING,
                           "none", {"parallel_tools": False}),
    "newer name": ({}, refused("max_tokens", "400 'max_tokens' is not supported. Use 'max_completion_tokens'."),
                   PLAIN, "none", {"max_tokens": "max_completion_tokens"}),
    "no name at all": ({"max_tokens": "max_completion_tokens"}, refused("max_tokens"), PLAIN, "none",
                       {"max_tokens": "none"}),
    "cap of a range": ({}, refused("max_tokens", "400 Range of max_tokens should be [1, 8192]"), PLAIN, "none",
                       {"most_tokens": 8192}),
    "cap of another range": ({}, refused("max_tokens", "400 the valid range of max_tokens is [1, 4096]"), PLAIN,
                             "none", {"most_tokens": 4096}),
    "cap in words": ({}, refused("max_tokens", "400 max_tokens is too large: 16384. This model supports at most 4096 "
                                 "completion tokens, whereas you provided 16384."), PLAIN, "none",
                     {"most_tokens": 4096}),
    "cap compared": ({}, refused("max_tokens", "400 max_tokens: 16384 > 8192, which is the maximum allowed number"),
                     PLAIN, "none", {"most_tokens": 8192}),
    "cap in backquotes": ({}, refused("max_tokens", "400 `max_tokens` must be less than or equal to `8192`"), PLAIN,
                          "none", {"most_tokens": 8192}),
    "a cap is lowered once": ({"most_tokens": 8192}, refused("max_tokens", "400 at most 8191"), PLAIN, "none",
                              {"max_tokens": "max_completion_tokens"}),
    "a cap above what was asked": ({}, refused("max_tokens", "400 at most 99999"), PLAIN, "none",
                                   {"max_tokens": "max_completion_tokens"}),
    "temperature": ({}, refused("temperature"), PLAIN, "none", {"temperature": False}),
    "temperature was not sent": ({"temperature": False}, refused("temperature"), PLAIN, "none", None),
    "system to user": ({}, refused("system", "400 System role not supported"), PLAIN, "none", {"system": "user"}),
    "system to developer": ({}, refused("system", "400 use the role 'developer' with this model"), PLAIN, "none",
                            {"system": "developer"}),
    "developer to user": ({"system": "developer"}, refused("system", "400 unknown role developer"), PLAIN, "none",
                          {"system": "user"}),
    "roles must alternate": ({}, refused("system", "500 Conversation roles must alternate user/assistant/..."),
                             PLAIN, "none", {"system": "user"}),
    "the switch is unknown": ({}, refused("thinking", "400 Unknown parameter: 'enable_thinking'"), PLAIN, "vllm",
                              {"thinking": "none"}),
    "the switch is wanted": ({}, refused("thinking", "400 parameter.enable_thinking must be set to false for "
                                         "non-streaming calls"), PLAIN, "none", {"thinking": "dashscope"}),
    "the switch is wanted, in Chinese": ({}, refused("thinking", "400 parameter.enable_thinking必须设置为false"), PLAIN,
                                         "openai", {"thinking": "dashscope"}),
    "the switch is wanted, in other words": (
        {},
        refused("thinking", "400 enable thinking can not be support when `stream=False`."),
        PLAIN,
        "none",
        {"thinking": "dashscope"},
    ),
    "the switch is wanted where another one was refused": (
        {"thinking": "none"},
        refused("thinking", "400 parameter.enable_thinking must be set to false"),
        PLAIN,
        "vllm",
        {"thinking": "dashscope"},
    ),
    "the switch is wanted and refused": (
        {"thinking": "dashscope"},
        refused("thinking", "400 Unknown parameter: 'enable_thinking'"),
        PLAIN,
        "none",
        None,
    ),
    "no switch was sent": ({}, refused("thinking", "400 this model always thinks"), PLAIN, "none", None),
    "the switch was sent": ({}, refused("thinking", "400 enable_thinking must be set to true"), PLAIN, "dashscope",
                            {"thinking": "none"}),
    "the least effort": ({}, refused("thinking", "400 'reasoning_effort' does not support 'none'. Supported values "
                                     "are: 'minimal', 'low', 'medium'."), PLAIN, "openai", {"thinking": "minimal"}),
    "a low effort": ({"thinking": "minimal"}, refused("thinking", "400 'minimal' is none of 'low', 'medium'"), PLAIN,
                     "openai", {"thinking": "low"}),
    "no effort": ({}, refused("thinking", "400 Unrecognized request argument: reasoning_effort"), PLAIN, "openai",
                  {"thinking": "none"}),
    "thinking goes back": ({}, refused("thinking", "400 The `reasoning_content` in the thinking mode must be passed "
                                       "back to the API."), ACTING, "deepseek", {"echo": True}),
    "thinking is missing": ({}, refused("thinking", "400 Missing `reasoning_content` field in the assistant message"),
                            ACTING, "deepseek", {"echo": True}),
    "no stream": ({}, refused("stream", "400 streaming is not supported"), PLAIN, "none", {"stream": "never"}),
    "stream only": ({}, refused("stream", "400 This model only support stream mode, please enable the stream "
                                "parameter"), PLAIN, "none", {"stream": "always"}),
    "stream required": ({}, refused("stream", "400 `stream` must be set to true"), PLAIN, "none",
                        {"stream": "always"}),
    "neither way": ({"stream": "always"}, refused("stream", "400 streaming is not supported"), PLAIN, "none", None),
    "no usage in a stream": ({}, refused("stream", "400 Unknown parameter: 'stream_options'"), PLAIN, "none",
                             {"stream_usage": False}),
    "words that are about nothing here": ({}, refused("context"), PLAIN, "none", None),
}  # fmt: skip


@pytest.mark.parametrize(("stood", "failure", "request_", "thinking", "expected"), STEPS.values(), ids=STEPS)
def test_a_refusal_leads_to_the_next_rung(
    stood: dict[str, Any], failure: Failure, request_: ChatRequest, thinking: Any, expected: dict[str, Any] | None
) -> None:
    """And to no other one; None where nothing of the kind was sent, or nothing is left."""
    abilities = replace(ALL, **stood)
    now = without(abilities, failure, request_, replace(MODEL, thinking=thinking))
    assert now == (None if expected is None else replace(abilities, **expected))


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("400 Invalid schema for function 'look': schema must have type 'object'", True),
        ("400 tools.3.custom.input_schema: JSON schema is invalid", True),
        ("400 Invalid 'tools[0].function.name': string does not match pattern", True),
        ('400 "auto" tool choice requires --enable-auto-tool-choice', False),
        ("400 m does not support tools", False),
    ],
)
def test_a_tool_that_is_refused_says_nothing_of_others(reason: str, expected: bool) -> None:
    """One benchmark's schema is refused: the next one's tools are offered natively again."""
    assert is_particular(refused("tools", reason)) == expected
    assert not is_particular(refused("schema", reason))


def test_every_capability_has_an_end() -> None:
    """However often everything is refused, in whatever words, a call steps down a bounded number of times."""
    reasons = [failure.reason for _, failure, _, _, _ in STEPS.values()] + [
        f"400 at most {n}" for n in range(99, 0, -1)
    ]
    abilities, steps = ALL, 0
    for _ in range(3):
        for capability in (
            "schema",
            "tools",
            "parallel_tools",
            "max_tokens",
            "temperature",
            "system",
            "thinking",
            "stream",
        ):
            for reason in reasons:
                for request in (JUDGING, ACTING):
                    now = without(abilities, refused(capability, reason), request, MODEL)
                    if now is not None:
                        assert abilities.also(now) == now
                        abilities, steps = now, steps + 1
    assert 10 < steps < 25


ENDPOINT = EndpointSettings(base_url="http://h/v1")


def sent(request: ChatRequest = PLAIN, model: ModelSettings = MODEL, cap: int = 0, **stood: Any) -> dict[str, Any]:
    return parameters(request, model, ENDPOINT, replace(ALL, **stood), cap)


def test_forms_of_an_answer() -> None:
    """A schema as it is; an object, with the schema in words; one forced call; words alone."""
    by_schema, by_object, by_call, by_text = (
        sent(JUDGING, format=form) for form in ("json_schema", "json_object", "tool", "text")
    )
    wanted = {"name": "plan", "strict": True, "schema": SCHEMA}
    assert by_schema["response_format"] == {"type": "json_schema", "json_schema": wanted}
    assert by_object["response_format"] == {"type": "json_object"}
    [tool] = by_call["tools"]
    assert (tool["function"]["name"], tool["function"]["parameters"]) == ("plan", SCHEMA)
    assert by_call["tool_choice"] == {"type": "function", "function": {"name": "plan"}}
    assert "response_format" not in by_call
    assert {"tools", "tool_choice", "response_format"}.isdisjoint(by_text)
    assert by_schema["messages"] == by_call["messages"] == SAID
    for told, fenced in ((by_object, False), (by_text, True)):
        system, user = told["messages"]
        assert system["content"].startswith("Be good.\n\n")
        assert '"plan": {"type": "string"}' in system["content"]
        assert "JSON" in system["content"]
        assert ("```json" in system["content"]) == fenced
        assert user == SAID[1]


def test_a_shape_that_is_copied_is_no_answer() -> None:
    """The example of a text form shows each choice with all that is allowed, so that a copy fits no schema."""
    told = sent(replace(JUDGING, schema=diagnosis_schema(attribution=True)), format="text")["messages"][0]["content"]
    assert '"label": "planning | execution | both | none"' in told


def test_caps_and_temperature() -> None:
    """Under the name that is taken, never above what fits or is allowed; left out where they are refused."""
    assert sent()["max_tokens"] == 16_384
    assert sent(most_tokens=8192)["max_tokens"] == 8192
    assert sent(most_tokens=8192, cap=100)["max_tokens"] == 100
    assert sent(max_tokens="max_completion_tokens")["max_completion_tokens"] == 16_384
    assert not any("max" in name for name in sent(max_tokens="none"))
    assert sent()["temperature"] == 0.0
    assert "temperature" not in sent(temperature=False)


@pytest.mark.parametrize(
    ("profile", "stood", "expected"),
    [
        ("none", "profile", None),
        ("dashscope", "profile", {"enable_thinking": False}),
        ("vllm", "profile", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("deepseek", "profile", {"thinking": {"type": "disabled"}}),
        ("openai", "profile", {"reasoning_effort": "none"}),
        ("openai", "minimal", {"reasoning_effort": "minimal"}),
        ("openai", "low", {"reasoning_effort": "low"}),
        ("none", "dashscope", {"enable_thinking": False}),
        ("vllm", "none", None),
    ],
)
def test_one_switch_for_thinking(profile: Any, stood: str, expected: Any) -> None:
    """That of the profile, or what refusals have left of it; never two."""
    assert sent(model=replace(MODEL, thinking=profile), thinking=stood).get("extra_body") == expected


def test_whether_answers_are_streamed() -> None:
    """As the settings say, unless the endpoint takes only the other way."""
    for stream in (False, True):
        endpoint = replace(ENDPOINT, stream=stream)
        assert [streamed(endpoint, replace(ALL, stream=one)).stream for one in ("setting", "never", "always")] == [
            stream, False, True,
        ]  # fmt: skip


def test_usage_in_a_stream_is_asked_for_unless_it_is_refused() -> None:
    """By whoever sends a stream; null tells it not to, and never goes with an answer in one piece."""
    asked = [
        parameters(PLAIN, MODEL, replace(ENDPOINT, stream=stream), replace(ALL, stream_usage=usage))
        for stream in (False, True)
        for usage in (True, False)
    ]
    assert [one.get("stream_options", "as ever") for one in asked] == ["as ever", "as ever", "as ever", None]


def test_a_forced_call_is_the_answer() -> None:
    """Its arguments are the content, and the answer says where they stood; one without a call is read as it is."""
    call = ToolCall(id="1", name="plan", arguments='{"plan": "go"}')
    answer = ChatAnswer(
        content="Here:", tool_calls=[replace(call, name="other"), call], finish_reason="tool_calls",
        usage=TokenUsage(), model="m",
    )  # fmt: skip
    read = as_asked(answer, JUDGING, MODEL, replace(ALL, format="tool"))
    assert (read.content, read.tool_calls, read.finish_reason) == ('{"plan": "go"}', [], "stop")
    assert read.flags == ["answer_as_call"]
    text = replace(answer, tool_calls=[], finish_reason="stop")
    assert as_asked(text, JUDGING, MODEL, replace(ALL, format="tool")) == text
    assert as_asked(answer, JUDGING, MODEL, ALL) == answer


@pytest.mark.parametrize("by", ["setting", "refusal"])
def test_calls_that_were_asked_for_as_text_are_calls(by: str) -> None:
    """Read only where they were asked for so; an answer that makes none stays as it is, and a cut one stays cut."""
    model = replace(MODEL, tools="text" if by == "setting" else "native")
    abilities = replace(ALL, tools="text" if by == "refusal" else "native")
    written = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'
    answer = ChatAnswer(content=written, tool_calls=[], finish_reason="stop", usage=TokenUsage(), model="m")
    read = as_asked(answer, ACTING, model, abilities)
    assert [(one.name, one.arguments) for one in read.tool_calls] == [("look", '{"at": "it"}')]
    assert (read.content, read.finish_reason, read.flags) == ("", "tool_calls", ["text_call"])
    assert as_asked(replace(answer, finish_reason="length"), ACTING, model, abilities).finish_reason == "length"
    assert as_asked(answer, ACTING, MODEL, ALL) == answer
    prose = replace(answer, content="Nothing to look at.")
    assert as_asked(prose, ACTING, model, abilities) == prose


def test_tools_as_text_by_a_setting() -> None:
    """Without a refusal: servers that drop native tools say nothing."""
    asked = sent(ACTING, replace(MODEL, tools="text"))
    assert "tools" not in asked
    assert '"name": "look"' in asked["messages"][0]["content"]


def test_our_schemas_are_plain() -> None:
    """No pattern, bound, format or reference: servers ignore some of them and refuse others."""
    known = {"title", "type", "properties", "required", "additionalProperties", "anyOf", "enum", "items"}

    def check(schema: Any) -> None:
        assert set(schema) <= known
        for one in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
            check(one)
        if "items" in schema:
            check(schema["items"])
        if schema.get("type") == "object":
            assert schema["additionalProperties"] is False
            assert schema["required"] == list(schema["properties"])

    for schema in (
        *(diagnosis_schema(attribution=a, usefulness=u) for a in (False, True) for u in (False, True)),
        MERGED_SCHEMA,
    ):
        check(schema)


LEARNT = st.builds(
    Abilities,
    format=st.sampled_from(["json_schema", "json_object", "tool", "text"]),
    max_tokens=st.sampled_from(["max_tokens", "max_completion_tokens", "none"]),
    most_tokens=st.integers(0, 3),
    temperature=st.booleans(),
    system=st.sampled_from(["system", "developer", "user"]),
    tools=st.sampled_from(["native", "text"]),
    parallel_tools=st.booleans(),
    thinking=st.sampled_from(["profile", "dashscope", "minimal", "low", "none"]),
    echo=st.booleans(),
    stream=st.sampled_from(["setting", "never", "always"]),
    stream_usage=st.booleans(),
    window=st.integers(0, 3),
)


@given(LEARNT, LEARNT, LEARNT)
def test_what_is_learnt_comes_together_in_any_order(one: Abilities, two: Abilities, three: Abilities) -> None:
    """Two that learn at once, notes in another order, the same note again: the same in the end."""
    assert one.also(two) == two.also(one)
    assert one.also(two).also(three) == one.also(two.also(three))
    assert one.also(one) == one.also(ALL) == one


def test_every_ability_has_a_ladder() -> None:
    """A field that is added and forgotten would not be learnt from others."""
    other = {
        "format": "text", "max_tokens": "none", "most_tokens": 7, "temperature": False, "system": "user",
        "tools": "text", "parallel_tools": False, "parallel_switch": False, "tool_ids": "short",
            "thinking": "dashscope", "echo": True, "stream": "always",
        "stream_usage": False, "window": 4096,
    }  # fmt: skip
    assert set(other) == {field.name for field in fields(Abilities)}
    assert asdict(ALL.also(Abilities(**other))) == other  # type: ignore[arg-type] # a literal for each
    assert Abilities(**other).since(ALL) == other  # type: ignore[arg-type] # likewise


def test_notes_are_read_back() -> None:
    """What was written of each place, together; no secret of an address; what is no such note says nothing."""
    place = Place("https://user:hunter22@host/v1?key=hunter22", "m")
    one = Learnt(abilities=replace(ALL, format="text"), evidence=("schema: 400 no",))
    two = Learnt(abilities=replace(ALL, temperature=False), evidence=("temperature: 400 no",))
    noted = [facts(place, one), {}, {"base_url": 3}, facts(place, two), facts(Place("http://other/v1", "m"), one)]
    assert "hunter22" not in str(noted)
    noted.append({**facts(place, one), "abilities": {"format": "telepathy"}})
    found = learnt_from(noted)
    assert found.pop(("http://other/v1", "m")) == one
    [together] = found.values()
    assert together == one.also(two) == NOTHING_LEARNT.also(one).also(two)
