"""Reads at any version of the window while the bank is written: each is what the fold says."""

import anyio
import pytest
from banked_run import placed
from chaos_budget import LONG

from events.ids import BankVersion
from infra.banks import stored, upkeep
from infra.banks.replica import Versions
from infra.weaviate_address import WeaviateAddress


async def read_while_written(place, reads: int, readers: int) -> dict[str, int]:
    """So many reads by so many readers, beside a mirror that writes as fast as versions come; by source."""
    run, mirror = place.run, place.run.mirrored(place.mirror(), term=1)
    shared = [place.reader() for _ in range(max(1, readers // 4))]
    left, wrong, open_at = [reads], list[str](), list[int]()

    async def read(at: int) -> None:
        reader = shared[at % len(shared)]
        while left[0] > 0:
            left[0] -= 1
            asked = run.asked()
            open_at.append(asked.version)
            found = await reader.recall(asked.stage, asked.query, asked.version)
            open_at.remove(asked.version)
            if not run.right(asked, found):
                wrong.append(f"{asked.stage} at {asked.version} by {found.source}")

    async def write() -> None:
        while left[0] > 0:
            # As in a run: an episode that reads version v is folded before v + L + 1.
            if len(run.operations) - min(open_at, default=len(run.operations)) < run.config.lag:
                await run.fold()
            await anyio.sleep(0.002)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mirror.run)
        await run.fold(20)
        async with anyio.create_task_group() as work:
            work.start_soon(write)
            for at in range(readers):
                work.start_soon(read, at)
        assert await mirror.settle(120)
        tasks.cancel_scope.cancel()
    assert not wrong, wrong[:3]
    assert sum(len(one) for one in map(_prunes, run.operations)) > 0, "nothing was pruned: it shows less than it should"
    counts: dict[str, int] = {}
    for reader in shared:
        for source, count in reader.answered.items():
            counts[source] = counts.get(source, 0) + count
    return counts


def _prunes(operations: list) -> list:
    return [one for one in operations if type(one).__name__ == "Pruned"]


async def test_sixteen_readers_beside_a_mirror(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch
):
    """Sixteen at once, at versions of the whole window: none reads anything that was not so."""
    monkeypatch.setattr(stored, "_PUBLISHED_S", 60.0)  # a mirror that is late is waited for
    async with placed(redis_server.url, redis_prefix, weaviate_server, dimension=64) as place:
        counts = await read_while_written(place, reads=600, readers=16)
    assert counts["weaviate"] > 300, counts


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_ten_thousand_reads(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, record_property):
    """Ten thousand of them, or two thousand."""
    reads = 10_000 if LONG else 2_000
    async with placed(redis_server.url, redis_prefix, weaviate_server, dimension=384, concurrency=16) as place:
        counts = await read_while_written(place, reads=reads, readers=16)
    record_property("chaos", f"{reads} reads beside a writer, 0 wrong: {counts}")
    # A busy machine answers late, and then a replica does: right all the same, but not what is shown here.
    assert counts["weaviate"] >= reads / 10, counts


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_ten_thousand_diagnoses_built_again(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, record_property
):
    """A bank of ten thousand diagnoses, or one thousand, is thrown away and comes back from the log, row for row."""
    async with placed(redis_server.url, redis_prefix, weaviate_server, dimension=64) as place:
        diagnoses = 10_000 if LONG else 1_000
        run = place.run
        await run.fold(diagnoses)
        light = Versions(run.log, light=True)
        assert (await light.at(BankVersion(diagnoses))).digest() == run.versions[-1].digest()
        for _ in range(2):
            made = await upkeep.rebuild(place.server, place.generations, run.versions[-1])
        verified = await upkeep.verify(place.server, place.generations, run.versions[-1], [])
        assert verified.differences == []
        assert verified.rows == made.rows == len(run.versions[-1])
        # Others' banks are on the server too.
        ours = made.generation.rsplit("_", 1)[0]
        assert [one for one in await place.server.names() if one.startswith(ours)] == [made.generation]
    record_property(
        "chaos", f"{made.rows} rows of {diagnoses} diagnoses built in {made.seconds:.1f} s, equal to the fold"
    )
