"""What a person does to a run's bank store: build it again, hold it against the fold, sweep up what nobody owns."""

from collections.abc import Sequence

from msgspec import Struct

from events.bank import Banks
from events.ids import BankVersion
from infra.banks.generations import Generations, RunGenerations
from infra.banks.serving import BankServer


class Rebuilt(Struct, frozen=True, kw_only=True):
    """A generation that was built by hand."""

    generation: str
    version: BankVersion
    rows: int
    seconds: float


class Verified(Struct, frozen=True, kw_only=True):
    """A bank store held against the fold at one version."""

    generation: str
    version: BankVersion
    rows: int
    #: what differs, one sentence each; empty = equal
    differences: list[str]


async def rebuild(server: BankServer, generations: RunGenerations, banks: Banks) -> Rebuilt:
    """A new generation with exactly the items of `banks`, published at that version. For runs that nobody coordinates.

    Where somebody does, `RunGenerations.doubt` makes their mirror build the next one.

    Raises:
        BankAway: the server does not answer.
        UncleanWrite: it answered, but not cleanly; nothing was published.
    """
    raise NotImplementedError


async def verify(server: BankServer, generations: RunGenerations, banks: Banks, pruned: Sequence[str]) -> Verified:
    """Every row of the generation that serves against `banks`, and whether a search finds each of them.

    Raises:
        BankAway: the server does not answer.
        BadInput: no generation serves, or it has not got to the version of `banks`.
    """
    raise NotImplementedError


async def unowned(server: BankServer, generations: Generations, runs: Sequence[RunGenerations]) -> list[str]:
    """Generations of this deployment that no run of `runs` owns, and those that serve nobody any more."""
    raise NotImplementedError
