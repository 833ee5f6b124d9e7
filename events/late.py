"""Modules that are loaded when something of them is first used.

numpy and structlog take more than 0.1 s of CPU time each, a quarter of what a command such as `chime run list` may
cost, and it uses neither. Everything else is imported at the top of the module that needs it.
"""

from importlib import import_module
from typing import Any


class Late:
    """The module `name`, imported when it is first asked for something."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(self._name), attribute)
        # From now on an attribute like any other: a replay asks some of them in every fold.
        setattr(self, attribute, found)
        return found
