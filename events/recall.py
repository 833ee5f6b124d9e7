"""Retrieval, pure and exact: floor, top N, equation (5), near ties (reading 5).

A score is dot/2^48 x (1 + clip(alpha x adjusted, -beta, beta)); candidates are compared as integers over one common
denominator, so nothing depends on how floats round. Floats are computed once, for the reader.
"""

from collections.abc import Callable, Sequence
from math import lcm
from typing import NamedTuple

from events.bank import Banks, Item
from events.ids import Stage
from events.kinds import Candidate
from events.late import np, npt
from events.parameters import Parameters
from events.rows import Rows
from events.vectors import DOT_ONE, Vector


class _Ranked(NamedTuple):
    """One candidate with its exact figures, as integers over denominators common to all candidates."""

    item: Item
    dot: int
    adjusted: int
    score: int


class _Figures(NamedTuple):
    """v~ and the factor of equation (5) of one candidate, each as an integer over a unit of its own."""

    adjusted: int
    adjusted_unit: int
    boost: int
    boost_unit: int


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
    if above.size > parameters.top_n:
        values = dots[above]
        cut = np.partition(values, -parameters.top_n)[-parameters.top_n]
        above = above[values >= cut]
    pairs = [(banks.get(rows.owner(row)), int(dots[row])) for row in above.tolist()]
    return [(item, dot) for item, dot in pairs if item is not None]


def least_dot(parameters: Parameters) -> int:
    """The least integer dot with dot / 2^48 >= floor: what a candidate needs."""
    return -(-parameters.floor.numerator * DOT_ONE // parameters.floor.denominator)


def rank(found: Sequence[tuple[Item, int]], parameters: Parameters) -> list[Candidate]:
    """`found` (item, dot in units of 2^-48) scored by equation (5), in rank order after the near-tie step."""
    figure = _figures_under(parameters)
    figures = [figure(item.delta_sum, item.n) for item, _ in found]
    adjusted_unit = lcm(*[one.adjusted_unit for one in figures])
    score_unit = lcm(*[one.boost_unit for one in figures])
    ranked = [
        _Ranked(
            item,
            dot,
            one.adjusted * (adjusted_unit // one.adjusted_unit),
            dot * one.boost * (score_unit // one.boost_unit),
        )
        for (item, dot), one in zip(found, figures, strict=True)
    ]
    return [
        Candidate(
            id=one.item.id,
            dot=one.dot,
            similarity=one.dot / DOT_ONE,
            delta_sum=one.item.delta_sum,
            n=one.item.n,
            adjusted=one.adjusted / adjusted_unit,
            score=one.score / (score_unit * DOT_ONE),
            rank=place,
            chosen=place <= parameters.top_k,
        )
        for place, one in enumerate(_ordered(ranked, score_unit, parameters), 1)
    ]


def _figures_under(parameters: Parameters) -> Callable[[int, int], _Figures]:
    """(delta_sum, n) -> v~ = v n / (n + lambda) = delta_sum / (10000 (n + lambda)), 1 + clip(alpha v~, -beta, beta)."""
    known: dict[tuple[int, int], _Figures] = {}
    # Once, not for each candidate: a fraction gives its parts through properties.
    smoothing, smoothing_unit = parameters.lambda_.numerator, parameters.lambda_.denominator
    alpha, alpha_unit = parameters.alpha.numerator, parameters.alpha.denominator
    beta, beta_unit = parameters.beta.numerator, parameters.beta.denominator

    def figures(delta_sum: int, n: int) -> _Figures:
        if (found := known.get((delta_sum, n))) is not None:
            return found
        if (weight := n * smoothing_unit + smoothing) == 0:  # an unused item without smoothing
            return _Figures(0, 1, 1, 1)
        adjusted, adjusted_unit = delta_sum * smoothing_unit, 10_000 * weight
        effect, unit = alpha * adjusted, alpha_unit * adjusted_unit
        if abs(effect) * beta_unit > beta * unit:
            effect, unit = (beta if effect > 0 else -beta), beta_unit
        found = known[delta_sum, n] = _Figures(adjusted, adjusted_unit, unit + effect, unit)
        return found

    return figures


def _ordered(ranked: list[_Ranked], score_unit: int, parameters: Parameters) -> list[_Ranked]:
    margin = parameters.margin
    groups: list[list[_Ranked]]
    match parameters.near_tie:
        case "off":
            groups = [sorted(ranked, key=lambda one: (-one.score, one.item.order))]
        case "score":
            # score gap <= margin x 2^48 x unit, both sides times the margin's denominator
            reach = margin.numerator * DOT_ONE * score_unit
            ranked = sorted(ranked, key=lambda one: (-one.score, one.item.order))
            groups = _groups(ranked, [one.score * margin.denominator for one in ranked], reach)
            for group in groups:
                group.sort(key=lambda one: (-one.adjusted, -one.dot, one.item.order))
        case "similarity":
            reach = margin.numerator * DOT_ONE
            ranked = sorted(ranked, key=lambda one: (-one.dot, one.item.order))
            groups = _groups(ranked, [one.dot * margin.denominator for one in ranked], reach)
            for group in groups:
                group.sort(key=lambda one: (-one.score, -one.dot, one.item.order))
    return [one for group in groups for one in group]


def _groups(ranked: Sequence[_Ranked], heights: Sequence[int], reach: int) -> list[list[_Ranked]]:
    """Anchored groups: each holds what lies within `reach` of its first; ties would not be transitive pairwise."""
    groups: list[list[_Ranked]] = []
    anchor = 0
    for one, height in zip(ranked, heights, strict=True):
        if groups and anchor - height <= reach:
            groups[-1].append(one)
        else:
            groups.append([one])
            anchor = height
    return groups
