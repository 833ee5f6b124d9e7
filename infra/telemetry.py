"""Logs: one line per fact on stderr, readable on a terminal, JSON elsewhere; no secrets, no bodies.

Keys: timestamp, level, event, logger, service, version, run_id, episode_id, task_id, seq, stage, attempt, job_id,
worker_id, queue, model_role, model, tokens_in, tokens_out, tokens_cached, duration_ms, queue_wait_ms, bank_version,
outcome, error.type, error.message, error.at, config_hash. Whoever logs an exception passes
`exc_info`.
"""

import hashlib
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from json import JSONEncoder
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger
from typing_extensions import override

from infra.clock import SystemClock
from infra.escapes import json_escaped
from infra.redaction import redacted, suspicious
from runtime.logger import settled
from runtime.ports import Job

#: longer texts are bodies: their length and hash are logged instead, characters
BODY_CHARS = 500

#: standard-library loggers whose warnings are worth a line; each with the children that set a level of their own
FOREIGN = (
    "rq", "rq.worker", "rq.job", "rq.queue", "rq.registry", "rq.scripts", "rq.scheduler",
    "redis", "push_response", "openai", "httpx", "httpcore", "weaviate", "sentence_transformers", "asyncio",
)  # fmt: skip

_SECRET_KEY = re.compile(
    r"(?:^|[_.\- ])(?:api[_\-]?key|apikey|authorization|passwd|password|passphrase|secret|token|credential|cookie)s?$",
    re.IGNORECASE,
)
_CLOCK = SystemClock()
_ENCODER = msgspec.json.Encoder(enc_hook=str)
_THOROUGH_ENCODER = JSONEncoder(ensure_ascii=False, default=str, separators=(",", ":"))
#: names of what lines have said that are no names of secrets, and how many are remembered
_NAMED_NO_SECRET: set[str] = set()
_NAMES = 1024
_PLAIN = frozenset({str, int, float, bool, type(None)})
#: counts of tokens are no tokens
_COUNTED = re.compile(r"(?:^|_)(?:max_|prompt_|completion_|cached_|total_)?tokens$", re.IGNORECASE)


def configure(
    stream: TextIO | None = None,
    *,
    json: bool | None = None,
    level: str = "info",
    service: str = "chime",
    version: str = "",
) -> None:
    """Send every log line of the process to one stream.

    Args:
        stream: None = stderr, as it is when a line is written.
        json: JSON lines; None = unless the stream is a terminal.
        level: the lowest level of our own lines; other libraries are heard from `warning` on.
        service: which part of Chime this process is (`worker-act`, `coordinator`, ...).
        version: of the distribution.
    """
    settled()
    lowest = logging.getLevelNamesMapping()[level.upper()]
    as_json = not (stream or sys.stderr).isatty() if json is None else json
    structlog.configure(
        processors=[*_processors({"service": service, "version": version}), *_renderers(as_json)],
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        logger_factory=lambda *names: _Line(stream, str(names[0]) if names else "chime"),
        cache_logger_on_first_use=False,
    )
    handler = _Foreign()
    for name in FOREIGN:
        logger = logging.getLogger(name)
        logger.setLevel(max(lowest, logging.WARNING))
        logger.handlers, logger.propagate = [], False
        logger.addHandler(handler)


@contextmanager
def about_job(job: Job, **facts: str | int | None) -> Iterator[None]:
    """Every line inside names the job's run and episode, its attempt, and those of `facts` that are known."""
    known = {key: value for key, value in facts.items() if value is not None}
    with structlog.contextvars.bound_contextvars(
        run_id=job.run, episode_id=f"episode-{job.episode}", attempt=job.attempt, queue=job.kind, **known
    ):
        yield


def _processors(constants: Mapping[str, str]) -> list[Processor]:
    def add_constants(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        for key, value in constants.items():
            if value:
                event.setdefault(key, value)
        return event

    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _add_time,
        _add_logger,
        add_constants,
        _spell_out_exception,
        _keep_secrets_and_bodies_out,
    ]


def _renderers(as_json: bool) -> list[Processor]:
    if as_json:
        return [_as_json]
    return [structlog.dev.ConsoleRenderer(colors=True, pad_event_to=32, sort_keys=False)]


