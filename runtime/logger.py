"""Loggers that load structlog with their first line: it costs 0.13 s with what it brings along, and most commands of a
person have nothing to say. How lines are written may be settled late, too.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from events.late import Late

structlog = Late("structlog")

#: settles how lines are written, before the first one; None = settled, or nobody said how
_unsettled: Callable[[], None] | None = None


class Logger:
    """structlog's logger of that name, with `facts` in every line; its methods are structlog's."""

    def __init__(self, *name: str, **facts: Any) -> None:
        self._name, self._facts = name, facts
        self._logger: Any = None

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__"):
            raise AttributeError(method)
        if _unsettled is not None:
            _settle()
        if self._logger is None:
            self._logger = structlog.get_logger(*self._name, **self._facts)
        return getattr(self._logger, method)


def settle_late(configure: Callable[[], None]) -> None:
    """Have `configure` called before the first line: of ours, or a warning of another library's."""
    global _unsettled  # noqa: PLW0603 - how a process writes its lines is the process's, as it is in structlog
    if "structlog" in sys.modules:
        configure()
        return
    if _unsettled is None:
        logging.getLogger().addHandler(_First())
    _unsettled = configure


def settled() -> None:
    """Somebody has configured structlog: what was to be done late is not."""
    global _unsettled  # noqa: PLW0603 - as above
    _unsettled = None


def _settle() -> None:
    configure = _unsettled
    settled()
    if configure is not None:
        configure()


class _First(logging.Handler):
    """Meets the first line of another library before it is known how lines are written."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger().removeHandler(self)
        _settle()
        logging.getLogger(record.name).handle(record)
