"""A tiny model built like the paper's Qwen3-Embedding (causal, last token, padded on the left), with random weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

from infra.embedding_identity import facts_of

WORDS = [f"w{number}" for number in range(200)]
TEXTS = [" ".join(WORDS[start : start + length]) for start, length in enumerate((1, 7, 15, 16, 17, 40, 90, 3, 33))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as `SentenceTransformer.save` leaves it."""
    made = tmp_path_factory.mktemp("model")
    words = {word: number for number, word in enumerate(["<pad>", "<unk>", "Query:", *WORDS])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))  # noqa: S106 - no password, a word
    tokenizer.pre_tokenizer = Whitespace()
    special = {"pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side="left", model_max_length=512, **special
    ).save_pretrained(made / "base")  # fmt: skip
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, pad_token_id=0,
    )  # fmt: skip
    Qwen3Model(config).save_pretrained(made / "base")
    base = Transformer(str(made / "base"))
    whole = SentenceTransformer(modules=[base, Pooling(32, pooling_mode="lasttoken"), Normalize()], device="cpu")
    whole.save(str(made / "whole"))
    return made / "whole"


async def test_its_files_say_what_it_is(opened: Any, folder: Path) -> None:
    """Pooling, dimension and length, without torch."""
    async with opened("sentence-transformers", model=str(folder)) as embedder:
        facts = facts_of((await embedder.identify()).fingerprint)
    assert (facts["pooling"], facts["dimension"]) == ("lasttoken", "32")
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"


async def test_company_does_not_change_the_last_token(opened: Any, folder: Path) -> None:
    """Alone and in batches with longer texts, padded on the left: the same bits, and what the library makes."""
    library = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    async with opened("sentence-transformers", model=str(folder)) as embedder:
        alone = [(await embedder.embed([text], "document"))[0] for text in TEXTS]
        assert await embedder.embed(TEXTS, "document") == alone
    for text, vector in zip(TEXTS, alone, strict=True):
        row = np.asarray(library.encode(text, show_progress_bar=False), dtype=np.float64)
        assert float(vector.exact() @ row) / 2**24 / float(np.linalg.norm(row)) > 1 - 1e-6


async def test_the_instruction_moves_queries(opened: Any, folder: Path) -> None:
    """As the library's own `prompt`."""
    library = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    async with opened("sentence-transformers", model=str(folder), query_instruction="Query: w3 ") as embedder:
        (query,) = await embedder.embed(["w1 w2"], "query")
        (document,) = await embedder.embed(["w1 w2"], "document")
    row = np.asarray(library.encode("w1 w2", prompt="Query: w3 ", show_progress_bar=False), dtype=np.float64)
    assert float(query.exact() @ row) / 2**24 > 1 - 1e-6
    assert query != document


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
async def test_types_of_weights(opened: Any, folder: Path, dtype: str) -> None:
    """Each gives unit vectors near float32's; which one is in the fingerprint."""
    async with (
        opened("sentence-transformers", model=str(folder), dtype=dtype, dimension=16) as embedder,
        opened("sentence-transformers", model=str(folder), dimension=16) as whole,
    ):
        (one,), (other,) = await embedder.embed([TEXTS[3]], "query"), await whole.embed([TEXTS[3]], "query")
        assert facts_of(embedder.identity.fingerprint)["dtype"] == dtype
    assert float(one.exact() @ other.exact()) / 2**48 > 0.99
