"""Logs made up for tests of what is on disk, and ways to look at what came out."""

from pathlib import Path

import msgspec
import pytest

from events.codec import draft
from events.ids import Position, RunId, StreamId, Version, episode_stream
from events.kinds import Noted
from events.log import Draft, Recorded
from infra.calls import CallRecord
from infra.clock import SystemClock
from infra.list_log import ListLog
from infra.segments import SegmentLog
from runtime.ports import Origin, TokenUsage

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("schema-*/*.jsonl"))
RUN = RunId("r-1")
START = Position(0)
NAMES = ("log.jsonl", "log.jsonl.zst", "folder")

each_form = pytest.mark.parametrize("name", NAMES)


def noted(topic: str) -> Draft:
    """An event that differs by its topic."""
    return draft(Noted(topic=topic, facts={"text": "ü\u2028 \N{GRINNING FACE}"}))


async def made_log(count: int, run: RunId = RUN) -> ListLog:
    """`count` events that go round over four streams, with a cause and an attempt now and then."""
    log = ListLog(run, SystemClock())
    streams = [StreamId("run"), episode_stream(0), episode_stream(1), episode_stream(10)]
    for i in range(count):
        origin = Origin(cause=f"{run}/run/1" if i % 3 else None, attempt=1 + i % 2)
        await log.append(streams[i % 4], Version(i // 4 + 1), [noted(str(i))], origin)
    return log


def call(ordinal: int) -> bytes:
    """A recorded model call."""
    return msgspec.json.encode(
        CallRecord(
            id=f"episode-0/planning/{ordinal}", role="planner", model="m", usage=TokenUsage(), latency_ms=1,
            finish_reason="stop", messages="a" * 64, request="b" * 64, answer="c" * 64, sha256="d" * 64, at="now",
        )
    )  # fmt: skip


async def read_all(log: SegmentLog | ListLog, after: int = 0) -> list[Recorded]:
    """Every event above `after`."""
    return [one async for page in log.pages(Position(after)) for one in page]


def bytes_of(path: Path) -> dict[str, bytes]:
    """Every file of an export by its name."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return {one.relative_to(path.parent).as_posix(): one.read_bytes() for one in files}


def names_in(folder: Path) -> list[str]:
    """What a folder holds, sorted."""
    return sorted(one.name for one in folder.iterdir())
