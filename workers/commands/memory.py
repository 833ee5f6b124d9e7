"""`chime memory`: the banks at any version, rebuilt from the log."""

from dataclasses import dataclass

import click
from msgspec.structs import replace

from events.bank import Banks
from events.errors import BadInput
from events.ids import RunId, Stage, run_id
from events.kinds import RunStarted, SeedBank
from events.seeding import seed_items
from workers.changes import print_changes
from workers.connections import START, Source
from workers.header import begin, head, recorded_head
from workers.invocation import Invocation, chime_command, run_async
from workers.output import Output, json_text
from workers.reembedding import assert_embedder_kept
from workers.sources import banks_at, newest_version, opened, server, split_words
from workers.tables import Column
from workers.terminal import clipped
from workers.views.banks import (
    HISTORY_KINDS,
    ItemChange,
    ItemRow,
    LifeLine,
    Moment,
    difference,
    item_row,
    near_memories,
    version_at,
)

_AT = click.option("--at", metavar="VERSION|PERCENT", help="A bank version or a share of the newest (default: newest).")
_SHOWN = 60


async def _banks(source: Source, at: str | None) -> Banks:
    version = version_at(at, await newest_version(source.log))
    return await banks_at(source.log, version)


@chime_command("list", short_help="List every live item at a version.")
@click.argument("run", required=False)
@_AT
@click.option("--bank", type=click.Choice(["planning", "execution"]), help="Only this bank.")
def list_items(invocation: Invocation, run: str | None, at: str | None, bank: Stage | None) -> None:
    """List every live item of RUN (a run, an export file or folder; default: the newest run), in id order.

    With --json: `version`, `digest` (of both banks) and `items` stand at the top level.
    """

    async def work() -> Banks:
        async with opened(invocation, run) as source:
            return await _banks(source, at)

    banks = run_async(work)
    output, digest = invocation.output, banks.digest()
    rows = [item_row(item) for item in banks if bank in (None, item.bank)]
    output.data(version=banks.version, digest=digest, items=rows)
    output.table(
        [
            Column("id"), Column("value", "right"), Column("n", "right"), Column("sources", "right"),
            Column("since", "right"), Column("changed", "right"), Column("scenario", wide=True),
            Column("experience", wide=True),
        ],
        [_cells(row) for row in rows],
        empty="no items",
    )  # fmt: skip
    sizes = banks.sizes()
    output.line(
        f"version {banks.version}: {sizes['planning']} planning, {sizes['execution']} execution; digest {digest[:16]}"
    )


def _cells(row: ItemRow) -> list[object]:
    texts = [clipped(" ".join(text.split()), _SHOWN) for text in (row.scenario, row.experience)]
    return [row.id, f"{row.value:+.3f}", row.n, len(row.sources), row.inserted_at, row.changed_at, *texts]


@chime_command("show", short_help="Show one item in full.")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] ID")
@_AT
def show(invocation: Invocation, words: tuple[str, ...], at: str | None) -> None:
    """Show one item in full, as of a version."""
    run, (memory,) = split_words(words, ("ID",))

    async def work() -> Banks:
        async with opened(invocation, run) as source:
            return await _banks(source, at)

    banks = run_async(work)
    row = next((item_row(item) for item in banks if item.id == memory), None)
    if row is None:
        known = [item.id for item in banks]
        hint = near_memories(memory, known)
        raise BadInput(
            f"no memory {memory!r} at version {banks.version}; {hint}; its past: chime memory history {memory}"
        )
    output = invocation.output
    output.data(row)
    output.facts(
        {
            "id": row.id,
            "value": f"{row.value:+.4f} (sum {row.delta_sum / 10_000:+.4f} over {row.n} uses)",
            "since": f"version {row.inserted_at}, last changed at {row.changed_at}",
            "sources": ", ".join(f"episode {t}" for t in row.sources),
            "scenario": row.scenario,
        }
    )
    output.line("experience")
    output.block(row.experience, indent="  ")


@chime_command("history", short_help="Show what happened to one item, and why.")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] ID")
def history(invocation: Invocation, words: tuple[str, ...]) -> None:
    """Show an item's life: each insert, merge, credit, penalty and prune, with the episode and diagnosis behind it."""
    run, (memory,) = split_words(words, ("ID",))

    async def work() -> LifeLine:
        line = LifeLine(memory)  # type: ignore[arg-type]  # any text may be asked for; an unknown one is reported
        async with opened(invocation, run) as source:
            async for page in source.log.pages(START, HISTORY_KINDS):
                for recorded in page:
                    line.feed(recorded)
        return line

    line = run_async(work)
    if not line.moments:
        raise BadInput(f"no memory {memory!r} in this run; {near_memories(memory, sorted(line.known))}")
    output = invocation.output
    output.data(line.moments)
    output.table(
        [
            Column("version", "right"), Column("episode", "right"), Column("task"), Column("what"), Column("label"),
            Column("confidence", "right"), Column("feedback", "right"), Column("value", "right"), Column("n", "right"),
            Column("text", wide=True),
        ],
        [_moment(one) for one in line.moments],
    )  # fmt: skip


def _moment(one: Moment) -> list[object]:
    return [
        one.version,
        "-" if one.episode is None else one.episode,
        clipped(one.task, 32),
        one.what,
        one.label,
        "" if one.confidence_e4 is None else f"{one.confidence_e4 / 10_000:.2f}",
        "" if one.delta_e4 is None else f"{one.delta_e4 / 10_000:+.2f}",
        "" if one.value is None else f"{one.value:+.3f}",
        "" if one.n is None else one.n,
        clipped(" ".join(one.text.split()), _SHOWN),
    ]


