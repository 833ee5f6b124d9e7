"""Retrieval, pure and exact: floor, top N, equation (5), near ties (reading 5).

A score is dot/2^48 x (1 + clip(alpha x adjusted, -beta, beta)); candidates are compared as integers over one common
denominator, so nothing depends on how floats round. Floats are computed once, for the reader.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import lcm
from typing import NamedTuple, Self

from events.bank import Banks, Item
from events.ids import MemoryOrder, Stage
from events.kinds import Candidate
from events.late import np, npt
from events.parameters import Parameters
from events.rows import Rows
from events.vectors import DOT_ONE, Vector

#: one candidate with its exact figures, as integers over denominators common to all candidates: less its score, the
#: order of its id, v~, dot, item. In this order scores rank by themselves, equal ones by the lowest id. A plain tuple,
#: which sorts a fifth faster than a named one.
_Ranked = tuple[int, MemoryOrder, int, int, Item]


class _Equation(NamedTuple):
    """The constants of equation (5), each a fraction."""

    smoothing: int
    smoothing_unit: int
    alpha: int
    alpha_unit: int
    beta: int
    beta_unit: int

    @classmethod
    def of(cls, parameters: Parameters) -> Self:
        smoothing, alpha, beta = parameters.lambda_, parameters.alpha, parameters.beta
        return cls(
            smoothing=smoothing.numerator,
            smoothing_unit=smoothing.denominator,
            alpha=alpha.numerator,
            alpha_unit=alpha.denominator,
            beta=beta.numerator,
            beta_unit=beta.denominator,
        )


class _Figures(NamedTuple):
    """v~ and the factor of equation (5) of one candidate, each as an integer over a unit of its own."""

    adjusted: int
    adjusted_unit: int
    boost: int
    boost_unit: int


@lru_cache(maxsize=8192)
def _figures(delta_sum: int, n: int, equation: _Equation) -> _Figures:
    """v~ = v n / (n + lambda) = delta_sum / (10000 (n + lambda)), and 1 + clip(alpha v~, -beta, beta)."""
    smoothing, smoothing_unit, alpha, alpha_unit, beta, beta_unit = equation
    if (weight := n * smoothing_unit + smoothing) == 0:  # an unused item without smoothing
        return _Figures(0, 1, 1, 1)
    adjusted, adjusted_unit = delta_sum * smoothing_unit, 10_000 * weight
    effect, unit = alpha * adjusted, alpha_unit * adjusted_unit
    if abs(effect) * beta_unit > beta * unit:
        effect, unit = (beta if effect > 0 else -beta), beta_unit
    return _Figures(adjusted, adjusted_unit, unit + effect, unit)


def recall(banks: Banks, stages: Sequence[Stage], query: Vector, parameters: Parameters) -> list[Candidate]:
    """The candidates of one recall in rank order; the first K are `chosen`.

    Exactly the top N by dot over the banks of `stages`, at or above the floor; ties at the cut go to the lowest id.

    Raises:
        NotAUnitVector: the query is none, or has another dimension than the bank.
    """
    exact = query.exact()
    found = [pair for stage in stages for pair in _top(banks, banks.shelf(stage).scenarios, exact, parameters)]
    found.sort(key=lambda pair: (-pair[1], pair[0].order))
    return rank(found[: parameters.top_n], parameters)


def _top(banks: Banks, rows: Rows, query: "npt.NDArray[np.float64]", parameters: Parameters) -> list[tuple[Item, int]]:
    """Every item of the bank that can be among the top N: ties at the cut are all there."""
    dots = rows.dots(query)
    above = np.flatnonzero(dots >= least_dot(parameters))
    values = dots[above]
    if above.size > parameters.top_n:
        among = values >= np.partition(values, -parameters.top_n)[-parameters.top_n]
        above, values = above[among], values[among]
    get, owners = banks.items.get, rows.owners(above.tolist())
    found = zip(owners, values.tolist(), strict=True)
    return [(item, int(dot)) for owner, dot in found if (item := get(owner)) is not None]


def least_dot(parameters: Parameters) -> int:
    """The least integer dot with dot / 2^48 >= floor: what a candidate needs."""
    return -(-parameters.floor.numerator * DOT_ONE // parameters.floor.denominator)


def rank(found: Sequence[tuple[Item, int]], parameters: Parameters) -> list[Candidate]:
    """`found` (item, dot in units of 2^-48) scored by equation (5), in rank order after the near-tie step."""
    equation = _Equation.of(parameters)
    figures = [_figures(item.delta_sum, item.n, equation) for item, _ in found]
    adjusted_unit = lcm(*{unit for _, unit, _, _ in figures})
    score_unit = lcm(*{unit for _, _, _, unit in figures})
    ranked = [
        (-dot * boost * (score_unit // unit), item.order, adjusted * (adjusted_unit // its_unit), dot, item)
        for (item, dot), (adjusted, its_unit, boost, unit) in zip(found, figures, strict=True)
    ]
    _order(ranked, score_unit, parameters)
    score_one, top_k = score_unit * DOT_ONE, parameters.top_k
    return [
        Candidate(
            id=item.id,
            dot=dot,
            similarity=dot / DOT_ONE,
            delta_sum=item.delta_sum,
            n=item.n,
            adjusted=adjusted / adjusted_unit,
            score=-less / score_one,
            rank=place,
            chosen=place <= top_k,
        )
        for place, (less, _, adjusted, dot, item) in enumerate(ranked, 1)
    ]


def _order(ranked: list[_Ranked], score_unit: int, parameters: Parameters) -> None:
    """Bring `ranked` into rank order after the near-tie step."""
    margin = parameters.margin
    match parameters.near_tie:
        case "off":
            ranked.sort()
        case "score":
            ranked.sort()
            # score gap <= margin x 2^48 x unit, both sides times the margin's denominator
            heights = [-one[0] * margin.denominator for one in ranked]
            _order_groups(ranked, heights, margin.numerator * DOT_ONE * score_unit, _by_value)
        case "similarity":
            ranked.sort(key=lambda one: (-one[3], one[1]))
            heights = [one[3] * margin.denominator for one in ranked]
            _order_groups(ranked, heights, margin.numerator * DOT_ONE, _by_score)


def _by_value(one: _Ranked) -> tuple[int, int, MemoryOrder]:
    return -one[2], -one[3], one[1]


def _by_score(one: _Ranked) -> tuple[int, int, MemoryOrder]:
    return one[0], -one[3], one[1]


def _order_groups(
    ranked: list[_Ranked], heights: Sequence[int], reach: int, by: Callable[[_Ranked], tuple[int, int, MemoryOrder]]
) -> None:
    """Order what is tied, in anchored groups: each holds what lies within `reach` of its first; pairwise ties would
    not be transitive.
    """
    first = 0
    for place in range(1, len(ranked) + 1):
        if place == len(ranked) or heights[first] - heights[place] > reach:
            if place - first > 1:
                ranked[first:place] = sorted(ranked[first:place], key=by)
            first = place
