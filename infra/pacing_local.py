"""The pace of a run's places in one process: for a run without a server. As `infra/pacing.lua` does it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from infra.capabilities import Place
from infra.pacing import FIRST_LIMIT, LEASE_S, WAIT_S, Bounds, Look, Outcome, Seen


@dataclass(slots=True)
class _Asked:
    """A request of the past minute."""

    began_s: float
    tokens: int


@dataclass(slots=True)
class _Waiting:
    """A request that waits."""

    until_s: float
    tokens: int


@dataclass(slots=True)
class _Known:
    """What is known of one place; requests by name, in order."""

    #: until when each request that is under way counts
    held: dict[str, float] = field(default_factory=dict)
    minute: dict[str, _Asked] = field(default_factory=dict)
    waiting: dict[str, _Waiting] = field(default_factory=dict)
    adaptive: bool = False
    limit: int = FIRST_LIMIT
    answered: int = 0
    halved: int = 0
    until_s: float = 0.0

    def at_once(self, bounds: Bounds) -> int:
        """The bound of requests at once; 0 = none."""
        if not bounds.adaptive:
            return bounds.concurrent
        return min(self.limit, bounds.concurrent or self.limit)


class LocalCounts:
    """`infra.pacing.Counts` in memory.

    Args:
        monotonic: seconds from some fixed moment.
        minute_s: how long a minute is, for tests.
        lease_s: how long a slot outlives its last renewal.
    """

    def __init__(self, monotonic: Callable[[], float], *, minute_s: float = 60.0, lease_s: float = LEASE_S) -> None:
        self._monotonic, self._minute_s, self._lease_s = monotonic, minute_s, lease_s
        self._places: dict[Place, _Known] = {}

    async def look(self, place: Place, request: str, tokens: int, bounds: Bounds) -> Look:
        """As `Counts.look`."""
        known, now = self._places.setdefault(place, _Known()), self._monotonic()
        known.adaptive, limit = bounds.adaptive, known.at_once(bounds)
        if request in known.held:
            return Look(admitted=True, wait_s=0.0, limit=limit, halved=known.halved)
        known.held = {one: until_s for one, until_s in known.held.items() if until_s > now}
        known.minute = {one: asked for one, asked in known.minute.items() if asked.began_s > now - self._minute_s}
        known.waiting = {one: waits for one, waits in known.waiting.items() if waits.until_s >= now or one == request}
        ahead: list[_Waiting] = []
        for one, waits in known.waiting.items():
            if one == request:
                break
            ahead.append(waits)
        want = min(tokens, bounds.tokens) if bounds.tokens else tokens
        wait_s = max(self._until_free(known, bounds, ahead, want), known.until_s - now)
        blocked = wait_s > 0 or (limit > 0 and len(known.held) + len(ahead) >= limit)
        if blocked:
            known.waiting.setdefault(request, _Waiting(0.0, want)).until_s = now + WAIT_S
        else:
            known.waiting.pop(request, None)
            known.held[request] = now + self._lease_s
            known.minute[request] = _Asked(now, want)
        return Look(admitted=not blocked, wait_s=max(0.0, wait_s), limit=limit, halved=known.halved)

    def _until_free(self, known: _Known, bounds: Bounds, ahead: list[_Waiting], want: int) -> float:
        """Until enough of the oldest requests are over a minute old, seconds; 0 = there is room."""
        over = len(known.minute) + len(ahead) + 1 - bounds.requests if bounds.requests else 0
        need = 0
        if bounds.tokens:
            spent = sum(one.tokens for one in known.minute.values())
            need = spent + sum(one.tokens for one in ahead) + want - bounds.tokens
        if over <= 0 and need <= 0:
            return 0.0
        past, now, wait_s = list(known.minute.values()), self._monotonic(), 0.0
        for place, one in enumerate(past, 1):
            if over < place and need <= 0:
                break
            need -= one.tokens
            wait_s = one.began_s + self._minute_s - now
        else:
            if over > len(past) or not past:
                wait_s = self._minute_s
        return max(wait_s, 0.001)

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
        """As `Counts.end`."""
        known = self._places.setdefault(place, _Known())
        busy = len(known.held)
        known.held.pop(request, None)
        if tokens is not None and request in known.minute:
            known.minute[request].tokens = tokens
        if held_off_s:
            known.until_s = max(known.until_s, self._monotonic() + held_off_s)
        if not bounds.adaptive or outcome == "neither":
            return None
        limit = known.at_once(bounds)
        if outcome == "limited":
            if known.halved != halved:
                return None
            known.limit, known.answered = max(1, limit // 2), 0
            known.halved += 1
        elif busy >= limit:
            known.answered += 1
            if known.answered >= limit:
                known.limit, known.answered = min(limit + 1, bounds.concurrent or limit + 1), 0
        return known.limit if known.limit != limit else None

    async def renew(self, place: Place, request: str) -> None:
        """As `Counts.renew`."""
        self._places[place].held[request] = self._monotonic() + self._lease_s

    async def leave(self, place: Place, request: str) -> None:
        """As `Counts.leave`."""
        known = self._places.setdefault(place, _Known())
        known.waiting.pop(request, None)
        if known.held.pop(request, None) is not None:
            known.minute[request].tokens = 0

    async def seen(self) -> list[Seen]:
        """As `Counts.seen`."""
        now = self._monotonic()
        return [
            Seen(
                base_url=place.base_url,
                model=place.model,
                held=sum(until_s > now for until_s in known.held.values()),
                waiting=len(known.waiting),
                requests=len(recent := [one for one in known.minute.values() if one.began_s > now - self._minute_s]),
                tokens=sum(one.tokens for one in recent),
                limit=known.limit if known.adaptive else None,
                held_off_s=max(0.0, known.until_s - now),
            )
            for place, known in self._places.items()
        ]
