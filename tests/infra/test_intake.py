"""Intake: stops at a watermark, starts again below a lower one, and says each once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from infra.intake import ServerIntake
from infra.redis_client import connected
from runtime.ports import JobKind
from runtime.settings import IntakeSettings


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def utc(self) -> str:
        return "2026-01-01T00:00:00.000000Z"

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Queue:
    """Queues of a given depth."""

    depth = 0

    async def depths(self) -> dict[JobKind, int]:
        return {"act": 0, "diagnose": self.depth}


async def test_a_full_queue_stops_it_until_it_is_well_below(redis_server: Any, tmp_path: Path) -> None:
    """At the mark intake stops; just below it does not flap; one line each way."""
    clock, queue = Clock(), Queue()
    async with connected(redis_server.url) as redis:
        intake = ServerIntake(redis, "here", clock, queue, tmp_path, IntakeSettings(queue=100, disk_mib=0))
        with capture_logs() as lines:
            for depth, stopped in ((99, False), (100, True), (99, True), (95, True), (94, False), (99, False)):
                queue.depth, clock.now = depth, clock.now + 2
                assert (await intake.stopped() is not None) == stopped, depth
    told = [(line["event"], line["reason"]) for line in lines]
    assert told == [
        ("intake_stopped", "100 diagnose jobs wait"),
        ("intake_started", "no longer: 95 diagnose jobs wait"),
    ]


async def test_one_look_holds_for_a_second(redis_server: Any) -> None:
    """However many runs ask, the server is looked at once a second."""
    clock, queue = Clock(), Queue()
    async with connected(redis_server.url) as redis:
        intake = ServerIntake(redis, "here", clock, queue, None, IntakeSettings(queue=1))
        assert await intake.stopped() is None
        queue.depth = 1
        clock.now = 0.9
        assert await intake.stopped() is None
        clock.now = 1.0
        assert await intake.stopped() == "1 diagnose jobs wait"


async def test_memory(own_redis_server: Any) -> None:
    """Near maxmemory intake stops, and starts again once there is more of it."""
    clock = Clock()
    async with connected(own_redis_server.url) as redis:
        used = int((await redis.info("memory"))["used_memory"])
        intake = ServerIntake(redis, "here", clock, Queue(), None, IntakeSettings(memory=0.5))
        assert await intake.stopped() is None, "without maxmemory there is no mark"
        for limit, stopped in ((used, True), (100 * used, False)):
            await redis.config_set("maxmemory", limit)
            clock.now += 2
            reason = await intake.stopped()
            assert (reason is not None) == stopped
            assert reason is None or reason.startswith("here uses ")


async def test_disk(redis_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little space on the home's disk stops intake."""
    free = SimpleNamespace(free=300 << 20)
    monkeypatch.setattr("infra.intake.shutil.disk_usage", lambda _: free)
    clock = Clock()
    async with connected(redis_server.url) as redis:
        intake = ServerIntake(redis, "here", clock, Queue(), tmp_path, IntakeSettings(disk_mib=256))
        for mib, stopped in ((300, False), (255, True), (260, True), (280, False)):
            free.free = mib << 20
            clock.now += 2
            assert (await intake.stopped() is not None) == stopped, mib
