"""Episodes in rows, and one of them stage by stage."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import Struct

from events.codec import decode
from events.ids import episode_of
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
    TasksListed,
)
from events.log import Recorded
from events.operations import Operation
from runtime.execution import CONTEXT_STOP


class EpisodeRow(Struct, kw_only=True):
    """One episode in a row."""

    episode: int
    task: str = ""
    #: the kind of its last event
    stage: str = ""
    success: bool | None = None
    #: False where the environment failed for good: then `success` is no word about the agent
    valid: bool | None = None
    reward: float | None = None
    #: a_t; "" before the diagnosis
    label: str = ""
    confidence_e4: int | None = None
    #: why there was no usable judgement, why it was abandoned, or `context`: it did not fit into the model's window
    problem: str | None = None
    steps: int | None = None
    errors: int | None = None
    stop: str = ""
    #: whether it was given up before it was scored
    abandoned: bool = False
    #: of its stages
    calls: int = 0
    #: chosen memories, both stages
    retrieved: int = 0
    misleading: int = 0
    #: what the fold did: `insert`, `merge`, `discard`, `prune`
    operations: list[str] = []
    started_at: str = ""
    last_at: str = ""


@dataclass(slots=True)
class EpisodeRows:
    """Feed it a log in position order."""

    rows: dict[int, EpisodeRow] = field(default_factory=dict)
    _tasks: list[str] = field(default_factory=list)

    def feed(self, recorded: Recorded) -> None:
        """One more event.

        Raises:
            UnreadableEvent: data that is none, or an unknown kind or schema.
        """
        t = episode_of(recorded.stream)
        if t is None:
            if recorded.kind in ("run_started", "tasks_listed", "folded"):
                self._see_run(decode(recorded))
            return
        row = self.rows.setdefault(t, EpisodeRow(episode=t, started_at=recorded.at))
        row.stage, row.last_at = recorded.kind, recorded.at
        if self._tasks:
            row.task = self._tasks[t % len(self._tasks)]
        _see(row, decode(recorded))

    def _see_run(self, event: AnyEvent) -> None:
        match event:
            case RunStarted() | TasksListed():
                self._tasks.extend(event.tasks)
            case Folded() if event.episode in self.rows:
                named = [operation_name(one) for one in event.operations]
                self.rows[event.episode].operations = [name for name in named if name not in ("value", "noop")]
            case _:
                pass

    def done(self) -> list[EpisodeRow]:
        """Every episode that has begun, in stream order."""
        return [self.rows[t] for t in sorted(self.rows)]


def operation_name(operation: Operation) -> str:
    """`insert`, `merge` and so on, as the format names it."""
    return str(operation.__struct_config__.tag)


def _see(row: EpisodeRow, event: AnyEvent) -> None:
    match event:
        case Retrieved():
            row.retrieved += sum(one.chosen for one in event.candidates)
        case Planned():
            row.calls += event.usage.calls
        case Executed():
            row.calls += event.usage.calls
            row.steps, row.errors, row.stop = event.steps, event.errors, event.stop
            if event.stop == CONTEXT_STOP:
                row.problem = event.stop
        case Scored():
            row.success, row.valid, row.reward = event.success, event.valid, event.reward
        case Diagnosed():
            row.calls += event.usage.calls
            row.label, row.confidence_e4 = event.label, event.confidence_e4
            row.problem = event.degraded or row.problem
            row.misleading = len(event.misleading)
        case Abandoned():
            row.abandoned, row.problem = True, f"abandoned in {event.stage}: {event.reason}"
        case _:
            pass


def episode_rows(events: Iterable[Recorded]) -> list[EpisodeRow]:
    """Every episode of a log. Raises: as `EpisodeRows.feed`."""
    rows = EpisodeRows()
    for recorded in events:
        rows.feed(recorded)
    return rows.done()
