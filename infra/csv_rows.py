"""A run as a table for notebooks: one row an episode, in episode order.

UTF-8 CSV with a header line and a line feed at the end of each line. An empty cell is what the log does not hold: the
episode has not come that far, was abandoned, or the endpoint did not count its tokens. `true` and `false` are booleans;
ids in one cell are separated by spaces. A text that a spreadsheet would take for a formula has an apostrophe before it.

| column | meaning |
|---|---|
| `run` | run id |
| `episode` | t, from 0 |
| `task_id`, `epoch` | task t mod the number of tasks; which pass over them, from 0 |
| `success`, `reward` | s_t and the evaluator's number in [0, 1] |
| `label`, `confidence` | a_t and gamma_t in [0, 1], of the gate |
| `degraded` | why there was no usable judgement; empty where there was one |
| `abandoned` | why the episode ended without a diagnosis |
| `stop`, `steps`, `errors` | why and when the execution ended, and how many of its steps failed |
| `planning_version`, `execution_version` | the bank version that each stage read |
| `planning_ids`, `execution_ids` | the memories that each stage was given, best first |
| `bank_planning`, `bank_execution` | items in each bank after this episode's fold |
| `planning_prompt_tokens`, `planning_completion_tokens`, `execution_...`, `gate_...` | tokens of each stage |
| `calls` | model calls of all stages |
| `first_at`, `last_at` | times of the episode's first and last event |
"""

import csv
import os
from pathlib import Path
from uuid import uuid4

import anyio.to_thread

from events.codec import decode
from events.errors import UnreadableEvent
from events.ids import STAGES, Position, RunId, Stage, episode_of
from events.kinds import (
    Abandoned,
    AnyEvent,
    Diagnosed,
    Executed,
    Folded,
    Planned,
    Retrieved,
    RunStarted,
    Scored,
    Seeded,
    TasksListed,
    Usage,
)
from events.log import Recorded
from events.operations import Inserted, Pruned
from infra.segments import sync_folder
from runtime.ports import EventLog

_TOKENS = [f"{stage}_{what}_tokens" for stage in (*STAGES, "gate") for what in ("prompt", "completion")]
COLUMNS = (
    "run", "episode", "task_id", "epoch", "success", "reward", "label", "confidence", "degraded", "abandoned", "stop",
    "steps", "errors", "planning_version", "execution_version", "planning_ids", "execution_ids", "bank_planning",
    "bank_execution", *_TOKENS, "calls", "first_at", "last_at",
)  # fmt: skip

#: what a spreadsheet takes for the beginning of a formula
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")

#: a cell before it is written; None = empty
_Cell = str | int | float | bool | None


async def export_csv(log: EventLog, path: Path) -> int:
    """Write the run's episodes as rows to `path`; how many. An existing file is replaced when the new one is complete.

    Raises:
        UnreadableEvent: an event that this code cannot read, or a log that does not begin with `run_started`.
        OSError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}")
    table = _Table(log.run)
    written = 0
    try:
        with unfinished.open("x", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            async for page in log.pages(Position(0)):
                rows = await anyio.to_thread.run_sync(table.rows, page)
                writer.writerows(rows)
                written += len(rows)
            rows = table.rest()
            writer.writerows(rows)
            written += len(rows)
            file.flush()
            await anyio.to_thread.run_sync(os.fsync, file.fileno())
        unfinished.replace(path)
        await anyio.to_thread.run_sync(sync_folder, path.parent)
    finally:
        unfinished.unlink(missing_ok=True)
    return written


class _Table:
    """Rows of episodes that are not folded yet; in memory no more than are in flight."""

    def __init__(self, run: RunId) -> None:
        self._run = run
        self._tasks: list[str] = []
        self._open: dict[int, dict[str, _Cell]] = {}
        self._sizes: dict[Stage, int] = dict.fromkeys(STAGES, 0)

    def rows(self, page: list[Recorded]) -> list[dict[str, _Cell]]:
        """The rows that `page` completes."""
        return [row for one in page if (row := self._after(one, decode(one))) is not None]

    def rest(self) -> list[dict[str, _Cell]]:
        """The rows of episodes that no fold has ended."""
        return [_written(self._open[t]) for t in sorted(self._open)]

    def _after(self, recorded: Recorded, event: AnyEvent) -> dict[str, _Cell] | None:
        match event:
            case RunStarted() | TasksListed():
                self._tasks += event.tasks
            case Seeded():
                for item in event.items:
                    self._sizes[item.bank] += 1
            case Folded():
                return self._folded(recorded, event)
            case _:
                if (t := episode_of(recorded.stream)) is not None:
                    _add(self._row(t, recorded), event)
        return None

    def _row(self, t: int, recorded: Recorded) -> dict[str, _Cell]:
        row = self._open.get(t)
        if row is None:
            if not self._tasks:
                raise UnreadableEvent(f"log of run {self._run}", "it does not begin with run_started")
            row = dict.fromkeys(COLUMNS)
            row |= {"run": self._run, "episode": t, "task_id": self._tasks[t % len(self._tasks)]}
            row |= {"epoch": t // len(self._tasks), "calls": 0, "first_at": recorded.at}
            self._open[t] = row
        row["last_at"] = recorded.at
        return row

    def _folded(self, recorded: Recorded, event: Folded) -> dict[str, _Cell]:
        for operation in event.operations:
            match operation:
                case Inserted():
                    self._sizes[operation.bank] += 1
                case Pruned():
                    self._sizes[operation.bank] -= 1
                case _:
                    pass
        row = self._open.pop(event.episode, None)
        if row is None:
            raise UnreadableEvent(recorded.id, f"it folds episode {event.episode}, which the log does not hold")
        return _written(row | {f"bank_{stage}": self._sizes[stage] for stage in STAGES})


def _add(row: dict[str, _Cell], event: AnyEvent) -> None:
    """What `event` says about its episode."""
    match event:
        case Retrieved():
            row[f"{event.stage}_version"] = event.bank_version
            row[f"{event.stage}_ids"] = " ".join(one.id for one in event.candidates if one.chosen)
        case Planned():
            _add_usage(row, "planning", event.usage)
        case Executed():
            row |= {"stop": event.stop, "steps": event.steps, "errors": event.errors}
            _add_usage(row, "execution", event.usage)
        case Scored():
            row |= {"success": event.success, "reward": event.reward}
        case Diagnosed():
            row |= {"label": event.label, "confidence": event.confidence_e4 / 10_000, "degraded": event.degraded}
            _add_usage(row, "gate", event.usage)
        case Abandoned():
            row["abandoned"] = event.reason
        case _:
            pass


def _add_usage(row: dict[str, _Cell], stage: str, usage: Usage) -> None:
    row[f"{stage}_prompt_tokens"], row[f"{stage}_completion_tokens"] = usage.prompt_tokens, usage.completion_tokens
    calls = row["calls"]
    row["calls"] = usage.calls + (calls if isinstance(calls, int) else 0)


def _written(row: dict[str, _Cell]) -> dict[str, _Cell]:
    return {name: _cell(cell) for name, cell in row.items()}


def _cell(cell: _Cell) -> _Cell:
    if isinstance(cell, bool):
        return str(cell).lower()
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
