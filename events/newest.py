"""The newest version of banks, made by one fold after the other: for a replay, which keeps no version between.

Most folds change values and name sources, and nothing else. What they change waits beside the items until somebody
looks at the banks, so such a fold costs its operations, however many items and sources there are.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from events.bank import Banks, Item, evolve
from events.errors import BadInput
from events.ids import BankVersion, MemoryId
from events.kinds import Diagnosed
from events.operations import Discarded, Ignored, Merged, Operation, ValueUpdated

#: tuples, which are asked faster than unions
_NAMING = (ValueUpdated, Merged)
_CHANGING_NOTHING = (Ignored, Discarded)


class _Used:
    """What an item has become: the rest of it is as it was."""

    __slots__ = ("changed_at", "delta_sum", "item", "n", "sources")

    def __init__(self, item: Item) -> None:
        self.item, self.delta_sum, self.n, self.changed_at = item, item.delta_sum, item.n, item.changed_at
        #: those that it has got since
        self.sources: list[int] = []

    def settled(self) -> Item:
        return replace(
            self.item,
            delta_sum=self.delta_sum,
            n=self.n,
            changed_at=self.changed_at,
            sources=(*self.item.sources, *self.sources),
            hashed=None,
        )


class Newest:
    """Banks that folds are applied to in turn.

    Args:
        banks: where to begin; stay as they are.
    """

    __slots__ = ("_banks", "_used", "version")

    def __init__(self, banks: Banks) -> None:
        self._banks = banks
        self._used: dict[MemoryId, _Used] = {}
        #: of the banks
        self.version = banks.version

    @property
    def banks(self) -> Banks:
        """As `evolve` would have made them, fold by fold."""
        if self._banks.version != self.version:
            changed: dict[MemoryId, Item | None] = {memory: used.settled() for memory, used in self._used.items()}
            self._banks = replace(self._banks, version=self.version, items=self._banks.items.updated(changed))
            self._used.clear()
        return self._banks

    def evolve(self, diagnosed: Diagnosed | None, operations: Sequence[Operation]) -> None:
        """As `events.bank.evolve`; nothing has changed where it raises.

        Raises:
            FoldMismatch: as there.
        """
        self._banks = evolve(self.banks, diagnosed, operations)
        self._used.clear()
        self.version = self._banks.version

    def noted(self, operations: Sequence[Operation]) -> bool:
        """Whether these operations are applied now, without a diagnosis; else `evolve` knows what to make of them."""
        version, waiting = self.version, self._used.get
        touched: list[_Used] = []
        for one in operations:
            # A type is compared, which is faster than asking for an instance: a replay does it for each operation.
            if type(one) is ValueUpdated:
                used = waiting(one.id) or self._taken(one.id)
                if used is None or used.item.bank != one.bank:
                    break
                total, n = used.delta_sum + one.delta_e4, used.n + 1
                if total != one.delta_sum or n != one.n:
                    break
                used.delta_sum, used.n = total, n
                touched.append(used)
            elif type(one) is Merged and one.how == "recorded" and one.source == version:
                used = waiting(one.id) or self._taken(one.id)
                if used is None or used.item.bank != one.bank:
                    break
                used.sources.append(version)
                touched.append(used)
            elif not isinstance(one, _CHANGING_NOTHING):
                break
        else:
            self.version = following = BankVersion(version + 1)
            for used in touched:
                used.changed_at = following
            return True
        self._undo(touched, operations)
        return False

    def _undo(self, touched: Sequence[_Used], operations: Sequence[Operation]) -> None:
        """Take back what the first operations have made of `touched`."""
        naming = [one for one in operations if isinstance(one, _NAMING)]
        for used, one in zip(touched, naming, strict=False):
            if isinstance(one, ValueUpdated):
                used.delta_sum -= one.delta_e4
                used.n -= 1
            else:
                used.sources.pop()

    def _taken(self, memory: MemoryId) -> _Used | None:
        try:
            item = self._banks.items.get(memory)
        except BadInput:
            return None
        if item is None:
            return None
        used = self._used[memory] = _Used(item)
        return used
