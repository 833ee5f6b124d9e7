"""What becomes of a run's bank when its server is away, hangs, forgets, refuses or is another one."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio
import httpx
import pytest
import structlog
from answering_alike import answering_alike
from banked_run import Place, placed
from msgspec.structs import replace
from scripted_endpoint import FakeClock
from weaviate.classes.config import Configure

from events.errors import BadInput
from events.ids import STAGES, BankVersion
from events.kinds import Query
from events.window import Window
from infra import banks as stores
from infra.banks import mirror as mirroring
from infra.banks import stored as reading
from infra.banks import weaviate_edge
from infra.banks import weaviate_wire as wire
from infra.banks.changes import row_of
from infra.banks.generations import bank_key
from infra.banks.mirror import Mirror
from infra.banks.stored import StoredBanks
from infra.weaviate_address import WeaviateAddress


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are short."""
    monkeypatch.setattr(mirroring, "_AGAIN_S", (0.02, 0.2))
    monkeypatch.setattr(weaviate_edge, "_PROBE_S", (0.05, 0.2))


@asynccontextmanager
async def mirrored(redis_url: str, prefix: str, weaviate: WeaviateAddress) -> AsyncIterator[tuple[Place, Mirror]]:
    """A run of some versions with a mirror that has settled."""
    async with placed(redis_url, prefix, weaviate, seed=2) as place, anyio.create_task_group() as tasks:
        await place.run.fold(8)
        mirror = place.run.mirrored(place.mirror(), term=1)
        tasks.start_soon(mirror.run)
        assert await mirror.settle(120), mirror.view
        yield place, mirror
        tasks.cancel_scope.cancel()


async def read(place: Place, reader: StoredBanks, times: int = 4) -> list[str]:
    """So many recalls at the newest version, each right; where from."""
    found = []
    for _ in range(times):
        asked = place.run.asked()
        asked = type(asked)(asked.stage, asked.query, place.run.versions[-1].version)
        recalled = await reader.recall(asked.stage, asked.query, asked.version)
        assert place.run.right(asked, recalled)
        found.append(recalled.source)
    return found


async def back(place: Place, mirror: Mirror) -> None:
    """The mirror has caught up, and a new reader is answered by the store."""
    with anyio.fail_after(120):
        while not await mirror.settle(1) or "weaviate" not in await read(place, place.reader(), 1):
            pass


@pytest.mark.parametrize("how", ["kill", "stop", "pause"])
async def test_an_outage(
    redis_server, redis_prefix: str, own_weaviate_server, how: str, monkeypatch: pytest.MonkeyPatch
):
    """Folds go on, recalls come from the log, and afterwards from the store again; said once each."""
    address = own_weaviate_server.address
    async with mirrored(redis_server.url, redis_prefix, address) as (place, mirror):
        reader = place.reader()
        assert await read(place, reader) == ["weaviate"] * 4
        with structlog.testing.capture_logs() as lost, monkeypatch.context() as impatient:
            await anyio.to_thread.run_sync(getattr(own_weaviate_server, how))
            impatient.setattr(weaviate_edge, "READ_S", 0.5)
            assert await read(place, reader) == ["fallback"] * 4
            await place.run.fold(5)
            assert await read(place, reader) == ["fallback"] * 4
            assert not await mirror.settle(0.1)
        if how == "pause":
            own_weaviate_server.resume()
        else:
            await anyio.to_thread.run_sync(own_weaviate_server.start)
        await back(place, mirror)
        with structlog.testing.capture_logs() as found, anyio.fail_after(120):
            while await read(place, reader, 1) == ["fallback"]:
                pass
        assert await read(place, reader) == ["weaviate"] * 4
        told = [[one["event"] for one in logs if "bank_" in one["event"]] for logs in (lost, found)]
        assert [told[0].count("bank_fallback"), told[0].count("bank_back")] == [1, 0]
        assert [told[1].count("bank_fallback"), told[1].count("bank_back")] == [0, 1]
        assert reader.answered["fallback"] >= 8


async def test_a_wiped_server(redis_server, redis_prefix: str, own_weaviate_server):
    """Its data is gone: a reader that finds nothing doubts it, and the mirror builds the bank again from the log."""
    async with mirrored(redis_server.url, redis_prefix, own_weaviate_server.address) as (place, mirror):
        before, edge, put, go = mirror.view.generation, place.server._edge, place.server._edge.put, anyio.Event()

        async def waits(*request) -> None:
            await go.wait()
            await put(*request)

        edge.put = waits  # the mirror may be quicker than a reader
        await anyio.to_thread.run_sync(own_weaviate_server.wipe)
        await anyio.to_thread.run_sync(own_weaviate_server.start)
        with anyio.fail_after(120):
            while not (await place.generations.serving()).doubt:
                assert "weaviate" not in await read(place, place.reader(), 1)
        assert "weaviate" not in await read(place, place.reader())
        go.set()
        await back(place, mirror)
        assert mirror.view.generation != before


