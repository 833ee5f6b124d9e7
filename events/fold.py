"""A log folded into banks: replay as recorded, or decide again.

`Replay` only evolves from `folded` and costs no search; `Refold` decides again, under the recorded policy or another.
Neither calls a model. `events.verify` compares both with what the log says.
"""

from collections.abc import Container, Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from events.bank import Banks, evolve, looks_into_diagnosis, seed
from events.codec import decode, typed
from events.errors import FoldMismatch, UnreadableEvent
from events.ids import BankVersion, Position, RunId, episode_of
from events.kinds import Abandoned, AnyEvent, Diagnosed, Folded, RunStarted, Seeded, TasksListed
from events.log import Recorded
from events.newest import Newest
from events.operations import Operation
from events.policies import Policy

#: the kinds that a replay reads; a reader may skip the others undecoded
REPLAY_KINDS = frozenset({"run_started", "tasks_listed", "seeded", "diagnosed", "abandoned", "folded"})

#: of these, what a replay uses is held against the banks anyway
_FITTED = frozenset({"diagnosed", "abandoned", "folded"})

_START = Position(0)


class State(Struct, frozen=True, kw_only=True, eq=False):
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
        waiting = dict(self.waiting)
        del waiting[self.banks.version]
        return State(
            run=self.run,
            header=self.header,
            tasks=self.tasks,
            banks=banks,
            waiting=waiting,
            position=recorded.position,
        )

    def begun(self) -> RunStarted:
        """The run header.

        Raises:
            UnreadableEvent: the log does not begin with one.
        """
        if self.header is None:
            raise UnreadableEvent(f"log of run {self.run}", "it does not begin with run_started")
        return self.header


def step(state: State, recorded: Recorded, event: AnyEvent | None = None) -> State:
    """`state` after one more event; evolves where it is a `folded`.

    Args:
        state: what the log said before.
        recorded: the next event, perhaps after some of kinds that no replay reads.
        event: what `recorded` holds, where the caller has decoded it.

    The fields of a `diagnosed` or `folded` are not held against each other: its writer did that, an import did, and
    `events.verify` does.

    Raises:
        FoldMismatch: a `folded` that is out of order or does not fit the banks.
        UnreadableEvent: data that is none, or an unknown kind or schema.
    """
    if recorded.kind not in REPLAY_KINDS:
        return replace(state, run=recorded.run, position=recorded.position)
    event = event or _read(recorded)
    run, header, tasks, banks, waiting = recorded.run, state.header, state.tasks, state.banks, state.waiting
    match event:
        case Folded():
            diagnosed = next_fold(state, recorded, event)
            return state.after_fold(recorded, evolve(banks, diagnosed, event.operations))
        case Diagnosed() | Abandoned():
            waiting = {**waiting, _ended_episode(recorded): event if isinstance(event, Diagnosed) else None}
        case RunStarted():
            if header is not None:
                raise UnreadableEvent(recorded.id, "the log has begun already")
            header, tasks = event, tuple(event.tasks)
        case TasksListed():
            tasks = (*tasks, *event.tasks)
        case Seeded():
            if banks.version or waiting:
                raise UnreadableEvent(recorded.id, "a seed bank comes before any episode")
            banks = seed(banks, event.items)
        case _:
            pass
    return State(run=run, header=header, tasks=tasks, banks=banks, waiting=waiting, position=recorded.position)


def _ended_episode(recorded: Recorded) -> int:
    """Raises: UnreadableEvent: it does not stand in an episode's stream."""
    t = episode_of(recorded.stream)
    if t is None:
        raise UnreadableEvent(recorded.id, f"{recorded.kind} belongs to an episode")
    return t


def _read(recorded: Recorded) -> AnyEvent:
    return typed(recorded) if recorded.kind in _FITTED else decode(recorded)


def next_fold(state: State, recorded: Recorded, event: Folded) -> Diagnosed | None:
    """What ended the episode that `recorded` folds (None = abandoned).

    Raises:
        FoldMismatch: it is not the next version, or its episode has not ended.
    """
    _check_fold(recorded, event, state.banks.version, state.waiting)
    return state.waiting[event.episode]


def _check_fold(recorded: Recorded, event: Folded, newest: BankVersion, waiting: Container[int]) -> None:
    """Raises: FoldMismatch: not the version after `newest`, or of an episode that is not `waiting`."""
    if event.episode != newest or event.bank_version != newest + 1:
        raise FoldMismatch(
            recorded.id, "episode and version", (event.episode, event.bank_version), (newest, newest + 1)
        )
    if event.episode not in waiting:
        raise FoldMismatch(recorded.id, "episode", event.episode, "no diagnosed or abandoned before it")


class Replay:
    """A log replayed as recorded, event by event: the banks that `step` gives, at less cost.

    A diagnosis is most of what there is to read, and few folds look into theirs: it is read where one does. What is
    wrong with another one goes unnoticed here; `events.verify` and an import read everything.

    Args:
        state: where to begin; stays as it is.
    """

    def __init__(self, state: State | None = None) -> None:
        self._state = state or State()
        self._newest = Newest(self._state.banks)
        #: as the state's; a diagnosis that nobody has looked into is still what the log holds
        self._waiting: dict[int, Diagnosed | Recorded | None] = dict(self._state.waiting)
        self._run, self._position = self._state.run, self._state.position

    @property
    def version(self) -> BankVersion:
        """How far it is: of `banks`, without making them."""
        return self._newest.version

    @property
    def banks(self) -> Banks:
        """The newest ones."""
        return self._newest.banks

    @property
    def state(self) -> State:
        """What the log says so far, every diagnosis that waits among it read.

        Raises:
            UnreadableEvent: as `step`.
        """
        waiting = {t: _diagnosis(ended) for t, ended in self._waiting.items()}
        self._waiting = dict(waiting)
        self._state = replace(self._state, run=self._run, banks=self.banks, waiting=waiting, position=self._position)
        return self._state

    def feed(self, recorded: Recorded) -> None:
        """One more event, perhaps after some of kinds that no replay reads.

        Raises:
            As `step`, but for a diagnosis that no fold looks into.
        """
        match recorded.kind:
            case "folded":
                self._fold(recorded)
            case "diagnosed" if recorded.schema == Diagnosed.SCHEMA:
                self._waiting[_ended_episode(recorded)] = recorded
            case kind if kind in REPLAY_KINDS:
                state = step(self.state, recorded)
                self._state, self._newest = state, Newest(state.banks)
                self._waiting = dict(state.waiting)
            case _:
                pass
        self._run, self._position = recorded.run, recorded.position

    def _fold(self, recorded: Recorded) -> None:
        event = typed(recorded)
        assert isinstance(event, Folded)  # noqa: S101 - by kind
        _check_fold(recorded, event, self.version, self._waiting)
        if not self._newest.noted(event.operations):
            ended = self._waiting[event.episode]
            diagnosed = _diagnosis(ended) if looks_into_diagnosis(event.operations) else None
            self._newest.evolve(diagnosed, event.operations)
        del self._waiting[event.episode]


def _diagnosis(ended: Diagnosed | Recorded | None) -> Diagnosed | None:
    if isinstance(ended, Recorded):
        event = typed(ended)
        assert isinstance(event, Diagnosed)  # noqa: S101 - by kind
        return event
    return ended


def replay(events: Iterable[Recorded], state: State | None = None) -> State:
    """What `events` make of `state`, as recorded: folding a, then b from there, is folding a + b.

    Raises:
        As `Replay.feed` and `Replay.state`.
    """
    replayed = Replay(state)
    for recorded in events:
        replayed.feed(recorded)
    return replayed.state


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
