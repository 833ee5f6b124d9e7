"""What an endpoint's failure means: one table, by condition. Everything that retries, gives up or stops looks here.

| condition | action | when the tries are used up |
|---|---|---|
| no connection: refused, no such host, TLS, a proxy's refusal, too slow to connect | try again, later | stop the run |
| a connection that breaks, time-out, 408, 409, 425, 429, 5xx | try again, later | unavailable |
| 200 without a completion (HTML, a stream, no choices, half an object) | try again, twice at most | unavailable |
| 500 with the same body twice in a row | refuse: this request poisons the server | |
| a Retry-After beyond `LONGEST_RETRY_AFTER_S`, `x-should-retry: false` | give up | unavailable |
| response_format, max_tokens or temperature refused | ask in another way; not counted as a try | |
| context overflow, whatever the status | refuse | |
| other 4xx | refuse | |
| 401, 402, 403, a used-up quota, an unknown model, any 404, a redirect | stop the run | |

"Unavailable" may be about one request; whether it is about the endpoint after all is counted in `infra.breaker`.

Endpoints word the same condition differently, and some echo the request in their error. What is matched is therefore
the error's own fields, not the whole body, and no word that a task might contain by itself.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from infra.redaction import redacted_strictly

#: `give_up` = unavailable at once; `change` = ask the same in another way
Action = Literal["retry", "give_up", "change", "refuse", "stop"]
#: what a `change` steps down
Capability = Literal[
    "schema", "max_tokens", "temperature", "system", "tools", "parallel_tools", "thinking", "stream", "context"
]

#: further tries of one request after answers that are no completion, whatever the endpoint's own number is
MALFORMED_RETRIES = 2
#: the longest a server may make us wait before we call it unavailable, seconds
LONGEST_RETRY_AFTER_S = 300.0
#: the longest pause between two tries, seconds; a server that loads its model is asked again sooner
LONGEST_PAUSE_S, LONGEST_WARM_UP_PAUSE_S = 120.0, 5.0

#: how much of what an error says is matched, and shown, characters
_MATCHED, _SHOWN = 2000, 300
#: the transport's errors before there is a connection
_NO_CONNECTION = frozenset({"ConnectError", "ConnectTimeout", "ProxyError"})

_CONTEXT = re.compile(
    r"context[ _](?:length|size|window|limit)|maximum context|exceed_context|too many (?:input )?tokens"
    r"|prompt (?:is )?too long|range of input length|reduce the length of|input token count",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"insufficient[ _](?:quota|balance|credit)|exceeded your current quota|billing[ _](?:hard[ _])?limit|arrearage",
    re.IGNORECASE,
)
_MODEL = re.compile(r"model[ _]not[ _]|no such model|\bmodel \S{1,120} (?:does not exist|not found)", re.IGNORECASE)
# With 400 an endpoint may be repeating a prompt, and prompts speak of balances and of models of cars.
_QUOTA_400 = re.compile(r"billing_hard_limit_reached|arrearage", re.IGNORECASE)
_MODEL_400 = re.compile(
    r"model_not_(?:found|exist)|^model not exist|is not a valid model|invalid model name", re.IGNORECASE
)
_LOADING = re.compile(r"\bloading\b|\bwarming\b|\bstarting\b", re.IGNORECASE)
_FORMAT = re.compile(r"response_format|json_schema|json_object|structured output|guided_json|grammar", re.IGNORECASE)
_REFUSED = re.compile(
    r"unsupported|not support|unknown|unrecognized|unrecognised|invalid|unavailable|failed|error resolving|unresolved",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed try."""

    #: a short word for counts and logs
    kind: str
    action: Action
    #: what an endpoint says, as long as it is and with whatever secrets it holds: for others only as `shown`
    reason: str
    status: int | None = None
    #: what the server asked for, seconds in [0, LONGEST_RETRY_AFTER_S]
    retry_after_s: float | None = None
    #: with `change` only
    capability: Capability | None = None
    #: with `retry` only: whether nothing could be connected to, so that no other request would fare better
    unreached: bool = False

    def shown(self, secret: str) -> "Failure":
        """The same with a reason that may be shown and kept: one short line, without `secret` and what looks like one.

        Args:
            secret: the key that was sent, which need not look like one; "" = none.
        """
        return replace(self, reason=said(self.reason, secret))


