"""What a person does to a run's bank store: build it again, hold it against the fold, sweep up what nobody owns."""

from collections.abc import Awaitable, Callable, Iterable
from time import monotonic

from msgspec import Struct

from events.bank import Banks
from events.errors import BadInput, Unreachable
from events.ids import BankVersion, MemoryId, RunId
from infra.banks.changes import row_of, whole
from infra.banks.errors import DoubtfulAnswer
from infra.banks.generations import Apart, Generation, Generations, RunGenerations, Serving, parted
from infra.banks.prunes import Prunes
from infra.banks.serving import BankServer
from runtime.bank_store import Row

#: differences that are told, at most
_TOLD = 20


class Rebuilt(Struct, frozen=True, kw_only=True):
    """A generation that was built by hand."""

    generation: str
    version: BankVersion
    rows: int
    seconds: float


class Verified(Struct, frozen=True, kw_only=True):
    """A bank store held against the fold at one version."""

    generation: str
    version: BankVersion
    rows: int
    #: what differs, one sentence each; empty = equal
    differences: list[str]


async def rebuild(server: BankServer, generations: RunGenerations, banks: Banks) -> Rebuilt:
    """A new generation with exactly the items of `banks`, published at that version. For runs that nobody coordinates.

    Where somebody does, `RunGenerations.doubt` makes their mirror build the next one.

    Raises:
        BankAway: the server does not answer; nothing was published.
        UncleanWrite: it answered, but not cleanly; nothing was published.
    """
    before = await generations.serving()
    await server.prepare()
    built = await _built(server, await generations.begin(), banks)
    if before is not None:
        # Who was still reading there is answered by a replica.
        await server.remove([before.generation])
        await generations.dropped(before.generation)
    return built


async def apart(server: BankServer, generations: RunGenerations, banks: Banks) -> Rebuilt:
    """A bank with exactly the items of `banks` beside the one that serves, under a name of its own: to look at.

    No run owns it: `unowned` names it. Raises as `rebuild`.
    """
    await server.prepare()
    return await _built(server, await generations.apart(banks.version), banks)


async def _built(server: BankServer, generation: Generation, banks: Banks) -> Rebuilt:
    started_s = monotonic()
    await server.create(generation.name)
    change = whole(banks, [], None)
    await server.bank(generation, Prunes(), _dimension(banks)).apply(change)
    return Rebuilt(
        generation=generation.name, version=banks.version, rows=len(change.born), seconds=monotonic() - started_s
    )


def _dimension(banks: Banks) -> int:
    """Of the vectors; of an empty bank any will do."""
    return next((banks.scenario_vector(item).dim for item in banks), 1)


async def served(generations: RunGenerations) -> Serving:
    """The generation that serves a run.

    Raises:
        BadInput: there is none.
    """
    serving = await generations.serving()
    if serving is None:
        raise BadInput(
            f"run {generations.run} has no bank in Weaviate; chime memory rebuild {generations.run} builds one"
        )
    return serving


async def verify(
    server: BankServer, generations: RunGenerations, banks: Banks, pruned: Iterable[MemoryId], generation: str = ""
) -> Verified:
    """Every row of a generation against `banks`, and whether a search finds each of them.

    Args:
        server: where it is.
        generations: of the run.
        banks: the version that is published there.
        pruned: items that some version up to that one has lost: rows of theirs may still be there.
        generation: which; "" = the one that serves.

    Raises:
        BankAway: the server does not answer.
        BadInput: no generation serves, or it has not got to the version of `banks`.
    """
    if not generation:
        serving = await served(generations)
        if serving.version < banks.version:
            raise BadInput(f"the bank of run {generations.run} is at version {serving.version}, not at {banks.version}")
        generation = serving.generation
    prunes = Prunes()
    prunes.add(dict.fromkeys(pruned, banks.version))
    store = server.bank(Apart(generations, generation, banks.version), prunes, _dimension(banks))
    wanted = {item.id: row_of(banks, item) for item in banks}
    try:
        found = await store.items(banks.version)
        differences = _differences({row.id: row for row in found}, wanted)
        differences = differences or await store.missing(found, banks.version)
    except DoubtfulAnswer as error:
        found, differences = [], [error.reason]
    return Verified(generation=generation, version=banks.version, rows=len(found), differences=differences[:_TOLD])


def _differences(found: dict[MemoryId, Row], wanted: dict[MemoryId, Row]) -> list[str]:
    told = [f"{one} is missing" for one in wanted if one not in found]
    told += [f"{one} should not be there" for one in found if one not in wanted]
    for one, row in wanted.items():
        if one in found and found[one] != row:
            fields = [name for name in Row.__struct_fields__ if getattr(found[one], name) != getattr(row, name)]
            told.append(f"{one} has another {', '.join(fields)}")
    return told


async def unowned(
    server: BankServer, generations: Generations, runs: Callable[[], Awaitable[Iterable[RunId]]]
) -> list[str]:
    """Generations of this deployment that serve none of its runs and that nobody builds: what may be removed.

    Args:
        server: where they are.
        generations: of the deployment.
        runs: its runs by now.

    Raises:
        BankAway: the server does not answer.
    """
    # Before anybody is asked for the runs: what is begun meanwhile is somebody's, and not among these.
    names = await server.names()
    own: set[str] = set()
    for run in await runs():
        standing = await generations.of(run).standing()
        own.update([standing.owner, *([standing.serving.generation] if standing.serving is not None else [])])
    mark = f"_{await generations.deployment()}_"
    return [name for name in names if mark in name and name not in own]


async def foreign(server: BankServer, generations: Generations) -> dict[str, list[str]]:
    """The banks of other deployments in our collections, by deployment: of another Redis or prefix, or of a wiped one.

    Raises:
        BankAway: the server does not answer.
    """
    own, found = await generations.deployment(), dict[str, list[str]]()
    for name in await server.names():
        parts = parted(name)
        if parts is not None and parts.deployment != own:
            found.setdefault(parts.deployment, []).append(name)
    return found


async def forget(server: BankServer | None, generations: RunGenerations) -> int:
    """A run that is deleted has no bank: its generations go where the server answers; how many there were.

    What is left behind where it does not, `unowned` finds later.
    """
    standing = await generations.standing()
    names = {
        standing.owner,
        *standing.retired,
        *([standing.serving.generation] if standing.serving is not None else []),
    }
    names.discard("")
    await generations.forget()
    if server is None or server.away is not None:
        return 0
    try:
        await server.remove(sorted(names))
    except Unreachable:
        return 0
    return len(names)
