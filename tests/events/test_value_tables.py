"""Equations (7), (8), (9) and pruning, by hand: every expected number is worked out in a comment, not computed."""

from collections.abc import Callable

import plain_logs
import pytest
from plain_fold import Data
from plain_logs import Scribe, anchor, seed_item
from two_folds import Outcome

Fold = Callable[[Scribe], Outcome]

P, E = "old.planning-1", "old.execution-1"


def used(memory: str, delta_sum: int, n: int) -> Data:
    """A seeded item that has been used."""
    return seed_item(memory, anchor(), delta_sum=delta_sum, n=n)


def both_retrieved() -> Data:
    return {"planning": [P], "execution": [E]}


# (label, success, misleading ids) -> feedback of the planning and of the execution item at gamma = 0.7
EQUATION_8 = [
    # s = 1 and l(i) in L(a): +gamma; L(planning) = {plan}
    ("planning", True, [], 7000, 0),
    ("execution", True, [], 0, 7000),
    ("both", True, [], 7000, 7000),
    # L(none) is empty
    ("none", True, [], 0, 0),
    # s = 0: nothing is rewarded
    ("planning", False, [], 0, 0),
    ("execution", False, [], 0, 0),
    ("both", False, [], 0, 0),
    ("none", False, [], 0, 0),
    # misleading: -gamma, the first case, whatever label and outcome
    ("both", True, [P], -7000, 7000),
    ("execution", True, [P], -7000, 7000),
    ("planning", True, [E, P], -7000, -7000),
    ("none", True, [P], -7000, 0),
    ("none", False, [E], 0, -7000),
    ("both", False, [P, E], -7000, -7000),
]


@pytest.mark.parametrize(("label", "success", "misleading", "planning", "execution"), EQUATION_8)
def test_feedback_of_equation_8(
    fold: Fold, label: str, success: bool, misleading: list[str], planning: int, execution: int
) -> None:
    """-gamma if misleading, else +gamma if credited for a success, else 0; and n grows in every case."""
    scribe = Scribe(seeds=[used(P, 1000, 1), used(E, -500, 1)])
    scribe.episode(label=label, success=success, misleading=misleading, confidence_e4=7000, retrieved=both_retrieved())
    (operations,) = fold(scribe).operations
    assert operations[:2] == [
        # 1000 + delta; -500 + delta; n = 1 + 1
        {"op": "value", "bank": "planning", "id": P, "delta_e4": planning, "delta_sum": 1000 + planning, "n": 2},
        {"op": "value", "bank": "execution", "id": E, "delta_e4": execution, "delta_sum": -500 + execution, "n": 2},
    ]


STRICT = [
    # the mode `attributed`: a misleading item outside L(a) gets 0 ...
    ({"misleading": "attributed"}, "execution", 7000, 0, 7000),
    # ... inside it gets -gamma
    ({"misleading": "attributed"}, "planning", 7000, -7000, 0),
    # the mode `conf_values`: 0.4999 < 0.5, so that every feedback is 0; 0.5 is not below
    ({"conf_values": "on"}, "both", 4999, 0, 0),
    ({"conf_values": "on"}, "both", 5000, -5000, 5000),
]


@pytest.mark.parametrize(("parameters", "label", "gamma", "planning", "execution"), STRICT)
def test_feedback_in_the_other_modes(
    fold: Fold, parameters: Data, label: str, gamma: int, planning: int, execution: int
) -> None:
    """Readings 10 and 12 as modes; P is misleading, the episode a success."""
    scribe = Scribe(parameters=parameters, seeds=[used(P, 0, 0), used(E, 0, 0)])
    scribe.episode(label=label, misleading=[P], confidence_e4=gamma, retrieved=both_retrieved())
    (operations,) = fold(scribe).operations
    assert [one["delta_e4"] for one in operations[:2]] == [planning, execution]


def test_a_skipped_neutral_feedback_is_no_use(fold: Fold) -> None:
    """Reading 11's mode: under label none, feedback 0 writes nothing; -gamma still counts."""
    scribe = Scribe(parameters={"neutral": "skip_none"}, seeds=[used(P, 0, 1), used(E, 0, 1)])
    scribe.episode(misleading=[E], confidence_e4=2000, retrieved=both_retrieved())
    outcome = fold(scribe)
    # E: 0 - 2000 at n = 1 + 1; P is untouched
    assert outcome.operations == [
        [{"op": "value", "bank": "execution", "id": E, "delta_e4": -2000, "delta_sum": -2000, "n": 2}]
    ]
    assert (outcome.item(P)["n"], outcome.item(P)["changed_at"]) == (1, 0)


