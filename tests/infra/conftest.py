"""What tests of logs on disk share: short segments, empty stores of each kind."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from archived_runs import small

from infra import archive, export
from infra.clock import SystemClock
from infra.list_log import ListLogStore
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from runtime.ports import LogStore


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five events a segment."""
    monkeypatch.setattr(export, "SEGMENT", 5)


@pytest.fixture(params=["list", "redis"])
def open_store(request: pytest.FixtureRequest, redis_prefix: str) -> Callable[[], object]:
    """A way to open an empty store of each kind."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[LogStore]:
        if request.param == "list":
            yield ListLogStore(SystemClock())
            return
        server = request.getfixturevalue("redis_server")
        async with connected(server.url) as redis:
            yield RedisLogStore(redis, redis_prefix, SystemClock(), server.url)

    return opened


@pytest.fixture
def small_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven events a segment, two segments an addition, three entries trimmed at once."""
    for name in ("SEGMENT", "ADDITION", "TRIMMED_AT_ONCE"):
        monkeypatch.setattr(archive, name, getattr(archive, name))
    small()


@pytest.fixture
def archive_store(redis_server: Any, redis_prefix: str, tmp_path: Path) -> Callable[..., Any]:
    """A way to open the same store again, as another process would."""

    @asynccontextmanager
    async def opened(home: Path = tmp_path / "home") -> AsyncIterator[RedisLogStore]:
        async with connected(redis_server.url) as redis:
            yield RedisLogStore(redis, redis_prefix, SystemClock(), "here", home=home)

    return opened
