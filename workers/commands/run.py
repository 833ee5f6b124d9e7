"""`chime run`: looking at runs and comparing them."""

import click
from msgspec.structs import replace

from events.errors import BadInput, Mismatch
from infra.embedding_identity import short
from workers.budget import budget_said
from workers.configuration import ROLES
from workers.connections import Server
from workers.gate_rates import GateFigures
from workers.header import recorded_head
from workers.invocation import Invocation, chime_command, run_async
from workers.output import Output
from workers.run_file import run_file
from workers.sources import is_path, opened, server
from workers.tables import Column
from workers.terminal import clipped
from workers.views.at_hand import NOT_AT_HAND, summarized_at_hand
from workers.views.comparison import Comparison, Side
from workers.views.comparison import compare as compared
from workers.views.pace import pace_said
from workers.views.runs import DAMAGED, RunRow, run_row
from workers.views.summary import GoesWithout, Summary, abandoned_why, summarized
from workers.views.usage import RoleUsage, TotalUsage, completion_said, cost_said, prompt_said

#: a figure of the archived part, where that is not at hand
_UNKNOWN = "not at hand"


@chime_command("list", short_help="List every run with its score.")
@click.option("--full", is_flag=True, help="Bank sizes and cost too: reads every log from end to end.")
def list_runs(invocation: Invocation, full: bool) -> None:
    """List every run of the server, the newest first. The score is that of the episodes whose environment worked."""

    async def work() -> list[RunRow | Summary]:
        async with server(invocation) as there:
            rows = sorted(
                map(run_row, await there.store.overview()), key=lambda row: (row.started_at, row.run), reverse=True
            )
            return [await _in_full(invocation, there, row) if full else row for row in rows]

    rows = run_async(work)
    invocation.output.data(rows)
    columns = [
        Column("run"), Column("status"), Column("environment"), Column("policy"), Column("episodes", "right"),
        Column("score", "right"), Column("95 % interval", "right"),
    ]  # fmt: skip
    if full:
        columns += [Column("banks", "right"), Column("cost", "right")]
    columns += [Column("model"), Column("started"), Column("labels", wide=True)]
    invocation.output.table(
        columns,
        [_row(row, full=full) for row in rows],
        empty="no runs yet; `chime demo` makes three, `chime run start` one of yours",
    )


async def _in_full(invocation: Invocation, there: Server, row: RunRow) -> RunRow | Summary:
    """The run's whole summary; `row` where its log cannot be read to the end."""
    if row.status == DAMAGED:
        return row
    try:
        return (await summarized(invocation.configuration.prices, there.store.open(row.run))).summary()
    except (BadInput, Mismatch) as error:
        return replace(row, status=DAMAGED, reason=str(error))


def _row(one: RunRow | Summary, *, full: bool) -> list[object]:
    if one.status == DAMAGED:
        nothing = ["-"] * (8 if full else 6)
        return [one.run, one.status, *nothing, _second(one.started_at), one.reason]
    banks: list[object] = []
    if full:
        banks = ["-", "-"]
        if isinstance(one, Summary):
            banks = [f"{one.bank_sizes['planning']}+{one.bank_sizes['execution']}", _cost(one)]
    return [
        one.run, one.status, one.environment, one.policy + (" frozen" if one.frozen else ""),
        f"{one.episodes}/{one.episodes_total}",
        f"{one.score.estimate:.1%} of {one.scored}" if one.scored else "-",
        f"{one.score.low:.1%} to {one.score.high:.1%}" if one.scored else "-",
        *banks, ", ".join(dict.fromkeys(one.models.values())), _second(one.started_at), ", ".join(one.labels),
    ]  # fmt: skip


def _second(at: str) -> str:
    """A time to the second; "-" where there is none."""
    return f"{at[:19]}Z" if at else "-"


def _cost(summary: Summary) -> str:
    """The run's cost; what has no price is said."""
    return cost_said(summary.total) if summary.total is not None and summary.total.calls else "-"


