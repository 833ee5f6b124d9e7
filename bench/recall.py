"""Recall in banks of 130, 3,600 and 100,000 items beside the same search in numpy: float64 product, top 20."""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from bench.made import banks_of, matrix_of, vector
from bench.measure import Row, Scale, Subject, rounds, within
from events import policies
from events.recall import recall

SIZES = (130, 3_600, 100_000)
TOP = 20


def rows(scale: Scale) -> Iterator[Row]:
    """One for each bank size."""
    for full in SIZES:
        yield _row(full, scale)


def _row(full: int, scale: Scale) -> Row:
    size = full if full < 1_000 else scale.of(full, 200)
    query, banks, matrix = vector(np.random.default_rng(5)), banks_of(size), matrix_of(size, 9)
    # Random vectors have no common direction: with the paper's floor a recall would have nothing to rank.
    parameters = policies.load("credit").parameters.changed({"floor": -1})
    exact = query.exact()
    many = max(1, scale.of(2_000_000 // size, 1) // 10)

    def ours() -> None:
        for _ in range(many):
            recall(banks, ("planning",), query, parameters)

    def theirs() -> None:
        for _ in range(many):
            dots = matrix @ exact
            top = np.argpartition(dots, -TOP)[-TOP:]
            top[np.argsort(-dots[top])]

    found = rounds(
        [
            Subject(what="recall", run=ours, operations=many),
            Subject(what="numpy float64 top 20", run=theirs, operations=many),
        ],
        scale.repeats,
    )
    row = within("recall", found, "recall", "numpy float64 top 20", times=1.3, plus_s=0.2e-3)
    return replace(row, what=f"{size:,} items x 1024")
