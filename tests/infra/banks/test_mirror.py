"""A run's mirror: what it writes when, whose it is, and what it leaves behind."""

import anyio
import anyio.lowlevel
import pytest
from banked_run import Place, placed

from events.ids import BankVersion
from infra.banks import mirror as mirroring
from infra.banks.changes import row_of
from infra.banks.prunes import Prunes
from infra.weaviate_address import WeaviateAddress


async def rows_of(place: Place) -> list:
    """Every row that is live in what serves, at its version."""
    serving = await place.generations.serving()
    assert serving is not None
    prunes = Prunes()
    for version, operations in enumerate(place.run.operations, 1):
        prunes.add({one.id: BankVersion(version) for one in operations if type(one).__name__ == "Pruned"})
    store = place.server.bank(place.generations.named(serving.generation), prunes, place.run.dimension)
    return await store.items(serving.version)


async def test_nothing_before_the_lease_is_held(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """Until the process holds the run's lease nothing is written, and nothing after it has lost it."""
    async with placed(redis_server.url, redis_prefix, weaviate_server) as place, anyio.create_task_group() as tasks:
        mirror = place.mirror()
        mirror.begin(place.run.window, place.run.dimension)
        place.run.mirrors.append(mirror)
        tasks.start_soon(mirror.run)
        await place.run.fold(5)
        assert not await mirror.settle(0.3)
        assert await place.generations.serving() is None
        mirror.hold(1)
        assert await mirror.settle(120)
        mirror.hold(1)
        assert (await place.generations.standing()).owner == mirror.view.generation
        mirror.hold(None)
        await place.run.fold(1)
        assert not await mirror.settle(0.3)
        serving = await place.generations.serving()
        assert serving is not None
        assert serving.version == 5
        tasks.cancel_scope.cancel()


async def test_each_term_has_a_generation(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch
):
    """A lease that is taken again is another term: the bank is built again, and the old one goes after a while."""
    monkeypatch.setattr(mirroring, "_RETIRED_S", 0.0)
    async with placed(redis_server.url, redis_prefix, weaviate_server) as place, anyio.create_task_group() as tasks:
        mirror = place.run.mirrored(place.mirror(), term=1)
        tasks.start_soon(mirror.run)
        await place.run.fold(4)
        assert await mirror.settle(120)
        first = mirror.view.generation
        mirror.hold(None)
        mirror.hold(2)
        assert await mirror.settle(120)
        second = mirror.view.generation
        assert first != second
        assert (mirror.view.begun, mirror.view.behind, mirror.view.published) == (2, 0, 4)
        with anyio.fail_after(120):
            while first in await place.server.names():
                await mirror.settle(1)
        assert second in await place.server.names()
        tasks.cancel_scope.cancel()


async def test_people_see_rows_as_they_are(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """Texts, values and sources follow within a second, with nobody asking."""
    async with (
        placed(redis_server.url, redis_prefix, weaviate_server, seed=3) as place,
        anyio.create_task_group() as tasks,
    ):
        run, mirror = place.run, place.run.mirrored(place.mirror(), term=1)
        tasks.start_soon(mirror.run)
        await run.fold(3)
        assert await mirror.settle(120)
        await run.fold(6)
        wanted = [row_of(run.versions[-1], item) for item in run.versions[-1]]
        with anyio.fail_after(120):
            while mirror.view.behind or await rows_of(place) != wanted:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_rows_that_are_pruned_go(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch
):
    """Once no version of the window holds an item its row is deleted, and not before."""
    monkeypatch.setattr(mirroring, "_AFTER_S", 0.0)
    async with placed(redis_server.url, redis_prefix, weaviate_server, lag=2, concurrency=1, seed=4) as place:
        run = place.run
        async with anyio.create_task_group() as tasks:
            mirror = run.mirrored(place.mirror(), term=1)
            tasks.start_soon(mirror.run)
            for _ in range(10):
                await run.fold(3)
                assert await mirror.settle(120)
            tasks.cancel_scope.cancel()
        held = {item.id for at in range(run.window.oldest, 31) for item in run.versions[at]}
        ever = {item.id for banks in run.versions for item in banks}
        assert ever - held, "nothing was pruned"
        serving = await place.generations.serving()
        assert serving is not None
        store = place.server.bank(place.generations.named(serving.generation), Prunes(), run.dimension)
        there = {row.id for row in await store.items(serving.version)}
        assert held <= there
        assert len(there - held) <= 1


async def test_too_far_behind(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch
):
    """Changes do not pile up without end while the store is slow: the next generation begins with the newest banks."""
    monkeypatch.setattr(mirroring, "_BACKLOG", 5)
    async with placed(redis_server.url, redis_prefix, weaviate_server) as place, anyio.create_task_group() as tasks:
        run, mirror = place.run, place.run.mirrored(place.mirror(), term=1)
        await run.fold(2)
        tasks.start_soon(mirror.run)
        assert await mirror.settle(120)
        edge, put, sent, go = place.server._edge, place.server._edge.put, anyio.Event(), anyio.Event()

        async def slow(*request) -> None:
            sent.set()
            await go.wait()
            await put(*request)

        edge.put = slow
        while not sent.is_set():  # a fold may write nothing
            await run.fold(1)
            with anyio.move_on_after(0.5):
                await sent.wait()
        await run.fold(10)
        assert len(mirror._changes) > mirroring._BACKLOG
        go.set()
        assert await mirror.settle(120)
        assert mirror.view.begun == 2
        assert mirror._changes == []
        assert await rows_of(place) == [row_of(run.versions[-1], item) for item in run.versions[-1]]
        tasks.cancel_scope.cancel()
