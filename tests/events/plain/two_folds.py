"""Both folds behind one face, so that a table of literal numbers is held against each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import plain_fold
import plain_logs
import product_fold
from plain_fold import Data
from plain_logs import Scribe

from events.ids import Stage
from events.vectors import Vector


@dataclass
class Outcome:
    """What one fold makes of a log: `operations[t]`, and the items of `banks[v]` in id order."""

    operations: list[list[Data]]
    banks: list[list[Data]]
    digests: list[str]
    #: (stage, query) -> candidates at the newest version
    recall: Callable[[Stage, Sequence[int]], list[Data]]

    def item(self, memory: str, version: int = -1) -> Data:
        (item,) = [item for item in self.banks[version] if item["id"] == memory]
        return item

    def ids(self, version: int = -1) -> list[str]:
        return [item["id"] for item in self.banks[version]]


def plain(scribe: Scribe) -> Outcome:
    """By the second fold, from the events."""
    folding = plain_fold.fold(scribe.events)

    def recall(stage: Stage, query: Sequence[int]) -> list[Data]:
        return folding.recall(stage, len(folding.banks) - 1, query)

    return Outcome(folding.operations, [plain_fold.in_order(one) for one in folding.banks], folding.digests, recall)


def product(scribe: Scribe) -> Outcome:
    """By the product, from the events."""
    folded = product_fold.decided(product_fold.recorded_log(scribe.events))

    def recall(stage: Stage, query: Sequence[int]) -> list[Data]:
        vector = msgspec.convert(plain_logs.vector(query), Vector)
        return folded.recall(stage, len(folded.banks) - 1, vector)

    return Outcome(
        product_fold.as_data(folded.operations),
        [product_fold.items(one) for one in folded.banks],
        [one.digest() for one in folded.banks],
        recall,
    )


FOLDS: dict[str, Callable[[Scribe], Outcome]] = {"plain": plain, "product": product}
