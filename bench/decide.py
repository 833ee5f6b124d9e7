"""Deciding one diagnosis at 130, 3,600 and 100,000 items beside the two float64 products that it contains."""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from bench.made import banks_of, diagnosed_of, matrix_of
from bench.measure import Row, Scale, Subject, rounds, within
from events import policies

SIZES = (130, 3_600, 100_000)


def rows(scale: Scale) -> Iterator[Row]:
    """One for each bank size."""
    for full in SIZES:
        yield _row(full, scale)


def _row(full: int, scale: Scale) -> Row:
    size = full if full < 1_000 else scale.of(full, 200)
    diagnosed, banks = diagnosed_of(np.random.default_rng(5)), banks_of(size)
    new = diagnosed.experiences.planning
    assert new is not None
    scenario, experience = new.scenario_vector.exact(), new.experience_vector.exact()
    scenarios, experiences = matrix_of(size, 9), matrix_of(size, 10)
    policy = policies.load("credit")
    many = max(1, scale.of(2_000_000 // size, 1) // 10)

    def ours() -> None:
        for _ in range(many):
            policy.decide(banks, size, diagnosed)

    def theirs() -> None:
        for _ in range(many):
            (scenarios @ scenario).max()
            (experiences @ experience).max()

    found = rounds(
        [
            Subject(what="decide", run=ours, operations=many),
            Subject(what="two float64 products", run=theirs, operations=many),
        ],
        scale.repeats,
    )
    row = within("decide", found, "decide", "two float64 products", times=1.3, plus_s=0.3e-3)
    return replace(row, what=f"{size:,} items x 1024")
