"""Requests and replies of Weaviate's gRPC interface as we use it, built from the messages that its client ships.

The client's own calls are not used for rows: its `insert_many` sends a batch again by itself where the connection
breaks, and one that was cut and is sent again stays damaged behind a clean answer; its searches cost eight times the
CPU.
Vectors travel as float32, which holds a fixed-point component up to 2^24 exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1, sha256
from uuid import UUID

import numpy as np
import numpy.typing as npt
from weaviate.proto.v1 import aggregate_pb2, base_pb2, base_search_pb2, batch_delete_pb2, batch_pb2, search_get_pb2

from events.ids import BankVersion, MemoryId, Stage
from events.vectors import DOT_ONE, ONE
from infra.banks.errors import DoubtfulAnswer
from infra.banks.serving import Found
from runtime.bank_store import Hit, Row

COLLECTIONS: dict[Stage, str] = {"planning": "PlanningMemory", "execution": "ExecutionMemory"}
#: name of a row's one vector
VECTOR = "default"
#: a row's properties: what it is found by, and what people see of it
ID, BORN = "memory", "born"
SCENARIO, EXPERIENCE, VALUE, DELTA_SUM, N, SOURCES = "scenario", "experience", "value", "delta_sum", "n", "sources"

#: rows of one answer at most: the server's QUERY_MAXIMUM_RESULTS
MOST = 10_000

#: of the ids of rows
_NAMESPACE = UUID("6f0c7b5e-2d38-5b0e-9a51-0d3f4f1c9b77").bytes
#: how far the squared length of a vector may be from 2^48, as in `events.vectors`
_SLACK = 1 << 38


@dataclass(frozen=True, slots=True)
class Near:
    """Rows that a search found, with their exact dots; in the server's order."""

    ids: list[MemoryId]
    #: q . c in units of 2^-48, shape (rows,), integer-valued
    dots: npt.NDArray[np.float64]
    #: integer-valued, shape (rows, d)
    vectors: npt.NDArray[np.float64]

    def hit(self, place: int) -> Hit:
        """One of the rows."""
        raw = self.vectors[place].astype("<i4").tobytes()
        return Hit(id=self.ids[place], dot=int(self.dots[place]), vector_sha256=sha256(raw).hexdigest())


def row_uuid(generation: str, memory: MemoryId) -> str:
    """The id of a row: each part with its length, so that no two pairs give one name."""
    name = f"{len(generation)}:{generation}{len(memory)}:{memory}"
    digest = bytearray(sha1(_NAMESPACE + name.encode(), usedforsecurity=False).digest()[:16])
    # A UUID of version 5, as the standard library makes it at four times the cost.
    digest[6], digest[8] = digest[6] & 0x0F | 0x50, digest[8] & 0x3F | 0x80
    hexed = digest.hex()
    return f"{hexed[:8]}-{hexed[8:12]}-{hexed[12:16]}-{hexed[16:20]}-{hexed[20:]}"


def batch(generation: str, rows: Sequence[Row]) -> batch_pb2.BatchObjectsRequest:
    """Rows to be put, checked before, all of one dimension."""
    fixed = np.frombuffer(b"".join([row.vector for row in rows]), dtype="<i4").reshape(len(rows), -1)
    vectors = (fixed / ONE).astype("<f4")
    return batch_pb2.BatchObjectsRequest(
        objects=[_object(generation, row, vector.tobytes()) for row, vector in zip(rows, vectors, strict=True)]
    )


def _object(generation: str, row: Row, vector: bytes) -> batch_pb2.BatchObject:
    properties = batch_pb2.BatchObject.Properties(
        int_array_properties=[base_pb2.IntArrayProperties(prop_name=SOURCES, values=row.sources)],
        # An array without an element is refused where it is not said to be one.
        empty_list_props=[] if row.sources else [SOURCES],
    )
    if not row.sources:
        properties.ClearField("int_array_properties")
    fields = properties.non_ref_properties.fields
    for name, text in ((ID, row.id), (SCENARIO, row.scenario), (EXPERIENCE, row.experience)):
        fields[name].string_value = text
    value = row.delta_sum / (10_000 * row.n) if row.n else 0.0
    for name, number in ((BORN, row.born), (VALUE, value), (DELTA_SUM, row.delta_sum), (N, row.n)):
        fields[name].number_value = number
    return batch_pb2.BatchObject(
        collection=COLLECTIONS[row.bank],
        tenant=generation,
        uuid=row_uuid(generation, row.id),
        properties=properties,
        vectors=[_vector(vector)],
    )


