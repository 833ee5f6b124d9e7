"""A log folded into banks: replay as recorded, or decide again.

`replay` only evolves from `folded` and costs no search; `Refold` decides again, under the recorded policy or another.
Neither calls a model. `events.verify` compares both with what the log says.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from events.bank import Banks, evolve, seed
from events.codec import decode, decode_as
from events.errors import FoldMismatch, UnreadableEvent
from events.ids import Position, RunId, episode_of
from events.kinds import Abandoned, Diagnosed, Folded, RunStarted, Seeded, TasksListed
from events.log import Recorded
from events.operations import Operation
from events.policies import Policy

#: the kinds that a replay reads; a reader may skip the others undecoded
REPLAY_KINDS = frozenset({"run_started", "tasks_listed", "seeded", "diagnosed", "abandoned", "folded"})

_START = Position(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a log says so far. A value: `step` returns another."""

    run: RunId | None = None
    header: RunStarted | None = None
    #: every task id of one epoch, in order
    tasks: tuple[str, ...] = ()
    banks: Banks = field(default_factory=Banks)
    #: t -> what ended episode t and is not folded yet; None = abandoned
    waiting: Mapping[int, Diagnosed | None] = field(default_factory=dict)
    #: the last event seen
    position: Position = _START

    def at_least(self, position: Position) -> "State":
        """This state, having seen everything up to `position`: for readers that skip kinds."""
        return self if position <= self.position else replace(self, position=position)

    def after_fold(self, recorded: Recorded, banks: Banks) -> "State":
        """This state with the next episode folded into `banks`, as `recorded` says."""
        waiting = {t: ended for t, ended in self.waiting.items() if t != self.banks.version}
        return replace(self, position=recorded.position, banks=banks, waiting=waiting)

    def begun(self) -> RunStarted:
        """The run header.

        Raises:
            UnreadableEvent: the log does not begin with one.
        """
        if self.header is None:
            raise UnreadableEvent(f"log of run {self.run}", "it does not begin with run_started")
        return self.header


def step(state: State, recorded: Recorded) -> State:
    """`state` after one more event; evolves where it is a `folded`.

    Raises:
        FoldMismatch: a `folded` that is out of order or does not fit the banks.
        UnreadableEvent: data that is none, or an unknown kind or schema.
    """
    if recorded.kind not in REPLAY_KINDS:
        return replace(state, run=recorded.run, position=recorded.position)
    event = decode(recorded)
    changes: dict[str, object] = {}
    match event:
        case RunStarted():
            if state.header is not None:
                raise UnreadableEvent(recorded.id, "the log has begun already")
            changes = {"header": event, "tasks": tuple(event.tasks)}
        case TasksListed():
            changes = {"tasks": (*state.tasks, *event.tasks)}
        case Seeded():
            if state.banks.version or state.waiting:
                raise UnreadableEvent(recorded.id, "a seed bank comes before any episode")
            changes = {"banks": seed(state.banks, event.items)}
        case Diagnosed() | Abandoned():
            t = episode_of(recorded.stream)
            if t is None:
                raise UnreadableEvent(recorded.id, f"{recorded.kind} belongs to an episode")
            changes = {"waiting": {**state.waiting, t: event if isinstance(event, Diagnosed) else None}}
        case Folded():
            _, diagnosed = next_fold(state, recorded, event)
            return state.after_fold(recorded, evolve(state.banks, diagnosed, event.operations))
        case _:
            pass
    return replace(state, run=recorded.run, position=recorded.position, **changes)  # type: ignore[arg-type]  # fields above


def next_fold(state: State, recorded: Recorded, event: Folded | None = None) -> tuple[Folded, Diagnosed | None]:
    """The `folded` that `recorded` holds, and what ended the episode that it folds (None = abandoned).

    Raises:
        FoldMismatch: it is not the next version, or its episode has not ended.
        UnreadableEvent: data that is none.
    """
    event = event or decode_as(recorded, Folded)
    newest = state.banks.version
    if event.episode != newest or event.bank_version != newest + 1:
        raise FoldMismatch(
            recorded.id, "episode and version", (event.episode, event.bank_version), (newest, newest + 1)
        )
    if event.episode not in state.waiting:
        raise FoldMismatch(recorded.id, "episode", event.episode, "no diagnosed or abandoned before it")
    return event, state.waiting[event.episode]


def replay(events: Iterable[Recorded], state: State | None = None) -> State:
    """What `events` make of `state`, as recorded: folding a, then b from there, is folding a + b.

    Raises:
        As `step`.
    """
    state = state or State()
    for recorded in events:
        state = step(state, recorded)
    return state


def decide(policy: Policy, header: RunStarted, banks: Banks, t: int, diagnosed: Diagnosed | None) -> list[Operation]:
    """What episode `t` does to M_t; nothing in a frozen run."""
    return [] if header.config.frozen else policy.decide(banks, t, diagnosed)


class Refold:
    """The same diagnoses decided again under `policy`, in stream order: other banks, no model call."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._state = State()

    @property
    def banks(self) -> Banks:
        return self._state.banks

    @property
    def state(self) -> State:
        return self._state

    def feed(self, recorded: Recorded) -> list[tuple[int, list[Operation]]]:
        """One more event; the episodes that could be folded now, with what was decided.

        Raises:
            As `step`.
        """
        if recorded.kind == "folded":
            return []
        self._state = step(self._state, recorded)
        if recorded.kind not in ("diagnosed", "abandoned"):
            return []
        return list(self._due())

    def _due(self) -> Iterable[tuple[int, list[Operation]]]:
        header, waiting, banks = self._state.begun(), dict(self._state.waiting), self._state.banks
        while banks.version in waiting:
            t = int(banks.version)
            diagnosed = waiting.pop(t)
            operations = decide(self._policy, header, banks, t, diagnosed)
            banks = evolve(banks, diagnosed, operations)
            yield t, operations
        self._state = replace(self._state, banks=banks, waiting=waiting)