@chime_command("show", short_help="Show one run: header, progress, score, labels, cost.")
@click.argument("run", required=False)
def show(invocation: Invocation, run: str | None) -> None:
    """Show RUN (a run, an export file or folder; default: the newest run)."""

    async def work() -> Summary:
        prices = invocation.configuration.prices
        if run is not None and is_path(run):
            async with opened(invocation, run) as source:
                return (await summarized(prices, source.log)).summary()
        async with server(invocation) as there:
            log = await there.newest() if run is None else await there.existing(run)
            found = (await summarized_at_hand(prices, there.store, log)).summary()
            spent = await there.ledger.spent(log.run) if there.ledger is not None else None
            return replace(found, spent=spent, pace=await there.pace(log.run).seen())

    one = run_async(work)
    invocation.output.data(one)
    invocation.output.facts(_facts(one))
    if one.past:
        invocation.output.note(f"note: {NOT_AT_HAND}: {one.past}")
    else:
        _print_usage(invocation.output, one)


def _facts(one: Summary) -> dict[str, object]:
    labels = ", ".join(f"{name} {count}" for name, count in one.attributions.items())
    seed = one.seed_bank
    facts: dict[str, object] = {
        "run": one.run + (f"  [{', '.join(one.labels)}]" if one.labels else ""),
        "status": one.status + (f": {one.reason}" if one.reason else ""),
        "environment": one.environment,
        "policy": one.policy + (" (frozen: reads version 0, learns nothing)" if one.frozen else ""),
        "models": ", ".join(f"{role} {model}" for role, model in one.models.items()),
        "lag": f"{one.lag} (concurrency {one.concurrency}, epochs {one.epochs})",
        "episodes": f"{one.episodes} of {one.episodes_total} begun, {one.abandoned} abandoned{abandoned_why(one)}",
        "score": _score(one),
        "attribution": (labels or _UNKNOWN) + (f"; degraded: {_counts(one.degraded)}" if one.degraded else ""),
        "gate": gate_line(one.gate),
        "banks": f"version {one.bank_version}: {_banks(one)}",
        "bank store": one.bank_store + (f"; recalls: {_counts(one.recalls)}" if one.recalls else ""),
        "operations": _UNKNOWN if one.past else _counts(one.operations) or "none",
        "digest": one.digest or "none yet",
        "embedder": short(one.embedder),
        "log": f"{one.events} events, {one.started_at} to {one.last_at}",
    }
    if one.budget is not None and one.spent is not None:
        facts["budget"] = budget_said(one.spent, one.budget, {role: one.models.get(role, "") for role in ROLES})
    if one.pace:
        facts["pace"] = "; ".join(map(pace_said, one.pace))
    if one.goes_without:
        facts["goes without"] = "; ".join(map(_without, one.goes_without))
    if seed is not None:
        facts["seed bank"] = f"{seed['run']} at version {seed['version']}"
    return facts


def _without(one: GoesWithout) -> str:
    words = {True: "yes", False: "no"}
    told = [f"{name.replace('_', ' ')}: {words.get(value, value)}" for name, value in one.abilities.items()]
    return f"{one.model} at {one.base_url} is asked with {', '.join(told)}"


def gate_line(figures: GateFigures | None) -> str:
    """How a run's gate fared, on one line."""
    if figures is None:
        return _UNKNOWN
    if figures.degraded_rate is None:
        return "nothing to judge yet"
    told = [
        f"{figures.to_judge} to judge",
        f"{figures.degraded} degraded ({figures.degraded_rate:.1%})",
        f"{figures.repaired} repaired",
        f"{figures.misleading} misleading named, {figures.misleading_dropped} unknown names dropped",
    ]
    return ", ".join(told) + (f"; unread: {_counts(figures.unread)}" if figures.unread else "")


def _banks(one: Summary) -> str:
    sizes = one.bank_sizes
    return f"{sizes['planning']} planning, {sizes['execution']} execution" if sizes else _UNKNOWN


def _score(one: Summary) -> str:
    if not one.scored:
        return f"none: {_not_valid(one.not_valid)}" if one.not_valid else "none yet"
    score = one.score
    interval = f"95 % {score.low:.1%} to {score.high:.1%} (Wilson)"
    left_out = f"; {_not_valid(one.not_valid)}" if one.not_valid else ""
    return f"{one.successes} of {one.scored} scored episodes: {score.estimate:.1%}, {interval}{left_out}"


