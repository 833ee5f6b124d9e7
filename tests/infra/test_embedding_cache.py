"""Vectors that were made before: by fingerprint, side and text, first writer wins, lost without harm."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from events.ids import RunId
from events.kinds import EmbedderIdentity
from events.vectors import Vector, fixed_point
from infra import embedding_cache
from infra.embedding_cache import TTL_S, CachedEmbedder, EmbeddingStore, MemoryEmbeddings, RedisEmbeddings
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from runtime.ports import Side

RUN, OTHER = RunId("r"), RunId("other")


class Counting:
    """Embeds a text differently each time, as hardware may, and counts."""

    def __init__(self, fingerprint: str = "f", dimension: int = 3) -> None:
        self.identity = EmbedderIdentity(fingerprint=fingerprint, dimension=dimension)
        self.asked: list[tuple[list[str], Side]] = []

    async def embed(self, texts: Sequence[str], side: Side) -> list[Vector]:
        self.asked.append((list(texts), side))
        await anyio.lowlevel.checkpoint()
        return [self.vector(len(self.asked), text) for text in texts]

    def vector(self, time: int, text: str) -> Vector:
        return fixed_point([1.0, time / 10, *[len(text) / 10] * (self.identity.dimension - 2)])


@dataclass
class Place:
    """Where vectors are kept, and a way to change what is there behind its back."""

    store: EmbeddingStore
    spoil: Callable[[bytes], Any]


Open = Callable[[], AbstractAsyncContextManager[Place]]


@pytest.fixture(params=["memory", "redis"])
def place(request: pytest.FixtureRequest, redis_prefix: str) -> Open:
    """Each kind of store, empty."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Place]:
        if request.param == "memory":
            store = MemoryEmbeddings()

            async def spoil(raw: bytes) -> None:
                for field in store._vectors[RUN]:
                    store._vectors[RUN][field] = raw

            yield Place(store, spoil)
            return
        server = request.getfixturevalue("redis_server")
        async with connected(server.url) as redis:
            key = f"{redis_prefix}:{{{RUN}}}:embeddings"

            async def spoil_redis(raw: bytes) -> None:
                for field in await redis.hkeys(key):
                    await redis.hset(key, field, raw)

            yield Place(RedisEmbeddings(redis, redis_prefix, server.url), spoil_redis)

    return opened


async def test_a_text_is_embedded_once(place: Open) -> None:
    """Twice in one request, again later, and by another worker: always the vector that was made first."""
    async with place() as there:
        one, other = Counting(), Counting()
        cached = CachedEmbedder(one, there.store, RUN)
        first = await cached.embed(["a", "bb", "a"], "query")
        assert first == [one.vector(1, "a"), one.vector(1, "bb"), one.vector(1, "a")]
        assert await cached.embed(["bb", "a"], "query") == [first[1], first[0]]
        assert await CachedEmbedder(other, there.store, RUN).embed(["a"], "query") == [first[0]]
        assert (one.asked, other.asked) == ([(["a", "bb"], "query")], [])
        assert await cached.embed([], "query") == []
        assert cached.identity == one.identity


async def test_only_what_is_missing_is_asked_for(place: Open) -> None:
    """Known and new texts in one request come back in its order."""
    async with place() as there:
        one = Counting()
        cached = CachedEmbedder(one, there.store, RUN)
        await cached.embed(["b"], "document")
        found = await cached.embed(["a", "b", "cc"], "document")
        assert found == [one.vector(2, "a"), one.vector(1, "b"), one.vector(2, "cc")]
        assert one.asked[1] == (["a", "cc"], "document")


async def test_sides_fingerprints_and_runs_do_not_mix(place: Open) -> None:
    """The same text as a query, as a document, for another embedder and in another run: four vectors are made."""
    async with place() as there:
        one, other = Counting("f"), Counting("g")
        await CachedEmbedder(one, there.store, RUN).embed(["a"], "query")
        await CachedEmbedder(one, there.store, RUN).embed(["a"], "document")
        await CachedEmbedder(other, there.store, RUN).embed(["a"], "query")
        await CachedEmbedder(one, there.store, OTHER).embed(["a"], "query")
        assert (len(one.asked), len(other.asked)) == (3, 1)


async def test_texts_that_are_composed_alike_are_one(place: Open) -> None:
    """Two ways to write é are one text, which is embedded composed."""
    async with place() as there:
        one = Counting()
        cached = CachedEmbedder(one, there.store, RUN)
        assert len(set(await cached.embed(["e\u0301", "\u00e9"], "query"))) == 1
        assert one.asked == [(["\u00e9"], "query")]


