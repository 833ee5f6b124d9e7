"""Which items a run's banks have lost, and when: what a store still holds of them is not to be found any more."""

from bisect import bisect_right
from collections.abc import Mapping

from events.ids import STAGES, BankVersion, MemoryId, Stage, memory_order


class Prunes:
    """Every pruned item of a run with the first version that lacks it. Versions are told in order."""

    def __init__(self) -> None:
        self._at: dict[MemoryId, BankVersion] = {}
        #: the versions of each stage's prunes, ascending
        self._versions: dict[Stage, list[BankVersion]] = {stage: [] for stage in STAGES}

    def add(self, pruned: Mapping[MemoryId, BankVersion]) -> None:
        """These are pruned as well; what is known already is passed over."""
        for memory, version in sorted(pruned.items(), key=lambda pair: pair[1]):
            if memory not in self._at:
                self._at[memory] = version
                self._versions[stage_of(memory)].append(version)

    def gone(self, memory: MemoryId, at: BankVersion) -> bool:
        """Whether version `at` lacks it because it was pruned."""
        pruned = self._at.get(memory)
        return pruned is not None and pruned <= at

    def count(self, stage: Stage, after: BankVersion, at: BankVersion) -> int:
        """How many items of the stage were pruned in versions after `after`, up to `at`."""
        versions = self._versions[stage]
        return bisect_right(versions, at) - bisect_right(versions, after)


def stage_of(memory: MemoryId) -> Stage:
    """The bank that it was born in."""
    return STAGES[memory_order(memory)[2]]
