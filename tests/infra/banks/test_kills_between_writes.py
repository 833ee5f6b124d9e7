"""A mirror that dies, sleeps or loses its server between any two writes: what is published reads as it was."""

from collections.abc import Callable

import anyio
import pytest
from banked_run import Place, placed
from chaos_budget import LONG
from stepped import stepped

from events.ids import STAGES, BankVersion
from events.kinds import Query
from infra.banks import mirror as mirroring
from infra.banks import weaviate_store
from infra.banks.changes import row_of
from infra.banks.mirror import Mirror
from infra.banks.prunes import Prunes
from infra.weaviate_address import WeaviateAddress

#: the mirror dies at every place in `make chaos`, at each third one in `make test`
APART = 1 if LONG else 3


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition, half a minute at most."""
    with anyio.fail_after(120):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await anyio.sleep(0.005)


class Killed(Exception):
    """The process is gone at this place."""


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are refreshed, deleted and dropped at once, and a batch is short: many steps in little time."""
    monkeypatch.setattr(mirroring, "_AFTER_S", 0.0)
    monkeypatch.setattr(mirroring, "_RETIRED_S", 0.0)
    monkeypatch.setattr(mirroring, "_AGAIN_S", (0.02, 0.1))
    monkeypatch.setattr(weaviate_store, "_BATCH", 8)


async def play(place: Place, mirror: Mirror) -> None:
    """A run's mirror from its first generation on: single versions, several at once, rows shown and deleted."""
    run = place.run
    await run.fold(16)
    run.mirrored(mirror, term=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mirror.run)
        assert await mirror.settle(120)
        for times in (1, 5):
            await run.fold(times)
            assert await mirror.settle(120)
        tasks.cancel_scope.cancel()
    run.mirrors.clear()


async def reads_are_right(place: Place) -> dict[str, int]:
    """Every version that may be read, in both stages; where from."""
    reader, run = place.reader(), place.run
    for version in range(max(0, len(run.operations) - 8), len(run.versions)):
        for stage in STAGES:
            asked = run.asked()
            asked = type(asked)(stage, Query(text="q", vector=run.vector()), BankVersion(version))
            found = await reader.recall(asked.stage, asked.query, asked.version)
            assert run.right(asked, found), f"{stage} at {version} by {found.source}"
    return dict(reader.answered)


async def a_fresh_mirror_converges(place: Place, term: int = 2) -> None:
    """Whoever takes over builds what there should be, and everything reads from it."""
    run, mirror = place.run, place.mirror()
    await run.fold(1)
    run.mirrored(mirror, term)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mirror.run)
        assert await mirror.settle(120), mirror.view
        await run.fold(2)
        assert await mirror.settle(120), mirror.view
        tasks.cancel_scope.cancel()
    run.mirrors.clear()
    assert set(await reads_are_right(place)) == {"weaviate"}
    serving = await place.generations.serving()
    assert serving is not None
    rows = [row_of(run.versions[-1], item) for item in run.versions[-1]]
    store = place.server.bank(place.generations.named(serving.generation), reading_prunes(place), run.dimension)
    assert await store.items(BankVersion(len(run.operations))) == rows


def reading_prunes(place: Place) -> Prunes:
    """What the run's banks have lost so far."""
    prunes = Prunes()
    for version, operations in enumerate(place.run.operations, 1):
        prunes.add({one.id: BankVersion(version) for one in operations if type(one).__name__ == "Pruned"})
    return prunes


@pytest.mark.chaos
@pytest.mark.parametrize("first", range(4))
async def test_the_mirror_dies_between_any_two_writes(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, first: int
) -> None:
    """After each write, and before the next: what is published reads right, and who takes over ends with the same."""
    steps: list[str] = []
    for dead_at in range(first * APART, 1000, 4 * APART):
        playing = [True]

        async def die(number: int, name: str, over: bool, dead_at=dead_at, playing=playing) -> None:
            if number == dead_at and not over and playing:
                steps.append(name)
                raise Killed(name)

        prefix = f"{redis_prefix}-{dead_at}"
        async with placed(redis_server.url, prefix, weaviate_server, lag=4, concurrency=2, seed=4) as place:
            stepped(place, die)
            try:
                await play(place, place.mirror())
            except* Killed:
                pass
            else:
                playing.clear()
                break
            place.run.mirrors.clear()
            await reads_are_right(place)
            await a_fresh_mirror_converges(place)
    assert len(steps) > (4 if LONG else 1)
    assert "put" in steps


async def test_the_mirror_sleeps_between_any_two_writes(redis_server, redis_prefix, weaviate_server: WeaviateAddress):
    """One that sleeps while another takes over, and wakes up, writes where nobody reads, and is told so."""
    for asleep_at in range(0, 18, 2):
        awake, asleep = anyio.Event(), anyio.Event()

        async def sleep(number: int, name: str, over: bool, at=asleep_at, awake=awake, asleep=asleep) -> None:
            if number == at and not over:
                asleep.set()
                await awake.wait()

        prefix = f"{redis_prefix}-{asleep_at}"
        async with placed(redis_server.url, prefix, weaviate_server, lag=4, concurrency=2, seed=4) as place:
            sleeper = place.mirror()
            stepped(place, sleep)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(play, place, sleeper)
                await asleep.wait()
                place.run.mirrors.clear()
                await a_fresh_mirror_converges(place, term=2)
                before = await place.generations.serving()
                awake.set()
                await until(lambda one=sleeper: bool(one.view.waits_for))
                after = await place.generations.serving()
                assert before is not None
                assert after is not None
                assert after.generation == before.generation, sleeper.view
                assert set(await reads_are_right(place)) == {"weaviate"}
                tasks.cancel_scope.cancel()


@pytest.mark.parametrize("kill_at", [2, 5, 9, 14, 20])
async def test_the_server_dies_in_the_middle_of_a_write(
    redis_server, redis_prefix: str, own_weaviate_server, kill_at: int
) -> None:
    """Killed with a write under way, it comes back with anything at all: what is published reads right all the time."""
    async with placed(
        redis_server.url, redis_prefix, own_weaviate_server.address, lag=4, concurrency=2, seed=4
    ) as place:
        killed, folding = anyio.Event(), anyio.Lock()

        async def kill(number: int, name: str, over: bool) -> None:
            if number == kill_at and not over:
                tasks.start_soon(_killed_in_a_moment, own_weaviate_server, killed)

        stepped(place, kill)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_folding, place, place.mirror(), folding)
            with anyio.fail_after(120):
                await killed.wait()
            async with folding:
                await reads_are_right(place)
            await anyio.to_thread.run_sync(own_weaviate_server.start)
            async with folding:
                await reads_are_right(place)
            tasks.cancel_scope.cancel()
        place.run.mirrors.clear()
        await a_fresh_mirror_converges(place)


async def _killed_in_a_moment(server, killed: anyio.Event) -> None:
    await anyio.sleep(0.001)
    await anyio.to_thread.run_sync(server.kill)
    killed.set()


async def _folding(place: Place, mirror: Mirror, folding: anyio.Lock) -> None:
    """As `play`, and on over the outage."""
    place.run.mirrored(mirror, term=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mirror.run)
        while True:
            async with folding:
                await place.run.fold(1)
            await mirror.settle(0.2)
