"""Made-up runs on a real server, and the command line over them."""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
import structlog

from events.codec import content_sha256
from events.log import Draft
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.telemetry import FOREIGN
from runtime.ports import Origin
from workers.__main__ import main


@dataclass
class CommandLine:
    """Calls `chime` in this process, against the test's server."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What it prints on stdout; fails unless it ends with `code`."""
        self.capsys.readouterr()
        got = main(list(arguments))
        captured = self.capsys.readouterr()
        assert got == code, captured.err
        self.err = captured.err
        return captured.out

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The envelope."""
        out = self(*arguments, "--json", code=code)
        body = json.loads(out)
        assert body["schema"] == 1
        return body


async def upload(url: str, prefix: str, made: Any) -> None:
    """Appends a made run as it is."""
    async with connected(url) as redis:
        log = RedisLogStore(redis, prefix, SystemClock(), "test").open(made.run)
        for one in made.events:
            item = Draft(kind=one.kind, schema=one.schema, data=one.data, sha256=content_sha256(one.kind, one.data))
            await log.append(one.stream, one.version, [item], Origin(cause=one.cause, attempt=one.attempt))


@pytest.fixture
def chime(
    folder: Any,
    redis_server: Any,
    redis_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[CommandLine]:
    """The command line with an empty server and an empty working directory."""
    monkeypatch.setenv("CHIME_REDIS_URL", redis_server.url)
    monkeypatch.setenv("CHIME_REDIS_PREFIX", redis_prefix)
    loggers = {name: logging.getLogger(name) for name in FOREIGN}
    before = {name: (one.level, one.handlers, one.propagate) for name, one in loggers.items()}
    yield CommandLine(capsys)
    # A command configures the logs of its process, which here is pytest.
    structlog.reset_defaults()
    for name, (level, handlers, propagate) in before.items():
        loggers[name].setLevel(level)
        loggers[name].handlers, loggers[name].propagate = handlers, propagate


@pytest.fixture
def uploaded(chime: CommandLine, redis_server: Any, redis_prefix: str) -> Callable[[Any], None]:
    """Puts a made run onto the server."""
    return lambda made: anyio.run(upload, redis_server.url, redis_prefix, made)
