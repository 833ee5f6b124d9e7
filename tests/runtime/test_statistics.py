"""Intervals and tests against published and hand-computed values."""

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.errors import BadInput
from runtime.resampling import clustered_difference
from runtime.statistics import Pairs, mcnemar, paired, paired_difference, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe 1998 (one proportion), method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson(successes, n, low, high):
    """The score interval without continuity correction gives Newcombe's published limits."""
    interval = wilson(successes, n)
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


def test_wilson_at_the_ends():
    """Nothing tried is anything; all of n has no room above."""
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0, 1)
    assert wilson(5, 5).high == 1
    with pytest.raises(BadInput):
        wilson(3, 2)


@given(st.integers(0, 300), st.integers(0, 300))
def test_wilson_holds_the_rate(a, b):
    """The interval lies in [0, 1] and holds the rate."""
    interval = wilson(a, a + b)
    assert 0 <= interval.low <= interval.estimate <= interval.high <= 1 or a + b == 0


@pytest.mark.parametrize(
    ("table", "low", "high"),
    # Newcombe 1998 (paired proportions), method 10: (both, first only, second only, neither)
    [((36, 2, 12, 0), 0.0569, 0.3404), ((20, 2, 12, 16), 0.0562, 0.3292)],
)
def test_paired_difference(table, low, high):
    """The square-and-add interval gives Newcombe's limits."""
    interval = paired_difference(pairs_of(*table))
    assert interval.estimate == 0.2
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


def pairs_of(both, first_only, second_only, neither):
    return Pairs(both=both, first_only=first_only, second_only=second_only, neither=neither)


def test_paired_counts_common_tasks():
    """Only tasks that both runs have are paired."""
    first = {"a": True, "b": True, "c": False, "d": False, "x": True}
    second = {"a": True, "b": False, "c": True, "d": False, "y": True}
    assert paired(first, second) == pairs_of(1, 1, 1, 1)


counts = st.integers(0, 60)


@given(counts, counts, counts, counts)
def test_paired_difference_is_an_interval(a, b, c, d):
    """The interval holds the difference, lies in [-1, 1], and turns round when the runs are exchanged."""
    one, other = paired_difference(pairs_of(a, b, c, d)), paired_difference(pairs_of(a, c, b, d))
    assert -1 <= one.low <= one.estimate + 1e-12
    assert one.estimate - 1e-12 <= one.high <= 1
    assert one.low == pytest.approx(-other.high, abs=1e-12)


@given(counts, counts)
def test_mcnemar(b, c):
    """The exact p is twice the smaller binomial tail, at most 1, and the same both ways."""
    n = b + c
    expected = min(1.0, 2 * sum(comb(n, k) * 0.5**n for k in range(min(b, c) + 1)))
    assert mcnemar(pairs_of(3, b, c, 4)) == pytest.approx(expected)
    assert mcnemar(pairs_of(0, b, c, 0)) == mcnemar(pairs_of(0, c, b, 0))


def test_mcnemar_by_hand():
    """0 of 5 discordant tasks: 2/32; none at all: 1; thousands: no overflow."""
    assert mcnemar(pairs_of(9, 0, 5, 9)) == 0.0625
    assert mcnemar(pairs_of(9, 0, 0, 9)) == 1
    assert 0 <= mcnemar(pairs_of(0, 100, 3000, 0)) < 1e-300


def test_clustered_difference():
    """The estimate is the mean of all outcomes; the same seed gives the same interval; certainty has no width."""
    differences = [[1, 1], [0], [-1, 0, 1]]
    one = clustered_difference(differences, seed=3, resamples=500)
    assert one == clustered_difference(differences, seed=3, resamples=500)
    assert one.estimate == pytest.approx(2 / 6)
    assert one.low <= one.estimate <= one.high
    sure = clustered_difference([[1, 1], [1]], resamples=50)
    assert (sure.low, sure.high) == (1, 1)


def test_clusters_widen_the_interval():
    """Outcomes of one task that agree count as one observation, not as many."""
    single = [[float(i % 2)] for i in range(40)]
    repeated = [[float(i % 2)] * 4 for i in range(10)]
    narrow, wide = (clustered_difference(one, resamples=2000) for one in (single, repeated))
    assert wide.high - wide.low > narrow.high - narrow.low


@pytest.mark.parametrize(("differences", "level"), [([], 0.95), ([[]], 0.95), ([[1.0]], 1.0)])
def test_nothing_to_resample(differences, level):
    """Without an outcome, or with a level that is none, there is no interval."""
    with pytest.raises(BadInput):
        clustered_difference(differences, level=level)
