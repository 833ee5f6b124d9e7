"""What commands do with a run's bank in Weaviate: find it, build it anew from the log, tell whose it is."""

from dataclasses import dataclass

from msgspec import Struct

from events.bank import Banks
from events.codec import decode_as
from events.errors import BadInput, Mismatch, Unreachable
from events.fold import REPLAY_KINDS, State, step
from events.ids import BankVersion, MemoryId
from events.kinds import Folded
from events.operations import Pruned
from infra.banks import upkeep
from infra.banks.generations import Generations, RunGenerations, Serving
from infra.banks.serving import BankServer
from infra.clock import SystemClock
from runtime.ports import EventLog
from workers.bank_store import named_store
from workers.connections import START, Server
from workers.header import recorded_head
from workers.operational import operational_of

#: how long the coordinator of a run may take to build its next generation, seconds
_BUILD_S = 120.0
_POLL_S = 0.1
#: how often a bank that its coordinator writes is looked at, and how far behind it shows what it holds, seconds
_LOOKS, _BEHIND_S = 5, 1.5
REBUILD = "chime memory rebuild {run} builds one"


class Built(Struct, frozen=True, kw_only=True):
    """A bank that was built from a log, and found equal to it."""

    run: str
    generation: str
    version: BankVersion
    rows: int
    seconds: float
    #: of the banks at that version, as the log has it
    digest: str
    #: whether it stands beside the one that serves
    apart: bool


@dataclass(frozen=True, slots=True)
class StoredBank:
    """A run's bank in Weaviate, as a command finds it."""

    there: Server
    log: EventLog

    @property
    def generations(self) -> RunGenerations:
        """Raises: BadInput: there is no server, and so no run."""
        if self.there.generations is None:
            raise BadInput(f"there is no run on {self.there.where}")
        return self.there.generations.of(self.log.run)

    async def serving(self) -> Serving:
        """The generation that serves.

        Raises:
            BadInput: none does.
        """
        return await upkeep.served(self.generations)

    async def server(self) -> BankServer:
        """Raises: as `BankAccess.server`."""
        assert self.there.banks is not None  # noqa: S101 - commands open one
        return await self.there.banks.server()


async def pruned_by(log: EventLog, version: BankVersion) -> tuple[Banks, dict[MemoryId, BankVersion]]:
    """The banks at `version`, and every item that was pruned until then with the first version that lacks it.

    Raises:
        Mismatch: the log does not reach that version, so a bank that does is ahead of it.
    """
    state, pruned = State(), dict[MemoryId, BankVersion]()
    async for page in log.pages(START, REPLAY_KINDS):
        for recorded in page:
            if recorded.kind == "folded":
                if state.banks.version == version:
                    return state.banks, pruned
                event = decode_as(recorded, Folded)
                pruned |= {one.id: event.bank_version for one in event.operations if isinstance(one, Pruned)}
            state = step(state, recorded)
    if state.banks.version != version:
        raise Mismatch(
            f"the bank of run {log.run} is at version {version}, its log at {state.banks.version}: the server lost the "
            f"log's tail; chime memory rebuild {log.run} builds the bank anew"
        )
    return state.banks, pruned


async def checked(there: Server, log: EventLog) -> upkeep.Verified:
    """The bank of a run held against its log; one that grows meanwhile is looked at again.

    Raises:
        BadInput: it has none.
        Unreachable: Weaviate does not answer.
        Mismatch: it is ahead of its log.
    """
    stored, clock, left = StoredBank(there, log), SystemClock(), _LOOKS
    while True:
        serving = await stored.serving()
        banks, pruned = await pruned_by(log, serving.version)
        found = await upkeep.verify(await stored.server(), stored.generations, banks, pruned)
        left -= 1
        if not found.differences or not left or await there.leases.holder(log.run) is None:
            return found
        # Rows of the next version are written before it is published, and what people see of them comes a second later.
        await clock.sleep(_BEHIND_S)


async def built_again(there: Server, log: EventLog, version: BankVersion, *, apart: bool) -> Built:
    """The bank of a run at `version`, built anew from its log and held against it.

    Where a coordinator looks after the run it is asked to build the bank: at the version the run has by then.

    Args:
        there: the server.
        log: of the run.
        version: which; the newest one unless `apart`.
        apart: beside the one that serves, under a name of its own.

    Raises:
        Unreachable: Weaviate does not answer, or the run's coordinator does not build.
        Mismatch: what was built differs from the log.
    """
    stored = StoredBank(there, log)
    server, generations, clock = await stored.server(), stored.generations, SystemClock()
    began = clock.monotonic()
    if not apart and await _is_mirrored(there, log):
        version = (await _asked_for(stored, clock)).version
        banks, pruned = await pruned_by(log, version)
        found = await upkeep.verify(server, generations, banks, pruned)
    else:
        banks, pruned = await pruned_by(log, version)
        made = await (upkeep.apart if apart else upkeep.rebuild)(server, generations, banks)
        found = await upkeep.verify(server, generations, banks, pruned, made.generation)
    if found.differences:
        raise Mismatch(f"the bank {found.generation} differs from its log already: {found.differences[0]}")
    return Built(
        run=log.run,
        generation=found.generation,
        version=version,
        rows=found.rows,
        seconds=clock.monotonic() - began,
        digest=banks.digest(),
        apart=apart,
    )


async def _is_mirrored(there: Server, log: EventLog) -> bool:
    """Whether a coordinator that lives keeps the run's bank."""
    if await there.leases.holder(log.run) is None:
        return False
    return named_store(await operational_of(log, (await recorded_head(log)).started)) == "weaviate"


async def _asked_for(stored: StoredBank, clock: SystemClock) -> Serving:
    """What serves once the run's coordinator has built the next generation.

    Raises:
        Unreachable: it does not.
    """
    generations, until = stored.generations, clock.monotonic() + _BUILD_S
    before = await generations.serving()
    if before is not None:
        await generations.doubt(before.generation, "a rebuild was asked for")
    while clock.monotonic() < until:
        now = await generations.serving()
        if now is not None and (before is None or now.generation != before.generation):
            return now
        await clock.sleep(_POLL_S)
    raise Unreachable(
        f"the coordinator of run {stored.log.run} has built no new bank within {_BUILD_S:.0f} s; its log lines say why"
    )


async def unowned_banks(there: Server) -> tuple[BankServer, list[str]]:
    """The bank server, and the banks of this deployment that no run owns.

    Raises:
        BadInput: there is no server with logs.
        Unreachable: as `BankAccess.server`, or it does not answer.
    """
    server, generations = await _reached(there)
    return server, await upkeep.unowned(server, generations, there.store.runs)


async def foreign_banks(there: Server) -> tuple[BankServer, dict[str, list[str]]]:
    """The bank server, and the banks of other deployments by deployment. Raises as `unowned_banks`."""
    server, generations = await _reached(there)
    return server, await upkeep.foreign(server, generations)


async def _reached(there: Server) -> tuple[BankServer, Generations]:
    if there.generations is None or there.banks is None:
        raise BadInput(f"there is no run on {there.where}, and so no bank of one")
    return await there.banks.server(), there.generations
