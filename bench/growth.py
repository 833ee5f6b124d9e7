"""Whether an episode costs the same late in a long run as early, and on a server with many runs as on one with few.

Runs that stand at episode 100 and at episode 10,000, and at episode 100 among a thousand runs, are played on by turns,
fifty episodes each. Each has a server and a process that coordinates and works.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack

from bench.measure import Row, Scale, Subject, ratio, rounds, timing
from bench.server import server

EARLY, LATE, RUNS = 100, 10_000, 1_000
PLAYED = 50
FLAT = 1.1


def rows(scale: Scale) -> Iterator[Row]:
    """Late beside early, many runs beside one."""
    early, late, runs = scale.of(EARLY, 20), scale.of(LATE, 100), scale.of(RUNS, 2)
    first = f"an episode at {early}"
    standing = {
        first: (early, 1),
        f"an episode at {late:,}": (late, 1),
        f"an episode at {early} among {runs:,} runs": (early, runs),
    }
    episodes = PLAYED if scale.share >= 1 else 10
    with ExitStack() as stack:
        subjects = [_subject(stack, what, *where, episodes) for what, where in standing.items()]
        # Ten per cent is less than a busy neighbour moves: more rounds than elsewhere.
        found = rounds(subjects, 2 * scale.repeats + 1)
    for what in list(standing)[1:]:
        figure = ratio(found[what], found[first])
        yield Row(
            group="growth", what=what, beside=first, ours=timing(found[what]), theirs=timing(found[first]),
            figure=figure, unit="x", goal=f"<= {FLAT:g} x", met=figure.median <= FLAT,
            remark="one process and the server",
        )  # fmt: skip


def _subject(stack: ExitStack, what: str, standing: int, runs: int, episodes: int) -> Subject:
    there = stack.enter_context(server())
    home = stack.enter_context(tempfile.TemporaryDirectory(prefix="cb"))
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.growing", there.url, home, str(standing), str(runs)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    stack.callback(process.wait)
    stack.callback(process.kill)

    def play() -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{episodes}\n")
        process.stdin.flush()
        if not process.stdout.readline():
            raise SystemExit(f"{what}: the process ended with {process.wait()}")

    return Subject(what=what, run=play, operations=episodes, pids=[process.pid, there.pid], own=False)
