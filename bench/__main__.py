"""`make bench`: every row of the table, measured in one run; CPU time first, wall time beside it.

One file per row group, each with `rows()`. The machine's load is printed, because it decides how far to trust a wall
time. Results go to bench/results/.
"""

import json
import os
import platform
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from bench import fold, log, startup
from bench.measure import Row

RESULTS = Path(__file__).parent / "results"


def _rows() -> Iterator[Row]:
    for module in (fold, log, startup):
        yield from module.rows()


def main() -> int:
    """Print the table as it is measured, and write it down."""
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    print(f"{'what':<58} {'CPU':>12} {'wall':>12} {'spread':>8}  beside")
    rows = []
    for row in _rows():
        rows.append(row)
        print(row.line(), flush=True)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}.json"
    head = {"python": platform.python_version(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    path.write_text(json.dumps({**head, "rows": [row.plain() for row in rows]}, indent=1) + "\n")
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
