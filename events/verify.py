"""A log checked against the fold: operations and digest at every version, every recall, every version and position."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from events import policies
from events.bank import evolve
from events.errors import FoldMismatch, UnreadableEvent
from events.fold import State, decide, next_fold, step
from events.ids import episode_of
from events.kinds import Folded, Retrieved
from events.log import Recorded
from events.policies import Policy
from events.reading import Reading
from events.recall import recall
from events.window import Window


@dataclass(slots=True)
class Verified:
    """What was compared and found equal."""

    events: int = 0
    versions: int = 0
    recalls: int = 0
    digest: str = ""
    #: recalls of versions that the window no longer holds (`latest` mode, very late readers)
    unchecked_recalls: int = 0


@dataclass(slots=True)
class Verifier:
    """Feed it a log in position order; it raises at the first event that is not what the fold gives."""

    report: Verified = field(default_factory=Verified)
    _state: State = field(default_factory=State)
    _policy: Policy | None = None
    _reading: Reading = field(default_factory=Reading)
    _window: Window | None = None

    @property
    def state(self) -> State:
        """The log so far, as decided again."""
        return self._state

    def feed(self, recorded: Recorded) -> None:
        """Check one more event.

        Raises:
            VersionGap: a position or version that is not the next.
            FoldMismatch: operations, digest or candidates that are not what the fold gives, or else as `Reading.feed`.
            UnreadableEvent: as `Reading.feed`.
        """
        event = self._reading.feed(recorded)
        if isinstance(event, Folded) and self._policy is not None:
            self._state = self._checked_fold(recorded, event, self._policy)
        elif isinstance(event, Retrieved) and self._policy is not None:
            self._check_recall(recorded, event, self._policy)
        else:
            self._state = step(self._state, recorded, event)
        if self._policy is None:
            self._policy = policies.of_run(self._state.begun().config)
            self._window = Window(self._state.begun().config, self._state.banks)
        elif self._window is not None and recorded.kind in ("seeded", "folded"):
            self._window.add(self._state.banks)
        self.report.events = self._reading.events
        self.report.digest = ""

    def _checked_fold(self, recorded: Recorded, event: Folded, policy: Policy) -> State:
        """The state after a `folded` that is exactly what the fold gives."""
        diagnosed = next_fold(self._state, recorded, event)
        banks = self._state.banks
        operations = decide(policy, self._state.begun(), banks, event.episode, diagnosed)
        if operations != event.operations:
            raise FoldMismatch(recorded.id, "operations", event.operations, operations)
        evolved = evolve(banks, diagnosed, operations)
        if evolved.digest() != event.digest:
            raise FoldMismatch(recorded.id, "digest", event.digest, evolved.digest())
        self.report.versions += 1
        return self._state.after_fold(recorded, evolved)

    def _check_recall(self, recorded: Recorded, event: Retrieved, policy: Policy) -> None:
        assert self._window is not None  # noqa: S101 - made with the policy
        config, t = self._state.begun().config, episode_of(recorded.stream)
        if t is None:
            raise UnreadableEvent(recorded.id, "retrieved belongs to an episode")
        due = 0 if config.frozen else event.bank_version if config.lag == "latest" else max(0, t + 1 - config.lag)
        if event.bank_version != due or due > self._state.banks.version:
            raise FoldMismatch(recorded.id, "bank version", event.bank_version, min(due, self._state.banks.version))
        banks = self._window.at(event.bank_version)
        if banks is None:
            self.report.unchecked_recalls += 1
            return
        found = recall(banks, (event.stage,), event.query.vector, policy.parameters)
        if found != event.candidates:
            at = next((i for i, (a, b) in enumerate(zip(event.candidates, found, strict=False)) if a != b), None)
            if at is None:
                raise FoldMismatch(recorded.id, "number of candidates", len(event.candidates), len(found))
            raise FoldMismatch(recorded.id, f"candidate {at + 1}", event.candidates[at], found[at])
        self.report.recalls += 1

    def done(self) -> Verified:
        """The report, with the digest of the newest version."""
        self.report.digest = self._state.banks.digest()
        return self.report


def verify(events: Iterable[Recorded]) -> Verified:
    """The whole log checked.

    Raises:
        As `Verifier.feed`.
    """
    verifier = Verifier()
    for recorded in events:
        verifier.feed(recorded)
    return verifier.done()
