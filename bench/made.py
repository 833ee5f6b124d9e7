"""Made-up banks and logs of real shapes: an episode of 46 KB at 1024 dimensions, or of 7 KB at few."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from events import policies
from events.bank import Banks, evolve, seed
from events.codec import draft, recorded
from events.ids import (
    PROJECTOR_STREAM,
    RUN_STREAM,
    BankVersion,
    RunId,
    Stage,
    StreamId,
    episode_stream,
    memory_id,
)
from events.kinds import (
    AnyEvent,
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
    RunStarted,
    Scored,
    SeededItem,
    StageExperiences,
    Usage,
)
from events.log import Draft, Recorded
from events.operations import Operation
from events.policies import Policy
from events.recall import recall
from events.vectors import Vector, fixed_point
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore

DIMENSION = 1024
RUN = RunId("bench")
#: events of one episode, its fold among them
EPISODE_EVENTS = 7
#: how much of a vector all of a bank's have in common: a recall finds more than it may list, nothing merges by chance
_COMMON = 0.8

_STAGES: tuple[Stage, Stage] = ("planning", "execution")


def vector(rng: np.random.Generator, dimension: int = DIMENSION) -> Vector:
    """A random unit vector."""
    return fixed_point(rng.normal(size=dimension))


@lru_cache(maxsize=1)
def banks_of(size: int) -> Banks:
    """A planning bank of `size` items with random unit vectors of 1024 dimensions."""
    rng, start = np.random.default_rng(7), BankVersion(0)
    return seed(
        Banks(),
        (
            SeededItem(
                bank="planning",
                id=memory_id("planning", t),
                scenario=f"tasks like number {t}",
                experience=f"do what task {t} needs, step by step",
                delta_sum=5000 * (t % 3),
                n=t % 5,
                bullets=0,
                sources=[t],
                seeded_sources=1,
                inserted_at=start,
                changed_at=start,
                scenario_vector=vector(rng),
                experience_vectors=[vector(rng)],
            )
            for t in range(size)
        ),
    )


def matrix_of(size: int, seed_: int) -> npt.NDArray[np.float64]:
    """`size` random rows of components x 2^24, shape (size, 1024): what numpy alone searches."""
    rows = np.random.default_rng(seed_).normal(size=(size, DIMENSION))
    rows *= (1 << 24) / np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    return np.rint(rows, out=rows)


def diagnosed_of(rng: np.random.Generator) -> Diagnosed:
    """A diagnosis of a success by the plan, with a new experience."""
    new = Experience(
        scenario="tasks of a new kind",
        experience="look before you leap, and write it down",
        scenario_vector=vector(rng),
        experience_vector=vector(rng),
        concrete=True,
        actionable=True,
        acceptable=True,
        lint=[],
    )
    return Diagnosed(
        success=True,
        label="planning",
        confidence_e4=8000,
        retrieved=RetrievedIds(planning=[memory_id("planning", t) for t in (1, 2, 3)], execution=[]),
        misleading=[],
        misleading_dropped=0,
        experiences=StageExperiences(planning=new),
        merge_proposals=MergeProposals(),
        degraded=None,
        usage=Usage(),
        calls=[],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large the events of a made log are."""

    dimension: int
    #: characters of a plan
    plan: int
    #: candidates that a recall lists
    top_n: int
    #: items that each bank grows to; later experiences repeat one of them and change its value and its sources
    items: int = 65


#: 46 KB an episode, seven events
REAL = Shape(dimension=DIMENSION, plan=1500, top_n=20)
#: 1 KB an event
SMALL = Shape(dimension=32, plan=900, top_n=4)


