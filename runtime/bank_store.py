"""The protocol of a store that mirrors a run's banks: what it is told, and what it answers. No episode sees it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from events.ids import BankVersion, MemoryId, Stage
from events.vectors import Vector
from runtime.ports import Basis


class Row(Struct, frozen=True, kw_only=True):
    """One item as a bank store holds it. What it is found by never changes; the rest is there for people."""

    id: MemoryId
    #: the stage it was born in
    bank: Stage
    #: the first version that holds it
    born: BankVersion
    #: c_i: d little-endian int32, components x 2^24
    vector: bytes
    #: c_i and e_i as texts, and the item's history, as of the newest version
    scenario: str
    experience: str
    delta_sum: int
    n: int
    sources: tuple[int, ...]


class BankChange(Struct, frozen=True, kw_only=True):
    """What the versions from `since` (not included) to `version` did to a run's rows."""

    #: what the store holds before; None = nothing: `born` is then every row that a reader may still ask for
    since: BankVersion | None
    version: BankVersion
    born: list[Row] = []
    #: older rows whose texts or values are others now, as they are at `version`
    changed: list[Row] = []
    #: id -> the first version without it; it may be among `born`
    pruned: dict[MemoryId, BankVersion] = {}
    #: the `folded` that made `version`, which the log must still hold; None for version 0, or where nobody knows
    basis: Basis | None = None


class Hit(Struct, frozen=True, kw_only=True):
    """A row that a search found."""

    id: MemoryId
    #: q . c in units of 2^-48, computed from the integers of both vectors
    dot: int
    #: hex SHA-256 of c as it was found, d little-endian int32: whoever knows the item knows which it must be
    vector_sha256: str


class BankStore(Protocol):
    """A run's rows of one generation. One writer applies versions in order, any number of readers search.

    Every method raises Unreachable where the store does not answer.
    """

    @property
    def unseen(self) -> bool:
        """Whether the connection to it is another one than when `recheck` last looked: what was there may be gone."""
        ...

    async def recheck(self, held: Mapping[Stage, Sequence[MemoryId]]) -> None:
        """Rows of all these items are there, and so is what we wrote last; looks only where it is `unseen`.

        Args:
            held: the items by the stage they were born in, in the order of their births: of many only the last are
                looked for one by one.

        Raises:
            DoubtfulAnswer: they are not: somebody has put the store back to how it was a while ago.
        """
        ...

    async def apply(self, change: BankChange) -> None:
        """Write what is new, then publish `change.version`. A change that the store has already is harmless.

        Raises:
            VersionGap: `change.since` is above the newest version.
            DeadGeneration: a newer generation has begun; nothing is published here any more.
            UncleanWrite: nobody knows what was written: the generation is lost.
            BadInput: a row that no store may hold; nothing was sent.
        """
        ...

    async def search(self, stage: Stage, query: Vector, limit: int, at: BankVersion) -> list[Hit]:
        """Exactly the `limit` rows with the largest dots over the stage's bank at version `at`, by (-dot, id).

        Raises:
            Mismatch: `at` is not published here.
            NotAUnitVector: the query is none, or has another dimension than the bank.
            DoubtfulAnswer: an answer that cannot be right.
        """
        ...

    async def items(self, at: BankVersion) -> list[Row]:
        """Every row that is live at `at`, in id order; texts and values as `refresh` has left them.

        Raises:
            Mismatch: `at` is not published here.
            DoubtfulAnswer: a row that cannot be right.
        """
        ...

    async def newest(self) -> BankVersion | None:
        """The newest version published; None before the first."""
        ...

    async def missing(self, rows: Sequence[Row], at: BankVersion) -> list[str]:
        """What is wrong with a store that should hold `rows`, all born by `at`, one sentence each; [] = nothing.

        Not only whether they are there, but whether searches find them, and whatever else is there.
        """
        ...

    async def refresh(self) -> int:
        """Bring what people see of rows up to date with the changes applied; how many rows that were.

        Raises:
            UncleanWrite: as `apply`.
        """
        ...

    async def clear(self, oldest: BankVersion) -> int:
        """Delete rows pruned at or before `oldest`, as nobody reads an older version; how many.

        Raises:
            UncleanWrite: as `apply`.
        """
        ...

    async def drop(self) -> None:
        """Remove every row of this generation. Harmless where there is none."""
        ...
