"""Equation (5) and the near-tie step, by hand: dots and sums are chosen so that the figures are short decimals."""

from collections.abc import Callable, Sequence

import pytest
from plain_fold import Data
from plain_logs import FLOOR_BELOW, FLOOR_IN, GAP_NO_TIE, GAP_TIE, Scribe, anchor, at_dot, seed_item
from two_folds import Outcome

Fold = Callable[[Scribe], Outcome]

HERE = anchor()
HALF = 140737488355328  # 0.5 x 2^48
ITEM = "old.planning-{}"


def bank(rows: Sequence[tuple[int, int, int]], ids: Sequence[str] = ()) -> list[Data]:
    """One item a row (dot with the anchor, delta_sum, n), named old.planning-1, -2, ... or by `ids`."""
    names = ids or [ITEM.format(at) for at in range(1, len(rows) + 1)]
    return [
        seed_item(memory, at_dot(dot, side=at % 4), delta_sum=delta_sum, n=n)
        for at, (memory, (dot, delta_sum, n)) in enumerate(zip(names, rows, strict=True))
    ]


def order(candidates: Sequence[Data]) -> str:
    """The numbers of the ids, by rank."""
    assert [one["rank"] for one in candidates] == list(range(1, len(candidates) + 1))
    return " ".join(one["id"].removeprefix("old.planning-") for one in candidates)


EQUATION_5 = [
    # (sum, n) -> adjusted = sum / (10000 (n + 3)), score = 0.5 x (1 + clip(adjusted, -0.2, 0.2))
    ((0, 0), 0.0, 0.5),
    ((10000, 1), 0.25, 0.6),  # 10000 / 40000 = 0.25, clipped to 0.2
    ((8000, 1), 0.2, 0.6),  # one credit of 0.8 reaches the cap
    ((4000, 1), 0.1, 0.55),
    ((5000, 2), 0.1, 0.55),  # 5000 / 50000
    ((-5000, 2), -0.1, 0.45),
    ((-20000, 2), -0.4, 0.4),  # clipped to -0.2
    ((12000, 3), 0.2, 0.6),  # v = 0.4 at n = 3
    ((26000, 10), 0.2, 0.6),  # v = 0.26 at n = 10: 26000 / 130000
    ((0, 50), 0.0, 0.5),
]


@pytest.mark.parametrize(("used", "adjusted", "score"), EQUATION_5)
def test_equation_5(fold: Fold, used: tuple[int, int], adjusted: float, score: float) -> None:
    """Similarity 0.5, shrunk value and score, with the defaults of CHIME."""
    scribe = Scribe(seeds=bank([(HALF, *used)]))
    assert fold(scribe).recall("planning", HERE) == [
        {
            "id": "old.planning-1",
            "dot": HALF,
            "similarity": 0.5,
            "delta_sum": used[0],
            "n": used[1],
            "adjusted": adjusted,
            "score": score,
            "rank": 1,
            "chosen": True,
        }
    ]


OTHER_PARAMETERS = [
    # one credit: sum 10000, n 1, similarity 0.5
    ({"lambda": 0}, 1.0, 0.6),  # adjusted = 1 / 1
    ({"lambda": 1}, 0.5, 0.6),
    ({"lambda": "0.25"}, 0.8, 0.6),  # 1 / 1.25
    ({"lambda": 9}, 0.1, 0.55),
    ({"alpha": 0}, 0.25, 0.5),
    ({"alpha": "0.4"}, 0.25, 0.55),  # 0.4 x 0.25 = 0.1; `adjusted` is before alpha
    ({"alpha": 2, "beta": "0.5"}, 0.25, 0.75),  # 2 x 0.25 = 0.5
    ({"beta": 0}, 0.25, 0.5),
    ({"beta": "0.25"}, 0.25, 0.625),
]


@pytest.mark.parametrize(("parameters", "adjusted", "score"), OTHER_PARAMETERS)
def test_equation_5_with_other_parameters(fold: Fold, parameters: Data, adjusted: float, score: float) -> None:
    """Lambda smooths, alpha weighs, beta bounds."""
    (found,) = fold(Scribe(parameters=parameters, seeds=bank([(HALF, 10000, 1)]))).recall("planning", HERE)
    assert (found["adjusted"], found["score"]) == (adjusted, score)


def test_an_unused_item_without_smoothing_has_value_0(fold: Fold) -> None:
    """Lambda 0 and n 0: nothing to divide, v = 0."""
    (found,) = fold(Scribe(parameters={"lambda": 0}, seeds=bank([(HALF, 0, 0)]))).recall("planning", HERE)
    assert (found["adjusted"], found["score"]) == (0, 0.5)


def test_the_neighbours_of_the_floor(fold: Fold) -> None:
    """0.3 x 2^48 = 84442493013196.8: ...196 is below the floor, ...197 is in."""
    scribe = Scribe(seeds=bank([(FLOOR_BELOW, 10000, 1), (FLOOR_IN, 0, 0)]))
    (found,) = fold(scribe).recall("planning", HERE)
    assert (found["id"], found["dot"]) == ("old.planning-2", 84442493013197)


