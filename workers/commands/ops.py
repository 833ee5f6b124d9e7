"""`chime ops`: how a server stands, and what an operator can do to its runs."""

import getpass
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from msgspec import Struct

from events.errors import BadInput
from events.ids import episode_stream, run_id
from events.kinds import Operated
from infra.redis_client import MORE_ROOM, ServerFull
from infra.rq_queue import RqQueue
from runtime.ports import EventLog
from runtime.schedule import ENDINGS
from runtime.settings import IntakeSettings
from workers.connections import Server
from workers.invocation import Invocation, chime_command, run_async
from workers.output import Output
from workers.run_stream import tell
from workers.sources import server
from workers.tables import Column
from workers.terminal import clipped
from workers.views.operations import Standing, standing
from workers.views.pace import pace_said
from workers.views.runs import run_row
from workers.views.standing import FINISHED

F = TypeVar("F", bound=Callable[..., Any])

#: why a worker may live that a full server does not show
_UNSEEN = "a full server takes no heartbeats"
#: what drains a worker without the server
_SIGNAL = "drain each worker by SIGTERM to its process"


def by_whom(function: F) -> F:
    """The options of a command that changes something: who does it, why, and whether only to say what would be done."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Only say what would be done."),
        click.option("--reason", default="", help="Why; recorded."),
        click.option("--author", metavar="NAME", help="Who does it (default: you); recorded."),
    ):
        function = option(function)
    return function


def author_of(author: str | None) -> str:
    """The name that is recorded.

    Raises:
        BadInput: none is given, and the system does not know one.
    """
    if author:
        return author
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise BadInput("the system does not say who you are; give --author NAME") from error


def _queue(there: Server) -> RqQueue:
    if not there.url:
        raise BadInput(
            f"{there.where} has no server yet, so there is nothing to look after; `chime run start` makes one"
        )
    return RqQueue(there.url, there.prefix)


@chime_command("status", short_help="Show queues, workers, coordinators and dead letters.")
def status(invocation: Invocation) -> None:
    """Show how the server stands: queues, workers, who coordinates which open run, failed jobs by cause."""

    async def work() -> Standing:
        async with server(invocation) as there, _queue(there) as queue:
            return await standing(there, queue, invocation.configuration.intake)

    found = run_async(work)
    invocation.output.data(found)
    _print(invocation.output, found)


def _print(output: Output, found: Standing) -> None:
    output.line(f"server  {found.server}")
    if found.full:
        output.line(f"        is full and refuses writes: {found.full}; {MORE_ROOM}")
    elif found.intake:
        output.line(f"        its intake is stopped: {found.intake}; what is under way goes on")
    output.line()
    output.line("queues")
    output.table(
        [Column("queue"), Column("waiting", "right"), Column("oldest", "right"), Column("rq workers", wide=True)],
        [
            [one.queue, one.depth, _seconds(one.oldest_ready_s), ", ".join(one.rq_workers) or "-"]
            for one in found.queues
        ],
    )
    output.line()
    output.line("workers")
    output.table(
        [Column("worker"), Column("queue"), Column("beat", "right"), Column("jobs", "right"), Column("state"),
         Column("episodes", wide=True)],
        [
            [one.name, one.queue, _seconds(one.beat_age_s), f"{len(one.jobs)}/{one.slots}",
             "draining" if one.draining else "serving", ", ".join(sorted(one.jobs)) or "-"]
            for one in found.workers
        ],
        empty=f"no worker can be seen: {_UNSEEN}"
        if found.full
        else "no worker is alive; start some: chime worker act, chime worker diagnose",
    )  # fmt: skip
    output.line()
    output.line("coordinators")
    output.table(
        [Column("run"), Column("status"), Column("holder"), Column("term", "right"), Column("position", "right"),
         Column("lag", "right"), Column("unfolded", "right"), Column("bank lag", "right"), Column("why", wide=True)],
        [
            [one.run, one.status, one.holder or "nobody", one.term or "-",
             f"{'-' if one.position is None else one.position}/{one.head}", "-" if one.lag is None else one.lag,
             one.unfolded, "-" if one.bank_lag is None else one.bank_lag,
             one.reason or (f"its bank is built anew: {one.bank_doubt}" if one.bank_doubt else "")]
            for one in found.coordinators
        ],
        empty="no run is open",
    )  # fmt: skip
    output.line()
    if found.spending:
        output.line("budgets and pace")
        output.table(
            [Column("run"), Column("spent"), Column("pace", wide=True)],
            [[one.run, one.told or "-", "; ".join(map(pace_said, one.pace)) or "-"] for one in found.spending],
        )
        output.line()
    _print_trouble(output, found)


def _print_trouble(output: Output, found: Standing) -> None:
    """What has failed, and what operators have done."""
    output.line("dead letters")
    output.table(
        [Column("cause"), Column("count", "right"), Column("last"), Column("error"), Column("episodes", wide=True)],
        [
            [one.fingerprint, one.count, f"{one.last_at[:19]}Z", clipped(f"{one.error}: {one.message}", 80),
             ", ".join(one.episodes[:3]) + (" ..." if len(one.episodes) > 3 else "")]
            for one in found.dead_letters
        ],
        empty="no job of an open run has failed",
    )  # fmt: skip
    if found.operations:
        output.line()
        output.line("operations")
        output.table(
            [Column("at"), Column("action"), Column("author"), Column("target"), Column("reason", wide=True)],
            [[f"{one.at[:19]}Z", one.action, one.author, one.target, one.reason] for one in found.operations],
        )


def _seconds(age_s: float | None) -> str:
    return "-" if age_s is None else f"{age_s:.1f} s"


class _Told(Struct, frozen=True, kw_only=True):
    """What was said to a run."""

    run: str
    action: str
    dry_run: bool
    #: who coordinates it now; None = nobody: it takes effect once somebody does
    coordinator: str | None
    #: what it is about: the run, or episodes of it
    targets: list[str]


async def _say(
    invocation: Invocation, run: str, action: str, said: tuple[str, str], *, episodes: tuple[int, ...], dry_run: bool
) -> _Told:
    """Tell the run's log what somebody wants; `said` is author and reason."""
    async with server(invocation) as there:
        log = await there.existing(run)
        row = next(row for seen in await there.store.overview() if (row := run_row(seen)).run == log.run)
        if row.status in FINISHED:
            raise BadInput(f"run {run} is finished ({row.status}): there is nothing to {action}")
        if row.status == "cancelled" and action in ("pause", "resume"):
            raise BadInput(f"run {run} is cancelled, which is for good; chime memory fork {run} goes on from its banks")
        targets = [f"{run}/{episode_stream(t)}" for t in episodes] or [run]
        for t in episodes:
            await _assert_open(log, t)
        if not dry_run:
            with _needing_room(f"it has no room to record the {action}; no new episode begins meanwhile"):
                for target in targets:
                    await tell(log, Operated(action=action, target=target, author=said[0], reason=said[1]))
        holder = await there.leases.holder(log.run)
        name = holder.name if holder is not None else None
        return _Told(run=run, action=action, dry_run=dry_run, coordinator=name, targets=targets)


