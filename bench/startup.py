"""What a command costs before it does anything, beside a bare interpreter: CPU of a whole process."""

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

from bench.measure import Row


def rows() -> Iterator[Row]:
    """Help pages and the version."""
    commands = {
        "bare interpreter": [sys.executable, "-c", "pass"],
        "chime --help": [sys.executable, "-m", "workers", "--help"],
        "chime run --help": [sys.executable, "-m", "workers", "run", "--help"],
    }
    cpu: dict[str, list[float]] = {what: [] for what in commands}
    wall: dict[str, list[float]] = {what: [] for what in commands}
    for _ in range(9):
        for what, command in commands.items():
            before, start = _children(), time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            cpu[what].append(_children() - before)
            wall[what].append(time.perf_counter() - start)
    bare = median(cpu["bare interpreter"])
    for what in commands:
        spread = (max(cpu[what]) - min(cpu[what])) / median(cpu[what])
        beside = "" if what == "bare interpreter" else f"+{median(cpu[what]) - bare:.3f} s over bare, goal 0.15"
        yield Row(what=what, cpu_s=median(cpu[what]), wall_s=median(wall[what]), spread=spread, beside=beside)


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
