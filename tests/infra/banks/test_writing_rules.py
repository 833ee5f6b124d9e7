"""How rows are written to Weaviate: in batches of one clean answer each, the last vectors made sure of, nothing cut."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import grpc
import pytest
from banked_run import Place, placed
from grpc.aio import AioRpcError, Metadata
from made_banks import MadeBanks, unit
from msgspec.structs import replace

from events.errors import Mismatch
from events.ids import BankVersion, MemoryId
from infra.banks import weaviate_wire as wire
from infra.banks.changes import row_of
from infra.banks.errors import BankAway, DoubtfulAnswer, UncleanWrite
from infra.banks.prunes import Prunes
from infra.banks.weaviate_store import WeaviateBank
from infra.weaviate_address import WeaviateAddress
from runtime.bank_store import BankChange, Row

V = BankVersion


def rows(count: int, first: int = 0, dimension: int = 16) -> list[Row]:
    """So many rows of the planning bank."""
    made = MadeBanks()
    made.step({"planning": unit(0, dimension)})
    model = row_of(made.newest, next(iter(made.newest)))
    return [
        replace(model, id=MemoryId(f"planning-{t}"), vector=unit(t, dimension).q24, sources=(t,))
        for t in range(first, first + count)
    ]


@asynccontextmanager
async def opened(
    redis_server: Any, prefix: str, weaviate: WeaviateAddress
) -> AsyncIterator[tuple[Place, WeaviateBank]]:
    """An empty bank on a server."""
    async with placed(redis_server.url, prefix, weaviate) as place:
        await place.server.prepare()
        generation = await place.generations.begin(term=1)
        await place.server.create(generation.name)
        store = place.server.bank(generation, Prunes(), 16)
        assert isinstance(store, WeaviateBank)
        yield place, store


class _Watched:
    """The batches that were sent, before they are."""

    def __init__(self, place: Place) -> None:
        self._edge = place.server._edge  # type: ignore[attr-defined]
        self._send = self._edge._stub.BatchObjects
        self._edge._stub.BatchObjects = self._batch
        self.sizes: list[int] = []
        self.ids: list[str] = []
        #: what happens at the next call
        self.next: Any = None

    async def _batch(self, request: Any, **options: Any) -> Any:
        self.sizes.append(len(request.objects))
        self.ids.append(request.objects[0].uuid)
        if self.next is not None:
            happens, self.next = self.next, None
            return await happens(lambda: self._send(request, **options))
        return await self._send(request, **options)


async def test_batches_and_the_first_row_once_more(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """Five hundred rows a batch at most; at the end of each change its first row again, in a call of its own."""
    async with opened(redis_server, redis_prefix, weaviate_server) as (place, store):
        watched = _Watched(place)
        await store.apply(BankChange(since=None, version=V(1), born=rows(1201)))
        assert watched.sizes == [500, 500, 201, 1]
        assert watched.ids[-1] == watched.ids[0]
        await store.apply(BankChange(since=V(1), version=V(2), born=rows(1, first=2000)))
        assert watched.sizes[4:] == [1, 1]
        await store.apply(BankChange(since=V(2), version=V(3)))
        assert watched.sizes[6:] == []
        assert await store.newest() == 3


async def test_rows_of_long_texts(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """A batch holds fewer of them: five hundred of the longest are more than one message may be."""
    async with opened(redis_server, redis_prefix, weaviate_server) as (place, store):
        watched = _Watched(place)
        lengths = [1, 1_900_000, 2_200_000, 10, 4_100_000, 10, 10]
        long = [
            replace(row, scenario="so " * (length // 3), experience="")
            for row, length in zip(rows(len(lengths)), lengths, strict=True)
        ]
        await store.apply(BankChange(since=None, version=V(1), born=long))
        assert watched.sizes == [2, 2, 1, 2, 1]
        assert await store.items(V(1)) == long


async def test_more_rows_as_near_as_each_other_than_an_answer_holds(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch
):
    """Which of them are meant only the fold can say; the bank is as it should be, and nobody is to build it again."""
    monkeypatch.setattr(wire, "MOST", 50)
    async with opened(redis_server, redis_prefix, weaviate_server) as (_, store):
        same = [replace(row, vector=unit(0, 16).q24) for row in rows(60)]
        await store.apply(BankChange(since=None, version=V(1), born=same))
        with pytest.raises(Mismatch, match="as near as the last of 20") as raised:
            await store.search("planning", unit(0, 16), 20, V(1))
        assert not isinstance(raised.value, DoubtfulAnswer)


def _error(code: grpc.StatusCode) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), "made up", "made up")


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
@pytest.mark.parametrize("stored", [False, True])
async def test_a_batch_without_an_answer(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, code: grpc.StatusCode, stored: bool
):
    """It is not sent again, nothing of it is published, and nothing more is written there."""
    async with opened(redis_server, redis_prefix, weaviate_server) as (place, store):
        await store.apply(BankChange(since=None, version=V(1), born=rows(5)))
        watched = _Watched(place)

        async def cut(send: Any) -> Any:
            if stored:
                await send()
            raise _error(code)

        watched.next = cut
        change = BankChange(since=V(1), version=V(2), born=rows(5, first=10))
        with pytest.raises(UncleanWrite):
            await store.apply(change)
        assert watched.sizes == [5]
        assert await store.newest() == 1
        with pytest.raises((UncleanWrite, BankAway)):
            await store.apply(change)
        assert watched.sizes == [5]


async def test_a_server_that_is_known_to_be_away(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """Nothing is sent to it, so that nothing is unclean: the same change goes on when it is back."""
    async with opened(redis_server, redis_prefix, weaviate_server) as (place, store):
        edge = place.server._edge  # type: ignore[attr-defined]
        await store.apply(BankChange(since=None, version=V(1), born=rows(5)))
        edge.away = BankAway("here", "unreached", "made up")
        change = BankChange(since=V(1), version=V(2), born=rows(5, first=10))
        with pytest.raises(BankAway):
            await store.apply(change)
        edge.away = None
        await store.apply(change)
        assert await store.newest() == 2
        assert len(await store.items(V(2))) == 10


async def test_one_listed_error_is_a_failed_batch(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """A server that names one row means that it may have stored none."""
    async with opened(redis_server, redis_prefix, weaviate_server) as (place, store):
        await place.server.remove([store._name])
        with pytest.raises(UncleanWrite, match="tenant not found"):
            await store.apply(BankChange(since=None, version=V(1), born=rows(5)))
        assert await store.newest() is None


async def test_whoever_is_cancelled_cuts_no_batch(redis_server, redis_prefix: str, weaviate_server: WeaviateAddress):
    """A write under way is finished by itself; the store that did not wait for the answer writes no more."""
    async with opened(redis_server, redis_prefix, weaviate_server) as (place, store):
        await store.apply(BankChange(since=None, version=V(1), born=rows(5)))
        watched, sent, finished = _Watched(place), anyio.Event(), anyio.Event()

        async def slow(send: Any) -> Any:
            sent.set()
            await anyio.sleep(0.1)
            answer = await send()
            finished.set()
            return answer

        watched.next = slow
        change = BankChange(since=V(1), version=V(2), born=rows(400, first=10))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.apply, change)
            await sent.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(120):
            await finished.wait()
        with pytest.raises(UncleanWrite, match="did not wait"):
            await store.apply(change)
        assert await store.newest() == 1
        edge = place.server._edge  # type: ignore[attr-defined]
        assert await edge.count(store._name, wire.count("planning", store._name)) == 405


@pytest.mark.parametrize("most", [wire.MOST, 5], ids=["a small bank", "a large bank"])
async def test_a_generation_that_lacks_a_vector_is_not_published(
    redis_server, redis_prefix: str, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch, most: int
):
    """What was built is counted and searched before it serves: a row that no search finds is found out."""
    async with opened(redis_server, redis_prefix, weaviate_server) as (place, store):
        monkeypatch.setattr(wire, "MOST", most)
        watched = _Watched(place)

        async def without_a_vector(send: Any) -> Any:
            edge, name = place.server._edge, store._name  # type: ignore[attr-defined]
            answer = await send()
            request = wire.batch(name, rows(1, first=3))
            del request.objects[0].vectors[:]
            await edge.put(name, request)
            return answer

        watched.next = without_a_vector
        with pytest.raises(UncleanWrite, match="planning-3"):
            await store.apply(BankChange(since=None, version=V(1), born=rows(8)))
        assert await store.newest() is None


def test_ids_of_rows():
    """A row's id depends on generation and item, each with its length: no two pairs share one."""
    pairs = [("r_1", "planning-1"), ("r_1p", "lanning-1"), ("r_", "1planning-1"), ("r_1", "planning-11"), ("", "r")]
    ids = {wire.row_uuid(generation, MemoryId(memory)) for generation, memory in pairs}
    assert len(ids) == len(pairs)
    namespace = uuid.UUID(bytes=wire._NAMESPACE)
    assert wire.row_uuid("r_1", MemoryId("planning-1")) == str(uuid.uuid5(namespace, "3:r_110:planning-1"))
    assert wire.row_uuid("g", MemoryId("planning-1")) == wire.row_uuid("g", MemoryId("planning-1"))