class MadeLog:
    """Writes the log of one run, episode by episode. Decisions, recalls and digests are the product's own.

    Args:
        shape: of its events.
        repeating: take the bodies of earlier episodes again once the banks are full: for long logs. Their recalls are
            then those of an earlier version, which a replay does not look at.
    """

    def __init__(self, shape: Shape, *, repeating: bool = False) -> None:
        self._shape, self._repeating = shape, repeating
        self._policy: Policy = policies.load("credit")
        self._parameters = self._policy.parameters.changed({"top_n": shape.top_n})
        self._rng = np.random.default_rng(11)
        self._common = self._rng.normal(size=shape.dimension)
        self._common /= np.linalg.norm(self._common)
        #: (scenario, experience) vectors of each stage's items
        self._pool = {stage: [(self._vector(), self._vector()) for _ in range(shape.items)] for stage in _STAGES}
        self._bodies: dict[int, tuple[list[Draft], Diagnosed]] = {}
        self._position = 0
        self.banks = Banks()

    def _vector(self) -> Vector:
        own = self._rng.normal(size=self._shape.dimension)
        own /= np.linalg.norm(own)
        return fixed_point(_COMMON * self._common + np.sqrt(1 - _COMMON**2) * own)

    def header(self, episodes: int) -> Recorded:
        """The first event."""
        policy = self._policy.config()
        config = RunConfig(
            policy=policy, lag=32, frozen=False, concurrency=16, epochs=1, models={}, environment={}, protocol={},
            ordering={}, limits={}, agent={},
        )  # fmt: skip
        # A list of a million ids would be over an event's cap; one task in as many epochs is the same to a replay.
        started = RunStarted(
            config=config, tasks=["task-0"], tasks_total=episodes, prompts={}, code="bench", seed_bank=None,
            embedder=EmbedderIdentity(fingerprint="random", dimension=self._shape.dimension),
        )  # fmt: skip
        return self._placed(RUN_STREAM, 1, draft(started))

    def episode(self, t: int) -> Iterator[Recorded]:
        """The seven events of episode t, which must be the next."""
        full = t >= 2 * self._shape.items
        place = t % (2 * self._shape.items)
        if full and self._repeating and place in self._bodies:
            drafts, diagnosed = self._bodies[place]
        else:
            drafts, diagnosed = self._played(t)
            if full and self._repeating:
                self._bodies[place] = drafts, diagnosed
        for version, one in enumerate(drafts, 1):
            yield self._placed(episode_stream(t), version, one)
        operations = self._policy.decide(self.banks, t, diagnosed)
        self.banks = evolve(self.banks, diagnosed, operations)
        yield self._placed(PROJECTOR_STREAM, t + 1, draft(self._folded(t, operations)))

    def _folded(self, t: int, operations: list[Operation]) -> Folded:
        # The digest of a long log would take longer than all the rest, and a replay does not look at it.
        digest = "0" * 64 if self._repeating else self.banks.digest()
        return Folded(episode=t, bank_version=BankVersion(t + 1), digest=digest, operations=operations)

    def _played(self, t: int) -> tuple[list[Draft], Diagnosed]:
        usage = Usage(prompt_tokens=2000, completion_tokens=300, calls=1)
        stream = episode_stream(t)
        retrieved = [self._retrieved(stage, t) for stage in _STAGES]
        chosen = RetrievedIds(
            planning=[one.id for one in retrieved[0].candidates if one.chosen],
            execution=[one.id for one in retrieved[1].candidates if one.chosen],
        )
        words = "first look at the order, then check what it allows, then change it; "
        events: list[AnyEvent] = [
            retrieved[0],
            Planned(plan=(words * (self._shape.plan // len(words) + 1))[: self._shape.plan], usage=usage,
                    calls=[f"{stream}/planning/1"]),
            retrieved[1],
            Executed(trajectory=f"{t:064x}", steps=12, errors=1, stop="done", attempts=[], usage=usage,
                     calls=[f"{stream}/execution/{one}" for one in range(1, 13)]),
            Scored(success=t % 2 == 0, reward=float(t % 2 == 0), evaluator=Evaluator(name="made", version="1"),
                   breakdown={"valid": True, "checks": 3}),
        ]  # fmt: skip
        experiences = [self._experience(stage, t) for stage in _STAGES]
        diagnosed = Diagnosed(
            success=t % 2 == 0, label="both", confidence_e4=7000, misleading=[], misleading_dropped=0,
            retrieved=chosen, experiences=StageExperiences(planning=experiences[0], execution=experiences[1]),
            merge_proposals=MergeProposals(), degraded=None, usage=usage, calls=[f"{stream}/gate/1"],
        )  # fmt: skip
        return [draft(one) for one in (*events, diagnosed)], diagnosed

    def _retrieved(self, stage: Stage, t: int) -> Retrieved:
        query = self._pool[stage][t % self._shape.items][0]
        return Retrieved(
            stage=stage, bank_version=self.banks.version, source="exact",
            query=Query(text=f"tasks of kind {t % self._shape.items}: change what was ordered last week", vector=query),
            candidates=recall(self.banks, (stage,), query, self._parameters),
        )  # fmt: skip

    def _experience(self, stage: Stage, t: int) -> Experience:
        kind = t % self._shape.items
        scenario, experience = self._pool[stage][kind]
        return Experience(
            scenario=f"{stage} tasks of kind {kind}, where something was ordered and is to be changed",
            experience=f"{stage}: what helped with kind {kind}: read the order before you change it, then check again",
            scenario_vector=scenario, experience_vector=experience, concrete=True, actionable=True, acceptable=True,
            lint=[],
        )  # fmt: skip

    def _placed(self, stream: StreamId, version: int, one: Draft) -> Recorded:
        self._position += 1
        return recorded(
            one, run=RUN, stream=stream, version=version, position=self._position, at="2026-01-01T00:00:00.000000Z",
            cause=f"{RUN}/{RUN_STREAM}/1" if self._position > 1 else None, attempt=1,
        )  # fmt: skip


def made_log(shape: Shape, episodes: int) -> list[Recorded]:
    """The whole log of a run of `episodes`."""
    log = MadeLog(shape)
    return [log.header(episodes), *(event for t in range(episodes) for event in log.episode(t))]


async def restored(url: str, shape: Shape, episodes: int, prefix: str = "chime") -> None:
    """Put the log of a made run of `episodes` on the server at `url`."""
    log = MadeLog(shape)

    async def pages() -> AsyncIterator[list[Recorded]]:
        yield [log.header(episodes)]
        for t in range(episodes):
            yield list(log.episode(t))

    async with connected(url) as redis:
        await RedisLogStore(redis, prefix, SystemClock(), "bench").restore(RUN, pages())
