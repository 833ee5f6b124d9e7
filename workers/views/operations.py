"""How a server stands: queues, workers, coordinators of the open runs, dead letters by cause."""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from events.codec import decode
from events.ids import RunId
from events.kinds import Noted, RunStarted
from infra.banks.generations import Serving
from infra.leases import Holder
from infra.operations import Operation
from infra.pacing import Seen
from infra.rq_queue import RqQueue
from infra.rq_standing import HostFacts
from infra.spending import Spent
from runtime.ports import JobFailure, LogOverview, Role
from runtime.settings import Budget, IntakeSettings
from workers.budget import asked_models, budget_in, budget_said
from workers.connections import Server
from workers.views.runs import DAMAGED, run_row

#: statuses of runs that somebody may have to look after
_OPEN = ("open", "paused", "cancelled")


class QueueRow(Struct, frozen=True, kw_only=True):
    """One queue."""

    queue: str
    #: jobs that wait
    depth: int
    #: how long the first of them has waited, seconds; None for an empty queue
    oldest_ready_s: float | None
    #: names of ordinary rq workers, which say nothing of themselves
    rq_workers: list[str]


class CoordinatorRow(Struct, frozen=True, kw_only=True):
    """One open run and who coordinates it."""

    run: RunId
    #: as in `run list`
    status: str
    #: why it does not go on as it might; "" = nothing is in its way
    reason: str
    #: who holds the lease; None = nobody
    holder: str | None
    term: int | None
    #: the last event that the holder had read
    position: int | None
    #: the log's last position
    head: int
    #: events that the holder has not read
    lag: int | None
    #: episodes begun and not folded
    unfolded: int
    #: the newest version in the log
    bank_version: int
    #: versions that the bank in Weaviate is behind the log; None where the run has none there
    bank_lag: int | None = None
    #: why that bank is to be built anew; "" = it is not
    bank_doubt: str = ""


class SpendingRow(Struct, frozen=True, kw_only=True):
    """An open run that may spend so much, or whose endpoints are asked at a pace."""

    run: RunId
    #: None = no bounds
    budget: Budget | None
    spent: Spent | None
    #: spent of each bound, in words; "" without bounds
    told: str
    pace: list[Seen]


class DeadLetters(Struct, frozen=True, kw_only=True):
    """Failed jobs of one cause."""

    fingerprint: str
    error: str
    #: of the newest one
    message: str
    count: int
    #: `<run>/episode-<t>`, newest first, each once
    episodes: list[str]
    first_at: str
    last_at: str


class Standing(Struct, frozen=True, kw_only=True):
    """A server at one moment."""

    server: str
    #: why no episode is begun; None where there is room. By the marks of whoever looks
    intake: str | None
    #: why it takes no writes, so that workers that have come since cannot be seen; None where it does
    full: str | None
    queues: list[QueueRow]
    workers: list[HostFacts]
    coordinators: list[CoordinatorRow]
    spending: list[SpendingRow]
    dead_letters: list[DeadLetters]
    #: what people did to the server, newest first
    operations: list[Operation]


def open_runs(overview: Iterable[LogOverview]) -> list[CoordinatorRow]:
    """The runs that are not finished, without their coordinators."""
    rows = []
    for seen in overview:
        row = run_row(seen)
        if row.status in (*_OPEN, DAMAGED):
            rows.append(
                CoordinatorRow(
                    run=row.run, status=row.status, reason=row.reason, holder=None, term=None, position=None,
                    head=row.events, lag=None, unfolded=max(0, row.episodes - row.bank_version),
                    bank_version=row.bank_version,
                )
            )  # fmt: skip
    return rows


def dead_letters(failures: Iterable[tuple[RunId, JobFailure]]) -> list[DeadLetters]:
    """Failures grouped by their fingerprint, the most frequent first."""
    groups: dict[str, list[tuple[RunId, JobFailure]]] = {}
    for run, failure in failures:
        groups.setdefault(failure.fingerprint, []).append((run, failure))
    rows = []
    for fingerprint, group in groups.items():
        newest_first = sorted(group, key=lambda one: one[1].at, reverse=True)
        newest = newest_first[0][1]
        rows.append(
            DeadLetters(
                fingerprint=fingerprint,
                error=newest.error,
                message=newest.message,
                count=len(group),
                episodes=list(dict.fromkeys(f"{run}/episode-{one.episode}" for run, one in newest_first)),
                first_at=newest_first[-1][1].at,
                last_at=newest.at,
            )
        )
    return sorted(rows, key=lambda row: (-row.count, row.fingerprint))


async def standing(there: Server, queue: RqQueue, marks: IntakeSettings) -> Standing:
    """How `there` stands now; `marks` are where intake stops.

    Raises:
        Unreachable: it does not answer.
    """
    depths, oldest, others = await queue.depths(), await queue.oldest_s(), await queue.others()
    overview = await there.store.overview()
    room = there.intake(queue, marks)
    intake = await room.look()
    rows = [_waiting(row, intake) for row in open_runs(overview)]
    coordinators = [_banked(_held(row, await there.leases.holder(row.run)), await _serving(there, row)) for row in rows]
    failures = [(row.run, one) for row in rows for one in await there.failures.of(row.run)]
    return Standing(
        server=there.where,
        intake=intake,
        full=await room.full(),
        queues=[
            QueueRow(queue=kind, depth=depth, oldest_ready_s=oldest[kind], rq_workers=others[kind])
            for kind, depth in depths.items()
        ],
        workers=await queue.hosts(),
        coordinators=coordinators,
        spending=[
            found
            for seen in overview
            if any(row.run == seen.run and row.status != DAMAGED for row in rows)
            and (found := await _spending(there, seen)) is not None
        ],
        dead_letters=dead_letters(failures),
        operations=await there.operations.newest(5),
    )


async def _spending(there: Server, seen: LogOverview) -> SpendingRow | None:
    """What an open run has spent of its budget, and how fast it asks; None where neither is bounded."""
    budget, models = Budget(), dict[Role, str]()
    for recorded in seen.told:
        match decode(recorded):
            case RunStarted(config=config):
                budget, models = budget_in(config.operational), asked_models(config.models)
            case Noted(topic="operational", facts=facts):
                budget = budget_in(facts, budget)
            case _:
                pass
    pace = await there.pace(seen.run).seen()
    if budget.is_free and not pace:
        return None
    spent = await there.ledger.spent(seen.run) if there.ledger is not None and not budget.is_free else None
    told = budget_said(spent, budget, models) if spent is not None else ""
    return SpendingRow(run=seen.run, budget=None if budget.is_free else budget, spent=spent, told=told, pace=pace)


def _waiting(row: CoordinatorRow, intake: str | None) -> CoordinatorRow:
    if intake is None or row.status != "open" or row.reason:
        return row
    return replace(row, reason=f"its intake is stopped: {intake}")


def _held(row: CoordinatorRow, holder: Holder | None) -> CoordinatorRow:
    if holder is None:
        return row
    lag = max(0, row.head - holder.position)
    return replace(row, holder=holder.name, term=holder.term, position=holder.position, lag=lag)


async def _serving(there: Server, row: CoordinatorRow) -> Serving | None:
    return await there.generations.of(row.run).serving() if there.generations is not None else None


def _banked(row: CoordinatorRow, serving: Serving | None) -> CoordinatorRow:
    if serving is None:
        return row
    return replace(row, bank_lag=max(0, row.bank_version - serving.version), bank_doubt=serving.doubt)
