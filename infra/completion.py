"""A completion's bytes as a `ChatAnswer`: the shape of what came is checked before anything else.

What is no completion is `Failed`, with what it is instead. What is one is read for what it holds, and what was odd
about it is flagged (`FLAGS`); nothing is guessed: of a field that stands twice nobody can say which is meant.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from infra.model_errors import Failed, Failure, malformed, object_in, of_error_object, of_object_without_choices
from infra.thinking import texts_in, thought_in, told_apart
from infra.usage import usage_in
from runtime.code_spans import last_fence
from runtime.json_values import misfit, read_json, too_deep
from runtime.logger import Logger
from runtime.ports import CallKey, ChatAnswer, ChatRequest, ToolCall

_log = Logger("chime.model")

#: what `ChatAnswer.flags` may say of a completion
FLAGS = {
    "answer_in_reasoning": "there was no answer, and the thinking was the JSON object that was asked for",
    "thinking_in_answer": "thinking stood in the answer, and was taken out",
    "choices": "there were several choices; the first was read",
    "function_call": "the call came in the form that tool calls have replaced",
    "call_parts": "the calls stood among the parts of the answer",
    "tool_calls": "the tool calls had a form that nobody can read, and were left out",
    "many_calls": "there were more than a thousand calls; the first were read",
    "parts": "parts of the answer are of a kind that holds no text, and were left out",
    "stop_token": "the answer ended with the token that ends answers",
    "name": "a name or id held characters that names do not have, or was too long",
}

#: finish_reason as servers word it -> ours
FINISHES = {
    **dict.fromkeys(
        ("stop", "eos", "eos_token", "end", "end_turn", "stop_sequence", "stop_token", "complete", "completed", "done"),
        "stop",
    ),
    **dict.fromkeys(
        ("length", "max_tokens", "max_output_tokens", "max_new_tokens", "max_length", "model_length", "token_limit",
         "model_context_window_exceeded"),
        "length",
    ),
    **dict.fromkeys(("tool_calls", "tool_call", "tool_use", "function_call"), "tool_calls"),
    **dict.fromkeys(
        ("content_filter", "content_filtered", "safety", "image_safety", "recitation", "blocklist", "language",
         "prohibited_content", "spii", "guardrail_intervened", "sensitive", "moderation"),
        "content_filter",
    ),
    **dict.fromkeys(("refusal", "refused"), "refusal"),
}  # fmt: skip
#: finish_reason of an answer that the server broke off: no whole one, whatever it holds
BROKEN_OFF = frozenset(
    {"error", "abort", "aborted", "cancelled", "canceled", "network_error", "insufficient_system_resource"}
)

#: how much of a name that a server gives is kept, and of an id and of a finish_reason, characters
_NAME_CHARS, _ID_CHARS, _WORD_CHARS = 200, 100, 40
#: how many lists and objects may stand inside each other
_LEVELS = 200
_TOO_DEEP = "its JSON is nested too deep"
#: how much of a call that cannot be read is shown to whoever complains, characters
_RAW_CHARS = 500
#: fields that are read: where one of them stands twice with different values, the answer is nobody's
_READ = frozenset(
    {"choices", "message", "content", "tool_calls", "function_call", "function", "name", "arguments", "finish_reason"}
    | {"refusal", "error", "type", "text"}
)
#: tokens that end an answer, left there by servers that do not know their model's
_STOP_TOKENS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end|>", "<|return|>", "<|end_of_text|>", "</s>"),
    *("<end_of_turn>", "<｜end▁of▁sentence｜>"),
)
#: calls that are read of one answer: far more than anybody executes
_MOST_CALLS = 1000
#: kinds of content parts that are calls
_CALL_PARTS = frozenset({"tool_use", "tool_call", "function_call", "function"})


class _Doubled(dict[str, Any]):
    """A JSON object with names that stand twice and say different things."""

    names: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Message:
    """What a message's content comes to, whatever its form."""

    texts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    #: calls among the parts, as they came
    calls: list[Any] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)

    def add(self, part: object) -> None:
        """Put one part of the content where it belongs."""
        if not isinstance(part, dict):
            self._add_text(part)
            return
        kind = str(_certain(part).get("type", "text"))
        text = part.get("text")
        if isinstance(text, dict):
            text = text.get("value")
        if kind == "refusal":
            self.refusals.append(_text(part.get("refusal") or text))
        elif "thinking" in kind or "reasoning" in kind or part.get("thought") is True:
            self.thoughts.append("".join(map(_text, texts_in(part))))
        elif kind in _CALL_PARTS:
            self.calls.append(part)
        else:
            self._add_text(text if kind in ("text", "output_text") else None)

    def _add_text(self, text: object) -> None:
        if isinstance(text, str):
            self.texts.append(_text(text))
        else:
            self.flags.add("parts")

    def answer(self) -> str:
        """The text, without the thinking and the token at its end that it may hold; flagged where it did."""
        text = "".join(self.texts)
        spoken = told_apart(text)
        if spoken.answer != text:
            self.flags.add("thinking_in_answer")
            self.thoughts.append(spoken.thought)
            text = spoken.answer
        for token in _STOP_TOKENS:
            if (bare := text.rstrip()).endswith(token):
                self.flags.add("stop_token")
                text = bare.removesuffix(token).rstrip()
        return text

    def thought(self) -> str:
        """All that was thought, each text once."""
        return "\n\n".join(dict.fromkeys(filter(None, self.thoughts)))


