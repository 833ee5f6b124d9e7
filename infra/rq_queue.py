"""Jobs on rq: enqueued once, found by liveness, forgotten without a trace.

rq 3.0 reads `RQ_KEY_PREFIX` once, when it is imported, so a process could serve one prefix only. Here every connection
carries its own: `PrefixedCommands` rewrites rq's keys as they are sent, `rq:...` to `<prefix>:rq:...`. Other processes
see the same keys with rq's own tools after `export RQ_KEY_PREFIX=<prefix>:rq`.

Whether a job is held is asked of the worker that holds it, never guessed from the job's age. A host worker pops and
claims in one step (`Claims.take`): from then on its hash `<prefix>:workers:<name>` names the job, and expires within
seconds once the process stops renewing it. Ordinary rq workers have no such hash; rq's own execution record, which they
renew and which expires after about 90 s, counts instead.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from msgspec import Struct
from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.connection import HiredisRespSerializer
from redis.retry import Retry
from rq import Queue
from rq.defaults import RQ_KEY_PREFIX
from rq.exceptions import DuplicateJobError
from rq.job import Job as RqJob
from rq.registry import FailedJobRegistry, clean_registries
from rq.worker_registration import WORKERS_BY_QUEUE_KEY, clean_worker_registry

from events.errors import BadInput
from events.ids import RunId, run_id
from infra.redis_client import COMMAND_S, CONNECT_S, RETRIES, our_errors, redacted
from runtime.ports import Job, JobKind

#: the queue of each kind of job; one pool of workers serves one of them
QUEUES: dict[JobKind, str] = {"act": "chime-act", "diagnose": "chime-diagnose"}

#: what a fork worker imports and calls with (kind, run, episode, attempt)
ADVANCE = "workers.jobs.advance"

#: names of workers that claim what they hold start with this
HOST_NAME = "host-"

#: how long rq keeps a failed job: long enough to be looked at, short enough to free its id, seconds
FAILURE_TTL_S = 300

_PREFIX = re.compile(r"[A-Za-z0-9_.:{}-]+")
_JOB_ID = re.compile(r"(act|diagnose)-(.+)-(0|[1-9][0-9]*)-([1-9][0-9]*)")
#: commands whose arguments are no keys: a password that starts with `rq:` is a password, and a subscriber is
#: answered with the channel's name as the server knows it, which redis-py compares with the name it sent
_KEYLESS = frozenset({"AUTH", "CLIENT", "HELLO", "SUBSCRIBE", "UNSUBSCRIBE", "PSUBSCRIBE", "PUNSUBSCRIBE", "PUBLISH"})

#: KEYS queue, popped, claims; ARGV ttl in ms, since. Pops and claims in one step: no moment without an owner.
_TAKE = """
local id = redis.call('LMOVE', KEYS[1], KEYS[2], 'LEFT', 'RIGHT')
if id then
  redis.call('HSET', KEYS[3], 'job:' .. id, ARGV[2])
  redis.call('PEXPIRE', KEYS[3], ARGV[1])
