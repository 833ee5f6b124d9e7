"""What a bank store is told: rows of items, and what each version did to them."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from events.bank import Banks, Item
from events.errors import VersionGap
from events.ids import STAGES, BankVersion, MemoryId, Stage
from events.operations import Discarded, Ignored, Inserted, Merged, Operation, Pruned, ValueUpdated
from infra.banks.prunes import stage_of
from runtime.bank_store import BankChange, Row
from runtime.ports import Basis


def row_of(banks: Banks, item: Item) -> Row:
    """A live item of `banks` as a store holds it."""
    return Row(
        id=item.id,
        bank=item.bank,
        born=item.inserted_at,
        vector=banks.shelf(item.bank).scenarios.raw(item.scenario_row),
        scenario=item.scenario,
        experience=item.experience,
        delta_sum=item.delta_sum,
        n=item.n,
        sources=item.sources,
    )


def change_of(before: BankVersion, banks: Banks, operations: Sequence[Operation], basis: Basis | None) -> BankChange:
    """What the step from version `before` to `banks` did, which `operations` say and `basis` records."""
    born: dict[MemoryId, None] = {}
    touched: dict[MemoryId, None] = {}
    pruned: dict[MemoryId, BankVersion] = {}
    for operation in operations:
        match operation:
            case Inserted():
                born[operation.id] = None
            case ValueUpdated() | Merged():
                touched[operation.id] = None
            case Pruned():
                pruned[operation.id] = banks.version
            case Ignored() | Discarded():
                pass
    return BankChange(
        since=before,
        version=banks.version,
        born=rows_of(banks, born),
        changed=rows_of(banks, (one for one in touched if one not in born)),
        pruned=pruned,
        basis=basis,
    )


def rows_of(banks: Banks, ids: Iterable[MemoryId]) -> list[Row]:
    """Those of `ids` that are live, as rows."""
    return [row_of(banks, item) for one in ids if (item := banks.get(one)) is not None]


def held(banks: Banks, pruned: Iterable[MemoryId]) -> dict[Stage, list[MemoryId]]:
    """The items whose rows a store of `banks` holds, by the stage that they were born in, the live ones oldest first.

    Args:
        banks: the version that is published.
        pruned: what it lacks and an older version that somebody may read has.
    """
    found: dict[Stage, list[MemoryId]] = {stage: [] for stage in STAGES}
    for one in pruned:
        found[stage_of(one)].append(one)
    for item in sorted(banks, key=lambda item: item.inserted_at):
        found[item.bank].append(item.id)
    return found


def lost(older: Banks, newer: Banks) -> list[MemoryId]:
    """The items of `older` that `newer` lacks."""
    return [item.id for item in older if newer.get(item.id) is None]


def whole(
    banks: Banks, gone: Iterable[tuple[Banks, Mapping[MemoryId, BankVersion]]], basis: Basis | None
) -> BankChange:
    """Everything that a reader of `banks`, or of one of the versions before it, may ask for.

    Args:
        banks: the newest version.
        gone: older versions, each with the items that it held and that a later version lacks from then on.
        basis: the `folded` that made `banks`.
    """
    rows = [row_of(banks, item) for item in banks]
    pruned: dict[MemoryId, BankVersion] = {}
    for older, ids in gone:
        rows += rows_of(older, (one for one in ids if one not in pruned))
        pruned.update(ids)
    return BankChange(since=None, version=banks.version, born=rows, pruned=pruned, basis=basis)


def joined(changes: Sequence[BankChange]) -> BankChange:
    """Changes that follow each other as one.

    Raises:
        VersionGap: they do not.
    """
    first, *rest = changes
    born = {one.id: one for one in first.born}
    changed = {one.id: one for one in first.changed}
    pruned, last = dict(first.pruned), first
    for change in rest:
        if change.since != last.version:
            raise VersionGap("changes of a bank", last.version, -1 if change.since is None else change.since)
        born.update((one.id, one) for one in change.born)
        for one in change.changed:
            (born if one.id in born else changed)[one.id] = one
        pruned.update(change.pruned)
        last = change
    return replace(last, since=first.since, born=list(born.values()), changed=list(changed.values()), pruned=pruned)
