"""Replaying the log of real episodes (46 KB, 1024 dimensions) from Redis and from a file, beside `eventsourcing`."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from bench.made import REAL, RUN, MadeLog, Shape, restored
from bench.measure import Row, Scale, Subject, rated, ratio, rounds, timing
from bench.peer import PeerMissing, peer
from bench.server import server
from bench.table import OVER_OURS
from events.bank import Banks
from events.codec import export_line
from events.fold import REPLAY_KINDS, Replay
from events.ids import Position
from events.log import Recorded
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLog
from infra.segments import SegmentLog
from runtime.ports import EventLog

EPISODES = 1_500
#: events a second of CPU time
FROM_REDIS, FROM_FILE = 35_000, 70_000
TIMES = 5.0
_PEERS = {"eventsourcing on SQLite": True, "eventsourcing in memory": False}


def rows(scale: Scale) -> Iterator[Row]:
    """From Redis, from a file, and beside each store of the peer."""
    yield from replays("replay", REAL, scale.of(EPISODES, 20), scale.repeats, FROM_REDIS, FROM_FILE)


async def replayed(log: EventLog) -> Banks:
    """The newest banks of the log: read, decode, evolve; as `workers.sources.banks_at`."""
    replay = Replay()
    async for page in log.pages(Position(0), REPLAY_KINDS):
        for recorded in page:
            replay.feed(recorded)
    return replay.banks


def written(path: Path, shape: Shape, episodes: int, *, repeating: bool = False) -> int:
    """Write the export of a made run; its events."""
    log = MadeLog(shape, repeating=repeating)
    events = 1
    with path.open("wb") as file:
        file.write(export_line(log.header(episodes)))
        for t in range(episodes):
            episode = list(log.episode(t))
            lines = [_line(one) for one in episode]
            if t == 0 and lines != [export_line(one) for one in episode]:
                raise SystemExit("a line that is made here is not what an export writes")
            file.writelines(lines)
            events += len(lines)
    return events


def _line(one: Recorded) -> bytes:
    """What `export_line` writes of a made event, whose text needs no care: a million of them are to be made."""
    head = b'{"at":"%s","attempt":%d,"cause":"%s","data":' % (one.at.encode(), one.attempt, str(one.cause).encode())
    place = f'"position":{one.position},"run":"{one.run}","schema":{one.schema},"stream":"{one.stream}"'
    tail = f',"id":"{one.id}","kind":"{one.kind}",{place},"version":{one.version}}}\n'
    return head + one.data + tail.encode()


def replays(
    group: str, shape: Shape, episodes: int, repeats: int, from_redis: float, from_file: float
) -> Iterator[Row]:
    """Rows of one shape of events."""
    redis, file = "from Redis", "from a file"
    with tempfile.TemporaryDirectory(prefix="cb") as folder, server(None) as there, ExitStack() as peers:
        path = Path(folder) / "run.jsonl"
        events = written(path, shape, episodes)
        runner = peers.enter_context(asyncio.Runner())
        runner.run(restored(there.url, shape, episodes))
        stack = AsyncExitStack()
        client = runner.run(stack.enter_async_context(connected(there.url)))
        log = RedisLog(client, RUN, "chime", SystemClock(), "bench")
        subjects = [
            Subject(what=redis, run=lambda: _checked(runner.run(replayed(log)), episodes), operations=events),
            Subject(
                what=file, run=lambda: _checked(runner.run(replayed(SegmentLog(path))), episodes), operations=events
            ),
        ]
        missing: dict[str, str] = {}
        for name, on_disk in _PEERS.items():
            try:
                subjects.append(_peer(peers, name, path, f"{folder}/peer.sqlite" if on_disk else "", events))
            except PeerMissing as why:
                missing[name] = str(why)
        found = rounds(subjects, repeats)
        runner.run(stack.aclose())
    size = f"{episodes:,} episodes, {events:,} events"
    yield rated(group, found, redis, unit="events/s", at_least=from_redis, remark=f"this process; {size}")
    yield rated(group, found, file, unit="events/s", at_least=from_file, remark=size)
    for ours in (redis, file):
        for name in _PEERS:
            goal = f">= {TIMES:g} x"
            if name in missing:
                yield Row(group=group, what=f"{ours}, rate", beside=name + OVER_OURS, goal=goal, not_run=missing[name])
                continue
            figure = ratio(found[name], found[ours])
            yield Row(
                group=group, what=f"{ours}, rate", beside=name + OVER_OURS, ours=timing(found[ours]),
                theirs=timing(found[name]), figure=figure, unit="x", goal=goal, met=figure.median >= TIMES,
            )  # fmt: skip


def _checked(banks: Banks, episodes: int) -> None:
    if banks.version != episodes:
        raise SystemExit(f"replayed {banks.version} of {episodes} episodes")


def _peer(stack: ExitStack, name: str, path: Path, database: str, events: int) -> Subject:
    one = stack.enter_context(peer("eventsourcing_rebuild"))
    one.ask(do="open", sqlite=database)
    one.ask(do="load", path=str(path))
    return Subject(what=name, run=lambda: one.ask(do="rebuild"), operations=events, pids=[one.pid], own=False)
