"""What a failure is read as: headers, errors inside a 200, words that a prompt may hold, and what is shown."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.error_table import TABLE
from infra.model_errors import (
    LONGEST_RETRY_AFTER_S,
    Failure,
    broken,
    malformed,
    of_error_object,
    of_object_without_choices,
    of_status,
    said,
    unreachable,
)

HEX = "0123456789abcdef" * 3
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _shapes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["error", "message", "detail", "msg", "code", "type", "metadata", "raw", "innererror", "x"])
    return st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4)


def judged(status: int, error: Any, **headers: str) -> Failure:
    """What `status` with an OpenAI error, or any other body, means."""
    body = error if isinstance(error, str) else json.dumps({"error": error})
    return of_status(status, body, {name.replace("_", "-"): value for name, value in headers.items()}, NOW)


@pytest.mark.parametrize("status", [400, 422, 429, 500])
def test_an_echoed_prompt_means_nothing(status: int) -> None:
    """Words of a task inside an error are not the error's own."""
    prompt = (
        "Is the model of my thermostat invalid? Set its temperature; my billing plan is unsupported, see the schema."
    )
    cars = "I have an insufficient balance, the model Corolla does not exist, no such model"
    details = {"detail": [{"loc": ["body", "messages"], "msg": "field required", "input": prompt}]}
    expected = of_status(status, '{"detail": "field required"}', {}, NOW)
    failure = of_status(status, json.dumps(details), {}, NOW)
    assert (failure.kind, failure.action) == (expected.kind, expected.action)
    assert "thermostat" not in failure.reason
    if status == 400:
        assert judged(status, {"message": f"wrong input: {cars}"}).action == "refuse"
    padded = of_status(status, json.dumps({"error": {"message": "wrong: " + "x" * 3000 + prompt}}), {}, NOW)
    assert (padded.kind, padded.action) == (expected.kind, expected.action)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"error": {"message": "no", "code": "c", "type": null, "param": "p"}}', "400 no (c, p)"),
        ('{"error": "no"}', "400 no"),
        ('{"message": "no"}', "400 no"),
        ('{"detail": "no"}', "400 no"),
        ('{"detail": [{"loc": ["body"], "msg": "no"}]}', "400 ['body']: no"),
        ('{"error": {"message": {"odd": 1}}}', '400 {"error": {"message": {"odd": 1}}}'),
        ('{"error": 3}', '400 {"error": 3}'),
        ("[1]", "400 [1]"),
        ("  two\n lines ", "400 two lines"),
        ("", "400"),
        ("[" * 100_000, "400 " + "[" * 296),
    ],
)
def test_the_reason_is_what_the_error_says(body: str, reason: str) -> None:
    """One line of the message with its codes, from any shape of error."""
    assert of_status(400, body, {}, NOW).shown("").reason == reason


#: sentences that a task may well hold, each of which would decide something
PROMPTS = {
    "quota": "The customer says: insufficient_quota, you exceeded your current quota, arrearage, no credits.",
    "context": "Explain why this model's maximum context length is 8192 tokens and what context_length_exceeded means.",
    "model": "model_not_found: the model `Corolla` does not exist, says the dealer.",
    "filter": "Was the post flagged by the content filter for inappropriate content?",
    "schema": "Why does response_format json_schema fail with unsupported grammar errors?",
    "tools": "Why is 'tools' not supported, and tool calling not enabled, in this old library?",
    "thinking": "Set enable_thinking to false, as reasoning_effort is not supported.",
    "system": "The system role is not supported and conversation roles must alternate, it says.",
    "temperature": "The thermostat's 'temperature' is invalid: temperature must be below 30 degrees.",
    "cap": "Why is max_tokens too large, and max_completion_tokens unknown?",
    "stream": "Streaming is not supported in this stream, says 'stream_options' invalid.",
    "poison": "Why does it say Failed to parse tool call arguments as JSON?",
    "wait": "Please try again in 900 seconds or so, says the shop's web page.",
}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("status", [400, 403, 404, 422, 429, 500, 503])
def test_what_an_error_repeats_of_the_request_means_nothing(prompt: str, status: int) -> None:
    """Whatever the prompt says, the status decides, and no word of the prompt is shown."""
    sent = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"Task.\n{prompt}"}]}).encode()
    for error in (
        {"error": {"message": "wrong: messages.0.content: %s", "type": "invalid_request_error"}},
        {"error": "could not handle {'role': 'user', 'content': \"%s\"}"},
        {"detail": [{"loc": ["body", "messages"], "msg": "bad input", "input": "%s"}]},
        {"detail": [{"loc": ["body", "messages"], "msg": "bad input %s"}]},
        "<html>500: %s</html>",
    ):
        body = error if isinstance(error, str) else json.dumps(error)
        echo = body.replace("%s", prompt if isinstance(error, str) else json.dumps(prompt)[1:-1])
        expected = of_status(status, body.replace("%s", "nothing"), {}, NOW)
        failure = of_status(status, echo, {}, NOW, sent)
        assert (failure.kind, failure.action, failure.retry_after_s) == (expected.kind, expected.action, None)
        assert not [word for word in prompt.split()[1:-1] if len(word) > 6 and f" {word} " in f" {failure.reason} "]


