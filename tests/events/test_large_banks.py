"""Banks of many blocks and chunks: what small made-up logs never reach, against the second fold and plain lists."""

import random
import tracemalloc

import msgspec
import numpy as np
import plain_fold
import plain_logs
import product_fold
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_fold import Data, Folding
from plain_logs import anchor, at_dot, diagnosis, experience, seed_item

from events import policies, rows
from events.bank import Banks, evolve, seed
from events.errors import NotAUnitVector
from events.ids import STAGES, MemoryId, memory_order
from events.kinds import Diagnosed, SeededItem
from events.operations import Inserted, Pruned
from events.parameters import Parameters
from events.recall import recall
from events.rows import Rows
from events.sorted_items import ById, Chunks
from events.vectors import Vector


def vector(components: list[int]) -> Vector:
    return msgspec.convert(plain_logs.vector(components), Vector)


def crowd(count: int) -> list[Data]:
    """`count` items with random vectors, some of them at one dot, in id order."""
    dice = random.Random(7)  # noqa: S311 - test data
    items = []
    for number in range(count):
        where = at_dot(dice.choice((200000000000000, dice.randrange(2**48))), side=dice.randrange(4))
        stage = dice.choice(plain_fold.STAGES)
        n = dice.randrange(5)
        used = {"n": n, "delta_sum": dice.randint(-n * 10000, n * 10000)}
        items.append(seed_item(f"old.{stage}-{number}", where, scenario=f"case {number}", **used))
    return sorted(items, key=lambda item: plain_fold.id_order(item["id"]))


def test_thousands_of_items_fold_and_recall_alike() -> None:
    """2600 seeded items, then inserts, merges and prunes: operations, digests, recalls; then another future."""
    items = crowd(2600)
    start = plain_fold.seeded(plain_fold.empty(), items)
    folding = Folding("credit", {}, [start], [plain_fold.digest(start)])
    banks = Banks()
    for half in (items[:1500], items[1500:]):
        banks = seed(banks, msgspec.convert(half, list[SeededItem]))
    assert banks.digest() == folding.digests[0]
    policy, versions = policies.load("credit"), [banks]
    dice = random.Random(11)  # noqa: S311 - test data
    for t in range(8):
        chosen: Data = {}
        for stage in STAGES:
            query = at_dot(dice.randrange(2**47, 2**48), side=dice.randrange(4))
            theirs = folding.recall(stage, t, query)
            found = recall(versions[t], (stage,), vector(query), Parameters())
            assert product_fold.as_data(found) == theirs
            chosen[stage] = [one["id"] for one in theirs if one["chosen"]]
        new = experience(at_dot(dice.choice((200000000000000, 2**47)), side=t % 4), anchor(turn=1 + t % 4))
        news = {"planning": new, "execution": experience(anchor(turn=t % 5), anchor(turn=(t + 2) % 5))}
        blamed = chosen["planning"][:2]
        data = diagnosis(label="both", retrieved=chosen, misleading=blamed, experiences=news, success=t % 2 == 0)
        folding.step(data)
        diagnosed = msgspec.convert(data, Diagnosed)
        operations = policy.decide(versions[t], t, diagnosed)
        assert product_fold.as_data(operations) == folding.operations[t]
        versions.append(evolve(versions[t], diagnosed, operations))
        assert versions[-1].digest() == folding.digests[-1]
    # another future of version 3, while the first one stays
    other = diagnosis(label="planning", experiences={"planning": experience(anchor(turn=3)), "execution": None})
    theirs = plain_fold.decide(folding.banks[3], 3, other, "credit", {})
    ours = policy.decide(versions[3], 3, msgspec.convert(other, Diagnosed))
    assert product_fold.as_data(ours) == theirs
    branch = evolve(versions[3], msgspec.convert(other, Diagnosed), ours)
    assert branch.digest() == plain_fold.digest(plain_fold.evolve(folding.banks[3], 3, other, theirs))
    assert [one.digest() for one in versions] == folding.digests
    assert product_fold.items(versions[-1]) == plain_fold.in_order(folding.banks[-1])