def _not_valid(number: int) -> str:
    return f"{number} more {'is' if number == 1 else 'are'} not counted, their environment failed"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _print_usage(output: Output, one: Summary) -> None:
    rows: list[RoleUsage | TotalUsage] = [*one.usage, *([one.total] if one.total is not None else [])]
    output.table(
        [Column("role"), Column("model"), Column("calls", "right"), Column("prompt tokens", "right"),
         Column("cached", "right"), Column("completion tokens", "right"), Column("cost", "right")],
        [
            [
                *((use.role, use.model) if isinstance(use, RoleUsage) else ("total", "")), use.calls, prompt_said(use),
                "-" if use.cached_tokens is None else f"{use.cached_tokens:,}", completion_said(use), cost_said(use),
            ]
            for use in rows
        ],
    )  # fmt: skip
    if one.spent is not None and one.total is not None and (others := one.spent.calls - one.total.calls) > 0:
        output.note(f"note: {others:,} more calls have failed, or belong to stages that have not ended")
    if one.total is not None and one.total.unpriced:
        output.note(f"note: without a price, or of unknown size: {', '.join(one.total.unpriced)}")


@chime_command("compare", short_help="Compare two runs task by task.")
@click.argument("first")
@click.argument("second")
@click.option(
    "--flips", "limit", type=click.IntRange(min=0), default=20, show_default=True, metavar="N",
    help="How many flipped tasks to list.",
)  # fmt: skip
def compare(invocation: Invocation, first: str, second: str, limit: int) -> None:
    """Compare SECOND with FIRST (runs, export files or folders) over the tasks that both have, paired by task."""

    async def work() -> Comparison:
        prices = invocation.configuration.prices
        # Both are open at once, so that the home's server is started once.
        async with opened(invocation, first) as one, opened(invocation, second) as two:
            return compared(await summarized(prices, one.log), await summarized(prices, two.log))

    found = run_async(work)
    output = invocation.output
    output.data(found)
    output.table(
        [Column("run"), Column("n", "right"), Column("successes", "right"), Column("score", "right"),
         Column("95 % interval", "right")],
        [_side(side) for side in (found.first, found.second)],
    )  # fmt: skip
    difference = found.difference
    method = "Newcombe" if found.method == "newcombe" else "bootstrap over tasks"
    output.line(
        f"difference {difference.estimate:+.1%}, 95 % {difference.low:+.1%} to {difference.high:+.1%} ({method}), "
        f"{found.tasks} tasks in common"
    )
    if found.pairs is not None:
        pairs = found.pairs
        output.line(
            f"both {pairs.both}, only {found.first.run} {pairs.first_only}, "
            f"only {found.second.run} {pairs.second_only}, neither {pairs.neither}; "
            f"exact McNemar p = {found.p_value:.3g}"
        )
    for warning in found.warnings:
        output.note(f"note: {warning}")
    output.table(
        [Column("flipped task"), Column(found.first.run, "right"), Column(found.second.run, "right")],
        [[clipped(flip.task, 60), f"{flip.first:g}", f"{flip.second:g}"] for flip in found.flips[:limit]],
    )
    if len(found.flips) > limit:
        output.line(f"and {len(found.flips) - limit} more (--flips N)")


def _side(side: Side) -> list[object]:
    score = side.score
    return [side.run, side.n, side.successes, f"{score.estimate:.1%}", f"{score.low:.1%} to {score.high:.1%}"]


@chime_command("export-config", short_help="Print a run's configuration as chime.toml.")
@click.argument("run", required=False)
@click.option("-o", "--output", "file", metavar="FILE", help="Write to FILE instead of stdout.")
def export_config(invocation: Invocation, run: str | None, file: str | None) -> None:
    """Print the configuration of RUN's header as a chime.toml that starts the same run again."""

    async def work() -> str:
        async with opened(invocation, run) as source:
            return run_file((await recorded_head(source.log)).started)

    text = run_async(work)
    output = invocation.output
    if file is None:
        output.data({"toml": text})
        if not output.json:
            output.raw(text)
        return
    output.write_file(file, text)
    output.data({"file": file})
    output.line(f"wrote {file}")
