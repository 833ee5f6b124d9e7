"""What worker processes hold, where others can see it: a hash a process, gone within seconds of its death.

A host worker pops and claims in one step (`Claims.take`): from then on its hash `<prefix>:workers:<name>` names the
job, and expires once the process stops renewing it. So whether a job is held is asked of the worker that holds it,
never guessed from the job's age.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from redis import Redis
from rq import Queue

#: names of workers that claim what they hold start with this
HOST_NAME = "host-"
#: fields of a claims hash: a job held, and a run that the process cannot serve
JOB, REFUSES = "job:", "refuses:"
#: field of a claims hash: how long it lives unless it is renewed
TTL_MS = "ttl_ms"

_NOTHING: Mapping[str, str] = MappingProxyType({})

#: KEYS queue, popped, claims; ARGV ttl in ms, since. Pops and claims in one step: no moment without an owner.
_TAKE = """
local id = redis.call('LMOVE', KEYS[1], KEYS[2], 'LEFT', 'RIGHT')
if id then
  redis.call('HSET', KEYS[3], 'job:' .. id, ARGV[2])
  redis.call('PEXPIRE', KEYS[3], ARGV[1])
end
return id
"""


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
        self._take = connection.register_script(_TAKE)

    def take(self, since: str) -> str | None:
        """Pop the next job's id and claim it, in one step; None from an empty queue."""
        taken = self._take(
            keys=[self._queue.key, self._queue.intermediate_queue_key, self._key], args=[self._ttl_ms, since]
        )
        return cast("bytes", taken).decode() if taken else None

    def renew(self, held: Mapping[str, str], facts: Mapping[str, str], refuses: Mapping[str, str] = _NOTHING) -> bool:
        """Claim exactly `held` (job id -> since when) for another ttl; a pop whose reply was lost is let go.

        Whether somebody asks this worker to finish what runs and end.
        """
        fields: dict[Any, Any] = {f"{JOB}{id_}": since for id_, since in held.items()} | dict(facts)
        fields |= {f"{REFUSES}{run}": why for run, why in refuses.items()} | {TTL_MS: self._ttl_ms}
        with self._connection.pipeline() as pipeline:
            pipeline.delete(self._key)
            pipeline.hset(self._key, mapping=fields)
            pipeline.pexpire(self._key, self._ttl_ms)
            pipeline.hexists(self._drain, self._worker)
            return bool(pipeline.execute()[-1])

    def let_go(self, id_: str) -> None:
        """The job is done with, or somebody else's."""
        self._connection.hdel(self._key, f"{JOB}{id_}")

    def end(self) -> None:
        """The worker is gone; so is all it held."""
        self._connection.delete(self._key)
        self._connection.hdel(self._drain, self._worker)
