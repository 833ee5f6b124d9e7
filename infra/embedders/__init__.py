"""One file per embedder; `load` finds it by name.

A module holds `Settings` (a struct of all its options with their defaults), `OPERATIONAL` (the names of those that
change no vector and are not in the fingerprint) and `create(settings, around)`, and imports its own vendor.
"""

import pkgutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

import anyio
import msgspec
from msgspec import Struct
from typing_extensions import override

from events.errors import BadInput, UnknownName
from events.kinds import EmbedderIdentity
from infra.clock import SystemClock
from runtime.ports import Clock, Embedder

#: how long closing an embedder may take, seconds
_CLOSE_S = 15.0


class LoadedEmbedder(Embedder, Protocol):
    """An embedder with its beginning and end."""

    @property
    def is_free(self) -> bool:
        """Whether embedding costs next to nothing, so that no vector need be remembered."""
        ...

    @property
    @override
    def identity(self) -> EmbedderIdentity:
        """Known once `identify` or `start` has returned."""
        ...

    async def identify(self) -> EmbedderIdentity:
        """What its vectors are made with, as cheaply as that can be known.

        Raises:
            BadInput: no such model.
            EmbedderUnavailable, RunStopped: what says so cannot be reached.
        """
        ...

    async def start(self) -> None:
        """It can embed: the model is in memory, or its server answers. Once more is harmless.

        Raises:
            BadInput, EmbedderUnavailable, RunStopped: as `identify`.
        """
        ...

    async def aclose(self) -> None:
        """Let go of what `start` took."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What an embedder is handed beside its options."""

    #: the process's variables: API keys by name
    environ: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    clock: Clock = field(default_factory=SystemClock)
    #: where processes of this machine share a model; None = it is loaded into this one
    home: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Every option of an embedder, checked and with its default where it was not given."""

    #: what changes vectors: for a run's header, fixed
    semantic: dict[str, Any]
    #: where it is and how patiently it is asked: may differ when a run goes on
    operational: dict[str, Any]


class EmbedderModule(Protocol):
    """What a file in this folder offers."""

    OPERATIONAL: frozenset[str]
    Settings: type[Struct]

    def create(self, settings: Any, around: Around, /) -> LoadedEmbedder: ...


def names() -> list[str]:
    """Every embedder there is."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str, options: Mapping[str, Any] | None = None, around: Around | None = None) -> LoadedEmbedder:
    """The embedder `name`; nothing is fetched, loaded or connected yet.

    Raises:
        UnknownName: no such embedder.
        BadInput: an option that it does not have, or what it needs is not installed.
    """
    module = _module(name)
    return module.create(_settings(module, name, options or {}), around or Around())


def options(name: str, given: Mapping[str, Any]) -> Options:
    """The options of embedder `name`, those that are not in `given` at their defaults.

    Raises:
        UnknownName, BadInput: as `load`; what it needs may be missing.
    """
    module = _module(name)
    every = msgspec.to_builtins(_settings(module, name, given))
    return Options(
        semantic={key: value for key, value in every.items() if key not in module.OPERATIONAL},
        operational={key: value for key, value in every.items() if key in module.OPERATIONAL},
    )


@asynccontextmanager
async def opened(
    name: str, options: Mapping[str, Any] | None = None, around: Around | None = None
) -> AsyncIterator[LoadedEmbedder]:
    """`load`, closed at the end.

    Raises:
        UnknownName, BadInput: as `load`.
    """
    embedder = load(name, options, around)
    try:
        yield embedder
    finally:
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await embedder.aclose()


def _module(name: str) -> EmbedderModule:
    if name not in names():
        raise UnknownName("embedder", name, names())
    return cast("EmbedderModule", import_module(f"{__name__}.{name.replace('-', '_')}"))


def _settings(module: EmbedderModule, name: str, given: Mapping[str, Any]) -> Struct:
    known = module.Settings.__struct_fields__
    for option in given:
        if option not in known:
            others = f"it has {', '.join(known)}" if known else "it has none"
            raise BadInput(f"embedder.{option}: the {name} embedder has no such option; {others}")
    try:
        return msgspec.convert(dict(given), module.Settings)
    except msgspec.ValidationError as error:
        raise BadInput(f"embedder: the options of {name}: {error}") from error
