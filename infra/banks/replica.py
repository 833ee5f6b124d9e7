"""A process's own copy of a run's banks, kept by reading the log and evolving: exact, in memory, without tokens.

A light one keeps no vectors: items, texts, values and which items were pruned, at every version that somebody may read.
"""

from collections.abc import Sequence
from contextlib import suppress

import anyio
from msgspec.structs import replace

from events import policies
from events.bank import Banks, Item, Shelf
from events.codec import content_sha256, decode_as
from events.errors import Mismatch, VersionGap
from events.fold import REPLAY_KINDS, State, step
from events.ids import BankVersion, MemoryId, Stage
from events.kinds import Candidate, Folded, Query, RunStarted, Source
from events.log import Recorded
from events.operations import Pruned
from events.parameters import Parameters
from events.policies import Policy
from events.recall import recall
from events.window import Window
from infra.banks.prunes import Prunes
from runtime.logger import Logger
from runtime.ports import Basis, EventLog, Recalled

_log = Logger("chime.replica")

#: how long one wait for news lasts before the log is asked again, seconds
_PATIENCE_S = 5.0


class Versions:
    """The versions of a run's banks that a reader may ask for, from the log, which is read when asked.

    Args:
        log: of the run.
        light: whether to do without vectors.
    """

    def __init__(self, log: EventLog, *, light: bool = False) -> None:
        self._log, self._light = log, light
        self._reading = anyio.Lock()
        self._forget()

    def _forget(self) -> None:
        self._state = State(banks=lightened(Banks())) if self._light else State()
        #: what the log says was pruned, since where it is read from
        self.prunes = Prunes()
        self._policy: Policy | None = None
        self._window: Window | None = None
        #: what made each version held; not those that an archive holds
        self._made: dict[BankVersion, Basis] = {}

    async def header(self) -> RunStarted:
        """The run header.

        Raises:
            UnreadableEvent: the log does not begin with one.
        """
        if self._state.header is None:
            await self._catch_up()
        return self._state.begun()

    async def tasks(self) -> tuple[str, ...]:
        """Every task id of one epoch, in order."""
        await self.header()
        return self._state.tasks

    async def newest(self) -> BankVersion:
        """The newest version in the log."""
        await self._catch_up()
        return self._state.banks.version

    async def at(self, version: BankVersion) -> Banks:
        """The banks at `version`; waits until it is there.

        Raises:
            Mismatch: older than the versions held: nobody in the run may read it any more.
        """
        if (banks := await self._reached(version)) is None:
            await self._read_anew(version)
            banks = await self._reached(version)
        if banks is None:
            oldest = self._window.oldest if self._window is not None else 0
            raise Mismatch(f"bank version {version} of run {self._log.run} is gone; the oldest held is {oldest}")
        return banks

    async def _reached(self, version: BankVersion) -> Banks | None:
        """The banks at `version`, once the log is there; None where they are not held any more."""
        while self._state.banks.version < version or self._state.header is None:
            await self._catch_up()
            if self._state.banks.version < version:
                # A lost tail ends the wait; the next look at the log finds it too, and starts again.
                with suppress(VersionGap):
                    await self._log.wait(self._state.position, _PATIENCE_S)
        assert self._window is not None  # noqa: S101 - made with the header, which was read above
        return self._window.at(version)

    async def _read_anew(self, version: BankVersion) -> None:
        """Who asks for a version that is too old may be right: newer ones may be made from what the server has lost."""
        async with self._reading:
            if self._window is not None and self._window.at(version) is None:
                reason = f"version {version} is asked for, the oldest held is {self._window.oldest}"
                _log.warning("replica_reset", run_id=self._log.run, reason=reason)
                self._forget()
                await self._read_on()

    async def parameters(self) -> Parameters:
        """Of the run's policy."""
        await self.header()
        assert self._policy is not None  # noqa: S101 - set with the header
        return self._policy.parameters

    def recalled(self, banks: Banks, candidates: list[Candidate], version: BankVersion, source: Source) -> Recalled:
        """A recall's candidates over `banks`, the version `version`, with the items behind the chosen ones."""
        chosen = [item for one in candidates if one.chosen and (item := banks.get(one.id)) is not None]
        return Recalled(candidates=candidates, chosen=chosen, source=source, basis=self._made.get(version))

    async def items(self, ids: Sequence[MemoryId], version: BankVersion) -> list[Item]:
        """Those of `ids` that are live at `version`, in the order asked."""
        banks = await self.at(version)
        return [item for one in ids if (item := banks.get(one)) is not None]

    async def _catch_up(self) -> None:
        async with self._reading:
            try:
                await self._read_on()
            except VersionGap as gap:
                # The server lost its tail: what was derived from it goes, and the log is read again.
                _log.warning("replica_reset", run_id=self._log.run, reason=str(gap))
                self._forget()
                await self._read_on()

    async def _read_on(self) -> None:
        head = await self._log.head()
        if head < self._state.position:
            raise VersionGap(f"head of run {self._log.run}", self._state.position, head)
        if head == self._state.position:
            return
        if self._window is None and (begin := await self._log.checkpoint()) is not None:
            self._begin(begin.state)
        async for page in self._log.pages(self._state.position, REPLAY_KINDS):
            for recorded in page:
                self._state = step(self._state, recorded)
                if self._window is None:
                    self._begin(self._state)
                elif recorded.kind in ("seeded", "folded"):
                    self._window.add(self._state.banks)
                if recorded.kind == "folded":
                    self._remember(recorded)
                    self._note_prunes(recorded)
        # The filter skips kinds, so the last event read may stand before the head.
        self._state = self._state.at_least(head)

    def _remember(self, recorded: Recorded) -> None:
        """Which event made the newest version."""
        assert self._window is not None  # noqa: S101 - a fold comes after the header
        sha256 = content_sha256(recorded.kind, recorded.data)
        self._made[self._state.banks.version] = Basis(stream=recorded.stream, version=recorded.version, sha256=sha256)
        while (first := next(iter(self._made))) < self._window.oldest:
            del self._made[first]

    def _note_prunes(self, recorded: Recorded) -> None:
        operations = decode_as(recorded, Folded).operations if b'"prune"' in recorded.data else []
        version = self._state.banks.version
        self.prunes.add({one.id: version for one in operations if isinstance(one, Pruned)})

    def _begin(self, state: State) -> None:
        """The header is known; the versions held begin with the banks of `state`."""
        if self._light:
            state = replace(state, banks=lightened(state.banks))
        config = state.begun().config
        self._state, self._policy, self._window = state, policies.of_run(config), Window(config, state.banks)


class Replica(Versions):
    """`runtime.ports.BankReader` over the log alone.

    Args:
        log: of the run.
        source: what its recalls say of where they come from.
    """

    def __init__(self, log: EventLog, source: Source = "exact") -> None:
        super().__init__(log)
        self._source: Source = source

    async def recall(self, stage: Stage, query: Query, version: BankVersion) -> Recalled:
        """Equation (5) over the stage's bank at `version`."""
        banks = await self.at(version)
        candidates = recall(banks, (stage,), query.vector, await self.parameters())
        return self.recalled(banks, candidates, version, self._source)


def lightened(banks: Banks) -> Banks:
    """`banks` without their vectors; their digest is the same."""
    planning, execution = (
        Shelf(shelf.scenarios.light(), shelf.experiences.light()) for shelf in (banks.planning, banks.execution)
    )
    return replace(banks, planning=planning, execution=execution)
