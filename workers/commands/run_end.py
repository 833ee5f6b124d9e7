"""`chime run cancel|delete`: ending a run, and taking it away."""

import getpass
import sys
from functools import partial

import click

from events.codec import decode
from events.errors import BadInput, ChimeError
from events.ids import RUN_STREAM, RunId, run_id
from events.kinds import Operated
from infra.banks import upkeep
from infra.clock import SystemClock
from infra.rq_keys import run_of
from infra.rq_queue import RqQueue
from infra.weaviate_server import folder_of
from runtime.ports import EventLog
from workers.bank_access import with_banks
from workers.conductor import Conductor
from workers.connections import START, Server
from workers.invocation import Invocation, chime_command, run_async
from workers.run_stream import tell
from workers.sources import server
from workers.views.at_hand import summarized_at_hand
from workers.views.standing import FINISHED, Standing
from workers.views.summary import Summary


@chime_command("cancel", short_help="End a run for good; its log and banks stay.")
@click.argument("run")
@click.option("--reason", default="", help="Why; recorded in the log.")
@click.option("--dry-run", is_flag=True, help="Only say what would end.")
def cancel(invocation: Invocation, run: str, reason: str, dry_run: bool) -> None:
    """End RUN: no episode is begun any more, open ones end, then the run is finished as stopped.

    Where no worker serves the run, open episodes end when one does; `chime run resume RUN` brings some.
    """

    async def work() -> tuple[Summary, bool]:
        async with server(invocation) as there:
            log = await there.existing(run)
            before = (await summarized_at_hand(invocation.configuration.prices, there.store, log)).summary()
            if before.status in FINISHED:
                raise BadInput(f"run {run} is finished already ({before.status})")
            if dry_run:
                return before, False
            if before.status != "cancelled":
                await tell(log, Operated(action="cancel", target=run, author=getpass.getuser(), reason=reason))
            return before, await _finish(there, log)

    before, finished = run_async(work)
    left = before.episodes_total - before.episodes
    output = invocation.output
    output.data({"run": run, "dry_run": dry_run, "not_begun": left, "finished": finished})
    if dry_run:
        output.line(f"would end run {run} with {left} of {before.episodes_total} episodes not begun")
    elif finished:
        output.line(f"run {run} is finished; {left} of {before.episodes_total} episodes were not begun")
    else:
        output.line(f"run {run} is cancelled; it is finished once its open episodes end (chime run resume {run})")


async def _finish(there: Server, log: EventLog) -> bool:
    """Append `run_finished` where no episode is open; a coordinator that is at work would write the same."""
    async with RqQueue(there.url, there.prefix) as queue:
        conductor = Conductor(log, queue)
        folded, after = 0, START
        if (found := await log.checkpoint()) is not None:
            conductor.begin(found, await log.read_stream(RUN_STREAM))
            folded, after = int(found.state.banks.version), found.state.position
        async for page in log.pages(after):
            for recorded in page:
                conductor.see(recorded)
                folded += recorded.kind == "folded"
        outcome = conductor.ended(folded)
        if outcome is not None:
            await conductor.finish(outcome, folded)
        return outcome is not None or conductor.control == "finished"


async def _status(log: EventLog) -> str:
    """How the run stands, by its own stream: a server keeps that when it lets go of the rest of a log."""
    standing = Standing()
    for one in await log.read_stream(RUN_STREAM):
        standing = standing.after(decode(one))
    return standing.status


@chime_command("delete", short_help="Delete a run: log, blobs and queue keys.")
@click.argument("run")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option("--force", is_flag=True, help="Also a run that is not finished, or what is left of one.")
@click.option("--yes", is_flag=True, help="Do not ask; off a terminal nothing is asked anyway.")
def delete(invocation: Invocation, run: str, dry_run: bool, force: bool, yes: bool) -> int:
    """Delete all that the server and the home hold of RUN. Export it first if you may want it back.

    On a terminal it says what would go, and asks.
    """
    target = run_id(run)

    async def work(*, only_say: bool) -> tuple[dict[str, int], int]:
        async with server(invocation) as there:
            if not force:
                # With --force also what a deletion that was cut short has left: no log, but bodies or jobs.
                log = await there.existing(run)
                status = await _status(log)
                if status not in FINISHED and not dry_run:
                    raise BadInput(f"run {run} is {status}; cancel it first (chime run cancel {run}), or add --force")
            async with RqQueue(there.url, there.prefix) as queue:
                counts = {"queue keys": await queue.forget(target, dry_run=only_say)}
                playing = sum(run_of(id_) == target for one in await queue.hosts() for id_ in one.jobs)
            # Before the log: what is left of a deletion that is cut short is found by the log.
            counts["banks"] = await _without_bank(invocation, there, target, dry_run=only_say)
            # Counted first: where bodies are on the server, they go with the log's keys.
            bodies = await there.blobs.delete(target, dry_run=True)
            counts |= await there.store.delete(target, dry_run=only_say)
            await there.blobs.delete(target, dry_run=only_say)
            return counts | {"blobs": bodies}, playing

    output = invocation.output
    if not (dry_run or yes) and output.interactive and sys.stdin.isatty():
        output.note(f"would delete run {run}: {_counted(run_async(partial(work, only_say=True))[0])}")
        if not click.confirm("delete it for good?", err=True):
            output.note("nothing was deleted")
            return 0
    counts, playing = run_async(partial(work, only_say=dry_run))
    output.data({"run": run, "dry_run": dry_run, "deleted": counts, "under_way": playing})
    output.line(f"{'would delete' if dry_run else 'deleted'} run {run}: {_counted(counts)}")
    if playing:
        jobs = "1 job of it is" if playing == 1 else f"{playing} jobs of it are"
        # What they still write has no log, so that nobody knows whether it is finished.
        after = "" if dry_run else f"; `chime run delete {run} --force` removes what they write until they end"
        output.note(f"note: {jobs} under way{after}")
    return 0


async def _without_bank(invocation: Invocation, logs: Server, run: RunId, *, dry_run: bool) -> int:
    """The run's banks in Weaviate are gone, and the pointer to the one that served; how many there were.

    Where Weaviate is away they are left for `chime memory gc`.
    """
    if logs.generations is None:
        return 0
    generations = logs.generations.of(run)
    standing = await generations.standing()
    serving = [standing.serving.generation] if standing.serving is not None else []
    names = {*serving, *([standing.owner] if standing.owner else []), *standing.retired}
    if dry_run or not names:
        return len(names)
    home, configuration = invocation.resolved.home, invocation.configuration
    # Nobody builds a server to remove from it what it never held.
    starting = (folder_of(home) / "data").is_dir()
    async with with_banks(
        logs, home, configuration.weaviate, invocation.environment, SystemClock(), starting=starting
    ) as there:
        try:
            server = await there.banks.server() if there.banks is not None else None
            why = (server.away or "") if server is not None else ""
        except ChimeError as error:
            server, why = None, str(error)
        removed = await upkeep.forget(server, generations)
        if removed < len(names):
            why = f"{why}; " if why else ""
            invocation.output.note(f"note: {why}`chime memory gc` removes the run's banks once Weaviate answers")
    return len(names)


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{what} {count}" for what, count in counts.items())
