"""The tries of one call, without a server: what is tried again, what is the last word, and what all calls may spend."""

import random
from datetime import UTC, datetime

import pytest
from scripted_endpoint import FakeClock

from infra.breaker import ANSWERS_A_TRY, Breaker
from infra.model_errors import Failure, malformed, of_status, unreachable
from infra.tries import DOWN, LONGEST_PAUSE_S, REFUSES, Tries
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped
from runtime.settings import EndpointSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
URL = "http://127.0.0.1:9/v1"


def tries(breaker: Breaker | None = None, clock: FakeClock | None = None, budget: int = 0, **changes: float) -> Tries:
    """Of one call to an endpoint."""
    endpoint = EndpointSettings(base_url=URL, **{"stop_after": 1000, **changes})  # type: ignore[arg-type]  # counts
    rng = random.Random(7)  # noqa: S311 - jitter is no secret
    return Tries(endpoint, "", breaker or Breaker(), clock or FakeClock(), rng, budget)


def failed(status: int, message: str = "", **headers: str) -> Failure:
    """What `status` with `message` means."""
    return of_status(status, message, {name.replace("_", "-"): value for name, value in headers.items()}, NOW)


def outcome(call: Tries, failures: list[Failure]) -> str:
    """What a call comes to that fails in this way each time: the error's name and kind, or "" where it goes on."""
    try:
        for one in failures:
            call.pause_s(one)
    except (RunStopped, ModelRefused, ModelUnavailable) as last:
        return f"{type(last).__name__} {last.kind}"
    return ""


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([failed(503)] * 5, ""),
        ([failed(503)] * 6, "ModelUnavailable unavailable"),
        ([failed(503), failed(429), failed(408), failed(502), malformed("x"), failed(429)],
         "ModelUnavailable rate_limited"),
        ([malformed("x")] * 2, ""),
        ([malformed("x")] * 3, "ModelUnavailable malformed"),
        ([malformed("x"), failed(503), malformed("x"), failed(503)], ""),
        ([malformed("x"), failed(503), malformed("x"), failed(503), malformed("x")], "ModelUnavailable malformed"),
        ([failed(500, "a"), failed(500, "b"), failed(500, "a"), failed(500, "b")], ""),
        ([failed(500, "a")] * 2, "ModelRefused server_error"),
        ([failed(500, "a"), failed(503), failed(500, "a")], ""),
        ([failed(500, "error req_7f3a9c21 at 12:00:01"), failed(500, "error req_08bb11d2 at 12:00:09")],
         "ModelRefused server_error"),
        ([failed(500, "Failed to parse tool call arguments: 1"), failed(500, "Failed to parse tool call arguments: 2")],
         "ModelRefused poisoned"),
        ([failed(500, "Failed to parse tool call arguments"), failed(500, "other")], ""),
        ([failed(400, "maximum context length")], "ModelRefused context"),
        ([failed(400, "json_schema is not supported")], "ModelRefused no_schema"),
        ([failed(400, "content_filter")], "ModelRefused content_filter"),
        ([failed(400)], "ModelRefused refused"),
        ([failed(503), failed(401)], "RunStopped key"),
        ([failed(503), failed(402)], "RunStopped quota"),
        ([failed(404)], "RunStopped not_found"),
        ([failed(307)], "RunStopped redirect"),
        ([failed(429, retry_after="3600")], "ModelUnavailable rate_limited"),
        ([failed(503, x_should_retry="false")], "ModelUnavailable unavailable"),
        ([unreachable("refused")] * 5, ""),
        ([unreachable("refused")] * 6, "RunStopped unreachable"),
        ([failed(503)] * 5 + [unreachable("refused")], "RunStopped unreachable"),
    ],
)  # fmt: skip
def test_what_failures_in_a_row_come_to(failures: list[Failure], expected: str) -> None:
    """With five further tries; nothing comes to an end before the last of these."""
    assert outcome(tries(retries=5), failures[:-1]) == ""
    assert outcome(tries(retries=5), failures) == expected


def test_pauses_double_up_to_a_bound_and_are_drawn_anew() -> None:
    """Full jitter over base * 2^n; no pause is longer than the longest, however many tries there were."""
    call = tries(retries=100, retry_base_s=50.0)
    pauses = [call.pause_s(failed(429)) for _ in range(60)]
    assert all(0 <= pause <= min(LONGEST_PAUSE_S, 50.0 * 2**n) for n, pause in enumerate(pauses))
    assert len(set(pauses)) == len(pauses)
    assert max(pauses) > 0.8 * LONGEST_PAUSE_S


def test_no_try_begins_after_the_deadline() -> None:
    """A wait that would end after it is not begun; the error says so."""
    clock = FakeClock()
    call = tries(clock=clock, deadline_s=100.0)
    assert call.pause_s(failed(503, retry_after="50")) >= 50.0
    clock.slept.append(60.0)
    with pytest.raises(ModelUnavailable, match=r"2 tries, and no time for another within 100 s"):
        call.pause_s(failed(503, retry_after="50"))
    clock.slept.append(60.0)
    assert call.limit_s == 0.0


def test_waiting_for_a_turn_is_no_time_of_the_endpoint() -> None:
    """The deadline moves with it."""
    clock = FakeClock()
    call = tries(clock=clock, deadline_s=100.0, timeout_s=80.0)
    clock.slept.append(500.0)
    assert call.limit_s == 0.0
    call.waited(500.0)
    assert call.limit_s == 80.0


