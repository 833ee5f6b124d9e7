"""Which store a run's recalls come from: said in its header, and changed when it goes on elsewhere."""

from collections.abc import Mapping
from typing import Any, cast, get_args

from events.errors import BadInput
from workers.configuration import Store

#: what a header says that was written before there was a choice
_FIRST: Store = "replica"


def named_store(operational: Mapping[str, Any], before: str = _FIRST) -> str:
    """The store that an operational part names, whether this code knows it or not; `before` where it names none."""
    bank = operational.get("bank")
    return str(bank.get("store", before)) if isinstance(bank, Mapping) else before


def bank_store(operational: Mapping[str, Any]) -> Store:
    """The store of a run, by its operational part.

    Raises:
        BadInput: one that this code does not know.
    """
    name = named_store(operational)
    if name not in get_args(Store):
        raise BadInput(f"the run's bank is in {name!r}; this code knows {', '.join(get_args(Store))}")
    return cast("Store", name)
