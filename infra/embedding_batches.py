"""One model, one thread, many callers: texts that wait at the same time share a batch.

Whoever asks while a batch runs is in the next one. Texts are batched with others that are padded to the same length, so
that a vector depends on its text alone and not on its company (on one machine, in one thread, in float32).
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import count
from typing import Protocol

import numpy as np
import numpy.typing as npt

from events.vectors import Vector
from infra.embedding_identity import unit_vector
from runtime.errors import EmbeddingFailed
from runtime.logger import Logger
from runtime.ports import Side

_log = Logger("chime.embedder")

#: so many batches' texts are looked through for those of one length
_WINDOW = 16
#: how much of a text an error shows, characters
_SHOWN = 60


class Model(Protocol):
    """A model as its thread uses it. Every method may take long, and none is called from two threads."""

    @property
    def dimension(self) -> int: ...

    def padded(self, text: str, side: Side) -> int:
        """How long `text` is once it is padded, tokens: texts of one batch agree in it."""
        ...

    def vectors(self, texts: Sequence[str], side: Side, padded: int) -> npt.NDArray[np.float32]:
        """Their embeddings, of any length but 0, shape (n, d)."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class _Text:
    """A text that waits, or whose batch runs."""

    text: str
    side: Side
    #: its turn: texts with small numbers come first
    turn: float
    arrived: int
    #: cancelled where nobody waits for it any more
    vector: Future[Vector] = field(default_factory=Future)
    #: tokens; 0 = not measured yet
    padded: int = 0


class Batches:
    """A model in a thread of its own, from `start` to `stop`.

    Args:
        load: makes the model; called in its thread.
        batch_size: texts at once.
        name: of the thread, for debuggers.
    """

    def __init__(self, load: Callable[[], Model], batch_size: int, name: str) -> None:
        self._load, self._batch_size = load, batch_size
        self._waiting: list[_Text] = []
        self._changed = threading.Condition()
        self._stopped = False
        #: turn of the text that led the last batch
        self._now = 0.0
        self._arrivals = count()
        self._loaded: Future[int] = Future()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> "Future[int]":
        """Begin to load; the dimension, once the model is there, or why it is not."""
        if self._thread.ident is None:
            self._thread.start()
        return self._loaded

    def stop(self) -> None:
        """Let go of the model once the batch that runs is done; what still waits fails."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end, where it runs; after `stop`."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    async def embed(self, texts: Sequence[str], side: Side) -> list[Vector]:
        """One vector for each text, in order. Cancelled, nothing of it is embedded any more, and others lose nothing.

        Raises:
            EmbeddingFailed: a text has no vector; says which and why.
        """
        asked = self._ask(texts, side)
        try:
            return [await asyncio.wrap_future(one.vector) for one in asked]
        finally:
            for one in asked:
                one.vector.cancel()

    def _ask(self, texts: Sequence[str], side: Side) -> list[_Text]:
        with self._changed:
            if self._stopped:
                raise EmbeddingFailed("the embedder was closed")
            # Start-time fair queueing: the n-th text of a caller takes turns with the n-th of one that came with it, so
            # that neither a thousand texts hold up one, nor the ones hold up the thousand for good.
            asked = [
                _Text(text=text, side=side, turn=self._now + place, arrived=next(self._arrivals))
                for place, text in enumerate(texts)
            ]
            self._waiting += asked
            self._changed.notify()
        return asked

    def _work(self) -> None:
        try:
            model = self._load()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the model is told
            self._loaded.set_exception(error)
            self.stop()
            self._fail_waiting("the embedder's model could not be loaded")
            return
        self._loaded.set_result(model.dimension)
        batch: list[_Text] | None = []
        try:
            while (batch := self._next(model)) is not None:
                self._embed(model, batch)
        except BaseException as error:
            # Nobody may wait for a thread that has ended.
            self.stop()
            for one in batch or ():
                if not one.vector.done():
                    one.vector.set_exception(EmbeddingFailed(f"the embedder ended: {type(error).__name__}: {error}"))
            raise
        finally:
            self._fail_waiting("the embedder was closed")

    def _next(self, model: Model) -> list[_Text] | None:
        """The texts of one batch: the one whose turn it is, and those of its length with the next turns."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._waiting)
            if self._stopped:
                return None
            self._waiting = [one for one in self._waiting if not one.vector.cancelled()]
            near = nsmallest(_WINDOW * self._batch_size, self._waiting, key=lambda one: (one.turn, one.arrived))
        # Outside the lock: whoever asks meanwhile does not wait for a tokenizer.
        near = [one for one in near if one.padded or self._measured(model, one)]
        batch = [one for one in near if (one.side, one.padded) == (near[0].side, near[0].padded)][: self._batch_size]
        with self._changed:
            taken = set(map(id, batch))
            self._waiting = [one for one in self._waiting if id(one) not in taken and not one.vector.done()]
            if batch:
                self._now = max(self._now, batch[0].turn)
        return [one for one in batch if one.vector.set_running_or_notify_cancel()]

    def _measured(self, model: Model, one: _Text) -> bool:
        """Whether the tokenizer takes the text; its own caller is told where it does not."""
        try:
            one.padded = model.padded(one.text, one.side)
        except Exception as error:  # noqa: BLE001 - one text's error is its caller's alone
            _settle(one, EmbeddingFailed(f"{_shown(one.text)}: {type(error).__name__}: {error}"))
            return False
        return True

    def _embed(self, model: Model, batch: Sequence[_Text]) -> None:
        if not batch:
            return
        try:
            rows = _rows(model, batch)
        except Exception as error:  # noqa: BLE001 - told to its caller
            if len(batch) == 1:
                _settle(batch[0], EmbeddingFailed(f"{_shown(batch[0].text)}: {type(error).__name__}: {error}"))
                return
            # Perhaps one text alone is at fault, or they were too many at once.
            _log.warning("batch_failed", texts=len(batch), tokens=batch[0].padded, reason=str(error))
            for one in batch:
                self._embed(model, [one])
            return
        for one, row in zip(batch, rows, strict=True):
            try:
                one.vector.set_result(unit_vector(row, model.dimension, _shown(one.text)))
            except EmbeddingFailed as error:
                one.vector.set_exception(error)

    def _fail_waiting(self, reason: str) -> None:
        with self._changed:
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            _settle(one, EmbeddingFailed(reason))


def _rows(model: Model, batch: Sequence[_Text]) -> npt.NDArray[np.float32]:
    rows = model.vectors([one.text for one in batch], batch[0].side, batch[0].padded)
    if len(rows) != len(batch):
        raise EmbeddingFailed(f"{len(rows)} vectors for {len(batch)} texts")
    return rows


def _settle(one: _Text, error: EmbeddingFailed) -> None:
    """Tell whoever still waits for the text."""
    if one.vector.running() or one.vector.set_running_or_notify_cancel():
        one.vector.set_exception(error)


def _shown(text: str) -> str:
    start = " ".join(text[:_SHOWN].split())
    return f"the text {start!r}{'...' if len(text) > _SHOWN else ''}"
