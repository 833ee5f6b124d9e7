"""Recall, decide, evolve and digest at 130 and 3,600 items of 1024 dimensions, beside the products they contain."""

from collections.abc import Iterator

import numpy as np

from bench.measure import Row, Subject, measured
from events import policies
from events.bank import Banks, evolve, seed
from events.ids import BankVersion, memory_id
from events.kinds import (
    Diagnosed,
    Experience,
    MergeProposals,
    RetrievedIds,
    SeededItem,
    StageExperiences,
    Usage,
)
from events.operations import ValueUpdated
from events.recall import recall
from events.vectors import Vector, fixed_point

DIMENSION = 1024


def _vector(rng: np.random.Generator) -> Vector:
    return fixed_point(rng.normal(size=DIMENSION))


def banks_of(size: int, rng: np.random.Generator) -> Banks:
    """A planning bank of `size` items with random unit vectors."""
    start = BankVersion(0)
    return seed(
        Banks(),
        [
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
                scenario_vector=_vector(rng),
                experience_vectors=[_vector(rng)],
            )
            for t in range(size)
        ],
    )


def _diagnosed(rng: np.random.Generator) -> Diagnosed:
    new = Experience(
        scenario="tasks of a new kind",
        experience="look before you leap, and write it down",
        scenario_vector=_vector(rng),
        experience_vector=_vector(rng),
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


def rows() -> Iterator[Row]:
    """One group per bank size."""
    for size in (130, 3_600):
        yield from _rows(size)


def _rows(size: int) -> Iterator[Row]:  # noqa: C901 - one subject after the other
    rng = np.random.default_rng(7)
    banks, diagnosed, query = banks_of(size, rng), _diagnosed(rng), _vector(rng)
    policy = policies.load("credit")
    # Values only: an insert into the same old version again and again would branch the rows each time.
    updates = [one for one in policy.decide(banks, size, diagnosed) if isinstance(one, ValueUpdated)]
    loose = policy.parameters.changed({"floor": -1})
    matrix = np.array([row.array() for row in [_vector(rng) for _ in range(size)]], dtype=np.float64)
    exact = query.exact()
    many = max(1, 20_000 // size)

    def product() -> None:
        for _ in range(many):
            np.argpartition(matrix @ exact, -20)

    def recalls() -> None:
        for _ in range(many):
            recall(banks, ("planning",), query, loose)

    def products() -> None:
        for _ in range(many):
            (matrix @ exact).max()
            (matrix @ exact).max()

    def decides() -> None:
        for _ in range(many):
            policy.decide(banks, size, diagnosed)

    def evolves() -> None:
        for _ in range(many):
            evolve(banks, diagnosed, updates)

    def digests() -> None:
        for _ in range(many):
            evolve(banks, diagnosed, updates).digest()

    yield from measured(
        [
            Subject(what=f"numpy float64 top 20, {size} items", run=product, operations=many),
            Subject(what=f"recall, {size} items", run=recalls, operations=many),
        ]
    )
    yield from measured(
        [
            Subject(what=f"two float64 products, {size} items", run=products, operations=many),
            Subject(what=f"decide one diagnosis, {size} items", run=decides, operations=many),
        ]
    )
    yield from measured(
        [
            Subject(what=f"evolve one diagnosis, {size} items", run=evolves, operations=many),
            Subject(what=f"evolve and digest, {size} items", run=digests, operations=many),
        ]
    )
