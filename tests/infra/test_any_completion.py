"""Whatever an endpoint answers: an answer that can be acted on, or a failed try, and never anything else."""

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from events.codec import canonical
from events.ids import RunId, StreamId
from infra.completion import FLAGS, completion
from infra.model_errors import Failed
from infra.thinking import told_apart
from runtime.actions import read_action
from runtime.ports import CallKey, ChatAnswer, ChatRequest
from runtime.task import Mode
from runtime.text_calls import calls_in

KEY = CallKey(run=RunId("r"), stream=StreamId("episode-1"), stage="execution", ordinal=1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOOLS = {"look": {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]}, "go": None}

#: pieces that mean something to somebody
_MARKS = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=look>", "</function>", "<parameter=room>"),
        *(
            "`",
            "```",
            "\n",
            " ",
            "{",
            "}",
            "[",
            "]",
            '"',
            ":",
            ",",
            "look",
            "(",
            ")",
            "room=",
            "\x00",
            "\ud800",
            "1e999",
        ),
        *("<|channel|>", "analysis", "commentary to=functions.look", "<|message|>", "<|call|>", "[TOOL_CALLS]", "NaN"),
        *("<|python_tag|>", "<｜tool▁call▁begin｜>", '<invoke name="look">', "<arg_key>", "</arg_key>", "<arg_value>"),
        *(">>>", "Action:", "</s>", '{"name": "look", "arguments": {"room": "a"}}'),
    ]
)
_TEXTS = st.one_of(st.text(max_size=20), st.lists(_MARKS, max_size=12).map("".join))
_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _TEXTS)
_KEYS = st.one_of(
    st.sampled_from(
        ["content", "refusal", "tool_calls", "function_call", "function", "name", "arguments", "id", "type", "text",
         "reasoning", "reasoning_content", "thinking", "error", "message", "code", "finish_reason"]
    ),
    st.text(max_size=5),
)  # fmt: skip
_ANY = st.recursive(
    _LEAVES, lambda one: st.one_of(st.lists(one, max_size=4), st.dictionaries(_KEYS, one, max_size=4)), max_leaves=12
)
_FUNCTIONS = st.fixed_dictionaries({"name": st.one_of(st.just("look"), _ANY), "arguments": _ANY})
_CALLS = st.one_of(
    _ANY, st.lists(st.one_of(st.fixed_dictionaries({"id": _ANY, "function": _FUNCTIONS}), _ANY), max_size=4)
)
_MESSAGES = st.fixed_dictionaries(
    {}, optional={"content": _ANY, "tool_calls": _CALLS, "refusal": _ANY, "reasoning": _ANY, "function_call": _ANY}
)
_CHOICES = st.fixed_dictionaries(
    {"message": st.one_of(_MESSAGES, _ANY)}, optional={"finish_reason": _ANY, "error": _ANY}
)
_BODIES = st.one_of(
    _ANY, st.fixed_dictionaries({"choices": st.lists(_CHOICES, max_size=2)}, optional={"usage": _ANY, "model": _ANY})
)
_MODES: st.SearchStrategy[Mode] = st.sampled_from(["dialog", "answer", "code", "single_shot"])


def read(body: Any, schema: Any) -> ChatAnswer | None:
    request = ChatRequest(role="executor", messages=[], schema=schema)
    try:
        return completion(json.dumps(body).encode(), request, KEY, NOW)
    except Failed:
        return None


@settings(max_examples=300, deadline=None)
@given(body=_BODIES, schema=st.sampled_from([None, {"type": "object"}]), mode=_MODES)
def test_any_body_is_an_answer_or_a_failed_try(body: Any, schema: Any, mode: Mode) -> None:
    """And the same one each time; what it comes to can be written down, and sent back to an endpoint."""
    answer = read(body, schema)
    assert read(body, schema) == answer
    if answer is None:
        return
    assert canonical(answer)
    assert set(answer.flags) <= set(FLAGS)
    action = read_action(answer, TOOLS, "e-1", mode)
    assert action.message is not None or mode != "single_shot"
    for message in action.history:
        assert canonical(message)
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert call["function"]["name"]
    asked = [call["id"] for call in action.history[0].get("tool_calls", ())]
    assert len(set(asked)) == len(asked)
    if action.message is None:
        assert [one.get("tool_call_id") for one in action.history[1:]] == (asked or [None])
        assert all(one["content"].strip() for one in action.history if one["role"] != "assistant")


@settings(max_examples=500, deadline=None)
@given(text=_TEXTS)
def test_any_text_is_told_apart_and_read_for_calls(text: str) -> None:
    """Nothing is raised, nothing is added, and a second look at an answer finds no more thinking of its own."""
    spoken = told_apart(text)
    assert len(spoken.answer) + len(spoken.thought.replace("\n\n", "")) <= len(text)
    for call in calls_in(text, TOOLS, TOOLS) or []:
        assert isinstance(call.arguments, str)
        assert call.id
