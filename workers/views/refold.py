"""A log folded twice, as recorded and under another policy, side by side."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from events import policies
from events.bank import Banks, evolve
from events.codec import decode
from events.fold import REPLAY_KINDS, State, decide, step
from events.ids import Stage
from events.kinds import Folded, PolicyConfig, RunStarted
from events.log import Recorded
from events.operations import Operation
from events.parameters import Given
from events.policies import Policy
from workers.views.banks import ItemChange, difference


class Fold(Struct, frozen=True, kw_only=True):
    """What one policy makes of the diagnoses."""

    policy: PolicyConfig
    #: live items by birth stage
    bank_sizes: dict[Stage, int]
    digest: str
    #: operation -> how many
    operations: dict[str, int]


class Refolded(Struct, frozen=True, kw_only=True):
    """Both folds, and what differs."""

    run: str
    #: episodes that both have folded
    versions: int
    #: the policy differs: the diagnoses were made under another bank
    off_policy: bool
    #: parameter -> [recorded, refolded]; `name` and `version` too
    differs: dict[str, list[int | str]]
    recorded: Fold
    refolded: Fold
    #: the first bank version with other operations; None = the folds agree everywhere
    first_difference: int | None
    #: from the recorded bank to the refolded one
    changes: list[ItemChange]


def other_policy(header: RunStarted, name: str | None, parameters: Mapping[str, Given]) -> Policy:
    """The recorded policy with another name or other parameters.

    Raises:
        UnknownName: no such policy or parameter.
        BadInput: a value that does not fit.
    """
    recorded = policies.of_run(header.config)
    return policies.load(name or recorded.name, recorded.parameters.changed(parameters))


@dataclass(slots=True)
class Refolding:
    """Feed it a log in position order (`REPLAY_KINDS` suffice)."""

    #: None = the recorded one
    name: str | None = None
    parameters: Mapping[str, Given] = field(default_factory=dict)
    _state: State = field(default_factory=State)
    #: the refolded bank, at the version of `_state`
    _banks: Banks = field(default_factory=Banks)
    _policy: Policy | None = None
    _recorded: list[list[Operation]] = field(default_factory=list)
    _decided: list[list[Operation]] = field(default_factory=list)

    def feed(self, recorded: Recorded) -> None:
        """One more event.

        Raises:
            UnknownName, BadInput: as `other_policy`.
            FoldMismatch: a `folded` that does not fit.
            UnreadableEvent: data that is none, or an unknown kind or schema.
        """
        if recorded.kind not in REPLAY_KINDS:
            return
        before, self._state = self._state, step(self._state, recorded)
        header = self._state.begun()
        if self._policy is None:
            self._policy = other_policy(header, self.name, self.parameters)
        if recorded.kind == "seeded":
            self._banks = self._state.banks
        elif recorded.kind == "folded":
            event = decode(recorded)
            assert isinstance(event, Folded)  # noqa: S101 - by kind
            diagnosed = before.waiting[event.episode]
            operations = decide(self._policy, header, self._banks, event.episode, diagnosed)
            self._banks = evolve(self._banks, diagnosed, operations)
            self._recorded.append(event.operations)
            self._decided.append(operations)

    def done(self) -> Refolded:
        """Both folds side by side, as of the newest version of the log.

        Raises:
            UnreadableEvent: the log does not begin with `run_started`.
        """
        header = self._state.begun()
        assert self._policy is not None  # noqa: S101 - set with the header
        config, other = header.config.policy, self._policy.config()
        differs = _differing(config, other)
        pairs = enumerate(zip(self._recorded, self._decided, strict=True), 1)
        return Refolded(
            run=str(self._state.run),
            versions=len(self._recorded),
            off_policy=bool(differs),
            differs=differs,
            recorded=_fold(config, self._state.banks, self._recorded),
            refolded=_fold(other, self._banks, self._decided),
            first_difference=next((version for version, (a, b) in pairs if a != b), None),
            changes=difference(self._state.banks, self._banks),
        )


def _differing(a: PolicyConfig, b: PolicyConfig) -> dict[str, list[int | str]]:
    # A header made before a parameter existed means its default, which `b` holds.
    one: dict[str, int | str] = {"name": a.name, "version": a.version, **b.parameters, **a.parameters}
    two: dict[str, int | str] = {"name": b.name, "version": b.version, **b.parameters}
    return {name: [one[name], two[name]] for name in two if one[name] != two[name]}


def _fold(policy: PolicyConfig, banks: Banks, operations: list[list[Operation]]) -> Fold:
    counts = Counter(str(one.__struct_config__.tag) for several in operations for one in several)
    return Fold(policy=policy, bank_sizes=banks.sizes(), digest=banks.digest(), operations=dict(sorted(counts.items())))
