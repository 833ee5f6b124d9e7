"""Rows as people read them: lines on a terminal, a table in Markdown."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from bench.machine import Machine
from bench.measure import Row, Spread, Timing

#: the end of a name that stands beside ours where the figure is its cost over ours
OVER_OURS = ": its cost over ours"
#: the heading of the printed table
HEADING = f"{'what':<66} {'ours, CPU':>10} {'beside':>10} {'figure (low .. high)':>32}  goal"


def line(row: Row) -> str:
    """One printed line; a second one for what it stands beside and for remarks."""
    name = f"{row.group}: {row.what}"
    if row.not_run:
        return f"{name:<66} not run: {row.not_run}"
    verdict = "" if row.met is None else "met" if row.met else "missed"
    first = f"{name:<66} {_cpu(row.ours):>10} {_cpu(row.theirs):>10} {_figure(row):>32}  {row.goal} {verdict}"
    about = "; ".join(part for part in (row.beside and f"beside {row.beside}", _wall(row), row.remark) if part)
    return f"{first.rstrip()}\n    {about}" if about else first.rstrip()


def markdown(machine: Machine, rows: Iterable[Row]) -> str:
    """The table for a page, with the machine below it."""
    lines = ["| what | beside | ours | theirs | result (lowest to highest) | goal |", "|---|---|---|---|---|---|"]
    for row in (shown := list(rows)):
        if row.not_run:
            lines.append(f"| {row.group}: {row.what} | {row.beside} | | | not run: {row.not_run} | {row.goal} |")
            continue
        goal = row.goal if row.met is None else f"{row.goal}: {'met' if row.met else '**missed**'}"
        cells = [f"{row.group}: {row.what}", row.beside, _cpu(row.ours), _cpu(row.theirs), _figure(row), goal]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", about(machine), *_commits(shown)])


def _commits(rows: Sequence[Row]) -> list[str]:
    """Where the rows are of several commits: which ones of which, and how busy the machine was."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        found.setdefault(row.commit, {}).setdefault(row.group, []).append(row.load)
    if len(found) < 2:
        return []
    told = [
        f"{', '.join(groups)} at {commit} (load {min(loads):g} to {max(loads):g})"
        for commit, groups in found.items()
        if (loads := [load for some in groups.values() for load in some])
    ]
    return ["", f"Measured in several runs: {'; '.join(told)}."]


def worst(rows: Sequence[Row]) -> list[Row]:
    """One row for each goal and library: the one that stands worst, its name saying of how many."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.group, row.goal, row.beside), []).append(row)
    found = []
    for alike in groups.values():
        row = max(alike, key=_badness)
        found.append(row if len(alike) == 1 else replace(row, what=f"{row.what} (worst of {len(alike)})"))
    return found


def _badness(row: Row) -> tuple[bool, bool, float]:
    figure = row.figure.median if row.figure is not None else 0.0
    # More is better of a rate, and of how many times as much another one costs.
    more_is_better = row.goal.startswith(">=") or row.beside.endswith(OVER_OURS)
    return bool(row.not_run), row.met is False, -figure if more_is_better else figure


def about(machine: Machine) -> str:
    """One sentence about the machine and the versions."""
    packages = ", ".join(f"{name} {one}" for name, one in machine.packages.items())
    peers = ", ".join(f"{name} {one}" for name, one in machine.peers.items())
    return (
        f"CPU time for one operation, medians of interleaved rounds. {machine.at}, commit {machine.commit}, "
        f"{machine.cpus} x {machine.processor}, {machine.memory_gib:.0f} GiB, Python {machine.python}, "
        f"{machine.server}, load {machine.load_before} before and {machine.load_after} after; {packages}; "
        f"beside: {peers}."
    )


def _figure(row: Row) -> str:
    if row.figure is None:
        return ""
    return f"{_number(row.figure.median)} {row.unit} ({_range(row.figure)})"


def _range(figure: Spread) -> str:
    return f"{_number(figure.low)} .. {_number(figure.high)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _cpu(one: Timing | None) -> str:
    return duration(one.cpu_s.median) if one is not None else ""


def _wall(row: Row) -> str:
    if row.ours is None:
        return ""
    theirs = f" and {duration(row.theirs.wall_s.median)}" if row.theirs is not None else ""
    return f"wall {duration(row.ours.wall_s.median)}{theirs}"


def duration(seconds: float) -> str:
    """In the unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds * 1e9:.0f} ns"