def test_equation_9_is_the_running_mean(fold: Fold) -> None:
    """+0.7, 0, -0.9, +0.25 and +1 from (0, 0): sums and counts at each step."""
    scribe = Scribe(seeds=[used(P, 0, 0)])
    retrieved = {"planning": [P], "execution": []}
    for gamma, success, misleading in (
        (7000, True, []),
        (5000, False, []),
        (9000, True, [P]),
        (2500, True, []),
        (10000, True, []),
    ):
        scribe.episode(
            label="planning", success=success, misleading=misleading, confidence_e4=gamma, retrieved=retrieved
        )
    outcome = fold(scribe)
    values = [(item["delta_sum"], item["n"]) for bank in outcome.banks for item in bank]
    # v: 0; 0.7/1; (0.7 + 0)/2 = 0.35; (0.7 - 0.9)/3 = -0.0667 (not below -0.1); 0.05/4 = 0.0125; 1.05/5 = 0.21
    assert values == [(0, 0), (7000, 1), (7000, 2), (-2000, 3), (500, 4), (10500, 5)]


PRUNE = [
    # (sum, n) before, gamma of a misleading verdict, whether it is pruned (n_min = 3, theta_prune = -0.1)
    ((-2000, 2), 1000, False),  # -3000 / 30000 = -0.1 exactly, not below
    ((-2000, 2), 1001, True),  # -3001 / 30000 = -0.10003
    ((0, 2), 3000, False),  # one verdict of 0.3 in three uses: -3000 / 30000 = -0.1
    ((0, 2), 3001, True),  # just above 0.3: -0.10003
    ((0, 1), 10000, False),  # -10000 / 20000 = -0.5, but n = 2 < 3
    ((-10000, 1), 10000, False),  # v = -1, but n = 2 < 3
    ((-1000, 0 + 1), 1000, False),  # -2000 / 20000 = -0.1 exactly and n = 2 < 3
    ((0, 9), 10000, False),  # -10000 / 100000 = -0.1 at n = 10
    ((-1, 9), 10000, True),  # -10001 / 100000
    ((-30000, 3), 0, True),  # feedback -0 is a use too: -30000 / 40000 = -0.75
    ((-12000, 3), 0, True),  # -12000 / 40000 = -0.3
    ((-4000, 3), 0, False),  # -4000 / 40000 = -0.1 exactly at n = 4
    ((-4001, 3), 0, True),  # -4001 / 40000
]


@pytest.mark.parametrize(("before", "gamma", "pruned"), PRUNE)
def test_prune_boundaries(fold: Fold, before: tuple[int, int], gamma: int, pruned: bool) -> None:
    """N >= n_min and v < theta_prune, both after the feedback; -0.1 exactly stays and n = 2 stays."""
    scribe = Scribe(seeds=[used(P, *before)])
    scribe.episode(misleading=[P], confidence_e4=gamma, retrieved={"planning": [P], "execution": []})
    outcome = fold(scribe)
    assert outcome.operations[0][1:] == ([{"op": "prune", "bank": "planning", "id": P}] if pruned else [])
    assert outcome.ids() == ([] if pruned else [P])


def test_only_items_with_feedback_in_this_episode_are_pruned(fold: Fold) -> None:
    """An item of v = -1 that nobody retrieves stays: there is no sweep."""
    scribe = Scribe(seeds=[used(P, -50000, 5), used(E, 0, 0)])
    scribe.episode(label="both", retrieved={"planning": [], "execution": [E]})
    outcome = fold(scribe)
    assert [one["op"] for one in outcome.operations[0]] == ["value", "discard", "discard"]
    assert outcome.ids() == [P, E]