@contextmanager
def _needing_room(consequence: str) -> Iterator[None]:
    """What the body writes is refused by a full server with `consequence`.

    Raises:
        ServerFull: it is full.
    """
    try:
        yield
    except ServerFull as full:
        raise ServerFull(f"{full}; {consequence}") from full


async def _assert_open(log: EventLog, t: int) -> None:
    events = await log.read_stream(episode_stream(t))
    if not events:
        raise BadInput(f"run {log.run} has no episode {t} yet; `chime episode list {log.run}` lists those that began")
    if events[-1].kind in ENDINGS:
        raise BadInput(f"episode {t} of run {log.run} has ended ({events[-1].kind}); an ended episode stays as it is")


def _report(output: Output, told: _Told, done: str) -> None:
    output.data(told)
    would = "would be " if told.dry_run else ""
    output.line(f"{', '.join(told.targets)}: {would}{done}")
    if told.coordinator is None and not told.dry_run:
        output.note(f"nobody coordinates {told.run} now: chime run resume {told.run}, or chime coordinator")


@chime_command("pause", short_help="Ask for no more jobs of a run until it is resumed.")
@click.argument("run")
@by_whom
def pause(invocation: Invocation, run: str, author: str | None, reason: str, dry_run: bool) -> None:
    """Pause RUN: what is under way ends, nothing new is asked for, nothing is lost."""
    said = author_of(author), reason
    told = run_async(lambda: _say(invocation, run_id(run), "pause", said, episodes=(), dry_run=dry_run))
    _report(invocation.output, told, "paused")


