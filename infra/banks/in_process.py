"""A bank store in memory: rows of all versions, searched exactly. What every other store is held against."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from events.errors import Mismatch, NotAUnitVector, VersionGap
from events.ids import STAGES, BankVersion, MemoryId, Stage, memory_order
from events.rows import Rows
from events.vectors import Vector, of_raw
from infra.banks.checks import check
from infra.banks.prunes import Prunes
from runtime.bank_store import BankChange, Hit, Row


@dataclass(slots=True)
class _Shelf:
    """The rows of one stage, in order of arrival, beside their vectors."""

    rows: list[Row] = field(default_factory=list)
    vectors: Rows = field(default_factory=Rows)


class InProcessBank:
    """`runtime.bank_store.BankStore` without a server, and without generations: whatever is applied is published."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._forget()

    def _forget(self) -> None:
        self._shelves: dict[Stage, _Shelf] = {stage: _Shelf() for stage in STAGES}
        #: id -> its place on its stage's shelf
        self._places: dict[MemoryId, int] = {}
        self._prunes = Prunes()
        self._waiting: dict[MemoryId, Row] = {}
        self._newest: BankVersion | None = None

    @property
    def unseen(self) -> bool:
        """As `BankStore.unseen`: there is no connection that could be lost."""
        return False

    async def recheck(self, held: Mapping[Stage, Sequence[MemoryId]]) -> None:
        """As `BankStore.recheck`."""

    async def apply(self, change: BankChange) -> None:
        """As `BankStore.apply`."""
        if self._newest is not None and change.version <= self._newest:
            return
        if change.since is not None and (self._newest is None or change.since > self._newest):
            raise VersionGap("versions of a bank", self._newest or 0, change.since)
        check(change, self._dimension)
        for row in change.born:
            shelf = self._shelves[row.bank]
            if row.id in self._places:
                self._waiting[row.id] = row
                continue
            self._places[row.id] = len(shelf.rows)
            shelf.rows.append(row)
            shelf.vectors, _ = shelf.vectors.appended(of_raw(row.vector), row.id)
        self._waiting.update((row.id, row) for row in change.changed)
        self._prunes.add(change.pruned)
        self._newest = change.version

    async def search(self, stage: Stage, query: Vector, limit: int, at: BankVersion) -> list[Hit]:
        """As `BankStore.search`."""
        exact = query.exact()
        if query.dim != self._dimension:
            raise NotAUnitVector(f"a query of {query.dim} dimensions for a bank of {self._dimension}")
        self._reach(at)
        shelf = self._shelves[stage]
        dots = shelf.vectors.dots(exact)
        live = np.array([self._lives(row, at) for row in shelf.rows], dtype=bool)
        found = [
            Hit(id=shelf.rows[place].id, dot=int(dots[place]), vector_sha256=shelf.vectors.sha256(place))
            for place in np.flatnonzero(live).tolist()
        ]
        return sorted(found, key=lambda hit: (-hit.dot, memory_order(hit.id)))[:limit]

    async def items(self, at: BankVersion) -> list[Row]:
        """As `BankStore.items`."""
        self._reach(at)
        return sorted((row for row in self._rows() if self._lives(row, at)), key=lambda row: memory_order(row.id))

    async def newest(self) -> BankVersion | None:
        """As `BankStore.newest`."""
        return self._newest

    async def missing(self, rows: Sequence[Row], at: BankVersion) -> list[str]:
        """As `BankStore.missing`."""
        there = {row.id for row in self._rows() if row.born <= at}
        lost = [row.id for row in rows if row.id not in there]
        return [f"a search does not find {len(lost)} rows, {lost[0]} first"] if lost else []

    async def refresh(self) -> int:
        """As `BankStore.refresh`."""
        shown = 0
        for row in self._waiting.values():
            if (place := self._places.get(row.id)) is not None:
                rows = self._shelves[row.bank].rows
                rows[place] = replace(row, vector=rows[place].vector, born=rows[place].born)
                shown += 1
        self._waiting.clear()
        return shown

    async def clear(self, oldest: BankVersion) -> int:
        """As `BankStore.clear`."""
        gone = 0
        for shelf in self._shelves.values():
            kept = [row for row in shelf.rows if not self._prunes.gone(row.id, oldest)]
            gone += len(shelf.rows) - len(kept)
            if len(kept) < len(shelf.rows):
                for row in shelf.rows:
                    del self._places[row.id]
                shelf.rows, shelf.vectors = kept, Rows()
                for place, row in enumerate(kept):
                    self._places[row.id] = place
                    shelf.vectors, _ = shelf.vectors.appended(of_raw(row.vector), row.id)
        return gone

    async def drop(self) -> None:
        """As `BankStore.drop`."""
        self._forget()

    def _rows(self) -> Iterator[Row]:
        for shelf in self._shelves.values():
            yield from shelf.rows

    def _lives(self, row: Row, at: BankVersion) -> bool:
        return row.born <= at and not self._prunes.gone(row.id, at)

    def _reach(self, at: BankVersion) -> None:
        if self._newest is None or at > self._newest:
            raise Mismatch(f"bank version {at} is not published; the newest is {self._newest}")
