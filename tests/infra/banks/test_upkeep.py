"""What a person does to a bank: build it again, hold it against the fold, look something up, sweep up."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio
import pytest
from banked_run import Place, placed

from events.bank import Banks
from events.errors import BadInput
from events.ids import RunId
from infra.banks import upkeep, weaviate_client
from infra.banks import weaviate_wire as wire
from infra.banks.changes import row_of
from infra.banks.weaviate_edge import CHANNEL
from infra.weaviate_address import WeaviateAddress


@asynccontextmanager
async def built(redis_server, prefix: str, weaviate: WeaviateAddress) -> AsyncIterator[Place]:
    """A run of twelve versions, whose bank was built at the last."""
    async with placed(redis_server.url, prefix, weaviate, seed=6) as place:
        await place.run.fold(12)
        await upkeep.rebuild(place.server, place.generations, place.run.versions[12])
        yield place


def listed(*runs: RunId) -> Callable[[], Awaitable[tuple[RunId, ...]]]:
    """What answers that these are the runs there are."""

    async def known() -> tuple[RunId, ...]:
        return runs

    return known


async def test_a_rebuild_serves_and_is_right(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """What was built by hand equals the fold, serves readers, and takes the place of the one before."""
    async with built(redis_server, redis_prefix, weaviate_server) as place:
        run, before = place.run, await place.generations.serving()
        assert before is not None
        made = await upkeep.rebuild(place.server, place.generations, run.versions[12])
        assert (made.version, made.rows) == (12, len(run.versions[12]))
        assert await place.server.names() == [made.generation] or before.generation not in await place.server.names()
        verified = await upkeep.verify(place.server, place.generations, run.versions[12], [])
        assert verified.differences == []
        assert (verified.generation, verified.rows) == (made.generation, made.rows)
        reader, asked = place.reader(), run.asked()
        asked = type(asked)(asked.stage, asked.query, run.versions[12].version)
        found = await reader.recall(asked.stage, asked.query, asked.version)
        assert run.right(asked, found)
        assert found.source == "weaviate"


async def test_an_older_version_beside_it(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """A bank of another version under a name of its own changes nothing for anybody; sweeping up finds it."""
    async with built(redis_server, redis_prefix, weaviate_server) as place:
        run, before = place.run, await place.generations.serving()
        made = await upkeep.apart(place.server, place.generations, run.versions[5])
        assert await place.generations.serving() == before
        verified = await upkeep.verify(place.server, place.generations, run.versions[5], [], made.generation)
        assert (verified.differences, verified.rows) == ([], len(run.versions[5]))
        own = listed(place.generations.run)
        assert made.generation in await upkeep.unowned(place.server, place.generations._all, own)


async def test_what_differs_is_named(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """A row that is missing, one too many, one with another text, and one that no search finds."""
    async with built(redis_server, redis_prefix, weaviate_server) as place:
        run, serving = place.run, await upkeep.served(place.generations)
        banks, edge, name = run.versions[12], place.server._edge, serving.generation
        items = [item for item in banks if item.bank == "planning"]

        async def differences(of: Banks = banks) -> str:
            return "; ".join((await upkeep.verify(place.server, place.generations, of, [])).differences)

        request = wire.batch(name, [row_of(banks, items[0])])
        request.objects[0].properties.non_ref_properties.fields[wire.EXPERIENCE].string_value = "tampered with"
        await edge.put(name, request)
        assert await differences() == f"{items[0].id} has another experience"
        await edge.put(name, wire.batch(name, [row_of(banks, items[0])]))
        assert await differences() == ""
        await edge.delete(name, wire.deletion("planning", name, [items[1].id]))
        assert await differences() == f"{items[1].id} is missing"
        await edge.put(name, wire.batch(name, [row_of(banks, items[1])]))
        older = run.versions[11]
        assert "should not be there" in await differences(older) or "has another" in await differences(older)
        request = wire.batch(name, [row_of(banks, items[2])])
        del request.objects[0].vectors[:]
        await edge.put(name, request)
        assert "without a vector" in await differences()


async def test_rows_of_long_texts_are_read_in_smaller_pages(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch
):
    """A page that is longer than one answer may be is asked for in parts, and the server does not count as away."""
    with monkeypatch.context() as limited:
        limited.setattr(weaviate_client, "CHANNEL", [*CHANNEL, ("grpc.max_receive_message_length", 4_000)])
        async with built(redis_server, redis_prefix, weaviate_server) as place:
            banks = place.run.versions[12]
            found = await upkeep.verify(place.server, place.generations, banks, [])
            assert (found.differences, found.rows) == ([], len(banks))
            assert place.server.away is None


async def test_a_bank_that_is_not_there(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """A run that has none, and one that has not got to a version, are told apart from one that differs."""
    async with placed(redis_server.url, redis_prefix, weaviate_server) as place:
        with pytest.raises(BadInput, match="has no bank in Weaviate"):
            await upkeep.verify(place.server, place.generations, Banks(), [])
    async with built(redis_server, f"{redis_prefix}-b", weaviate_server) as place:
        await place.run.fold(1)
        with pytest.raises(BadInput, match="at version 12, not at 13"):
            await upkeep.verify(place.server, place.generations, place.run.versions[13], [])


async def test_sweeping_up(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """Only generations of this deployment that serve no run are swept up; a deleted run leaves none."""
    async with built(redis_server, redis_prefix, weaviate_server) as place:
        all_runs = place.generations._all
        other = all_runs.of(RunId("r-2"))
        gone = await upkeep.rebuild(place.server, other, place.run.versions[3])
        serving = await upkeep.served(place.generations)
        own = place.generations.run
        assert await upkeep.unowned(place.server, all_runs, listed(own, other.run)) == []
        assert await upkeep.unowned(place.server, all_runs, listed(own)) == [gone.generation]
        assert await upkeep.forget(place.server, other) == 1
        assert gone.generation not in await place.server.names()
        assert serving.generation in await place.server.names()
        assert await other.serving() is None


async def test_a_run_that_begins_while_somebody_sweeps(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch
):
    """Its bank stays, whether its tenants are there before they are listed or only afterwards."""
    async with built(redis_server, redis_prefix, weaviate_server) as place:
        all_runs, runs = place.generations._all, [place.generations.run]

        async def begin(name: str) -> None:
            runs.append(RunId(name))
            await place.server.create((await all_runs.of(RunId(name)).begin()).name)

        async def names() -> list[str]:
            await begin("before")
            found = await told()
            await begin("after")
            return found

        async def known() -> list[RunId]:
            return list(runs)

        told = place.server.names
        monkeypatch.setattr(place.server, "names", names)
        assert await upkeep.unowned(place.server, all_runs, known) == []
        assert len(runs) == 3


@pytest.mark.parametrize("mode", ["vector", "bm25", "hybrid"])
async def test_looking_something_up(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, mode: str):
    """By embedding, by words and by both: the item that is meant comes first."""
    async with built(redis_server, redis_prefix, weaviate_server) as place:
        serving = await upkeep.served(place.generations)
        banks = place.run.versions[12]
        item = [item for item in banks if item.bank == "execution"][-1]
        query = banks.scenario_vector(item)
        asked = (serving.generation, "execution", item.scenario, query, mode, 3)
        found = await place.server.look_up(*asked, banks.version)
        assert found[0].id == item.id
        assert len(found) <= 3
        assert all(one.score >= other.score for one, other in pairwise(found))
        if mode != "bm25":
            with pytest.raises(BadInput, match="embedding"):
                await place.server.look_up(serving.generation, "execution", "x", None, mode, 3, banks.version)


@pytest.mark.parametrize("mode", ["vector", "bm25", "hybrid"])
async def test_looking_something_up_in_an_older_version(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, mode: str
):
    """Whatever was born since is passed over, so that the one row that is asked for is a row of that version."""
    async with built(redis_server, redis_prefix, weaviate_server) as place:
        serving = await upkeep.served(place.generations)
        older, newer = place.run.versions[4], place.run.versions[12]
        item = [item for item in newer if item.bank == "execution"][-1]
        assert item.inserted_at > older.version
        asked = (serving.generation, "execution", item.scenario, newer.scenario_vector(item), mode, 1)
        (found,) = await place.server.look_up(*asked, older.version)
        assert newer.get(found.id) is not None
        assert newer.get(found.id).inserted_at <= older.version


async def test_a_rebuild_beside_a_mirror(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """A mirror whose generation was replaced by hand begins its next one; readers are right all along."""
    async with placed(redis_server.url, redis_prefix, weaviate_server) as place, anyio.create_task_group() as tasks:
        run, mirror = place.run, place.run.mirrored(place.mirror(), term=1)
        tasks.start_soon(mirror.run)
        await run.fold(5)
        assert await mirror.settle(120)
        made = await upkeep.rebuild(place.server, place.generations, run.versions[5])
        await run.fold(1)
        with anyio.fail_after(120):
            while not await mirror.settle(1) or mirror.view.published != 6:
                pass
        assert mirror.view.generation != made.generation
        reader = place.reader()
        for _ in range(6):
            asked = run.asked()
            assert run.right(asked, await reader.recall(asked.stage, asked.query, asked.version))
        tasks.cancel_scope.cancel()
