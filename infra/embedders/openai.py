"""`/v1/embeddings` of any OpenAI-compatible server. An answer is taken whole and checked row by row, or not at all.

What the server's model is, only its vectors tell: three texts are embedded at the start and belong to the identity.
"""

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime

import anyio
import numpy as np
import numpy.typing as npt

from events.errors import BadInput
from events.kinds import EmbedderIdentity
from events.vectors import Vector
from infra.capabilities import Place
from infra.embedders import Around
from infra.embedding_identity import PROBES, Identified, fingerprint, normal, unit_vector
from infra.model_errors import Failed, malformed, object_in, of_error_object
from infra.openai_client import Clients
from infra.tries import Tries
from runtime.errors import EmbedderUnavailable, EmbeddingFailed, ModelRefused, ModelUnavailable, RunStopped
from runtime.logger import Logger
from runtime.ports import Side
from runtime.settings import ServerSettings

_log = Logger("chime.embedder")

#: where the server is and how patiently it is asked: a model may move
OPERATIONAL = frozenset({"batch_size", *ServerSettings.__struct_fields__})


class Settings(ServerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model, where it is, and how it is asked."""

    #: the model's name at the endpoint
    model: str
    #: components that are kept, the first ones, before normalising; 0 = all
    dimension: int = 0
    #: put before queries, as it stands: the interface has no field for it
    query_instruction: str = ""
    #: longer texts are cut, characters; 0 = sent whole
    max_chars: int = 0
    #: texts in one request, at most
    batch_size: int = 16
    # One request of texts is answered sooner than one chat completion.
    timeout_s: float = 60.0
    deadline_s: float = 600.0


def create(settings: Settings, around: Around) -> "ServedEmbedder":
    """The embedder; nothing is connected yet.

    Raises:
        BadInput: an option out of its range.
    """
    for name, fits, range_ in (
        ("model", bool(settings.model.strip()), "the model's name at the endpoint"),
        ("base_url", settings.base_url.startswith(("http://", "https://")), "http:// or https://"),
        ("dimension", settings.dimension >= 0, "0 or more"),
        ("max_chars", settings.max_chars >= 0, "0 or more"),
        ("batch_size", 1 <= settings.batch_size <= 4096, "1 to 4096"),
    ):
        if not fits:
            raise BadInput(f"embedder.{name}: must be {range_}")
    return ServedEmbedder(settings, around)


class _BadRow(Failed):
    """An answer whose rows are not one usable vector for each text."""


class ServedEmbedder(Identified):
    """As `infra.embedders.LoadedEmbedder`."""

    is_free = False

    def __init__(self, settings: Settings, around: Around, rng: random.Random | None = None) -> None:
        self._settings, self._clock = settings, around.clock
        self._stack = AsyncExitStack()
        self._clients = Clients(around.environ, around.clock, self._stack)
        self._rng = rng or random.Random()  # noqa: S311 - jitter is no secret
        #: components that the server sends; 0 = not known yet
        self._sent = 0
        self._starting = anyio.Lock()

    async def identify(self) -> EmbedderIdentity:
        """By what the server makes of the probes, asked once.

        Raises:
            BadInput: an address or a key that no request can be made with, or fewer dimensions than are to be kept.
            EmbedderUnavailable, RunStopped: the server gives no usable vectors.
        """
        async with self._starting:
            if self._identity is None:
                self._identity = await self._probed()
        return self._identity

    async def start(self) -> None:
        """As `identify`."""
        await self.identify()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._stack.aclose()

    async def embed(self, texts: Sequence[str], side: Side) -> list[Vector]:
        """As `runtime.ports.Embedder.embed`.

        Raises:
            EmbedderUnavailable: no usable answer within the tries and the time limit.
            RunStopped: nothing on this endpoint can work (key, quota, unknown model).
        """
        await self.start()
        return await self._embedded(texts, side, self.identity.dimension)

    async def _probed(self) -> EmbedderIdentity:
        given = self._settings
        try:
            first = await self._rows([self._sendable(*PROBES[0])])
            self._sent = len(first[0])
            if given.dimension > self._sent:
                told = f"{given.model} has {self._sent} dimensions, not {given.dimension}"
                raise BadInput(f"embedder.dimension: {told}")
            dimension = given.dimension or self._sent
            probes = [(await self._embedded([text], side, dimension))[0] for text, side in PROBES]
        except EmbeddingFailed as error:
            raise EmbedderUnavailable("probe", f"{given.base_url}: a probe failed: {error}") from error
        facts: dict[str, str | int] = {
            "model": given.model,
            "dimension": dimension,
            "sent": self._sent,
            "query_instruction": given.query_instruction,
            "max_chars": given.max_chars,
            "quantisation": "2^24",
        }
        return EmbedderIdentity(fingerprint=fingerprint("openai", facts), dimension=dimension, probes=probes)

    async def _embedded(self, texts: Sequence[str], side: Side, dimension: int) -> list[Vector]:
        vectors: list[Vector] = []
        for at in range(0, len(texts), self._settings.batch_size):
            part = texts[at : at + self._settings.batch_size]
            rows = await self._rows([self._sendable(text, side) for text in part])
            vectors += [
                unit_vector(row[:dimension], dimension, f"text {place} of {len(texts)}")
                for place, row in enumerate(rows, at + 1)
            ]
        return vectors

    def _sendable(self, text: str, side: Side) -> str:
        cut = normal(text)[: self._settings.max_chars or None]
        return self._settings.query_instruction + cut if side == "query" else cut

    async def _rows(self, texts: Sequence[str]) -> list[npt.NDArray[np.float64]]:
        """What the server sends for each text, each of shape (d,) and usable.

        Raises:
            EmbeddingFailed: it refuses the texts, or its rows are not one usable vector for each, try after try.
            EmbedderUnavailable, RunStopped: as `embed`.
        """
        endpoint, model = self._settings, self._settings.model
        parameters = {"model": model, "input": list(texts), "encoding_format": "float"}
        secret = self._clients.key(endpoint)
        tries = Tries(endpoint, secret, self._clients.breakers[Place(endpoint.base_url, model)], self._clock, self._rng)
        while True:
            try:
                body = await self._clients.embeddings(endpoint, parameters, tries.limit_s)
                rows = _rows_in(body, len(texts), self._sent, datetime.fromisoformat(self._clock.utc()))
            except Failed as failed:
                failure, cause = failed.failure.shown(secret), failed
            else:
                tries.answered()
                return rows
            try:
                pause_s = tries.pause_s(failure)
            except ModelRefused as refused:
                raise EmbeddingFailed(f"{endpoint.base_url} refuses: {refused.reason}") from cause
            except ModelUnavailable as last:
                if isinstance(cause, _BadRow):
                    raise EmbeddingFailed(last.reason) from cause
                raise EmbedderUnavailable(last.kind, last.reason, last.status) from cause
            except RunStopped as stopped:
                raise RunStopped(stopped.kind, f"embedder: {stopped.reason}", stopped.status) from cause
            _log.warning(
                "embedding_retried", model=model, kind=failure.kind, attempt=tries.failed, pause_s=round(pause_s, 2),
                reason=failure.reason,
            )  # fmt: skip
            await self._clock.sleep(pause_s)


def _rows_in(body: bytes, wanted: int, dimension: int, now: datetime) -> list[npt.NDArray[np.float64]]:
    """The rows of an answer for `wanted` texts, in their order.

    Args:
        body: of a 200.
        wanted: texts that were sent.
        dimension: components of a row; 0 = any number but 0.
        now: of the clock.

    Raises:
        Failed: there is something else in it; `_BadRow` where rows are missing, out of place or no vectors.
    """
    plain = object_in(body)
    if told := plain.get("error"):
        raise Failed(of_error_object(told, now))
    data = plain.get("data")
    if not isinstance(data, list):
        raise Failed(malformed("no list of embeddings in it"))
    if len(data) != wanted:
        raise _BadRow(malformed(f"{len(data)} embeddings for {wanted} texts"))
    return [_row(one, place, dimension) for place, one in enumerate(data)]


def _row(one: object, place: int, dimension: int) -> npt.NDArray[np.float64]:
    """One row, whose `index` must be its place: of an answer in another order, nobody can say what it means by it."""
    which = f"embedding {place}"
    if not isinstance(one, dict):
        raise _BadRow(malformed(f"{which} is no object"))
    index, row = one.get("index"), one.get("embedding")
    if isinstance(index, bool) or index != place:
        raise _BadRow(malformed(f"{which} has index {str(index)[:20]}"))
    if isinstance(row, str):
        raise _BadRow(malformed(f"{which} is a string, perhaps base64, where floats were asked for"))
    if not isinstance(row, list) or not row:
        raise _BadRow(malformed(f"{which} is no list of numbers"))
    if any(type(value) not in (int, float) for value in row):
        other = next(value for value in row if type(value) not in (int, float))
        raise _BadRow(malformed(f"{which} holds {'null' if other is None else type(other).__name__}, not a number"))
    if dimension and len(row) != dimension:
        raise _BadRow(malformed(f"{which} has {len(row)} dimensions, those before had {dimension}"))
    try:
        components = np.array(row, dtype=np.float64)
    except OverflowError as error:
        raise _BadRow(malformed(f"{which} holds a number beyond float64")) from error
    if not np.isfinite(components).all():
        raise _BadRow(malformed(f"{which} is not finite"))
    if not components.any():
        raise _BadRow(malformed(f"{which} is zero"))
    return components
