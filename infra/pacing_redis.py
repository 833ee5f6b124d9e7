"""The pace of a run's places on its server: one script, on the server's clock."""

from hashlib import sha256
from importlib.resources import files
from typing import cast

import msgspec
from redis.asyncio import Redis

from events.ids import RunId
from infra.capabilities import Place
from infra.pacing import FIRST_LIMIT, LEASE_S, WAIT_S, Bounds, Look, Outcome, Seen
from infra.redis_client import Script, our_errors

_PACE = Script((files("infra") / "pacing.lua").read_text())

_PARTS = ("state", "held", "minute", "tokens", "waiting", "wants")


class RedisCounts:
    """`infra.pacing.Counts` under `<prefix>:{<run>}:pace...`: gone with the run, and some time after its last request.

    Args:
        redis: the server.
        prefix: what every key begins with.
        run: whose requests.
        where: the server, for messages.
        minute_s: how long a minute is, for tests.
        lease_s: how long a slot outlives its last renewal.
    """

    def __init__(
        self, redis: Redis, prefix: str, run: RunId, where: str, *, minute_s: float = 60.0, lease_s: float = LEASE_S
    ) -> None:
        self._redis, self._where, self._minute_s, self._lease_s = redis, where, minute_s, lease_s
        self._places = f"{prefix}:{{{run}}}:pace"

    async def look(self, place: Place, request: str, tokens: int, bounds: Bounds) -> Look:
        """As `Counts.look`."""
        given = [
            tokens, bounds.requests, bounds.tokens, bounds.concurrent, int(bounds.adaptive), FIRST_LIMIT,
            _ms(self._lease_s), _ms(WAIT_S), _ms(self._minute_s), _digest(place), msgspec.json.encode(place),
        ]  # fmt: skip
        with our_errors(self._where):
            reply = cast("list[int]", await _PACE.run(self._redis, self._keys(place), ["look", request, *given]))
        admitted, wait_ms, limit, halved = reply
        return Look(admitted=bool(admitted), wait_s=wait_ms / 1000, limit=limit, halved=halved)

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
        given = [
            outcome, "" if tokens is None else tokens, _ms(held_off_s), int(bounds.adaptive), FIRST_LIMIT,
            bounds.concurrent, halved,
        ]  # fmt: skip
        with our_errors(self._where):
            return cast("int | None", await _PACE.run(self._redis, self._keys(place), ["end", request, *given]))

    async def renew(self, place: Place, request: str) -> None:
        """As `Counts.renew`."""
        with our_errors(self._where):
            await _PACE.run(self._redis, self._keys(place), ["renew", request, _ms(self._lease_s)])

    async def leave(self, place: Place, request: str) -> None:
        """As `Counts.leave`."""
        with our_errors(self._where):
            await _PACE.run(self._redis, self._keys(place), ["leave", request])

    async def seen(self) -> list[Seen]:
        """As `Counts.seen`."""
        with our_errors(self._where):
            places = cast("dict[bytes, bytes]", await self._redis.hgetall(self._places))
            return [await self._seen(msgspec.json.decode(told, type=Place)) for told in places.values()]

    async def _seen(self, place: Place) -> Seen:
        _, state, held, minute, tokens, waiting, _ = self._keys(place)
        pipeline = self._redis.pipeline(transaction=False)
        _ = pipeline.time()
        _ = pipeline.hgetall(state)
        for key in (held, minute):
            _ = pipeline.zrange(key, 0, -1, withscores=True)
        _ = pipeline.hgetall(tokens)
        _ = pipeline.zcard(waiting)
        (seconds, micros), known, under_way, past, counts, waits = await pipeline.execute()
        now = seconds * 1000 + micros // 1000
        began = now - float(known.get(b"length", _ms(self._minute_s)))
        recent = [one for one, at in past if at > began]
        return Seen(
            base_url=place.base_url,
            model=place.model,
            held=sum(until > now for _, until in under_way),
            waiting=waits,
            requests=len(recent),
            tokens=sum(int(counts.get(one, 0)) for one in recent),
            limit=int(known.get(b"limit", FIRST_LIMIT)) if known.get(b"adaptive") == b"1" else None,
            held_off_s=max(0.0, (int(known.get(b"until", 0)) - now) / 1000),
        )

    def _keys(self, place: Place) -> list[str]:
        return [self._places, *(f"{self._places}:{_digest(place)}:{part}" for part in _PARTS)]


def _digest(place: Place) -> str:
    return sha256("\n".join(place).encode()).hexdigest()[:12]


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
