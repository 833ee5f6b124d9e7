"""A made-up run of a few episodes, folded by the product, for whatever reads logs."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from events import policies
from events.bank import Banks, evolve, seed
from events.codec import draft, recorded
from events.ids import (
    PROJECTOR_STREAM,
    RUN_STREAM,
    BankVersion,
    Label,
    MemoryId,
    RunId,
    Stage,
    StreamId,
    episode_stream,
)
from events.kinds import (
    AnyEvent,
    Counts,
    Diagnosed,
    EmbedderIdentity,
    Evaluator,
    Executed,
    Experience,
    Folded,
    MergeProposals,
    Planned,
    Query,
    Retrieved,
    RetrievedIds,
    RunConfig,
    RunFinished,
    RunStarted,
    Scored,
    Seeded,
    SeededItem,
    StageExperiences,
    Usage,
)
from events.log import Recorded
from events.recall import recall
from events.vectors import Vector, fixed_point

DIMENSION = 8
TEXT = "Look before you leap, always."
USAGE = Usage(prompt_tokens=100, completion_tokens=10, calls=1)


def unit(axis: int, lean: float = 0.0) -> Vector:
    """A unit vector along `axis`, leaning towards the next one."""
    components = [0.0] * DIMENSION
    components[axis % DIMENSION] = 1.0
    components[(axis + 1) % DIMENSION] += lean
    return fixed_point(components)


@dataclass
class MadeRun:
    """Writes one run, event by event; every fold and recall is the product's own."""

    run: RunId
    policy: str = "credit"
    events: list[Recorded] = field(default_factory=list)
    banks: Banks = field(default_factory=Banks)
    versions: dict[StreamId, int] = field(default_factory=dict)

    def add(self, stream: StreamId, event: AnyEvent) -> Recorded:
        self.versions[stream] = version = self.versions.get(stream, 0) + 1
        at = f"2026-01-01T00:00:{len(self.events) % 60:02d}.000000Z"
        cause = self.events[-1].id if self.events else None
        one = recorded(
            draft(event), run=self.run, stream=stream, version=version, position=len(self.events) + 1, at=at,
            cause=cause, attempt=1,
        )  # fmt: skip
        self.events.append(one)
        return one

    def begin(self, tasks: list[str], *, labels: tuple[str, ...] = (), seeds: tuple[SeededItem, ...] = ()) -> None:
        policy = policies.load(self.policy)
        config = RunConfig(
            policy=policy.config(), lag=1, frozen=False, concurrency=1, epochs=1,
            models={role: {"model": "made-model"} for role in ("planner", "executor", "gate")},
            environment={"name": "toy", "version": "1"}, protocol={"name": "table1"},
            ordering={"seed": 42, "by": "sha256"}, limits={"max_steps": 100}, agent={}, labels=list(labels),
        )  # fmt: skip
        self.add(
            RUN_STREAM,
            RunStarted(
                config=config, tasks=tasks, tasks_total=len(tasks), prompts={}, code="0.1.0", seed_bank=None,
                embedder=EmbedderIdentity(fingerprint="made", dimension=DIMENSION),
            ),
        )  # fmt: skip
        if seeds:
            self.add(RUN_STREAM, Seeded(items=list(seeds)))
            self.banks = seed(self.banks, seeds)

    def episode(
        self, t: int, *, success: bool, label: Label, axis: int, lean: float = 0.0, text: str = TEXT,
        misleading: tuple[MemoryId, ...] = (),
    ) -> None:  # fmt: skip
        policy, stream = policies.load(self.policy), episode_stream(t)
        chosen: dict[Stage, list[MemoryId]] = {}

        def retrieve(stage: Stage) -> Retrieved:
            candidates = recall(self.banks, (stage,), unit(axis), policy.parameters)
            chosen[stage] = [one.id for one in candidates if one.chosen]
            return Retrieved(
                stage=stage, bank_version=self.banks.version, query=Query(text="q", vector=unit(axis)),
                candidates=candidates, source="exact",
            )  # fmt: skip

        self.add(stream, retrieve("planning"))
        self.add(stream, Planned(plan="first this, then that", usage=USAGE, calls=[f"{stream}/planning/1"]))
        self.add(stream, retrieve("execution"))
        self.add(
            stream,
            Executed(
                trajectory="0" * 64, steps=3, errors=0, stop="done", attempts=[], usage=USAGE,
                calls=[f"{stream}/execution/1"],
            ),
        )  # fmt: skip
        self.add(
            stream,
            Scored(success=success, reward=float(success), evaluator=Evaluator(name="toy", version="1"), breakdown={}),
        )
        new = Experience(
            scenario=f"scenario {axis}", experience=text, scenario_vector=unit(axis, lean),
            experience_vector=unit(axis, 2 * lean), concrete=True, actionable=True, acceptable=True, lint=[],
        )  # fmt: skip
        diagnosed = Diagnosed(
            success=success, label=label, confidence_e4=8000,
            retrieved=RetrievedIds(planning=chosen["planning"], execution=chosen["execution"]),
            misleading=list(misleading), misleading_dropped=0,
            experiences=StageExperiences(planning=new, execution=new), merge_proposals=MergeProposals(),
            degraded=None, usage=USAGE, calls=[f"{stream}/gate/1"],
        )  # fmt: skip
        self.add(stream, diagnosed)
        operations = policy.decide(self.banks, t, diagnosed)
        self.banks = evolve(self.banks, diagnosed, operations)
        self.add(
            PROJECTOR_STREAM,
            Folded(
                episode=t, bank_version=BankVersion(t + 1), digest=self.banks.digest(), operations=operations
            ),
        )  # fmt: skip

    def finish(self, episodes: int) -> None:
        counts = Counts(episodes=episodes, diagnosed=episodes, degraded=0, abandoned=0, folded=episodes)
        self.add(RUN_STREAM, RunFinished(outcome="completed", counts=counts))


def make_run(
    run: str = "made", policy: str = "credit", *, flipped: bool = False, labels: tuple[str, ...] = ()
) -> MadeRun:
    """Six episodes: two inserts, a merge, credits, a penalty, a prune."""
    made = MadeRun(run=RunId(run), policy=policy)
    made.begin([f"task-{t}" for t in range(6)], labels=labels)
    made.episode(0, success=True, label="planning", axis=0)
    made.episode(1, success=not flipped, label="both", axis=0, lean=0.3, text="Another way to look at it, closely.")
    made.episode(2, success=True, label="execution", axis=0)
    bad = (MemoryId("planning-0"),)
    for t in (3, 4, 5):
        made.episode(t, success=False, label="none", axis=0, misleading=bad if t < 5 else ())
    made.finish(6)
    return made


@pytest.fixture
def made_run() -> Callable[..., MadeRun]:
    """`make_run`: its events are a whole log, its banks the newest version."""
    return make_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without a CHIME_ variable around it."""
    for name in list(os.environ):
        if name.startswith("CHIME_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path
