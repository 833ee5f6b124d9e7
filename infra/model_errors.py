"""What an endpoint's failure means, read from its status, headers and words with the table in `infra.error_table`.

A wait that the server asks for is kept to up to `LONGEST_RETRY_AFTER_S`; beyond that it is unavailable for this call.
What no server can mean (less than none, more than a month, no number) counts as not said.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from infra.error_table import Action, Capability, Row, Spent, row_of, row_of_words, row_without_status
from infra.error_text import Told, start, told_in
from infra.redaction import redacted_strictly, without_key
from runtime.errors import ModelRefused

#: the longest a server may make us wait before we call it unavailable, seconds
LONGEST_RETRY_AFTER_S = 300.0
#: beyond this nobody means what they ask for, seconds
_ABSURD_S = 31 * 86400.0

#: how much of what an error says is shown, characters
_SHOWN = 300

_SPAN = r"(?:[\d.]+ ?(?:milliseconds?|ms|seconds?|s|minutes?|m|hours?|h)(?![a-z]) ?)+"
_WAIT = re.compile(rf"(?:(?:retry|try again) (?:in|after)|\bwait)\W{{0,3}}({_SPAN})", re.IGNORECASE)
_PART = re.compile(r"([\d.]+) ?(ms|milli|[smh])", re.IGNORECASE)
_UNIT_S = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed try."""

    #: the table's word for counts and logs
    kind: str
    action: Action
    #: what an endpoint says, as long as it is and with whatever secrets it holds: for others only as `shown`
    reason: str
    status: int | None = None
    #: what the server asked for, seconds in [0, LONGEST_RETRY_AFTER_S]
    retry_after_s: float | None = None
    #: with `change` only
    capability: Capability | None = None
    #: with `retry` only: how many tries more, at most; None = as many as the endpoint's settings say
    further: int | None = None
    #: what it comes to once nothing is left to try
    spent: Spent = "unavailable"

    @property
    def unreached(self) -> bool:
        """Whether nothing could be connected to, so that no other request would fare better."""
        return self.action == "retry" and self.spent == "stop"

    def shown(self, secret: str) -> "Failure":
        """The same with a reason that may be shown and kept: one short line, without `secret` and what looks like one.

        Args:
            secret: the key that was sent, which need not look like one; "" = none.
        """
        return replace(self, reason=said(self.reason, secret))


class Failed(Exception):
    """One failed try, inside the model client only: what leaves it are the errors of `runtime.errors`."""

    def __init__(self, failure: Failure, body: str = "") -> None:
        """One try.

        Args:
            failure: what it means.
            body: what came, where it was read; with whatever secrets it holds.
        """
        self.failure, self.body = failure, body
        super().__init__(failure.reason)


def of_status(status: int, body: str, headers: Mapping[str, str], now: datetime, sent: bytes = b"") -> Failure:
    """What a status outside 2xx means.

    Args:
        status: of the response, or the code of an error inside a 200.
        body: as text; JSON, HTML or anything.
        headers: names in lower case.
        now: what a Retry-After date is compared with, where the server does not say what it takes for now.
        sent: the body of the request, whose words an error may repeat.
    """
    told = told_in(body).without(sent)
    reason = f"{status} {told.line}".strip()
    row = row_of(status, told) if status >= 300 else row_without_status("malformed")
    if row.kind == "redirect":
        target = headers.get("location", "elsewhere")
        reason = f"{status}: the endpoint redirects; give its target as base_url if you trust it: {target}"
    failure = _failure(row, reason, status)
    return _in_time(failure, told, headers, now) if row.action in ("retry", "refuse") else failure


def _failure(row: Row, reason: str, status: int | None = None) -> Failure:
    return Failure(
        kind=row.kind, action=row.action, reason=reason, status=status, capability=row.capability,
        further=row.further, spent=row.spent,
    )  # fmt: skip


def _in_time(failure: Failure, told: Told, headers: Mapping[str, str], now: datetime) -> Failure:
    """`failure` with what the server says of another try, and when."""
    should = headers.get("x-should-retry", "").strip().lower()
    if failure.action == "refuse":
        again = should == "true" and failure.kind == "refused"
        return replace(failure, action="retry", kind="unavailable", spent="unavailable") if again else failure
    after = _retry_after_s(headers, now)
    if after is None:
        after = _told_wait_s(told.message)
    if after is not None and after > LONGEST_RETRY_AFTER_S:
        reason = f"{failure.status} (asks us to wait {after:.0f} s) {told.line}".strip()
        return replace(failure, action="give_up", reason=reason)
    return replace(failure, action="give_up" if should == "false" else "retry", retry_after_s=after)