@chime_command("diff", short_help="Show what changed between two versions.")
@click.argument("runs", nargs=-1, metavar="[RUN [RUN]]")
@click.option("--at", "ats", multiple=True, metavar="VERSION|PERCENT", help="Give it twice: from, to.")
def diff(invocation: Invocation, runs: tuple[str, ...], ats: tuple[str, ...]) -> None:
    """Show what was added, merged, revalued and pruned between two versions of a run, or between two runs.

    `chime memory diff RUN --at 50% --at 100%`; with one --at, from there to the newest; with two runs, the newest of
    each unless --at says otherwise.
    """
    if len(runs) > 2 or len(ats) > 2:
        raise BadInput("memory diff takes one or two runs and --at once or twice")
    if len(runs) < 2 and not ats:
        raise BadInput("memory diff needs two points: --at VERSION twice, or two runs")
    first, last = (runs[0] if runs else None), (runs[-1] if runs else None)
    # One --at says where to begin; of two runs, where to look at both.
    points: list[str | None] = [*ats, *([*ats, None, None] if len(runs) > 1 else [None, None])]

    async def work() -> tuple[_Point, _Point]:
        # Both are open at once, so that the home's server is started once.
        async with opened(invocation, first) as source, opened(invocation, last) as other:
            before = _Point(run=source.log.run, banks=await _banks(source, points[0]))
            return before, _Point(run=other.log.run, banks=await _banks(other, points[1]))

    before, after = run_async(work)
    _print_diff(invocation.output, before, after, difference(before.banks, after.banks))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """One side of a difference."""

    run: RunId
    banks: Banks

    def facts(self) -> dict[str, object]:
        banks = self.banks
        return {"run": self.run, "version": banks.version, "digest": banks.digest(), "items": len(banks)}

    def told(self) -> str:
        return f"{self.run} version {self.banks.version} ({len(self.banks)} items)"


def _print_diff(output: Output, before: _Point, after: _Point, changes: list[ItemChange]) -> None:
    counts = {kind: sum(kind in one.changes for one in changes) for kind in ("added", "text", "value", "gone")}
    output.data(
        {
            "before": before.facts(),
            "after": after.facts(),
            "counts": counts,
            "changes": changes,
        }
    )
    output.line(
        f"{before.told()} -> {after.told()}: "
        f"{counts['added']} added, {counts['text']} merged, {counts['value']} value moved, {counts['gone']} gone"
    )
    print_changes(output, changes)


@chime_command("export", short_help="Write the banks at a version to a file.")
@click.argument("run", required=False)
@_AT
@click.option("-o", "--output", "file", metavar="FILE", help="Write to FILE instead of stdout.")
def export(invocation: Invocation, run: str | None, at: str | None, file: str | None) -> None:
    """Write every live item with its vectors: one JSON object a line, first the origin, then items in id order.

    With --json and without -o they are one envelope. The items are those of a `seeded` event: whole, and under ids that
    name RUN as their origin.
    """

    async def work() -> tuple[Banks, str, RunStarted]:
        async with opened(invocation, run) as source:
            header = (await recorded_head(source.log)).started
            return await _banks(source, at), source.log.run, header

    banks, origin, header = run_async(work)
    head_line = {
        "chime_bank": 1,
        "run": origin,
        "version": banks.version,
        "digest": banks.digest(),
        "embedder": header.embedder,
        "items": len(banks),
    }
    items = seed_items(banks, run_id(origin))
    lines = [json_text(head_line), *map(json_text, items)]
    text = "".join(f"{line}\n" for line in lines)
    if file is None:
        if invocation.output.json:
            invocation.output.data({**head_line, "items": items})
        else:
            invocation.output.raw(text)
        return
    invocation.output.write_file(file, text)
    invocation.output.data({"file": file, "run": origin, "version": banks.version, "items": len(banks)})
    invocation.output.line(f"wrote {len(banks)} items of version {banks.version} to {file}")


@chime_command("fork", short_help="Start a new run from the banks at a version.")
@click.argument("run", required=False)
@_AT
@click.option("--run", "new", metavar="NEW", required=True, help="Id of the new run.")
@click.option("--frozen", is_flag=True, help="The new run reads this bank throughout and learns nothing.")
def fork(invocation: Invocation, run: str | None, at: str | None, new: str, frozen: bool) -> None:
    """Begin a run NEW over the same tasks and configuration as RUN whose version 0 is RUN's bank at a version.

    Nothing runs yet: `chime run resume NEW` does.
    """
    target = run_id(new)

    async def work() -> tuple[int, int, bool]:
        async with opened(invocation, run) as source:
            origin = await recorded_head(source.log)
            await assert_embedder_kept(invocation, source.log.run, origin.started)
            banks = await _banks(source, at)
            seed_bank = SeedBank(run=source.log.run, version=banks.version, digest=banks.digest())
            config = origin.started.config
            beginning = head(
                replace(config, frozen=True) if frozen else config,
                origin.tasks,
                origin.started.prompts,
                origin.started.embedder,
                seed_bank,
                seed_items(banks, source.log.run),
            )
            async with server(invocation, making=True) as there:
                await there.copy_blobs(source, target, origin.started.prompts.values())
                is_new = await begin(there.store.open(target), beginning)
            return banks.version, len(banks), is_new

    version, items, is_new = run_async(work)
    invocation.output.data({"run": target, "seed_version": version, "items": items, "new": is_new})
    word = "began" if is_new else "there is already"
    invocation.output.line(
        f"{word} run {target} from {items} items of version {version}; next: chime run resume {target}"
    )
