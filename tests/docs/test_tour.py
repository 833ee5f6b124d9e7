"""The README's tour, run as a reader would: every command, in order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: a fence that the tour runs is marked by a comment above it
_BLOCK = re.compile(r"<!-- tour -->\n```sh\n(.*?)```", re.DOTALL)
#: output that the text shows, line by line as it comes
_SHOWN = re.compile(r"<!-- shown -->\n```text\n(.*?)```", re.DOTALL)


@pytest.mark.timeout(900)
def test_the_tour_runs(tmp_path: Path) -> None:
    """Each command of the tour succeeds, and shows what the text promises."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks, shown_lines = _BLOCK.findall(text), "".join(_SHOWN.findall(text)).splitlines()
    assert len(blocks) >= 5
    script = tmp_path / "tour.sh"
    # The commands end at the first that fails; a model that was left behind ends with them.
    script.write_text("set -euo pipefail\ntrap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n" + "\n".join(blocks))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CHIME_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        ["bash", str(script)], cwd=work, env=environment, capture_output=True, text=True, timeout=880, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    for shown in ("digest matches", "credit minus frozen", "off-policy", "verified", "accuracy", "half-way"):
        assert shown.lower() in done.stdout.lower(), shown
    printed = {line.rstrip() for line in done.stdout.splitlines()}
    assert [line for line in shown_lines if line not in printed] == []
    assert (work / "chime.toml").is_file()
    assert (work / "run.jsonl.zst").is_file()
