"""What jobs and workers leave behind in rq when they die: found, and removed without a trace. Blocking.

rq's own sweep of popped jobs leaves a key behind for every job it meets between pop and begin, and keeps what it finds
for minutes; nothing here waits for it.
"""

from collections.abc import Collection, Iterable
from typing import cast

from redis import Redis
from rq import Queue
from rq.defaults import RQ_KEY_PREFIX
from rq.executions import ExecutionRegistry
from rq.job import Job as RqJob
from rq.registry import FailedJobRegistry, clean_registries
from rq.worker_registration import REDIS_WORKER_KEYS, WORKERS_BY_QUEUE_KEY

from events.ids import RunId
from infra.rq_claims import BEGUN, HOST_NAME, claims_key, drain_key
from infra.rq_keys import job_part, run_of
from infra.rq_standing import held, standing, worker_name

#: KEYS what is there while the worker lives, its record, rq's workers of the queue, rq's of all, who is asked to drain;
#: ARGV the worker in rq's sets, its name
_BURY = """
if redis.call('EXISTS', KEYS[1]) == 1 then return end
redis.call('SREM', KEYS[3], ARGV[1])
redis.call('SREM', KEYS[4], ARGV[1])
redis.call('DEL', KEYS[2])
redis.call('HDEL', KEYS[5], ARGV[2])
"""


def everywhere(queue: Queue) -> set[str]:
    """Ids of jobs of our kind for `queue` that have a key anywhere, found by looking at every key of the server."""
    kind, found = queue.name.removeprefix("chime-"), set()
    for key in queue.connection.scan_iter(match=f"{RQ_KEY_PREFIX}:*{kind}-*", count=1000):
        found |= {part for part in key.decode().split(":") if run_of(part) and part.startswith(f"{kind}-")}
    return found


def listed(queue: Queue) -> set[str]:
    """Every job id in a list of rq's for `queue`: waiting, popped, begun, failed."""
    return {job_part(entry) for entry in [*_waiting(queue), *_entries(queue)]}


def remove(queue: Queue, ids: Collection[str]) -> None:
    """Every trace of the jobs `ids` in `queue`; not those of workers."""
    if ids:
        entries = [entry for entry in _entries(queue) if job_part(entry) in ids]
        failed = FailedJobRegistry(queue=queue)
        with queue.connection.pipeline() as pipeline:
            for id_ in sorted(ids):
                pipeline.lrem(queue.key, 0, id_)
                pipeline.lrem(queue.intermediate_queue_key, 0, id_)
                pipeline.delete(*_keys(id_, queue.connection))
            for entry in entries:
                pipeline.zrem(queue.started_job_registry.key, entry)
                pipeline.zrem(failed.key, entry)
                pipeline.delete(f"{RQ_KEY_PREFIX}:execution:{entry.decode()}")
            pipeline.execute()


def remove_unheld(queue: Queue, prefix: str, ids: Iterable[str]) -> set[str]:
    """Every trace of those of `ids` that neither wait nor have a live worker; the others."""
    wanted = set(ids)
    if not wanted:
        return wanted
    there = held(queue, prefix, wanted)
    remove(queue, wanted - there)
    return there


def dead_workers(queue: Queue, prefix: str) -> list[str]:
    """The keys of workers in rq that do not live any more: hosts without claims, others without a record."""
    found = standing(queue)
    keys = [*found.hosts, *found.others]
    with queue.connection.pipeline(transaction=False) as pipeline:
        for key in found.hosts:
            pipeline.exists(claims_key(prefix, worker_name(key)))
        for key in found.others:
            pipeline.exists(key)
        alive = pipeline.execute()
    return [key for key, lives in zip(keys, alive, strict=True) if not lives]


def remove_dead_workers(queue: Queue, prefix: str) -> None:
    """What rq and we keep of workers that do not live any more.

    One that has only stood still, and says meanwhile that it lives, stays: what it holds would count as lost.
    """
    dead = dead_workers(queue, prefix)
    if not dead:
        return
    bury = queue.connection.register_script(_BURY)
    with queue.connection.pipeline(transaction=False) as pipeline:
        for key in dead:
            name = worker_name(key)
            life = claims_key(prefix, name) if name.startswith(HOST_NAME) else key
            sets = [WORKERS_BY_QUEUE_KEY % queue.name, REDIS_WORKER_KEYS]
            bury(keys=[life, key, *sets, drain_key(prefix)], args=[key, name], client=pipeline)
        pipeline.execute()


def unknown_drains(connection: Redis, queues: Collection[Queue], prefix: str) -> list[str]:
    """Names of workers that are asked to drain, that none of `queues` knows, and that do not live."""
    asked = {name.decode() for name in cast("list[bytes]", connection.hkeys(drain_key(prefix)))}
    if not asked:
        return []
    unknown = asked - {worker_name(key) for queue in queues for key in standing(queue).workers}
    # A worker that begins claims before rq knows it.
    return sorted(name for name in unknown if not connection.exists(claims_key(prefix, name)))


def remove_empty(queue: Queue) -> None:
    """`queue` is not among rq's queues while nothing waits in it: only rq's tools read that list."""
    if not queue.connection.exists(queue.key):
        queue.connection.srem(Queue.redis_queues_keys, queue.key)


def sweep(queue: Queue, prefix: str) -> None:
    """Clear away what workers that died left in rq's lists; several at once do no harm.

    What an ordinary worker had begun goes to rq's failed ones, where it expires; the rest is removed.
    """
    clean_registries(queue)
    remove_dead_workers(queue, prefix)
    found = standing(queue)
    ours = found.popped | {id_ for id_, entry in found.executions if entry == id_ + BEGUN}
    _ = remove_unheld(queue, prefix, ours)


def scattered(connection: Redis, run: RunId) -> set[str]:
    """Ids of the run's jobs in any key of rq, found by looking at every key of the server."""
    return {
        part
        for key in connection.scan_iter(match=f"{RQ_KEY_PREFIX}:*-{run}-*", count=1000)
        for part in key.decode().split(":")
        if run_of(part) == run
    }


def _keys(id_: str, connection: Redis) -> list[str]:
    """The keys of one job."""
    job = RqJob(id_, connection=connection, serializer="json")
    executions = ExecutionRegistry(id_, connection)
    return [job.key, job.dependents_key, job.dependencies_key, executions.key, f"{RQ_KEY_PREFIX}:results:{id_}"]


def _waiting(queue: Queue) -> list[bytes]:
    return cast("list[bytes]", queue.connection.lrange(queue.key, 0, -1))


def _entries(queue: Queue) -> list[bytes]:
    """What rq's lists beside the queue hold: job ids, some with an execution's id after a colon."""
    failed = FailedJobRegistry(queue=queue)
    found = [
        *queue.connection.lrange(queue.intermediate_queue_key, 0, -1),
        *queue.connection.zrange(queue.started_job_registry.key, 0, -1),
        *queue.connection.zrange(failed.key, 0, -1),
    ]
    return cast("list[bytes]", found)
