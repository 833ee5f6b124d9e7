"""Interleaved repeats: what is compared runs side by side in one process, so that a busy neighbour hits both."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured line; times in seconds for one operation, medians over the repeats."""

    what: str
    cpu_s: float
    wall_s: float
    #: (largest - smallest) / median of the CPU times
    spread: float
    #: what it is measured against, and the ratio of CPU times
    beside: str = ""
    ratio: float | None = None

    def line(self) -> str:
        """As printed."""
        beside = f"{self.beside} x{self.ratio:.2f}" if self.ratio is not None else self.beside
        return f"{self.what:<58} {_time(self.cpu_s):>12} {_time(self.wall_s):>12} {self.spread:>7.0%}  {beside}"

    def plain(self) -> dict[str, object]:
        """As written."""
        return asdict(self)


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Something to time: `run` does `operations` of it."""

    what: str
    run: Callable[[], object]
    operations: int = 1


def measured(subjects: Sequence[Subject], repeats: int = 7) -> list[Row]:
    """Each subject's row; the later ones are compared with the first."""
    cpu: list[list[float]] = [[] for _ in subjects]
    wall: list[list[float]] = [[] for _ in subjects]
    for _ in range(repeats):
        for at, subject in enumerate(subjects):
            start_cpu, start_wall = time.process_time(), time.perf_counter()
            subject.run()
            cpu[at].append((time.process_time() - start_cpu) / subject.operations)
            wall[at].append((time.perf_counter() - start_wall) / subject.operations)
    first = median(cpu[0])
    return [
        Row(
            what=subject.what,
            cpu_s=median(cpu[at]),
            wall_s=median(wall[at]),
            spread=(max(cpu[at]) - min(cpu[at])) / (median(cpu[at]) or 1.0),
            beside=subjects[0].what if at else "",
            ratio=median(cpu[at]) / first if at and first else None,
        )
        for at, subject in enumerate(subjects)
    ]
