"""Dead letters: jobs that ended with an error, kept beside the log and grouped by what went wrong."""

import re
from hashlib import sha256
from typing import cast

import msgspec
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from events.ids import RunId
from infra.redaction import redacted
from infra.redis_client import our_errors
from runtime.ports import Clock, Job, JobFailure

#: failures that are kept of one run
KEPT = 500
#: longer messages are cut, characters
_SHOWN = 500

#: what differs between failures of one cause: ids and hashes, paths and addresses, numbers
_VARYING = (
    re.compile(r"\b[0-9a-f]{8,}\b", re.IGNORECASE),
    re.compile(r"(?:\w+://|/)[^\s,;:'\")]+"),
    re.compile(r"\bepisode-\d+\S*"),
    re.compile(r"\d+(?:\.\d+)?"),
)


def fingerprint(error: str, message: str) -> str:
    """Equal for failures of one cause: `error` and `message` without what varies, 12 hex digits."""
    for varying in _VARYING:
        message = varying.sub("#", message)
    return sha256(f"{error}\n{message}".encode()).hexdigest()[:12]


def failure_of(job: Job, error: BaseException, at: str) -> JobFailure:
    """What is kept of `error`: one line, without secrets."""
    message = " ".join(redacted(str(error)).split())[:_SHOWN]
    name = type(error).__name__
    return JobFailure(
        kind=job.kind,
        episode=job.episode,
        attempt=job.attempt,
        at=at,
        error=name,
        message=message,
        fingerprint=fingerprint(name, message),
    )


def failures_key(prefix: str, run: RunId) -> str:
    """The list of a run's dead letters."""
    return f"{prefix}:{{{run}}}:failures"


def keep(connection: Redis, prefix: str, job: Job, error: BaseException, at: str) -> None:
    """Keep what went wrong, and forget the oldest; for code that blocks."""
    with connection.pipeline() as pipeline:
        pipeline.rpush(failures_key(prefix, job.run), msgspec.json.encode(failure_of(job, error, at)))
        pipeline.ltrim(failures_key(prefix, job.run), -KEPT, -1)
        pipeline.execute()


class RedisFailures:
    """`runtime.ports.Failures` as a list a run, `<prefix>:{<run>}:failures`."""

    def __init__(self, redis: AsyncRedis, prefix: str, clock: Clock, where: str) -> None:
        self._redis, self._prefix, self._clock, self._where = redis, prefix, clock, where

    async def record(self, job: Job, error: BaseException) -> None:
        """Keep what went wrong, and forget the oldest.

        Raises:
            Unreachable: the server does not answer.
        """
        line = msgspec.json.encode(failure_of(job, error, self._clock.utc()))
        with our_errors(self._where):
            pipeline = self._redis.pipeline()
            _ = pipeline.rpush(failures_key(self._prefix, job.run), line)
            _ = pipeline.ltrim(failures_key(self._prefix, job.run), -KEPT, -1)
            await pipeline.execute()

    async def of(self, run: RunId) -> list[JobFailure]:
        """What is kept of `run`, newest last.

        Raises:
            Unreachable: the server does not answer.
        """
        with our_errors(self._where):
            lines = cast("list[bytes]", await self._redis.lrange(failures_key(self._prefix, run), 0, -1))
        return [msgspec.json.decode(line, type=JobFailure) for line in lines]


class LocalFailures:
    """`runtime.ports.Failures` inside one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[RunId, list[JobFailure]] = {}

    async def record(self, job: Job, error: BaseException) -> None:
        """Keep what went wrong, and forget the oldest."""
        kept = self._kept.setdefault(job.run, [])
        kept.append(failure_of(job, error, self._clock.utc()))
        del kept[:-KEPT]

    async def of(self, run: RunId) -> list[JobFailure]:
        """What is kept of `run`, newest last."""
        return list(self._kept.get(run, ()))
