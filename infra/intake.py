"""Whether a server has room for more episodes: its memory, its disk, its queues. Looked at once a second at most.

Intake stops at a watermark and starts again below a lower one, so that it does not flap. What is under way goes on.
"""

import shutil
from pathlib import Path
from typing import Protocol

import anyio.to_thread
from redis.asyncio import Redis

from events.errors import Unreachable
from infra.redis_client import our_errors, refuses_writes
from runtime.logger import Logger
from runtime.ports import Clock, JobKind
from runtime.settings import IntakeSettings

_log = Logger("chime.intake")

#: how long one look holds, seconds
_LOOK_S = 1.0
#: intake starts again once what is used is below this share of the watermark
_AGAIN = 0.95


class Depths(Protocol):
    """How many jobs wait."""

    async def depths(self) -> dict[JobKind, int]: ...


class ServerIntake:
    """`runtime.ports.Intake` of one server.

    Args:
        redis: the client.
        where: the server's address without a password.
        clock: of the machine.
        queue: whose depths are looked at.
        home: on the disk that the server's file is on; None for a server elsewhere.
        marks: where intake stops.
    """

    def __init__(
        self, redis: Redis, where: str, clock: Clock, queue: Depths, home: Path | None, marks: IntakeSettings
    ) -> None:
        self._redis, self._where, self._clock, self._queue = redis, where, clock, queue
        self._home, self._marks = home, marks
        self._reason: str | None = None
        self._looked = float("-inf")

    async def stopped(self) -> str | None:
        """As `runtime.ports.Intake.stopped`."""
        now = self._clock.monotonic()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            before, self._reason = self._reason, await self.look()
            if self._reason is not None and before is None:
                _log.warning("intake_stopped", where=self._where, reason=self._reason)
            elif self._reason is None and before is not None:
                _log.warning("intake_started", where=self._where, reason=f"no longer: {before}")
        return self._reason

    async def look(self) -> str | None:
        """As `stopped`, now and without a line in the log: for somebody who looks at the server.

        Raises:
            Unreachable: the server does not answer.
        """
        share = _AGAIN if self._reason is not None else 1.0
        return await self._memory(share) or await self._disk(share) or await self._queues(share)

    async def full(self) -> str | None:
        """Why the server takes no writes at all now; None where it does. Raises: as `look`."""
        return await refuses_writes(self._redis, self._where)

    async def _memory(self, share: float) -> str | None:
        with our_errors(self._where):
            info = await self._redis.info("memory")
        used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
        if limit and used >= share * self._marks.memory * limit:
            return f"{self._where} uses {used >> 20} MiB of its maxmemory {limit >> 20} MiB"
        return None

    async def _disk(self, share: float) -> str | None:
        if self._home is None:
            return None
        try:
            free = (await anyio.to_thread.run_sync(shutil.disk_usage, self._home)).free >> 20
        except OSError as error:
            raise Unreachable(f"home {self._home}: {error.strerror or error}") from error
        if free * share < self._marks.disk_mib:
            return f"the disk of {self._home} has {free} MiB left"
        return None

    async def _queues(self, share: float) -> str | None:
        for kind, depth in (await self._queue.depths()).items():
            if depth >= share * self._marks.queue:
                return f"{depth} {kind} jobs wait"
        return None


class OpenIntake:
    """`runtime.ports.Intake` that always has room: for what runs inside one process."""

    async def stopped(self) -> str | None:
        """None."""
        return None

    async def look(self) -> str | None:
        """None."""
        return None

    async def full(self) -> str | None:
        """None."""
        return None
