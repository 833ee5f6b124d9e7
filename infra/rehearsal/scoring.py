"""How good a gate's labels are: `diagnosed` of a log against the truth that was planted. Pure."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import get_args

from msgspec import Struct

from events.codec import decode
from events.ids import STAGES, Label, episode_of
from events.kinds import Diagnosed, Planned, RunStarted, TasksListed
from events.log import Recorded
from infra.rehearsal.truth import Truth
from runtime.prompting import INDEX_LETTER, defused
from runtime.statistics import Interval, wilson

LABELS: tuple[Label, ...] = get_args(Label)

#: the kinds that a score needs
SCORED_KINDS = frozenset({RunStarted.KIND, TasksListed.KIND, Planned.KIND, Diagnosed.KIND})


class Judged(Struct, frozen=True, kw_only=True):
    """One episode as the log has it."""

    episode: int
    task: str
    #: hex SHA-256 of the plan as a gate sees it
    plan: str
    diagnosed: Diagnosed

    def named(self) -> list[str]:
        """The items the gate called misleading, by their place in the prompt."""
        places = [
            (id_, f"{INDEX_LETTER[stage]}{place}")
            for stage in STAGES
            for place, id_ in enumerate(self.diagnosed.retrieved.of(stage), 1)
        ]
        return [place for id_, place in places if id_ in self.diagnosed.misleading]


class GateScore(Struct, frozen=True, kw_only=True):
    """A gate's labels against the planted truth."""

    #: episodes with a judgement whose truth is known
    n: int
    #: episodes without a judgement
    degraded: int
    #: judged episodes of which the truth file says nothing
    unmatched: int
    #: of `n`, those where the file holds several truths for the same task, plan and outcome, and they differ
    ambiguous: int
    #: true label -> label the gate gave -> episodes
    confusion: dict[Label, dict[Label, int]]
    #: share of right labels, with Wilson's 95 % interval
    accuracy: Interval
    #: share of the items named misleading that led a stage astray
    misleading_precision: Interval
    #: share of the items that led a stage astray that were named
    misleading_recall: Interval
    #: {named, guilty, both}: items
    misleading: dict[str, int]
    #: mean confidence of right and of wrong labels, in [0, 1]; None where there is none
    confidence_right: float | None
    confidence_wrong: float | None


def plan_sha256(plan: str) -> str:
    """The hash by which a plan of the log and the plan a gate saw are the same."""
    return hashlib.sha256(defused(plan).strip().encode()).hexdigest()


def judged_episodes(log: Iterable[Recorded]) -> list[Judged]:
    """Every `diagnosed` of a log with its task and plan, in episode order. Needs events of `SCORED_KINDS`."""
    tasks: list[str] = []
    plans: dict[str, str] = {}
    found: list[Judged] = []
    for recorded in log:
        t = episode_of(recorded.stream)
        match decode(recorded) if recorded.kind in SCORED_KINDS else None:
            case RunStarted() | TasksListed() as listed:
                tasks += listed.tasks
            case Planned() as planned:
                plans[recorded.stream] = plan_sha256(planned.plan)
            case Diagnosed() as diagnosed if t is not None:
                plan = plans.get(recorded.stream, "")
                found.append(Judged(episode=t, task=tasks[t % len(tasks)], plan=plan, diagnosed=diagnosed))
            case _:
                pass
    return sorted(found, key=lambda one: one.episode)


def score_gate(episodes: Sequence[Judged], truths: Sequence[Truth]) -> GateScore:
    """Compare labels and misleading items with what was planted.

    A truth belongs to the episode with the same task, plan, outcome and numbers of memories. Where several do, the one
    the gate was told to say what the log says comes first, then the order in which they were written; each is used once
    while there are others.
    """
    by_case: dict[tuple[object, ...], list[Truth]] = defaultdict(list)
    for truth in truths:
        by_case[(truth.task, truth.plan, truth.success, *(truth.shown[stage] for stage in STAGES))].append(truth)
    confusion: dict[Label, dict[Label, int]] = {true: dict.fromkeys(LABELS, 0) for true in LABELS}
    sure: dict[bool, list[int]] = {True: [], False: []}
    counts = {"named": 0, "guilty": 0, "both": 0}
    degraded = unmatched = ambiguous = 0
    for episode in episodes:
        diagnosed = episode.diagnosed
        if diagnosed.degraded is not None:
            degraded += 1
            continue
        shown = (len(diagnosed.retrieved.of(stage)) for stage in STAGES)
        candidates = by_case.get((episode.task, episode.plan, diagnosed.success, *shown), [])
        if not candidates:
            unmatched += 1
            continue
        ambiguous += len({(one.label, tuple(one.misleading)) for one in candidates}) > 1
        truth = min(candidates, key=lambda one: not _said(one, diagnosed))
        if len(candidates) > 1:
            candidates.remove(truth)
        confusion[truth.label][diagnosed.label] += 1
        sure[truth.label == diagnosed.label].append(diagnosed.confidence_e4)
        named, guilty = set(episode.named()), set(truth.misleading)
        counts["named"] += len(named)
        counts["guilty"] += len(guilty)
        counts["both"] += len(named & guilty)
    n = sum(map(len, sure.values()))
    return GateScore(
        n=n,
        degraded=degraded,
        unmatched=unmatched,
        ambiguous=ambiguous,
        confusion=confusion,
        accuracy=wilson(len(sure[True]), n),
        misleading_precision=wilson(counts["both"], counts["named"]),
        misleading_recall=wilson(counts["both"], counts["guilty"]),
        misleading=counts,
        confidence_right=_mean(sure[True]),
        confidence_wrong=_mean(sure[False]),
    )


def _said(truth: Truth, diagnosed: Diagnosed) -> bool:
    """Whether the log says what the gate was told to say."""
    told = truth.told
    return told is not None and (told.label, told.confidence_e4) == (diagnosed.label, diagnosed.confidence_e4)


def _mean(confidences_e4: Sequence[int]) -> float | None:
    return sum(confidences_e4) / len(confidences_e4) / 10_000 if confidences_e4 else None