def test_prunes_come_in_id_order_over_both_banks(fold: Fold) -> None:
    """Values by rank, then prunes by id: origins by code points, planning before execution, t numerically."""
    ids = ["beta.planning-9", "alpha-1.planning-2", "alpha.planning-10", "alpha.planning-9", "alpha.execution-1"]
    scribe = Scribe(seeds=[used(memory, -30000, 3) for memory in ids])
    scribe.episode(retrieved={"planning": ids[:4], "execution": ids[4:]})
    (operations,) = fold(scribe).operations
    assert [one["id"] for one in operations if one["op"] == "value"] == ids
    assert [one["id"] for one in operations if one["op"] == "prune"] == [
        "alpha.planning-9",
        "alpha.planning-10",
        "alpha.execution-1",
        "alpha-1.planning-2",
        "beta.planning-9",
    ]


def test_feedback_for_an_item_pruned_meanwhile_is_a_noop_at_its_place(fold: Fold) -> None:
    """Episode 1 read an older version: its three ids give value, noop, value, in rank order."""
    ids = ["old.planning-1", "old.planning-2", "old.planning-3"]
    scribe = Scribe(seeds=[used(ids[0], 0, 0), used(ids[1], -30000, 3), used(ids[2], 0, 0)])
    scribe.episode(retrieved={"planning": [ids[1]], "execution": []})
    scribe.episode(label="planning", confidence_e4=5000, retrieved={"planning": ids, "execution": []})
    # episode 0 prunes the second: -30000 / 40000 < -0.1; episode 1 credits the others with 0.5
    assert fold(scribe).operations[1] == [
        {"op": "value", "bank": "planning", "id": ids[0], "delta_e4": 5000, "delta_sum": 5000, "n": 1},
        {"op": "noop", "bank": "planning", "id": ids[1], "reason": "absent"},
        {"op": "value", "bank": "planning", "id": ids[2], "delta_e4": 5000, "delta_sum": 5000, "n": 1},
        {"op": "discard", "bank": "planning", "reason": "missing"},
    ]


def test_a_degraded_or_abandoned_episode_changes_nothing(fold: Fold) -> None:
    """Not even n: the items, their `changed_at` and the digest stay."""
    scribe = Scribe(seeds=[used(P, -30000, 3)])
    scribe.episode(label="none", confidence_e4=0, degraded="unreadable", retrieved={"planning": [P], "execution": []})
    scribe.abandoned("execution")
    scribe.fold()
    outcome = fold(scribe)
    assert outcome.operations == [[], []]
    assert outcome.banks[0] == outcome.banks[1] == outcome.banks[2]
    assert len(set(outcome.digests)) == 1


def test_changed_at_counts_every_operation_that_names_the_item(fold: Fold) -> None:
    """A value with feedback 0 changes the item (version t + 1 = 2); an episode that does not name it does not."""
    scribe = Scribe(seeds=[used(P, 0, 0), used(E, 0, 0)])
    scribe.episode()
    scribe.episode(retrieved={"planning": [P], "execution": []})
    scribe.episode()
    outcome = fold(scribe)
    assert [outcome.item(P, version)["changed_at"] for version in range(4)] == [0, 0, 2, 2]
    assert [outcome.item(E, version)["changed_at"] for version in range(4)] == [0, 0, 0, 0]
    assert outcome.item(P)["inserted_at"] == 0
    assert plain_logs.seed_item(P, anchor())["seeded_sources"] == outcome.item(P)["seeded_sources"] == 1


OUTCOME = [
    # success credits everything in full, whatever gate, label and misleading say: 0 + 10000, -500 + 10000
    (True, 10000, 9500),
    # failure: 0
    (False, 0, -500),
]


@pytest.mark.parametrize(("success", "planning", "execution"), OUTCOME)
def test_without_a_gate_the_outcome_credits_everything(
    fold: Fold, success: bool, planning: int, execution: int
) -> None:
    """`outcome` sets label both, gamma 1 and no misleading again, over a log of `credit`."""
    scribe = Scribe(policy="outcome", seeds=[used(P, 0, 0), used(E, -500, 1)])
    scribe.episode(label="none", success=success, misleading=[P, E], confidence_e4=3, retrieved=both_retrieved())
    outcome = fold(scribe)
    assert (outcome.item(P)["delta_sum"], outcome.item(P)["n"]) == (planning, 1)
    assert (outcome.item(E)["delta_sum"], outcome.item(E)["n"]) == (execution, 2)
    assert [one["reason"] for one in outcome.operations[0][2:]] == ["missing", "missing"]
