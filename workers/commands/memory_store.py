"""`chime memory rebuild|verify|gc|search`: a run's bank in its store, built again, checked, swept, searched."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import get_args

import click

from events.errors import BadInput, Mismatch
from events.ids import Stage
from infra.banks import upkeep
from infra.banks.generations import parted
from infra.banks.serving import BankServer, Mode
from infra.clock import SystemClock
from infra.embedders import Around
from infra.weaviate_server import Start
from workers.bank_access import with_banks
from workers.bank_search import Search, Searched, SearchHit, left_behind, searched
from workers.connections import Server
from workers.invocation import Code, Invocation, chime_command, run_async
from workers.output import Output
from workers.sources import newest_version, server, split_words
from workers.stored_bank import Built, built_again, checked, foreign_banks, unowned_banks
from workers.tables import Column
from workers.terminal import clipped
from workers.views.banks import version_at

#: how many differences are printed
_FIRST = 10
_SHOWN = 60
#: what `--foreign` alone means
_LISTED = "list"
#: how long a server of the home that says nothing is waited for by a person, seconds
_SILENT_S = 8.0


@asynccontextmanager
async def banked(invocation: Invocation) -> AsyncIterator[Server]:
    """The server of the configuration, with a way to the banks of its runs; the home's own ones are started."""
    configuration, home = invocation.configuration, invocation.resolved.home
    start = Start(progress=invocation.output.note, silent_s=_SILENT_S)
    async with (
        server(invocation) as logs,
        with_banks(
            logs, home, configuration.weaviate, invocation.environment, SystemClock(), starting=True, start=start
        ) as there,
    ):
        yield there


@chime_command("rebuild", short_help="Build a run's bank in Weaviate anew from its log.")
@click.argument("run", required=False)
@click.option(
    "--at", metavar="VERSION|PERCENT", help="Build that version as a bank of its own, beside the one that serves."
)
def rebuild(invocation: Invocation, run: str | None, at: str | None) -> None:
    """Build the bank of RUN (default: the newest run) in Weaviate anew from its log, and let readers go by that.

    The one that serves goes on serving until the new one is whole. With --at that version is built as a bank of its own
    under the name that is printed; no run reads it. What was built is held against the log: the digest is that of both.
    """

    async def work() -> Built:
        async with banked(invocation) as there:
            log = await there.existing(run) if run is not None else await there.newest()
            version = version_at(at, await newest_version(log))
            return await built_again(there, log, version, apart=at is not None)

    built = run_async(work)
    invocation.output.data(built)
    invocation.output.line(
        f"built {built.generation}: {built.rows} rows of version {built.version} in {built.seconds:.1f} s; "
        + ("no run reads it" if built.apart else "it serves now")
    )
    invocation.output.line(f"digest {built.digest}, as the log has it")


@chime_command("verify", short_help="Hold a run's bank in Weaviate against its log, row by row.")
@click.argument("run", required=False)
def verify(invocation: Invocation, run: str | None) -> Code:
    """Compare every row of RUN's bank (default: the newest run) with the log: ids, vectors bit by bit, births, texts.

    It also asks for more neighbours than there are: a search that finds fewer rows than the bank has lost a vector.
    Ends with 4 where anything differs, and names the first differences; `chime memory rebuild` puts it right.
    """

    async def work() -> tuple[upkeep.Verified, list[str]]:
        async with banked(invocation) as there:
            log = await there.existing(run) if run is not None else await there.newest()
            found = await checked(there, log)
            return found, await left_behind(there, log, found.version)

    found, notes = run_async(work)
    output = invocation.output
    output.data(found)
    for note in notes:
        output.note(f"note: {note}")
    output.line(f"{found.generation}: {found.rows} rows of version {found.version}")
    for one in found.differences[:_FIRST]:
        output.line(f"  {one}")
    if len(found.differences) > _FIRST:
        output.line(f"  and {len(found.differences) - _FIRST} more")
    if found.differences:
        raise Mismatch(
            f"the bank {found.generation} differs from its log ({len(found.differences)} differences, first: "
            f"{found.differences[0]}); chime memory rebuild builds it anew"
        )
    output.line(f"equal to the log at version {found.version}" if notes else "equal to the log")
    return 0