@chime_command("resume", short_help="Go on with a run that was paused or has stopped.")
@click.argument("run")
@by_whom
def resume(invocation: Invocation, run: str, author: str | None, reason: str, dry_run: bool) -> None:
    """Resume RUN where workers and a coordinator serve it; `chime run resume` brings its own."""
    said = author_of(author), reason
    told = run_async(lambda: _say(invocation, run_id(run), "resume", said, episodes=(), dry_run=dry_run))
    _report(invocation.output, told, "resumed")


@chime_command("requeue", short_help="Ask afresh for the jobs of a run's open episodes.")
@click.argument("run")
@click.option("--episode", "episodes", type=click.IntRange(min=0), multiple=True, help="Only this one; repeatable.")
@by_whom
def requeue(
    invocation: Invocation, run: str, episodes: tuple[int, ...], author: str | None, reason: str, dry_run: bool
) -> None:
    """Ask afresh for the jobs of the open episodes of RUN, as if none had failed: three attempts for each."""
    said = author_of(author), reason
    told = run_async(lambda: _say(invocation, run_id(run), "requeue", said, episodes=episodes, dry_run=dry_run))
    _report(invocation.output, told, "queued again")


@chime_command("drain", short_help="Ask workers to finish what runs, then end.")
@click.argument("workers", nargs=-1)
@click.option("--kind", type=click.Choice(["act", "diagnose"]), help="Every worker of this kind.")
@click.option("--all", "everyone", is_flag=True, help="Every worker.")
@by_whom
def drain(
    invocation: Invocation, workers: tuple[str, ...], kind: str | None, everyone: bool, author: str | None,
    reason: str, dry_run: bool,
) -> None:  # fmt: skip
    """Ask WORKERS (names as `chime ops` shows them) to take no more jobs, finish what runs, hand back the rest and end.

    Whoever keeps them running starts new ones: a rolling restart without a failed episode.
    """
    who = author_of(author)
    if not (workers or kind or everyone):
        raise BadInput("which workers? give names, --kind act|diagnose, or --all")

    async def work() -> list[str]:
        async with server(invocation) as there, _queue(there) as queue:
            alive = [one for one in await queue.hosts() if kind is None or one.queue == f"chime-{kind}"]
            names = [one.name for one in alive]
            chosen = [name for name in names if not workers or name in workers]
            unknown = [name for name in workers if name not in names]
            if (unknown or not chosen) and (full := await there.intake(queue, IntakeSettings()).full()):
                wanted = f"worker {unknown[0]!r} cannot" if unknown else "no worker can"
                raise ServerFull(f"{wanted} be seen on {there.where}: {_UNSEEN} ({full}); {MORE_ROOM}, or {_SIGNAL}")
            if unknown:
                raise BadInput(f"no live worker {unknown[0]!r}; `chime ops` lists them")
            if not dry_run:
                with _needing_room(_SIGNAL):
                    await queue.drain(dict.fromkeys(chosen, who))
                    for name in chosen:
                        await there.operations.record("drain", name, who, reason)
            return chosen

    chosen = run_async(work)
    invocation.output.data({"workers": chosen, "dry_run": dry_run})
    would = "would drain" if dry_run else "draining"
    invocation.output.line(f"{would} {', '.join(chosen)}" if chosen else "no worker is alive")


@chime_command("orphans", short_help="Remove queue records that belong to nobody.")
@by_whom
def orphans(invocation: Invocation, author: str | None, reason: str, dry_run: bool) -> None:
    """Remove jobs of runs that are finished or gone, records of workers that died, orders to drain workers that nobody
    knows, and leases of runs that never end.

    What a live worker holds stays.
    """
    who = author_of(author)

    async def work() -> dict[str, list[str]]:
        async with server(invocation) as there, _queue(there) as queue:
            rows = map(run_row, await there.store.overview())
            served = {row.run for row in rows if row.status not in FINISHED}
            found = await queue.orphans(served, dry_run=dry_run)
            leases: list[str] = [*await there.leases.end_endless(dry_run=dry_run)]
            names = {"jobs": found.jobs, "workers": found.workers, "drains": found.drains, "leases": leases}
            if (found or leases) and not dry_run:
                target = ", ".join(f"{len(some)} {what}" for what, some in names.items() if some)
                await there.operations.record("orphans", target, who, reason)
            return names

    found = run_async(work)
    output = invocation.output
    output.data({**found, "dry_run": dry_run})
    for what, names in found.items():
        for name in names:
            output.line(f"{what[:-1]} {name}")
    count = sum(map(len, found.values()))
    output.line(f"{count} {'would be removed' if dry_run else 'removed'}" if count else "nothing is left over")
