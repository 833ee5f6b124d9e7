"""Who coordinates a run: a lease that expires, with a term that counts its holders.

Safety does not depend on it: two coordinators of one run append the same. It decides who asks for jobs, and its term
numbers what a holder derives, so that a holder that was stopped and wakes up writes where nobody reads.
"""

from collections.abc import Callable
from typing import Any, Protocol, cast

from msgspec import Struct
from redis.asyncio import Redis

from events.ids import Position, RunId
from infra.redis_client import Script, our_errors
from runtime.ports import Lease

#: how long a lease outlives its last renewal; with the standby's next look, a dead holder is replaced within 3 s
LEASE_S = 2.0

#: KEYS lease, term; ARGV holder, ttl in ms, position, whether to take it from another holder. The term, 0 = not ours.
_HOLD = Script("""
local holder = redis.call('HGET', KEYS[1], 'holder')
local term
if holder == ARGV[1] then
  term = redis.call('GET', KEYS[2])
elseif holder and ARGV[4] ~= '1' then
  return 0
end
if not term then term = redis.call('INCR', KEYS[2]) end
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'position', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return tonumber(term)
""")

#: KEYS lease; ARGV holder
_RELEASE = Script("""
if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then redis.call('DEL', KEYS[1]) end
""")

#: KEYS lease; whether one without an end was there: `_HOLD` gives each its end in the same step
_END = Script("""
if redis.call('PTTL', KEYS[1]) ~= -1 then return 0 end
return redis.call('DEL', KEYS[1])
""")


class Holder(Struct, frozen=True, kw_only=True):
    """Who holds a run's lease now."""

    name: str
    term: int
    #: up to where it has read the log
    position: int


class Leases(Protocol):
    """The leases of a server's runs."""

    def of(self, run: RunId, holder: str, *, by_force: bool = False) -> Lease:
        """The lease of `run` as `holder` sees it; `by_force` takes it from whoever else holds it."""
        ...

    async def holder(self, run: RunId) -> Holder | None:
        """Who holds it now."""
        ...

    async def end_endless(self, *, dry_run: bool) -> list[RunId]:
        """Remove leases that would never expire, as none of ours is written; whose they are."""
        ...


def lease_key(prefix: str, run: RunId) -> str:
    """A hash: holder and position; it expires with the lease."""
    return f"{prefix}:{{{run}}}:lease"


def term_key(prefix: str, run: RunId) -> str:
    """The number of the last term; it stays as long as the run."""
    return f"{prefix}:{{{run}}}:term"


class RedisLeases:
    """`Leases` on one server. Every method raises Unreachable where it does not answer."""

    def __init__(self, redis: Redis, prefix: str, where: str, *, ttl_s: float = LEASE_S) -> None:
        self._redis, self._prefix, self._where, self._ttl_s = redis, prefix, where, ttl_s

    def of(self, run: RunId, holder: str, *, by_force: bool = False) -> "RedisLease":
        """As `Leases.of`."""
        keys = [lease_key(self._prefix, run), term_key(self._prefix, run)]
        return RedisLease(self._redis, keys, holder, self._where, self._ttl_s, by_force=by_force)

    async def holder(self, run: RunId) -> Holder | None:
        """As `Leases.holder`."""
        with our_errors(self._where):
            pipeline = self._redis.pipeline(transaction=False)  # which a full server would refuse
            _ = pipeline.hgetall(lease_key(self._prefix, run))
            _ = pipeline.get(term_key(self._prefix, run))
            fields, term = await pipeline.execute()
        # Read one after the other: in between the run may have been deleted.
        if not fields or term is None:
            return None
        return Holder(name=fields[b"holder"].decode(), term=int(term), position=int(fields[b"position"]))

    async def end_endless(self, *, dry_run: bool) -> list[RunId]:
        """As `Leases.end_endless`. Reads every key of the server."""
        found = list[RunId]()
        with our_errors(self._where):
            # Nothing that a prefix may hold has a meaning in a pattern.
            async for key in self._redis.scan_iter(match=lease_key(self._prefix, RunId("*")), count=1000):
                if await self._redis.pttl(key) == -1 and (dry_run or await _END.run(self._redis, [key], [])):
                    found.append(RunId(key.decode().rsplit("{", 1)[1].split("}", 1)[0]))
        return sorted(set(found))


class RedisLease:
    """`runtime.ports.Lease` on two keys of a run."""

    def __init__(self, redis: Redis, keys: list[str], holder: str, where: str, ttl_s: float, *, by_force: bool) -> None:
        self._redis, self._keys, self._holder, self._where = redis, keys, holder, where
        self._ttl_ms, self._by_force = int(ttl_s * 1000), by_force

    async def hold(self, position: Position) -> int | None:
        """As `runtime.ports.Lease.hold`."""
        arguments: list[Any] = [self._holder, self._ttl_ms, position, int(self._by_force)]
        with our_errors(self._where):
            term = cast("int", await _HOLD.run(self._redis, self._keys, arguments))
        return term or None

    async def release(self) -> None:
        """As `runtime.ports.Lease.release`."""
        with our_errors(self._where):
            await _RELEASE.run(self._redis, self._keys[:1], [self._holder])


class LocalLeases:
    """`Leases` inside one process: for tests, and for logs without a server.

    Args:
        monotonic: seconds from some fixed moment.
        ttl_s: how long a lease outlives its last renewal.
    """

    def __init__(self, monotonic: Callable[[], float], *, ttl_s: float = LEASE_S) -> None:
        self._monotonic, self._ttl_s = monotonic, ttl_s
        self._terms: dict[RunId, int] = {}
        #: run -> holder, until when
        self._held: dict[RunId, tuple[Holder, float]] = {}

    def of(self, run: RunId, holder: str, *, by_force: bool = False) -> "LocalLease":
        """As `Leases.of`."""
        return LocalLease(self, run, holder, by_force=by_force)

    async def holder(self, run: RunId) -> Holder | None:
        """As `Leases.holder`."""
        return self.now(run)

    async def end_endless(self, *, dry_run: bool) -> list[RunId]:  # noqa: ARG002 - as on a server
        """None: each has its end."""
        return []

    def now(self, run: RunId) -> Holder | None:
        """Who holds the lease of `run` at this moment."""
        held = self._held.get(run)
        return held[0] if held is not None and self._monotonic() < held[1] else None

    def take(self, run: RunId, name: str, position: Position) -> int:
        """`name` holds the lease of `run` from now on; its term."""
        holder = self.now(run)
        if holder is None or holder.name != name:
            self._terms[run] = self._terms.get(run, 0) + 1
        taken = Holder(name=name, term=self._terms[run], position=position)
        self._held[run] = (taken, self._monotonic() + self._ttl_s)
        return taken.term

    def drop(self, run: RunId) -> None:
        """Nobody holds the lease of `run`."""
        self._held.pop(run, None)


class LocalLease:
    """`runtime.ports.Lease` of one run in `LocalLeases`."""

    def __init__(self, leases: LocalLeases, run: RunId, holder: str, *, by_force: bool) -> None:
        self._leases, self._run, self._name, self._by_force = leases, run, holder, by_force

    async def hold(self, position: Position) -> int | None:
        """As `runtime.ports.Lease.hold`."""
        holder = self._leases.now(self._run)
        if holder is not None and holder.name != self._name and not self._by_force:
            return None
        return self._leases.take(self._run, self._name, position)

    async def release(self) -> None:
        """As `runtime.ports.Lease.release`."""
        holder = self._leases.now(self._run)
        if holder is not None and holder.name == self._name:
            self._leases.drop(self._run)
