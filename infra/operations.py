"""What people did to a server: its own operations log, for what belongs to no open run."""

from typing import cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from infra.redis_client import our_errors
from runtime.ports import Clock

#: operations that are kept
KEPT = 1000


class Operation(Struct, frozen=True, kw_only=True):
    """One thing that a person did; the fields are those of an `operated` event."""

    #: as events have it
    at: str
    action: str
    target: str
    author: str
    reason: str


class RedisOperations:
    """A sorted set of a server, `<prefix>:operations`, by time. Every method raises Unreachable where it is away."""

    def __init__(self, redis: Redis, prefix: str, clock: Clock, where: str) -> None:
        self._redis, self._key, self._clock, self._where = redis, f"{prefix}:operations", clock, where

    async def record(self, action: str, target: str, author: str, reason: str) -> Operation:
        """Write it down; twice is once."""
        done = Operation(at=self._clock.utc(), action=action, target=target, author=author, reason=reason)
        line = msgspec.json.encode(done)
        # Digits of the time, so that the order is that of the times.
        score = float("".join(filter(str.isdigit, done.at))[2:17])
        with our_errors(self._where):
            await self._redis.zadd(self._key, {line: score})
            await self._redis.zremrangebyrank(self._key, 0, -KEPT - 1)
        return done

    async def newest(self, number: int) -> list[Operation]:
        """The last `number` operations, newest first."""
        with our_errors(self._where):
            lines = cast("list[bytes]", await self._redis.zrevrange(self._key, 0, number - 1))
        return [msgspec.json.decode(line, type=Operation) for line in lines]


class NoOperations:
    """The operations of a home without a server: none."""

    async def record(self, action: str, target: str, author: str, reason: str) -> Operation:
        """Nothing is kept."""
        return Operation(at="", action=action, target=target, author=author, reason=reason)

    async def newest(self, number: int) -> list[Operation]:  # noqa: ARG002 - as on a server
        """None."""
        return []
