"""`chime log`: a run's log as others read it."""

from pathlib import Path

import click

from events.codec import decode, export_line
from events.errors import BadInput, FoldMismatch, UnknownName
from events.fold import REPLAY_KINDS
from events.ids import Position, run_id
from events.kinds import AnyEvent, Diagnosed, Executed, Folded, Retrieved, RunStarted, Scored
from events.log import Recorded
from events.parameters import Given
from events.verify import Verified, Verifier
from infra.csv_rows import export_csv
from infra.export import ExportReport, export_log
from infra.log_import import ImportReport
from infra.log_import import import_log as imported
from workers import paths
from workers.changes import print_changes
from workers.connections import START, Source
from workers.invocation import Invocation, chime_command, run_async
from workers.layers import Flags
from workers.output import Output, json_text
from workers.presets import PRESETS
from workers.schema import kind_schema, kind_schemas
from workers.sources import export_path, opened, server
from workers.tables import Column
from workers.terminal import clipped
from workers.views.refold import Fold, Refolding

#: how long one wait for news lasts, seconds
_PATIENCE_S = 5.0


@chime_command("list", short_help="List the logs of the server with their sizes.")
def list_logs(invocation: Invocation) -> None:
    """List the logs of the server: how many events, streams and bank versions each one holds."""

    async def work() -> list[dict[str, object]]:
        async with server(invocation) as there:
            return [
                {
                    "run": seen.run,
                    "events": seen.head,
                    "streams": seen.episodes + bool(seen.told) + bool(seen.folds),
                    "bank_version": seen.folds,
                    "finished": any(one.kind == "run_finished" for one in seen.told),
                }
                for seen in await there.store.overview()
            ]

    rows = run_async(work)
    invocation.output.data(rows)
    columns = [Column("run"), *(Column(name, "right") for name in ("events", "streams", "bank version", "finished"))]
    cells = [[*list(row.values())[:-1], "yes" if row["finished"] else "no"] for row in rows]
    invocation.output.table(columns, cells, empty="no logs yet")


@chime_command("export", short_help="Write a run's log to a file or folder.")
@click.argument("run", required=False)
@click.option("-o", "--output", "file", metavar="PATH", help="FILE.jsonl, FILE.jsonl.zst, FILE.csv, or a folder.")
@click.option("--with-blobs", is_flag=True, help="Bodies too: trajectories, prompts, answers.")
@click.option(
    "--format", "form", type=click.Choice(["jsonl", "csv"]), help="csv: one row an episode (default: by name)."
)
def export(invocation: Invocation, run: str | None, file: str | None, with_blobs: bool, form: str | None) -> None:
    """Write the log of RUN (default: the newest run), one JSON object a line in position order.

    A name that ends in .zst compresses, a folder holds checked segments, a .csv flat rows for a notebook. Without -o
    the lines go to stdout.
    """
    as_csv = form == "csv" or (form is None and file is not None and file.endswith(".csv"))
    if file is None and (as_csv or with_blobs):
        raise BadInput(f"--{'format csv' if as_csv else 'with-blobs'} needs -o PATH")
    if file is None and invocation.output.json:
        raise BadInput("--json needs -o PATH here: without it the log goes to stdout, one JSON object a line")
    if as_csv and with_blobs:
        raise BadInput("a .csv holds rows only; export a folder for --with-blobs")

    path = paths.output(invocation.folder, file) if file is not None else None

    async def work() -> ExportReport | int:
        async with opened(invocation, run) as source:
            if path is None:
                return await _print_lines(invocation.output, source)
            if as_csv:
                return await export_csv(source.log, path)
            return await _exported(source, path, with_blobs=with_blobs)

    report = run_async(work)
    output = invocation.output
    if isinstance(report, ExportReport):
        output.data(report)
        more = f", {report.blobs} bodies, {report.calls} calls" if report.blobs is not None else ""
        output.line(f"wrote {report.events} events of run {report.run} to {file}{more}")
    elif file is not None:
        output.data({"path": file, "rows": report})
        output.line(f"wrote {report} episodes to {file}")


async def _print_lines(output: Output, source: Source) -> int:
    """Every line of the export on stdout; how many."""
    count = 0
    async for page in source.log.pages(START):
        for one in page:
            output.raw(export_line(one).decode())
        count += len(page)
    return count


