"""How fast an endpoint is asked: requests and tokens in a minute, requests at once, over all workers of a run.

Whoever would ask waits for its turn. What was asked in the past minute, who asks now and who waits is kept in one place
for all (`Counts`: on a server, or in this process). In each process one request a place looks there on behalf of those
behind it, after the wait that it was told; so there is a look for each process that waits and not for each request.

`adaptive` bounds what is asked at once by what an endpoint has taken: one more once as many as the bound have been
answered while it was in use, half of it after a 429, at least one. A 429 of a request that began before the last such
change says nothing new.
"""

import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol
from uuid import uuid4

import anyio

from events.errors import ChimeError
from infra.capabilities import Place
from runtime.beside import beside
from runtime.job_time import waiting_for_turn
from runtime.logger import Logger
from runtime.ports import Clock
from runtime.settings import EndpointSettings

_log = Logger("chime.model")

#: how long a slot outlives its last renewal, and how often that is, seconds: a worker that dies gives its slots back
LEASE_S, RENEW_S = 15.0, 5.0
#: where `adaptive` begins, requests at once
FIRST_LIMIT = 4
#: how long the first and the longest wait for a slot is, seconds: when one is given back, nobody knows before
_SLOT_S, _LONGEST_SLOT_S = 0.02, 1.0
#: the longest wait before another look, seconds: what others have settled meanwhile may have made room
_LOOK_S = 5.0
#: how long one that waits keeps its place without another look, seconds
WAIT_S = 15.0
#: how much of a wait is added by chance, at most: those who wait for the same moment need not come at once
_SPREAD, _LONGEST_SPREAD_S = 0.1, 1.0
#: how long giving a slot back may take, seconds; then it expires
_RELEASE_S = 5.0

