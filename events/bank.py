"""The two banks at one version: items, exact search, `evolve`, digest.

`Banks` is a value: `evolve` returns another and leaves the old one as it was. Little is copied on the way:
items sit in small sorted chunks shared between versions, vectors in append-only rows that the versions of a run share
until most of them are dead.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import assert_never

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from events.codec import canonical
from events.errors import BadInput, FoldMismatch
from events.ids import STAGES, BankVersion, MemoryId, MemoryOrder, Stage, attributed, memory_order
from events.kinds import Diagnosed, Experience, SeededItem
from events.late import np, npt
from events.operations import Discarded, Ignored, Inserted, Merged, Operation, Pruned, ValueUpdated
from events.rows import Rows
from events.sorted_items import ById, Chunks
from events.vectors import Vector

_SEED_VERSION = BankVersion(0)
_CONTENT = frozenset({Inserted, Merged, Discarded})


class Item(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """m_i = (c_i, e_i, v_i, n_i) of equation (3), with its provenance. Vectors stand in the bank's rows."""

    id: MemoryId
    #: the stage it was born in
    bank: Stage
    #: c_i
    scenario: str
    #: e_i: base text, then "\n- " and the text of each bullet
    experience: str
    #: how many bullets `experience` holds
    bullets: int
    #: row of c_i among the stage's scenario vectors
    scenario_row: int
    #: rows of every experience that went into the item, in order of arrival
    experience_rows: tuple[int, ...]
    #: sum of feedback in units of 1e-4; v_i = delta_sum / (10000 n)
    delta_sum: int
    #: n_i
    n: int
    #: t of every episode that went into it, in order
    sources: tuple[int, ...]
    #: how many of the first sources it had at version 0
    seeded_sources: int
    #: first version that holds the item
    inserted_at: BankVersion
    #: first version that holds its present state
    changed_at: BankVersion
    #: what `id` sorts by
    order: MemoryOrder
    #: `Banks.sha256` of it, once somebody has asked
    hashed: bytes | None = None

    @property
    def value(self) -> float:
        """The float64 nearest to v_i, in [-1, 1]; 0 for an item never used."""
        return self.delta_sum / (10_000 * self.n) if self.n else 0.0


class Shelf(Struct, frozen=True, eq=False):
    """The vectors of one stage's items."""

    scenarios: Rows = field(default_factory=Rows)
    experiences: Rows = field(default_factory=Rows)


@dataclass(frozen=True, slots=True)
class Nearest:
    """The item whose scenario is most similar, and c_new . c_item in units of 2^-48."""

    item: Item
    dot: int


def _no_items() -> ById[Item]:
    return ById(Chunks(), {})