def _add_time(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event["timestamp"] = _CLOCK.utc()
    return event


def _add_logger(logger: Any, _: str, event: EventDict) -> EventDict:
    event.setdefault("logger", logger.name)
    return event


def _spell_out_exception(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """`exc_info` as `error.type`, `error.message` and where it was raised: no values of variables."""
    error = event.pop("exc_info", None)
    if error is True or isinstance(error, tuple):
        error = (sys.exc_info() if error is True else error)[1]
    if isinstance(error, BaseException):
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        event["error.type"], event["error.message"] = type(error).__name__, str(error)
        frames = traceback.extract_tb(error.__traceback__)[-8:]
        event["error.at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return event


def _keep_secrets_and_bodies_out(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    if _harmless(event):
        return event
    # Most lines hold names and numbers of ours only: one look at all of their texts together says so.
    short = [value for value in event.values() if type(value) is str and len(value) <= BODY_CHARS]
    harmless = not suspicious("\n".join(short))
    return {
        key: value
        if harmless and type(value) is str and len(value) <= BODY_CHARS and not _is_secret(key)
        else _presentable(key, value, depth=0)
        for key, value in event.items()
    }


def _harmless(event: EventDict) -> bool:
    """Whether every value is plain, short and no secret by its form, and every key is known to name none."""
    if not (_NAMED_NO_SECRET.issuperset(event) and _PLAIN.issuperset(map(type, event.values()))):
        _NAMED_NO_SECRET.update([key for key in event if len(_NAMED_NO_SECRET) < _NAMES and not _is_secret(key)])
        return False
    text = "\n".join([value for value in event.values() if type(value) is str])
    return len(text) <= BODY_CHARS and not suspicious(text)


def _presentable(key: str, value: Any, depth: int) -> Any:
    """`value` as it may be logged under `key`."""
    if value is None or isinstance(value, bool | int | float):
        # A number under the name of a secret may still be one: a PIN, a port of somebody's tunnel.
        return "***" if value is not None and _is_secret(key) else value
    if _is_secret(key):
        return "***"
    if isinstance(value, bytes | bytearray):
        return f"<{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()[:12]}>"
    if isinstance(value, str):
        return _short(value)
    if depth < 4 and isinstance(value, Mapping):
        return {str(name): _presentable(str(name), inner, depth + 1) for name, inner in value.items()}
    if depth < 4 and isinstance(value, list | tuple | set | frozenset):
        return [_presentable("", inner, depth + 1) for inner in value]
    return _short(str(value))


@lru_cache(maxsize=1024)
def _is_secret(key: str) -> bool:
    return _SECRET_KEY.search(key) is not None and _COUNTED.search(key) is None


def _short(text: str) -> str:
    if len(text) > BODY_CHARS:
        return f"<{len(text)} characters, sha256 {hashlib.sha256(text.encode(errors='replace')).hexdigest()[:12]}>"
    return redacted(text)


def _as_json(_: WrappedLogger, __: str, event: EventDict) -> str:
    try:
        return json_escaped(_ENCODER.encode(event).decode())
    except (ValueError, OverflowError, TypeError):  # a lone surrogate, a number of more than 64 bits
        return json_escaped(_THOROUGH_ENCODER.encode(event))


class _Line:
    """What structlog writes finished lines to."""

    def __init__(self, stream: TextIO | None, name: str) -> None:
        self._stream, self.name = stream, name

    def msg(self, line: str) -> None:
        # One write: lines of several processes on one pipe do not mix.
        stream = self._stream or sys.stderr
        stream.write(line + "\n")
        stream.flush()

    log = debug = info = warning = error = critical = fatal = exception = msg


class _Foreign(logging.Handler):
    """Hands a line of the standard library's logging to structlog."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)  # its arguments do not fit; handleError would print them as they are
        try:
            structlog.get_logger(record.name).log(record.levelno, text, exc_info=record.exc_info or None)
        except Exception:  # noqa: BLE001 - logging must never end what it reports on; handleError says so on stderr
            self.handleError(record)
