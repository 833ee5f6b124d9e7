"""Reading a log: lines of an export parsed, decoded and folded."""

from collections.abc import Iterator

import numpy as np

from bench.fold import DIMENSION
from bench.measure import Row, Subject, measured
from events import policies
from events.bank import Banks, evolve
from events.codec import draft, export_line, parse_line, recorded
from events.fold import replay
from events.ids import PROJECTOR_STREAM, RUN_STREAM, RunId, StreamId, Version, episode_stream
from events.kinds import (
    AnyEvent,
    Diagnosed,
    EmbedderIdentity,
    Experience,
    Folded,
    MergeProposals,
    RetrievedIds,
    RunConfig,
    RunStarted,
    StageExperiences,
    Usage,
)
from events.log import Recorded
from events.vectors import fixed_point

EPISODES = 400


def made_log(episodes: int) -> list[Recorded]:
    """A header, then a diagnosis with four vectors of 1024 dimensions and its fold for each episode."""
    rng = np.random.default_rng(11)
    policy = policies.load("credit")
    config = RunConfig(
        policy=policy.config(), lag=32, frozen=False, concurrency=16, epochs=1, models={}, environment={}, protocol={},
        ordering={}, limits={}, agent={},
    )  # fmt: skip
    header = RunStarted(
        config=config, tasks=[f"task-{t}" for t in range(episodes)], tasks_total=episodes, prompts={},
        embedder=EmbedderIdentity(fingerprint="random", dimension=DIMENSION), code="bench", seed_bank=None,
    )  # fmt: skip
    log: list[Recorded] = []

    def put(stream: StreamId, version: int, event: AnyEvent) -> None:
        log.append(
            recorded(
                draft(event), run=RunId("bench"), stream=stream, version=Version(version), position=len(log) + 1,
                at="2026-01-01T00:00:00.000000Z", cause=None, attempt=1,
            )
        )  # fmt: skip

    put(RUN_STREAM, 1, header)
    banks = Banks()
    for t in range(episodes):
        experiences = [
            Experience(
                scenario=f"tasks like {t}", experience=f"what helped with task {t}, told in a sentence or two",
                scenario_vector=fixed_point(rng.normal(size=DIMENSION)),
                experience_vector=fixed_point(rng.normal(size=DIMENSION)),
                concrete=True, actionable=True, acceptable=True, lint=[],
            )
            for _ in range(2)
        ]  # fmt: skip
        known = [item.id for item in banks][:3]
        diagnosed = Diagnosed(
            success=t % 2 == 0, label="both", confidence_e4=7000, misleading=[], misleading_dropped=0,
            retrieved=RetrievedIds(planning=[one for one in known if one.startswith("planning")], execution=[]),
            experiences=StageExperiences(planning=experiences[0], execution=experiences[1]),
            merge_proposals=MergeProposals(), degraded=None, usage=Usage(), calls=[],
        )  # fmt: skip
        put(episode_stream(t), 1, diagnosed)
        operations = policy.decide(banks, t, diagnosed)
        banks = evolve(banks, diagnosed, operations)
        put(
            PROJECTOR_STREAM,
            t + 1,
            Folded(episode=t, bank_version=banks.version, digest=banks.digest(), operations=operations),
        )
    return log


def rows() -> Iterator[Row]:
    """Per event."""
    log = made_log(EPISODES)
    lines = [export_line(one) for one in log]
    yield from measured(
        [
            Subject(
                what="parse one export line", run=lambda: [parse_line(one, "") for one in lines], operations=len(log)
            ),
            Subject(what="replay one event (decode, evolve)", run=lambda: replay(log), operations=len(log)),
            Subject(what="write one export line", run=lambda: [export_line(one) for one in log], operations=len(log)),
        ]
    )