#: (which of the views so far, what to do with it: append or drop a row, its place or component)
moves = st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.integers(0, 8)), max_size=30)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of four rows, so that a few rows fill several."""
    monkeypatch.setattr(rows, "_BLOCK", 4)


def test_rows_are_lists_that_share(small_blocks: None) -> None:
    """Any tree of appends and drops: every view, looked at last, has the dots and owners of its own plain list."""

    @given(moves)
    def law(steps: list[tuple[int, bool, int]]) -> None:
        views: list[tuple[Rows, list[tuple[str, list[int]] | None]]] = [(Rows(), [])]
        for number, (which, append, place) in enumerate(steps):
            view, plain = views[which % len(views)]
            if append or not plain:
                unit = at_dot(place * 2**44, side=number % 4)
                longer, at = view.appended(vector(unit), MemoryId(f"planning-{number}"))
                assert at == len(plain)
                views.append((longer, [*plain, (f"planning-{number}", unit)]))
            elif plain[place % len(plain)] is not None:
                gone = place % len(plain)
                views.append((view.without([gone]), [*plain[:gone], None, *plain[gone + 1 :]]))
            if number % 5 == 4:
                view, plain = views[which % len(views)]
                fewer, numbers = view.compacted()
                kept = [at for at, one in enumerate(plain) if one is not None]
                assert numbers == {at: place for place, at in enumerate(kept)}
                views.append((fewer, [plain[at] for at in kept]))
        for view, plain in views:
            check(view, plain)

    law()


def coming_and_going(episodes: int) -> list[Banks]:
    """The last versions of a run in which every episode inserts an item, and the one of ten episodes ago is pruned."""
    banks, held = Banks(), list[Banks]()
    for t in range(episodes):
        new = experience(anchor(turn=1 + t % 4), at_dot(2**47, side=t % 4), scenario=f"case {t}")
        diagnosed = msgspec.convert(diagnosis(label="planning", experiences={"planning": new}), Diagnosed)
        gone = [Pruned(bank="planning", id=MemoryId(f"planning-{t - 10}"))] if t >= 10 else []
        inserted = Inserted(bank="planning", id=MemoryId(f"planning-{t}"), source=t)
        banks = evolve(banks, diagnosed, [*gone, inserted])
        held = [*held[-4:], banks]
    return held


def test_dead_rows_are_moved_away_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests, searches and vectors of every version held are those of a run whose rows stay where they are."""
    moved = coming_and_going(700)
    monkeypatch.setattr(rows, "_SPARE", 10**9)
    stayed = coming_and_going(700)
    assert moved[-1].planning.scenarios.length < 300 < stayed[-1].planning.scenarios.length
    for ours, theirs in zip(moved, stayed, strict=True):
        assert ours.digest() == theirs.digest()
        for turn in range(5):
            query = vector(anchor(turn=turn)).exact()
            found, expected = ours.nearest(STAGES, query), theirs.nearest(STAGES, query)
            assert found is not None
            assert expected is not None
            assert (found.item.id, found.dot) == (expected.item.id, expected.dot)
            assert ours.most_similar_experience(STAGES, query) == theirs.most_similar_experience(STAGES, query)
        assert list(map(ours.experience_vectors, ours)) == list(map(theirs.experience_vectors, theirs))


def test_a_bounded_bank_takes_bounded_memory() -> None:
    """Four times as many episodes leave no more behind, however many items came and went."""

    def left(episodes: int) -> int:
        tracemalloc.start()
        try:
            held = coming_and_going(episodes)
            assert len(held[-1]) == 10
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    coming_and_going(2800)  # what is kept once: the order of each id
    assert left(2800) < 1.5 * left(700)


def check(view: Rows, plain: list[tuple[str, list[int]] | None]) -> None:
    query = anchor()
    dots = [None if one is None else plain_fold.dot(query, one[1]) for one in plain]
    got = view.dots(vector(query).exact())
    assert got.tolist() == [-np.inf if one is None else one for one in dots]
    live = [one for one in dots if one is not None]
    assert (view.length, view.live) == (len(plain), len(live))
    top = max(live, default=0)
    assert view.largest(vector(query).exact()) == (top, [at for at, one in enumerate(dots) if one == top and live])
    for at, one in enumerate(plain):
        if one is not None:
            assert (view.owner(at), view.vector(at)) == (one[0], vector(one[1]))


def test_a_vector_of_another_dimension_is_refused() -> None:
    """By the rows and by a search, whatever is in the bank."""
    longer, _ = Rows().appended(vector(anchor(5)), MemoryId("planning-0"))
    with pytest.raises(NotAUnitVector, match="4 dimensions"):
        longer.appended(vector(anchor(4)), MemoryId("planning-1"))
    with pytest.raises(NotAUnitVector, match="4 dimensions"):
        longer.dots(vector(anchor(4)).exact())


changes = st.lists(
    st.dictionaries(st.integers(0, 400), st.one_of(st.none(), st.integers(0, 9)), max_size=120), max_size=6
)


@given(changes)
def test_sorted_items_are_a_sorted_dictionary(steps: list[dict[int, int | None]]) -> None:
    """Updates and removals in any order: order, length, look-up and joined bytes of every version."""
    versions: list[tuple[Chunks[int], dict[int, int]]] = [(Chunks(), {})]
    for step in steps:
        chunks, plain = versions[-1]
        plain = plain | {key: value for key, value in step.items() if value is not None}
        for key, value in step.items():
            if value is None:
                plain.pop(key, None)
        change = {memory_order(f"planning-{key}"): value for key, value in step.items()}
        versions.append((chunks.updated(change), plain))
    for chunks, plain in versions:
        values = [plain[key] for key in sorted(plain)]
        assert (list(chunks), len(chunks)) == (values, len(plain))
        assert chunks.joined(lambda value: bytes([value])) == bytes(values)
        for key in range(0, 401, 7):
            assert chunks.get(memory_order(f"planning-{key}")) == plain.get(key)


@given(changes, st.integers(0, 63))
def test_items_by_id_are_a_sorted_dictionary(steps: list[dict[int, int | None]], asked: int) -> None:
    """Whenever somebody asks for the order, and whether so many changes wait that they are sorted in unasked."""
    versions: list[tuple[ById[int], dict[int, int]]] = [(ById(Chunks(), {}), {})]
    for number, step in enumerate(steps):
        items, plain = versions[-1]
        if asked >> number & 1:
            assert len(items) == len(plain)
        after = {key: value for key, value in (plain | step).items() if value is not None}
        versions.append((items.updated({MemoryId(f"planning-{key}"): value for key, value in step.items()}), after))
    for items, plain in versions:
        for key in range(0, 401, 7):
            assert items.get(MemoryId(f"planning-{key}")) == plain.get(key)
        values = [plain[key] for key in sorted(plain)]
        assert (list(items), len(items)) == (values, len(plain))
        assert items.joined(lambda value: bytes([value])) == bytes(values)
        for key in range(0, 401, 7):
            assert items.get(MemoryId(f"planning-{key}")) == plain.get(key)
