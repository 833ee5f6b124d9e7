"""The table of failures: each endpoint's own words for a condition, and words that mean nothing of the kind."""

import json
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from infra.model_errors import (
    LONGEST_RETRY_AFTER_S,
    Failure,
    malformed,
    of_error_object,
    of_status,
    said,
    unreachable,
)

HEX = "0123456789abcdef" * 3
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def judged(status: int, error: Any, **headers: str) -> Failure:
    """What `status` with an OpenAI error, or any other body, means."""
    body = error if isinstance(error, str) else json.dumps({"error": error})
    return of_status(status, body, {name.replace("_", "-"): value for name, value in headers.items()}, NOW)


@pytest.mark.parametrize("status", [400, 413, 422, 500])
@pytest.mark.parametrize(
    "message",
    [
        # OpenAI
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
        "Input tokens exceed the configured limit of 272000 tokens. (code context_length_exceeded)",
        # vLLM
        "'max_tokens' or 'max_completion_tokens' is too large: 16384. This model's maximum context length is 8192 "
        "tokens and your request has 200 input tokens",
        "You passed 5000 input tokens, however the model's context length is only 4096 tokens.",
        # llama.cpp
        "the request exceeds the available context size, try increasing it",
        "request (9001 tokens) exceeds the available context size (4096 tokens)",
        # DashScope
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
        # DeepSeek
        "This model's maximum context length is 131072 tokens. Please reduce the length of the messages or completion.",
        # SGLang
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        # Ollama
        "the input length exceeds the context length",
        # Anthropic and Gemini behind a compatible route
        "prompt is too long: 210000 tokens > 200000 maximum",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    ],
)
def test_a_context_overflow_is_known_in_every_wording(status: int, message: str) -> None:
    """Refused as `context`, never stepped down over `max_tokens`, never tried again over a 500."""
    failure = judged(status, {"message": message})
    assert (failure.kind, failure.action) == ("context", "refuse")
    assert judged(status, json.dumps({"object": "error", "message": message})).kind == "context"
    assert judged(status, message).kind == "context"


def test_a_context_overflow_may_stand_in_the_type_or_code() -> None:
    """Fields beside the message count."""
    for named in ({"type": "exceed_context_size_error"}, {"code": "context_length_exceeded"}):
        assert judged(400, {"message": "too big"} | named).kind == "context"


@pytest.mark.parametrize(
    ("status", "error", "kind", "action"),
    [
        (401, {"message": "Incorrect API key"}, "key", "stop"),
        (403, "Forbidden", "key", "stop"),
        (402, {"message": "Insufficient Balance"}, "quota", "stop"),
        (402, "", "quota", "stop"),
        (429, {"message": "You exceeded your current quota, please check your plan"}, "quota", "stop"),
        (429, {"message": "x", "code": "insufficient_quota"}, "quota", "stop"),
        (400, {"message": "Access denied, your account is not in good standing", "code": "Arrearage"}, "quota", "stop"),
        (404, {"message": "The model `x` does not exist"}, "model_not_found", "stop"),
        (404, {"message": "model 'qwen2.5:9b' not found"}, "model_not_found", "stop"),
        (400, {"message": "Model Not Exist"}, "model_not_found", "stop"),
        (400, {"message": "abc is not a valid model ID"}, "model_not_found", "stop"),
        (404, "<html>404 page not found</html>", "not_found", "stop"),
        (429, {"message": "Rate limit reached for requests"}, "rate_limited", "retry"),
        (408, "", "timeout", "retry"),
        (409, "", "unavailable", "retry"),
        (425, "", "unavailable", "retry"),
        (500, {"message": "internal error"}, "server_error", "retry"),
        (502, "<html>bad gateway</html>", "unavailable", "retry"),
        (503, {"message": "Loading model"}, "warming_up", "retry"),
        (503, {"message": "The engine is currently overloaded"}, "unavailable", "retry"),
        (504, "", "unavailable", "retry"),
        (529, {"message": "overloaded_error"}, "unavailable", "retry"),
        (400, {"message": "bad messages"}, "refused", "refuse"),
        (405, "", "refused", "refuse"),
        (413, "too large", "refused", "refuse"),
        (302, "", "redirect", "stop"),
        (308, "", "redirect", "stop"),
    ],
)
def test_each_status_has_its_row(status: int, error: Any, kind: str, action: str) -> None:
    """Kind and action by condition."""
    failure = judged(status, error)
    assert (failure.kind, failure.action, failure.status) == (kind, action, status)


