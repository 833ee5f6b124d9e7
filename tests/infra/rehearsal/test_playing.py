"""Whole toy episodes with the rehearsal model, judged by the toy itself: faults, memories, labels, lessons."""

import json
from typing import Any

import pytest

from events.errors import BadInput
from infra.rehearsal.planting import RehearsalSettings
from infra.rehearsal.playing import UnknownTask

PLANTED_WORDS = ("wrong_plan", "wrong_execution", "astray", "averted", "rescued", "planted", "external", "superstition")


def lesson(diagnosis: dict[str, Any], stage: str) -> tuple[str, str]:
    return diagnosis[stage]["scenario"], diagnosis[stage]["experience"]


def test_without_faults_every_task_is_solved(stage: Any, flawless: RehearsalSettings) -> None:
    """With all rates at zero the toy itself scores every task 1, and credit goes to both stages."""
    episodes = [stage.play(task, flawless) for task in stage.key.tasks]
    assert all(episode.success for episode in episodes)
    assert {episode.diagnosis["label"] for episode in episodes} == {"both"}
    assert {episode.truth.fault for episode in episodes} == {"none"}


def test_tools_in_words_are_called_in_words(stage: Any, stage_in_words: Any, flawless: RehearsalSettings) -> None:
    """For an endpoint that offers tools as text, every task is solved by the same calls."""

    def called(episode: Any) -> list[Any]:
        calls = [call["function"] for one in episode.history for call in one.get("tool_calls", ())]
        return [(one["name"], json.loads(one["arguments"])) for one in calls]

    for task in stage.key.tasks:
        episode = stage_in_words.play(task, flawless)
        assert episode.success
        assert called(episode) == called(stage.play(task, flawless))


@pytest.mark.parametrize(
    ("rates", "fault", "label"),
    [
        ({"wrong_plan": 1}, "wrong_plan", "planning"),
        ({"wrong_execution": 1}, "wrong_execution", "execution"),
        ({"both": 1}, "both", "both"),
        ({"external": 1}, "external", "none"),
        ({"external": 1, "wrong_plan": 1}, "external", "none"),
    ],
)
def test_a_planted_fault_fails_and_is_the_truth(
    stage: Any, spoiled: Any, rates: dict[str, float], fault: str, label: str
) -> None:
    """Each kind of fault fails every toy task, and a reliable gate gives the label it deserves."""
    for task in stage.key.tasks:
        episode = stage.play(task, spoiled(**rates))
        assert not episode.success
        assert (episode.truth.fault, episode.truth.label, episode.diagnosis["label"]) == (fault, label, label)
        assert all(episode.diagnosis[name]["scenario"] for name in ("planning", "execution"))


def test_a_wrong_plan_shows(stage: Any, spoiled: Any, flawless: RehearsalSettings) -> None:
    """The wrong approach stands in the plan, and in the first words of a wrong execution."""
    right, wrong = stage.play("shop-gift-0", flawless), stage.play("shop-gift-0", spoiled(wrong_plan=1))
    assert right.plan != wrong.plan
    assert "Best here:" in wrong.plan
    assert "Best here:" not in right.plan
    slip = stage.play("shop-gift-0", spoiled(wrong_execution=1))
    assert slip.plan == right.plan
    assert slip.history[1]["content"].startswith("Best here:")


def test_a_rescued_plan_succeeds_by_execution(stage: Any, spoiled: Any) -> None:
    """An execution that leaves a wrong plan succeeds; credit is the execution's, and the plan's lesson is a bad one."""
    episode = stage.play("shop-gift-0", spoiled(wrong_plan=1, rescued=1, superstition=1))
    assert episode.success
    assert episode.truth.planted.rescued
    assert episode.diagnosis["label"] == "execution"
    bad, good = lesson(episode.diagnosis, "planning"), lesson(episode.diagnosis, "execution")
    assert stage.play("shop-gift-1", spoiled(misled=1), planning=[bad]).truth.fault == "misleading_memory"
    assert stage.play("shop-gift-1", spoiled(wrong_execution=1, helped=0), execution=[good]).success


@pytest.mark.parametrize("name", ["planning", "execution"])
def test_a_lesson_keeps_its_stage_right(stage: Any, spoiled: Any, name: str) -> None:
    """A family's lesson averts the fault in later tasks of the family, which earns the stage the credit; no other's."""
    rate = "wrong_plan" if name == "planning" else "wrong_execution"
    learnt = lesson(stage.play("warehouse-bulk-0", spoiled(**{rate: 1})).diagnosis, name)
    helped = stage.play("warehouse-bulk-1", spoiled(**{rate: 1, "helped": 0}), **{name: [learnt]})
    assert helped.success
    assert helped.truth.label == name
    assert not stage.play("warehouse-frozen-1", spoiled(**{rate: 1, "helped": 0}), **{name: [learnt]}).success
    other = "execution" if name == "planning" else "planning"
    assert not stage.play("warehouse-bulk-1", spoiled(**{rate: 1, "helped": 0}), **{other: [learnt]}).success


