"""What every bank store must do: in memory, and on a real Weaviate server beside a real Redis."""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_banks import ANCHOR, MadeBanks, grown, unit, with_dot
from msgspec.structs import replace

from events import policies
from events.bank import Banks
from events.errors import BadInput, Mismatch, NotAUnitVector, VersionGap
from events.ids import STAGES, BankVersion, MemoryId, RunId, Stage, memory_order
from events.recall import least_dot, recall
from events.vectors import DOT_ONE, ONE, Vector, of_raw
from infra import banks as stores
from infra.banks import weaviate_edge
from infra.banks.changes import joined, row_of
from infra.banks.generations import Generations
from infra.banks.in_process import InProcessBank
from infra.banks.prunes import Prunes
from infra.redis_client import connected
from runtime.bank_store import BankChange, BankStore, Hit, Row

V = BankVersion
#: what makes an empty store of some dimension
MakeStore = Callable[[int], AbstractAsyncContextManager[BankStore]]


@pytest.fixture(params=["in-process", "weaviate"])
def open_bank(request: pytest.FixtureRequest, redis_prefix: str, monkeypatch: pytest.MonkeyPatch) -> MakeStore:
    """A way to open an empty store of each kind."""
    # A server that stands still for some seconds is not away.
    for limit in ("READ_S", "_GREET_S"):
        monkeypatch.setattr(weaviate_edge, limit, 60.0)
    if request.param == "in-process":

        @asynccontextmanager
        async def in_process(dimension: int) -> AsyncIterator[BankStore]:
            yield InProcessBank(dimension)

        return in_process
    redis_server, weaviate = request.getfixturevalue("redis_server"), request.getfixturevalue("weaviate_server")

    @asynccontextmanager
    async def on_weaviate(dimension: int) -> AsyncIterator[BankStore]:
        async with connected(redis_server.url) as redis, stores.connected(weaviate) as server:
            generations = Generations(redis, redis_prefix, redis_server.url).of(RunId("r-1"))
            generation = await generations.begin()
            await server.prepare()
            await server.create(generation.name)
            yield server.bank(generation, Prunes(), dimension)
            await server.remove([generation.name])

    return on_weaviate


def expected(banks: Banks, stage: Stage, query: Vector, limit: int) -> list[Hit]:
    """The first `limit` rows of the stage's bank, from the banks themselves."""
    vectors = {item.id: banks.scenario_vector(item) for item in banks if item.bank == stage}
    dots = {one: int(query.exact() @ vector.exact()) for one, vector in vectors.items()}
    order = sorted(dots, key=lambda one: (-dots[one], memory_order(one)))
    return [
        Hit(id=one, dot=dots[one], vector_sha256=hashlib.sha256(vectors[one].q24).hexdigest()) for one in order[:limit]
    ]


async def agree(store: BankStore, made: MadeBanks, at: int, query: Vector, limits: tuple[int, ...]) -> None:
    """The store and the banks at `at` find the same, in both stages."""
    for stage in STAGES:
        for limit in limits:
            assert await store.search(stage, query, limit, V(at)) == expected(made.versions[at], stage, query, limit)


async def test_every_version_of_the_window_reads_as_it_was(open_bank: MakeStore) -> None:
    """After each version is applied, searches at it and at all before it give what the banks held then."""
    made = grown(14)
    async with open_bank(16) as store:
        assert await store.newest() is None
        for version in range(1, 15):
            change = made.change(version)
            await store.apply(replace(change, since=None) if version == 1 else change)
            assert await store.newest() == version
            for at in range(max(1, version - 5), version + 1):
                await agree(store, made, at, unit(1000 + at), (0, 1, 3, 20))


async def test_a_store_that_begins_later_holds_what_a_reader_may_ask_for(open_bank: MakeStore) -> None:
    """The first change holds a whole bank with the items pruned since the oldest version that somebody may read."""
    made = grown(30)
    async with open_bank(16) as store:
        await store.apply(made.whole(oldest=18))
        assert await store.newest() == 30
        for at in range(18, 31):
            await agree(store, made, at, unit(at), (5, 20))


async def test_changes_may_be_joined_and_come_again(open_bank: MakeStore) -> None:
    """Several versions in one change, and a change that comes a second time, leave the same."""
    made = grown(12, seed=3)
    changes = [made.change(version) for version in range(1, 13)]
    async with open_bank(16) as store:
        await store.apply(replace(joined(changes[:5]), since=None))
        await store.apply(changes[2])
        await store.apply(joined(changes[3:8]))
        await store.apply(joined(changes[8:]))
        await store.apply(changes[11])
        assert await store.newest() == 12
        for at in range(5, 13):
            await agree(store, made, at, unit(at), (20,))
        await store.refresh()
        assert await store.items(V(12)) == [row_of(made.newest, item) for item in made.newest]