class Banks(Struct, frozen=True, kw_only=True, eq=False):
    """M_t: every live item of both banks, and their vectors."""

    #: t
    version: BankVersion = _SEED_VERSION
    items: ById[Item] = field(default_factory=_no_items)
    planning: Shelf = field(default_factory=Shelf)
    execution: Shelf = field(default_factory=Shelf)

    def get(self, memory: MemoryId) -> Item | None:
        """The live item of that id.

        Raises:
            BadInput: not a memory id.
        """
        return self.items.get(memory)

    def __iter__(self) -> Iterator[Item]:
        """Every live item in id order."""
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def sizes(self) -> dict[Stage, int]:
        """Live items by birth stage."""
        return {stage: self.shelf(stage).scenarios.live for stage in STAGES}

    def shelf(self, stage: Stage) -> Shelf:
        return self.planning if stage == "planning" else self.execution

    def digest(self) -> str:
        """Hex SHA-256 of the item hashes in id order: equal exactly when the banks are equal."""
        return hashlib.sha256(self.items.joined(self.sha256)).hexdigest()

    def sha256(self, item: Item) -> bytes:
        """SHA-256 of a live item's canonical bytes (docs/events.md), 32 bytes; computed once."""
        if item.hashed is None:
            force_setattr(item, "hashed", hashlib.sha256(self._canonical(item)).digest())
        assert item.hashed is not None  # noqa: S101 - set above; for the type checker
        return item.hashed

    def _canonical(self, item: Item) -> bytes:
        shelf = self.shelf(item.bank)
        return canonical(
            {
                "bank": item.bank,
                "bullets": item.bullets,
                "changed_at": item.changed_at,
                "delta_sum": item.delta_sum,
                "experience": item.experience,
                "experience_vectors": [shelf.experiences.sha256(row) for row in item.experience_rows],
                "id": item.id,
                "inserted_at": item.inserted_at,
                "n": item.n,
                "scenario": item.scenario,
                "scenario_vector": shelf.scenarios.sha256(item.scenario_row),
                "seeded_sources": item.seeded_sources,
                "sources": item.sources,
            }
        )

    def nearest(
        self, stages: Sequence[Stage], scenario: "npt.NDArray[np.float64]", without: Collection[MemoryId] = ()
    ) -> Nearest | None:
        """m_{i*} of equation (10): the largest dot over the banks of `stages`, ties to the lowest id.

        Args:
            stages: which banks to search.
            scenario: `Vector.exact()` of c_new, shape (d,).
            without: items that count as gone.
        """
        best: Nearest | None = None
        for stage in stages:
            rows = self.shelf(stage).scenarios
            gone = [item.scenario_row for item in map(self.get, without) if item is not None and item.bank == stage]
            top, at = rows.largest(scenario, gone)
            for row in at:
                item = self.get(rows.owner(row))
                assert item is not None  # noqa: S101 - a live row has a live owner
                if best is None or (-top, item.order) < (-best.dot, best.item.order):
                    best = Nearest(item, top)
        return best

    def most_similar_experience(
        self, stages: Sequence[Stage], experience: "npt.NDArray[np.float64]", without: Collection[MemoryId] = ()
    ) -> int | None:
        """The largest dot of e_new with every experience vector in the banks of `stages`; None for empty banks."""
        tops: list[int] = []
        for stage in stages:
            rows = self.shelf(stage).experiences
            items = [item for item in map(self.get, without) if item is not None and item.bank == stage]
            top, at = rows.largest(experience, [row for item in items for row in item.experience_rows])
            if at:
                tops.append(top)
        return max(tops, default=None)

    def scenario_vector(self, item: Item) -> Vector:
        """c_i as recorded."""
        return self.shelf(item.bank).scenarios.vector(item.scenario_row)

    def experience_vectors(self, item: Item) -> list[Vector]:
        """Every experience vector of the item, in order of arrival."""
        return [self.shelf(item.bank).experiences.vector(row) for row in item.experience_rows]


def stored(banks: Banks, kept: Iterable[SeededItem]) -> Banks:
    """`banks` with the items `kept`, as they stand there.

    Raises:
        NotAUnitVector: a vector that is none.
    """
    added: dict[MemoryId, Item | None] = {}
    shelves = {stage: banks.shelf(stage) for stage in STAGES}
    for one in kept:
        shelf = shelves[one.bank]
        scenarios, row = shelf.scenarios.appended(one.scenario_vector, one.id)
        experiences, rows = shelf.experiences, list[int]()
        for vector in one.experience_vectors:
            experiences, at = experiences.appended(vector, one.id)
            rows.append(at)
        shelves[one.bank] = Shelf(scenarios, experiences)
        added[one.id] = Item(
            id=one.id,
            bank=one.bank,
            scenario=one.scenario,
            experience=one.experience,
            bullets=one.bullets,
            scenario_row=row,
            experience_rows=tuple(rows),
            delta_sum=one.delta_sum,
            n=one.n,
            sources=tuple(one.sources),
            seeded_sources=one.seeded_sources,
            inserted_at=BankVersion(one.inserted_at),
            changed_at=BankVersion(one.changed_at),
            order=memory_order(one.id),
        )
    return Banks(
        version=banks.version,
        items=banks.items.updated(added),
        planning=shelves["planning"],
        execution=shelves["execution"],
    )


def seed(banks: Banks, seeds: Iterable[SeededItem]) -> Banks:
    """`banks` at version 0 with the seed bank's items.

    Raises:
        NotAUnitVector: a vector that is none.
        FoldMismatch: ids doubled or out of order.
    """
    added = [
        replace(one, seeded_sources=len(one.sources), inserted_at=_SEED_VERSION, changed_at=_SEED_VERSION)
        for one in seeds
    ]
    seeded = stored(banks, added)
    orders = [*([item.order for item in banks][-1:]), *(memory_order(one.id) for one in added)]
    if any(a >= b for a, b in pairwise(orders)):
        raise FoldMismatch("seeded", "order of ids", [one.id for one in added], "ascending, each once")
    return seeded


