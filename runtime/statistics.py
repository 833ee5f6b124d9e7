"""Intervals and tests for success counts, pure: what a table of runs may claim.

One outcome per task and run: Wilson's score interval for a rate, Newcombe's square-and-add interval for the paired
difference (method 10 of his 1998 paper: closed form, never outside [-1, 1]), the exact McNemar test. Several outcomes
per task: `runtime.resampling`.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import comb, sqrt

from msgspec import Struct

from events.errors import BadInput

#: the 97.5 % quantile of the standard normal distribution: 95 % intervals
Z95 = 1.959963984540054


class Interval(Struct, frozen=True, kw_only=True):
    """An estimate with its confidence limits."""

    estimate: float
    low: float
    high: float


class Pairs(Struct, frozen=True, kw_only=True):
    """How two runs did on the same tasks: the 2 x 2 table of paired outcomes."""

    #: both succeeded
    both: int
    #: only the first succeeded
    first_only: int
    #: only the second succeeded
    second_only: int
    neither: int

    @property
    def n(self) -> int:
        return self.both + self.first_only + self.second_only + self.neither


def wilson(successes: int, n: int, z: float = Z95) -> Interval:
    """Wilson's score interval for a rate; [0, 1] around 0 when nothing was tried.

    Raises:
        BadInput: not 0 <= successes <= n.
    """
    if not 0 <= successes <= n:
        raise BadInput(f"{successes} successes of {n} is no rate")
    if n == 0:
        return Interval(estimate=0.0, low=0.0, high=1.0)
    rate, weight = successes / n, z * z / n
    middle = (rate + weight / 2) / (1 + weight)
    half = z / (1 + weight) * sqrt(rate * (1 - rate) / n + weight / (4 * n))
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == n else min(1.0, middle + half)
    return Interval(estimate=rate, low=low, high=high)


def paired(first: Mapping[str, bool], second: Mapping[str, bool]) -> Pairs:
    """The table of the tasks that both runs have."""
    counts = {(True, True): 0, (True, False): 0, (False, True): 0, (False, False): 0}
    for task in first.keys() & second.keys():
        counts[first[task], second[task]] += 1
    return Pairs(
        both=counts[True, True],
        first_only=counts[True, False],
        second_only=counts[False, True],
        neither=counts[False, False],
    )


def paired_difference(pairs: Pairs, z: float = Z95) -> Interval:
    """Rate of the second run minus rate of the first, with Newcombe's interval for paired proportions."""
    n = pairs.n
    if n == 0:
        return Interval(estimate=0.0, low=-1.0, high=1.0)
    one = wilson(pairs.both + pairs.first_only, n, z)
    two = wilson(pairs.both + pairs.second_only, n, z)
    phi = _correlation(pairs)
    difference = (pairs.second_only - pairs.first_only) / n
    below2, above1 = two.estimate - two.low, one.high - one.estimate
    above2, below1 = two.high - two.estimate, one.estimate - one.low
    down = sqrt(max(0.0, below2**2 - 2 * phi * below2 * above1 + above1**2))
    up = sqrt(max(0.0, above2**2 - 2 * phi * above2 * below1 + below1**2))
    return Interval(estimate=difference, low=max(-1.0, difference - down), high=min(1.0, difference + up))


def _correlation(pairs: Pairs) -> float:
    """Newcombe's phi, with his continuity correction where the association is positive."""
    a, b, c, d = pairs.both, pairs.first_only, pairs.second_only, pairs.neither
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    if margins == 0:
        return 0.0
    association = float(a * d - b * c)
    if association > 0:
        association = max(association - pairs.n / 2, 0.0)
    return association / sqrt(margins)


def mcnemar(pairs: Pairs) -> float:
    """Two-sided exact p: how likely so uneven a split of the discordant tasks is when the runs are equally good."""
    discordant, least = pairs.first_only + pairs.second_only, min(pairs.first_only, pairs.second_only)
    tail = sum(comb(discordant, k) for k in range(least + 1))
    # Exact: 2^discordant is beyond any float for long runs.
    return min(1.0, float(Fraction(2 * tail, 2**discordant)))
