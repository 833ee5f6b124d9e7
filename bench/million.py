"""A million events of real size replayed from a file: how long it takes, and whether its memory stays flat."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.made import EPISODE_EVENTS, REAL
from bench.measure import Row, Scale, Spread, Subject, limited, sampled
from bench.replay import written
from events.fold import REPLAY_KINDS, Replay
from events.ids import Position
from infra.segments import SegmentLog

EVENTS = 1_000_000
GOAL_S = 15.0
#: how much the second half may add to what the first half needs, MiB
FLAT_MIB = 64.0
_PAGES_OF_A_LOOK = 500


def rows(scale: Scale) -> Iterator[Row]:
    """Time, and memory."""
    episodes = scale.of(EVENTS, 1_000) // EPISODE_EVENTS
    with tempfile.TemporaryDirectory(prefix="cb") as folder:
        path = Path(folder) / "run.jsonl"
        events = written(path, REAL, episodes, repeating=True)
        grown: list[float] = []
        replay = Subject(what=f"{events:,} events from a file", run=lambda: grown.append(_replayed(path, episodes)))
        # Once: a minute of work is its own average.
        found = {replay.what: [sampled(replay)]}
        size = path.stat().st_size / 2**30
    row = limited("million", found, replay.what, unit="s", at_most=GOAL_S * events / EVENTS)
    yield Row(**{name: getattr(row, name) for name in row.__struct_fields__} | {"remark": f"{size:.2f} GiB"})
    figure = Spread(sorted(grown)[len(grown) // 2], min(grown), max(grown))
    yield Row(
        group="million", what="memory that the second half adds", figure=figure, unit="MiB",
        goal=f"<= {FLAT_MIB:g} MiB",         met=figure.median <= FLAT_MIB,
    )  # fmt: skip


def _replayed(path: Path, episodes: int) -> float:
    """Replay the file; how much larger the process is at its end than half way, MiB."""

    async def run() -> float:
        replay, half, at_half = Replay(), episodes // 2, 0.0
        async for page in SegmentLog(path).pages(Position(0), REPLAY_KINDS):
            for recorded in page:
                replay.feed(recorded)
            if not at_half and replay.version >= half:
                at_half = _resident_mib()
        if replay.version != episodes:
            raise SystemExit(f"replayed {replay.version} of {episodes} episodes")
        return _resident_mib() - at_half

    with asyncio.Runner() as runner:
        return runner.run(run())


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