@pytest.mark.parametrize(
    ("status", "message", "capability"),
    [
        (400, "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.", "schema"),
        (400, "This response_format type is unavailable now", "schema"),
        (400, "'response_format.type' must be 'text' or 'json_object'", "schema"),
        (400, "Invalid schema for response_format 'plan': In context=(), 'required' is required", "schema"),
        (400, "'messages' must contain the word 'json' to use 'response_format' of type 'json_object'", "schema"),
        (400, "The provided JSON schema contains features not supported by xgrammar.", "schema"),
        (400, "JSON schema conversion failed: Error resolving ref #/x", "schema"),
        (400, "Failed to initialize samplers: failed to parse grammar", "schema"),
        (500, "Unrecognized schema: {}", "schema"),
        (400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", "max_tokens"),
        (400, "Unsupported value: 'temperature' does not support 0 with this model.", "temperature"),
        (422, "temperature: unsupported", "temperature"),
    ],
)
def test_what_an_endpoint_does_not_take_is_named(status: int, message: str, capability: str) -> None:
    """The client asks in another way."""
    failure = judged(status, {"message": message, "type": "invalid_request_error"})
    assert (failure.action, failure.capability) == ("change", capability)


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


def test_a_wait_is_bounded() -> None:
    """What is asked for is kept up to the bound and ends the tries beyond it."""
    assert judged(503, "", retry_after=str(LONGEST_RETRY_AFTER_S)).retry_after_s == LONGEST_RETRY_AFTER_S
    over = judged(503, "", retry_after=str(LONGEST_RETRY_AFTER_S + 1))
    assert (over.action, over.retry_after_s) == ("give_up", None)
    assert judged(503, "", retry_after_ms="1500", retry_after="9").retry_after_s == 1.5


def test_a_redirect_names_its_target_and_does_not_trust_it() -> None:
    """The user decides."""
    failure = judged(307, "", location="https://elsewhere/v1")
    assert "https://elsewhere/v1" in failure.reason
    assert "if you trust it" in failure.reason


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 429, "message": "slow"}, "rate_limited"),
        ({"code": 200, "message": "odd"}, "malformed"),
        ({"code": "429", "message": "slow"}, "malformed"),
        ({"code": True}, "malformed"),
        ("insufficient_quota", "quota"),
        ("maximum context length", "context"),
        (["x"], "malformed"),
        (True, "malformed"),
    ],
)
def test_an_error_object_is_judged_by_its_code_and_words(error: Any, kind: str) -> None:
    """An error inside a 200 is not always a malformed answer."""
    assert of_error_object(error, NOW).kind == kind


def test_no_answer_is_told_by_its_cause() -> None:
    """The transport's error, not the SDK's."""
    outer = ValueError("Connection error.")
    outer.__cause__ = ConnectionResetError("all attempts\nfailed")
    assert unreachable(outer).shown("").reason == "ConnectionResetError: all attempts failed"
    assert unreachable(EOFError()).reason == "EOFError"


@pytest.mark.parametrize(
    ("error", "unreached"),
    [
        (httpx2.ConnectError, True),
        (httpx2.ConnectTimeout, True),
        (httpx2.ProxyError, True),
        (httpx2.ReadError, False),
        (httpx2.WriteError, False),
        (httpx2.RemoteProtocolError, False),
        (httpx2.DecodingError, False),
    ],
)
def test_no_connection_is_told_from_a_broken_one(error: type[Exception], unreached: bool) -> None:
    """The first is the endpoint's state, the second may be the fate of one request."""
    failure = unreachable(error("odd"))
    assert (failure.unreached, failure.kind) == (unreached, "unreachable" if unreached else "connection")


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
    failure = malformed("ab sk-1 c sk-1")
    assert failure.shown("sk-1").reason == "200, but ab *** c ***"
    assert failure.shown("") == failure


def test_a_line_is_short() -> None:
    """300 characters, white space folded."""
    assert said("a\n\tb" + "c" * 1000) == "a b" + "c" * 297