end
return id
"""

_T = TypeVar("_T")


class PrefixedCommands:
    """A redis-py command packer that sends rq's keys (`rq:...`) as `<prefix>:rq:...`.

    Every argument that starts like a key of rq is taken for one: rq stores keys of queues and workers as members of
    sets, which are to carry the prefix too.
    """

    def __init__(self, prefix: str) -> None:
        self._ours = (f"{RQ_KEY_PREFIX}:", f"{prefix}:rq:")
        self._bytes = (self._ours[0].encode(), self._ours[1].encode())
        self._packer = HiredisRespSerializer()

    def pack(self, *args: Any) -> list[bytes]:
        """The command in the Redis protocol."""
        name = args[0] if isinstance(args[0], str) else args[0].decode()
        if name.split(" ", 1)[0].upper() not in _KEYLESS:
            args = (args[0], *(self._prefixed(arg) for arg in args[1:]))
        return cast("list[bytes]", self._packer.pack(*args))

    def _prefixed(self, arg: Any) -> Any:
        if isinstance(arg, str):
            rqs, ours = self._ours
            return ours + arg[len(rqs) :] if arg.startswith(rqs) and not arg.startswith(ours) else arg
        if isinstance(arg, bytes):
            rqs_b, ours_b = self._bytes
            return ours_b + arg[len(rqs_b) :] if arg.startswith(rqs_b) and not arg.startswith(ours_b) else arg
        return arg


def rq_connection(url: str, prefix: str) -> Redis:
    """A blocking client for rq whose keys live under `<prefix>:rq`; it connects when first used.

    Raises:
        BadInput: a prefix with other characters than rq allows, or a URL that is none.
    """
    if not _PREFIX.fullmatch(prefix):
        raise BadInput(f"key prefix {prefix!r}: only letters, digits and _ . : - {{ }} are allowed")
    try:
        return Redis.from_url(
            url,
            command_packer=PrefixedCommands(prefix),
            socket_connect_timeout=CONNECT_S,
            socket_timeout=COMMAND_S,
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES),
        )
    except ValueError as error:
        raise BadInput(f"{redacted(url)} is no Redis URL: {error}") from error


def rq_queue(kind: JobKind, connection: Redis) -> Queue:
    """The rq object for the queue of `kind`, with our serializer."""
    return Queue(QUEUES[kind], connection=connection, serializer="json")


def job_id(job: Job) -> str:
    """`<kind>-<run>-<episode>-<attempt>`: the same job has the same id, wherever it is made."""
    return f"{job.kind}-{job.run}-{job.episode}-{job.attempt}"


def job_of(args: Iterable[Any]) -> Job:
    """The job behind the arguments (kind, run, episode, attempt) of an rq job.

    Raises:
        BadInput: other arguments.
    """
    match list(args):
        case [("act" | "diagnose") as kind, str(run), int(episode), int(attempt)] if episode >= 0 and attempt >= 1:
            return Job(kind=kind, run=run_id(run), episode=episode, attempt=attempt)
        case other:
            raise BadInput(f"no job of ours: arguments {other!r}")


def claims_key(prefix: str, worker: str) -> str:
    """The hash of a host worker: its facts, and one field `job:<id>` for each job it holds."""
    return f"{prefix}:workers:{worker}"


class Claims:
    """What one worker process holds, where others can see it for as long as it is renewed. Blocking."""

    def __init__(self, connection: Redis, prefix: str, worker: str, queue: Queue, ttl_s: float) -> None:
        self._connection, self._queue = connection, queue
        self._key, self._ttl_ms = claims_key(prefix, worker), int(ttl_s * 1000)
        self._take = connection.register_script(_TAKE)

    def take(self, since: str) -> str | None:
        """Pop the next job's id and claim it, in one step; None from an empty queue."""
        taken = self._take(
            keys=[self._queue.key, self._queue.intermediate_queue_key, self._key], args=[self._ttl_ms, since]
        )
        return cast("bytes", taken).decode() if taken else None

    def renew(self, held: Mapping[str, str], facts: Mapping[str, str]) -> None:
        """Claim exactly `held` (job id -> since when) for another ttl; a pop whose reply was lost is let go."""
        fields: dict[Any, Any] = {f"job:{id_}": since for id_, since in held.items()} | dict(facts)
        with self._connection.pipeline() as pipeline:
            pipeline.delete(self._key)
            pipeline.hset(self._key, mapping=fields)
            pipeline.pexpire(self._key, self._ttl_ms)
            pipeline.execute()

    def let_go(self, id_: str) -> None:
        """The job is done with, or somebody else's."""
        self._connection.hdel(self._key, f"job:{id_}")

    def end(self) -> None:
        """The worker is gone; so is all it held."""
        self._connection.delete(self._key)


class _Standing(Struct, frozen=True):
    """One queue at one moment: ids waiting, ids popped but not begun, keys of workers, executions begun."""

    waiting: set[str]
    popped: set[str]
    workers: set[str]
    executions: list[tuple[str, str]]


