"""The two collections, and what must be true of them before anything is written.

A server may quantise, guess types and create tenants by itself, each by a setting of its own: what we rely on is said
when a collection is created and read back afterwards.
"""

from collections.abc import Sequence
from typing import Any

from weaviate import WeaviateAsyncClient
from weaviate.classes.config import Configure, DataType, Property, Tokenization, VectorDistances
from weaviate.classes.tenants import Tenant
from weaviate.exceptions import UnexpectedStatusCodeError

from events.errors import BadInput
from infra.banks import weaviate_wire as wire

_PROPERTIES: dict[str, Property] = {
    wire.ID: Property(
        name=wire.ID,
        data_type=DataType.TEXT,
        tokenization=Tokenization.FIELD,
        index_filterable=True,
        index_searchable=False,
        description="the memory's id; with born and the vector what a recall goes by: never rewritten",
    ),
    wire.BORN: Property(
        name=wire.BORN,
        data_type=DataType.INT,
        index_filterable=False,
        index_range_filters=True,
        description="the first bank version that holds it",
    ),
    **{
        name: Property(
            name=name,
            data_type=DataType.TEXT,
            tokenization=Tokenization.WORD,
            index_filterable=False,
            index_searchable=True,
            description=description,
        )
        for name, description in (
            (wire.SCENARIO, "c: when it applies"),
            (wire.EXPERIENCE, "e: what to do then; at most a second behind"),
        )
    },
    **{
        name: Property(name=name, data_type=kind, index_filterable=False, description=description)
        for name, kind, description in (
            (wire.VALUE, DataType.NUMBER, "v: delta_sum / (10000 n), in [-1, 1]; at most a second behind"),
            (wire.DELTA_SUM, DataType.INT, "sum of feedback in units of 1e-4"),
            (wire.N, DataType.INT, "n: how often it was used"),
            (wire.SOURCES, DataType.INT_ARRAY, "episodes that went into it"),
        )
    },
}


async def ensure(client: WeaviateAsyncClient) -> None:
    """Both collections are there and of our shape.

    Raises:
        BadInput: one of that name is of another shape.
    """
    for name in wire.COLLECTIONS.values():
        if not await client.collections.exists(name):
            try:
                await _create(client, name)
            except UnexpectedStatusCodeError:
                # Somebody else was quicker; whether it is ours is looked at below.
                if not await client.collections.exists(name):
                    raise
        await _check(client, name)


async def add_tenant(client: WeaviateAsyncClient, name: str) -> None:
    """Both collections have room for `name`; harmless where they have."""
    for collection in wire.COLLECTIONS.values():
        await client.collections.use(collection).tenants.create(Tenant(name=name))


async def remove_tenants(client: WeaviateAsyncClient, names: Sequence[str]) -> None:
    """These tenants are gone with all their rows; harmless where they are."""
    for collection in wire.COLLECTIONS.values():
        if names and await client.collections.exists(collection):
            await client.collections.use(collection).tenants.remove(list(names))


async def _create(client: WeaviateAsyncClient, name: str) -> None:
    await client.collections.create(
        name,
        description="Memories of Chime runs, one tenant per run and generation; a copy of what their logs say",
        vector_config=Configure.Vectors.self_provided(
            name=wire.VECTOR,
            vector_index_config=Configure.VectorIndex.flat(
                distance_metric=VectorDistances.COSINE, quantizer=Configure.VectorIndex.Quantizer.none()
            ),
        ),
        multi_tenancy_config=Configure.multi_tenancy(
            enabled=True, auto_tenant_creation=False, auto_tenant_activation=False
        ),
        properties=list(_PROPERTIES.values()),
    )


async def _check(client: WeaviateAsyncClient, name: str) -> None:
    found = (await client.collections.export_config(name)).to_dict()
    if wrong := _differences(found):
        raise BadInput(f"Weaviate's collection {name} is not ours: {wrong[0]}; another server, or remove it there")


def _differences(found: dict[str, Any]) -> list[str]:
    """What `found`, a collection as the server has it, lacks of what we rely on."""
    tenancy, vectors = found.get("multiTenancyConfig", {}), found.get("vectorConfig", {})
    vector = vectors.get(wire.VECTOR, {})
    index = vector.get("vectorIndexConfig", {})
    there = {one["name"]: one for one in found.get("properties", [])}
    kinds = {name: there.get(name, {}).get("dataType", ["missing"]) for name in _PROPERTIES}
    relied_on = {
        "it has no tenants": bool(tenancy.get("enabled")),
        "it creates tenants by itself": not tenancy.get("autoTenantCreation"),
        f"its vectors are {sorted(vectors)}": set(vectors) == {wire.VECTOR},
        f"its index is {vector.get('vectorIndexType')}, not flat": vector.get("vectorIndexType") == "flat",
        f"its distance is {index.get('distanceMetric')}, not cosine": index.get("distanceMetric") == "cosine",
        # Plain settings are numbers and words; what is done to vectors has settings of its own, each kind by its name.
        "its vectors are quantised": not any(isinstance(one, dict) for one in index.values()),
        "it makes vectors by itself": set(vector.get("vectorizer", {})) == {"none"},
        f"its property {wire.ID} is cut into words": there.get(wire.ID, {}).get("tokenization") == "field",
        f"its property {wire.ID} has no index": bool(there.get(wire.ID, {}).get("indexFilterable")),
        f"its property {wire.BORN} has no index of ranges": bool(there.get(wire.BORN, {}).get("indexRangeFilters")),
        **{
            f"its property {name} is {' '.join(kinds[name])}": kinds[name] == [wanted.dataType.value]
            for name, wanted in _PROPERTIES.items()
        },
    }
    return [what for what, holds in relied_on.items() if not holds]
