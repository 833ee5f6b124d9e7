"""`make bench`: every row of the table, measured in one run; CPU time first, wall time beside it.

    python -m bench [--quick] [ROW ...]        measure, print, write bench/results/<time>.json
    python -m bench table [--brief] [FILE]     the table of a results file in Markdown (default: the reference)
    python -m bench merge FILE ...             make these the reference; of a row that several hold, the last one's

One file for each row, with `rows(scale)`; each is measured in a process of its own. `--quick`, or CHIME_BENCH_SCALE
(1 = everything), makes it small: then the figures say only that the rows work.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bench.machine import Machine, machine
from bench.measure import Row, Scale, share_asked
from bench.table import HEADING, about, line, markdown, worst

RESULTS = Path(__file__).parent / "results"
#: the files of the table, in its order
ROWS = (
    "append", "replay", "small_replay", "million", "decide", "recall", "orchestration", "makespan", "memory", "growth",
    "startup", "bank", "embedding", "model",
)  # fmt: skip
QUICK = 0.02
#: two BLAS threads spin against each other on a shared machine
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Results(Struct, frozen=True, kw_only=True):
    """One run of the table, as written."""

    scale: float
    machine: Machine
    rows: list[Row]


def main(arguments: Sequence[str]) -> int:
    """Print the table as it is measured, and write it down; 1 where a row could not be measured."""
    if arguments[:1] == ["table"]:
        brief, files = "--brief" in arguments, [one for one in arguments[1:] if one != "--brief"]
        path = Path(files[0]) if files else RESULTS / "reference.json"
        results = msgspec.json.decode(path.read_bytes(), type=Results)
        print(markdown(results.machine, worst(results.rows) if brief else results.rows))
        return 0
    if arguments[:1] == ["merge"]:
        found = [msgspec.json.decode(Path(one).read_bytes(), type=Results) for one in arguments[1:]]
        _write(RESULTS / "reference.json", merged(found))
        return 0
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--quick", action="store_true", help="small: whether the rows work")
    parser.add_argument("--only", metavar="ROW", help=argparse.SUPPRESS)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    share = QUICK if asked.quick else share_asked()
    if asked.only:
        _one(asked.only, share)
        return 0
    return _table(asked.rows or ROWS, share)


def _table(names: Sequence[str], share: float) -> int:
    here = machine()
    print(f"{about(here)}\n\n{HEADING}", flush=True)
    rows: list[Row] = []
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}.json"
    for name in names:
        for row in measured(name, share):
            load = round(os.getloadavg()[0], 1)
            rows.append(replace(row, commit=here.commit, load=load))
            print(line(row), flush=True)
        # After each file: whoever stops half way keeps what was measured.
        now = replace(here, load_after=round(os.getloadavg()[0], 1))
        _write(path, Results(scale=share, machine=now, rows=rows))
    missed = sum(row.met is False for row in rows)
    print(f"\n{sum(row.met is True for row in rows)} goals met, {missed} missed; written: {path}")
    return int(any(row.not_run for row in rows))


def merged(several: Sequence[Results]) -> Results:
    """The rows of each file from the last results that hold it, in the table's order; machine and scale of the last."""
    groups: dict[str, list[Row]] = {}
    for results in several:
        machine_ = results.machine
        for name in dict.fromkeys(row.group for row in results.rows):
            groups[name] = [
                row if row.commit else replace(row, commit=machine_.commit, load=machine_.load_after)
                for row in results.rows
                if row.group == name
            ]
    last = several[-1]
    return replace(last, rows=[row for name in ROWS for row in groups.get(name, [])])


def _write(path: Path, results: Results) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def _one(name: str, share: float) -> None:
    """The rows of one file, as lines on stdout; what is printed meanwhile goes to stderr."""
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
        os.dup2(2, 1)
        for row in import_module(f"bench.{name}").rows(Scale(share=share)):
            out.write(msgspec.json.encode(row) + b"\n")


def measured(name: str, share: float) -> Iterator[Row]:
    """The rows of one file, from a process of its own; one that says why where it ends early."""
    command = [sys.executable, "-m", "bench", "--only", name]
    environment = {**os.environ, **ONE_THREAD, "CHIME_BENCH_SCALE": str(share)}
    with (
        tempfile.TemporaryFile("w+", errors="replace") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=environment) as process,
    ):
        assert process.stdout is not None
        for written in process.stdout:
            yield msgspec.json.decode(written, type=Row)
        if process.wait():
            said.seek(0)
            lines = said.read().strip().splitlines()
            print("\n".join(lines[-40:]), file=sys.stderr)
            yield Row(group=name, what="", not_run=lines[-1] if lines else f"exit code {process.returncode}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
