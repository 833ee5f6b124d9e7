"""What sharing batches between callers costs and gains, beside the library's own batches: real MiniLM, one thread."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.measure import Row, Sample, Scale, spread, timing

_GROUP = "embedding"
SHARED = "16 callers, shared batches"
SINGLE = "16 callers, text by text"
LIBRARY = "SentenceTransformer.encode, batch 16"
AT_LEAST = 0.9
#: the environment that has torch
PYTHON = Path(os.environ.get("CHIME_BENCH_ST", Path(__file__).parent.parent / ".st-venv")) / "bin" / "python"
_CHILD = ["-m", "bench.embedding_worker"]
#: torch alone takes a good part of it on a busy machine
_LIMIT_S = 1800.0


def rows(scale: Scale) -> Iterator[Row]:
    """Texts in a second of CPU time, over the library's; and what sharing gains."""
    goal = f">= {AT_LEAST:g} x"
    if not PYTHON.exists():
        reason = "no .st-venv: `make test-st` makes it (torch, 6 GB)"
        yield Row(group=_GROUP, what=SHARED, beside=LIBRARY, goal=goal, not_run=reason)
        return
    done = subprocess.run(
        [PYTHON, *_CHILD, str(scale.share)], check=True, stdout=subprocess.PIPE, timeout=_LIMIT_S,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    plain = msgspec.json.decode(done.stdout, type=dict[str, list[tuple[float, float]]])
    found = {name: [Sample(cpu_s=cpu_s, wall_s=wall_s) for cpu_s, wall_s in some] for name, some in plain.items()}
    for ours, theirs, least in ((SHARED, LIBRARY, AT_LEAST), (SINGLE, LIBRARY, None), (SHARED, SINGLE, None)):
        pairs = zip(found[ours], found[theirs], strict=True)
        figure = spread([other.cpu_s / one.cpu_s for one, other in pairs])
        rate = 1 / timing(found[ours]).cpu_s.median
        yield Row(
            group=_GROUP, what=ours, beside=theirs, ours=timing(found[ours]), theirs=timing(found[theirs]),
            figure=figure, unit="x its rate", goal=goal if least is not None else "",
            met=None if least is None else figure.median >= least,
            remark=f"{rate:,.0f} texts of 20 to 240 words in a second of CPU time",
        )  # fmt: skip
