"""Dead letters: what is kept of a failed job, and which failures are one cause."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from events.errors import Unreachable
from events.ids import RunId
from infra.clock import SystemClock
from infra.failures import KEPT, LocalFailures, RedisFailures, fingerprint
from infra.redis_client import connected
from runtime.errors import EnvironmentCrashed
from runtime.ports import Failures, Job


@pytest.fixture(params=["local", "redis"])
def open_failures(request: pytest.FixtureRequest) -> Any:
    """Opens the dead letters under test."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Failures]:
        if request.param == "local":
            yield LocalFailures(SystemClock())
            return
        url, prefix = request.getfixturevalue("redis_server").url, request.getfixturevalue("redis_prefix")
        async with connected(url) as redis:
            yield RedisFailures(redis, prefix, SystemClock(), "here")

    return opened


def job(episode: int = 0, run: str = "r") -> Job:
    return Job(kind="act", run=RunId(run), episode=episode, attempt=2)


async def test_failures_are_kept_by_run(open_failures: Any) -> None:
    """A failure names job, error and one line of text without secrets; another run's are its own."""
    async with open_failures() as failures:
        await failures.record(job(3), Unreachable("no\n  route, token: Bearer abcdefghijkl"))
        await failures.record(job(0, "s"), EnvironmentCrashed(139, "boom"))
        (one,) = await failures.of(RunId("r"))
        assert (one.kind, one.episode, one.attempt, one.error) == ("act", 3, 2, "Unreachable")
        assert one.message.startswith("no route, token")
        assert "abcdefghijkl" not in one.message
        assert [other.error for other in await failures.of(RunId("s"))] == ["EnvironmentCrashed"]
        assert await failures.of(RunId("none")) == []


async def test_the_oldest_are_forgotten(open_failures: Any) -> None:
    """A bounded number is kept, the newest."""
    async with open_failures() as failures:
        for episode in range(KEPT + 2):
            await failures.record(job(episode), Unreachable("x"))
        kept = await failures.of(RunId("r"))
        assert [kept[0].episode, kept[-1].episode, len(kept)] == [2, KEPT + 1, KEPT]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("host ended with 139", "host ended with 1"),
        ("blob 0123456789abcdef0123 is gone", "blob ffff456789abcdef0123 is gone"),
        ("no /tmp/a/b here", "no /var/lib/c here"),
        ("Redis at redis://a:1/0 is away", "Redis at redis://b:2/0 is away"),
        ("episode-3/execution/2 failed", "episode-12/planning/1 failed"),
    ],
)
def test_one_cause_has_one_fingerprint(one: str, other: str) -> None:
    """Numbers, hashes, paths, addresses and ids of episodes do not tell causes apart; words and classes do."""
    assert fingerprint("E", one) == fingerprint("E", other)
    assert fingerprint("E", one) != fingerprint("F", one)
    assert fingerprint("E", one) != fingerprint("E", one.replace("e", "u"))