def test_the_floor_is_inclusive_and_asks_similarity_alone(fold: Fold) -> None:
    """Floor 0.5: a dot of exactly 0.5 is in, although its score is 0.4; one below is out, although its score is 0.6."""
    scribe = Scribe(parameters={"floor": "0.5"}, seeds=bank([(HALF, -20000, 2), (HALF - 1, 10000, 1)]))
    assert order(fold(scribe).recall("planning", HERE)) == "1"


TOP_N = [
    # ids at one dot; top_n 2 of them
    (["old.planning-10", "old.planning-9", "old.planning-100"], ["old.planning-9", "old.planning-10"]),
    (["b.planning-1", "a.planning-100", "a-1.planning-1"], ["a.planning-100", "a-1.planning-1"]),
    (["a.planning-3-2", "a.planning-3", "a.planning-3-11"], ["a.planning-3", "a.planning-3-2"]),
]


@pytest.mark.parametrize(("ids", "kept"), TOP_N)
def test_ties_at_the_cut_go_to_the_lowest_ids(fold: Fold, ids: list[str], kept: list[str]) -> None:
    """Three items of one dot for two places."""
    scribe = Scribe(parameters={"top_n": 2}, seeds=bank([(HALF, 0, 0)] * 3, ids))
    assert [one["id"] for one in fold(scribe).recall("planning", HERE)] == kept


def test_the_cut_is_by_dot_before_any_value(fold: Fold) -> None:
    """The third by dot would have the best score (0.4 x 1.2 = 0.48), but N = 2 cuts it."""
    rows = [(HALF, -20000, 2), (HALF - 10, -20000, 2), (112589990684262, 20000, 2)]
    scribe = Scribe(parameters={"top_n": 2}, seeds=bank(rows))
    assert order(fold(scribe).recall("planning", HERE)) == "1 2"


def test_the_first_k_are_chosen(fold: Fold) -> None:
    """K = 3 of five, and K larger than what was found."""
    rows = [(HALF - 20000000000000 * k, 0, 0) for k in range(3)]
    for top_k, chosen in ((2, [True, True, False]), (0, [False] * 3), (9, [True] * 3)):
        scribe = Scribe(parameters={"top_k": top_k}, seeds=bank(rows))
        assert [one["chosen"] for one in fold(scribe).recall("planning", HERE)] == chosen


NEAR_TIE = [
    # 0.03 x 2^48 = 8444249301319.68; alpha = 0, so that scores are dots; the lower one has the higher value
    (GAP_TIE, "2 1"),
    (GAP_NO_TIE, "1 2"),
]


@pytest.mark.parametrize(("gap", "ranks"), NEAR_TIE)
def test_the_neighbours_of_the_margin(fold: Fold, gap: int, ranks: str) -> None:
    """A gap of ...319 is a tie, which the value decides; ...320 is none."""
    scribe = Scribe(parameters={"alpha": 0}, seeds=bank([(HALF, 0, 0), (HALF - gap, 4000, 1)]))
    assert order(fold(scribe).recall("planning", HERE)) == ranks


@pytest.mark.parametrize(("gap", "ranks"), [(GAP_TIE, "2 1 3"), (GAP_NO_TIE, "1 3 2")])
def test_the_neighbours_of_the_margin_at_n_0(fold: Fold, gap: int, ranks: str) -> None:
    """With the defaults: 1 (n = 0) is first by score; 2 has v~ = 0.1 and score HALF - gap; 3 is used, at no value.

    2: dot x 1.1 = HALF - gap: for ...319 the dot 120266580958190 x 1.1 = 132293239054009 = HALF - 8444249301319;
    for ...320 the dot 120266580958180 x 1.1 = 132293239053998 = HALF - 8444249301330. Item 3 is 1000 below item 1.
    """
    dot = 120266580958190 if gap == GAP_TIE else 120266580958180
    scribe = Scribe(seeds=bank([(HALF, 0, 0), (dot, 4000, 1), (HALF - 1000, 0, 1)]))
    # in one group: v~ 0.1 first, then the larger dot; else 1 and 3 tie and 2 follows
    assert order(fold(scribe).recall("planning", HERE)) == ranks


def test_a_margin_at_an_exact_gap_is_a_tie(fold: Fold) -> None:
    """Margin 0.125 = 35184372088832 / 2^48: a gap of just that is a tie (<=), one more is none."""
    for gap, ranks in ((35184372088832, "2 1"), (35184372088833, "1 2")):
        rows = [(HALF, 0, 0), (HALF - gap, 4000, 1)]
        scribe = Scribe(parameters={"alpha": 0, "margin": "0.125"}, seeds=bank(rows))
        assert order(fold(scribe).recall("planning", HERE)) == ranks


#: 0.80, 0.78, 0.76, 0.74, 0.70 of 2^48, rounded
CHAIN = [225179981368525, 219550481834312, 213920982300098, 208291482765885, 197032483697459]


