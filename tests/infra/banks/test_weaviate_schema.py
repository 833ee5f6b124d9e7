"""The collections: made as we rely on them, and looked at where somebody else has made them."""

from typing import Any

import pytest
from banked_run import placed
from weaviate.classes.config import Configure, DataType, Property, Tokenization, VectorDistances

from events.errors import BadInput
from infra.banks import weaviate_wire as wire
from infra.banks.errors import UncleanWrite
from infra.banks.weaviate_schema import _PROPERTIES

_INDEX, _QUANTIZER = Configure.VectorIndex, Configure.VectorIndex.Quantizer


def _flat(quantizer: Any = None, metric: VectorDistances = VectorDistances.COSINE) -> Any:
    index = _INDEX.flat(distance_metric=metric, quantizer=quantizer or _QUANTIZER.none())
    return Configure.Vectors.self_provided(name=wire.VECTOR, vector_index_config=index)


def _with(name: str, **settings: Any) -> list[Property]:
    """Our properties, one of them otherwise."""
    kind = DataType.INT if name == wire.BORN else DataType.TEXT
    return [Property(name=name, data_type=kind, **settings) if key == name else one for key, one in _PROPERTIES.items()]


_SHAPES: dict[str, tuple[Any, list[Property], str]] = {
    "bits": (_flat(_QUANTIZER.bq()), list(_PROPERTIES.values()), "quantised"),
    "rotated": (_flat(_QUANTIZER.rq()), list(_PROPERTIES.values()), "quantised"),
    "a graph": (Configure.Vectors.self_provided(name=wire.VECTOR), list(_PROPERTIES.values()), "hnsw, not flat"),
    "dots": (_flat(metric=VectorDistances.DOT), list(_PROPERTIES.values()), "dot, not cosine"),
    "two vectors": (
        [_flat(), Configure.Vectors.self_provided(name="second")], list(_PROPERTIES.values()), "its vectors are"
    ),
    "words": (_flat(), _with(wire.ID, tokenization=Tokenization.WORD), "cut into words"),
    "no index of ids": (
        _flat(), _with(wire.ID, tokenization=Tokenization.FIELD, index_filterable=False), "memory has no index"
    ),
    "no ranges": (_flat(), _with(wire.BORN, index_range_filters=False), "no index of ranges"),
    "as ours": (_flat(), list(_PROPERTIES.values()), ""),
}  # fmt: skip


@pytest.mark.parametrize("shape", _SHAPES)
async def test_a_collection_that_somebody_else_has_made(
    redis_server, redis_prefix: str, own_weaviate_server, shape: str
):
    """It is used where it is as ours; otherwise the one line says what it lacks, before anything is written."""
    vectors, properties, why = _SHAPES[shape]
    async with placed(redis_server.url, redis_prefix, own_weaviate_server.address) as place:
        await place.server._edge.client.collections.create(
            "PlanningMemory",
            vector_config=vectors,
            multi_tenancy_config=Configure.multi_tenancy(enabled=True, auto_tenant_creation=False),
            properties=properties,
        )
        if not why:
            await place.server.prepare()
            return
        with pytest.raises(BadInput, match=why):
            await place.server.prepare()


async def test_a_server_that_quantises_by_itself(redis_server, redis_prefix: str, own_weaviate_server):
    """What we make is not quantised there either."""
    own_weaviate_server.restart(DEFAULT_QUANTIZATION="rq-8")
    async with placed(redis_server.url, redis_prefix, own_weaviate_server.address) as place:
        await place.server.prepare()
        await place.server.prepare()


async def test_a_server_that_indexes_later(redis_server, redis_prefix: str, own_weaviate_server):
    """Rows that no search finds once they are acknowledged are not published, also in a bank that began empty."""
    # Nobody is so slow that it has come to it.
    never = {"ASYNC_INDEXING_STALE_TIMEOUT": "24h", "QUEUE_SCHEDULER_INTERVAL": "24h"}
    own_weaviate_server.restart(ASYNC_INDEXING="true", **never)
    async with placed(redis_server.url, redis_prefix, own_weaviate_server.address, seed=2) as place:
        await place.server.prepare()
        mirror = place.run.mirrored(place.mirror(), term=1)
        mirror._news.set()
        await mirror._step()
        assert mirror.view.published == 0
        await place.run.fold(3)
        with pytest.raises(UncleanWrite, match="does not find"):
            await mirror._step()
        serving = await place.generations.serving()
        assert serving is not None
        assert serving.version == 0
