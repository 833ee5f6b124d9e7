"""The read side of a run's bank store: the store for vectors, a light replica for texts, a full one in need.

What the store finds is checked against the light replica as far as that can be told without vectors; what is wrong all
the same the projector finds, which recomputes every recall that was recorded.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from events.bank import Banks, Item
from events.errors import Mismatch
from events.ids import BankVersion, MemoryId, Stage
from events.kinds import Query, RunStarted
from events.parameters import Parameters
from events.recall import least_dot, rank
from infra.banks.changes import held, lost
from infra.banks.errors import BankAway, DoubtfulAnswer
from infra.banks.generations import RunGenerations, Serving
from infra.banks.replica import Replica, Versions
from infra.banks.serving import BankServer
from runtime.bank_store import BankStore, Hit
from runtime.logger import Logger
from runtime.ports import Clock, EventLog, Recalled

_log = Logger("chime.bank")

#: how long a recall waits for its version to be published, and how often it looks, seconds
_PUBLISHED_S, _LOOK_S = 1.0, (0.005, 0.05)
#: how long the full replica is kept after the store has answered again, seconds
_KEEP_FULL_S = 60.0


class StoredBanks:
    """`runtime.ports.BankReader` of a worker, where the run's store is Weaviate.

    Args:
        log: of the run.
        reach: the server as it is reached now, None where there is none; asked at each recall, and not before.
        generations: of the run.
        clock: of the machine.
    """

    def __init__(
        self,
        log: EventLog,
        reach: Callable[[], Awaitable[BankServer | None]],
        generations: RunGenerations,
        clock: Clock,
    ) -> None:
        self._log, self._reach, self._generations, self._clock = log, reach, generations, clock
        self._light = Versions(log, light=True)
        self._full: Replica | None = None
        self._full_until = 0.0
        self._store: tuple[BankServer, str, int, BankStore] | None = None
        #: the pointer that somebody has waited for in vain
        self._stuck: Serving | None = None
        self._waited = False
        #: recalls answered by the full replica since the store last answered
        self._missed = 0
        #: recalls by source since this reader was made
        self.answered: Counter[str] = Counter()

    async def header(self) -> RunStarted:
        """As `Replica.header`."""
        return await self._light.header()

    async def tasks(self) -> tuple[str, ...]:
        """As `Replica.tasks`."""
        return await self._light.tasks()

    async def newest(self) -> BankVersion:
        """As `BankReader.newest`: the newest version in the log."""
        return await self._light.newest()

    async def at(self, version: BankVersion) -> Banks:
        """As `BankReader.at`, from the full replica."""
        return await self._replica().at(version)

    async def items(self, ids: Sequence[MemoryId], version: BankVersion) -> list[Item]:
        """As `BankReader.items`, from the light replica."""
        return await self._light.items(ids, version)

    async def recall(self, stage: Stage, query: Query, version: BankVersion) -> Recalled:
        """As `BankReader.recall`. `source` is `weaviate`, or `fallback` where the full replica answered."""
        parameters = await self._light.parameters()
        banks, log_read = await self._light.at(version), self._light.prunes
        try:
            found = await self._found(banks, stage, query, version, parameters)
        except BankAway as error:
            return await self._fallen_back(stage, query, version, error.reason)
        except DoubtfulAnswer as error:
            if await self._generations.doubt(error.bank, error.reason):
                _log.warning("bank_doubted", run_id=self._log.run, reason=str(error))
            return await self._fallen_back(stage, query, version, str(error))
        except Mismatch as error:
            # Not published, or the next generation has just taken over.
            return await self._fallen_back(stage, query, version, str(error))
        if self._light.prunes is not log_read:
            # The server lost its tail meanwhile: what was found is of banks that the log does not have any more.
            return await self._fallen_back(stage, query, version, "the log was read again meanwhile")
        self._answers()
        return self._light.recalled(banks, rank(found, parameters), version, "weaviate")

    async def _found(
        self, banks: Banks, stage: Stage, query: Query, version: BankVersion, parameters: Parameters
    ) -> list[tuple[Item, int]]:
        """The top N of the stage's bank at or above the floor, by (-dot, id)."""
        server = await self._reach()
        if server is None:
            raise _Unpublished("there is no server of banks to be had")
        if (away := server.away) is not None:
            raise BankAway(server.where, "away", away)
        serving = await self._published(version)
        if serving.doubt:
            raise _Unpublished(f"bank {serving.generation} is in doubt ({serving.doubt}) until the next one serves")
        store = await self._bank(server, serving.generation)
        if store.unseen:
            # Whoever answers now may not be who answered before, or may have been put back to how it was then.
            if serving.version > (newest := await self._light.newest()):
                # Whoever waited for the log to get there would wait for its own episode.
                reason = f"it is at version {serving.version}, its log at {newest}"
                raise DoubtfulAnswer(serving.generation, reason)
            served = await self._light.at(serving.version)
            await store.recheck(held(served, lost(banks, served)))
        hits = await store.search(stage, query.vector, parameters.top_n, version)
        if store.unseen:
            raise _Unpublished(f"the connection to bank {serving.generation} was lost meanwhile")
        self._check(serving.generation, banks, stage, hits, parameters.top_n)
        least = least_dot(parameters)
        return [(item, hit.dot) for hit in hits if hit.dot >= least and (item := banks.get(hit.id)) is not None]

    def _check(self, generation: str, banks: Banks, stage: Stage, hits: Sequence[Hit], limit: int) -> None:
        """As many rows as there must be, each of them live at the version read, with the log's vector."""
        scenarios = banks.shelf(stage).scenarios
        wanted = min(limit, scenarios.live)
        if len(hits) != wanted:
            raise DoubtfulAnswer(generation, f"a search found {len(hits)} of {wanted} {stage} rows")
        for hit in hits:
            item = banks.get(hit.id)
            if item is None or item.bank != stage:
                raise DoubtfulAnswer(generation, f"a search found {hit.id}, which the bank does not hold")
            if hit.vector_sha256 != scenarios.sha256(item.scenario_row):
                raise DoubtfulAnswer(generation, f"a search found {hit.id} with another vector than the log has")

    async def _published(self, version: BankVersion) -> Serving:
        """The generation that serves, once it has got to `version`; waits for it a moment, but not twice in vain.

        Raises:
            _Unpublished: it has not.
        """
        until = self._clock.monotonic() + _PUBLISHED_S
        wait_s, longest_s = _LOOK_S
        while True:
            serving = await self._generations.serving()
            if serving is not None and serving.version >= version:
                self._waited = False
                return serving
            if self._clock.monotonic() >= until or (self._waited and serving == self._stuck):
                self._waited, self._stuck = True, serving
                got = serving.version if serving is not None else "none"
                raise _Unpublished(f"version {version} is not published, {got} is")
            await self._clock.sleep(wait_s)
            wait_s = min(2 * wait_s, longest_s)

    async def _bank(self, server: BankServer, generation: str) -> BankStore:
        # Where the log was read again, the prunes are others.
        key = (server, generation, id(self._light.prunes))
        if self._store is None or self._store[:3] != key:
            dimension = (await self._light.header()).embedder.dimension
            bank = server.bank(self._generations.named(generation), self._light.prunes, dimension)
            self._store = (*key, bank)
        return self._store[3]

    async def _fallen_back(self, stage: Stage, query: Query, version: BankVersion, reason: str) -> Recalled:
        if not self._missed:
            _log.warning("bank_fallback", run_id=self._log.run, bank_version=version, reason=reason)
        self._missed += 1
        recalled = await self._replica().recall(stage, query, version)
        self.answered["fallback"] += 1
        return recalled

    def _answers(self) -> None:
        """The store has answered."""
        self.answered["weaviate"] += 1
        if self._missed:
            _log.info("bank_back", run_id=self._log.run, missed=self._missed)
            self._missed = 0
        if self._full is not None and self._clock.monotonic() >= self._full_until:
            self._full = None

    def _replica(self) -> Replica:
        """The full replica: it reads the log when first needed, and goes when it has not been for a while."""
        if self._full is None:
            self._full = Replica(self._log, "fallback")
        self._full_until = self._clock.monotonic() + _KEEP_FULL_S
        return self._full


class _Unpublished(Mismatch):
    """The store has not got to the version asked for, or nobody is to read there."""