def test_an_error_keeps_its_own_words_beside_those_of_the_request() -> None:
    """Taken out is what the request says, not what the server says about it, and not its code."""
    sent = json.dumps({"messages": [{"content": "the quick brown fox jumps over"}]}).encode()
    told = "Your input 'the quick brown fox jumps over' was blocked: maximum context length is 10 tokens"
    failure = of_status(400, json.dumps({"error": {"message": told}}), {}, NOW, sent)
    assert failure.reason == "400 Your input '\u2026' was blocked: maximum context length is 10 tokens"
    assert failure.kind == "context"
    coded = {"error": {"message": "the quick brown fox jumps over", "code": "insufficient_quota"}}
    assert of_status(429, json.dumps(coded), {}, NOW, sent).kind == "quota"


@pytest.mark.parametrize("sent", [b"", b"{", b"\xff", b"[]", b"3", b"null", b"[" * 10_000])
def test_a_request_that_cannot_be_read_takes_nothing_out(sent: bytes) -> None:
    """The error is read as it is."""
    assert of_status(400, '{"error": "a b c d e"}', {}, NOW, sent).reason == "400 a b c d e"


@given(
    st.integers(300, 999),
    st.one_of(st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), _shapes).map(json.dumps)),
    st.dictionaries(
        st.sampled_from(["retry-after", "retry-after-ms", "date", "x-should-retry", "location"]), st.text()
    ),
    st.binary(max_size=99),
)
def test_any_error_is_judged(status: int, body: str, headers: dict[str, str], sent: bytes) -> None:
    """Whatever a server writes: a kind of the table, a wait within the bound, a line that can be shown."""
    failure = of_status(status, body, headers, NOW, sent)
    assert failure.kind in {row.kind for row in TABLE}
    assert (failure.capability is not None) == (failure.action == "change")
    assert failure.retry_after_s is None or 0 <= failure.retry_after_s <= LONGEST_RETRY_AFTER_S
    assert failure.shown("").reason.isprintable()


