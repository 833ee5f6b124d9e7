"""One file per embedder; `load` finds it by name. A module holds `create(options)` and imports its own vendor."""

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol, cast

from events.errors import UnknownName
from runtime.ports import Embedder


class EmbedderModule(Protocol):
    """What a file in this folder offers."""

    def create(self, options: Mapping[str, Any], /) -> Embedder: ...


def names() -> list[str]:
    """Every embedder there is."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str, options: Mapping[str, Any] | None = None) -> Embedder:
    """The embedder `name`.

    Raises:
        UnknownName: no such embedder.
        BadInput: an option it does not have.
    """
    if name not in names():
        raise UnknownName("embedder", name, names())
    module = cast("EmbedderModule", import_module(f"{__name__}.{name.replace('-', '_')}"))
    return module.create(options or {})
