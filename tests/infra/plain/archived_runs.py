"""Made-up runs on a server, to be archived in small pieces; run as a program, one that is killed at a step."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
from plain_logs import made_log
from product_fold import recorded_log

from events.codec import content_sha256
from events.ids import Position, RunId
from events.log import Draft, Recorded
from infra import archive
from infra.archive import ArchiveReport, archive_log
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLog, RedisLogStore, log_key
from runtime.ports import EventLog, Origin
from workers.run_stream import tell

#: seeds of made-up logs: with and without a seed bank, with a lag of 1, 3 and `latest`
SEEDS = (5, 6, 18, 19)
START = Position(0)


class Stopped(Exception):
    """The command ends here."""


def made_run(seed: int = 5, episodes: int = 30) -> list[Recorded]:
    """A finished run with one episode in flight, so that little of it has to stay on the server; `episodes` is even."""
    events = made_log(seed, episodes).events
    tasks = events[0]["data"]["tasks_total"]
    events[0]["data"]["config"] |= {"concurrency": 1, "frozen": False, "epochs": episodes // tasks}
    return recorded_log(events)


def small() -> None:
    """Seven events a segment, two segments an addition, three entries trimmed at once."""
    archive.SEGMENT, archive.ADDITION, archive.TRIMMED_AT_ONCE = 7, 2, 3  # type: ignore[attr-defined]


async def put(store: RedisLogStore, events: Sequence[Recorded]) -> RedisLog:
    """A run of exactly these events."""

    async def pages():
        yield events

    await store.restore(events[0].run, pages())
    return store.open(events[0].run)


async def go_on(log: EventLog, events: Sequence[Recorded]) -> None:
    """Append these events, each after what is in its stream."""
    for one in events:
        version = (await log.index())[one.stream].positions if one.stream in await log.index() else []
        item = Draft(kind=one.kind, schema=one.schema, data=one.data, sha256=content_sha256(one.kind, one.data))
        await log.append(one.stream, len(version) + 1, [item], Origin(cause=one.cause, attempt=one.attempt))


async def archived(
    store: RedisLogStore, run: RunId, base: str | None = None, on_step: Callable[[str], None] = lambda _: None
) -> ArchiveReport:
    """The run archived as the command does it."""
    return await archive_log(store, run, base, lambda event: tell(store.open(run), event), on_step)


async def held(store: RedisLogStore, run: RunId, prefix: str) -> int:
    """How many events the server itself holds of the log."""
    return int(await store._redis.xlen(log_key(prefix, run)))


async def read_all(log: EventLog, after: int = 0) -> list[Recorded]:
    """Every event above `after`."""
    return [one async for page in log.pages(Position(after)) for one in page]


async def _killed(url: str, prefix: str, run: str, home: str, step: str, time: int) -> None:
    """Archive, and die by SIGKILL when `step` is done for the `time`-th time."""
    seen = 0

    def on_step(done: str) -> None:
        nonlocal seen
        seen += done == step
        if seen == time:
            os.kill(os.getpid(), signal.SIGKILL)

    async with connected(url) as redis:
        await archived(RedisLogStore(redis, prefix, SystemClock(), "here", home=Path(home)), RunId(run), None, on_step)


if __name__ == "__main__":
    small()
    anyio.run(_killed, *sys.argv[1:6], int(sys.argv[6]))