async def test_racing_workers_agree(place: Open) -> None:
    """Two workers embed one text at the same time and make different vectors: both go on with the one kept first."""
    async with place() as there:
        found: list[Vector] = []
        both = anyio.Event()

        class Racing(Counting):
            async def embed(self, texts: Sequence[str], side: Side) -> list[Vector]:
                made = await super().embed(texts, side)
                if len(racers[0].asked) == len(racers[1].asked) == 1:
                    both.set()
                await both.wait()
                return made

            def vector(self, time: int, text: str) -> Vector:
                return fixed_point([1.0, racers.index(self), 0.5])

        racers = [Racing(), Racing()]

        async def work(racer: Counting) -> None:
            found.extend(await CachedEmbedder(racer, there.store, RUN).embed(["a"], "query"))

        async with anyio.create_task_group() as tasks:
            for racer in racers:
                tasks.start_soon(work, racer)
        assert found[0] == found[1]
        assert found[0] in [racer.vector(1, "a") for racer in racers]


@pytest.mark.parametrize(
    "raw",
    [b"", b"\0" * 12, b"\x01" * 12, b"x", fixed_point([1.0, 0.0]).q24, fixed_point([1.0, 0.0]).q24 * 2],
    ids=["empty", "zero", "not unit", "short", "another dimension", "too long"],
)
async def test_a_damaged_vector_is_made_again(place: Open, raw: bytes) -> None:
    """Whatever stands there that is no unit vector of this dimension is replaced, never handed out."""
    async with place() as there:
        one = Counting()
        cached = CachedEmbedder(one, there.store, RUN)
        await cached.embed(["a"], "query")
        await there.spoil(raw)
        assert await cached.embed(["a"], "query") == [one.vector(2, "a")]
        assert await cached.embed(["a"], "query") == [one.vector(2, "a")]
        assert len(one.asked) == 2


async def test_it_begins_anew_when_it_is_full(redis_server: Any, redis_prefix: str) -> None:
    """It never holds more than its most, and what was thrown away is embedded again."""
    async with connected(redis_server.url) as redis:
        one = Counting()
        cached = CachedEmbedder(one, RedisEmbeddings(redis, redis_prefix, redis_server.url, most=3), RUN)
        for text in ("a", "bb", "ccc"):
            await cached.embed([text], "query")
        await cached.embed(["dddd"], "query")
        assert await redis.hlen(f"{redis_prefix}:{{{RUN}}}:embeddings") == 1
        assert await cached.embed(["a"], "query") == [one.vector(5, "a")]


async def test_memory_begins_anew_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bound in a process."""
    monkeypatch.setattr(embedding_cache, "MOST", 3)
    store = MemoryEmbeddings()
    for number in range(7):
        await store.put(RUN, {f"f{number}": b"v"})
        assert len(store._vectors[RUN]) <= 3


async def test_it_goes_with_its_run_and_by_itself(
    redis_server: Any, redis_prefix: str, keys_left: Callable[[], list[str]]
) -> None:
    """It expires a week after its last text, and is deleted with the run."""
    async with connected(redis_server.url) as redis:
        store = RedisEmbeddings(redis, redis_prefix, redis_server.url)
        await CachedEmbedder(Counting(), store, RUN).embed(["a"], "query")
        assert TTL_S - 60 <= await redis.ttl(f"{redis_prefix}:{{{RUN}}}:embeddings") <= TTL_S
        await RedisLogStore(redis, redis_prefix, FakeClock(), redis_server.url).delete(RUN)
    assert keys_left() == []


class FakeClock:
    def utc(self) -> str:
        return "2026-01-01T00:00:00.000000Z"

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()


async def test_a_full_server_costs_the_cache_alone(own_redis_server: Any, redis_prefix: str) -> None:
    """Writes are refused: the vectors are handed out all the same, and nothing is remembered."""
    async with connected(own_redis_server.url) as redis:
        await redis.config_set("maxmemory", "1")
        one = Counting()
        cached = CachedEmbedder(one, RedisEmbeddings(redis, redis_prefix, own_redis_server.url), RUN)
        assert await cached.embed(["a"], "query") == [one.vector(1, "a")]
        assert await cached.embed(["a"], "query") == [one.vector(2, "a")]