@pytest.mark.parametrize(
    ("headers", "asked_s"),
    [
        ({}, None),
        ({"retry-after": "17"}, 17.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": " 3 "}, 3.0),
        ({"retry-after-ms": "2500"}, 2.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Thu, 01 Jan 2026 00:01:00 GMT"}, 60.0),
        ({"retry-after": "Thu, 01 Jan 2020 00:00:00 GMT"}, 0.0),
        # A server whose clock is an hour ahead of ours.
        ({"retry-after": "Thu, 01 Jan 2026 01:00:30 GMT", "date": "Thu, 01 Jan 2026 01:00:00 GMT"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT", "date": "odd"}, 30.0),
        ({"retry-after": str(LONGEST_RETRY_AFTER_S)}, LONGEST_RETRY_AFTER_S),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "Thu, 01 Jan 2099 00:00:00 GMT"}, None),
        ({"retry-after": "Thu, 01 Jan 99999999999 00:00:00 GMT"}, None),
        ({"retry-after": "Xyz, 99 Foo 2026 99:99:99 GMT"}, None),
    ],
)
def test_a_wait_is_read_from_what_servers_write(headers: dict[str, str], asked_s: float | None) -> None:
    """Milliseconds, seconds or a date; what nobody can mean counts as not said, and the try is made again."""
    for status in (429, 503):
        failure = of_status(status, "", headers, NOW)
        assert (failure.action, failure.retry_after_s) == ("retry", asked_s)


@pytest.mark.parametrize(
    ("message", "asked_s"),
    [
        ("Rate limit reached. Please try again in 20s. Visit the dashboard.", 20.0),
        ("Please try again in 245ms.", 0.245),
        ("Please try again in 1m30.5s.", 90.5),
        ("Please retry after 6 seconds.", 6.0),
        ("Please retry in 37.43s", 37.43),
        ("Try again in 2 minutes", 120.0),
        ("Rate limit exceeded. Please wait 30 seconds before retrying.", 30.0),
        ("Please wait a little", None),
        ("Try again in 1.2.3s", None),
        ("Try again in a moment", None),
        ("Try again in 3 days", None),
    ],
)
def test_a_wait_may_stand_in_the_message(message: str, asked_s: float | None) -> None:
    """Where no header says it; a header goes before it."""
    assert judged(429, {"message": message}).retry_after_s == asked_s
    assert judged(429, {"message": message}, retry_after="5").retry_after_s == 5.0


@pytest.mark.parametrize("value", [str(LONGEST_RETRY_AFTER_S + 1), "86400", "Fri, 02 Jan 2026 00:00:00 GMT"])
def test_a_wait_beyond_the_bound_ends_the_tries(value: str) -> None:
    """No worker waits that long for one call."""
    over = judged(429, "", retry_after=value)
    assert (over.action, over.retry_after_s, over.spent) == ("give_up", None, "unavailable")
    assert "asks us to wait" in over.reason


@pytest.mark.parametrize(
    ("status", "should", "action"),
    [
        (503, "false", "give_up"),
        (503, "true", "retry"),
        (503, "perhaps", "retry"),
        (400, "true", "retry"),
        (400, "false", "refuse"),
        (401, "true", "stop"),
    ],
)
def test_a_server_may_say_whether_another_try_helps(status: int, should: str, action: str) -> None:
    """It knows of its own errors; a key stays wrong."""
    assert judged(status, "", x_should_retry=should).action == action


def test_a_redirect_names_its_target_and_does_not_trust_it() -> None:
    """The user decides."""
    failure = judged(307, "", location="https://elsewhere/v1")
    assert "https://elsewhere/v1" in failure.reason
    assert "if you trust it" in failure.reason


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 429, "message": "slow"}, "rate_limited"),
        ({"code": "429", "message": "slow"}, "rate_limited"),
        ({"status": 503, "message": "busy"}, "unavailable"),
        ({"code": 200, "message": "odd"}, "malformed"),
        ({"code": 40303, "message": "This model's maximum context length is 4096 tokens."}, "context"),
        ({"code": True}, "malformed"),
        ({"code": "Arrearage", "message": "Access denied"}, "quota"),
        ({"message": "no", "code": "content_filter"}, "content_filter"),
        ("insufficient_quota", "quota"),
        ("maximum context length", "context"),
        ({"type": "authentication_error", "message": "invalid x-api-key"}, "key"),
        ("login fail: Please carry the API secret key", "key"),
        ({"type": "rate_limit_error", "message": "Rate limit exceeded, try again later"}, "rate_limited"),
        ("Open api qps request limit reached", "rate_limited"),
        ("input new_sensitive", "content_filter"),
        (["x"], "malformed"),
        (True, "malformed"),
        ("odd", "malformed"),
    ],
)
def test_an_error_object_is_judged_by_its_code_and_words(error: Any, kind: str) -> None:
    """An error inside a 200 is not always a malformed answer."""
    assert of_error_object(error, NOW).kind == kind


@pytest.mark.parametrize(
    ("plain", "kind"),
    [
        ({"object": "error", "message": "maximum context length", "code": 400}, "context"),
        ({"object": "error", "message": "slow down", "code": 429}, "rate_limited"),
        ({"code": "Arrearage", "message": "Access denied.", "request_id": "r"}, "quota"),
        ({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}, "quota"),
        ({"detail": "response_format is not supported"}, "no_schema"),
        ({"code": 500, "msg": "system busy", "success": False}, "server_error"),
        ({"error_code": 336, "error_msg": "odd"}, "malformed"),
        ({"id": "x", "model": "m"}, "malformed"),
        ({}, "malformed"),
        ({"choices": []}, "malformed"),
    ],
)
def test_an_object_without_choices_may_be_an_error(plain: dict[str, Any], kind: str) -> None:
    """In the forms in which servers put one into a 200."""
    assert of_object_without_choices(plain, NOW).kind == kind


def test_no_connection_is_told_from_a_broken_one() -> None:
    """The first is the endpoint's state, the second may be the fate of one request."""
    assert (unreachable("odd").unreached, unreachable("odd").kind) == (True, "unreachable")
    assert (broken("odd").unreached, broken("odd").kind) == (False, "connection")


def test_half_a_secret_is_never_left() -> None:
    """What is matched and what is shown end somewhere; a key that stands there is hidden before the cut or left out."""
    for padding in range(250, 320):
        for key in (HEX, "abcdefgh-hunter22"):
            failure = of_status(400, "x" * padding + f" {key} {key}", {}, NOW)
            assert key[:5] not in failure.shown("abcdefgh-hunter22").reason
    for padding in range(1980, 2010):
        told = of_status(400, " ".join(["sk-abcdefgh12345"] * 50)[:padding].ljust(padding) + f" {HEX}", {}, NOW)
        assert HEX[:5] not in told.shown("").reason


def test_a_secret_is_blotted_out() -> None:
    """Wherever it stands; an empty one changes nothing."""
    failure = malformed("ab key-4711 c key-4711")
    assert failure.shown("key-4711").reason == "200, but ab *** c ***"
    assert failure.shown("") == failure


def test_a_line_is_short() -> None:
    """300 characters, white space folded."""
    assert said("a\n\tb" + "c" * 1000) == "a b" + "c" * 297