def test_a_lesson_written_after_an_outage_misleads(stage: Any, spoiled: Any) -> None:
    """Asked for both stages, the gate also writes after an external fault; what it writes leads later tasks astray."""
    outage = stage.play("shop-match-0", spoiled(external=1, superstition=1), prompt="outcome")
    assert set(outage.diagnosis) == {"planning", "execution"}
    assert outage.truth.told is None
    for name, letter in (("planning", "P1"), ("execution", "E1")):
        astray = stage.play("shop-match-1", spoiled(misled=1), **{name: [lesson(outage.diagnosis, name)]})
        assert not astray.success
        assert astray.truth.fault == "misleading_memory"
        assert astray.diagnosis["misleading"] == astray.truth.misleading == [letter]
        assert astray.diagnosis["label"] == name
        assert f"As [{letter}] advises" in astray.plan + str(astray.history[1]["content"])


def test_a_foreign_lesson_may_lead_astray(stage: Any, spoiled: Any) -> None:
    """A good lesson about another family misleads as often as its own rate says."""
    learnt = lesson(stage.play("shop-gift-0", spoiled(wrong_plan=1)).diagnosis, "planning")
    assert stage.play("shop-match-1", spoiled(foreign=1), planning=[learnt]).truth.misleading == ["P1"]
    assert stage.play("shop-match-1", spoiled(foreign=0), planning=[learnt]).success


def test_superstition_off_is_vague(stage: Any, spoiled: Any) -> None:
    """Without superstition the gate says of an innocent stage nothing that a fold would take."""
    diagnosis = stage.play("shop-match-0", spoiled(external=1, superstition=0)).diagnosis
    assert not diagnosis["planning"]["concrete"]
    assert not diagnosis["execution"]["actionable"]


def test_memories_raise_success_over_many_tasks(stage: Any) -> None:
    """Over all tasks and several seeds, lessons of the family help and misleading ones hurt."""
    certain = RehearsalSettings(wrong_plan=1, wrong_execution=1, external=0, rescued=0, reliability=1)
    wins = {"none": 0, "helpful": 0, "misleading": 0}
    for task in stage.key.tasks:
        family = task.rsplit("-", 1)[0]
        taught = stage.play(f"{family}-0", certain).diagnosis
        spoilt = stage.play(f"{family}-0", RehearsalSettings(external=1, superstition=1)).diagnosis
        for seed in range(4):
            settings = RehearsalSettings(seed=seed)
            for name, diagnosis in (("none", None), ("helpful", taught), ("misleading", spoilt)):
                memories = {n: [lesson(diagnosis, n)] if diagnosis else [] for n in ("planning", "execution")}
                wins[name] += stage.play(task, settings, **memories).success
    assert wins["misleading"] < wins["none"] < wins["helpful"]
    n = 4 * len(stage.key.tasks)
    assert wins["helpful"] / n > wins["none"] / n + 0.2


def test_reliability_moves_accuracy(stage: Any) -> None:
    """The share of right labels follows the gate's reliability, and its confidence goes with being right."""
    shares = {}
    for reliability in (0.25, 0.6, 1.0):
        right, sure = 0, {True: [0.0], False: [0.0]}
        for seed in range(5):
            for task in stage.key.tasks:
                episode = stage.play(task, RehearsalSettings(seed=seed, reliability=reliability))
                hit = episode.diagnosis["label"] == episode.truth.label
                right += hit
                sure[hit].append(episode.diagnosis["confidence"])
        shares[reliability] = right / (5 * len(stage.key.tasks))
        assert reliability == 1 or sum(sure[True]) / len(sure[True]) > sum(sure[False]) / len(sure[False])
    assert shares[1.0] == 1
    assert abs(shares[0.6] - 0.6) < 0.1
    assert abs(shares[0.25] - 0.25) < 0.1


def test_the_same_request_gets_the_same_answer(stage: Any) -> None:
    """Two plays of a task are equal to the letter; another seed differs somewhere."""
    tasks = list(stage.key.tasks)[:20]
    first, again = ([stage.play(task, RehearsalSettings(seed=7)) for task in tasks] for _ in range(2))
    assert first == again
    assert first != [stage.play(task, RehearsalSettings(seed=8)) for task in tasks]


def test_the_truth_stands_in_no_answer(stage: Any) -> None:
    """No answer of any role names a fault or a rate."""
    for task in stage.key.tasks:
        episode = stage.play(task, RehearsalSettings(seed=3))
        said = f"{episode.plan} {json.dumps(episode.history)} {json.dumps(episode.diagnosis)}"
        assert [word for word in PLANTED_WORDS if word in said] == []


def test_lessons_carry_nothing_of_their_episode(stage: Any, spoiled: Any) -> None:
    """Neither scenario nor experience holds a number or a quoted value of the task, and lengths fit the lint."""
    for task in stage.key.tasks:
        for rates in ({"wrong_plan": 1}, {"external": 1, "superstition": 1}, {"external": 1, "superstition": 0}):
            diagnosis = stage.play(task, spoiled(**rates)).diagnosis
            for name in ("planning", "execution"):
                scenario, text = lesson(diagnosis, name)
                assert not any(character.isdigit() for character in scenario + text)
                assert 20 <= len(text) <= 800


def test_an_unknown_task_is_refused(toy_key: Any, flawless: RehearsalSettings, bodies: Any) -> None:
    """A task that is not in the key is an error, not an invention."""
    with pytest.raises(UnknownTask, match="answer key"):
        bodies.answered(toy_key, flawless, bodies.planner("Sing a song."))


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_rates_are_probabilities(value: float) -> None:
    """A rate outside [0, 1] names itself."""
    with pytest.raises(BadInput, match="misled"):
        RehearsalSettings(misled=value)