@chime_command("gc", short_help="Remove banks from Weaviate that no run owns.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option(
    "--foreign", is_flag=False, flag_value=_LISTED, metavar="[DEPLOYMENT]",
    help="List the banks of other Redis servers and prefixes by deployment; with one of these, remove its banks.",
)  # fmt: skip
def gc(invocation: Invocation, dry_run: bool, foreign: str | None) -> None:
    """Remove banks of this server and prefix that no run owns: of deleted runs, and generations that serve nobody.

    A Redis that was wiped, or another prefix, is another deployment: --foreign lists what such a one has left behind,
    or still uses, and `--foreign DEPLOYMENT` removes it.
    """

    async def listed() -> dict[str, list[str]]:
        async with banked(invocation) as there:
            return (await foreign_banks(there))[1]

    async def work() -> list[str]:
        async with banked(invocation) as there:
            reached, names = await (unowned_banks(there) if foreign is None else _of_deployment(there, foreign))
            if not dry_run:
                await reached.remove(names)
            return names

    output = invocation.output
    if foreign == _LISTED:
        _show_foreign(output, run_async(listed))
        return
    names = run_async(work)
    output.data({"dry_run": dry_run, "removed": names})
    for name in names:
        output.line(f"  {name}")
    word = "would remove" if dry_run else "removed"
    whose = "that no run owns" if foreign is None else f"of deployment {foreign}"
    output.line(f"{word} {len(names)} bank{'s' * (len(names) != 1)} {whose}")


async def _of_deployment(there: Server, deployment: str) -> tuple[BankServer, list[str]]:
    """The bank server, and the banks of another deployment.

    Raises:
        BadInput: it has none.
    """
    reached, found = await foreign_banks(there)
    if deployment not in found:
        known = ", ".join(sorted(found)) or "no other deployment has any"
        raise BadInput(f"no bank there is of a deployment {deployment!r} beside ours; there are: {known}")
    return reached, found[deployment]


def _show_foreign(output: Output, found: dict[str, list[str]]) -> None:
    output.data({"foreign": found})
    rows = []
    for deployment, names in sorted(found.items()):
        runs = dict.fromkeys(parts.run for name in names if (parts := parted(name)) is not None)
        rows.append([deployment, len(names), ", ".join(runs)])
    columns = [Column("deployment"), Column("banks", "right"), Column("runs", wide=True)]
    output.table(columns, rows, empty="no other deployment has a bank there")
    if found:
        output.note("they may be in use; chime memory gc --foreign DEPLOYMENT removes those of one")


@chime_command("search", short_help="Search a run's bank: by meaning, by words, or both.")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] TEXT")
@click.option("--stage", type=click.Choice(["planning", "execution"]), help="Only this bank (default: both).")
@click.option("--at", metavar="VERSION|PERCENT", help="A bank version or a share of the newest (default: newest).")
@click.option(
    "--mode", type=click.Choice(get_args(Mode)), default="vector", show_default=True,
    help="By meaning (exact), by words, or by both; the last two are Weaviate's.",
)  # fmt: skip
@click.option("--limit", default=10, show_default=True, metavar="N", help="At most this many items.")
def search(
    invocation: Invocation, words: tuple[str, ...], stage: Stage | None, at: str | None, mode: Mode, limit: int
) -> None:
    """Search the live bank of RUN (default: the newest run) for TEXT.

    `vector` embeds the text as a query of the run and gives exact similarities; it also works for a run whose bank is
    a replica. `bm25` and `hybrid` give Weaviate's own scores, which decide nothing in a run.
    """
    run, (text,) = split_words(words, ("TEXT",))
    if not 1 <= limit <= 1000:
        raise BadInput("--limit: must be 1 to 1000")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput("TEXT is not UTF-8") from error
    if not text.strip():
        raise BadInput("TEXT is empty: say what is searched for")
    asked = Search(text=text, stages=(stage,) if stage else ("planning", "execution"), mode=mode, limit=limit)

    async def work() -> Searched:
        async with banked(invocation) as there:
            log = await there.existing(run) if run is not None else await there.newest()
            version = version_at(at, await newest_version(log)) if at is not None else None
            around = Around(environ=invocation.environment, home=invocation.home())
            return await searched(there, log, asked, version, around)

    found = run_async(work)
    output = invocation.output
    output.data(found)
    for note in found.notes:
        output.note(f"note: {note}")
    output.table(
        [
            Column("id"), Column("similarity" if mode == "vector" else "score", "right"), Column("value", "right"),
            Column("n", "right"), Column("scenario", wide=True), Column("experience", wide=True),
        ],
        [_cells(one, mode) for one in found.hits],
        empty="nothing found",
    )  # fmt: skip
    output.line(f"version {found.version}, from {found.source}{f' ({found.generation})' if found.generation else ''}")


def _cells(one: SearchHit, mode: Mode) -> list[object]:
    score = one.similarity if mode == "vector" else one.score
    texts = [clipped(" ".join(text.split()), _SHOWN) for text in (one.item.scenario, one.item.experience)]
    return [one.item.id, f"{score:.4f}", f"{one.item.value:+.3f}", one.item.n, *texts]
