"""Vectors of texts that were embedded before: by fingerprint, side and text, shared by the workers of a run.

Only a cache: what an episode has recorded counts, and whatever is lost here is embedded again. It keeps racing workers
of one mind (the first vector that is written for a text is everybody's), and a stage that runs twice pays once.

On Redis it is one hash a run, `<prefix>:{<run>}:embeddings`, which goes with the run. It begins anew when it holds
`MOST` texts, and goes by itself `TTL_S` after the last text was added.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Protocol, cast

from redis.asyncio import Redis

from events.errors import NotAUnitVector
from events.ids import RunId
from events.kinds import EmbedderIdentity
from events.vectors import Vector, of_raw, unit
from infra.embedding_identity import normal
from infra.redis_client import Script, our_errors
from runtime.errors import StoreAway
from runtime.logger import Logger
from runtime.ports import Embedder, Side

_log = Logger("chime.embedder")

#: texts of one run that are remembered: 20 MB at 256 dimensions, 80 MB at 1024
MOST = 20_000
#: a week after its last text, a run's vectors are in its log
TTL_S = 7 * 24 * 3600

# KEYS the hash; ARGV most, seconds to live, then field, vector, ... What is stored for each field afterwards.
_PUT = Script("""
local most = tonumber(ARGV[1])
if redis.call('HLEN', KEYS[1]) + (#ARGV - 2) / 2 > most then redis.call('UNLINK', KEYS[1]) end
local stored = {}
for at = 3, #ARGV, 2 do
  redis.call('HSETNX', KEYS[1], ARGV[at], ARGV[at + 1])
  stored[#stored + 1] = redis.call('HGET', KEYS[1], ARGV[at])
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return stored
""")


class EmbeddingStore(Protocol):
    """The int32 bytes of vectors by field; the first writer of a field wins."""

    async def get(self, run: RunId, fields: Sequence[str]) -> list[bytes | None]:
        """What is stored for each, in order."""
        ...

    async def put(self, run: RunId, vectors: Mapping[str, bytes]) -> dict[str, bytes]:
        """Store each unless its field is taken; what is stored."""
        ...

    async def discard(self, run: RunId, fields: Sequence[str]) -> None:
        """Remove these, where they are there."""
        ...


class MemoryEmbeddings:
    """`EmbeddingStore` in memory."""

    def __init__(self) -> None:
        self._vectors: dict[RunId, dict[str, bytes]] = {}

    async def get(self, run: RunId, fields: Sequence[str]) -> list[bytes | None]:
        known = self._vectors.get(run, {})
        return [known.get(field) for field in fields]

    async def put(self, run: RunId, vectors: Mapping[str, bytes]) -> dict[str, bytes]:
        known = self._vectors.setdefault(run, {})
        if len(known) + len(vectors) > MOST:
            known.clear()
        return {field: known.setdefault(field, raw) for field, raw in vectors.items()}

    async def discard(self, run: RunId, fields: Sequence[str]) -> None:
        for field in fields:
            self._vectors.get(run, {}).pop(field, None)


class RedisEmbeddings:
    """`EmbeddingStore` on a server."""

    def __init__(self, redis: Redis, prefix: str, where: str, most: int = MOST) -> None:
        self._redis, self._prefix, self._where, self._most = redis, prefix, where, most

    async def get(self, run: RunId, fields: Sequence[str]) -> list[bytes | None]:
        if not fields:
            return []
        with our_errors(self._where):
            return cast("list[bytes | None]", await self._redis.hmget(self._key(run), list(fields)))

    async def put(self, run: RunId, vectors: Mapping[str, bytes]) -> dict[str, bytes]:
        if not vectors:
            return {}
        pairs = [part for pair in vectors.items() for part in pair]
        with our_errors(self._where):
            stored = await _PUT.run(self._redis, [self._key(run)], [self._most, TTL_S, *pairs])
        return dict(zip(vectors, stored, strict=True))

    async def discard(self, run: RunId, fields: Sequence[str]) -> None:
        if fields:
            with our_errors(self._where):
                await self._redis.hdel(self._key(run), *fields)

    def _key(self, run: RunId) -> str:
        return f"{self._prefix}:{{{run}}}:embeddings"


class CachedEmbedder:
    """An embedder of one run that remembers. Each text is embedded once, however often it is asked for."""

    def __init__(self, embedder: Embedder, store: EmbeddingStore, run: RunId) -> None:
        self._embedder, self._store, self._run = embedder, store, run

    @property
    def identity(self) -> EmbedderIdentity:
        return self._embedder.identity

    async def embed(self, texts: Sequence[str], side: Side) -> list[Vector]:
        """As `runtime.ports.Embedder.embed`."""
        plain = [normal(text) for text in texts]
        fields = [self._field(text, side) for text in plain]
        known = await self._known(list(dict.fromkeys(fields)))
        missing = {field: text for field, text in zip(fields, plain, strict=True) if field not in known}
        if missing:
            vectors = await self._embedder.embed(list(missing.values()), side)
            made = dict(zip(missing, vectors, strict=True))
            known |= made | await self._first({field: vector.q24 for field, vector in made.items()})
        return [known[field] for field in fields]

    async def _known(self, fields: Sequence[str]) -> dict[str, Vector]:
        """What is remembered; of what is damaged nothing is left."""
        stored = zip(fields, await self._store.get(self._run, fields), strict=True)
        found = {field: raw for field, raw in stored if raw is not None}
        known = self._sound(found)
        if damaged := sorted(found.keys() - known.keys()):
            _log.warning("embedding_discarded", run_id=self._run, texts=len(damaged))
            await self._store.discard(self._run, damaged)
        return known

    async def _first(self, made: Mapping[str, bytes]) -> dict[str, Vector]:
        """What was written first for each field, ours or another worker's; nothing where nothing can be written."""
        try:
            return self._sound(await self._store.put(self._run, made))
        except StoreAway as error:
            # The episode's own event says whether the server is back: nothing is lost here but a cache.
            _log.warning("embedding_not_cached", run_id=self._run, reason=str(error))
            return {}

    def _sound(self, stored: Mapping[str, bytes]) -> dict[str, Vector]:
        return {field: of_raw(raw) for field, raw in stored.items() if _fits(raw, self.identity.dimension)}

    def _field(self, text: str, side: Side) -> str:
        told = (self.identity.fingerprint.encode(), side.encode(), text.encode())
        # Each part by its length: no two triples share their bytes.
        return sha256(b"".join(b"%d:%b" % (len(part), part) for part in told)).hexdigest()


def _fits(raw: bytes, dimension: int) -> bool:
    try:
        return len(raw) == 4 * dimension and unit(raw).size > 0
    except NotAUnitVector:
        return False
