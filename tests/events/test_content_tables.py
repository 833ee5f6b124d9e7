"""Equation (10), by hand: accept, merge, insert or discard, on both sides of every boundary."""

from collections.abc import Callable
from hashlib import sha256

import pytest
from plain_fold import STAGES, Data, integers
from plain_logs import (
    MERGE,
    MERGE_NOT,
    NOVEL,
    NOVEL_NOT,
    Scribe,
    anchor,
    at_dot,
    experience,
    seed_item,
    vector,
)
from two_folds import Outcome

Fold = Callable[[Scribe], Outcome]

#: along the anchor, and at right angles to it (turned by two axes: 2^24 x 0 + 2^12 x 0 + 1 x 2^24 = 2^24, about 6e-8)
HERE, AWAY = anchor(), anchor(turn=2)
OLD = "old.planning-4"


def news(planning: Data | None = None, execution: Data | None = None) -> Data:
    return {"planning": planning, "execution": execution}


def proposed(target: str, text: str, of: str) -> Data:
    """A rewrite for the planning bank, made while the target's text was `of`."""
    return {
        "planning": {"target": target, "target_sha256": sha256(of.encode()).hexdigest(), "text": text},
        "execution": None,
    }


MERGE_EDGE = [
    # 0.88 x 2^48 = 247697979505377.28: the integer below is not above it, the next one is
    (MERGE_NOT, {"op": "insert", "bank": "planning", "id": "planning-0", "source": 0}),
    (
        MERGE,
        {"op": "merge", "bank": "planning", "id": OLD, "dot": 247697979505378, "how": "appended", "source": 0},
    ),
]


@pytest.mark.parametrize(("dot", "operation"), MERGE_EDGE)
def test_the_neighbours_of_theta_merge(fold: Fold, dot: int, operation: Data) -> None:
    """A dot of ...377 inserts, ...378 merges."""
    scribe = Scribe(seeds=[seed_item(OLD, at_dot(dot))])
    scribe.episode(label="planning", experiences=news(experience(HERE, AWAY)))
    assert fold(scribe).operations == [[operation]]


def test_a_dot_at_an_exact_threshold_does_not_merge(fold: Fold) -> None:
    """0.75 x 2^48 = 211106232532992 is an integer: at it there is no merge, one above there is."""
    for dot, op in ((211106232532992, "insert"), (211106232532993, "merge")):
        scribe = Scribe(parameters={"theta_merge": "0.75"}, seeds=[seed_item(OLD, at_dot(dot))])
        scribe.episode(label="planning", experiences=news(experience(HERE, AWAY)))
        assert fold(scribe).operations[0][0]["op"] == op


NOVELTY_EDGE = [
    # 10 x 253327479039590 = 2533274790395900 <= 9 x 2^48 = 2533274790395904 < 10 x 253327479039591
    # scenario at 0: nothing to merge with; novel -> insert, else discard
    (0, NOVEL, {"op": "insert", "bank": "planning", "id": "planning-0", "source": 0}),
    (0, NOVEL_NOT, {"op": "discard", "bank": "planning", "reason": "not_novel"}),
    # scenario at MERGE: novel -> its text is appended, else the source alone is recorded
    (MERGE, NOVEL, {"op": "merge", "bank": "planning", "id": OLD, "dot": MERGE, "how": "appended", "source": 0}),
    (MERGE, NOVEL_NOT, {"op": "merge", "bank": "planning", "id": OLD, "dot": MERGE, "how": "recorded", "source": 0}),
]


@pytest.mark.parametrize(("scenario", "text", "operation"), NOVELTY_EDGE)
def test_the_neighbours_of_the_novelty_threshold(fold: Fold, scenario: int, text: int, operation: Data) -> None:
    """A dot of ...590 with the nearest experience is novel, ...591 is not."""
    old = seed_item(OLD, at_dot(scenario), experience_vectors=[vector(AWAY), vector(at_dot(text)), vector(AWAY)])
    scribe = Scribe(seeds=[old])
    scribe.episode(label="planning", experiences=news(experience(HERE, HERE)))
    assert fold(scribe).operations == [[operation]]