async def test_versions_come_in_order(open_bank: MakeStore) -> None:
    """A change that skips a version is refused, and nothing of it is published."""
    made = grown(5)
    async with open_bank(16) as store:
        with pytest.raises(VersionGap):
            await store.apply(made.change(2))
        await store.apply(replace(made.change(1), since=None))
        with pytest.raises(VersionGap):
            await store.apply(made.change(4))
        assert await store.newest() == 1


async def test_only_what_is_published_is_read(open_bank: MakeStore) -> None:
    """A version above the newest is no answer, neither for a search nor for the rows."""
    made = grown(3)
    async with open_bank(16) as store:
        with pytest.raises(Mismatch, match="not published"):
            await store.search("planning", unit(1), 3, V(0))
        await store.apply(made.whole())
        with pytest.raises(Mismatch, match="not published"):
            await store.search("planning", unit(1), 3, V(4))
        with pytest.raises(Mismatch, match="not published"):
            await store.items(V(4))


async def test_rows_as_people_see_them(open_bank: MakeStore) -> None:
    """Texts and values follow with `refresh`; a vector, a birth and an id stay what they were."""
    made = grown(20, seed=5)
    async with open_bank(16) as store:
        await store.apply(replace(made.change(1), since=None))
        for version in range(2, 21):
            await store.apply(made.change(version))
        shown = await store.refresh()
        assert shown > 0
        assert await store.refresh() == 0
        rows = await store.items(V(20))
        assert rows == [row_of(made.newest, item) for item in made.newest]
        for at in (10, 15):
            older = await store.items(V(at))
            kept = [(row.id, row.born, row.vector) for row in older]
            assert kept == [(one.id, one.born, one.vector) for one in map(row_in(made.versions[at]), made.versions[at])]


def row_in(banks: Banks):
    """A way to make rows of items of `banks`."""
    return lambda item: row_of(banks, item)


async def test_pruned_rows_go_when_nobody_reads_them(open_bank: MakeStore) -> None:
    """Rows pruned at or before the oldest version are deleted, once; reads from it on stay right."""
    made = grown(25, seed=7)
    pruned = {one: at for version in range(1, 26) for one, at in made.change(version).pruned.items()}
    async with open_bank(16) as store:
        await store.apply(made.whole(oldest=0))
        gone = sum(at <= 15 for at in pruned.values())
        assert gone > 0
        assert await store.clear(V(15)) == gone
        assert await store.clear(V(15)) == 0
        for at in range(15, 26):
            await agree(store, made, at, unit(at), (20,))


async def test_a_dropped_store_is_empty(open_bank: MakeStore) -> None:
    """Nothing of it answers any more, and dropping it again is harmless."""
    made = grown(5)
    async with open_bank(16) as store:
        await store.apply(made.whole())
        await store.drop()
        await store.drop()
        with pytest.raises(Mismatch):
            await store.search("planning", unit(1), 3, V(5))


async def test_rows_that_are_missing_are_named(open_bank: MakeStore) -> None:
    """A store says which of the rows that it should hold no search finds, and nothing where all are found."""
    made = grown(12)
    rows = [row_of(made.newest, item) for item in made.newest]
    async with open_bank(16) as store:
        await store.apply(made.whole(oldest=0))
        assert await store.missing(rows, V(12)) == []
        other = replace(rows[0], id=MemoryId(f"{rows[0].bank}-99"))
        assert any("99" in one for one in await store.missing([*rows, other], V(12)))


async def test_an_empty_bank(open_bank: MakeStore) -> None:
    """Before anything is learned there is nothing to find; nor is one bank found in the other."""
    made = MadeBanks()
    async with open_bank(16) as store:
        await store.apply(made.whole())
        assert await store.newest() == 0
        assert await store.search("planning", unit(1), 20, V(0)) == []
        assert await store.items(V(0)) == []
        await store.apply(made.step({"planning": unit(2)}))
        assert await store.search("execution", unit(1), 20, V(1)) == []
        assert [hit.id for hit in await store.search("planning", unit(1), 20, V(1))] == ["planning-0"]


def _row(changed: dict[str, object]) -> Row:
    made = MadeBanks()
    made.step({"planning": unit(1)})
    return replace(row_of(made.newest, next(iter(made.newest))), **changed)


LARGE = bytearray(unit(1).q24)
LARGE[:4] = (ONE + 1).to_bytes(4, "little", signed=True)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"vector": b""}, "0 bytes"),
        ({"vector": unit(1, 15).q24}, "60 bytes"),
        ({"vector": bytes(64)}, "unit length"),
        ({"vector": b"\xff\xff\xff\x7f" * 16}, "unit length"),
        ({"scenario": "a \ud800 b"}, "lone surrogate"),
        ({"experience": "\udfff"}, "lone surrogate"),
        ({"delta_sum": 1 << 53}, "2\\^53"),
        ({"n": 1 << 60}, "2\\^53"),
        ({"sources": (1, 1 << 53)}, "2\\^53"),
        ({"bank": "execution"}, "not of the execution bank"),
        ({"id": MemoryId("planning-x")}, "no memory id"),
    ],
)
async def test_rows_that_no_store_may_hold(open_bank: MakeStore, changed: dict[str, object], why: str) -> None:
    """A row that would be refused, rounded, or never found is told before anything is sent."""
    good = _row({"id": MemoryId("planning-7")})
    async with open_bank(16) as store:
        with pytest.raises(BadInput, match=why):
            await store.apply(BankChange(since=None, version=V(1), born=[good, _row(changed)]))
        with pytest.raises(BadInput, match="twice"):
            await store.apply(BankChange(since=None, version=V(1), born=[good, good]))
        assert await store.newest() is None
        await store.apply(BankChange(since=None, version=V(1), born=[good]))
        assert await store.items(V(1)) == [good]