async def _exported(source: Source, path: Path, *, with_blobs: bool) -> ExportReport:
    if not with_blobs:
        return await export_log(source.log, path)
    if source.blobs is None:
        raise BadInput("this export has no blobs beside it; export from the server that played the run")
    return await export_log(source.log, path, blobs=source.blobs, calls=source.calls)


@chime_command("import", short_help="Read an exported log into the server.")
@click.argument("path")
@click.option("--run", "name", metavar="NAME", help="Under another name; ids follow it.")
def import_log(invocation: Invocation, path: str, name: str | None) -> None:
    """Read an export (file or folder, with its bodies where it has some) into the server, checked line by line.

    Exported again it is the same bytes. The same export twice changes nothing.
    """
    export_at = export_path(invocation.folder, path)
    target = run_id(name) if name is not None else None

    async def work() -> ImportReport:
        async with server(invocation, making=True) as there:
            return await imported(export_at, there.store, there.blobs, there.calls, target)

    report = run_async(work)
    invocation.output.data(report)
    word = "imported" if report.written else "there already:"
    invocation.output.line(f"{word} run {report.run}, {report.events} events; next: chime log verify {report.run}")


@chime_command("verify", short_help="Decide again and compare every version of the banks.")
@click.argument("run", required=False)
def verify(invocation: Invocation, run: str | None) -> None:
    """Check the log of RUN (a run, an export file or folder; default: the newest run) against the fold.

    Every position and version, every recall, every operation and the digest of the banks at every version, decided
    again under the recorded policy. Ends with 4 and names the first event that differs.
    """

    async def work() -> Verified:
        verifier = Verifier()
        async with opened(invocation, run) as source:
            async for page in source.log.pages(START):
                for recorded in page:
                    verifier.feed(recorded)
        return verifier.done()

    found = run_async(work)
    invocation.output.data(found)
    unchecked = f", {found.unchecked_recalls} recalls of older versions not checked" if found.unchecked_recalls else ""
    invocation.output.line(
        f"verified {found.events} events: {found.versions} bank versions and {found.recalls} recalls match{unchecked}"
    )
    invocation.output.line(f"digest {found.digest}")


@chime_command("tail", short_help="Print the last events, and follow.")
@click.argument("run", required=False)
@click.option("-n", "count", default=20, show_default=True, metavar="N", type=click.IntRange(min=0), help="How many.")
@click.option("-f", "--follow", is_flag=True, help="Go on as events arrive, until the run is finished or Ctrl-C.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only this kind; may be repeated.")
def tail(invocation: Invocation, run: str | None, count: int, follow: bool, kinds: tuple[str, ...]) -> None:
    """Print the last events of RUN, one a line; with --json as lines of an export, one JSON object each."""
    for kind in kinds:
        kind_schema(kind)  # refuses an unknown one

    async def work() -> None:
        wanted = frozenset(kinds) or None
        async with opened(invocation, run) as source:
            head = await source.log.head()
            # Of some kinds only, the last ones may lie anywhere: read all, keep the last.
            first = Position(max(0, head - count)) if wanted is None else START
            kept = [one async for page in source.log.pages(first, wanted) for one in page]
            for one in kept[len(kept) - min(count, len(kept)) :]:
                _print_event(invocation, one)
            position, finished = head, bool(kept) and kept[-1].kind == "run_finished"
            while follow and not finished:
                await source.log.wait(position, _PATIENCE_S)
                async for page in source.log.pages(position):
                    for one in page:
                        position, finished = one.position, one.kind == "run_finished"
                        if wanted is None or one.kind in wanted:
                            _print_event(invocation, one)

    run_async(work)


def _print_event(invocation: Invocation, recorded: Recorded) -> None:
    output = invocation.output
    if output.json:
        output.raw(export_line(recorded).decode())
    else:
        output.line(
            f"{recorded.position:>6}  {recorded.at}  {recorded.stream:<14} {recorded.version:>3}  {recorded.kind:<13} "
            f"{clipped(_told(decode(recorded)), 100)}"
        )


