"""What a run's coordinator does for its bank store: a mirror beside it, while the run's store is one that wants it."""

import anyio

from events.errors import ChimeError
from events.ids import RunId
from infra.banks.generations import Generations
from infra.banks.mirror import Mirror, MirrorView
from infra.banks.serving import BankServer
from runtime.logger import Logger
from runtime.ports import Clock
from workers.connections import BankWay
from workers.projector import Projector

_log = Logger("chime.coordinator")

#: how long a run that has ended waits for the store to show its last versions, seconds; for a server of yours that is
#: away; and for one of the home that is started again meanwhile
_SETTLE_S, _AWAY_S, _REVIVED_S = 15.0, 5.0, 30.0
#: how often it looks whether that still makes sense, seconds
_LOOK_S = 0.5
#: how often a server that cannot be had is asked for, seconds
_AGAIN_S = 5.0


class Mirroring:
    """The mirror of one run, made when it is wanted and its server is known, made anew where that has moved.

    Nothing here waits for the store but `run`, which is a task beside the coordinator, and `settle`.
    """

    def __init__(
        self,
        run: RunId,
        projector: Projector,
        banks: BankWay | None,
        generations: Generations | None,
        clock: Clock,
    ) -> None:
        self._run, self._projector, self._clock = run, projector, clock
        self._banks, self._generations = banks, generations
        self._wanted = anyio.Event()
        self._stopping: anyio.CancelScope | None = None
        self._mirror: Mirror | None = None
        self._server: BankServer | None = None
        self._term: int | None = None

    @property
    def view(self) -> MirrorView | None:
        """How the mirror stands; None while there is none."""
        return self._mirror.view if self._mirror is not None else None

    def hold(self, term: int | None) -> None:
        """We act for the run with that term of its lease, or no more."""
        self._term = term
        if self._mirror is not None:
            self._mirror.hold(term)

    def follow(self, store: str) -> None:
        """Recalls come from `store` now."""
        wanted = store == "weaviate" and self._banks is not None and self._generations is not None
        if wanted and self._term is not None:
            self._wanted.set()
        moved = self._mirror is not None and self._banks is not None and self._banks.current is not self._server
        if self._wanted.is_set() and (not wanted or moved):
            self._wanted = anyio.Event()
            if self._stopping is not None:
                self._stopping.cancel()

    def doubt(self, reason: str) -> None:
        """The store has answered wrongly."""
        if self._mirror is not None:
            self._mirror.doubt(reason)

    async def settle(self) -> None:
        """The store shows what was folded last, unless that takes too long: it is a copy, and can be built later."""
        mirror, server, banks, began = self._mirror, self._server, self._banks, self._clock.monotonic()
        if mirror is None or server is None or banks is None:
            return
        while not await mirror.settle(_LOOK_S):
            limit_s = _REVIVED_S if banks.revives else _SETTLE_S if server.away is None else _AWAY_S
            if self._clock.monotonic() - began > limit_s:
                reason = mirror.view.waits_for
                _log.warning("bank_left_behind", run_id=self._run, behind=mirror.view.behind, reason=reason)
                return

    async def run(self) -> None:
        """Mirror the run whenever that is wanted; until cancelled."""
        said = ""
        while True:
            await self._wanted.wait()
            if not self._wanted.is_set():
                continue  # somebody thought better of it before we woke up
            with anyio.CancelScope() as self._stopping:
                try:
                    await self._mirrored()
                except ChimeError as error:
                    if str(error) != said:
                        said = str(error)
                        _log.warning("bank_not_mirrored", run_id=self._run, reason=said)
                    await self._clock.sleep(_AGAIN_S)

    async def _mirrored(self) -> None:
        """Raises: ChimeError: no server is known, or no client is installed."""
        assert self._banks is not None  # noqa: S101 - it is wanted
        assert self._generations is not None  # noqa: S101 - likewise
        self._server = await self._banks.server()
        self._mirror = mirror = Mirror(self._server, self._generations.of(self._run), self._clock)
        try:
            self._projector.tell(mirror)
            mirror.hold(self._term)
            await mirror.run()
        finally:
            self._projector.tell(None)
            self._mirror = None