def completion(body: bytes, request: ChatRequest, key: CallKey, now: datetime) -> ChatAnswer:
    """The answer in a completion's bytes, whatever else a server put there.

    Args:
        body: of a response with a status of 2xx.
        request: what was asked.
        key: of the call, for log lines and ids.
        now: what a date in an error is compared with.

    Raises:
        Failed: it is none; what it is instead.
    """
    plain, choice, message = _parts(body, now)
    read = _read(message)
    content, refusal, thought = read.answer(), "".join(read.refusals), read.thought()
    calls = _tool_calls(message, read, key)
    finish = _finish(choice)
    if refusal.strip():
        content, finish = refusal, "refusal"
    elif request.schema is not None and not content.strip() and not calls:
        content = _answer_in(thought, request.schema, read.flags)
    if len(plain["choices"]) > 1:
        read.flags.add("choices")
    if read.flags:
        _log.info("odd_answer", call=key.id, run_id=key.run, flags=sorted(read.flags))
    return ChatAnswer(
        content=content,
        tool_calls=calls,
        finish_reason=finish or ("tool_calls" if calls else "stop"),
        usage=usage_in(plain.get("usage")),
        model=_named(plain.get("model"), _NAME_CHARS),
        fingerprint=_named(plain.get("system_fingerprint"), _NAME_CHARS),
        reasoning=thought,
        flags=sorted(read.flags),
    )


# -- shape -------------------------------------------------------------------------------------------------------------