def test_near_ties_that_chain_are_anchored(fold: Fold) -> None:
    """0.80, 0.78, 0.76, 0.74, 0.70 at margin 0.03: {.80 .78} {.76 .74} {.70}, each neighbour a tie of the next.

    The values grow downwards, so that a chain would turn the whole list around; groups turn each pair around.
    """
    rows = [(dot, 2000 * at, 2) for at, dot in enumerate(CHAIN)]
    scribe = Scribe(parameters={"alpha": 0}, seeds=bank(rows))
    assert order(fold(scribe).recall("planning", HERE)) == "2 1 4 3 5"


def test_inside_a_group_by_adjusted_then_dot_then_id(fold: Fold) -> None:
    """All within the margin: v~ 0.1 (at n = 1 and at n = 2), 0, 0, 0 and -0.1; equal dots by id."""
    rows = [
        (HALF, -4000, 1),
        (HALF - 3, 0, 0),
        (HALF - 1, 0, 2),
        (HALF - 3, 0, 0),
        (HALF - 9, 4000, 1),
        (HALF - 8, 5000, 2),
    ]
    scribe = Scribe(parameters={"alpha": 0}, seeds=bank(rows))
    assert order(fold(scribe).recall("planning", HERE)) == "6 5 3 2 4 1"


MODES = [
    # similarities 0.80, 0.78, 0.76, 0.70, 0.64; v~ 0, 0.1, 0.1, 0.2, -0.2 -> scores 0.80, 0.858, 0.836, 0.84, 0.512
    ("off", "2 4 3 1 5"),  # 0.858 0.84 0.836 0.80 0.512
    # groups from 0.858: {0.858, 0.84, 0.836}, {0.80}, {0.512}; by v~: 0.2 first, then the larger dot
    ("score", "4 2 3 1 5"),
    # groups on similarity: {0.80, 0.78}, {0.76}, {0.70}, {0.64}; the first by score 0.858, 0.80
    ("similarity", "2 1 3 4 5"),
]


@pytest.mark.parametrize(("near_tie", "ranks"), MODES)
def test_the_modes_of_the_near_tie_step(fold: Fold, near_tie: str, ranks: str) -> None:
    """One bank, three orders."""
    dots = [225179981368525, 219550481834312, 213920982300098, 197032483697459, 180143985094820]
    sums = [(0, 0), (4000, 1), (4000, 1), (8000, 1), (-8000, 1)]
    rows = [(dot, *used) for dot, used in zip(dots, sums, strict=True)]
    scribe = Scribe(parameters={"near_tie": near_tie}, seeds=bank(rows))
    found = fold(scribe).recall("planning", HERE)
    assert order(found) == ranks
    scores = {one["id"]: round(one["score"], 9) for one in found}
    assert [scores[ITEM.format(at)] for at in range(1, 6)] == [0.8, 0.858, 0.836, 0.84, 0.512]


@pytest.mark.parametrize(
    # both have the score 0.75 exactly: 0.625 x 1.2 = 0.75 x 1; the id of the less similar one is lower
    ("near_tie", "ranks"),
    # off: by id. similarity: one group, equal scores, by similarity. score: one group, by v~
    [("off", "1 2"), ("similarity", "2 1"), ("score", "1 2")],
)
def test_equal_scores_at_different_similarities(fold: Fold, near_tie: str, ranks: str) -> None:
    """5 x 2^45 x 1.2 = 6 x 2^45: the mode says what decides next."""
    five, six = 175921860444160, 211106232532992  # 5 x 2^45 = 0.625, 6 x 2^45 = 0.75
    scribe = Scribe(parameters={"near_tie": near_tie, "margin": "0.2"}, seeds=bank([(five, 8000, 1), (six, 0, 0)]))
    found = fold(scribe).recall("planning", HERE)
    assert [one["score"] for one in found] == [0.75, 0.75]
    assert order(found) == ranks


def test_a_similarity_is_never_clipped(fold: Fold) -> None:
    """The anchor with itself: 2^48 + 2^24 + 1 units, 1.0000000596 and not 1."""
    scribe = Scribe(seeds=[seed_item("old.planning-1", HERE)])
    (found,) = fold(scribe).recall("planning", HERE)
    assert (found["dot"], found["similarity"]) == (281474993487873, 1.0000000596046483)


def test_recall_looks_into_its_own_bank(fold: Fold) -> None:
    """A planning recall never gives an execution item, an empty bank gives nothing."""
    scribe = Scribe(seeds=[seed_item("old.execution-1", HERE)])
    outcome = fold(scribe)
    assert outcome.recall("planning", HERE) == []
    assert [one["id"] for one in outcome.recall("execution", HERE)] == ["old.execution-1"]


def test_pruned_items_are_not_recalled(fold: Fold) -> None:
    """A recall after a prune gives what is left."""
    scribe = Scribe(seeds=bank([(HALF, -30000, 3), (HALF - 5, 0, 0)]))
    scribe.episode(retrieved={"planning": ["old.planning-1"], "execution": []})
    assert order(fold(scribe).recall("planning", HERE)) == "2"