def evolve(banks: Banks, diagnosed: Diagnosed | None, operations: Sequence[Operation]) -> Banks:
    """M_{t+1} of equation (1): `operations` applied to `banks`. Applies decisions, never searches.

    Args:
        banks: M_t, unchanged afterwards.
        diagnosed: g_t, whose texts and vectors insert and merge use; None for an abandoned episode.
        operations: as the policy decided or as `folded` records them.

    Raises:
        FoldMismatch: an operation that does not fit: a sum, an absent item, an id that exists.
    """
    change = _Change(banks, diagnosed)
    stages = _content_stages([one for one in operations if type(one) in _CONTENT], diagnosed)
    for operation in operations:
        match operation:
            case ValueUpdated():
                change.value(operation)
            case Pruned():
                change.prune(operation)
            case Inserted():
                change.insert(operation, next(stages))
            case Merged():
                change.merge(operation, next(stages))
            case Discarded():
                next(stages)
            case Ignored():
                pass
            case _:
                assert_never(operation)
    return change.done()


def looks_into_diagnosis(operations: Iterable[Operation]) -> bool:
    """Whether `evolve` makes the same of these operations only when it is given the diagnosis."""
    for one in operations:
        # Most are values, and this is asked of each fold of a replay.
        if type(one) in _CONTENT and (isinstance(one, Inserted) or (isinstance(one, Merged) and one.how != "recorded")):
            return True
    return False


def _content_stages(contents: Sequence[Operation], diagnosed: Diagnosed | None) -> Iterator[Stage]:
    """Whose experience each content operation is about: one for each stage in L(a), planning first.

    Where the two banks are one, a merge names its target's birth stage, so the order tells and not `bank`.
    """
    if len(contents) == len(STAGES):
        return iter(STAGES)
    if diagnosed is not None and len(contents) == len(attributed(diagnosed.label)):
        return iter(attributed(diagnosed.label))
    stages: list[Stage] = [one.bank for one in contents]
    return iter(stages)


