"""Folds a run's diagnoses in stream order and says so in the log: the only writer of `folded`."""

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from events import policies
from events.bank import Banks, evolve
from events.codec import content_sha256, decode, decode_as, draft
from events.errors import FoldMismatch
from events.fold import State, decide, step
from events.ids import PROJECTOR_STREAM, BankVersion, Version, episode_of, event_id
from events.kinds import Folded, Retrieved, Source
from events.log import Recorded
from events.operations import Operation
from events.policies import Policy
from events.recall import recall
from events.window import Window
from runtime.logger import Logger
from runtime.ports import Basis, EventLog, Origin, Taken

_log = Logger("chime.projector")


class Told(Protocol):
    """Who is told of each version, in order, once the window holds it: `infra.banks.mirror.Mirror`. Never blocks."""

    def begin(self, window: Window, dimension: int, basis: Basis | None = None) -> None:
        """These are the versions there are now; their vectors have `dimension` components. `basis` made the newest."""
        ...

    def folded(self, banks: Banks, operations: Sequence[Operation], basis: Basis | None) -> None:
        """The next one, what made it of the one before, and the `folded` that says so."""
        ...


class Projector:
    """The banks of one run as its log makes them. `see` events in position order, then `fold` what can be folded."""

    def __init__(self, log: EventLog) -> None:
        self._events = log
        self._state = State()
        self._policy: Policy | None = None
        self._window: Window | None = None
        #: t -> the event that ended episode t
        self._ended: dict[int, Basis] = {}
        #: what made the newest version; None where an archive holds it
        self._made: Basis | None = None
        self._told: Told | None = None
        #: ids of `retrieved` events whose candidates are not what the recall gives -> where they came from
        self.wrong_recalls: dict[str, Source] = {}

    @property
    def state(self) -> State:
        return self._state

    @property
    def version(self) -> BankVersion:
        """The newest version folded."""
        return self._state.banks.version

    def tell(self, told: Told | None) -> None:
        """Tell `told` of what there is, and of each version from now on; None: nobody."""
        self._told = told
        if told is not None and self._window is not None and self._is_seeded():
            told.begin(self._window, self._state.begun().embedder.dimension, self._made)

    def _is_seeded(self) -> bool:
        """Whether version 0 is whole, as far as the header says how many items it holds."""
        seed = self._state.begun().seed_bank
        whole = seed is None or seed.items is None or len(self._state.banks) >= seed.items
        return whole or self.version > 0

    def begin(self, state: State) -> None:
        """Go on from `state`, whose header is known: events after it follow. Older recalls are not checked."""
        config = state.begun().config
        self._state, self._policy, self._window = state, policies.of_run(config), Window(config, state.banks)
        self.tell(self._told)

    def see(self, recorded: Recorded) -> None:
        """One more event of the log.

        Raises:
            FoldMismatch: a `folded` that does not fit, or whose operations do not lead to its digest.
            UnreadableEvent: data that is none.
        """
        if recorded.kind == "folded" and recorded.version <= self._state.banks.version:
            return  # our own, already in the banks
        if recorded.kind == "retrieved":
            self._check(recorded)
        if recorded.kind in ("diagnosed", "abandoned") and (t := episode_of(recorded.stream)) is not None:
            sha256 = content_sha256(recorded.kind, recorded.data)
            self._ended[t] = Basis(stream=recorded.stream, version=recorded.version, sha256=sha256)
        self._state = step(self._state, recorded)
        if self._window is None:
            self.begin(self._state)
        elif recorded.kind == "folded":
            self._take_over(recorded)
        elif recorded.kind == "seeded":
            self._window.add(self._state.banks)
            self.tell(self._told)

    def _take_over(self, recorded: Recorded) -> None:
        """A fold that somebody else made: the next one builds on these banks, so they must be what it says."""
        event, found = decode_as(recorded, Folded), self._state.banks.digest()
        if event.digest != found:
            raise FoldMismatch(recorded.id, "digest", event.digest, found)
        self._ended.pop(event.episode, None)
        self._add(event, content_sha256(recorded.kind, recorded.data))

    def _add(self, event: Folded, sha256: str) -> None:
        """The newest version is that of `event`."""
        banks = self._state.banks
        if self._window is not None:
            self._window.add(banks)
        self._made = Basis(stream=PROJECTOR_STREAM, version=Version(event.bank_version), sha256=sha256)
        if self._told is not None:
            self._told.folded(banks, event.operations, self._made)

    async def fold(self) -> int:
        """Append `folded` for every episode that has ended, as far as the order allows; how many.

        Raises:
            FoldMismatch: the log already holds another `folded` at that place.
            UnreadableEvent, NewerSchema: it holds one there that this code cannot read.
        """
        folded = 0
        while self._policy is not None and self.version in self._state.waiting:
            await self._fold_next(self._policy)
            folded += 1
        return folded

    async def _fold_next(self, policy: Policy) -> None:
        banks, t = self._state.banks, int(self.version)
        waiting = dict(self._state.waiting)
        diagnosed = waiting.pop(t)
        operations = decide(policy, self._state.begun(), banks, t, diagnosed)
        evolved = evolve(banks, diagnosed, operations)
        event = Folded(episode=t, bank_version=evolved.version, digest=evolved.digest(), operations=operations)
        ended = self._ended.get(t)
        cause = event_id(self._events.run, ended.stream, ended.version) if ended is not None else None
        origin = Origin(cause=cause, basis=ended)
        written = draft(event)
        result = await self._events.append(PROJECTOR_STREAM, Version(t + 1), [written], origin)
        sha256 = written.sha256
        if isinstance(result, Taken):
            # Newer code may say the same with a field more.
            stored = result.stored
            if decode_as(stored, Folded) != event:
                raise FoldMismatch(stored.id, "folded", stored.data.decode(), written.data.decode())
            sha256 = content_sha256(stored.kind, stored.data)
        self._ended.pop(t, None)
        self._state = replace(self._state, banks=evolved, waiting=waiting)
        self._add(event, sha256)
        _log.info(
            "folded",
            run_id=self._events.run,
            episode=t,
            stage="fold",
            bank_version=evolved.version,
            operations=len(operations),
            digest=event.digest[:12],
            **{f"bank_{stage}": size for stage, size in evolved.sizes().items()},
        )

    def _check(self, recorded: Recorded) -> None:
        """Recompute a recorded recall: a store that answered wrongly is found here."""
        event = decode(recorded)
        if not isinstance(event, Retrieved) or self._policy is None or self._window is None:
            return
        banks = self._window.at(event.bank_version)
        if banks is None:
            return
        found = recall(banks, (event.stage,), event.query.vector, self._policy.parameters)
        if found != event.candidates:
            self.wrong_recalls[recorded.id] = event.source
            _log.error("recall_differs", run_id=recorded.run, event_id=recorded.id, source=event.source)
