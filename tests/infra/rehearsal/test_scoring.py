"""Labels of a log against planted truths, by hand."""

from typing import Any

import pytest

from events.codec import draft, recorded
from events.errors import BadInput
from events.ids import PROJECTOR_STREAM, RunId, episode_stream
from events.kinds import (
    Diagnosed,
    MergeProposals,
    Operated,
    Planned,
    RetrievedIds,
    StageExperiences,
    TasksListed,
    Usage,
)
from infra.rehearsal.planting import Planted, StagePlanted
from infra.rehearsal.scoring import Judged, judged_episodes, plan_sha256, score_gate
from infra.rehearsal.truth import Told, Truth, TruthFile, read_truths

PLAN = plan_sha256("1. Go.")


def diagnosed(label: Any, confidence_e4: int = 9000, **given: Any) -> Diagnosed:
    return Diagnosed(
        **{
            "success": False, "label": label, "confidence_e4": confidence_e4,
            "retrieved": RetrievedIds(planning=[], execution=[]), "misleading": [], "misleading_dropped": 0,
            "experiences": StageExperiences(), "merge_proposals": MergeProposals(), "degraded": None,
            "usage": Usage(), "calls": [], **given,
        }
    )  # fmt: skip


def judged(episode: int, task: str, label: Any, confidence_e4: int = 9000, **given: Any) -> Judged:
    return Judged(episode=episode, task=task, plan=PLAN, diagnosed=diagnosed(label, confidence_e4, **given))


def truth(task: str, label: Any, told: Any = None, **given: Any) -> Truth:
    return Truth(
        **{
            "task": task, "success": False, "fault": "none", "label": label, "misleading": [], "planted": Planted(),
            "told": told and Told(label=told, confidence_e4=9000, misleading=[]), "plan": PLAN,
            "shown": {"planning": 0, "execution": 0}, **given,
        }
    )  # fmt: skip


def test_confusion_and_accuracy() -> None:
    """Three right of four: each episode stands in one cell, and confidences are told apart."""
    episodes = [
        judged(0, "a", "planning"), judged(1, "b", "execution", 8000), judged(2, "c", "none", 4000),
        judged(3, "d", "both"),
    ]  # fmt: skip
    truths = [truth("a", "planning"), truth("b", "execution"), truth("c", "both"), truth("d", "both")]
    score = score_gate(episodes, truths)
    assert (score.n, score.degraded, score.unmatched, score.ambiguous) == (4, 0, 0, 0)
    assert score.confusion["both"] == {"planning": 0, "execution": 0, "both": 1, "none": 1}
    assert sum(sum(row.values()) for row in score.confusion.values()) == 4
    assert score.accuracy.estimate == 0.75
    # Wilson for 3 of 4 by hand: (0.75 + z²/8 ± z sqrt(0.1875/4 + z²/64)) / (1 + z²/4) with z = 1.96
    assert (score.accuracy.low, score.accuracy.high) == pytest.approx((0.3006, 0.9544), abs=1e-4)
    assert score.confidence_right == pytest.approx((0.9 + 0.8 + 0.9) / 3)
    assert score.confidence_wrong == 0.4


def test_what_cannot_be_scored_is_counted() -> None:
    """Degraded diagnoses, and those with another outcome, plan, task or number of memories, are left out."""
    episodes = [
        judged(0, "a", "none", 0, degraded="unreadable"),
        judged(1, "a", "both", success=True),
        judged(2, "b", "both"),
        judged(3, "a", "both", retrieved=RetrievedIds(planning=["planning-0"], execution=[])),
        Judged(episode=4, task="a", plan=plan_sha256("2. Stay."), diagnosed=diagnosed("both")),
        judged(5, "a", "both"),
    ]
    score = score_gate(episodes, [truth("a", "both")])
    assert (score.n, score.degraded, score.unmatched) == (1, 1, 4)
    assert score.confidence_wrong is None


def test_misleading_items_by_place() -> None:
    """Named and guilty items meet by place in the prompt: one of two named is guilty, one of three guilty named."""
    retrieved = RetrievedIds(planning=["planning-7", "planning-3"], execution=["execution-1"])
    episodes = [
        judged(0, "a", "both", retrieved=retrieved, misleading=["planning-3", "execution-1"]),
        judged(1, "b", "both", retrieved=retrieved),
    ]
    places = {"planning": 2, "execution": 1}
    truths = [
        truth("a", "both", misleading=["P2"], shown=places),
        truth("b", "both", misleading=["P1", "E1"], shown=places),
    ]
    assert episodes[0].named() == ["P2", "E1"]
    score = score_gate(episodes, truths)
    assert score.misleading == {"named": 2, "guilty": 3, "both": 1}
    assert score.misleading_precision.estimate == 0.5
    assert score.misleading_recall.estimate == pytest.approx(1 / 3)


def test_several_truths_of_a_case() -> None:
    """Of truths that fit, the one told what the log says comes first, then the order; the last one serves on."""
    truths = [truth("a", "planning", "none"), truth("a", "both", "both")]
    score = score_gate([judged(0, "a", "both"), judged(1, "a", "none"), judged(2, "a", "none")], truths)
    assert score.confusion["both"]["both"] == 1
    assert score.confusion["planning"]["none"] == 2
    assert score.ambiguous == 1


def test_episodes_come_from_the_log() -> None:
    """Tasks by t mod their number, plans as a gate saw them (marks defused), whatever else the log holds."""
    run, events = RunId("r"), []

    def add(stream: str, version: int, event: Any) -> None:
        one = recorded(
            draft(event), run=run, stream=stream, version=version, position=len(events) + 1,
            at="2026-01-01T00:00:00.000000Z", cause=None, attempt=1,
        )  # fmt: skip
        events.append(one)

    add("run", 1, TasksListed(tasks=["a", "b"]))
    for t in (2, 0):
        add(episode_stream(t), 1, Planned(plan="</plan> 1. Go. ", usage=Usage(), calls=[]))
        add("run", 2 + t, Operated(action="pause", target="all", author="x", reason="y"))
        add(episode_stream(t), 2, diagnosed("both"))
    found = judged_episodes(events)
    assert [(one.episode, one.task) for one in found] == [(0, "a"), (2, "a")]
    assert {one.plan for one in found} == {plan_sha256("</plan> 1. Go.")}
    assert PROJECTOR_STREAM not in {one.stream for one in events}


def test_the_gate_sees_the_plan_that_the_log_has(stage: Any, flawless: Any) -> None:
    """The hash in the side file is the hash of the plan in the log."""
    episode = stage.play("shop-gift-0", flawless)
    assert episode.truth.plan == plan_sha256(episode.plan)


def test_the_side_file_reads_back(tmp_path: Any) -> None:
    """What is written is read; a line that is no truth is named."""
    path = tmp_path / "truth.jsonl"
    led = truth("a", "planning", "both", planted=Planted(planning=StagePlanted(wrong=True, astray_by="P1")))
    file = TruthFile(path)
    file.add(led)
    file.close()
    assert read_truths(path) == [led]
    path.write_bytes(path.read_bytes() + b'{"task": 1}\n')
    with pytest.raises(BadInput, match="line 2"):
        read_truths(path)
    with pytest.raises(BadInput, match="cannot read"):
        read_truths(tmp_path / "none")
