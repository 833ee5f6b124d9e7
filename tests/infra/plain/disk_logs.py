"""Logs made up for tests of what is on disk, and ways to look at what came out."""

from pathlib import Path

import msgspec
import pytest

from events import policies
from events.codec import draft
from events.ids import Position, RunId, StreamId, Version, episode_stream
from events.kinds import EmbedderIdentity, Noted, Planned, RunConfig, RunStarted, Usage
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


def begun() -> Draft:
    """The first event of a log."""
    config = RunConfig(
        policy=policies.load("credit").config(), lag=1, frozen=False, concurrency=1, epochs=1, models={},
        environment={}, protocol={}, ordering={}, limits={}, agent={},
    )  # fmt: skip
    return draft(
        RunStarted(
            config=config, tasks=["ü"], tasks_total=1, prompts={}, code="test", seed_bank=None,
            embedder=EmbedderIdentity(fingerprint="made", dimension=2),
        )
    )  # fmt: skip


def planned(plan: str) -> Draft:
    """An event of an episode that differs by its plan."""
    return draft(Planned(plan=f"{plan}: ü\u2028 \N{GRINNING FACE}", usage=Usage(), calls=[]))


async def made_log(count: int, run: RunId = RUN) -> ListLog:
    """`count` events that go round over four streams, with a cause and an attempt now and then."""
    log = ListLog(run, SystemClock())
    streams = [StreamId("run"), episode_stream(0), episode_stream(1), episode_stream(10)]
    for i in range(count):
        origin = Origin(cause=f"{run}/run/1" if i % 3 else None, attempt=1 + i % 2)
        event = begun() if i == 0 else planned(str(i)) if i % 4 else noted(str(i))
        await log.append(streams[i % 4], Version(i // 4 + 1), [event], origin)
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
