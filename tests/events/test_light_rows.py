"""Rows without their vectors: the same owners, hashes and digests, in a fraction of the memory."""

import numpy as np
import pytest

from events.errors import NotAUnitVector
from events.ids import MemoryId, memory_id
from events.rows import Rows
from events.vectors import Vector, fixed_point


def vector(seed: int, dimension: int = 8) -> Vector:
    """A unit vector."""
    return fixed_point(np.random.default_rng(seed).normal(size=dimension))


def filled(rows: Rows, seeds: range) -> Rows:
    """`rows` and one more for each seed."""
    for seed in seeds:
        rows, _ = rows.appended(vector(seed), memory_id("planning", seed))
    return rows


def test_hashes_and_owners_stay():
    """Rows that were there, and rows that came later, have the owners and hashes that whole rows have."""
    whole = filled(Rows(), range(5)).without([1])
    thin = whole.light()
    whole, thin = filled(whole, range(5, 9)).without([6]), filled(thin, range(5, 9)).without([6])
    assert [thin.sha256(row) for row in range(9)] == [whole.sha256(row) for row in range(9)]
    assert [thin.owner(row) for row in range(9)] == [whole.owner(row) for row in range(9)]
    assert thin.live == whole.live == 7


def test_branches_and_compaction():
    """An older view goes on by itself, and compaction keeps what lives."""
    base = filled(Rows().light(), range(3))
    one, other = filled(base, range(3, 5)), filled(base, range(7, 8))
    assert one.sha256(3) != other.sha256(3)
    assert other.sha256(2) == base.sha256(2)
    compact, moved = one.without([0, 2]).compacted()
    assert moved == {1: 0, 3: 1, 4: 2}
    assert compact.sha256(1) == one.sha256(3)


def test_nothing_is_found_in_them():
    """Whoever looks for a vector is told that there is none; wrong vectors are refused as ever."""
    rows = filled(Rows().light(), range(3))
    with pytest.raises(LookupError, match="keeps no vectors"):
        rows.vector(0)
    with pytest.raises(LookupError, match="keeps no vectors"):
        rows.dots(vector(1).exact())
    with pytest.raises(NotAUnitVector, match="4 dimensions in a bank of 8"):
        rows.appended(vector(0, 4), MemoryId("planning-9"))