def _told(event: AnyEvent) -> str:
    match event:
        case RunStarted():
            return f"{event.tasks_total} tasks, policy {event.config.policy.name}"
        case Retrieved():
            chosen = ", ".join(one.id for one in event.candidates if one.chosen)
            return f"{event.stage} at version {event.bank_version}: {chosen or 'nothing'}"
        case Executed():
            return f"{event.steps} steps, {event.errors} errors, {event.stop}"
        case Scored():
            return f"{'success' if event.success else 'failure'} {event.reward:g}"
        case Diagnosed():
            return event.degraded or f"{event.label} {event.confidence_e4 / 10_000:.2f}"
        case Folded():
            names = [str(one.__struct_config__.tag) for one in event.operations]
            return f"version {event.bank_version}: {', '.join(names) or 'nothing'}"
        case _:
            return ""


@chime_command("schema", short_help="Print a JSON Schema for each kind of event.")
@click.argument("kind", required=False)
def schema(invocation: Invocation, kind: str | None) -> None:
    """Print the JSON Schema of one export line of KIND, or of every kind as one object by name."""
    found = kind_schemas() if kind is None else kind_schema(kind)
    invocation.output.data(found)
    if not invocation.output.json:
        invocation.output.raw(json_text(found, indent=2) + "\n")


@chime_command("refold", short_help="Fold a log under another policy or parameters.")
@click.argument("run", required=False)
@click.option("--policy", "name", metavar="NAME", help="Another policy: credit, outcome, ...")
def refold(invocation: Invocation, run: str | None, name: str | None) -> None:
    """Decide every diagnosis of RUN again under another policy or other parameters; no model is called.

    `chime log refold RUN -s policy.theta_merge=0.9`. What is not given is as RUN's header has it. Where the policy
    differs the result is off-policy: these diagnoses were made under the logged retrieval, so it says what the bank
    would hold, not how well an agent would do with it.
    """
    given = _policy_settings(invocation.flags)
    preset_or_set = given.pop("name", None)
    refolding = Refolding(name or (str(preset_or_set) if preset_or_set is not None else None), given)

    async def work() -> None:
        async with opened(invocation, run) as source:
            async for page in source.log.pages(START, REPLAY_KINDS):
                for event in page:
                    refolding.feed(event)

    run_async(work)
    found = refolding.done()
    output = invocation.output
    output.data(found)
    if found.off_policy:
        told = ", ".join(f"{what} {a} -> {b}" for what, (a, b) in found.differs.items())
        output.line(f"OFF-POLICY: {told}; the diagnoses were made under the logged retrieval")
    else:
        output.line("the recorded policy and parameters: an exact refold")
    output.table(
        [Column("fold"), Column("policy"), Column("planning", "right"), Column("execution", "right"),
         Column("insert", "right"), Column("merge", "right"), Column("prune", "right"), Column("discard", "right"),
         Column("digest")],
        [_fold_row("recorded", found.recorded), _fold_row("refolded", found.refolded)],
    )  # fmt: skip
    at = found.first_difference
    output.line(
        f"{found.versions} versions; "
        + (f"operations differ first at version {at}" if at else "the same operations at every version")
    )
    print_changes(output, found.changes)
    if not found.off_policy and at is not None:
        raise FoldMismatch(f"bank version {at}", "operations", "see above", "chime log verify names them")


def _policy_settings(flags: Flags) -> dict[str, Given]:
    """What the preset and -s say about the policy: the rest of a configuration has no part in a refold.

    Raises:
        BadInput: -s with another setting, or without a value.
        UnknownName: no such preset.
    """
    given: dict[str, Given] = {}
    if flags.preset is not None:
        if flags.preset not in PRESETS:
            raise UnknownName("preset", flags.preset, PRESETS)
        given |= {key[7:]: value for key, value in PRESETS[flags.preset].items() if key.startswith("policy.")}
    for one in flags.sets:
        key, sign, value = (part.strip() for part in one.partition("="))
        if not sign or not key.startswith("policy."):
            raise BadInput(f"-s {one}: a refold takes policy.NAME=VALUE only, such as policy.theta_merge=0.9")
        given[key[7:]] = value
    return given


def _fold_row(name: str, fold: Fold) -> list[object]:
    counts = [fold.operations.get(kind, 0) for kind in ("insert", "merge", "prune", "discard")]
    sizes = fold.bank_sizes
    return [name, fold.policy.name, sizes["planning"], sizes["execution"], *counts, fold.digest[:16]]