async def test_another_key(redis_server, redis_prefix: str, own_weaviate_server):
    """A server that takes our key no more is away, and says why; nothing else happens to the run."""
    async with mirrored(redis_server.url, redis_prefix, own_weaviate_server.address) as (place, mirror):
        await anyio.to_thread.run_sync(own_weaviate_server.stop)
        await anyio.to_thread.run_sync(lambda: own_weaviate_server.start(api_key="another"))
        assert await read(place, place.reader()) == ["fallback"] * 4
        await place.run.fold(2)
        assert not await mirror.settle(0.5)
        with anyio.fail_after(120):
            while "refuses the API key" not in (place.server.away or ""):  # noqa: ASYNC110 - it goes on trying
                await anyio.sleep(0.02)
        assert await read(place, place.reader()) == ["fallback"] * 4


@pytest.mark.parametrize("version", ["1.20.0", "1.36.9"])
async def test_a_server_of_long_ago(redis_server, redis_prefix: str, version: str):
    """It counts as away, in one line that says its version; the run's recalls come from the log."""
    told = json.dumps({"version": version, "hostname": "x", "modules": {}}).encode()
    with answering_alike(told) as address:
        async with placed(redis_server.url, redis_prefix, address) as place:
            await place.run.fold(3)
            assert await read(place, place.reader()) == ["fallback"] * 4
            away = place.server.away or ""
    assert version in away
    assert "\n" not in away


async def test_nobody_there(redis_server, redis_prefix: str):
    """An address that nobody answers at costs a recall nothing but the first try."""
    nobody = WeaviateAddress(http_url="http://127.0.0.1:9", grpc_url="127.0.0.1:10", api_key="", version="")
    async with placed(redis_server.url, redis_prefix, nobody) as place:
        await place.run.fold(3)
        assert await read(place, place.reader()) == ["fallback"] * 4
        assert place.server.away is not None


@pytest.mark.parametrize("url", ["ftp://x:1", "http://", "http://x:y", "http://x:80/path"])
async def test_addresses_that_are_none(url: str):
    """What cannot be an address is said to be none."""
    with pytest.raises(BadInput, match="no address of a Weaviate server"):
        async with stores.connected(WeaviateAddress(http_url=url, grpc_url="x:1", api_key="", version="")):
            pass


async def test_a_scope_around_a_recall_of_a_server_that_hangs(redis_server, redis_prefix: str, own_weaviate_server):
    """Whoever gives up on a recall gets a time-out and nothing else, and no task is left behind."""
    async with mirrored(redis_server.url, redis_prefix, own_weaviate_server.address) as (place, _):
        reader = place.reader()
        await read(place, reader, 1)
        own_weaviate_server.pause()
        try:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await _given_up(reader, Query(text="q", vector=place.run.vector()))
        finally:
            own_weaviate_server.resume()


async def _given_up(reader: StoredBanks, query: Query) -> None:
    with anyio.fail_after(0.2):
        await reader.recall("planning", query, BankVersion(8))
        await anyio.sleep_forever()