class RqQueue:
    """The `JobQueue` of a server, on rq. Blocking calls go one by one through a thread beside the loop.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        prefix: what all keys start with.
        function: dotted path of what fork workers call.
    """

    def __init__(self, url: str, prefix: str = "chime", *, function: str = ADVANCE) -> None:
        self._connection = rq_connection(url, prefix)
        self._prefix, self._function, self._where = prefix, function, f"{redacted(url)}, job queue"
        self._queues: dict[JobKind, Queue] = {kind: rq_queue(kind, self._connection) for kind in QUEUES}
        self._thread = CapacityLimiter(1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; what is queued stays."""
        await self._call(self._connection.close)

    async def enqueue(self, job: Job, timeout_s: float) -> bool:
        """Queue `job` unless it is queued, running, or failed less than five minutes ago; whether it was new.

        One entry whatever happens to replies; where the reply to the first try was lost, False is the answer.

        Raises:
            Unreachable: the server does not answer.
        """
        return await self._call(lambda: self._enqueue(job, timeout_s))

    async def lost(self, jobs: Iterable[Job]) -> list[Job]:
        """Those of `jobs` that are neither waiting in a queue nor held by a live worker.

        A job that ended meanwhile counts as lost: ask the log first.

        Raises:
            Unreachable: the server does not answer.
        """
        wanted = {job_id(job): job for job in jobs}
        return await self._call(lambda: self._lost(wanted)) if wanted else []

    async def forget(self, run: RunId, *, dry_run: bool = False) -> int:
        """Remove every trace of the run's jobs; how many jobs there were.

        Raises:
            Unreachable: the server does not answer.
        """
        return await self._call(lambda: self._forget(run, dry_run))

    async def depths(self) -> dict[JobKind, int]:
        """How many jobs wait in each queue.

        Raises:
            Unreachable: the server does not answer.
        """
        return await self._call(lambda: {kind: len(queue) for kind, queue in self._queues.items()})

    async def _call(self, call: Callable[[], _T]) -> _T:
        with our_errors(self._where):
            return await to_thread.run_sync(call, limiter=self._thread)

    def _enqueue(self, job: Job, timeout_s: float) -> bool:
        try:
            self._queues[job.kind].enqueue_call(
                self._function,
                args=[job.kind, job.run, job.episode, job.attempt],
                timeout=math.ceil(timeout_s),
                result_ttl=0,
                failure_ttl=FAILURE_TTL_S,
                description=f"{job.kind} {job.run}/episode-{job.episode}",
                job_id=job_id(job),
                unique=True,
            )
        except DuplicateJobError:
            return False
        return True

    def _lost(self, wanted: Mapping[str, Job]) -> list[Job]:
        held: set[str] = set()
        kinds: set[JobKind] = {job.kind for job in wanted.values()}
        for kind in kinds:
            held |= _held(self._connection, self._prefix, _standing(self._queues[kind]), set(wanted))
        return [job for id_, job in wanted.items() if id_ not in held]

    def _forget(self, run: RunId, dry_run: bool) -> int:
        mine = re.compile(rf"(act|diagnose)-{re.escape(run)}-(0|[1-9][0-9]*)-([1-9][0-9]*)")
        keys = {
            key
            for key in self._connection.scan_iter(match=f"{RQ_KEY_PREFIX}:*-{run}-*", count=1000)
            if any(mine.fullmatch(part) for part in key.decode().split(":"))
        }
        ids = {part for key in keys for part in key.decode().split(":") if mine.fullmatch(part)}
        for queue in self._queues.values():
            entries = [*cast("list[bytes]", self._connection.lrange(queue.key, 0, -1)), *self._entries(queue)]
            ids |= {id_ for entry in entries if mine.fullmatch(id_ := _job_part(entry))}
        if not dry_run:
            self._remove(ids, keys)
        return len(ids)

    def _entries(self, queue: Queue) -> list[bytes]:
        """What rq's lists beside the queue hold: job ids, some with an execution's id after a colon."""
        failed = FailedJobRegistry(queue=queue)
        found = [
            *self._connection.lrange(queue.intermediate_queue_key, 0, -1),
            *self._connection.zrange(queue.started_job_registry.key, 0, -1),
            *self._connection.zrange(failed.key, 0, -1),
        ]
        return cast("list[bytes]", found)

    def _remove(self, ids: set[str], keys: set[bytes]) -> None:
        for queue in self._queues.values():
            failed = FailedJobRegistry(queue=queue)
            begun = [entry for entry in self._entries(queue) if _job_part(entry) in ids]
            with self._connection.pipeline() as pipeline:
                for id_ in ids:
                    pipeline.lrem(queue.key, 0, id_)
                    pipeline.lrem(queue.intermediate_queue_key, 0, id_)
                if begun:
                    pipeline.zrem(queue.started_job_registry.key, *begun)
                    pipeline.zrem(failed.key, *begun)
                pipeline.execute()
            if not self._connection.exists(queue.key):
                # Only rq's tools read this list; the next job puts the queue back.
                self._connection.srem(Queue.redis_queues_keys, queue.key)
        if keys:
            self._connection.delete(*keys)


def exists(id_: str, connection: Redis) -> bool:
    """Whether rq still knows a job; false once its run was forgotten."""
    return RqJob.exists(id_, connection=connection)


def sweep(queue: Queue, prefix: str) -> None:
    """Clear away what workers that died left in rq's lists, unless another worker is at it. Blocking.

    Jobs that were begun go to rq's failed ones, where they expire; jobs that were popped only are dropped. rq's own
    sweep of popped jobs leaves a key behind for every job it meets between pop and begin, so it is not used.
    """
    if not queue.acquire_maintenance_lock():
        return
    clean_registries(queue)
    clean_worker_registry(queue)
    standing = _standing(queue)
    orphans = standing.popped - _held(queue.connection, prefix, standing, standing.popped)
    with queue.connection.pipeline() as pipeline:
        for id_ in sorted(orphans):
            pipeline.lrem(queue.intermediate_queue_key, 0, id_)
            pipeline.delete(RqJob.key_for(id_))
        pipeline.execute()
    queue.release_maintenance_lock()  # type: ignore[no-untyped-call]  # rq leaves it untyped


def _standing(queue: Queue) -> _Standing:
    with queue.connection.pipeline() as pipeline:
        pipeline.lrange(queue.key, 0, -1)
        pipeline.lrange(queue.intermediate_queue_key, 0, -1)
        pipeline.smembers(WORKERS_BY_QUEUE_KEY % queue.name)
        pipeline.zrange(queue.started_job_registry.key, 0, -1)
        waiting, popped, workers, begun = pipeline.execute()
    return _Standing(
        waiting={id_.decode() for id_ in waiting},
        popped={id_.decode() for id_ in popped},
        workers={key.decode() for key in workers},
        executions=[(entry.decode().split(":", 1)[0], entry.decode()) for entry in begun],
    )


def _held(connection: Redis, prefix: str, standing: _Standing, wanted: set[str]) -> set[str]:
    """Of `wanted`, what waits or has a live worker.

    Workers are asked after the lists: a job that left its list was claimed in the same step.
    """
    hosts = sorted(key for key in standing.workers if _worker_name(key).startswith(HOST_NAME))
    others = sorted(standing.workers.difference(hosts))
    begun = [(id_, entry) for id_, entry in standing.executions if id_ in wanted - standing.waiting]
    with connection.pipeline(transaction=False) as pipeline:
        for key in hosts:
            pipeline.hkeys(claims_key(prefix, _worker_name(key)))
        for key in others:
            pipeline.exists(key)
        for _, entry in begun:
            pipeline.hget(f"{RQ_KEY_PREFIX}:execution:{entry}", "worker_name")
        answers = pipeline.execute()
    claims, alive = answers[: len(hosts)], answers[len(hosts) : len(hosts) + len(others)]
    runners = answers[len(hosts) + len(others) :]
    held = set(standing.waiting)
    held |= {field.decode().removeprefix("job:") for fields in claims for field in fields}
    held |= {
        id_
        for (id_, _), runner in zip(begun, runners, strict=True)
        if runner and not runner.decode().startswith(HOST_NAME)
    }
    # An ordinary worker pops and begins in two steps; while one lives, what is between belongs to it.
    return held | standing.popped if any(alive) else held


def _job_part(entry: bytes) -> str:
    """The job id of an entry `<job id>` or `<job id>:<execution id>`."""
    return entry.decode().split(":", 1)[0]


def _worker_name(key: str) -> str:
    return key.rsplit(":", 1)[1]