def test_usefulness_as_the_measure_of_novelty(fold: Fold) -> None:
    """Reading 6's other mode: 0.1 is useful, 0.0999 and no word at all are not, however near the text."""
    for usefulness, op in ((1000, "insert"), (999, "discard"), (None, "discard")):
        scribe = Scribe(parameters={"addition": "usefulness"})
        scribe.episode(label="planning", experiences=news(experience(HERE, usefulness_e4=usefulness)))
        assert fold(scribe).operations[0][0]["op"] == op


def test_novelty_asks_every_vector_of_the_stage_bank_only(fold: Fold) -> None:
    """The same experience is old in the execution bank and new in the planning bank, which is empty."""
    scribe = Scribe(seeds=[seed_item("old.execution-4", AWAY, experience_vectors=[vector(HERE)])])
    scribe.episode(label="both", experiences=news(experience(HERE), experience(HERE)))
    assert fold(scribe).operations == [
        [
            {"op": "insert", "bank": "planning", "id": "planning-0", "source": 0},
            {"op": "discard", "bank": "execution", "reason": "not_novel"},
        ]
    ]


def refused(*why: str) -> Data | None:
    """An experience that fails the named tests."""
    if "missing" in why:
        return None
    return experience(HERE, acceptable="unacceptable" not in why, concrete="unacceptable" not in why)


REASONS = [
    # (gamma, what else is wrong) -> the first that applies of missing, confidence, unacceptable, not_novel
    (0, ["missing", "unacceptable", "not_novel"], "missing"),
    (10000, ["missing"], "missing"),
    (4999, ["unacceptable", "not_novel"], "confidence"),
    (4999, [], "confidence"),
    (5000, ["unacceptable", "not_novel"], "unacceptable"),
    (5000, ["not_novel"], "not_novel"),
    (5000, [], None),  # gamma = 0.5 exactly is enough
]


@pytest.mark.parametrize(("gamma", "wrong", "reason"), REASONS)
def test_discard_reasons_in_order(fold: Fold, gamma: int, wrong: list[str], reason: str | None) -> None:
    """Of everything that is wrong with an experience, the first reason is recorded."""
    seeds = [seed_item(OLD, AWAY, experience_vectors=[vector(HERE)])] if "not_novel" in wrong else []
    scribe = Scribe(seeds=seeds)
    scribe.episode(label="planning", confidence_e4=gamma, experiences=news(refused(*wrong)))
    (operation,) = fold(scribe).operations[0]
    assert operation.get("reason") == reason
    assert operation["op"] == ("insert" if reason is None else "discard")


def test_the_recorded_verdict_decides_acceptance(fold: Fold) -> None:
    """An experience with a lint reason is discarded, its like without one is inserted."""
    scribe = Scribe()
    new = experience(HERE, acceptable=False, lint=["shorter than 20"])
    scribe.episode(label="both", experiences=news(new, new | {"acceptable": True, "lint": []}))
    assert [one["op"] for one in fold(scribe).operations[0]] == ["discard", "insert"]


def test_without_a_gate_any_experience_is_accepted(fold: Fold) -> None:
    """`outcome`: label none, gamma 0 and an unacceptable text do not matter; novelty and merge do."""
    scribe = Scribe(policy="outcome")
    new = experience(HERE, acceptable=False, concrete=False)
    gone = {"label": "none", "confidence_e4": 0, "success": False}
    scribe.episode(**gone, experiences=news(new, new))
    scribe.episode(**gone, experiences=news(new, experience(HERE, AWAY)))
    # anchor . anchor = 2^48 + 2^24 + 1
    dot = 281474993487873
    assert fold(scribe).operations == [
        [
            {"op": "insert", "bank": "planning", "id": "planning-0", "source": 0},
            {"op": "insert", "bank": "execution", "id": "execution-0", "source": 0},
        ],
        [
            {"op": "merge", "bank": "planning", "id": "planning-0", "dot": dot, "how": "recorded", "source": 1},
            {"op": "merge", "bank": "execution", "id": "execution-0", "dot": dot, "how": "appended", "source": 1},
        ],
    ]


