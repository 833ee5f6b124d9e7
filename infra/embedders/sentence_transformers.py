"""Any sentence-transformers model, in this process: in one thread of its own, its batches shared by all episodes.

Needs the extra `st`. `infra.sentence_files` and `infra.sentence_model` are imported where they are needed: torch takes
seconds, which nobody should pay who only asks what the embedder is.
"""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import anyio
from anyio import to_thread
from msgspec import Struct
from msgspec.structs import asdict

from events.codec import canonical
from events.errors import BadInput
from events.kinds import EmbedderIdentity
from events.vectors import Vector
from infra.embedders import Around
from infra.embedding_batches import Batches
from infra.embedding_identity import Identified, fingerprint, normal
from infra.embedding_link import Hosted
from runtime.ports import Side

#: options that change no vector by more than rounding: they are not in the fingerprint
OPERATIONAL = frozenset({"batch_size", "device"})

#: what loads a model, by name: it imports torch
_MODEL = "infra.sentence_model"
#: how long a closing embedder waits for the batch that runs, seconds
_STOP_S = 10.0


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model, and how it is used."""

    #: id at the Hugging Face hub, or a folder
    model: str
    #: branch, tag or commit; "" = the newest that is here. The fingerprint holds the commit
    revision: str = ""
    #: components that are kept, before normalising; 0 = all
    dimension: int = 0
    #: longer texts are cut, tokens; 0 = the model's own
    max_length: int = 0
    #: put before queries, as it stands; documents have none
    query_instruction: str = ""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    #: texts at once
    batch_size: int = 16
    #: of torch: cpu, cuda, mps; auto = a GPU where there is one
    device: str = "auto"


def create(settings: Settings, around: Around) -> "SentenceEmbedder":
    """The embedder; nothing is loaded yet.

    Raises:
        BadInput: an option out of its range, or the extra is not installed.
    """
    check(settings.model, settings.batch_size)
    for name in ("dimension", "max_length"):
        if getattr(settings, name) < 0:
            raise BadInput(f"embedder.{name}: must be 0 or more")
    return SentenceEmbedder("sentence-transformers", settings, around.home)


def check(model: str, batch_size: int) -> None:
    """Raises: BadInput, as `create`."""
    if not model.strip():
        raise BadInput("embedder.model: the sentence-transformers embedder needs a model; give its id or a folder")
    if not 1 <= batch_size <= 4096:
        raise BadInput("embedder.batch_size: must be 1 to 4096")
    if find_spec("sentence_transformers") is None or find_spec("torch") is None:
        raise BadInput("this embedder needs sentence-transformers: pip install 'chime-runtime[st]'")


@dataclass(slots=True)
class _Held:
    """A model that embedders of this process share."""

    batches: Batches
    holders: int = 0


#: a model is loaded once in a process, whoever asks for it: what it was loaded with -> it
_models: dict[Any, _Held] = {}
_models_lock = threading.Lock()


class SentenceEmbedder(Identified):
    """As `infra.embedders.LoadedEmbedder`.

    Args:
        name: of the embedder.
        settings: checked.
        home: where the model's process is found or started; None = the model is loaded into this process.
        package: where the model comes from, for the fingerprint; "" = `settings.model` says it.
    """

    is_free = False

    def __init__(self, name: str, settings: Settings, home: Path | None = None, package: str = "") -> None:
        self._name, self._settings, self._home, self._package = name, settings, home, package
        self._loading: Any = None
        self._batches: Batches | Hosted | None = None
        self._starting = anyio.Lock()

    async def identify(self) -> EmbedderIdentity:
        """From the model's files and the installed versions; a model that is not here yet is fetched.

        Raises:
            BadInput: no such model or revision.
            EmbedderUnavailable: it is not here and cannot be fetched.
        """
        # Fetching and hashing gigabytes take their time.
        if self._identity is None:
            self._identity, self._loading = await to_thread.run_sync(self._found)
        return self.identity

    def _found(self) -> tuple[EmbedderIdentity, Any]:
        files = _needed("infra.sentence_files")
        given = self._settings
        at = files.located(given.model, given.revision)
        own = files.dimension_of(at.folder)
        if given.dimension > own:
            raise BadInput(f"embedder.dimension: {given.model} has {own} dimensions, not {given.dimension}")
        dimension = given.dimension or own
        facts = {
            "model": self._package or given.model,
            "revision": at.revision,
            "dimension": dimension,
            "pooling": files.pooling_of(at.folder),
            "max_length": given.max_length or files.max_length_of(at.folder),
            "query_instruction": given.query_instruction,
            "dtype": given.dtype,
            "quantisation": "2^24",
            **files.libraries(),
        }
        loading = {name: value for name, value in asdict(given).items() if name not in ("model", "revision")}
        loading |= {"folder": str(at.folder), "dimension": dimension}
        return EmbedderIdentity(fingerprint=fingerprint(self._name, facts), dimension=dimension), loading

    async def start(self) -> None:
        """The model is in memory.

        Raises:
            BadInput, EmbedderUnavailable: as `identify`, or the model cannot be loaded.
        """
        async with self._starting:
            if self._batches is None:
                identity = await self.identify()
                if self._home is not None:
                    self._batches = await self._hosted(self._home, identity)
                else:
                    self._batches = await _loaded(self._loading)

    async def _hosted(self, home: Path, identity: EmbedderIdentity) -> Hosted:
        """Another version of a library, or another device, is another process."""
        told = canonical([identity.fingerprint, self._loading])
        hosted = Hosted(home / "embedders" / sha256(told).hexdigest()[:16], _MODEL, self._loading)
        try:
            await hosted.start()
        except BaseException:
            hosted.close()
            raise
        return hosted

    async def embed(self, texts: Sequence[str], side: Side) -> list[Vector]:
        """As `runtime.ports.Embedder.embed`."""
        if self._batches is None:
            await self.start()
        assert self._batches is not None  # noqa: S101 - started
        return await self._batches.embed([normal(text) for text in texts], side)

    async def aclose(self) -> None:
        """Let go of the model; the last holder ends its thread."""
        batches, self._batches = self._batches, None
        if isinstance(batches, Hosted):
            batches.close()
        elif batches is not None and _let_go(self._loading):
            with anyio.move_on_after(_STOP_S, shield=True):
                await to_thread.run_sync(batches.join, _STOP_S, abandon_on_cancel=True)


async def _loaded(loading: dict[str, Any]) -> Batches:
    """The model in a thread of this process."""
    batches = _held(loading)
    try:
        # The future is shared: a caller who is cancelled must not cancel it for others.
        await asyncio.shield(asyncio.wrap_future(batches.start()))
    except BaseException:
        _let_go(loading)
        raise
    return batches


def _key(loading: dict[str, Any]) -> Any:
    return tuple(sorted(loading.items()))


def _held(loading: dict[str, Any]) -> Batches:
    with _models_lock:
        held = _models.get(_key(loading))
        if held is None:
            given = {name: value for name, value in loading.items() if name != "batch_size"}
            batches = Batches(lambda: _model(given), loading["batch_size"], "embedder")
            held = _models[_key(loading)] = _Held(batches)
        held.holders += 1
        return held.batches


def _let_go(loading: dict[str, Any]) -> bool:
    """One holder less; whether it was the last, so that the model ends."""
    with _models_lock:
        held = _models[_key(loading)]
        held.holders -= 1
        if held.holders:
            return False
        del _models[_key(loading)]
    held.batches.stop()
    return True


def _model(loading: dict[str, Any]) -> Any:
    """In the model's thread."""
    return _needed(_MODEL).load(loading)


def _needed(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        told = f"this embedder needs sentence-transformers, which does not import: {error}"
        raise BadInput(f"{told}; pip install 'chime-runtime[st]'") from error
