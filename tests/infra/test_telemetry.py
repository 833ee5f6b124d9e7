"""Log lines: the keys, no secrets, no bodies, other libraries' warnings in the same form."""

import hashlib
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from events.ids import RunId
from infra.telemetry import BODY_CHARS, FOREIGN, about_job, configure
from runtime.ports import Job

JOB = Job(kind="act", run=RunId("r"), episode=3, attempt=2)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Logging as it was before, afterwards."""
    loggers = [logging.getLogger(name) for name in FOREIGN]
    before = [(logger, logger.level, logger.handlers, logger.propagate) for logger in loggers]
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    for logger, level, handlers, propagate in before:
        logger.setLevel(level)
        logger.handlers, logger.propagate = handlers, propagate


@pytest.fixture
def stream() -> io.StringIO:
    """Where the lines of a configured process go."""
    stream = io.StringIO()
    configure(stream, level="debug", service="worker-act", version="1.2.3")
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def line(stream: io.StringIO) -> dict[str, Any]:
    (only,) = lines(stream)
    return dict(only)


def test_a_line_is_one_json_object_with_the_fixed_keys(stream: io.StringIO) -> None:
    """Off a terminal: timestamp in UTC, level, event, logger, service, version, then the facts as given."""
    structlog.get_logger("chime.worker").info(
        "stage ended", duration_ms=12.5, tokens_in=7, outcome="ok", ok=True, at=None
    )
    found = line(stream)
    assert found.pop("timestamp").endswith("Z")
    assert found == {
        "level": "info", "event": "stage ended", "logger": "chime.worker", "service": "worker-act", "version": "1.2.3",
        "duration_ms": 12.5, "tokens_in": 7, "outcome": "ok", "ok": True, "at": None,
    }  # fmt: skip


def test_facts_of_a_job_are_bound_for_its_time(stream: io.StringIO) -> None:
    """Inside, every line names run, episode and attempt; outside, none does."""
    log = structlog.get_logger("x")
    with about_job(JOB, worker_id="w", job_id="j", queue_wait_ms=None):
        log.info("inner")
    log.info("after")
    inner, after = lines(stream)
    expected = {"run_id": "r", "episode_id": "episode-3", "attempt": 2, "queue": "act", "worker_id": "w", "job_id": "j"}
    assert expected.items() <= inner.items()
    assert "queue_wait_ms" not in inner, "what nobody knows is left out"
    assert not expected.keys() & after.keys()


def test_a_terminal_gets_text() -> None:
    """On a terminal lines are for people; `json` overrides either way."""
    terminal = Terminal()
    configure(terminal)
    structlog.get_logger("x").info("stage ended", tokens_in=7)
    assert "stage ended" in terminal.getvalue()
    with pytest.raises(json.JSONDecodeError):
        json.loads(terminal.getvalue())
    configure(terminal := Terminal(), json=True)
    structlog.get_logger("x").info("stage ended")
    assert line(terminal)["event"] == "stage ended"


def test_lines_below_the_level_are_not_written() -> None:
    """The level is ours to choose, `info` unless said."""
    configure(stream := io.StringIO())
    structlog.get_logger("x").debug("detail")
    structlog.get_logger("x").warning("trouble")
    assert line(stream)["event"] == "trouble"


def test_stderr_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing goes to stdout: that belongs to a command's answer."""
    configure()
    structlog.get_logger("x").info("here")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["event"] == "here"


@pytest.mark.parametrize(
    "key", ["api_key", "apikey", "API-KEY", "openai_api_key", "Authorization", "password", "db.password",
            "client_secret", "token", "access_token", "x-auth-token", "cookie", "credentials", "redis_passwd"],
)  # fmt: skip
def test_values_under_secret_names_are_hidden(stream: io.StringIO, key: str) -> None:
    """Whatever the value's type, at any depth."""
    structlog.get_logger("x").info("call", headers={key: "hunter22", "n": [{key: 123456}]}, **{key: ["hunter22"]})
    assert "hunter22" not in stream.getvalue()
    assert "123456" not in stream.getvalue()


@pytest.mark.parametrize(
    "key", ["tokens_in", "tokens_out", "max_tokens", "prompt_tokens", "total_tokens", "api_key_env", "keys"]
)
def test_counts_of_tokens_are_no_secrets(stream: io.StringIO, key: str) -> None:
    """Names that only sound like secrets keep their values."""
    structlog.get_logger("x").info("call", **{key: 512})
    assert line(stream)[key] == 512


def test_an_event_text_is_redacted_too(stream: io.StringIO) -> None:
    """Also what a library writes as its message."""
    logging.getLogger("httpx").warning("cannot reach %s", "http://u:hunter22@host/v1")
    assert line(stream)["event"] == "cannot reach http://u:***@host/v1"


