"""A completion's bytes as a `ChatAnswer`: the shape of what came is checked before anything else."""

import json
import re
from datetime import datetime
from typing import Any

from infra.model_errors import Failed, malformed, object_in, of_error_object
from runtime.logger import Logger
from runtime.ports import CallKey, ChatAnswer, ChatRequest, TokenUsage, ToolCall

_log = Logger("chime.model")

#: how much of a name that a server gives is kept, characters
_NAME_CHARS = 200

#: thinking that no parser of the server's has taken out of the answer; without an end where the answer was cut off
_THOUGHT = re.compile(r"\A\s*<think>(.*?)(?:</think>\s*|\Z)", re.DOTALL)


def completion(body: bytes, request: ChatRequest, key: CallKey, now: datetime) -> ChatAnswer:
    """The answer in a completion's bytes, whatever else a server put there.

    Raises:
        Failed: it is none; what it is instead.
    """
    plain, choice, message = _parts(body, now)
    content = _text(message.get("content"))
    reasoning = _text(message.get("reasoning_content") or message.get("reasoning"))
    if thought := _THOUGHT.match(content):
        content, reasoning = content[thought.end() :], reasoning + thought[1].strip()
    if request.schema is not None and not content.strip() and _is_object(reasoning):
        _log.info("answer_in_reasoning", call=key.id, run_id=key.run)
        content = reasoning
    calls = _tool_calls(message.get("tool_calls"), key)
    finish = _text(choice.get("finish_reason"))[:_NAME_CHARS] or ("tool_calls" if calls else "stop")
    if not content and not calls and (refusal := _text(message.get("refusal"))):
        content, finish = refusal, "content_filter"
    return ChatAnswer(
        content=content,
        tool_calls=calls,
        finish_reason=finish,
        usage=_usage(plain.get("usage")),
        model=_text(plain.get("model"))[:_NAME_CHARS],
        fingerprint=_text(plain.get("system_fingerprint"))[:_NAME_CHARS],
        reasoning=reasoning,
    )


def _parts(body: bytes, now: datetime) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The completion, its first choice and that choice's message.

    Raises:
        Failed: one of them is missing or of another type, or there is an error in its place.
    """
    plain = object_in(body)
    choices = plain.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if told := plain.get("error") or (isinstance(choice, dict) and choice.get("error")):
        raise Failed(of_error_object(told, now))
    if not isinstance(choice, dict):
        raise Failed(malformed("no choices"))
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Failed(malformed("no message in the first choice"))
    return plain, choice, message


def _text(given: object) -> str:
    """Text from a string or a list of parts, in characters that UTF-8 has; "" for anything else."""
    if isinstance(given, list):
        parts = (one.get("text") if isinstance(one, dict) else one for one in given)
        given = "".join(part for part in parts if isinstance(part, str))
    return given.encode("utf-8", "replace").decode() if isinstance(given, str) else ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _tool_calls(given: object, key: CallKey) -> list[ToolCall]:
    """Every call with a name; an id that is missing or doubled is replaced by one of ours."""
    calls: list[ToolCall] = []
    ids: set[str] = set()
    for place, one in enumerate(given if isinstance(given, list) else (), 1):
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict) or not (name := _text(function.get("name"))):
            continue
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments if arguments is not None else {}, ensure_ascii=False)
        id_ = _text(one.get("id"))
        if not id_ or id_ in ids:
            id_ = f"call-{key.ordinal}-{place}"
            while id_ in ids:
                id_ += "+"
        ids.add(id_)
        calls.append(ToolCall(id=id_, name=name, arguments=_text(arguments)))
    return calls


def _usage(given: object) -> TokenUsage:
    """Counts that can be counts; None for the others."""
    if not isinstance(given, dict):
        return TokenUsage()
    details = given.get("prompt_tokens_details")

    def count(value: object) -> int | None:
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else None

    return TokenUsage(
        prompt_tokens=count(given.get("prompt_tokens")),
        completion_tokens=count(given.get("completion_tokens")),
        cached_tokens=count(details.get("cached_tokens")) if isinstance(details, dict) else None,
    )