async def test_queries_that_are_none(open_bank: MakeStore) -> None:
    """A query of another dimension, or that is no unit vector, is refused."""
    async with open_bank(16) as store:
        await store.apply(grown(3).whole())
        with pytest.raises(NotAUnitVector, match="15 dimensions for a bank of 16"):
            await store.search("planning", unit(1, 15), 3, V(3))
        with pytest.raises(NotAUnitVector, match="unit length"):
            await store.search("planning", of_raw(bytes(64)), 3, V(3))


async def test_texts_come_back_as_they_are(open_bank: MakeStore) -> None:
    """Empty, long, with control characters, composed and decomposed, right to left."""
    texts = ["", "x" * 100_000, "a\x00b\x7f\u2028\uffff", "e\u0301 and \u00e9", "\u202eabc\u202c 🧠👩‍🚀", '"\\\n\t']
    rows = []
    for t, text in enumerate(texts):
        made = MadeBanks()
        made.step({"planning": unit(t)})
        row = row_of(made.newest, next(iter(made.newest)))
        rows.append(replace(row, id=MemoryId(f"planning-{t}"), scenario=text, experience=text[::-1], sources=()))
    async with open_bank(16) as store:
        await store.apply(BankChange(since=None, version=V(1), born=rows))
        assert await store.items(V(1)) == rows


#: dots that decide, their neighbours one unit away, and ones that float32 cannot tell from them
_DOTS = st.one_of(
    st.sampled_from([84442493013196, 84442493013197, 247697979505377, 0, DOT_ONE // 2]).flatmap(
        lambda dot: st.integers(max(0, dot - 3), dot + 3)
    ),
    st.integers(DOT_ONE // 2, DOT_ONE // 2 + (1 << 26)),
    st.integers(0, DOT_ONE),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dots=st.lists(st.tuples(st.sampled_from(STAGES), _DOTS, st.integers(0, 3)), min_size=1, max_size=40),
    pruned=st.sets(st.integers(0, 39)),
    limit=st.integers(1, 22),
    turns=st.integers(0, 2**32 - 1),
)
async def test_what_recall_finds_a_store_finds(
    open_bank: MakeStore, dots: list[tuple[Stage, int, int]], pruned: set[int], limit: int, turns: int
) -> None:
    """Ties at the cut and at the floor come out as `events.recall` has them, whatever order the rows came in."""
    made = MadeBanks()
    order = np.random.default_rng(turns).permutation(len(dots)).tolist()
    for at in order:
        stage, dot, side = dots[at]
        made.step({stage: with_dot(min(dot, DOT_ONE), side)})
    kept = len(made.versions) - 1
    gone = [one for place, one in enumerate(made.live()) if place in pruned]
    made.step(prunes=gone)
    parameters = policies.load("credit").parameters.changed({"top_n": limit})
    async with open_bank(5) as store:
        await store.apply(made.whole())
        for version in (kept, kept + 1, kept // 2):
            banks = made.versions[version]
            for stage in STAGES:
                hits = await store.search(stage, ANCHOR, limit, V(version))
                assert hits == expected(banks, stage, ANCHOR, limit)
                least = least_dot(parameters)
                candidates = recall(banks, (stage,), ANCHOR, parameters)
                assert {hit.id: hit.dot for hit in hits if hit.dot >= least} == {one.id: one.dot for one in candidates}


async def test_many_rows_as_near_as_each_other(open_bank: MakeStore) -> None:
    """Hundreds of rows of one dot, and hundreds one unit below: the lowest ids of the first come out."""
    rows = []
    made = MadeBanks()
    made.step({"planning": with_dot(DOT_ONE // 2)})
    model = row_of(made.newest, next(iter(made.newest)))
    for t in np.random.default_rng(1).permutation(600).tolist():
        vector = with_dot(DOT_ONE // 2 - t % 2, side=t % 4)
        rows.append(replace(model, id=MemoryId(f"planning-{t}"), vector=vector.q24))
    async with open_bank(5) as store:
        await store.apply(BankChange(since=None, version=V(1), born=rows))
        hits = await store.search("planning", ANCHOR, 20, V(1))
        assert [hit.id for hit in hits] == [f"planning-{t}" for t in range(0, 40, 2)]
        assert {hit.dot for hit in hits} == {DOT_ONE // 2}
