"""What a command costs a person who waits for it, beside a bare interpreter: CPU time of a whole process."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio
from msgspec.structs import replace

from bench.made import REAL, RUN, restored
from bench.measure import Row, Sample, Scale, limited
from bench.server import server

EPISODES = 2_000
BARE = "bare interpreter"
#: arguments of chime, and the seconds it may take
COMMANDS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("--help",), 0.15),
    (("run", "list"), 0.4),
    (("memory", "list", RUN, "--at", "50%"), 1.5),
)


def rows(scale: Scale) -> Iterator[Row]:
    """One for each command."""
    episodes = scale.of(EPISODES, 10)
    with tempfile.TemporaryDirectory(prefix="cb") as home, server() as there:
        anyio.run(restored, there.url, REAL, episodes)
        environment = {**os.environ, "CHIME_HOME": home, "CHIME_REDIS_URL": there.url}
        # As installed: modules are compiled once, not in every process.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        found: dict[str, list[Sample]] = {}
        for at in range(scale.repeats + 1):
            _round(found if at else {}, environment, Path(home))
    for arguments, at_most in COMMANDS:
        name = _name(arguments)
        row = limited("startup", found, name, unit="s", at_most=at_most, theirs=BARE)
        yield replace(row, remark=f"one run of {episodes:,} episodes of 46 KB" if arguments[0] != "--help" else "")


def _round(found: dict[str, list[Sample]], environment: dict[str, str], folder: Path) -> None:
    _run(found, BARE, [sys.executable, "-c", "pass"], environment, folder)
    chime = str(Path(sys.executable).with_name("chime"))
    for arguments, _ in COMMANDS:
        _run(found, _name(arguments), [chime, *arguments], environment, folder)


def _name(arguments: Sequence[str]) -> str:
    return " ".join(["chime", *arguments])


def _run(found: dict[str, list[Sample]], what: str, command: list[str], environment: dict[str, str], at: Path) -> None:
    before, start = _children(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, cwd=at)
    found.setdefault(what, []).append(Sample(cpu_s=_children() - before, wall_s=time.perf_counter() - start))


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
