"""The write side of a run's bank store: takes what the projector folds and writes it, in a task of its own."""

from collections.abc import Sequence

from msgspec import Struct

from events.bank import Banks
from events.ids import BankVersion
from events.operations import Operation
from events.window import Window
from infra.banks.generations import RunGenerations
from infra.banks.serving import BankServer
from runtime.ports import Basis, Clock


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

    def __init__(self, server: BankServer, generations: RunGenerations, clock: Clock) -> None: ...

    async def run(self) -> None:
        """Write what it is told. Ends when cancelled only; a write under way is finished by the server's own task."""
        raise NotImplementedError

    def begin(self, window: Window, dimension: int) -> None:
        """The projector has its header: these are the versions that somebody may read, of vectors of that dimension."""
        raise NotImplementedError

    def folded(self, banks: Banks, operations: Sequence[Operation], basis: Basis | None) -> None:
        """The next version, in order; whether it was folded here or read. The window holds it already."""
        raise NotImplementedError

    def hold(self, term: int | None) -> None:
        """The process holds the run's lease with that term from now on, or no more: each term has a generation."""
        raise NotImplementedError

    def doubt(self, reason: str) -> None:
        """The store answered wrongly: the next generation is built beside the one that serves."""
        raise NotImplementedError

    async def settle(self, limit_s: float) -> bool:
        """Whether all that was told is published and shown, within the limit."""
        raise NotImplementedError

    @property
    def view(self) -> MirrorView:
        raise NotImplementedError