async def test_versions_that_are_not_published(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """A reader waits for its version a moment, and for a bank that does not move only once."""
    async with mirrored(redis_server.url, redis_prefix, weaviate_server) as (place, mirror):
        mirror.hold(None)
        await place.run.fold(1)
        clock = FakeClock()
        reader = StoredBanks(place.run.log, place.reach, place.generations, clock)
        assert await read(place, reader, 1) == ["fallback"]
        waited = clock.monotonic()
        assert waited >= reading._PUBLISHED_S
        assert await read(place, reader, 2) == ["fallback"] * 2
        assert clock.monotonic() == waited
        mirror.hold(2)
        await back(place, mirror)
        assert await read(place, reader, 1) == ["weaviate"]


async def test_a_pointer_that_is_gone(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """Redis has lost which generation serves: another one is built, under a name that none had."""
    async with mirrored(redis_server.url, redis_prefix, weaviate_server) as (place, mirror):
        before = mirror.view.generation
        await place.generations.forget()
        await back(place, mirror)
        assert mirror.view.generation != before


async def test_a_bank_ahead_of_its_log(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch
):
    """A mirror whose versions the log has lost publishes none of them, and begins anew once it is told to."""
    async with mirrored(redis_server.url, redis_prefix, weaviate_server) as (place, mirror):
        published = mirror.view.published

        async def lost(*event: object) -> None: ...

        monkeypatch.setattr(place.run.log, "append", lost)
        await place.run.fold(1)
        with anyio.fail_after(120):
            while "lost version 9" not in mirror.view.waits_for:
                assert not await mirror.settle(0.1)
        serving = await place.generations.serving()
        assert serving is not None
        assert serving.version == published
        window = Window(place.run.config, place.run.versions[0])
        for banks in place.run.versions[1:-1]:
            window.add(banks)
        mirror.begin(window, place.run.dimension)
        assert await mirror.settle(120)
        serving = await place.generations.serving()
        assert serving is not None
        assert serving.version == published


async def test_a_reader_of_a_bank_ahead_of_its_log(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """It waits for no version that the log has not: the log answers, and the mirror builds the bank again."""
    async with mirrored(redis_server.url, redis_prefix, weaviate_server) as (place, mirror):
        before, key = mirror.view.generation, bank_key(redis_prefix, place.generations.run)
        await place.redis.hset(key, "serving", f"{before} 13")
        with anyio.fail_after(120):
            assert await read(place, place.reader(), 1) == ["fallback"]
        await back(place, mirror)
        assert mirror.view.generation != before
        serving = await place.generations.serving()
        assert serving is not None
        assert serving.version == 8


async def test_a_recall_that_the_projector_finds_wrong(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress
):
    """The mirror that is told builds the next generation beside the one that serves; recalls never stop."""
    async with mirrored(redis_server.url, redis_prefix, weaviate_server) as (place, mirror):
        before, reader = mirror.view.generation, place.reader()
        mirror.doubt("recall r-1/episode-3/1 differs")
        await read(place, reader)
        await back(place, mirror)
        assert mirror.view.generation != before
        assert mirror.view.begun == 2
        assert await read(place, reader) == ["weaviate"] * 4


async def test_a_row_that_is_lost(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """A search that finds too few rows is not believed, and makes the mirror build the bank again."""
    async with mirrored(redis_server.url, redis_prefix, weaviate_server) as (place, mirror):
        before, reader = mirror.view.generation, place.reader()
        for stage in STAGES:
            lost = [item.id for item in place.run.versions[-1] if item.bank == stage][:3]
            assert await place.server._edge.delete(before, wire.deletion(stage, before, lost)) == 3
        assert await read(place, reader, 1) == ["fallback"]
        await back(place, mirror)
        assert mirror.view.generation != before
        assert await read(place, reader) == ["weaviate"] * 4


async def test_rows_with_another_vector(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """Rows that hold each other's vectors, written by whoever: no recall believes them, and the bank is built again."""
    async with mirrored(redis_server.url, redis_prefix, weaviate_server) as (place, mirror):
        before, reader, banks = mirror.view.generation, place.reader(), place.run.versions[-1]
        for stage in STAGES:
            rows = [row_of(banks, item) for item in banks if item.bank == stage]
            swapped = [replace(row, vector=other.vector) for row, other in pairwise([*rows, rows[0]])]
            await place.server._edge.put(before, wire.batch(before, swapped))
        assert await read(place, reader, 1) == ["fallback"]
        await back(place, mirror)
        assert mirror.view.generation != before
        assert await read(place, reader) == ["weaviate"] * 4


async def test_a_collection_of_another_shape(redis_server, redis_prefix: str, own_weaviate_server):
    """A collection of that name that is not ours is left alone, in one line; the run's recalls come from the log."""
    async with placed(redis_server.url, redis_prefix, own_weaviate_server.address) as place:
        client = place.server._edge.client
        await client.collections.create("PlanningMemory", vector_config=Configure.Vectors.self_provided())
        with pytest.raises(BadInput, match="PlanningMemory is not ours: it has no tenants") as error:
            await place.server.prepare()
        assert "\n" not in str(error.value)
        async with anyio.create_task_group() as tasks:
            mirror = place.run.mirrored(place.mirror(), term=1)
            tasks.start_soon(mirror.run)
            await place.run.fold(3)
            with anyio.fail_after(120):
                while "not ours" not in mirror.view.waits_for:
                    assert not await mirror.settle(0.1)
            assert mirror.view.begun == 0
            assert await read(place, place.reader()) == ["fallback"] * 4
            tasks.cancel_scope.cancel()


async def test_a_read_only_shard(redis_server, redis_prefix: str, own_weaviate_server):
    """A batch of which one row is said to have failed counts as failed; once it is writable all is built again."""
    address = own_weaviate_server.address
    async with mirrored(redis_server.url, redis_prefix, address) as (place, mirror):
        await place.run.fold(3)
        assert await mirror.settle(120)
        headers, before = {"Authorization": f"Bearer {address.api_key}"}, mirror.view.generation
        async with httpx.AsyncClient(base_url=address.http_url, headers=headers) as http:
            for collection in ("PlanningMemory", "ExecutionMemory"):
                url = f"/v1/schema/{collection}/shards/{before}"
                answer = await http.put(url, json={"status": "READONLY"})
                assert answer.status_code == 200, answer.text
            await place.run.fold(4)
            await back(place, mirror)
        assert mirror.view.generation != before, "the tenant that is read-only was given up"
        assert await read(place, place.reader()) == ["weaviate"] * 4
