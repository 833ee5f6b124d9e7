"""A sentence-transformers model in memory: the only module that imports it, and with it torch (seconds of CPU).

Imported by name, in the thread that embeds; part of the extra `st`.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

# Before the tokenizers are imported: a thread pool of theirs would be a second thread beside the model's.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct
from sentence_transformers import SentenceTransformer
from transformers.utils import logging

from events.errors import BadInput
from runtime.ports import Side

#: texts are padded to a multiple of this many tokens
_STEP = 16


class Loading(Struct, frozen=True, kw_only=True):
    """What a model is loaded with."""

    folder: str
    #: components that are kept, before normalising
    dimension: int
    #: tokens; 0 = the model's own
    max_length: int
    #: put before queries
    query_instruction: str
    #: of torch
    dtype: str
    #: of torch; "auto" = a GPU where there is one
    device: str


def load(given: Mapping[str, Any]) -> "SentenceModel":
    """The model that a `Loading`'s fields say.

    Raises:
        BadInput: it is no such model, or not of that dimension or length.
    """
    return SentenceModel(msgspec.convert(given, Loading))


class SentenceModel:
    """As `infra.embedding_batches.Model`."""

    def __init__(self, loading: Loading) -> None:
        """Load the model from its folder; nothing is fetched.

        Raises:
            BadInput: it is no such model, or not of that dimension or length.
        """
        # Two threads spin against each other on a shared machine, and their sums have other bits.
        torch.set_num_threads(1)
        logging.disable_progress_bar()
        try:
            self._model = SentenceTransformer(
                loading.folder,
                device=None if loading.device == "auto" else loading.device,
                local_files_only=True,
                model_kwargs={"dtype": getattr(torch, loading.dtype)},
            )
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            told = " ".join(str(error).split())[:300]
            raise BadInput(f"embedder.model: {loading.folder} cannot be loaded: {told}") from error
        self._prompts = {"query": loading.query_instruction, "document": ""}
        self.dimension = loading.dimension
        if (own := self._model.get_embedding_dimension()) is not None and own < loading.dimension:
            raise BadInput(f"embedder.dimension: the model has {own} dimensions, not {loading.dimension}")
        self._max_length = self._bounded(loading.max_length)

    def _bounded(self, wanted: int) -> int:
        """The longest text, tokens; 0 where neither the model nor `wanted` says.

        Raises:
            BadInput: the model has no places for so many.
        """
        places = getattr(self._model.config, "max_position_embeddings", None)
        if wanted and isinstance(places, int) and wanted > places:
            raise BadInput(f"embedder.max_length: the model has {places} places for tokens, not {wanted}")
        if wanted:
            self._model.max_seq_length = wanted
        return wanted or self._model.max_seq_length or 0

    def padded(self, text: str, side: Side) -> int:
        """As `infra.embedding_batches.Model.padded`; 1 for a model that does not pad."""
        features = self._model.preprocess([text], prompt=self._prompts[side] or None)
        if "attention_mask" not in features:
            return 1
        tokens = int(features["attention_mask"].sum())
        padded = -(-tokens // _STEP) * _STEP
        return min(padded, self._max_length) if self._max_length else padded

    def vectors(self, texts: Sequence[str], side: Side, padded: int) -> npt.NDArray[np.float32]:
        """As `infra.embedding_batches.Model.vectors`."""
        settings: dict[str, Any] = {}
        if padded > 1:
            settings["processing_kwargs"] = {"text": {"padding": "max_length", "max_length": padded}}
        found: npt.NDArray[np.float32] = self._model.encode(
            list(texts),
            prompt=self._prompts[side] or None,
            batch_size=len(texts),
            show_progress_bar=False,
            truncate_dim=self.dimension,
            **settings,
        )
        return found
