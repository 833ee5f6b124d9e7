"""What an endpoint's failure means: one table, by condition. Everything that retries, gives up or stops looks here.

| condition | action |
|---|---|
| no connection, time-out, 408, 409, 425, 429, 5xx | try again, later |
| a shape that is no completion (HTML, an event stream, no choices, half an object) | try again, twice at most |
| 500 with the same body twice | refuse: this request poisons the server |
| response_format, max_tokens or temperature refused | ask in another way; not counted as a try |
| context overflow, whatever the status | refuse |
| other 4xx | refuse |
| 401, 403, 402 or a used-up quota, an unknown model, a redirect | stop the run |
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

Action = Literal["retry", "change", "refuse", "stop"]
#: what a `change` steps down
Capability = Literal["schema", "max_tokens", "temperature"]

#: tries of one request after answers of these kinds, whatever the endpoint's own number is
FEW: dict[str, int] = {"malformed": 2, "server_error": 2}

#: the longest a server may make us wait before we call it unavailable, seconds
LONGEST_RETRY_AFTER_S = 300.0
#: waits longer than this make no sense while a server warms up, seconds
WARM_UP_S = 5.0

_CONTEXT = re.compile(
    r"context[ _](?:length|size|window)|maximum context|exceed_context|too many tokens|prompt is too long"
    r"|range of input length|reduce the length",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"insufficient[ _](?:quota|balance)|exceeded your current quota|billing|arrearage", re.IGNORECASE)
_SCHEMA = re.compile(r"response_format|json_schema|json_object|structured output|grammar|schema", re.IGNORECASE)
_MODEL = re.compile(r"model[^.]{0,80}(?:not (?:found|exist)|does not exist|unknown)|model_not_found", re.IGNORECASE)
_REFUSED = re.compile(
    r"unsupported|not supported|unknown|unrecognized|invalid|unavailable|does not support", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed try."""

    #: a short word for counts and logs
    kind: str
    action: Action
    #: one line, never with a key or a prompt
    reason: str
    status: int | None = None
    #: what the server asked for
    retry_after_s: float | None = None
    capability: Capability | None = None


def of_status(status: int, body: str, headers: Mapping[str, str], now: datetime) -> Failure:
    """What a status other than 200 means."""
    reason = f"{status} {_one_line(body)}".strip()
    after = _retry_after_s(headers, now)
    if _CONTEXT.search(body) and status in (400, 413, 422, 500):
        return Failure(kind="context", action="refuse", reason=reason, status=status)
    if status == 402 or _QUOTA.search(body):
        return Failure(kind="quota", action="stop", reason=reason, status=status)
    if status in (400, 422, 500, 501) and (capability := _refused_capability(body)) is not None:
        return Failure(kind=f"no_{capability}", action="change", reason=reason, status=status, capability=capability)
    if status in (401, 403):
        return Failure(kind="key", action="stop", reason=reason, status=status)
    if status == 404:
        kind = "model_not_found" if _MODEL.search(body) else "not_found"
        return Failure(kind=kind, action="stop", reason=reason, status=status)
    if 300 <= status < 400:
        target = headers.get("location", "elsewhere")
        told = f"{status}: the endpoint redirects to {target}; give that address as base_url if you trust it"
        return Failure(kind="redirect", action="stop", reason=told, status=status)
    if status in (408, 409, 425, 429) or status >= 500:
        kind = {429: "rate_limited", 503: "warming_up", 500: "server_error"}.get(status, "unavailable")
        return Failure(kind=kind, action="retry", reason=reason, status=status, retry_after_s=after)
    return Failure(kind="refused", action="refuse", reason=reason, status=status)


def _refused_capability(body: str) -> Capability | None:
    if "max_tokens" in body and "max_completion_tokens" in body:
        return "max_tokens"
    if not _REFUSED.search(body):
        return None
    if "temperature" in body:
        return "temperature"
    return "schema" if _SCHEMA.search(body) else None


def malformed(what: str) -> Failure:
    """An answer with 200 that is no completion."""
    return Failure(kind="malformed", action="retry", reason=f"200, but {what}", status=200)


def unreachable(kind: str, error: BaseException) -> Failure:
    """No answer at all."""
    cause = error.__cause__ or error
    return Failure(kind=kind, action="retry", reason=f"{type(cause).__name__}: {_one_line(str(cause))}")


def _retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds, from seconds or a date; None where the header says nothing."""
    given = headers.get("retry-after", "").strip()
    if not given:
        return None
    try:
        return max(0.0, float(given))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(given)
    except ValueError:
        return None
    return max(0.0, ((when if when.tzinfo else when.replace(tzinfo=UTC)) - now).total_seconds())


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
