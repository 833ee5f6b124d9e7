"""What a reader and a mirror do where a bank is in doubt, its connection closed, or nothing can be written at all."""

import dataclasses
from collections.abc import Iterator

import anyio
import pytest
import structlog
from answering_alike import answering_alike
from anyio.abc import TaskGroup
from banked_run import Place, placed

from events.ids import PROJECTOR_STREAM, BankVersion, Version
from events.kinds import Query
from infra import banks as stores
from infra.banks import mirror as mirroring
from infra.banks.errors import UncleanWrite
from infra.banks.mirror import Mirror
from infra.banks.serving import BankServer
from infra.banks.stored import StoredBanks
from infra.weaviate_address import WeaviateAddress
from runtime.ports import Basis


async def settled(place: Place, mirror: Mirror, tasks: TaskGroup) -> None:
    """The mirror has written what there is."""
    place.run.mirrored(mirror, term=1)
    tasks.start_soon(mirror.run)
    assert await mirror.settle(120), mirror.view


async def source(place: Place, reader: StoredBanks) -> str:
    """Where a recall at the newest version, which is right, came from."""
    asked = place.run.asked()
    asked = type(asked)(asked.stage, asked.query, place.run.versions[-1].version)
    recalled = await reader.recall(asked.stage, asked.query, asked.version)
    assert place.run.right(asked, recalled)
    return recalled.source