def _vector(floats: bytes) -> base_pb2.Vectors:
    return base_pb2.Vectors(name=VECTOR, vector_bytes=floats, type=base_pb2.Vectors.VECTOR_TYPE_SINGLE_FP32)


def _floats(fixed: npt.NDArray[np.float64]) -> bytes:
    """Fixed-point components as the server takes them."""
    return (fixed / ONE).astype("<f4").tobytes()


def near(
    stage: Stage, generation: str, query: npt.NDArray[np.float64], limit: int, filters: base_pb2.Filters | None
) -> search_get_pb2.SearchRequest:
    """The rows nearest to a query of fixed-point components, with id and vector."""
    request = _search(stage, generation, limit, filters)
    request.near_vector.vectors.append(_vector(_floats(query)))
    request.properties.non_ref_properties.append(ID)
    request.metadata.vectors.append(VECTOR)
    return request


def nearest_ids(
    stage: Stage, generation: str, query: npt.NDArray[np.float64], limit: int, filters: base_pb2.Filters | None
) -> search_get_pb2.SearchRequest:
    """As `near`, without the vectors."""
    request = near(stage, generation, query, limit, filters)
    del request.metadata.vectors[:]
    return request


def words(
    stage: Stage, generation: str, text: str, limit: int, filters: base_pb2.Filters | None
) -> search_get_pb2.SearchRequest:
    """The rows whose texts hold the words of `text`."""
    request = _search(stage, generation, limit, filters)
    request.bm25_search.CopyFrom(base_search_pb2.BM25(query=text, properties=[SCENARIO, EXPERIENCE]))
    request.properties.non_ref_properties.append(ID)
    request.metadata.score = True
    return request


def both(
    stage: Stage,
    generation: str,
    text: str,
    query: npt.NDArray[np.float64],
    limit: int,
    filters: base_pb2.Filters | None,
) -> search_get_pb2.SearchRequest:
    """The rows that are near and those that hold the words, their ranks fused."""
    request = _search(stage, generation, limit, filters)
    request.hybrid_search.CopyFrom(
        base_search_pb2.Hybrid(
            query=text,
            properties=[SCENARIO, EXPERIENCE],
            alpha=0.5,
            fusion_type=base_search_pb2.Hybrid.FUSION_TYPE_RELATIVE_SCORE,
            vectors=[_vector(_floats(query))],
        )
    )
    request.properties.non_ref_properties.append(ID)
    request.metadata.score = True
    return request


def page(stage: Stage, generation: str, after: str, limit: int) -> search_get_pb2.SearchRequest:
    """Whole rows in the order of their ids, behind the row `after`; "" = from the first."""
    request = _search(stage, generation, limit, None)
    request.after = after
    request.properties.return_all_nonref_properties = True
    request.metadata.uuid = True
    request.metadata.vectors.append(VECTOR)
    return request


def row_of(stage: Stage, generation: str, memory: MemoryId) -> search_get_pb2.SearchRequest:
    """The whole row of one item."""
    request = _search(stage, generation, 1, among([memory]))
    request.properties.return_all_nonref_properties = True
    request.metadata.uuid = True
    request.metadata.vectors.append(VECTOR)
    return request


def _search(
    stage: Stage, generation: str, limit: int, filters: base_pb2.Filters | None
) -> search_get_pb2.SearchRequest:
    return search_get_pb2.SearchRequest(
        collection=COLLECTIONS[stage],
        tenant=generation,
        limit=limit,
        filters=filters,
        uses_123_api=True,
        uses_125_api=True,
        uses_127_api=True,
    )


def born_by(version: BankVersion) -> base_pb2.Filters:
    """Rows of items that `version` may hold."""
    return base_pb2.Filters(
        operator=base_pb2.Filters.OPERATOR_LESS_THAN_EQUAL,
        target=base_pb2.FilterTarget(property=BORN),
        value_int=version,
    )


def among(ids: Sequence[MemoryId]) -> base_pb2.Filters:
    """Rows of those items."""
    return base_pb2.Filters(
        operator=base_pb2.Filters.OPERATOR_CONTAINS_ANY,
        target=base_pb2.FilterTarget(property=ID),
        value_text_array=base_pb2.TextArray(values=ids),
    )


