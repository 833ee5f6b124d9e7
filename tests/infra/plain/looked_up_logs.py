"""Logs as on a server: each call finds what the store holds by then, and nothing once the run is deleted."""

from typing import Any

from events.ids import RunId
from infra.list_log import ListLogStore


class LookedUp:
    """A log that is looked for in its store at every call."""

    def __init__(self, store: ListLogStore, run: RunId) -> None:
        self._store, self.run = store, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store.open(self.run), name)


class LookedUpLogs:
    """A store of such logs.

    Args:
        there: where they are looked for.
    """

    def __init__(self, there: ListLogStore) -> None:
        self._there = there

    def open(self, run: RunId) -> Any:
        return LookedUp(self._there, run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._there, name)
