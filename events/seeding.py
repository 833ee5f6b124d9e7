"""A bank at one version as the seed of another run: whole items under ids that name their origin."""

from collections.abc import Iterator, Sequence

from events.bank import Banks
from events.codec import EVENT_CAP, canonical
from events.ids import BankVersion, RunId, memory_order, seeded_id
from events.kinds import Seeded, SeededItem

#: room for what surrounds the items in one event, bytes
_FRAME = 64


def seed_items(banks: Banks, origin: RunId) -> list[SeededItem]:
    """Every item of `banks` as a seed, in the order of its id in the new run.

    Args:
        banks: of the run `origin`.
        origin: goes before ids that have no origin yet.
    """
    start = BankVersion(0)
    items = [
        SeededItem(
            bank=item.bank,
            id=seeded_id(origin, item.id),
            scenario=item.scenario,
            experience=item.experience,
            delta_sum=item.delta_sum,
            n=item.n,
            bullets=item.bullets,
            sources=list(item.sources),
            seeded_sources=len(item.sources),
            inserted_at=start,
            changed_at=start,
            scenario_vector=banks.scenario_vector(item),
            experience_vectors=banks.experience_vectors(item),
        )
        for item in banks
    ]
    return sorted(items, key=lambda item: memory_order(item.id))


def seeded_events(items: Sequence[SeededItem]) -> Iterator[Seeded]:
    """`items` in as few events as the size cap allows, in order."""
    batch: list[SeededItem] = []
    size = _FRAME
    for item in items:
        length = len(canonical(item)) + 1
        if batch and size + length > EVENT_CAP:
            yield Seeded(items=batch)
            batch, size = [], _FRAME
        batch.append(item)
        size += length
    if batch:
        yield Seeded(items=batch)
