"""Modules that are loaded when something of them is first used; numpy, as `np`, is one for all. Patterns likewise.

numpy and structlog take more than 0.1 s of CPU time each, a quarter of what a command such as `chime run list` may
cost, and it uses neither. The SDK of models takes half of what the start of a process costs, and a coordinator asks no
model. Everything else is imported at the top of the module that needs it. Annotations that name `np` or `npt` are
written as text, or they would load it. The long lists of words by which errors and instructions are known take as much
together, and most commands read neither.
"""

import re
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

__all__ = ["Late", "late_pattern", "np", "npt"]


class _Late:
    """What `_made` gives, made when it is first asked for something."""

    def _made(self) -> Any:
        raise NotImplementedError

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._made(), attribute)
        # From now on an attribute like any other: a replay asks some of them in every fold.
        setattr(self, attribute, found)
        return found


class Late(_Late):
    """The module `name`, imported when it is first asked for something."""

    def __init__(self, name: str) -> None:
        self._name = name

    @override
    def _made(self) -> Any:
        return import_module(self._name)


def late_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """`re.compile`, when the pattern is first asked; it raises `re.error` only then.

    For its methods and attributes: `re.sub` and `isinstance` do not know it.
    """
    return cast("re.Pattern[str]", _LatePattern(text, flags))


class _LatePattern(_Late):
    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags

    @override
    def _made(self) -> Any:
        return self._compiled

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self._text, self._flags)

    @override
    def __reduce__(self) -> Any:
        # A copy begins with its text: asked for anything before it has one, it would ask itself without end.
        return late_pattern, (self._text, self._flags)


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np, npt = Late("numpy"), Late("numpy.typing")