class _Change:
    """One step of `evolve` under way. What `value` and `merge` do to items, `events.newest` does for a replay too."""

    __slots__ = ("_banks", "_diagnosed", "_items", "_shelves", "_version")

    def __init__(self, banks: Banks, diagnosed: Diagnosed | None) -> None:
        self._banks, self._diagnosed = banks, diagnosed
        self._version = BankVersion(banks.version + 1)
        self._items: dict[MemoryId, Item | None] = {}
        self._shelves: dict[Stage, Shelf] = {}

    def value(self, operation: ValueUpdated) -> None:
        item = self._item(operation)
        total, n = item.delta_sum + operation.delta_e4, item.n + 1
        if total != operation.delta_sum or n != operation.n:
            raise self._misfit(operation, "sum and count", (operation.delta_sum, operation.n), (total, n))
        self._items[item.id] = replace(item, delta_sum=total, n=n, changed_at=self._version, hashed=None)

    def prune(self, operation: Pruned) -> None:
        item = self._item(operation)
        shelf = self._shelf(item.bank)
        self._shelves[item.bank] = Shelf(
            shelf.scenarios.without([item.scenario_row]), shelf.experiences.without(item.experience_rows)
        )
        self._items[item.id] = None

    def insert(self, operation: Inserted, stage: Stage) -> None:
        self._check_source(operation)
        there = self._there(operation)
        order = memory_order(operation.id)
        # `<stage>-<t>` of this episode, perhaps with a k, never with an origin.
        if order[:4] != (False, "", STAGES.index(operation.bank), operation.source):
            raise self._misfit(operation, "id", operation.id, f"{operation.bank}-{operation.source}")
        if there is not None:
            raise self._misfit(operation, "id", operation.id, "an id that is not in the bank")
        new = self._new_experience(operation, stage)
        shelf = self._shelf(operation.bank)
        scenarios, row = shelf.scenarios.appended(new.scenario_vector, operation.id)
        experiences, at = shelf.experiences.appended(new.experience_vector, operation.id)
        self._shelves[operation.bank] = Shelf(scenarios, experiences)
        self._items[operation.id] = Item(
            id=operation.id,
            bank=operation.bank,
            scenario=new.scenario,
            experience=new.experience,
            bullets=0,
            scenario_row=row,
            experience_rows=(at,),
            delta_sum=0,
            n=0,
            sources=(operation.source,),
            seeded_sources=0,
            inserted_at=self._version,
            changed_at=self._version,
            order=order,
        )

    def merge(self, operation: Merged, stage: Stage) -> None:
        item = self._item(operation)
        self._check_source(operation)
        item = replace(item, sources=(*item.sources, operation.source), changed_at=self._version, hashed=None)
        if operation.how != "recorded":
            new = self._new_experience(operation, stage)
            shelf = self._shelf(item.bank)
            experiences, at = shelf.experiences.appended(new.experience_vector, item.id)
            self._shelves[item.bank] = Shelf(shelf.scenarios, experiences)
            item = replace(item, experience_rows=(*item.experience_rows, at))
            if operation.how == "appended":
                text = f"{item.experience}\n- {new.experience}"
                item = replace(item, experience=text, bullets=item.bullets + 1)
            else:
                item = replace(item, experience=self._rewritten(operation, stage), bullets=0)
        self._items[item.id] = item

    def done(self) -> Banks:
        banks = Banks(
            version=self._version,
            items=self._banks.items.updated(self._items) if self._items else self._banks.items,
            planning=self._shelf("planning"),
            execution=self._shelf("execution"),
        )
        sparse: list[Stage] = [
            stage for stage, shelf in self._shelves.items() if shelf.scenarios.sparse or shelf.experiences.sparse
        ]
        return _compacted(banks, sparse) if sparse else banks

    def _there(self, operation: ValueUpdated | Pruned | Merged | Inserted) -> Item | None:
        """The live item that `operation` names."""
        memory = operation.id
        if self._items and memory in self._items:
            return self._items[memory]
        try:
            return self._banks.items.get(memory)
        except BadInput as error:
            raise self._misfit(operation, "id", memory, str(error)) from error

    def _item(self, operation: ValueUpdated | Pruned | Merged) -> Item:
        item = self._there(operation)
        if item is None:
            raise self._misfit(operation, "id", operation.id, "no such item")
        if item.bank != operation.bank:
            raise self._misfit(operation, "bank", operation.bank, item.bank)
        return item

    def _check_source(self, operation: Inserted | Merged) -> None:
        if operation.source != self._banks.version:
            raise self._misfit(operation, "source", operation.source, self._banks.version)

    def _shelf(self, stage: Stage) -> Shelf:
        return self._shelves.get(stage) or self._banks.shelf(stage)

    def _new_experience(self, operation: Inserted | Merged, stage: Stage) -> Experience:
        new = self._diagnosed.experiences.of(stage) if self._diagnosed is not None else None
        if new is None:
            raise self._misfit(operation, "experience", stage, None)
        return new

    def _rewritten(self, operation: Merged, stage: Stage) -> str:
        proposal = self._diagnosed.merge_proposals.of(stage) if self._diagnosed is not None else None
        if proposal is None or proposal.target != operation.id:
            raise self._misfit(operation, "merge proposal", operation.id, proposal and proposal.target)
        return proposal.text

    def _misfit(self, operation: Operation, what: str, recorded: object, computed: object) -> FoldMismatch:
        where = f"bank version {self._version}, {type(operation).__name__} in {operation.bank}"
        return FoldMismatch(where, what, recorded, computed)


def _compacted(banks: Banks, stages: Sequence[Stage]) -> Banks:
    """`banks` with the live vectors of `stages` in rows of their own; no item changes but for the numbers of rows."""
    shelves = {stage: banks.shelf(stage) for stage in STAGES}
    moved: dict[MemoryId, Item | None] = {}
    for stage in stages:
        scenarios, scenario_at = shelves[stage].scenarios.compacted()
        experiences, experience_at = shelves[stage].experiences.compacted()
        shelves[stage] = Shelf(scenarios, experiences)
        for item in banks:
            if item.bank == stage:
                moved[item.id] = replace(
                    item,
                    scenario_row=scenario_at[item.scenario_row],
                    experience_rows=tuple(experience_at[row] for row in item.experience_rows),
                )
    return Banks(
        version=banks.version,
        items=banks.items.updated(moved),
        planning=shelves["planning"],
        execution=shelves["execution"],
    )