def test_only_the_attributed_stage_is_written(fold: Fold) -> None:
    """Equation (7): both experiences are there, the label takes one, or none."""
    scribe = Scribe()
    both = news(experience(HERE), experience(HERE))
    for label in ("planning", "execution", "none"):
        scribe.episode(label=label, experiences=both)
    outcome = fold(scribe)
    assert outcome.ids() == ["planning-0", "execution-1"]
    assert outcome.operations[2] == []


def test_an_inserted_item_is_neutral(fold: Fold) -> None:
    """The second case of equation (10): v = 0, n = 0, born at t + 1 = 2."""
    scribe = Scribe()
    scribe.episode()
    scribe.episode(label="execution", experiences=news(None, experience(HERE, AWAY, "Ask for the total first.")))
    assert fold(scribe).banks[2] == [
        {
            "bank": "execution",
            "id": "execution-1",
            "scenario": "Bookings with a deadline",
            "experience": "Ask for the total first.",
            "bullets": 0,
            "scenario_vector": tuple(HERE),
            "experience_vectors": [tuple(AWAY)],
            "delta_sum": 0,
            "n": 0,
            "sources": [1],
            "seeded_sources": 0,
            "inserted_at": 2,
            "changed_at": 2,
        }
    ]


@pytest.mark.parametrize(("bullets", "how"), [(0, "appended"), (4, "appended"), (5, "recorded")])
def test_the_bullet_cap(fold: Fold, bullets: int, how: str) -> None:
    """A fifth bullet is appended, a sixth is not: then the source alone is recorded."""
    text = "Base." + "\n- Bullet." * bullets
    kept = [vector(AWAY)] * (bullets + 1)
    scribe = Scribe(seeds=[seed_item(OLD, HERE, experience=text, bullets=bullets, experience_vectors=kept, n=2)])
    new = experience(HERE, anchor(turn=1), "Another bullet, a longer one.")
    scribe.episode(label="planning", experiences=news(new))
    outcome = fold(scribe)
    assert outcome.operations[0][0]["how"] == how
    item = outcome.item(OLD)
    added = how == "appended"
    assert item["experience"] == (text + "\n- Another bullet, a longer one." if added else text)
    assert item["bullets"] == (bullets + 1 if added else bullets)
    assert len(item["experience_vectors"]) == (bullets + 2 if added else bullets + 1)
    assert (item["sources"], item["seeded_sources"]) == ([3, 0], 1)
    # scenario, vector, id, sum and n of the target stay; a merge of any kind is a change
    assert (item["scenario_vector"], item["delta_sum"], item["n"]) == (tuple(HERE), 0, 2)
    assert (item["inserted_at"], item["changed_at"]) == (0, 1)


REWRITE = [
    # (target named, text the hash was made of, bullets, nearest experience) -> how
    (OLD, "Base.\n- Bullet.", 1, AWAY, "rewritten"),
    (OLD, "Base.", 1, AWAY, "appended"),  # stale: the target has gained a bullet since
    ("old.planning-5", "Base.\n- Bullet.", 1, AWAY, "appended"),  # another item was nearest then
    (OLD, "Base.\n- Bullet.", 1, HERE, "recorded"),  # not novel wins over any proposal
    (OLD, "Base." + 5 * "\n- Bullet.", 5, AWAY, "rewritten"),  # a full item can be rewritten
    (OLD, "Base.", 5, AWAY, "recorded"),  # stale, and the item is full
]


@pytest.mark.parametrize(("target", "of", "bullets", "known", "how"), REWRITE)
def test_merge_proposals(fold: Fold, target: str, of: str, bullets: int, known: list[int], how: str) -> None:
    """A proposal is used only for the nearest item with the text it was made for; else the text is appended."""
    old = "Base." + bullets * "\n- Bullet."
    seed = seed_item(OLD, HERE, experience=old, bullets=bullets, experience_vectors=[vector(known), vector(AWAY)])
    scribe = Scribe(parameters={"merge_text": "rewrite"}, seeds=[seed])
    new = experience(HERE, HERE, "A new experience of its own.")
    scribe.episode(
        label="planning", experiences=news(new), merge_proposals=proposed(target, "Both in one text: \u2028 fine.", of)
    )
    outcome = fold(scribe)
    item = outcome.item(OLD)
    assert outcome.operations[0][0]["how"] == how
    expected = {
        "rewritten": ("Both in one text: \u2028 fine.", 0, [known, AWAY, HERE]),
        "appended": (old + "\n- A new experience of its own.", bullets + 1, [known, AWAY, HERE]),
        "recorded": (old, bullets, [known, AWAY]),
    }[how]
    assert (item["experience"], item["bullets"], [list(one) for one in item["experience_vectors"]]) == expected
    assert item["sources"] == [3, 0]