def _parts(body: bytes, now: datetime) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The completion, its first choice and that choice's message.

    Raises:
        Failed: one of them is missing or of another type, or there is an error in its place.
    """
    plain = _certain(_loaded(body))
    choices = plain.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    for told in (plain.get("error"), choice.get("error") if isinstance(choice, dict) else None):
        if told:
            raise Failed(of_error_object(told, now))
    if not choices:
        raise Failed(of_object_without_choices(plain, now))
    if not isinstance(choice, dict):
        raise Failed(malformed(f"choices are {_kind(choices)}, not a list of objects"))
    message = _certain(choice).get("message")
    if not isinstance(message, dict):
        instead = next((one for one in ("text", "delta") if one in choice), "")
        what = {"text": "a completion of the older kind", "delta": "a piece of a stream"}.get(instead, "no message")
        raise Failed(malformed(f"{what} in the first choice"))
    return plain, choice, _certain(message)


def _loaded(body: bytes) -> dict[str, Any]:
    """Raises: Failed: no JSON object, or one that is nested deeper than anything an endpoint means."""
    try:
        plain = json.loads(body, object_pairs_hook=_fields)
    except ValueError:
        # Says what there is instead.
        return object_in(body)
    except RecursionError as error:
        raise Failed(malformed(_TOO_DEEP)) from error
    # Far below what the parser can follow, which depends on who calls it.
    if too_deep(plain, _LEVELS):
        raise Failed(malformed(_TOO_DEEP))
    return plain if isinstance(plain, dict) else object_in(body)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) == len(pairs):
        return fields
    doubled = _Doubled(fields)
    doubled.names = frozenset(name for name, value in pairs if value != fields[name])
    return doubled


def _certain(fields: dict[str, Any]) -> dict[str, Any]:
    """Raises: Failed: a field that is read stands twice, with different values."""
    if isinstance(fields, _Doubled) and (names := sorted(fields.names & _READ)):
        raise Failed(malformed(f"the field {names[0]} stands twice"))
    return fields


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


# -- content and thinking ----------------------------------------------------------------------------------------------


def _read(message: dict[str, Any]) -> _Message:
    """Raises: Failed: the content is neither text, nor parts, nor null."""
    read = _Message(refusals=[_text(message.get("refusal"))], thoughts=[_text(thought_in(message))])
    match message.get("content"):
        case None:
            pass
        case str(text):
            read.texts.append(_text(text))
        case dict(part):
            read.add(part)
        case list(parts):
            for one in parts:
                read.add(one)
        case other:
            raise Failed(malformed(f"the content is {_kind(other)}, not text"))
    return read


def _answer_in(thought: str, schema: dict[str, Any], flags: set[str]) -> str:
    """The object that was asked for, where the thinking is nothing else, fence and think mark aside; "" otherwise."""
    told = told_apart(thought)
    text = (told.answer if told.thought else thought).strip()
    fence = last_fence(text)
    if fence is not None and not fence[0].strip():
        text = fence[2]
    try:
        value = read_json(text)
    except ValueError:
        return ""
    if not isinstance(value, dict) or not value or misfit(value, schema) is not None:
        return ""
    flags.add("answer_in_reasoning")
    return text


def _finish(choice: dict[str, Any]) -> str:
    """Why the answer ended, in our words where we have one; "" where nothing is said.

    Raises:
        Failed: the server broke it off.
    """
    word = _named(choice.get("finish_reason"), _WORD_CHARS).strip()
    known = "_".join(word.lower().replace("-", " ").split())
    if known in BROKEN_OFF:
        reason = f"200, but the answer was broken off: {word}"
        raise Failed(Failure(kind="unavailable", action="retry", reason=reason, status=200))
    return FINISHES.get(known, word)


def _text(given: object) -> str:
    """A text in characters that UTF-8 has; "" for anything else."""
    return given.encode("utf-8", "replace").decode() if isinstance(given, str) else ""


def _named(given: object, longest: int) -> str:
    """A name that can be shown and kept: what names do not have is U+FFFD, so that it never becomes another name."""
    text = _text(given)[: longest + 1]
    if not text.isprintable():
        text = "".join(one if one.isprintable() else "\ufffd" for one in text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


# -- tool calls --------------------------------------------------------------------------------------------------------


def _tool_calls(message: dict[str, Any], read: _Message, key: CallKey) -> list[ToolCall]:
    """Every call; one that cannot be read is a call without a name, so that nobody takes the rest for all of them."""
    given = message.get("tool_calls")
    if not given and isinstance(legacy := message.get("function_call"), dict) and legacy:
        read.flags.add("function_call")
        given = [{"function": legacy}]
    if not given and read.calls:
        read.flags.add("call_parts")
        given = read.calls
    if isinstance(given, dict) and given:
        given = [given]
    if not isinstance(given, list):
        if given:
            read.flags.add("tool_calls")
        return []
    if len(given) > _MOST_CALLS:
        read.flags.add("many_calls")
        given = given[:_MOST_CALLS]
    calls: list[ToolCall] = []
    ids: set[str] = set()
    for place, one in enumerate(given, 1):
        call = _tool_call(one, read.flags)
        id_ = call.id
        if not id_ or id_ in ids:
            id_ = f"call-{key.ordinal}-{place}"
            while id_ in ids:
                id_ += "+"
        ids.add(id_)
        calls.append(ToolCall(id=id_, name=call.name, arguments=call.arguments))
    return calls


def _tool_call(given: object, flags: set[str]) -> ToolCall:
    """One call; its id "" where the server gives none that can be one, its name "" where the call cannot be read.

    Raises:
        Failed: a field stands twice.
    """
    outer = _certain(given) if isinstance(given, dict) else {}
    function = next((outer[one] for one in ("function", "custom") if isinstance(outer.get(one), dict)), outer)
    name = _named(_certain(function).get("name"), _NAME_CHARS)
    if not name:
        return ToolCall(id="", name="", arguments=_written(given)[:_RAW_CHARS])
    id_ = _named(outer.get("id"), _ID_CHARS)
    # Gigantic or with control characters: it is an id to nobody.
    if id_ != outer.get("id"):
        id_ = ""
    if name != function["name"]:
        flags.add("name")
    arguments = next((function[one] for one in ("arguments", "parameters", "input") if one in function), None)
    if any(isinstance(one, _Doubled) for one in _objects(arguments)):
        raise Failed(malformed(f"an argument of {name} stands twice"))
    return ToolCall(id=id_, name=name, arguments="{}" if arguments is None else _written(arguments))


def _written(value: object) -> str:
    return _text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _objects(value: object) -> Iterator[object]:
    """Every object in `value`."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _objects(one)
