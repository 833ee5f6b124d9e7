"""One model, one thread, many callers: shared batches, turns, and errors and cancellations that stay with their own."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import anyio
import numpy as np
import numpy.typing as npt
import pytest

from events.vectors import Vector, fixed_point
from infra.embedding_batches import Batches
from runtime.errors import EmbeddingFailed
from runtime.ports import Side

#: a batch that has not run by then hangs, seconds
_LONG_S = 120


class ScriptedModel:
    """A text's vector points in a direction of its own; `gate` lets batches through one by one when it is closed."""

    dimension = 4

    def __init__(self, padded: Callable[[str], int] = len) -> None:
        self.batches: list[list[str]] = []
        self.sides: list[Side] = []
        self.threads: set[int] = set()
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(1_000_000)
        self.faults: dict[str, npt.NDArray[np.float32] | Exception] = {}
        self._padded = padded

    def padded(self, text: str, side: Side) -> int:
        if isinstance(fault := self.faults.get(text), LookupError):
            raise fault
        return self._padded(text)

    def vectors(self, texts: Sequence[str], side: Side, padded: int) -> npt.NDArray[np.float32]:
        self.threads.add(threading.get_ident())
        self.batches.append(list(texts))
        self.sides.append(side)
        self.entered.release()
        assert self.gate.acquire(timeout=_LONG_S)
        assert {self._padded(text) for text in texts} == {padded}
        rows = [self.faults.get(text, vector_of(text)) for text in texts]
        for row in rows:
            if isinstance(row, Exception):
                raise row
        return np.array(rows, dtype=object) if any(len(row) != 4 for row in rows) else np.array(rows)

    def close_gate(self) -> None:
        self.gate = threading.Semaphore(0)

    async def in_batch(self) -> None:
        """A batch is in the model now."""
        assert await anyio.to_thread.run_sync(lambda: self.entered.acquire(timeout=_LONG_S))


def vector_of(text: str) -> npt.NDArray[np.float32]:
    """Another direction for each text."""
    angle = sum(map(ord, text)) % 97 / 97
    return np.array([np.cos(angle), np.sin(angle), len(text), 1], dtype=np.float32)


def expected(text: str) -> Vector:
    return fixed_point(vector_of(text))


@contextmanager
def batches(model: ScriptedModel, size: int = 4) -> Iterator[Batches]:
    """A thread around `model` that ends with the test."""
    made = Batches(lambda: model, size, "test")
    made.start()
    try:
        yield made
    finally:
        model.gate.release(1_000_000)
        made.stop()
        made.join(_LONG_S)


async def waiting(made: Batches, number: int) -> None:
    """Everybody has asked; so many texts wait for their turn."""
    await anyio.wait_all_tasks_blocked()
    assert len(made._waiting) == number


async def test_vectors_come_back_in_the_order_of_the_texts() -> None:
    """Texts of three lengths go in three batches; each caller gets its own vectors in its own order."""
    model = ScriptedModel()
    with batches(model) as made:
        texts = ["bb", "a", "cc", "ddd", "b"]
        assert await made.embed(texts, "document") == [expected(text) for text in texts]
        assert await made.embed([], "query") == []
    assert sorted(map(sorted, model.batches)) == [["a", "b"], ["bb", "cc"], ["ddd"]]
    assert len(model.threads) == 1
    assert model.threads != {threading.get_ident()}


async def test_callers_that_wait_share_the_next_batch() -> None:
    """While one batch runs, sixteen callers ask: the next four batches hold four texts each."""
    model = ScriptedModel()
    model.close_gate()
    found: dict[str, list[Vector]] = {}
    with batches(model) as made:

        async def ask(text: str) -> None:
            found[text] = await made.embed([text], "query")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "first")
            await model.in_batch()
            for number in range(16):
                tasks.start_soon(ask, f"late{number:x}")
            await waiting(made, 16)
            model.gate.release(1_000_000)
    assert [len(batch) for batch in model.batches] == [1, 4, 4, 4, 4]
    assert found == {text: [expected(text)] for text in found}


async def test_queries_and_documents_are_never_in_one_batch() -> None:
    """An instruction stands before queries alone, so that both sides are embedded apart."""
    model = ScriptedModel()
    model.close_gate()
    with batches(model) as made:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.embed, ["first"], "query")
            await model.in_batch()
            for side in ("query", "document", "query", "document"):
                tasks.start_soon(made.embed, ["text"], side)
            await waiting(made, 4)
            model.gate.release(1_000_000)
    assert [len(batch) for batch in model.batches] == [1, 2, 2]
    assert sorted(model.sides[1:]) == ["document", "query"]


async def test_a_thousand_texts_do_not_hold_up_one() -> None:
    """A caller with one text, who came after one with a hundred, is served in the next batch but one at the latest."""
    model = ScriptedModel()
    model.close_gate()
    many = [f"m{number:03}" for number in range(100)]
    with batches(model) as made:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.embed, many, "document")
            await model.in_batch()
            tasks.start_soon(made.embed, ["late"], "document")
            await waiting(made, 97)
            model.gate.release(1_000_000)
    assert "late" in model.batches[1] + model.batches[2]
    assert sorted(text for batch in model.batches for text in batch) == sorted([*many, "late"])


