"""Whoever works on a run begins at its archive's checkpoint, and reads nothing of what lies before."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from archived_runs import archived, go_on, made_run, put, read_all, small
from msgspec import to_builtins
from msgspec.structs import replace

from events.codec import decode
from events.errors import Unreachable
from events.fold import replay
from events.log import Recorded
from infra import archive
from infra.banks.replica import Replica
from infra.clock import SystemClock
from infra.local_queue import LocalQueue
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from workers.coordinator import coordinated
from workers.views.at_hand import summarized_at_hand
from workers.views.summary import summarized


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEGMENT", "ADDITION", "TRIMMED_AT_ONCE"):
        monkeypatch.setattr(archive, name, getattr(archive, name))
    small()


@pytest.fixture
def open_store(redis_server: Any, redis_prefix: str, tmp_path: Path) -> Callable[..., Any]:
    """A way to open the same store again."""

    @asynccontextmanager
    async def opened() -> Any:
        async with connected(redis_server.url) as redis:
            yield RedisLogStore(redis, redis_prefix, SystemClock(), "here", home=tmp_path)

    return opened


def unfinished(seed: int) -> tuple[list[Recorded], Recorded]:
    """A run whose episodes are all folded, and the last event that its coordinator will write."""
    *events, last = made_run(seed)
    return events, last


def without_segments(folder: Path) -> None:
    """Nothing of the past can be read."""
    for one in folder.rglob("*.jsonl.zst"):
        one.unlink()


def damage(folder: Path) -> None:
    """No checkpoint can be used."""
    for one in folder.rglob("checkpoint-*"):
        one.write_bytes(b"")


@pytest.mark.parametrize("seed", [5, 18])
async def test_a_coordinator_begins_at_the_checkpoint(seed: int, open_store: Any, ground: Any, tmp_path: Path) -> None:
    """It finishes the run with the counts of the whole log, without a look at a segment."""
    events, last = unfinished(seed)
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        assert (await archived(store, run)).last > 50
        without_segments(tmp_path)
        log = store.open(run)
        coordinator = await coordinated(log, ground(LocalQueue()))
        assert coordinator.conductor.control == "finished"
        [ended] = await log.read(type(last.position)(await log.head() - 1), 1)
        assert decode(ended) == decode(last)
        assert coordinator.projector.state.banks.digest() == replay(events).banks.digest()
        assert coordinator.conductor.progress.scores == {
            int(one.stream.removeprefix("episode-")): decode(one).success  # type: ignore[union-attr]
            for one in events
            if one.kind == "scored" and decode(one).valid  # type: ignore[union-attr]
        }


async def test_a_coordinator_without_its_checkpoint_reads_the_archive(
    open_store: Any, ground: Any, tmp_path: Path
) -> None:
    """One warning, and the same end."""
    events, last = unfinished(5)
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        await archived(store, run)
        damage(tmp_path)
        with structlog.testing.capture_logs() as lines:
            coordinator = await coordinated(store.open(run), ground(LocalQueue()))
        assert [one["event"] for one in lines].count("checkpoint_not_used") == 1
        assert coordinator.conductor.control == "finished"
        assert decode((await read_all(store.open(run)))[-1]) == decode(last)


async def test_a_replica_begins_at_the_checkpoint(open_store: Any, tmp_path: Path) -> None:
    """It answers every version that an open episode may read; the header and tasks are there."""
    events, _ = unfinished(5)
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        await archived(store, run)
        without_segments(tmp_path)
        replica = Replica(store.open(run))
        whole = replay(events)
        newest = await replica.newest()
        assert newest == whole.banks.version
        assert (await replica.at(newest)).digest() == whole.banks.digest()
        assert await replica.tasks() == whole.tasks
        for version in range(newest - 2, newest + 1):
            assert (await replica.at(version)).version == version


async def test_a_summary_reads_archive_and_server(open_store: Any) -> None:
    """`run show` says of an archived run what it said before."""
    events = made_run(6)
    run = events[0].run
    async with open_store() as store:
        log = await put(store, events)
        before = (await summarized({}, log)).summary()
        await archived(store, run)
        assert (await summarized({}, store.open(run))).summary() == before


@pytest.mark.parametrize("seed", [5, 18])
async def test_a_summary_without_segments_counts_what_came_later(seed: int, open_store: Any, tmp_path: Path) -> None:
    """Of an open run: the checkpoint says what the past came to, the server has the rest."""
    events, _ = unfinished(seed)
    run = events[0].run
    async with open_store() as store:
        log = await put(store, events[:100])
        assert 50 < (await archived(store, run)).last < 100
        await go_on(log, events[100:])
        before = (await summarized({}, log)).summary()
        without_segments(tmp_path)
        found = (await summarized_at_hand({}, store, store.open(run))).summary()
        assert "it is missing" in found.past
        unknown: dict[str, Any] = {"usage": [], "total": None, "gate": None, "operations": {}, "recalls": {}}
        wanted = replace(before, **unknown, abandonments={}, past=found.past)
        assert to_builtins(found) == to_builtins(wanted)


async def test_a_coordinator_that_cannot_reach_the_archive_says_so(open_store: Any, tmp_path: Path) -> None:
    """A server whose archive lies on another machine: reading names the folder."""
    events, _ = unfinished(5)
    run = events[0].run
    async with open_store() as store:
        await put(store, events)
        await archived(store, run)
        (tmp_path / "archive" / run).rename(tmp_path / "gone")
        with pytest.raises(Unreachable, match="no such folder on this machine"):
            await Replica(store.open(run)).newest()
