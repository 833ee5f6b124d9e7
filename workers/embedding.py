"""The embedders of runs as a process has them: each loaded once, and held to what the run's header says of it."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import anyio

from events.codec import canonical
from events.errors import BadInput
from events.kinds import RunConfig, RunStarted
from events.vectors import Vector
from infra import embedders
from infra.embedders import Around, LoadedEmbedder
from infra.embedding_identity import assert_same


class Embedders:
    """Of one process, for all runs that it works on.

    Args:
        around: what they are handed beside their options.
        stack: of whoever holds them; they are closed with it.
    """

    def __init__(self, around: Around, stack: AsyncExitStack) -> None:
        self._around, self._stack = around, stack
        self._loaded: dict[bytes, LoadedEmbedder] = {}
        self._loading = anyio.Lock()

    async def of(self, header: RunStarted, operational: Mapping[str, Any]) -> LoadedEmbedder:
        """The embedder of a run, ready to embed.

        Args:
            header: of the run.
            operational: as the run was last resumed with.

        Raises:
            BadInput: its vectors are not those of the run, or it cannot be had here.
            UnknownName: there is none by that name.
            EmbedderUnavailable, RunStopped: what it needs cannot be reached.
        """
        name, options = named_embedder(header.config, operational)
        same = canonical([name, options])
        async with self._loading:
            if same not in self._loaded:
                opened = embedders.opened(name, options, self._around)
                self._loaded[same] = await self._stack.enter_async_context(opened)
        embedder = self._loaded[same]
        # Before it is started: a model of another version need not be loaded to be refused.
        assert_same(header.embedder, await embedder.identify())
        await embedder.start()
        return embedder


def named_embedder(config: RunConfig, operational: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and options of a run's embedder.

    Raises:
        BadInput: the header names none.
    """
    name = config.agent.get("embedder")
    if not isinstance(name, str) or not name:
        raise BadInput("the run's header names no embedder: it was made by hand, or by other code")
    return name, {**config.agent.get("embedder_options", {}), **operational.get("embedder", {})}


async def embedded_query(
    header: RunStarted, operational: Mapping[str, Any], text: str, around: Around | None = None
) -> Vector:
    """`text` as a query to the banks of a run, embedded here.

    Raises:
        BadInput, UnknownName, EmbedderUnavailable, RunStopped: as `Embedders.of`.
        EmbeddingFailed: the text has no vector.
    """
    async with embedders.opened(*named_embedder(header.config, operational), around) as embedder:
        assert_same(header.embedder, await embedder.identify())
        (vector,) = await embedder.embed([text], "query")
    return vector


async def assert_embeds(header: RunStarted, operational: Mapping[str, Any], around: Around | None = None) -> None:
    """Whether this machine could embed for the run; no model is loaded for it.

    Raises:
        BadInput, UnknownName, EmbedderUnavailable, RunStopped: as `Embedders.of`.
    """
    async with embedders.opened(*named_embedder(header.config, operational), around) as embedder:
        assert_same(header.embedder, await embedder.identify())