async def test_single_texts_do_not_hold_up_a_thousand() -> None:
    """A caller with many texts goes on however many single ones come after it: they take turns."""
    model = ScriptedModel()
    model.close_gate()
    with batches(model, size=1) as made:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.embed, ["a1", "a2", "a3"], "document")
            await model.in_batch()
            for number in range(20):
                tasks.start_soon(made.embed, [f"b{number:02}"], "document")
            await waiting(made, 22)
            model.gate.release(1_000_000)
    order = [batch[0] for batch in model.batches]
    # a2's turn is 1, a3's is 2; those that came while a1 was in the model, at turn 0, are before both.
    assert order[0] == "a1"
    assert order[-2:] == ["a2", "a3"]
    assert order[1:21] == [f"b{number:02}" for number in range(20)]


async def test_a_cancelled_caller_costs_nobody_a_text() -> None:
    """Of two callers that wait, one is cancelled: the other has its vectors, and the text of the first is dropped."""
    model = ScriptedModel()
    model.close_gate()
    found: list[Vector] = []
    with batches(model) as made:

        async def stay() -> None:
            found.extend(await made.embed(["stay"], "query"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.embed, ["first"], "query")
            await model.in_batch()
            leaving = anyio.CancelScope()

            async def leave() -> None:
                with leaving:
                    await made.embed(["gone", "lost"], "query")

            tasks.start_soon(leave)
            tasks.start_soon(stay)
            await waiting(made, 3)
            leaving.cancel()
            await anyio.wait_all_tasks_blocked()
            model.gate.release(1_000_000)
    assert found == [expected("stay")]
    assert model.batches == [["first"], ["stay"]]


async def test_a_caller_cancelled_inside_its_batch_costs_nobody_a_text() -> None:
    """Both are in the model when one is cancelled; the batch ends, and the other has its vector."""
    model = ScriptedModel()
    found: list[Vector] = []
    with batches(model) as made:
        async with anyio.create_task_group() as tasks:
            model.close_gate()
            tasks.start_soon(made.embed, ["first"], "query")
            await model.in_batch()
            leaving = anyio.CancelScope()

            async def leave() -> None:
                with leaving:
                    await made.embed(["gone"], "query")

            async def stay() -> None:
                found.extend(await made.embed(["stay"], "query"))

            tasks.start_soon(leave)
            tasks.start_soon(stay)
            await waiting(made, 2)
            model.gate.release()
            await model.in_batch()
            leaving.cancel()
            await anyio.wait_all_tasks_blocked()
            model.gate.release(1_000_000)
    assert sorted(model.batches[1]) == ["gone", "stay"]
    assert found == [expected("stay")]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (ValueError("too odd"), r"the text 'oddd': ValueError: too odd"),
        (LookupError("no token"), r"the text 'oddd': LookupError: no token"),
        (np.zeros(4, np.float32), r"the text 'oddd': the embedder's vector is zero"),
        (np.array([1, np.nan, 0, 0], np.float32), r"the text 'oddd': the embedder's vector is not finite"),
        (np.array([1, -np.inf, 0, 0], np.float32), r"the text 'oddd': the embedder's vector is not finite"),
        (np.ones(3, np.float32), r"the text 'oddd': 3 dimensions where the embedder has 4"),
    ],
    ids=["model", "tokenizer", "zero", "nan", "infinity", "dimension"],
)
async def test_one_texts_fault_is_its_callers_alone(fault: npt.NDArray[np.float32] | Exception, told: str) -> None:
    """Four callers share a batch in which one text has no vector: three are served, one is told why."""
    model = ScriptedModel()
    model.faults["oddd"] = fault
    model.close_gate()
    found: dict[str, object] = {}
    with batches(model) as made:

        async def ask(text: str) -> None:
            try:
                found[text] = await made.embed([text], "query")
            except EmbeddingFailed as error:
                found[text] = error

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "first")
            await model.in_batch()
            for text in ("okay", "oddd", "fine", "good"):
                tasks.start_soon(ask, text)
            await waiting(made, 4)
            model.gate.release(1_000_000)
    error = found.pop("oddd")
    assert isinstance(error, EmbeddingFailed)
    assert str(error) == told
    assert found == {text: [expected(text)] for text in ("first", "okay", "fine", "good")}


async def test_too_few_rows_give_no_text_anothers_vector() -> None:
    """A model that answers with fewer rows than texts: each is asked for alone."""
    model = ScriptedModel()
    whole = model.vectors
    model.vectors = lambda texts, side, padded: whole(texts, side, padded)[: max(1, len(texts) - 1)]  # type: ignore[method-assign]  # the fault
    with batches(model) as made:
        assert await made.embed(["aa", "bb", "cc"], "query") == [expected("aa"), expected("bb"), expected("cc")]


async def test_a_model_that_does_not_load() -> None:
    """Whoever waits for it is told why, and whoever asks later that it is closed; no thread is left."""

    def load() -> ScriptedModel:
        raise OSError("no weights")

    made = Batches(load, 4, "test")
    with pytest.raises(OSError, match="no weights"):
        await anyio.to_thread.run_sync(lambda: made.start().result(_LONG_S))
    made.join(_LONG_S)
    with pytest.raises(EmbeddingFailed, match="closed"):
        await made.embed(["a"], "query")


async def test_stopped_while_texts_wait() -> None:
    """The batch that runs is finished; the others are told."""
    model = ScriptedModel()
    model.close_gate()
    with batches(model, size=1) as made:
        told: list[str] = []

        async def ask() -> None:
            try:
                await made.embed(["waits"], "query")
            except EmbeddingFailed as error:
                told.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.embed, ["first"], "query")
            await model.in_batch()
            tasks.start_soon(ask)
            await waiting(made, 1)
            made.stop()
            model.gate.release(1_000_000)
    assert told == ["the embedder was closed"]
