"""The write side of a run's bank store: takes what the projector folds and writes it, in a task of its own.

While its process holds the run's lease it owns a generation. Whatever makes it doubt what is there, it begins the next
one from the banks at hand, beside the one that serves: a bank costs less to build than to mend.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import anyio
from msgspec import Struct

from events.bank import Banks
from events.errors import BadInput, Mismatch, Unreachable, VersionGap
from events.ids import BankVersion, MemoryId
from events.operations import Operation, Pruned
from events.window import Window
from infra.banks.changes import change_of, held, joined, lost, whole
from infra.banks.errors import DeadGeneration, DoubtfulAnswer, UncleanWrite
from infra.banks.generations import Generation, RunGenerations
from infra.banks.prunes import Prunes
from infra.banks.serving import BankServer
from runtime.bank_store import BankChange, BankStore
from runtime.logger import Logger
from runtime.ports import Basis, Clock

_log = Logger("chime.mirror")

#: how far behind the texts and values in the rows may be, and how often the pointer is looked at, seconds
_KEEP_S = 1.0
#: changes that wait for a store; then the next generation is built from the newest banks
_BACKLOG = 1_000
#: how long a row stays after the last version that shows it has left the window, seconds: a server that loses its last
#: second of log takes readers back to older versions
_AFTER_S = 10.0
#: how long a generation stays after it has served, seconds: longer than any search in it takes
_RETIRED_S = 30.0
#: the first and the longest wait after something went wrong, seconds; and the wait for a server that is away, which
#: others try to reach meanwhile
_AGAIN_S, _AWAY_S = (0.25, 5.0), 0.25


class MirrorView(Struct, frozen=True, kw_only=True):
    """How a mirror stands, for views of a run."""

    #: the generation that it writes; "" while it has none
    generation: str
    #: the newest version published there
    published: BankVersion | None
    #: versions folded and not yet published
    behind: int
    #: why it does not get on; "" while it does
    waits_for: str
    #: generations begun so far
    begun: int


class Mirror:
    """Mirrors one run's banks into a store while its process holds the run's lease.

    Nothing that happens to the store reaches the projector: it tells and goes on.
    """

    def __init__(self, server: BankServer, generations: RunGenerations, clock: Clock) -> None:
        self._server, self._generations, self._clock = server, generations, clock
        self._term: int | None = None
        self._window: Window | None = None
        self._dimension = 0
        self._basis: Basis | None = None
        #: (version, the items that it lacks and the one before holds), for versions of the window
        self._pruned: deque[tuple[BankVersion, list[MemoryId]]] = deque()
        #: what the store was not told yet
        self._changes: list[BankChange] = []
        self._generation: Generation | None = None
        self._store: BankStore | None = None
        self._published: BankVersion | None = None
        #: why the next generation is wanted, why nothing is written, and what was said of that last
        self._doubt = self._waits_for = self._said = ""
        self._begun = 0
        #: (when, the oldest version of the window then)
        self._oldest: deque[tuple[float, BankVersion]] = deque()
        self._kept_at = -_KEEP_S
        self._shown = True
        self._news, self._stepped = anyio.Event(), anyio.Event()

    # -- what it is told ---------------------------------------------------------------------------------------------

    def begin(self, window: Window, dimension: int, basis: Basis | None = None) -> None:
        """The projector has its header: these are the versions that somebody may read.

        Args:
            window: they.
            dimension: of their vectors.
            basis: the `folded` that made the newest one; None where the log holds none of it.
        """
        self._window, self._dimension, self._basis = window, dimension, basis
        self._pruned.clear()
        # What was folded before us we see in the window only.
        for version in range(window.oldest, window.newest.version):
            older, newer = window.at(BankVersion(version)), window.at(BankVersion(version + 1))
            if older is not None and newer is not None and (gone := lost(older, newer)):
                self._pruned.append((newer.version, gone))
        self._leave()
        self._news.set()

    def folded(self, banks: Banks, operations: Sequence[Operation], basis: Basis | None) -> None:
        """The next version, in order; whether it was folded here or read. The window holds it already."""
        self._basis = basis
        if pruned := [one.id for one in operations if isinstance(one, Pruned)]:
            self._pruned.append((banks.version, pruned))
        while self._pruned and self._window is not None and self._pruned[0][0] <= self._window.oldest:
            self._pruned.popleft()
        if self._store is None:
            return
        self._changes.append(change_of(BankVersion(banks.version - 1), banks, operations, basis))
        if len(self._changes) > _BACKLOG:
            self._doubt = self._doubt or "too far behind to catch up"
        self._news.set()

    def hold(self, term: int | None) -> None:
        """The process holds the run's lease with that term from now on, or no more: each term has a generation."""
        if term != self._term:
            self._term = term
            self._leave()
            self._news.set()

    def doubt(self, reason: str) -> None:
        """The store answered wrongly: the next generation is built beside the one that serves."""
        self._doubt = reason
        self._news.set()

    async def settle(self, limit_s: float) -> bool:
        """Whether all that was told is published and shown, within the limit."""
        with anyio.move_on_after(limit_s):
            while not self._settled:
                self._kept_at = -_KEEP_S
                self._news.set()
                await self._stepped.wait()
        return self._settled

    @property
    def _settled(self) -> bool:
        newest = self._window.newest.version if self._window is not None else None
        return self._store is not None and not self._changes and self._published == newest and self._shown

    @property
    def view(self) -> MirrorView:
        """How it stands."""
        newest = self._window.newest.version if self._window is not None else 0
        return MirrorView(
            generation=self._generation.name if self._generation is not None else "",
            published=self._published,
            behind=newest - (self._published or 0),
            waits_for=self._waits_for,
            begun=self._begun,
        )

    # -- what it does ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write what it is told. Ends when cancelled only; a write under way is finished by the server's own task."""
        again_s, longest_s = _AGAIN_S
        while True:
            with anyio.move_on_after(_KEEP_S):
                await self._news.wait()
            self._news = anyio.Event()
            try:
                stepped = await self._step()
            except Unreachable as error:
                self._failed(error)
                again_s = _AGAIN_S[0]
                await self._clock.sleep(_AWAY_S)
                self._news.set()
            except (Mismatch, BadInput) as error:
                self._failed(error)
                await self._clock.sleep(again_s)
                again_s = min(2 * again_s, longest_s)
                # What was begun in vain goes here too: a server that takes no rows takes generations without end.
                with suppress(Unreachable):
                    await self._sweep()
                self._news.set()
            else:
                again_s = _AGAIN_S[0]
                if stepped:
                    self._waits_for = self._said = ""
            self._stepped.set()
            self._stepped = anyio.Event()

    def _failed(self, error: Unreachable | Mismatch | BadInput) -> None:
        """What follows from an error: where nobody knows what is there, the next generation."""
        # Each try is at another generation, and they may go on for hours: what is wrong is said once.
        told = error.reason if isinstance(error, UncleanWrite | DoubtfulAnswer) else str(error)
        if told != self._said:
            _log.warning("bank_not_mirrored", run_id=self._generations.run, reason=str(error))
        self._waits_for, self._said = str(error), told
        if isinstance(error, VersionGap):
            # Our banks are not the log's any more: whoever reads it again begins anew.
            self._window = None
        if not isinstance(error, Unreachable):
            self._leave()

    def _leave(self) -> None:
        """The generation at hand is no longer written."""
        self._store = self._generation = self._published = None
        self._changes.clear()
        self._doubt, self._shown = "", False

    async def _step(self) -> bool:
        """Whether there is anything to mirror."""
        if self._window is None or self._term is None:
            return False
        due = self._clock.monotonic() - self._kept_at >= _KEEP_S
        if due:
            await self._look()
        if self._store is not None and self._store.unseen:
            await self._recheck(self._window, self._store)
        if self._doubt:
            _log.warning("bank_doubted", run_id=self._generations.run, reason=self._doubt)
            if self._generation is not None:
                # Nobody reads there until the next one serves.
                await self._generations.doubt(self._generation.name, self._doubt)
            self._leave()
        if self._store is None:
            await self._build(self._window, self._term)
        elif self._changes:
            await self._catch_up(self._store)
        if due and self._store is not None:
            await self._keep(self._store)
        return True

    async def _look(self) -> None:
        """Whether the generation is still ours, and undoubted."""
        if self._generation is None:
            return
        standing = await self._generations.standing()
        if standing.owner != self._generation.name:
            raise DeadGeneration(self._generation.name)
        if (serving := standing.serving) is not None and serving.doubt and serving.generation == self._generation.name:
            self._doubt = serving.doubt

    async def _recheck(self, window: Window, store: BankStore) -> None:
        """The server was gone: whether what it has is what we wrote, and not what it was a while ago."""
        banks = window.at(self._published) if self._published is not None else None
        if banks is None:
            self._doubt = self._doubt or "the connection was lost, and nobody knows what it should hold"
            return
        pruned = [one for _, ids in self._pruned for one in ids]
        try:
            await store.recheck(held(banks, pruned))
        except DoubtfulAnswer as error:
            self._doubt = self._doubt or error.reason

    async def _build(self, window: Window, term: int) -> None:
        """The next generation, whole, and published: it serves."""
        if (away := self._server.away) is not None:
            raise Unreachable(away)
        started_s = self._clock.monotonic()
        # Before a generation is begun: what cannot be written is not worth one.
        await self._server.prepare()
        self._generation = await self._begin_generation(term)
        await self._server.create(self._generation.name)
        store = self._server.bank(self._generation, Prunes(), self._dimension)
        # Nothing is awaited from here until the store is known: what is folded meanwhile comes after these banks.
        gone = [
            (older, dict.fromkeys(ids, version))
            for version, ids in self._pruned
            if (older := window.at(BankVersion(version - 1))) is not None
        ]
        change = whole(window.newest, gone, self._basis)
        self._store = store
        self._changes.clear()
        try:
            await store.apply(change)
        except Unreachable as error:
            # Away in the middle: a part of the rows is there, and nothing is published.
            raise UncleanWrite(self._generation.name, str(error)) from error
        self._published, self._shown = change.version, True
        _log.info(
            "bank_built",
            run_id=self._generations.run,
            generation=self._generation.name,
            bank_version=change.version,
            rows=len(change.born),
            seconds=round(self._clock.monotonic() - started_s, 3),
        )

    async def _begin_generation(self, term: int) -> Generation:
        try:
            generation = await self._generations.begin(term)
        except DeadGeneration:
            # Somebody has taken the lease since: it is not ours, whatever we were told last.
            self._term = None
            raise
        self._begun += 1
        return generation

    async def _catch_up(self, store: BankStore) -> None:
        changes = self._changes[:]
        change = joined(changes)
        await store.apply(change)
        del self._changes[: len(changes)]
        self._published, self._shown = change.version, False

    async def _keep(self, store: BankStore) -> None:
        """Rows as people should see them, and nothing that nobody can ask for any more."""
        assert self._window is not None  # noqa: S101 - `_step` has looked
        await store.refresh()
        self._shown = not self._changes
        now = self._clock.monotonic()
        self._oldest.append((now, self._window.oldest))
        while len(self._oldest) > 1 and self._oldest[1][0] <= now - _AFTER_S:
            self._oldest.popleft()
        if self._oldest[0][0] <= now - _AFTER_S:
            await store.clear(self._oldest[0][1])
        await self._sweep()
        self._kept_at = now

    async def _sweep(self) -> None:
        """Generations that nobody reads any more go."""
        for name in await self._generations.retired(_RETIRED_S):
            await self._server.remove([name])
            await self._generations.dropped(name)
