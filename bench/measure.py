"""Interleaved repeats: what is compared runs side by side in every round, so that a busy neighbour hits both.

CPU time counts before wall time: on a shared machine it is what a change of ours moves. A figure is computed in each
round from that round's samples; the row shows the median of the rounds and the lowest and highest beside it.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from msgspec import Struct

_TICKS_S = 1 / os.sysconf("SC_CLK_TCK")


#: below this share a measurement only shows that it works
TINY = 0.01


def share_asked() -> float:
    """How much of everything the environment asks for: 1 = all."""
    return float(os.environ.get("CHIME_BENCH_SCALE", "1"))


class Spread(Struct, frozen=True):
    """Something over the rounds."""

    median: float
    low: float
    high: float


class Timing(Struct, frozen=True, kw_only=True):
    """One operation of one subject over the rounds, seconds."""

    cpu_s: Spread
    wall_s: Spread


class Row(Struct, frozen=True, kw_only=True):
    """One line of the table."""

    #: the row it belongs to: the name of its file
    group: str
    what: str
    #: what it is measured against
    beside: str = ""
    ours: Timing | None = None
    theirs: Timing | None = None
    #: what the goal is about
    figure: Spread | None = None
    unit: str = ""
    #: as people read it: `<= 1.3 x`
    goal: str = ""
    #: None = no goal, or not measured
    met: bool | None = None
    #: why it could not be measured
    not_run: str = ""
    remark: str = ""
    #: of the code that was measured
    commit: str = ""
    #: of the machine when it was
    load: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One round of one subject, for one operation."""

    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Something to time: `run` does `operations` of it; `pids` are the processes whose CPU time it costs."""

    what: str
    run: Callable[[], object]
    operations: int = 1
    #: beside this process
    pids: Sequence[int] = ()
    #: whether this process's own CPU time counts
    own: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large a measurement is: 1 = as the table names it. Development and tests use little of it."""

    share: float = 1.0

    def of(self, full: int, least: int = 1) -> int:
        """That many of `full`."""
        return max(least, round(full * self.share))

    @property
    def repeats(self) -> int:
        """Rounds of one measurement."""
        return 7 if self.share >= 1 else 3 if self.share >= TINY else 1


Rounds = Mapping[str, Sequence[Sample]]


def rounds(subjects: Sequence[Subject], repeats: int) -> Rounds:
    """Every subject once in each round, after one round that does not count."""
    found: dict[str, list[Sample]] = {subject.what: [] for subject in subjects}
    for at in range(repeats + 1):
        for subject in subjects:
            sample = sampled(subject)
            if at:
                found[subject.what].append(sample)
    return found


def sampled(subject: Subject) -> Sample:
    """One run of it."""
    pids = [*subject.pids, *([os.getpid()] if subject.own else ())]
    before, start = sum(map(cpu_of, pids)), time.perf_counter()
    subject.run()
    wall = time.perf_counter() - start
    return Sample(cpu_s=(sum(map(cpu_of, pids)) - before) / subject.operations, wall_s=wall / subject.operations)


def cpu_of(pid: int) -> float:
    """User and system time of a process and its ended children, seconds; 0 for one that is gone."""
    try:
        # The kernel's clock of a process, in nanoseconds; /proc counts in ticks of 10 ms.
        own = time.clock_gettime((~pid << 3) | 2)
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return own + (int(fields[13]) + int(fields[14])) * _TICKS_S


def spread(values: Sequence[float]) -> Spread:
    """Median, lowest, highest."""
    return Spread(median(values), min(values), max(values))


def timing(samples: Sequence[Sample]) -> Timing:
    """Of one subject."""
    return Timing(cpu_s=spread([one.cpu_s for one in samples]), wall_s=spread([one.wall_s for one in samples]))


def ratio(ours: Sequence[Sample], theirs: Sequence[Sample]) -> Spread:
    """Our CPU time over theirs, round by round."""
    return spread([one.cpu_s / other.cpu_s for one, other in zip(ours, theirs, strict=True)])


def compared(
    group: str, found: Rounds, ours: str, theirs: str, *, at_most: float | None = None, remark: str = ""
) -> Row:
    """`ours` beside `theirs` by CPU time; the goal is a ratio."""
    figure = ratio(found[ours], found[theirs])
    return Row(
        group=group, what=ours, beside=theirs, ours=timing(found[ours]), theirs=timing(found[theirs]),
        figure=figure, unit="x", goal=f"<= {at_most:g} x" if at_most is not None else "",
        met=None if at_most is None else figure.median <= at_most, remark=remark,
    )  # fmt: skip


def within(group: str, found: Rounds, ours: str, theirs: str, *, times: float, plus_s: float) -> Row:
    """`ours` beside `theirs` by CPU time; the goal is a ratio and a fixed allowance: ours <= times x theirs + plus."""
    over = [one.cpu_s - times * other.cpu_s for one, other in zip(found[ours], found[theirs], strict=True)]
    return Row(
        group=group, what=ours, beside=theirs, ours=timing(found[ours]), theirs=timing(found[theirs]),
        figure=ratio(found[ours], found[theirs]), unit="x", goal=f"<= {times:g} x + {plus_s * 1e3:g} ms",
        met=median(over) <= plus_s,
        remark=f"{median(over) * 1e3:+.2f} ms over {times:g} x",
    )  # fmt: skip


def limited(group: str, found: Rounds, ours: str, *, unit: str, at_most: float, theirs: str = "") -> Row:
    """CPU time of one operation of `ours` in `unit` (s or ms), which is to stay below `at_most`."""
    scale = {"s": 1.0, "ms": 1e3}[unit]
    figure = spread([one.cpu_s * scale for one in found[ours]])
    return Row(
        group=group, what=ours, beside=theirs, ours=timing(found[ours]),
        theirs=timing(found[theirs]) if theirs else None, figure=figure, unit=unit, goal=f"<= {at_most:g} {unit}",
        met=figure.median <= at_most,
    )  # fmt: skip


def rated(group: str, found: Rounds, ours: str, *, unit: str, at_least: float, remark: str = "") -> Row:
    """Operations of `ours` in a second of CPU time, which are to be `at_least` so many."""
    figure = spread([1 / one.cpu_s for one in found[ours]])
    return Row(
        group=group, what=ours, ours=timing(found[ours]), figure=figure, unit=unit, goal=f">= {at_least:,.0f} {unit}",
        met=figure.median >= at_least, remark=remark,
    )  # fmt: skip