def test_calls_share_what_further_tries_they_may_make() -> None:
    """Once as many are spent, a failed try is the call's last; the error says why."""
    breaker = Breaker()
    assert outcome(tries(breaker, budget=3), [failed(503)] * 2) == ""
    first = tries(breaker, budget=3)
    assert outcome(first, [failed(503)]) == ""
    with pytest.raises(ModelUnavailable, match=r"503 \(2 tries, and none of the 3 .* is left: 10 answers earn one\)"):
        first.pause_s(failed(503))
    assert outcome(tries(breaker, budget=3), [failed(429)]) == "ModelUnavailable rate_limited"


def test_answers_earn_tries_back() -> None:
    """One for every ten, and never more than were spent."""
    breaker = Breaker()
    for _ in range(5 * ANSWERS_A_TRY):
        breaker.answered()
    assert [breaker.retry(2) for _ in range(3)] == [True, True, False]
    for _ in range(ANSWERS_A_TRY - 1):
        breaker.answered()
    assert not breaker.retry(2)
    breaker.answered()
    assert [breaker.retry(2) for _ in range(2)] == [True, False]


def test_without_a_budget_tries_are_not_shared() -> None:
    """0 = no bound."""
    breaker = Breaker()
    assert all(outcome(tries(breaker), [failed(503)]) == "" for _ in range(500))


def test_a_try_that_the_server_asks_for_spends_nothing() -> None:
    """It says when, or that it loads its model: many calls that wait as told are no storm."""
    breaker = Breaker()
    for failure in (failed(429, retry_after="1"), failed(503, "Loading model"), failed(503, "try again in 2s")):
        assert outcome(tries(breaker, budget=1), [failure] * 5) == ""
    assert breaker.retried == 0


def test_what_ends_a_call_anyway_spends_nothing() -> None:
    """Refusals, stops and last tries leave the tries to others."""
    breaker = Breaker()
    for failures in ([failed(400)], [failed(401)], [failed(503, x_should_retry="false")], [failed(400, "json_schema")]):
        outcome(tries(breaker, budget=1), failures)
    assert breaker.retried == 0


@pytest.mark.parametrize(
    ("failures", "counts"),
    [
        ([failed(400)], False),
        ([failed(400, "maximum context length")], False),
        ([failed(400, "content_filter")], False),
        ([failed(500, "Failed to parse tool call arguments")] * 2, False),
        ([failed(500, "a")] * 2, True),
        ([failed(503, x_should_retry="false")], True),
        ([malformed("x")] * 3, True),
        ([failed(429, retry_after="3600")], True),
    ],
)
def test_what_is_about_one_request_is_an_answer(failures: list[Failure], counts: bool) -> None:
    """A refusal sets the breaker back; a call that got nothing brings it nearer."""
    breaker = Breaker(failed=1)
    assert outcome(tries(breaker), failures)
    assert breaker.failed == (2 if counts else 0)


def test_a_spent_budget_counts_as_a_call_without_an_answer() -> None:
    """So that an endpoint which answers nobody pauses the run, one after the other."""
    breaker = Breaker(retried=1)
    call = [outcome(tries(breaker, budget=1, stop_after=3), [failed(503)]) for _ in range(3)]
    assert call == ["ModelUnavailable unavailable"] * 2 + [f"RunStopped {DOWN}"]


def test_an_endpoint_that_refuses_request_after_request_is_given_up() -> None:
    """As often alike as calls may stay without an answer: this is not about a request."""
    breaker = Breaker()
    calls = [outcome(tries(breaker, stop_after=3), [failed(400, "no")]) for _ in range(3)]
    assert calls == ["ModelRefused refused"] * 2 + [f"RunStopped {REFUSES}"]
    breaker.answered()
    assert outcome(tries(breaker, stop_after=3), [failed(400, "no")]) == "ModelRefused refused"


def test_a_run_that_is_resumed_gets_past_what_was_refused() -> None:
    """The request that gave the endpoint up is asked first, and would give it up for as long as its process lives."""
    breaker = Breaker()
    calls = [outcome(tries(breaker, stop_after=3), [failed(400, "no")]) for _ in range(6)]
    assert calls == (["ModelRefused refused"] * 2 + [f"RunStopped {REFUSES}"]) * 2


def test_refused_calls_under_way_stop_with_the_one_that_gave_the_endpoint_up() -> None:
    """Those refused as it was, until there is an answer; they do not bring the next run nearer to its end."""
    breaker = Breaker()
    under_way = [tries(breaker, stop_after=2) for _ in range(6)]
    calls = [outcome(one, [failed(400, "no")]) for one in under_way[:4]]
    assert calls == ["ModelRefused refused"] + [f"RunStopped {REFUSES}"] * 3
    assert outcome(under_way[4], [failed(400, "maximum context length")]) == "ModelRefused context"
    assert outcome(under_way[5], [failed(400, "no")]) == "ModelRefused refused"


@pytest.mark.parametrize("between", [failed(400, "maximum context length"), failed(400, "'temperature' unsupported")])
def test_refusals_that_are_not_alike_are_about_requests(between: Failure) -> None:
    """Another kind begins anew."""
    breaker = Breaker()
    calls = [outcome(tries(breaker, stop_after=2), [one]) for one in (failed(400), between, failed(400), between)]
    assert [one.split()[0] for one in calls] == ["ModelRefused"] * 4


def test_what_requests_bring_upon_themselves_says_nothing_of_an_endpoint() -> None:
    """However many there are: a filter, a context, a history that cannot be read."""
    breaker = Breaker()
    for told in (failed(400, "maximum context length"), failed(400, "content_filter")):
        assert {outcome(tries(breaker, stop_after=2), [told]).split()[0] for _ in range(9)} == {"ModelRefused"}
