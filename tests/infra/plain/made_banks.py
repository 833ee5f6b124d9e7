"""Banks made up for tests, version by version: what the fold would make of inserts, values, merges and prunes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from plain_logs import at_dot
from plain_logs import vector as plain_vector

from events.bank import Banks, evolve
from events.ids import STAGES, BankVersion, MemoryId, Stage, memory_id
from events.kinds import Diagnosed, Experience, MergeProposals, RetrievedIds, StageExperiences, Usage
from events.operations import Inserted, Merged, Operation, Pruned, ValueUpdated
from events.vectors import Vector, fixed_point
from infra.banks.changes import change_of, whole
from runtime.bank_store import BankChange


def unit(seed: int, dimension: int = 16) -> Vector:
    """A random unit vector."""
    return fixed_point(np.random.default_rng(seed).normal(size=dimension))


def with_dot(dot: int, side: int = 0) -> Vector:
    """A vector of 5 dimensions whose dot with `ANCHOR` is `dot`, exactly; `side` tells several apart."""
    return msgspec.convert(plain_vector(at_dot(dot, side=side)), Vector)


ANCHOR: Vector = msgspec.convert(plain_vector([2**24, 2**12, 1, 0, 0]), Vector)


@dataclass
class MadeBanks:
    """The versions so far, and what made each."""

    versions: list[Banks] = field(default_factory=lambda: [Banks()])
    operations: list[list[Operation]] = field(default_factory=list)

    @property
    def newest(self) -> Banks:
        return self.versions[-1]

    def live(self, stage: Stage | None = None) -> list[MemoryId]:
        """Ids of the newest version."""
        return [item.id for item in self.newest if stage in (None, item.bank)]

    def step(
        self,
        inserts: Mapping[Stage, Vector] | None = None,
        values: Sequence[MemoryId] = (),
        prunes: Sequence[MemoryId] = (),
        merges: Mapping[Stage, MemoryId] | None = None,
        delta_e4: int = 5_000,
        text: str = "",
    ) -> BankChange:
        """One more version; what it changed."""
        inserts, merges = inserts or {}, merges or {}
        before, t = self.newest, int(self.newest.version)
        told: dict[Stage, Experience] = {}
        operations: list[Operation] = []
        for one in values:
            item = before.get(one)
            assert item is not None
            operations.append(
                ValueUpdated(
                    bank=item.bank, id=one, delta_e4=delta_e4, delta_sum=item.delta_sum + delta_e4, n=item.n + 1
                )
            )
        operations += [Pruned(bank=_stage(one), id=one) for one in prunes]
        for stage in STAGES:
            if stage in inserts or stage in merges:
                vector = inserts.get(stage) or unit(t, before_dimension(before, stage))
                told[stage] = Experience(
                    scenario=f"scenario {t} {stage}{text}",
                    experience=f"experience {t} {stage}{text}",
                    scenario_vector=vector,
                    experience_vector=vector,
                    concrete=True,
                    actionable=True,
                    acceptable=True,
                    lint=[],
                )
            if stage in inserts:
                operations.append(Inserted(bank=stage, id=memory_id(stage, t), source=t))
            elif stage in merges:
                operations.append(Merged(bank=stage, id=merges[stage], dot=0, how="appended", source=t))
        diagnosed = Diagnosed(
            success=True,
            label="both" if len(told) == len(STAGES) else next(iter(told), "none"),
            confidence_e4=10_000,
            retrieved=RetrievedIds(planning=[], execution=[]),
            misleading=[],
            misleading_dropped=0,
            experiences=StageExperiences(**dict[str, Any](told)),
            merge_proposals=MergeProposals(),
            degraded=None,
            usage=Usage(),
            calls=[],
        )
        self.versions.append(evolve(before, diagnosed, operations))
        self.operations.append(operations)
        return self.change(t + 1)

    def change(self, version: int) -> BankChange:
        """What made that version."""
        return change_of(BankVersion(version - 1), self.versions[version], self.operations[version - 1], None)

    def whole(self, oldest: int = 0) -> BankChange:
        """All that a reader of the versions from `oldest` may ask for."""
        gone = [
            (self.versions[at], {one.id: BankVersion(at + 1) for one in self.operations[at] if isinstance(one, Pruned)})
            for at in range(oldest, len(self.operations))
        ]
        return whole(self.newest, gone, None)


def before_dimension(banks: Banks, stage: Stage) -> int:
    """Of the stage's vectors."""
    item = next(item for item in banks if item.bank == stage)
    return banks.scenario_vector(item).dim


def _stage(memory: MemoryId) -> Stage:
    return "planning" if "planning" in memory else "execution"


def grown(steps: int, dimension: int = 16, seed: int = 0, rate: float = 0.15) -> MadeBanks:
    """Banks of so many versions, with inserts into both, values, merges and prunes at `rate`."""
    rng, made = np.random.default_rng(seed), MadeBanks()
    for t in range(steps):
        live = made.live()
        values = [one for one in live if rng.random() < min(0.5, 4 / (len(live) + 1))]
        prunes = [one for one in values if rng.random() < rate]
        inserts: dict[Stage, Vector] = {
            stage: unit(int(rng.integers(1 << 40)), dimension) for stage in STAGES if t == 0 or rng.random() < 0.7
        }
        kept = {stage: [one for one in made.live(stage) if one not in prunes] for stage in STAGES}
        merges: dict[Stage, MemoryId] = {
            stage: kept[stage][int(rng.integers(len(kept[stage])))]
            for stage in STAGES
            if stage not in inserts and kept[stage] and rng.random() < 0.5
        }
        made.step(inserts, values, prunes, merges, int(rng.integers(-10_000, 10_001)))
    return made
