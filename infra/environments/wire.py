"""What crosses the border to an environment, as lines and as our types."""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from runtime.errors import EnvironmentFailed

PROTOCOL = 1

_Answer = TypeVar("_Answer")
_SURROGATE = re.compile("[\ud800-\udfff]")


def request_line(identity: int, op: str, fields: Mapping[str, Any]) -> bytes:
    """One request as a line of JSON."""
    return json.dumps({"id": identity, "op": op, **fields}).encode() + b"\n"


def answer_of(line: bytes, identity: int) -> dict[str, Any] | None:
    """The answer to request `identity` in a line, with lone surrogates as U+FFFD; None for any other line."""
    try:
        answer = json.loads(line)
        if b"\\ud" in line or b"\\uD" in line:
            answer = json.loads(_SURROGATE.sub("\ufffd", json.dumps(answer, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None
    if isinstance(answer, dict) and answer.get("id") == identity and isinstance(answer.get("ok"), bool):
        return answer
    return None


def result_of(answer: Mapping[str, Any], op: str) -> Any:
    """What `answer` says.

    Raises:
        EnvironmentFailed: it says that the operation failed.
    """
    if answer["ok"]:
        return answer.get("result")
    error = answer.get("error")
    if not isinstance(error, dict):
        error = {"message": str(error)}
    raise EnvironmentFailed(
        op,
        str(error.get("kind") or "error"),
        str(error.get("message") or "no reason given"),
        retryable=error.get("retryable") is True,
    )


def typed(value: Any, kind: type[_Answer], op: str) -> _Answer:
    """`value` (plain data, or an object of the type itself) as `kind`.

    Raises:
        EnvironmentFailed: its shape is not what the protocol says.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        raise EnvironmentFailed(op, "malformed_answer", str(problem)) from problem