def test_under_append_a_proposal_is_not_used(fold: Fold) -> None:
    """A log made under `rewrite`, folded under `append`: the fitting proposal is passed over."""
    scribe = Scribe(seeds=[seed_item(OLD, HERE, experience="Base.", experience_vectors=[vector(AWAY)])])
    scribe.episode(
        label="planning", experiences=news(experience(HERE)), merge_proposals=proposed(OLD, "Other.", "Base.")
    )
    assert fold(scribe).operations[0][0]["how"] == "appended"


@pytest.mark.parametrize("second", [True, False])
def test_a_target_pruned_in_the_same_episode_is_no_target(fold: Fold, second: bool) -> None:
    """The nearest item is pruned first: the experience goes to the next one that is near enough, or is inserted."""
    near, next_near = 270000000000000, 250000000000000  # both above 0.88 x 2^48
    seeds = [seed_item(OLD, at_dot(near), delta_sum=-30000, n=3, experience_vectors=[vector(HERE)])]
    if second:
        seeds.append(seed_item("old.planning-5", at_dot(next_near, side=1), experience_vectors=[vector(AWAY)]))
    scribe = Scribe(seeds=seeds)
    retrieved = {"planning": [OLD], "execution": []}
    scribe.episode(label="planning", success=False, retrieved=retrieved, experiences=news(experience(HERE)))
    content: Data = {"op": "insert", "bank": "planning", "id": "planning-0", "source": 0}
    if second:
        where: Data = {"id": "old.planning-5", "dot": next_near}
        content = {"op": "merge", "bank": "planning", "how": "appended", "source": 0} | where
    # its experience vectors are gone too: the same experience is novel
    assert fold(scribe).operations == [
        [
            {"op": "value", "bank": "planning", "id": OLD, "delta_e4": 0, "delta_sum": -30000, "n": 4},
            {"op": "prune", "bank": "planning", "id": OLD},
            content,
        ]
    ]


def test_an_item_pruned_in_its_own_stage_and_again_missed_later(fold: Fold) -> None:
    """A merge target that another episode pruned: the next merge finds nothing and inserts under its own id."""
    scribe = Scribe()
    scribe.episode(label="planning", experiences=news(experience(HERE)))
    for _ in range(3):
        scribe.episode(misleading=["planning-0"], retrieved={"planning": ["planning-0"], "execution": []})
    scribe.episode(label="planning", experiences=news(experience(HERE)))
    outcome = fold(scribe)
    # -1, -1, -1: n = 3 and v = -1 after the third
    assert outcome.operations[3][-1] == {"op": "prune", "bank": "planning", "id": "planning-0"}
    assert outcome.operations[4] == [{"op": "insert", "bank": "planning", "id": "planning-4", "source": 4}]
    assert outcome.ids() == ["planning-4"]


def test_ties_go_to_planning_9_before_planning_10(fold: Fold) -> None:
    """Two items of one dot: the lower id is numerical, not alphabetical."""
    scribe = Scribe()
    for t in range(11):
        if t < 9:
            scribe.episode()
            continue
        # both at dot 253000000000000 (0.8988) from the anchor, 0.8079 from each other: too far to merge
        side = at_dot(253000000000000, side=t - 9)
        scribe.episode(label="planning", experiences=news(experience(side, anchor(turn=t - 8))))
    scribe.episode(label="planning", experiences=news(experience(HERE, HERE)))
    outcome = fold(scribe)
    assert outcome.ids(-2) == ["planning-9", "planning-10"]
    assert outcome.operations[11] == [
        {"op": "merge", "bank": "planning", "id": "planning-9", "dot": 253000000000000, "how": "appended", "source": 11}
    ]