def test_one_secret_among_harmless_facts_is_hidden(stream: io.StringIO) -> None:
    """Wherever it stands in the line; the others stay as they are, and so does a line without any."""
    facts = {"run_id": "r", "model": "m", "url": "http://h/v1"}
    for place in ("first", "run_id", "last"):
        structlog.get_logger("x").info("call", **{"first": "a", **facts, "last": "z", place: "sk-abcdefgh12345"})
    structlog.get_logger("x").info("call", **facts)
    *with_secret, harmless = lines(stream)
    assert [each[place] for each, place in zip(with_secret, ("first", "run_id", "last"), strict=True)] == ["***"] * 3
    assert all(each["model"] == "m" and each["url"] == "http://h/v1" for each in lines(stream))
    assert harmless["run_id"] == "r"


def test_bodies_are_logged_as_length_and_hash(stream: io.StringIO) -> None:
    """Long texts and bytes appear as their size and the start of their SHA-256; texts at the limit as they are."""
    body = "prompt " * 200
    structlog.get_logger("x").info("call", body=body, raw=b"abc", short="s" * BODY_CHARS, nested=[{"plan": body}])
    found = line(stream)
    digest = hashlib.sha256(body.encode()).hexdigest()[:12]
    assert found["body"] == f"<1400 characters, sha256 {digest}>"
    assert found["raw"] == f"<3 bytes, sha256 {hashlib.sha256(b'abc').hexdigest()[:12]}>"
    assert found["short"] == "s" * BODY_CHARS
    assert found["nested"] == [{"plan": found["body"]}]


def test_an_object_is_logged_by_its_text_within_the_same_limits(stream: io.StringIO) -> None:
    """Anything else is text: redacted, and cut like a body; very deep data too."""
    deep: Any = "sk-abcdefgh12345"
    for _ in range(8):
        deep = [deep]
    structlog.get_logger("x").info("call", error=ValueError("Bearer abcdefgh"), deep=deep, surrogate="\ud800" * 600)
    found = line(stream)
    assert found["error"] == "Bearer ***"
    assert "abcdefgh" not in stream.getvalue()
    assert found["surrogate"].startswith("<600 characters")


def test_an_exception_is_type_message_and_place(stream: io.StringIO) -> None:
    """No values of variables, no source lines; the message obeys the same limits; a group of one is its member."""

    def fail(secret: str) -> None:
        raise ValueError("key sk-abcdefgh12345 " + secret[:0])

    try:
        fail("x" * 900)
    except ValueError as error:
        structlog.get_logger("x").error("job failed", exc_info=True)
        structlog.get_logger("x").error("job failed", exc_info=ExceptionGroup("g", [error]))
    for found in lines(stream):
        assert (found["error.type"], found["error.message"]) == ("ValueError", "key *** ")
        assert found["error.at"][-1].endswith(" fail")
        assert "exc_info" not in found


def test_other_libraries_are_heard_from_warning_on(stream: io.StringIO) -> None:
    """Warnings of rq, redis, openai and httpx become lines of ours, exception spelled out; the rest is silence."""
    for name in ("rq.worker", "redis", "openai._base_client", "httpx"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("trouble %d", 7, exc_info=KeyError(name))
    found = lines(stream)
    assert [each["logger"] for each in found] == ["rq.worker", "redis", "openai._base_client", "httpx"]
    assert {(each["event"], each["level"], each["error.type"]) for each in found} == {
        ("trouble 7", "warning", "KeyError")
    }


def test_a_message_with_other_arguments_is_logged_without_them(stream: io.StringIO) -> None:
    """A library's mistake ends nothing, and prints no argument as it is."""
    (handler,) = [each for each in logging.getLogger("httpx").handlers if type(each).__module__ == "infra.telemetry"]
    handler.emit(logging.LogRecord("httpx", logging.WARNING, __file__, 1, "%d %d", ("hunter22",), None))
    assert line(stream)["event"] == "%d %d"
    assert "hunter22" not in stream.getvalue()


def test_configuring_again_replaces_the_first() -> None:
    """Loggers that exist already write to the new place, once."""
    log = structlog.get_logger("x")
    configure(first := io.StringIO())
    log.info("one")
    configure(second := io.StringIO())
    log.info("two")
    logging.getLogger("rq.worker").warning("three")
    assert [each["event"] for each in lines(first)] == ["one"]
    assert [each["event"] for each in lines(second)] == ["two", "three"]


@pytest.mark.parametrize("as_json", [True, False])
def test_a_line_obeys_nobody(as_json: bool) -> None:
    """What others wrote stands in a line as escapes: no terminal obeys it, no reader misses it."""
    stream = io.StringIO()
    configure(stream, json=as_json)
    reason = "a\x1b[31m\x9b2J\x7f\u202e\u200b\u2028\U000e0041\r\nb"
    structlog.get_logger("x").warning("run_stopped", reason=reason)
    line = stream.getvalue()
    assert not set("\x9b\x7f\u202e\u200b\u2028\U000e0041\r") & set(line)
    assert line.count("\n") == 1
    if as_json:
        assert json.loads(line)["reason"] == reason
    else:
        assert "\\x1b[31m" in line
