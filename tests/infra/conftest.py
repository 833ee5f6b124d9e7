"""What tests of logs on disk share: short segments, empty stores of each kind."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from infra import export
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