async def test_nobody_reads_what_is_in_doubt(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """What one reader doubts, or the projector has found wrong, no reader believes until the next generation serves."""
    async with placed(redis_server.url, redis_prefix, weaviate_server) as place, anyio.create_task_group() as tasks:
        await place.run.fold(8)
        mirror = place.mirror()
        await settled(place, mirror, tasks)
        readers = [place.reader(), place.reader()]
        assert [await source(place, reader) for reader in readers] == ["weaviate"] * 2
        edge, put, held, go = place.server._edge, place.server._edge.put, anyio.Event(), anyio.Event()

        async def waits(*request) -> None:
            held.set()
            await go.wait()
            await put(*request)

        edge.put = waits
        mirror.doubt("recall r-1/episode-3/1 differs")
        with anyio.fail_after(120):
            await held.wait()  # the next one is being built
        assert [await source(place, reader) for reader in readers] == ["fallback"] * 2
        go.set()
        assert await mirror.settle(120), mirror.view
        assert [await source(place, reader) for reader in readers] == ["weaviate"] * 2
        tasks.cancel_scope.cancel()


async def test_a_log_that_is_read_again_during_a_search(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress
):
    """A recall whose banks went with the log's tail while it was searching is made again over those of the log."""
    async with placed(redis_server.url, redis_prefix, weaviate_server) as place, anyio.create_task_group() as tasks:
        await place.run.fold(8)
        await settled(place, place.mirror(), tasks)
        reader = place.reader()
        assert await source(place, reader) == "weaviate"
        edge, search = place.server._edge, place.server._edge.search

        async def loses(*request, **options):
            answer = await search(*request, **options)
            reader._light._forget()
            await reader.newest()
            return answer

        edge.search = loses
        assert await source(place, reader) == "fallback"
        edge.search = search
        assert await source(place, reader) == "weaviate"
        tasks.cancel_scope.cancel()


async def test_a_connection_that_is_closed_under_recalls(redis_server, redis_prefix: str, own_weaviate_server):
    """Recalls under way where a server is given up for another one end, and come from the log; so do later ones."""
    address = own_weaviate_server.address
    async with placed(redis_server.url, redis_prefix, address) as place, anyio.create_task_group() as tasks:
        await place.run.fold(8)
        await settled(place, place.mirror(), tasks)
        sources: list[str] = []

        async def recall(reader: StoredBanks) -> None:
            sources.append(await source(place, reader))

        try:
            async with stores.connected(address) as server:
                reader = dataclasses.replace(place, server=server).reader()
                await recall(reader)
                search, begun = server._edge.search, list[None]()

                async def noted(*request, **options):
                    begun.append(None)
                    return await search(*request, **options)

                server._edge.search = noted
                own_weaviate_server.pause()
                for _ in range(4):
                    tasks.start_soon(recall, reader)
                with anyio.fail_after(120):
                    while len(begun) < 4:  # noqa: ASYNC110 - they tell nobody
                        await anyio.sleep(0.02)
        finally:
            own_weaviate_server.resume()
        with anyio.fail_after(120):
            while len(sources) < 5:  # noqa: ASYNC110 - they tell nobody
                await anyio.sleep(0.02)
        assert sources == ["weaviate", *["fallback"] * 4]
        assert await source(place, reader) == "fallback"
        tasks.cancel_scope.cancel()


async def test_nobody_is_asked_for_the_server_before_a_recall(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress
):
    """A worker that only judges reads texts and banks without a connection; one that recalls is told of it then."""
    async with placed(redis_server.url, redis_prefix, weaviate_server) as place, anyio.create_task_group() as tasks:
        await place.run.fold(4)
        await settled(place, place.mirror(), tasks)
        asked = list[BankServer | None]()
        there: BankServer | None = None

        async def reach() -> BankServer | None:
            asked.append(there)
            return there

        reader = StoredBanks(place.run.log, reach, place.generations, place.clock)
        newest = place.run.versions[-1]
        await reader.header()
        await reader.tasks()
        assert await reader.newest() == newest.version
        assert (await reader.at(newest.version)).digest() == newest.digest()
        ids = [item.id for item in newest]
        assert [item.id for item in await reader.items(ids, newest.version)] == ids
        assert asked == []
        assert await source(place, reader) == "fallback"
        there = place.server
        assert await source(place, reader) == "weaviate"
        assert asked == [None, place.server]
        tasks.cancel_scope.cancel()


async def test_generations_begun_in_vain_do_not_pile_up(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch
):
    """A server that makes room for generations and takes no rows holds a few of them, however long that lasts.

    What is wrong is said once.
    """
    monkeypatch.setattr(mirroring, "_AGAIN_S", (0.01, 0.01))
    monkeypatch.setattr(mirroring, "_RETIRED_S", 0.0)
    async with placed(redis_server.url, redis_prefix, weaviate_server) as place, anyio.create_task_group() as tasks:
        await place.run.fold(8)
        edge, put = place.server._edge, place.server._edge.put

        own, there = await place.generations.beginning(), list[int]()

        async def refused(generation: str, request: object) -> None:
            # Counted while the mirror waits: the names of both collections are asked for one after the other.
            there.append(len([one for one in await place.server.names() if one.startswith(own)]))
            raise UncleanWrite(generation, "store is read-only due to: resource pressure")

        edge.put = refused
        mirror = place.run.mirrored(place.mirror(), term=1)
        with anyio.fail_after(120), structlog.testing.capture_logs() as logs:
            tasks.start_soon(mirror.run)
            while len(there) < 12:
                await mirror.settle(0.1)
        assert max(there) <= 3
        assert [one["event"] for one in logs if one["event"] == "bank_not_mirrored"] == ["bank_not_mirrored"]
        edge.put = put
        assert await mirror.settle(120)
        tasks.cancel_scope.cancel()


async def test_a_mirror_that_begins_with_what_the_log_has_lost(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress
):
    """The first generation too is published only where the log holds what made it."""
    async with placed(redis_server.url, redis_prefix, weaviate_server) as place, anyio.create_task_group() as tasks:
        await place.run.fold(8)
        lost = Basis(stream=PROJECTOR_STREAM, version=Version(9), sha256="0" * 64)
        mirror = place.mirror()
        mirror.begin(place.run.window, place.run.dimension, lost)
        mirror.hold(1)
        tasks.start_soon(mirror.run)
        with anyio.fail_after(120):
            while "has lost version" not in mirror.view.waits_for:
                assert not await mirror.settle(0.1)
        assert await place.generations.serving() is None
        tasks.cancel_scope.cancel()


_BODIES = [b"[]", b"null", b"{}", b"<p>", b"", b'"1.39.0"']
_BODIES += [b'{"version": null}', b'{"version": 5}', b'{"version": [1]}']


@pytest.fixture(params=_BODIES, ids=bytes.decode)
def no_weaviate(request: pytest.FixtureRequest) -> Iterator[WeaviateAddress]:
    """Something that answers every request alike."""
    with answering_alike(request.param) as address:
        yield address


async def test_something_that_is_no_weaviate(redis_server, redis_prefix: str, no_weaviate: WeaviateAddress):
    """Whatever answers at the address counts as away, in one line; the run's recalls come from the log."""
    async with placed(redis_server.url, redis_prefix, no_weaviate) as place:
        await place.run.fold(3)
        found = await place.reader().recall("planning", Query(text="q", vector=place.run.vector()), BankVersion(3))
        assert found.source == "fallback"
        assert place.server.away
        assert "\n" not in place.server.away
