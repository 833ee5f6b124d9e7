"""What a notebook gets of a log: one row an episode."""

import csv
import json
from pathlib import Path

import pytest
from disk_logs import GOLDEN, RUN, names_in, planned

from events.errors import UnreadableEvent
from events.ids import Version, episode_stream
from infra.clock import SystemClock
from infra.csv_rows import COLUMNS, export_csv
from infra.list_log import ListLog
from infra.segments import SegmentLog
from runtime.ports import Origin


async def test_rows_say_what_happened(tmp_path: Path) -> None:
    """One row an episode, in order; what did not happen is empty; sizes are those after the fold."""
    path = next(one for one in GOLDEN if one.stem == "abandoned")
    assert await export_csv(SegmentLog(path), tmp_path / "rows.csv") == 7
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [row["episode"] for row in rows] == [str(t) for t in range(7)]
    whole, early, middle, late, unread, _, last = rows
    assert whole == {
        "run": "golden-abandoned", "episode": "0", "task_id": "toy-0", "epoch": "0", "success": "true", "reward": "1.0",
        "label": "both", "confidence": "1.0", "degraded": "", "abandoned": "", "stop": "done", "steps": "3",
        "errors": "0", "planning_version": "0", "execution_version": "0", "planning_ids": "", "execution_ids": "",
        "bank_planning": "1", "bank_execution": "1", "planning_prompt_tokens": "10", "planning_completion_tokens": "5",
        "execution_prompt_tokens": "10", "execution_completion_tokens": "5", "gate_prompt_tokens": "10",
        "gate_completion_tokens": "5", "calls": "3", "first_at": "2026-01-01T00:00:01.000000Z",
        "last_at": "2026-01-01T00:00:06.000000Z",
    }  # fmt: skip
    assert [row["abandoned"] for row in (early, middle, late)] == ["worker lost"] * 3
    assert (early["execution_version"], early["success"], early["label"], early["calls"]) == ("", "", "", "0")
    assert (middle["planning_prompt_tokens"], middle["execution_prompt_tokens"], middle["epoch"]) == ("10", "", "1")
    assert (late["stop"], late["success"]) == ("done", "")
    assert (unread["degraded"], unread["label"]) == ("unreadable", "none")
    assert (last["planning_ids"], last["execution_ids"], last["label"]) == ("planning-0", "execution-0", "execution")


async def test_rows_of_a_run_under_way(tmp_path: Path) -> None:
    """Episodes that are not folded yet come last, in order, without sizes; seeds count from the beginning."""
    lines = next(one for one in GOLDEN if one.stem == "seeded").read_bytes().splitlines(keepends=True)
    whole = [json.loads(line) for line in lines]
    folds = [one["position"] for one in whole if one["kind"] == "folded"]
    (tmp_path / "part.jsonl").write_bytes(b"".join(lines[: folds[1] - 1]))
    assert await export_csv(SegmentLog(tmp_path / "part.jsonl"), tmp_path / "rows.csv") == 2
    with (tmp_path / "rows.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["episode"], first["bank_planning"], first["bank_execution"]) == ("0", "3", "2")
    assert (second["episode"], second["bank_planning"], second["label"]) == ("1", "", "planning")


async def test_rows_of_no_run(tmp_path: Path) -> None:
    """A log without a header is told, and no file appears."""
    log = ListLog(RUN, SystemClock())
    await log.append(episode_stream(0), Version(1), [planned("p")], Origin(cause=None))
    with pytest.raises(UnreadableEvent, match="run_started"):
        await export_csv(log, tmp_path / "rows.csv")
    assert names_in(tmp_path) == []


async def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    """What a task or an endpoint wrote is text for a spreadsheet too."""
    lines = next(one for one in GOLDEN if one.stem == "abandoned").read_text(encoding="utf-8")
    (tmp_path / "log.jsonl").write_text(lines.replace('"worker lost"', "\"=cmd|' /C calc'!A0\""), encoding="utf-8")
    await export_csv(SegmentLog(tmp_path / "log.jsonl"), tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        reasons = {row["abandoned"] for row in csv.DictReader(file)}
    assert reasons == {"", "'=cmd|' /C calc'!A0"}
