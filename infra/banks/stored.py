"""The read side of a run's bank store: the store for vectors, a light replica for texts, a full one in need."""

from collections.abc import Sequence

from events.bank import Banks, Item
from events.ids import BankVersion, MemoryId, Stage
from events.kinds import Query, RunStarted
from infra.banks.generations import RunGenerations
from infra.banks.serving import BankServer
from runtime.ports import Clock, EventLog, Recalled


class StoredBanks:
    """A run's banks as a worker reads them where the run's store is Weaviate."""

    def __init__(self, log: EventLog, server: BankServer, generations: RunGenerations, clock: Clock) -> None: ...

    async def header(self) -> RunStarted:
        """As `Replica.header`."""
        raise NotImplementedError

    async def tasks(self) -> tuple[str, ...]:
        """As `Replica.tasks`."""
        raise NotImplementedError

    async def newest(self) -> BankVersion:
        """As `BankReader.newest`: the newest version in the log."""
        raise NotImplementedError

    async def recall(self, stage: Stage, query: Query, version: BankVersion) -> Recalled:
        """As `BankReader.recall`. `source` is `weaviate`, or `fallback` where the full replica answered."""
        raise NotImplementedError

    async def at(self, version: BankVersion) -> Banks:
        """As `BankReader.at`, from the full replica."""
        raise NotImplementedError

    async def items(self, ids: Sequence[MemoryId], version: BankVersion) -> list[Item]:
        """As `BankReader.items`, from the light replica."""
        raise NotImplementedError

    #: recalls by source since this reader was made
    answered: dict[str, int]