def filters(born: BankVersion | None, among_ids: Sequence[MemoryId] | None) -> base_pb2.Filters | None:
    """Both conditions, or the one that there is."""
    parts = [*([born_by(born)] if born is not None else []), *([among(among_ids)] if among_ids is not None else [])]
    if len(parts) < 2:
        return parts[0] if parts else None
    return base_pb2.Filters(operator=base_pb2.Filters.OPERATOR_AND, filters=parts)


def deletion(stage: Stage, generation: str, ids: Sequence[MemoryId]) -> batch_delete_pb2.BatchDeleteRequest:
    """Those rows are to go."""
    return batch_delete_pb2.BatchDeleteRequest(collection=COLLECTIONS[stage], tenant=generation, filters=among(ids))


def count(stage: Stage, generation: str) -> aggregate_pb2.AggregateRequest:
    """How many rows there are."""
    return aggregate_pb2.AggregateRequest(collection=COLLECTIONS[stage], tenant=generation, objects_count=True)


def found(generation: str, query: npt.NDArray[np.float64], reply: search_get_pb2.SearchReply) -> Near:
    """What a search for `query` found, the dots computed from the vectors that came back.

    Raises:
        DoubtfulAnswer: a row without an id, or whose vector is not one of ours.
    """
    found_ids = ids(reply)
    if not found_ids:
        return Near([], np.empty(0), np.empty((0, query.size)))
    vectors = _vectors(generation, reply)
    if vectors.shape[1] != query.size:
        raise DoubtfulAnswer(generation, f"vectors of {vectors.shape[1]} dimensions for a query of {query.size}")
    if not all(found_ids):
        raise DoubtfulAnswer(generation, "a row without an id")
    return Near(found_ids, vectors @ query, vectors)


def ids(reply: search_get_pb2.SearchReply) -> list[MemoryId]:
    """The items that were found, in the server's order."""
    return [MemoryId(one.properties.non_ref_props.fields[ID].text_value) for one in reply.results]


def _vectors(generation: str, reply: search_get_pb2.SearchReply) -> npt.NDArray[np.float64]:
    """The rows' vectors as integer-valued float64, shape (rows, d)."""
    raw = [one.metadata.vectors[0].vector_bytes if one.metadata.vectors else b"" for one in reply.results]
    if not raw[0] or len({len(one) for one in raw}) != 1 or len(raw[0]) % 4:
        raise DoubtfulAnswer(generation, "a row without a vector, or with one of another length")
    floats = np.frombuffer(b"".join(raw), dtype="<f4").reshape(len(raw), -1)
    exact: npt.NDArray[np.float64] = floats.astype(np.float64) * ONE
    lengths = np.einsum("ij,ij->i", exact, exact)
    if not (np.abs(lengths - DOT_ONE) <= _SLACK).all() or (exact != np.rint(exact)).any():
        raise DoubtfulAnswer(generation, "a row whose vector is none of ours")
    return exact


def similar(near: Near) -> list[Found]:
    """Rows by cosine, best first."""
    order = np.argsort(-near.dots, kind="stable").tolist()
    return [Found(id=near.ids[at], score=float(near.dots[at]) / DOT_ONE) for at in order]


def scored(reply: search_get_pb2.SearchReply) -> list[Found]:
    """Rows with the server's score, in its order."""
    return [
        Found(id=MemoryId(one.properties.non_ref_props.fields[ID].text_value), score=one.metadata.score)
        for one in reply.results
    ]


def rows(stage: Stage, generation: str, reply: search_get_pb2.SearchReply) -> tuple[list[Row], str]:
    """A page's rows, and the id that the next page comes behind; "" after the last.

    Raises:
        DoubtfulAnswer: a row that is none of ours.
    """
    if not reply.results:
        return [], ""
    vectors = _vectors(generation, reply).astype("<i4")
    last = reply.results[-1].metadata.id
    return [_row(stage, one, vector) for one, vector in zip(reply.results, vectors, strict=True)], last


def _row(stage: Stage, result: search_get_pb2.SearchResult, vector: npt.NDArray[np.int32]) -> Row:
    fields = result.properties.non_ref_props.fields
    return Row(
        id=MemoryId(fields[ID].text_value),
        bank=stage,
        born=BankVersion(fields[BORN].int_value),
        vector=vector.tobytes(),
        scenario=fields[SCENARIO].text_value,
        experience=fields[EXPERIENCE].text_value,
        delta_sum=fields[DELTA_SUM].int_value,
        n=fields[N].int_value,
        sources=tuple(np.frombuffer(fields[SOURCES].list_value.int_values.values, dtype="<i8").tolist()),
    )
