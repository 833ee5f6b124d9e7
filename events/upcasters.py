"""Old shapes of events brought to the newest, one pure dict -> dict step per schema number.

A step is named by the kind and the schema it starts from; `upcast` walks them in order. No stored log is rewritten.
"""

from collections.abc import Callable
from typing import Any

Step = Callable[[dict[str, Any]], dict[str, Any]]

#: (kind, schema it starts from) -> the data one schema later
STEPS: dict[tuple[str, int], Step] = {}


def upcast(kind: str, schema: int, data: dict[str, Any]) -> dict[str, Any]:
    """`data` of `kind` at `schema`, brought to the newest schema by every step there is."""
    while (step := STEPS.get((kind, schema))) is not None:
        data, schema = step(data), schema + 1
    return data