SEEDED_TIES = [
    # an id without origin comes first, whatever its number
    (["alpha.planning-1", "planning-0"], "planning-0"),
    # origins by code points: "alpha" < "alpha-1", though "alpha-1.p" < "alpha.p" as whole strings
    (["alpha-1.planning-1", "alpha.planning-7"], "alpha.planning-7"),
    (["b.planning-9", "b.planning-10"], "b.planning-9"),
    # k: none first, then numerically
    (["b.planning-9-0", "b.planning-9"], "b.planning-9"),
    (["b.planning-9-10", "b.planning-9-9"], "b.planning-9-9"),
]


@pytest.mark.parametrize(("ids", "first"), SEEDED_TIES)
def test_ties_between_seeded_ids(fold: Fold, ids: list[str], first: str) -> None:
    """The lowest id of those at one dot is merged into; seeded ids keep their origin."""
    dot = 253000000000000
    seeds = [
        seed_item(memory, at_dot(dot, side=side), experience_vectors=[vector(AWAY)])
        for side, memory in enumerate(ids)
        if "." in memory
    ]
    scribe = Scribe(seeds=seeds)
    if "planning-0" in ids:
        scribe.episode(label="planning", experiences=news(experience(at_dot(dot, side=1), anchor(turn=3))))
    scribe.episode(label="planning", experiences=news(experience(HERE)))
    outcome = fold(scribe)
    merged = outcome.operations[-1][0]
    assert (merged["op"], merged["id"], merged["dot"]) == ("merge", first, dot)
    assert outcome.ids()[0] == first


def test_the_digest_is_over_canonical_items_in_id_order(fold: Fold) -> None:
    """The bytes, spelled out once: keys sorted, no spaces, no escapes, vectors by hash; the digest of no item."""
    scribe = Scribe(dim=4)
    new = experience([2**24, 0, 0, 0], [0, 0, 0, 2**24], "Prüfe 🧠 \u2028 zuerst")
    scribe.episode(label="planning", experiences=news(new))
    along = sha256(b"\x00\x00\x00\x01" + b"\x00" * 12).hexdigest()  # 2^24, little-endian
    across = sha256(b"\x00" * 12 + b"\x00\x00\x00\x01").hexdigest()
    item = (
        '{"bank":"planning","bullets":0,"changed_at":1,"delta_sum":0,"experience":"Prüfe 🧠 \u2028 zuerst",'
        f'"experience_vectors":["{across}"],"id":"planning-0","inserted_at":1,"n":0,'
        f'"scenario":"Bookings with a deadline","scenario_vector":"{along}","seeded_sources":0,"sources":[0]}}'
    )
    outcome = fold(scribe)
    assert outcome.digests[1] == sha256(sha256(item.encode()).digest()).hexdigest()
    # SHA-256 of nothing
    assert outcome.digests[0] == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_equal_banks_have_equal_digests_whatever_the_way(fold: Fold) -> None:
    """No version number and no run id inside: empty again after a prune is the digest of the beginning."""
    scribe = Scribe(run="another")
    scribe.episode(label="execution", experiences=news(None, experience(HERE)))
    for _ in range(3):
        scribe.episode(misleading=["execution-0"], retrieved={"planning": [], "execution": ["execution-0"]})
    outcome = fold(scribe)
    assert outcome.banks[-1] == []
    assert outcome.digests[-1] == outcome.digests[0]
    assert len(set(outcome.digests)) == 4


def test_the_vectors_of_the_tables_are_what_they_say() -> None:
    """The anchor reaches each neighbouring integer exactly, and AWAY is at right angles to it."""
    for dot in (MERGE_NOT, MERGE, NOVEL, NOVEL_NOT, 253000000000000):
        for side in range(4):
            assert sum(a * b for a, b in zip(HERE, at_dot(dot, side=side), strict=True)) == dot
    assert sum(a * b for a, b in zip(HERE, AWAY, strict=True)) == 2**24
    assert integers(vector(HERE)) == tuple(HERE)
    assert STAGES == ("planning", "execution")
