"""A run whose diagnoses are made up and folded by its policy, with its log in Redis and a mirror beside it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import numpy as np
from redis.asyncio import Redis

from events import policies
from events.bank import Banks, evolve
from events.codec import draft
from events.ids import PROJECTOR_STREAM, RUN_STREAM, STAGES, BankVersion, RunId, Stage, Version, episode_stream
from events.kinds import (
    Diagnosed,
    EmbedderIdentity,
    Experience,
    Folded,
    MergeProposals,
    Query,
    RetrievedIds,
    RunConfig,
    RunStarted,
    StageExperiences,
    Usage,
)
from events.operations import Operation
from events.recall import recall
from events.vectors import Vector, fixed_point
from events.window import Window
from infra import banks as stores
from infra.banks.generations import Generations, RunGenerations
from infra.banks.mirror import Mirror
from infra.banks.serving import BankServer
from infra.banks.stored import StoredBanks
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.weaviate_address import WeaviateAddress
from runtime.ports import Basis, EventLog, Origin, Recalled

RUN = RunId("r-1")
_NOWHERE = Origin(cause=None)


@dataclass(frozen=True)
class Asked:
    """One recall and what it must find."""

    stage: Stage
    query: Query
    version: BankVersion


class BankedRun:
    """Folds one episode after the other and tells `mirrors` of each version."""

    def __init__(
        self, log: EventLog, *, dimension: int = 16, lag: int = 8, concurrency: int = 4, seed: int = 0
    ) -> None:
        self.log, self.dimension = log, dimension
        self.policy = policies.load("credit")
        self.config = RunConfig(
            policy=self.policy.config(), lag=lag, frozen=False, concurrency=concurrency, epochs=1, models={},
            environment={}, protocol={}, ordering={}, limits={}, agent={},
        )  # fmt: skip
        self.versions: list[Banks] = [Banks()]
        self.operations: list[list[Operation]] = []
        self.window = Window(self.config, self.versions[0])
        self.mirrors: list[Mirror] = []
        self._rng = np.random.default_rng(seed)
        self._common = self._rng.normal(size=dimension)
        self._common /= np.linalg.norm(self._common)

    def vector(self) -> Vector:
        """Somewhere around a direction that all have in common, so that recalls find something."""
        own = self._rng.normal(size=self.dimension)
        return fixed_point(self._common + 0.8 * own / np.linalg.norm(own))

    async def begin(self) -> None:
        """The first event."""
        started = RunStarted(
            config=self.config, tasks=["a"], tasks_total=1, prompts={}, code="0", seed_bank=None,
            embedder=EmbedderIdentity(fingerprint="made", dimension=self.dimension),
        )  # fmt: skip
        await self.log.append(RUN_STREAM, Version(1), [draft(started)], _NOWHERE)

    def mirrored(self, mirror: Mirror, term: int) -> Mirror:
        """`mirror` follows from now on, and holds the lease."""
        mirror.begin(self.window, self.dimension)
        mirror.hold(term)
        self.mirrors.append(mirror)
        return mirror

    async def fold(self, times: int = 1) -> None:
        """So many more versions."""
        for _ in range(times):
            # Whoever dies beside it does not leave half a version in the log.
            with anyio.CancelScope(shield=True):
                await self._fold()

    async def _fold(self) -> None:
        banks, t = self.versions[-1], len(self.operations)
        diagnosed = self._diagnosed(banks, t)
        operations = self.policy.decide(banks, t, diagnosed)
        evolved = evolve(banks, diagnosed, operations)
        folded = draft(Folded(episode=t, bank_version=evolved.version, digest=evolved.digest(), operations=operations))
        await self.log.append(episode_stream(t), Version(1), [draft(diagnosed)], _NOWHERE)
        await self.log.append(PROJECTOR_STREAM, Version(t + 1), [folded], _NOWHERE)
        self.versions.append(evolved)
        self.operations.append(operations)
        self.window.add(evolved)
        basis = Basis(stream=PROJECTOR_STREAM, version=Version(t + 1), sha256=folded.sha256)
        for mirror in self.mirrors:
            mirror.folded(evolved, operations, basis)

    def _diagnosed(self, banks: Banks, t: int) -> Diagnosed:
        chosen = {
            stage: [one.id for one in recall(banks, (stage,), self.vector(), self.policy.parameters) if one.chosen]
            for stage in STAGES
        }
        return Diagnosed(
            success=bool(self._rng.random() < 0.5),
            label="both",
            confidence_e4=9000,
            retrieved=RetrievedIds(planning=chosen["planning"], execution=chosen["execution"]),
            misleading=[one for ids in chosen.values() for one in ids if self._rng.random() < 0.4],
            misleading_dropped=0,
            experiences=StageExperiences(
                planning=self._experience("planning", t), execution=self._experience("execution", t)
            ),
            merge_proposals=MergeProposals(),
            degraded=None,
            usage=Usage(),
            calls=[],
        )

    def _experience(self, stage: Stage, t: int) -> Experience:
        return Experience(
            scenario=f"{stage} scenario {t}",
            experience=f"Look before you leap, in {stage} case {t}.",
            scenario_vector=self.vector(),
            experience_vector=self.vector(),
            concrete=True,
            actionable=True,
            acceptable=True,
            lint=[],
        )

    def asked(self) -> Asked:
        """A recall that somebody may make now."""
        assert isinstance(self.config.lag, int)
        oldest = max(0, len(self.operations) - self.config.lag)
        version = int(self._rng.integers(oldest, len(self.versions)))
        stage = STAGES[int(self._rng.integers(2))]
        return Asked(stage, Query(text="q", vector=self.vector()), BankVersion(version))

    def right(self, asked: Asked, found: Recalled) -> bool:
        """Whether a recall found what the fold says, candidates and chosen items alike."""
        banks = self.versions[asked.version]
        candidates = recall(banks, (asked.stage,), asked.query.vector, self.policy.parameters)
        chosen = [banks.get(one.id) for one in candidates if one.chosen]
        texts = [(one.id, one.scenario, one.experience, one.delta_sum, one.n) for one in chosen if one is not None]
        got = [(one.id, one.scenario, one.experience, one.delta_sum, one.n) for one in found.chosen]
        return found.candidates == candidates and texts == got


@dataclass(frozen=True)
class Place:
    """Where a run is: its Redis, and the server of its bank."""

    redis: Redis
    server: BankServer
    generations: RunGenerations
    run: BankedRun
    clock: SystemClock

    def mirror(self) -> Mirror:
        return Mirror(self.server, self.generations, self.clock)

    async def reach(self) -> BankServer:
        return self.server

    def reader(self) -> StoredBanks:
        return StoredBanks(self.run.log, self.reach, self.generations, self.clock)


@asynccontextmanager
async def placed(redis_url: str, prefix: str, weaviate: WeaviateAddress, **made: int) -> AsyncIterator[Place]:
    """A run that has begun. Its tenants are removed at the end."""
    clock = SystemClock()
    async with connected(redis_url) as redis, stores.connected(weaviate) as server:
        run = BankedRun(RedisLogStore(redis, prefix, clock, redis_url).open(RUN), **made)
        await run.begin()
        generations = Generations(redis, prefix, redis_url)
        yield Place(redis, server, generations.of(RUN), run, clock)
        if server.away is None:
            own = await generations.deployment()
            await server.remove([one for one in await server.names() if own in one])


def sources(reader: StoredBanks) -> Sequence[str]:
    """Where a reader's recalls were answered from."""
    return sorted(reader.answered)
