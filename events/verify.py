"""A log checked against the fold: operations and digest at every version, every recall, every version and position."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from events import policies
from events.bank import evolve
from events.codec import decode, decode_as
from events.errors import FoldMismatch, UnreadableEvent, VersionGap
from events.fold import REPLAY_KINDS, State, decide, next_fold, step
from events.ids import StreamId, episode_of
from events.kinds import Retrieved
from events.log import Recorded
from events.policies import Policy
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
    _versions: dict[StreamId, int] = field(default_factory=dict)
    _window: Window | None = None

    @property
    def state(self) -> State:
        """The log so far, as decided again."""
        return self._state

    def feed(self, recorded: Recorded) -> None:
        """Check one more event.

        Raises:
            VersionGap: a position or version that is not the next.
            FoldMismatch: operations, digest or candidates that are not what the fold gives.
            UnreadableEvent: data that is none, or an unknown kind or schema.
        """
        self._check_order(recorded)
        if recorded.kind == "folded" and self._policy is not None:
            self._state = self._checked_fold(recorded, self._policy)
        elif recorded.kind in REPLAY_KINDS:
            self._state = step(self._state, recorded)
        elif recorded.kind == "retrieved" and self._policy is not None:
            self._check_recall(recorded, self._policy)
        else:
            decode(recorded)
        if self._policy is None:
            self._policy = policies.of_run(self._state.begun().config)
            self._window = Window(self._state.begun().config, self._state.banks)
        elif self._window is not None and recorded.kind in ("seeded", "folded"):
            self._window.add(self._state.banks)
        self.report.events += 1
        self.report.digest = ""

    def _check_order(self, recorded: Recorded) -> None:
        if recorded.position != self.report.events + 1:
            raise VersionGap(f"position of {recorded.id}", self.report.events + 1, recorded.position)
        expected = self._versions.get(recorded.stream, 0) + 1
        if recorded.version != expected:
            raise VersionGap(f"version of {recorded.id}", expected, recorded.version)
        self._versions[recorded.stream] = expected

    def _checked_fold(self, recorded: Recorded, policy: Policy) -> State:
        """The state after a `folded` that is exactly what the fold gives."""
        event, diagnosed = next_fold(self._state, recorded)
        banks = self._state.banks
        operations = decide(policy, self._state.begun(), banks, event.episode, diagnosed)
        if operations != event.operations:
            raise FoldMismatch(recorded.id, "operations", event.operations, operations)
        evolved = evolve(banks, diagnosed, operations)
        if evolved.digest() != event.digest:
            raise FoldMismatch(recorded.id, "digest", event.digest, evolved.digest())
        self.report.versions += 1
        return self._state.after_fold(recorded, evolved)

    def _check_recall(self, recorded: Recorded, policy: Policy) -> None:
        event = decode_as(recorded, Retrieved)
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