Outcome = Literal["neither", "answered", "limited"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How fast one place may be asked; 0 = no bound."""

    #: in any minute
    requests: int
    tokens: int
    #: at once
    concurrent: int
    adaptive: bool

    @classmethod
    def of(cls, endpoint: EndpointSettings) -> "Bounds":
        """Those of an endpoint's settings."""
        return cls(
            requests=endpoint.requests_per_minute,
            tokens=endpoint.tokens_per_minute,
            concurrent=endpoint.max_concurrent,
            adaptive=endpoint.pacing == "adaptive",
        )

    @property
    def is_free(self) -> bool:
        """Whether there is none."""
        return not (self.requests or self.tokens or self.concurrent or self.adaptive)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Whether it is one's turn."""

    admitted: bool
    #: until another look makes sense, seconds; 0 where only a slot that is given back can help
    wait_s: float
    #: requests at once now; 0 = no bound
    limit: int
    #: how often the adaptive bound was halved before
    halved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One place of a run as it stands now."""

    base_url: str
    model: str
    #: requests under way
    held: int
    #: processes with requests that wait
    waiting: int
    #: requests of the past minute, and their tokens
    requests: int
    tokens: int
    #: what `adaptive` has come to; None where the place is not asked so
    limit: int | None
    #: until a 429 lets it be asked again, seconds
    held_off_s: float


class Counts(Protocol):
    """What was asked of each place of a run, who asks now, and who waits. Raises StoreAway where it is away."""

    async def look(self, place: Place, request: str, tokens: int, bounds: Bounds) -> Look:
        """Begin `request` where it is its turn; else it waits, behind those that came before it."""
        ...

    async def end(
        self,
        place: Place,
        request: str,
        bounds: Bounds,
        outcome: Outcome,
        tokens: int | None,
        held_off_s: float,
        halved: int,
    ) -> int | None:
        """`request` is over; the adaptive bound, where it has changed.

        Args:
            place: that was asked.
            request: as begun.
            bounds: as begun with.
            outcome: what came of it.
            tokens: that it came to; None = as reserved.
            held_off_s: how long nobody shall ask, seconds.
            halved: as of its `Look`.
        """
        ...

    async def renew(self, place: Place, request: str) -> None:
        """`request` is still under way."""
        ...

    async def leave(self, place: Place, request: str) -> None:
        """`request` does not wait any more; where it was let in meanwhile, it is over."""
        ...

    async def seen(self) -> list[Seen]:
        """Every place that was asked lately."""
        ...


class Turn:
    """One request that is under way."""

    def __init__(self) -> None:
        self.outcome: Outcome = "neither"
        #: that it came to; None = as reserved
        self.tokens: int | None = 0
        #: what a 429 asked for, seconds
        self.retry_after_s = 0.0

    def answered(self, tokens: int | None) -> None:
        """There is an answer; `tokens` of prompt and answer together, None where nobody knows."""
        self.outcome, self.tokens = "answered", tokens

    def limited(self, retry_after_s: float | None) -> None:
        """The endpoint has refused it as one too many, and may have said for how long."""
        self.outcome, self.tokens, self.retry_after_s = "limited", 0, retry_after_s or 0.0


class Pace(Protocol):
    """When an endpoint may be asked."""

    def request(self, place: Place, endpoint: EndpointSettings, tokens: int) -> AbstractAsyncContextManager[Turn]:
        """The body is one try, begun when it is its turn; what it came to is said to the turn.

        Leaving the body without a word gives the tokens back.

        Args:
            place: that is asked.
            endpoint: its bounds.
            tokens: of the prompt and of the longest answer, as far as they can be estimated.

        Raises:
            StoreAway: where turns are kept does not answer.
        """
        ...


class Unpaced:
    """A `Pace` without bounds."""

    @asynccontextmanager
    async def request(self, place: Place, endpoint: EndpointSettings, tokens: int) -> AsyncIterator[Turn]:
        """As `Pace.request`, at once."""
        del place, endpoint, tokens
        yield Turn()


UNPACED = Unpaced()


@dataclass(slots=True)
class _Here:
    """The requests of this process for one place."""

    #: who looks on behalf of those that wait, in the order in which they came
    head: anyio.Lock = field(default_factory=anyio.Lock)
    #: set when a slot of this process is given back
    freed: anyio.Event = field(default_factory=anyio.Event)


class Paced:
    """A `Pace` over `Counts`; where an endpoint has no bounds, nothing is asked."""

    def __init__(self, counts: Counts, clock: Clock, rng: random.Random | None = None) -> None:
        """Nothing is asked yet.

        Args:
            counts: of the run.
            clock: waits for a turn.
            rng: jitter.
        """
        self._counts, self._clock = counts, clock
        self._rng = rng or random.Random()  # noqa: S311 - jitter is no secret
        self._here: defaultdict[Place, _Here] = defaultdict(_Here)
        self._name, self._number = uuid4().hex[:12], 0

    @asynccontextmanager
    async def request(self, place: Place, endpoint: EndpointSettings, tokens: int) -> AsyncIterator[Turn]:
        """As `Pace.request`."""
        bounds, turn = Bounds.of(endpoint), Turn()
        if bounds.is_free:
            yield turn
            return
        self._number += 1
        request = f"{self._name}-{self._number}"
        with waiting_for_turn():
            look = await self._begun(place, request, tokens, bounds)
        try:
            async with beside() as tasks:
                tasks.start_soon(self._renewed, place, request)
                yield turn
        finally:
            with anyio.move_on_after(_RELEASE_S, shield=True), suppress(ChimeError):
                await self._ended(place, request, bounds, turn, look)

    async def _begun(self, place: Place, request: str, tokens: int, bounds: Bounds) -> Look:
        """The look that found it to be its turn."""
        here, slot_s = self._here[place], _SLOT_S
        async with here.head:
            try:
                while True:
                    freed = here.freed
                    look = await self._counts.look(place, request, tokens, bounds)
                    if look.admitted:
                        return look
                    wait_s = look.wait_s
                    if not wait_s:
                        wait_s, slot_s = slot_s, min(2 * slot_s, _LONGEST_SLOT_S)
                    await self._waited(freed, wait_s)
            except BaseException:
                with anyio.move_on_after(_RELEASE_S, shield=True), suppress(ChimeError):
                    await self._counts.leave(place, request)
                raise

    async def _waited(self, freed: anyio.Event, wait_s: float) -> None:
        """`wait_s` and a little more, no longer than a look may be put off; less where a slot of ours is given back."""
        spread_s = self._rng.uniform(0, min(_SPREAD * wait_s, _LONGEST_SPREAD_S))
        async with beside() as tasks:
            over = anyio.Event()

            async def slept() -> None:
                await self._clock.sleep(min(wait_s, _LOOK_S) + spread_s)
                over.set()

            async def given_back() -> None:
                await freed.wait()
                over.set()

            tasks.start_soon(slept)
            tasks.start_soon(given_back)
            await over.wait()

    async def _renewed(self, place: Place, request: str) -> None:
        while True:
            await self._clock.sleep(RENEW_S)
            # An outage need not end a call that is under way.
            with suppress(ChimeError):
                await self._counts.renew(place, request)

    async def _ended(self, place: Place, request: str, bounds: Bounds, turn: Turn, look: Look) -> None:
        changed = await self._counts.end(
            place, request, bounds, turn.outcome, turn.tokens, turn.retry_after_s, look.halved
        )
        here = self._here[place]
        here.freed.set()
        here.freed = anyio.Event()
        if changed is not None:
            _log.info("pace_changed", model=place.model, at_once=changed, outcome=turn.outcome)
        if turn.retry_after_s:
            _log.warning("pace_held", model=place.model, seconds=round(turn.retry_after_s, 1))