def malformed(what: str) -> Failure:
    """A 200 that holds no completion."""
    return _failure(row_without_status("malformed"), f"200, but {what}", 200)


def object_in(body: bytes) -> dict[str, Any]:
    """The JSON object that a 200 holds.

    Raises:
        Failed: it holds something else.
    """
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError) as error:
        beginning = start(body[:65536].decode("utf-8", "replace"))
        raise Failed(malformed(f"no JSON: {beginning}")) from error
    if not isinstance(plain, dict):
        raise Failed(malformed(f"a JSON {type(plain).__name__}"))
    return plain


def of_error_object(error: object, now: datetime) -> Failure:
    """What an error inside a 200 means: its code where that is a status, its words otherwise."""
    body = json.dumps({"error": error}, ensure_ascii=False)
    if isinstance(error, dict):
        for name in ("code", "status", "status_code"):
            if (status := _status(error.get(name))) is not None:
                return of_status(status, body, {}, now)
    told = told_in(body)
    failure = malformed(f"an error: {told.line}")
    row = row_of_words(told)
    return failure if row is None else _failure(row, failure.reason, 200)


def _status(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) == 3:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600 else None


def of_object_without_choices(plain: Mapping[str, Any], now: datetime) -> Failure:
    """What a 200 means whose object holds no choices: an error in its own form, or nothing that is known.

    `{"object": "error", "code": 400, ...}`, `{"code": "Arrearage", ...}`, `{"base_resp": {...}}`, `{"detail": ...}`.
    """
    told = told_in(json.dumps({name: value for name, value in plain.items() if name != "choices"}, default=str))
    if not told.names and not any(plain.get(name) for name in ("error", "message", "detail", "msg", "errors")):
        return malformed("no choices")
    return of_error_object(dict(plain), now)


def too_slow(timeout_s: float) -> Failure:
    """A try that was cut off."""
    return _failure(row_without_status("timeout"), f"no whole answer within {max(0.0, timeout_s):g} s")


def late(first_byte_s: float) -> Failure:
    """A try whose answer has not begun."""
    return _failure(row_without_status("first_byte"), f"no answer begun within {first_byte_s:g} s")


def unsendable(error: Exception) -> ModelRefused:
    """A request that holds something JSON has no form for, which `error` says."""
    return ModelRefused("unsendable", f"the request cannot be written as JSON: {said(str(error))}")


def unreachable(reason: str) -> Failure:
    """Nothing could be connected to."""
    return _failure(row_without_status("unreachable"), reason)


def broken(reason: str) -> Failure:
    """A connection that was there and broke before the answer was whole."""
    return _failure(row_without_status("connection"), reason)


def said(text: str, secret: str = "") -> str:
    """What somebody else has written, for an error, a record or a log line.

    White space folded, nothing that steers a terminal, 300 characters at most, `secret` and what looks like one blotted
    out: before the cut, so that no half of a key is left.
    """
    line = "".join(one if one.isprintable() else "\ufffd" for one in " ".join(text.split()))
    return redacted_strictly(without_key(line, secret))[:_SHOWN]


def _retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds >= 0, from milliseconds, seconds or a date; None where the headers say nothing that can be meant."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return _meant(float(headers.get(name, "")) * unit_s)
        except ValueError:
            continue
    until = _date(headers.get("retry-after", ""))
    if until is None:
        return None
    # By the server's own clock where it tells: ours may be hours away from it.
    after_s = (until - (_date(headers.get("date", "")) or now)).total_seconds()
    return _meant(max(0.0, after_s))


def _meant(seconds: float) -> float | None:
    return seconds if 0 <= seconds <= _ABSURD_S else None


def _date(text: str) -> datetime | None:
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _told_wait_s(message: str) -> float | None:
    """Seconds that a message names: "try again in 1m30.5s", "retry after 6 seconds"; None where it names none."""
    if (found := _WAIT.search(message)) is None:
        return None
    try:
        return _meant(sum(float(number) * _UNIT_S[unit.lower()] for number, unit in _PART.findall(found[1])))
    except ValueError:
        return None
