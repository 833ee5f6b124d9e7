"""What a server of banks offers to the side that writes and to the side that reads; Weaviate is the one there is."""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from events.ids import BankVersion, MemoryId, Stage
from events.vectors import Vector
from infra.banks.generations import Generation
from infra.banks.prunes import Prunes
from runtime.bank_store import BankStore

Mode = Literal["vector", "bm25", "hybrid"]


class Found(Struct, frozen=True, kw_only=True):
    """A row that somebody's search found: the server's own score, which decides nothing in a run."""

    id: MemoryId
    #: larger is better; of vectors the cosine, otherwise what the server makes of it
    score: float


class BankServer(Protocol):
    """A server that holds banks of many runs and generations, as one process reaches it.

    Every method that asks it raises BankAway where it does not answer, refuses the key, is full or too old.
    """

    @property
    def where(self) -> str:
        """Its address, for log lines."""
        ...

    @property
    def away(self) -> str | None:
        """Why it was not reached when last tried; None where it answers. Somebody goes on trying."""
        ...

    def bank(self, generation: Generation, prunes: Prunes, dimension: int) -> BankStore:
        """The bank of one generation.

        Args:
            generation: which.
            prunes: what the run's banks have lost: a reader brings what its log says, a writer's grow as it applies.
            dimension: of the run's vectors.
        """
        ...

    async def prepare(self) -> None:
        """Find or make what generations are kept in.

        Raises:
            BadInput: the server holds something else under our collections' names.
        """
        ...

    async def create(self, name: str) -> None:
        """Make room for a generation of that name, empty. The server is prepared."""
        ...

    async def remove(self, names: Sequence[str]) -> None:
        """Remove these generations with all their rows, where they exist."""
        ...

    async def names(self) -> list[str]:
        """Every generation that it holds, whosever; sorted."""
        ...

    async def look_up(
        self, name: str, stage: Stage, text: str, query: Vector | None, mode: Mode, limit: int, at: BankVersion
    ) -> list[Found]:
        """The rows of a generation that a person's search finds, best first; pruned ones may be among them.

        Args:
            name: of the generation.
            stage: whose bank.
            text: what is searched for; `vector` does without it.
            query: its embedding; `bm25` does without it.
            mode: by embeddings, by words, or by both.
            limit: rows at most.
            at: rows of items born later are passed over.

        Raises:
            BadInput: a mode without what it needs.
        """
        ...
