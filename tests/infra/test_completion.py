"""A completion's bytes: what is none, and what every odd one is read as."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from events.ids import RunId, StreamId
from infra.completion import BROKEN_OFF, FINISHES, FLAGS, completion
from infra.model_errors import Failed, Failure
from runtime.ports import CallKey, ChatAnswer, ChatRequest, ToolCall

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = CallKey(run=RunId("r"), stream=StreamId("episode-1"), stage="execution", ordinal=3)
REQUEST = ChatRequest(role="executor", messages=[{"role": "user", "content": "hello"}])
SCHEMA = {"title": "plan", "type": "object", "properties": {"plan": {"type": "string"}}, "required": ["plan"]}
LOOK = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def read(body: Any, *, schema: dict[str, Any] | None = None) -> ChatAnswer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return completion(raw, replace(REQUEST, schema=schema), KEY, NOW)


def said(message: Any, *, schema: dict[str, Any] | None = None, **choice: Any) -> ChatAnswer:
    """What a completion with one choice is read as."""
    return read({"choices": [{"message": message, **choice}]}, schema=schema)


def failed(body: Any) -> Failure:
    with pytest.raises(Failed) as caught:
        read(body)
    return caught.value.failure


def one(choice: Any) -> dict[str, Any]:
    return {"choices": [choice]}


NO_COMPLETION: dict[str, tuple[Any, str]] = {
    "nothing": (b"", "no JSON"),
    "a page": (b"<!doctype html><title>Log in</title>", "no JSON"),
    "a stream": (b'data: {"choices": []}\n\n', "no JSON"),
    "two answers": (b'{"choices": []}{"choices": []}', "no JSON"),
    "half of one": (b'{"choices": [{"message": {"content": "fi', "no JSON"),
    "bytes that are no text": (b'{"choices": [{"message": {"content": "\xff\xfe\xfa"}}]}', "no JSON"),
    "a text": ("fine", "str"),
    "null": (None, "NoneType"),
    "a list": ([one({"message": {"content": "fine"}})], "list"),
    "a number": (3, "int"),
    "an empty object": ({}, "no choices"),
    "no choices": ({"choices": []}, "no choices"),
    "choices that are null": ({"choices": None}, "no choices"),
    "choices that are an object": ({"choices": {"0": {"message": {"content": "fine"}}}}, "choices are dict"),
    "choices that are a text": ({"choices": "fine"}, "choices are str"),
    "a choice that is null": (one(None), "choices are list"),
    "a choice that is a text": (one("fine"), "choices are list"),
    "no message": (one({"index": 0}), "no message"),
    "a message that is null": (one({"message": None}), "no message"),
    "a message that is a text": (one({"message": "fine"}), "no message"),
    "a message that is a list": (one({"message": [{"content": "fine"}]}), "no message"),
    "an older completion": (one({"text": "fine", "index": 0}), "of the older kind"),
    "a piece of a stream": (one({"delta": {"content": "fi"}}), "a piece of a stream"),
    "another server's form": ({"message": {"role": "assistant", "content": "fine"}, "done": True}, "200, but"),
    "the form of responses": ({"output": [{"type": "message", "content": []}]}, "no choices"),
    "content that is a number": (one({"message": {"content": 3}}), "the content is int"),
    "content that is true": (one({"message": {"content": True}}), "the content is bool"),
    "content twice": (b'{"choices": [{"message": {"content": "a", "content": "b"}}]}', "content stands twice"),
    "choices twice": (b'{"choices": [{"message": {"content": "a"}}], "choices": []}', "choices stands twice"),
    "a finish_reason twice": (
        b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop", "finish_reason": "length"}]}',
        "finish_reason stands twice",
    ),
    "arguments twice": (
        b'{"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": "1", "arguments": "2"}}]'
        b"}}]}",
        "arguments stands twice",
    ),
    "an argument twice": (
        b'{"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": {"a": [{"b": 1, "b": 2}]}}}]'
        b"}}]}",
        "an argument of f stands twice",
    ),
    "nesting without end": (b"[" * 100_000, "nested too deep"),
    "nesting inside": (b'{"choices": ' + b'[{"a":' * 50_000 + b"1" + b"}]" * 50_000 + b"}", "nested too deep"),
    "nesting that the parser can follow": (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", "nested too deep"),
    "an integer without end": (b'{"choices": [{"message": {"content": "a", "n": ' + b"9" * 10_000 + b"}}]}", "no JSON"),
}


@pytest.mark.parametrize(("body", "told"), NO_COMPLETION.values(), ids=NO_COMPLETION)
def test_what_is_no_completion_is_a_failed_try(body: Any, told: str) -> None:
    """Each with what it is instead; none is an answer, and nothing else is raised."""
    failure = failed(body)
    assert (failure.kind, failure.action) == ("malformed", "retry")
    assert told in failure.reason


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "upstream is busy"}, "malformed"),
        ({"message": "rate limited", "code": 429}, "rate_limited"),
        ({"message": "No auth credentials found", "code": 401}, "key"),
        ({"message": "This model's maximum context length is 8 tokens"}, "context"),
        ("the request exceeds the available context size", "context"),
    ],
)
def test_an_error_in_place_of_an_answer_means_what_it_says(error: Any, kind: str) -> None:
    """Beside the choices, without them, or in the first choice."""
    fine = {"message": {"content": "fine"}}
    for body in ({"error": error}, {"error": error, "choices": [fine]}, one({"error": error, **fine})):
        assert failed(body).kind == kind


@pytest.mark.parametrize("no_error", [None, "", {}, []])
def test_an_empty_error_is_none(no_error: Any) -> None:
    """Some servers always send the field."""
    assert read({"error": no_error, **one({"message": {"content": "fine"}})}).content == "fine"


CONTENTS: dict[str, tuple[Any, str, list[str]]] = {
    "text": ("fine", "fine", []),
    "nothing": (None, "", []),
    "no parts": ([], "", []),
    "parts": ([{"type": "text", "text": "fi"}, {"type": "output_text", "text": "ne"}], "fine", []),
    "parts that are texts": (["fi", "ne"], "fine", []),
    "one part alone": ({"type": "text", "text": "fine"}, "fine", []),
    "a part without a type": ([{"text": "fine"}], "fine", []),
    "a text with annotations": ([{"type": "text", "text": {"value": "fine", "annotations": []}}], "fine", []),
    "a picture": ([{"type": "text", "text": "fine"}, {"type": "image_url", "image_url": {}}], "fine", ["parts"]),
    "a part with a number": ([{"type": "text", "text": 3}, {"type": "text", "text": "fine"}], "fine", ["parts"]),
    "a part that is null": ([None, 3, "fine"], "fine", ["parts"]),
    "half a surrogate pair": ("a\ud83d b", "a? b", []),
    "zeros": ("a\x00b", "a\x00b", []),
    "a token that ends it": ("fine<|im_end|>", "fine", ["stop_token"]),
    "another one": ("fine</s>\n", "fine", ["stop_token"]),
    "a token in the middle": ("a <|im_end|> b", "a <|im_end|> b", []),
    "thinking in front": ("<think>hm</think>\nfine", "fine", ["thinking_in_answer"]),
}


@pytest.mark.parametrize(("content", "expected", "flags"), CONTENTS.values(), ids=CONTENTS)
def test_content_is_read_for_its_text(content: Any, expected: str, flags: list[str]) -> None:
    """Text parts in order; what holds no text is left out, and that is flagged."""
    answer = said({"content": content})
    assert (answer.content, answer.flags) == (expected, flags)


@pytest.mark.parametrize(
    "message",
    [
        {"content": "fine", "reasoning_content": "hm"},
        {"content": "fine", "reasoning": "hm"},
        {"content": "fine", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "fine"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, "fine"]},
        {"content": [{"type": "reasoning", "text": "hm"}, "fine"]},
        {"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, "fine"]},
        {"content": [{"text": "hm", "thought": True}, {"text": "fine"}]},
        {"content": "<think>hm</think>fine"},
        {"content": "<think>hm</think>fine", "reasoning": "hm"},
    ],
)
def test_thinking_is_kept_apart(message: Any) -> None:
    """Wherever a server puts it, it is no part of the answer."""
    answer = said(message)
    assert (answer.content, answer.reasoning) == ("fine", "hm")


PLAN = '{"plan": "x"}'


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("thought", [PLAN, f"```json\n{PLAN}\n```", f"hm</think>{PLAN}", f" {PLAN}\n"])
def test_the_object_that_was_asked_for_may_be_the_thinking(name: str, thought: str) -> None:
    """Where there is no other answer, a schema was asked for, and the object fits it: with a flag."""
    answer = said({"content": None, name: thought}, schema=SCHEMA)
    assert (answer.content, answer.flags) == (PLAN, ["answer_in_reasoning"])


@pytest.mark.parametrize(
    ("message", "schema"),
    [
        ({"content": "", "reasoning": PLAN}, None),
        ({"content": "", "reasoning": f"I might say {PLAN}, but"}, SCHEMA),
        ({"content": "", "reasoning": '{"plan": 3}'}, SCHEMA),
        ({"content": "", "reasoning": '{"idea": "x"}'}, SCHEMA),
        ({"content": "", "reasoning": "{}"}, {"type": "object"}),
        ({"content": "", "reasoning": '{"plan": "x", "plan": "y"}'}, SCHEMA),
        ({"content": "", "reasoning": '{"plan": "x'}, SCHEMA),
        ({"content": "", "reasoning": "let me think"}, SCHEMA),
        ({"content": "", "reasoning": '["plan"]'}, SCHEMA),
        ({"content": "", "reasoning": PLAN, "tool_calls": [LOOK]}, SCHEMA),
    ],
)
def test_other_thinking_is_no_answer(message: Any, schema: Any) -> None:
    """Without a schema, with prose around, of another shape, cut off: the answer is empty."""
    answer = said(message, schema=schema)
    assert (answer.content, answer.flags) == ("", [])


def test_an_answer_wins_over_an_object_in_the_thinking() -> None:
    """Whatever it is."""
    assert said({"content": "fine", "reasoning": PLAN}, schema=SCHEMA).content == "fine"


@pytest.mark.parametrize(("word", "expected"), FINISHES.items())
def test_every_word_for_an_end_is_one_of_ours(word: str, expected: str) -> None:
    """In any case, with dashes or spaces, too."""
    for written in (word, word.upper(), word.replace("_", "-"), word.replace("_", " ").title()):
        assert said({"content": "fine"}, finish_reason=written).finish_reason == expected


@pytest.mark.parametrize("given", [None, "", 3, {"reason": "stop"}, ["stop"], ...])
def test_an_end_without_a_word_follows_from_the_answer(given: Any) -> None:
    """`tool_calls` where there are some, `stop` elsewhere."""
    choice = {} if given is ... else {"finish_reason": given}
    assert said({"content": "fine"}, **choice).finish_reason == "stop"
    assert said({"tool_calls": [LOOK]}, **choice).finish_reason == "tool_calls"


def test_an_unknown_word_is_kept() -> None:
    """As the endpoint says it, short and printable."""
    assert said({"content": "fine"}, finish_reason="lunch\x1b[31m").finish_reason == "lunch\ufffd[31m"
    assert len(said({"content": "fine"}, finish_reason="x" * 10_000).finish_reason) == 40


@pytest.mark.parametrize("word", sorted(BROKEN_OFF))
def test_an_answer_that_was_broken_off_is_asked_for_again(word: str) -> None:
    """What it holds is not the whole of it."""
    failure = failed(one({"message": {"content": "fi"}, "finish_reason": word.upper()}))
    assert (failure.kind, failure.action) == ("unavailable", "retry")
    assert word.upper() in failure.reason


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "refusal": "I cannot help."},
        {"content": "", "refusal": "I cannot help."},
        {"content": "Well", "refusal": "I cannot help."},
        {"content": [{"type": "refusal", "refusal": "I cannot help."}]},
        {"content": [{"type": "text", "text": "Well"}, {"type": "refusal", "refusal": "I cannot help."}]},
        {"content": [{"type": "refusal", "text": "I cannot help."}]},
    ],
)
def test_a_refusal_is_a_refusal(message: Any) -> None:
    """Whatever stands beside it, and whatever the server says of the end."""
    endings: list[dict[str, Any]] = [{}, {"finish_reason": "stop"}]
    for choice in endings:
        answer = said(message, **choice)
        assert (answer.content, answer.finish_reason) == ("I cannot help.", "refusal")


@pytest.mark.parametrize("nothing", [None, "", " ", False, 3, {}])
def test_an_empty_refusal_is_none(nothing: Any) -> None:
    """Most servers always send the field."""
    answer = said({"content": "fine", "refusal": nothing})
    assert (answer.content, answer.finish_reason) == ("fine", "stop")


def test_of_several_choices_the_first_is_read() -> None:
    """One was asked for; that there are more is flagged."""
    fine, other = {"message": {"content": "fine"}}, {"message": {"content": "other"}}
    answer = read({"choices": [fine, other, None]})
    assert (answer.content, answer.flags) == ("fine", ["choices"])


def calls(*given: Any) -> list[ToolCall]:
    return said({"content": None, "tool_calls": list(given)}).tool_calls


CALLS: dict[str, tuple[Any, ToolCall]] = {
    "as it should be": (LOOK, ToolCall(id="a", name="look", arguments="{}")),
    "arguments as an object": (
        {"id": "a", "function": {"name": "look", "arguments": {"room": "Küche"}}},
        ToolCall(id="a", name="look", arguments='{"room": "Küche"}'),
    ),
    "arguments that are null": (
        {"id": "a", "function": {"name": "look", "arguments": None}},
        ToolCall(id="a", name="look", arguments="{}"),
    ),
    "no arguments": ({"id": "a", "function": {"name": "look"}}, ToolCall(id="a", name="look", arguments="{}")),
    "arguments that are no JSON": (
        {"id": "a", "function": {"name": "look", "arguments": '{"room": '}},
        ToolCall(id="a", name="look", arguments='{"room": '),
    ),
    "parameters": (
        {"id": "a", "function": {"name": "look", "parameters": {"a": 1}}},
        ToolCall(id="a", name="look", arguments='{"a": 1}'),
    ),
    "flat": ({"id": "a", "name": "look", "arguments": "{}"}, ToolCall(id="a", name="look", arguments="{}")),
    "custom": (
        {"id": "a", "type": "custom", "custom": {"name": "look", "input": "x"}},
        ToolCall(id="a", name="look", arguments="x"),
    ),
    "NaN": (
        {"id": "a", "function": {"name": "look", "arguments": {"x": float("nan")}}},
        ToolCall(id="a", name="look", arguments='{"x": NaN}'),
    ),
    "no id": ({"function": {"name": "look"}}, ToolCall(id="call-3-1", name="look", arguments="{}")),
    "an id that is a number": (
        {"id": 7, "function": {"name": "look"}},
        ToolCall(id="call-3-1", name="look", arguments="{}"),
    ),
    "an id with control characters": (
        {"id": "a\x00\n", "function": {"name": "look"}},
        ToolCall(id="call-3-1", name="look", arguments="{}"),
    ),
    "a gigantic id": (
        {"id": "a" * 100_000, "function": {"name": "look"}},
        ToolCall(id="call-3-1", name="look", arguments="{}"),
    ),
    "a name with a zero": (
        {"id": "a", "function": {"name": "look\x00"}},
        ToolCall(id="a", name="look\ufffd", arguments="{}"),
    ),
    "a gigantic name": (
        {"id": "a", "function": {"name": "l" * 100_000}},
        ToolCall(id="a", name="l" * 199 + "…", arguments="{}"),
    ),
    "no name": (
        {"id": "a", "function": {"arguments": "{}"}},
        ToolCall(id="call-3-1", name="", arguments='{"id": "a", "function": {"arguments": "{}"}}'),
    ),
    "a name that is a number": (
        {"function": {"name": 3}},
        ToolCall(id="call-3-1", name="", arguments='{"function": {"name": 3}}'),
    ),
    "null": (None, ToolCall(id="call-3-1", name="", arguments="null")),
    "a text": ("look", ToolCall(id="call-3-1", name="", arguments="look")),
}


@pytest.mark.parametrize(("given", "expected"), CALLS.values(), ids=CALLS)
def test_a_call_is_read_for_what_it_says(given: Any, expected: ToolCall) -> None:
    """One that cannot be read stays as a call without a name: the ones beside it are not all that was meant."""
    assert calls(given) == [expected]
    assert calls(LOOK | {"id": "other"}, given)[1].name == expected.name


def test_ids_are_unique() -> None:
    """A missing, doubled or wrong id is replaced by one that no other call of the answer has."""
    call = {"function": {"name": "look", "arguments": "{}"}}
    given = [{"id": "call-3-2"} | call, call, {"id": "b"} | call, {"id": "b"} | call, {"id": 7} | call]
    assert [one.id for one in calls(*given)] == ["call-3-2", "call-3-2+", "b", "call-3-4", "call-3-5"]


def test_one_call_may_stand_alone() -> None:
    """Instead of a list, or in the field that the list has replaced."""
    expected = ToolCall(id="a", name="look", arguments="{}")
    assert said({"content": None, "tool_calls": LOOK}).tool_calls == [expected]
    answer = said(
        {"content": None, "function_call": {"name": "look", "arguments": "{}"}}, finish_reason="function_call"
    )
    assert answer.tool_calls == [ToolCall(id="call-3-1", name="look", arguments="{}")]
    assert (answer.finish_reason, answer.flags) == ("tool_calls", ["function_call"])


def test_calls_may_stand_among_the_parts() -> None:
    """As other APIs have them; calls in their own field win."""
    part = {"type": "tool_use", "id": "a", "name": "look", "input": {"x": 1}}
    answer = said({"content": [{"type": "text", "text": "fine"}, part]})
    assert answer.content == "fine"
    assert answer.tool_calls == [ToolCall(id="a", name="look", arguments='{"x": 1}')]
    assert said({"content": [part], "tool_calls": [LOOK]}).tool_calls == calls(LOOK)


@pytest.mark.parametrize(
    ("given", "flags"), [(None, []), ({}, []), ([], []), ("look()", ["tool_calls"]), (3, ["tool_calls"])]
)
def test_calls_that_are_no_list_are_none(given: Any, flags: list[str]) -> None:
    """The answer has its content; what was left out is flagged."""
    answer = said({"content": "fine", "tool_calls": given})
    assert (answer.content, answer.tool_calls, answer.flags) == ("fine", [], flags)


def test_what_a_server_calls_its_model_is_kept_short_and_printable() -> None:
    """Whatever it sends."""
    named = read({"model": "m\x1b[2J" + "x" * 1000, **one({"message": {"content": ""}})}).model
    assert (named[:5], named[-2:], len(named)) == ("m\ufffd[2J", "x…", 200)
    assert read({"model": {"name": "m"}, **one({"message": {"content": ""}})}).model == ""


def test_a_field_that_nobody_reads_may_stand_twice() -> None:
    """As may one that says the same twice."""
    raw = b'{"id": 1, "id": 2, "choices": [{"message": {"content": "fine", "content": "fine", "x": 1, "x": 2}}]}'
    assert read(raw).content == "fine"


def test_numbers_that_are_none_do_no_harm_where_nobody_reads_them() -> None:
    """Infinite log-probabilities, and counts that are no counts."""
    raw = b'{"choices": [{"message": {"content": "fine"}, "logprobs": -Infinity}], "usage": {"prompt_tokens": NaN}}'
    answer = read(raw)
    assert (answer.content, answer.usage.prompt_tokens) == ("fine", None)


ODD: dict[str, dict[str, Any]] = {
    "answer_in_reasoning": one({"message": {"content": None, "reasoning": PLAN}}),
    "thinking_in_answer": one({"message": {"content": "<think>hm</think>fine"}}),
    "choices": {"choices": [{"message": {"content": "fine"}}] * 2},
    "function_call": one({"message": {"function_call": {"name": "look"}}}),
    "call_parts": one({"message": {"content": [{"type": "tool_use", "name": "look", "input": {}}]}}),
    "tool_calls": one({"message": {"tool_calls": "look()"}}),
    "many_calls": one({"message": {"tool_calls": [LOOK] * 1001}}),
    "parts": one({"message": {"content": [{"type": "image_url"}]}}),
    "stop_token": one({"message": {"content": "fine</s>"}}),
    "name": one({"message": {"tool_calls": [{"function": {"name": "look\n"}}]}}),
}


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_comes_up_where_it_should_and_nowhere_else(flag: str) -> None:
    """One odd thing, one flag."""
    assert read(ODD[flag], schema=SCHEMA).flags == [flag]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "message",
    [
        b'"content": [' + b'"a",' * 300_000 + b'"b"]',
        b'"content": [' + b'{"type": "thinking", "thinking": "a"},' * 50_000 + b'"b"]',
        b'"content": [' + b"null," * 300_000 + b'"b"]',
        b'"tool_calls": [' + b"{}," * 300_000 + b"{}]",
        b'"tool_calls": [' + b'{"function": {"name": "a"}},' * 50_000 + b"{}]",
        b'"reasoning_details": [' + b'{"text": "a"},' * 50_000 + b"{}]",
        b'"content": "' + b"<think>a</think>" * 50_000 + b'"',
        b'"content": "' + b"</s>" * 300_000 + b'"',
        b'"content": null, ' + b'"a": 1,' * 100_000 + b'"a": 2',
    ],
    ids=range(9),
)
def test_a_vast_answer_is_read_in_time(message: bytes) -> None:
    """Work grows with the length, not with its square."""
    answer = read(b'{"choices": [{"message": {%b}}]}' % message)
    assert len(answer.tool_calls) <= 1000
