"""What worker processes hold, where others can see it: a hash a process, gone within seconds of its death.

A host worker pops, begins and claims a job in one step (`Claims.take`): from then on its hash `<prefix>:workers:<name>`
names the job, and expires once the process stops renewing it. So whether a job is held is asked of the worker that
holds it, never guessed from the job's age.

rq's own records are kept as far as its tools read them: the job's hash says who began it and when, and its registry of
begun jobs has an entry `<job>:host`. rq's own worker needs about twenty commands for that; here it is one script.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, cast

from msgspec import Struct
from redis import Redis
from redis.exceptions import OutOfMemoryError
from rq import Queue
from rq.job import Job as RqJob

#: names of workers that claim what they hold start with this
HOST_NAME = "host-"
#: fields of a claims hash: a job held, and a run that the process cannot serve
JOB, REFUSES = "job:", "refuses:"
#: what follows a job's id in rq's registry of begun jobs, where rq has the id of an execution
BEGUN = ":host"
#: field of a claims hash: how long it lives unless it is renewed
TTL_MS = "ttl_ms"

_NOTHING: Mapping[str, str] = MappingProxyType({})

#: KEYS queue, begun, claims; ARGV what job keys begin with, how many, ttl of the claims in ms, worker, now.
#: Answers {id, time limit, since when it waits, ...}. An id whose job was deleted meanwhile is passed over.
_TAKE = """
local taken = {}
while #taken < 3 * ARGV[2] do
  local id = redis.call('LPOP', KEYS[1])
  if not id then break end
  local job = redis.call('HMGET', ARGV[1] .. id, 'timeout', 'enqueued_at')
  if job[1] then
    redis.call('HSET', KEYS[3], 'job:' .. id, ARGV[5])
    redis.call('HSET', ARGV[1] .. id, 'status', 'started', 'worker_name', ARGV[4], 'started_at', ARGV[5])
    redis.call('ZADD', KEYS[2], '+inf', id .. ':host')
    taken[#taken + 1], taken[#taken + 2], taken[#taken + 3] = id, job[1], job[2] or ''
  end
end
if #taken > 0 then redis.call('PEXPIRE', KEYS[3], ARGV[3]) end
return taken
"""

#: KEYS begun, claims; ARGV what job keys begin with, worker, ids. A worker's own to end is what it claims, and what it
#: has begun and nobody has taken over: its claim may be gone before this arrives, over a line that delays.
_SETTLE = """
for i = 3, #ARGV do
  local job = ARGV[1] .. ARGV[i]
  local said = redis.call('HMGET', job, 'worker_name', 'status')
  local claimed = redis.call('HDEL', KEYS[2], 'job:' .. ARGV[i]) == 1
  if claimed or (said[1] == ARGV[2] and said[2] == 'started') then
    redis.call('ZREM', KEYS[1], ARGV[i] .. ':host')
    redis.call('DEL', job)
  end
end
"""

#: KEYS queue, begun, claims, rq's set of queues; ARGV what job keys begin with, id, LPUSH or RPUSH, now.
#: Whether it is back: a job of a run that was forgotten meanwhile is not.
_HAND_BACK = """
if redis.call('HDEL', KEYS[3], 'job:' .. ARGV[2]) == 0 then return 0 end
redis.call('ZREM', KEYS[2], ARGV[2] .. ':host')
local job = ARGV[1] .. ARGV[2]
if redis.call('EXISTS', job) == 0 then return 0 end
redis.call('HSET', job, 'status', 'queued', 'worker_name', '', 'started_at', '', 'enqueued_at', ARGV[4])
redis.call('SADD', KEYS[4], KEYS[1])
redis.call(ARGV[3], KEYS[1], ARGV[2])
return 1
"""


class TakenJob(Struct, frozen=True):
    """A job that a worker has begun and claims."""

    id: str
    #: seconds; 0 or less: none
    timeout_s: float
    #: from its entry into the queue until it was taken, by the clocks of two processes; None where nobody says
    queue_wait_ms: int | None = None


def claims_key(prefix: str, worker: str) -> str:
    """The hash of a host worker: its facts, and one field `job:<id>` for each job it holds."""
    return f"{prefix}:workers:{worker}"


def drain_key(prefix: str) -> str:
    """The hash of the workers that are asked to finish what runs and end: name -> who asked."""
    return f"{prefix}:drain"


class Claims:
    """What one worker process holds, where others can see it for as long as it is renewed. Blocking."""

    def __init__(self, connection: Redis, prefix: str, worker: str, queue: Queue, ttl_s: float) -> None:
        self._connection, self._queue, self._worker = connection, queue, worker
        self._key, self._drain, self._ttl_ms = claims_key(prefix, worker), drain_key(prefix), int(ttl_s * 1000)
        self._begun = queue.started_job_registry.key
        #: whether they had run out before they were renewed last, so that others may have taken the worker for dead
        self.lapsed = False
        #: whether the server had no room for them when they were renewed last: they live on as they were
        self.stale = False
        self._take = connection.register_script(_TAKE)
        self._settle = connection.register_script(_SETTLE)
        self._hand_back = connection.register_script(_HAND_BACK)

    def take(self, count: int, since: str) -> list[TakenJob]:
        """Pop, begin and claim up to `count` jobs, in one step; none from an empty queue."""
        arguments: list[Any] = [RqJob.redis_job_namespace_prefix, count, self._ttl_ms, self._worker, since]
        taken = cast("list[bytes]", self._take(keys=[self._queue.key, self._begun, self._key], args=arguments))
        return [
            TakenJob(id_.decode(), float(limit), _between_ms(waits.decode(), since))
            for id_, limit, waits in zip(taken[::3], taken[1::3], taken[2::3], strict=True)
        ]

    def settle(self, ids: Sequence[str]) -> None:
        """The jobs `ids` have ended: nothing of them is left, unless another worker has taken them over."""
        self._settle(keys=[self._begun, self._key], args=[RqJob.redis_job_namespace_prefix, self._worker, *ids])

    def hand_back(self, id_: str, now: str, *, at_front: bool) -> bool:
        """The job is back in the queue, as if it had never been taken; False for one of a forgotten run."""
        arguments = [RqJob.redis_job_namespace_prefix, id_, "LPUSH" if at_front else "RPUSH", now]
        keys = [self._queue.key, self._begun, self._key, Queue.redis_queues_keys]
        return bool(self._hand_back(keys=keys, args=arguments))

    def renew(self, held: Mapping[str, str], facts: Mapping[str, str], refuses: Mapping[str, str] = _NOTHING) -> bool:
        """Claim exactly `held` (job id -> since when) for another ttl; a pop whose reply was lost is let go.

        Whether somebody asks this worker to finish what runs and end. A server that is out of memory takes no claim,
        and lets those live on that it has: what was taken or has ended meanwhile stands there by itself.

        Raises:
            OutOfMemoryError: it has none of ours.
        """
        fields: dict[Any, Any] = {f"{JOB}{id_}": since for id_, since in held.items()} | dict(facts)
        fields |= {f"{REFUSES}{run}": why for run, why in refuses.items()} | {TTL_MS: self._ttl_ms}
        with self._connection.pipeline() as pipeline:
            # Not whether the key is there: what was taken meanwhile has made it anew.
            pipeline.hexists(self._key, TTL_MS)
            pipeline.delete(self._key)
            pipeline.hset(self._key, mapping=fields)
            pipeline.pexpire(self._key, self._ttl_ms)
            pipeline.hexists(self._drain, self._worker)
            try:
                known, *_, asked = pipeline.execute()
            except OutOfMemoryError:
                self.stale = True
                asked = self._prolonged()
                if asked is None:
                    raise
                return asked
        self.lapsed, self.stale = not known, False
        return bool(asked)

    def _prolonged(self) -> bool | None:
        """Whether this worker is asked to end, once what it claims lives for another ttl; None where nothing does."""
        # One by one: a server that is out of memory refuses even what needs none inside a transaction.
        with self._connection.pipeline(transaction=False) as pipeline:
            pipeline.hexists(self._key, TTL_MS)
            pipeline.pexpire(self._key, self._ttl_ms)
            pipeline.hexists(self._drain, self._worker)
            known, _, asked = pipeline.execute()
        return bool(asked) if known else None

    def end(self) -> None:
        """The worker is gone; so is all it held."""
        self._connection.delete(self._key)
        self._connection.hdel(self._drain, self._worker)


def _between_ms(begin: str, end: str) -> int | None:
    """Milliseconds from `begin` to `end`, 0 where the clocks disagree; None where one is no time with a zone."""
    try:
        passed = datetime.fromisoformat(end) - datetime.fromisoformat(begin)
    except (ValueError, TypeError):
        return None
    return max(0, round(1000 * passed.total_seconds()))