class Failed(Exception):
    """One failed try, inside the model client only: what leaves it are the errors of `runtime.errors`."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.reason)


def of_status(status: int, body: str, headers: Mapping[str, str], now: datetime) -> Failure:
    """What a status outside 2xx means.

    Args:
        status: of the response, or the code of an error inside a 200.
        body: as text; JSON, HTML or anything.
        headers: names in lower case.
        now: what a Retry-After date is compared with.
    """
    told = _told(body)
    reason = f"{status} {told}".strip()
    failure = _of_words(status, told, reason)
    if failure is not None:
        return failure
    if status in (401, 403):
        return Failure(kind="key", action="stop", reason=reason, status=status)
    if status == 404:
        return Failure(kind="not_found", action="stop", reason=reason, status=status)
    if 300 <= status < 400:
        target = headers.get("location", "elsewhere")
        told = f"{status}: the endpoint redirects; give its target as base_url if you trust it: {target}"
        return Failure(kind="redirect", action="stop", reason=told, status=status)
    if status in (408, 409, 425, 429) or status >= 500:
        return _later(status, told, reason, headers, now)
    return Failure(kind="refused", action="refuse", reason=reason, status=status)


def _of_words(status: int, told: str, reason: str) -> Failure | None:
    """What the words of an error mean, before its status does; None where they say nothing."""
    if status in (400, 413, 422, 500) and _CONTEXT.search(told):
        return Failure(kind="context", action="refuse", reason=reason, status=status)
    if status == 402 or (status in (400, 403, 429) and (_QUOTA_400 if status == 400 else _QUOTA).search(told)):
        return Failure(kind="quota", action="stop", reason=reason, status=status)
    if status in (400, 404, 422) and (_MODEL if status == 404 else _MODEL_400).search(told):
        return Failure(kind="model_not_found", action="stop", reason=reason, status=status)
    if status in (400, 422, 500, 501) and (capability := _refused_capability(told)) is not None:
        return Failure(kind=f"no_{capability}", action="change", reason=reason, status=status, capability=capability)
    return None


def _refused_capability(told: str) -> Capability | None:
    if "max_tokens" in told and "max_completion_tokens" in told:
        return "max_tokens"
    if _FORMAT.search(told):
        return "schema"
    if not _REFUSED.search(told):
        return None
    if "temperature" in told:
        return "temperature"
    return "schema" if "schema" in told.lower() else None


def _later(status: int, told: str, reason: str, headers: Mapping[str, str], now: datetime) -> Failure:
    kind = {408: "timeout", 429: "rate_limited", 500: "server_error"}.get(status, "unavailable")
    if status == 503 and _LOADING.search(told):
        kind = "warming_up"
    after = _retry_after_s(headers, now)
    if after is not None and after > LONGEST_RETRY_AFTER_S:
        reason = f"{status} (asks us to wait {after:.0f} s) {told}".strip()
        return Failure(kind=kind, action="give_up", reason=reason, status=status)
    action: Action = "give_up" if headers.get("x-should-retry", "").strip().lower() == "false" else "retry"
    return Failure(kind=kind, action=action, reason=reason, status=status, retry_after_s=after)


def malformed(what: str) -> Failure:
    """A 200 that holds no completion."""
    return Failure(kind="malformed", action="retry", reason=f"200, but {what}", status=200)


def object_in(body: bytes) -> dict[str, Any]:
    """The JSON object that a 200 holds.

    Raises:
        Failed: it holds something else.
    """
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError) as error:
        beginning = _start(body[: 32 * _MATCHED].decode("utf-8", "replace"))
        raise Failed(malformed(f"no JSON: {beginning}")) from error
    if not isinstance(plain, dict):
        raise Failed(malformed(f"a JSON {type(plain).__name__}"))
    return plain


def of_error_object(error: object, now: datetime) -> Failure:
    """What an error inside a 200 means: its code where that is a status, its words otherwise."""
    code = error.get("code") if isinstance(error, dict) else None
    body = json.dumps({"error": error}, ensure_ascii=False)
    if isinstance(code, int) and 400 <= code < 600:
        return of_status(code, body, {}, now)
    told = _told(body)
    failure = malformed(f"an error: {told}")
    return _of_words(400, told, failure.reason) or _of_words(429, told, failure.reason) or failure


def too_slow(timeout_s: float) -> Failure:
    """A try that was cut off."""
    return Failure(kind="timeout", action="retry", reason=f"no whole answer within {timeout_s:g} s")


def unreachable(error: BaseException) -> Failure:
    """No answer at all; the SDK keeps the transport's own error as the cause of its error."""
    cause = error.__cause__ or error
    reason = ": ".join(filter(None, (type(cause).__name__, str(cause))))
    # By name: the HTTP client is a dependency of the SDK, not of ours.
    unreached = any(base.__name__ in _NO_CONNECTION for base in type(cause).__mro__)
    kind = "unreachable" if unreached else "connection"
    return Failure(kind=kind, action="retry", reason=reason, unreached=unreached)


def said(text: str, secret: str = "") -> str:
    """What somebody else has written, for an error, a record or a log line.

    White space folded, nothing that steers a terminal, 300 characters at most, `secret` and what looks like one blotted
    out: before the cut, so that no half of a key is left.
    """
    line = "".join(one if one.isprintable() else "\ufffd" for one in " ".join(text.split()))
    return redacted_strictly(line.replace(secret, "***") if secret else line)[:_SHOWN]


def _told(body: str) -> str:
    """What an error says: the message with code, type and parameter where it has them, the start of the body else."""
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError):
        return _start(body)
    error = plain.get("error", plain) if isinstance(plain, dict) else plain
    if isinstance(error, str):
        return _start(error)
    if not isinstance(error, dict):
        return _start(body)
    message = next((error[name] for name in ("message", "detail", "msg") if error.get(name)), None)
    if isinstance(message, list):
        # One entry a wrong field, each with the whole input beside it: its sense is in `msg`.
        message = "; ".join(f"{one.get('loc')}: {one.get('msg')}" for one in message if isinstance(one, dict))
    if not isinstance(message, str):
        return _start(body)
    named = [str(error[name]) for name in ("code", "type", "param") if isinstance(error.get(name), (str, int))]
    return _start(f"{message} ({', '.join(named)})" if named else message)


def _start(text: str) -> str:
    """The first whole words of `text`: half of a secret looks like none."""
    line = " ".join(text.split())
    return line if len(line) <= _MATCHED else line[:_MATCHED].rpartition(" ")[0] or line[:_MATCHED]


def _retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds >= 0, from milliseconds, seconds or a date; None where the headers say nothing."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers.get(name, "")) * unit_s)
        except ValueError:
            continue
    try:
        when = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, OverflowError):
        return None
    return max(0.0, ((when if when.tzinfo else when.replace(tzinfo=UTC)) - now).total_seconds())
