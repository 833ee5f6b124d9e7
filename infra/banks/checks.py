"""What a bank store may be given: everything is checked before any of it is sent."""

from collections.abc import Sequence

import numpy as np

from events.errors import BadInput, NotAUnitVector
from events.ids import MemoryId
from events.vectors import ONE, units
from infra.banks.prunes import stage_of
from runtime.bank_store import BankChange, Row

#: integers above it are rounded on their way to a store
_LARGEST = 1 << 53
#: vectors that are looked at in one go
_TOGETHER = 500


def check(change: BankChange, dimension: int) -> None:
    """Nothing in `change` is anything that a store would lose, round or refuse.

    Raises:
        BadInput: a row that would be.
        NotAUnitVector: a vector that is none, or of another dimension.
    """
    for rows in (change.born, change.changed):
        seen: set[MemoryId] = set()
        for row in rows:
            if row.id in seen:
                raise BadInput(f"item {row.id} twice in one change of a bank")
            seen.add(row.id)
            _check_row(row, dimension)
        _check_vectors(rows)


def _check_vectors(rows: Sequence[Row]) -> None:
    """All of them are of one dimension."""
    for start in range(0, len(rows), _TOGETHER):
        part = rows[start : start + _TOGETHER]
        exact = units(b"".join([row.vector for row in part]), len(part))
        if (above := np.abs(exact).max(axis=1) > ONE).any():
            first = part[int(above.argmax())]
            raise NotAUnitVector(f"item {first.id}: a component above 1, which float32 does not hold")


def _check_row(row: Row, dimension: int) -> None:
    if stage_of(row.id) != row.bank:
        raise BadInput(f"item {row.id} is not of the {row.bank} bank")
    if len(row.vector) != 4 * dimension:
        raise NotAUnitVector(f"item {row.id}: a vector of {len(row.vector)} bytes in a bank of {dimension} dimensions")
    if max(map(abs, (row.born, row.delta_sum, row.n, *row.sources))) >= _LARGEST:
        raise BadInput(f"item {row.id}: a number that is not below 2^53")
    for text in (row.scenario, row.experience):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"item {row.id}: its text holds a lone surrogate") from error
