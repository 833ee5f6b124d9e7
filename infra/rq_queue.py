"""Jobs on rq: enqueued once, found by liveness, forgotten without a trace."""

import math
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Generic, Self, TypeVar, cast

from anyio import CapacityLimiter, Lock, to_thread
from msgspec import Struct
from rq import Queue
from rq.job import Job as RqJob
from rq.job import JobStatus
from rq.serializers import JSONSerializer
from rq.utils import now

from events.ids import RunId
from infra.redis_client import our_errors, redacted
from infra.rq_claims import drain_key
from infra.rq_keys import QUEUES, asked_key, asked_runs_key, job_id, job_named, rq_connection, rq_queue, run_of
from infra.rq_leftovers import (
    dead_workers,
    everywhere,
    listed,
    remove,
    remove_dead_workers,
    remove_empty,
    remove_unheld,
    scattered,
    unknown_drains,
)
from infra.rq_standing import HostFacts, held, held_at, host_facts, live_others, standing, worker_name
from runtime.ports import FIRST_ATTEMPTS, Attempts, Job, JobKind

#: what a fork worker imports and calls with (kind, run, episode, attempt)
ADVANCE = "workers.jobs.advance"

#: how long rq keeps a failed job: long enough to be looked at with rq's own tools, seconds
FAILURE_TTL_S = 300

#: For each job KEYS job, queue, rq's set of queues, what was asked for of the run, the runs with such
#: ARGV how many follow, id, run, episode, `<first> <told>` of its attempts, episodes that are over, fields of the job.
#: Whether each was new.
_PUT = """
local new, a = {}, 1
for k = 1, #KEYS, 5 do
  local following = a + 1 + ARGV[a]
  local id, run, episode, attempts, over = unpack(ARGV, a + 1, a + 5)
  new[#new + 1] = 1 - redis.call('EXISTS', KEYS[k])
  if new[#new] == 1 then
    redis.call('HSET', KEYS[k], unpack(ARGV, a + 6, following - 1))
    redis.call('SADD', KEYS[k + 2], KEYS[k + 1])
    redis.call('RPUSH', KEYS[k + 1], id)
    redis.call('ZREMRANGEBYSCORE', KEYS[k + 3], '-inf', '(' .. over)
    redis.call('ZADD', KEYS[k + 3], episode, id .. ' ' .. attempts)
    redis.call('SADD', KEYS[k + 4], run)
  end
  a = following
end
return new
"""

_T = TypeVar("_T")


class Orphans(Struct, frozen=True, kw_only=True):
    """What belongs to nobody."""

    #: ids of jobs
    jobs: list[str]
    #: names of workers that died
    workers: list[str]
    #: names of workers that are asked to drain and unknown
    drains: list[str]

    def __bool__(self) -> bool:
        return bool(self.jobs or self.workers or self.drains)


class _Batch:
    """Those who ask before a look begins, and what it has found for all of them."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()
        self.found: Any = None
        self.done = False


class _SharedLook(Generic[_T]):
    """One look for all who ask while an earlier one is under way: a coordinator has many runs, and asks for each.

    Args:
        look: what to do for all that is wanted; begun only after it was asked for.
    """

    def __init__(self, look: Callable[[set[str]], Awaitable[_T]]) -> None:
        self._look, self._lock = look, Lock()
        self._gathering = _Batch()

    async def ask(self, wanted: Iterable[str] = ()) -> _T:
        batch = self._gathering
        batch.wanted.update(wanted)
        async with self._lock:
            # Who is next tries again where the one before failed or was cancelled.
            if not batch.done:
                self._gathering = _Batch()
                batch.found = await self._look(batch.wanted)
                batch.done = True
        return cast("_T", batch.found)


class RqQueue:
    """The `JobQueue` of a server, on rq. Blocking calls go one by one through a thread beside the loop.

    Every method raises Unreachable where the server does not answer.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        prefix: what all keys start with.
        function: dotted path of what fork workers call.
    """

    def __init__(self, url: str, prefix: str = "chime", *, function: str = ADVANCE) -> None:
        self._connection = rq_connection(url, prefix)
        self._prefix, self._function, self._where = prefix, function, f"{redacted(url)}, job queue"
        self._script = self._connection.register_script(_PUT)
        self._queues: dict[JobKind, Queue] = {kind: rq_queue(kind, self._connection) for kind in QUEUES}
        self._thread = CapacityLimiter(1)
        self._holding = _SharedLook(lambda wanted: self._call(lambda: self._held(wanted)))
        self._refusing = _SharedLook(lambda _: self._call(self._refusals))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; what is queued stays."""
        await self._call(self._connection.close)

    async def enqueue(self, job: Job, timeout_s: float, attempts: Attempts = FIRST_ATTEMPTS) -> bool:
        """Queue `job` unless it is queued or runs; whether it was new. One that has failed is queued again.

        One entry whatever happens to replies; where the reply to the first try was lost, False is the answer.
        """
        (is_new,) = await self._call(lambda: self._enqueue({job: attempts}, timeout_s))
        return is_new

    async def enqueue_all(self, jobs: Mapping[Job, Attempts], timeout_s: float) -> None:
        """As `runtime.ports.JobQueue.enqueue_all`: one command. One that has failed is queued again."""
        if jobs:
            await self._call(lambda: self._enqueue(jobs, timeout_s))

    async def asked(self, run: RunId) -> dict[Job, Attempts]:
        """As `runtime.ports.JobQueue.asked`."""
        return await self._call(lambda: self._asked(run))

    async def lost(self, jobs: Iterable[Job]) -> list[Job]:
        """Those of `jobs` that are neither waiting in a queue nor held by a live worker.

        A job that ended meanwhile counts as lost: ask the log first.
        """
        wanted = {job_id(job): job for job in jobs}
        there = await self._holding.ask(wanted) if wanted else frozenset()
        return [job for id_, job in wanted.items() if id_ not in there]

    async def discard(self, jobs: Iterable[Job]) -> None:
        """Remove what lost `jobs` have left behind; one that is waiting or held stays."""
        lost = list(jobs)
        if lost:
            await self._call(lambda: self._discard(lost))

    async def refused(self, run: RunId) -> str | None:
        """Why no live worker can serve `run`, where each worker of a queue has said so; None where one may."""
        for refusals in await self._refusing.ask():
            if refusals and all(run in one for one in refusals):
                return refusals[0][run]
        return None

    async def runs(self) -> set[RunId]:
        """As `runtime.ports.JobQueue.runs`."""
        return await self._call(self._runs)

    async def tidy(self, run: RunId) -> int:
        """Remove what the jobs of a finished run have left behind; how many live workers still hold."""
        return await self._call(lambda: self._tidy(run))

    async def forget(self, run: RunId, *, dry_run: bool = False) -> int:
        """Remove every trace of the run's jobs, held or not; how many jobs there were."""
        return await self._call(lambda: self._forget(run, dry_run))

    async def depths(self) -> dict[JobKind, int]:
        """How many jobs wait in each queue."""
        return await self._call(lambda: {kind: len(queue) for kind, queue in self._queues.items()})

    async def oldest_s(self) -> dict[JobKind, float | None]:
        """How long the first job of each queue has waited, seconds; None for an empty queue."""
        return await self._call(lambda: {kind: _waited_s(queue) for kind, queue in self._queues.items()})

    async def others(self) -> dict[JobKind, list[str]]:
        """Names of the ordinary rq workers that live, by queue."""
        return await self._call(lambda: {kind: live_others(queue) for kind, queue in self._queues.items()})

    async def drain(self, workers: Mapping[str, str]) -> None:
        """Ask host workers (name -> who asks) to finish what runs, hand back the rest, and end."""
        if workers:
            fields: dict[Any, Any] = dict(workers)
            await self._call(lambda: self._connection.hset(drain_key(self._prefix), mapping=fields))

    async def orphans(self, served: Container[RunId], *, dry_run: bool) -> Orphans:
        """Remove what belongs to nobody: jobs that are no run's of `served`, records of workers that died or
        are unknown.

        What a live worker holds stays.
        """
        return await self._call(lambda: self._orphans(served, dry_run))

    async def hosts(self) -> list[HostFacts]:
        """The live host workers, act before diagnose."""
        return await self._call(
            lambda: [
                facts
                for queue in self._queues.values()
                for facts in host_facts(self._connection, self._prefix, standing(queue))
            ]
        )

    async def _call(self, call: Callable[[], _T]) -> _T:
        with our_errors(self._where):
            return await to_thread.run_sync(call, limiter=self._thread)

    def _enqueue(self, jobs: Mapping[Job, Attempts], timeout_s: float) -> list[bool]:
        new = self._put(jobs, timeout_s)
        for place, (job, attempts) in enumerate(jobs.items()):
            # rq knows the id: a job that waits or runs, or one that failed, or died with its worker. Where it is put in
            # anew and is there again, another coordinator was faster.
            if not new[place] and not remove_unheld(self._queues[job.kind], self._prefix, [job_id(job)]):
                (new[place],) = self._put({job: attempts}, timeout_s)
        return new

    def _put(self, jobs: Mapping[Job, Attempts], timeout_s: float) -> list[bool]:
        """Each job, in one step, unless its id is known; whether it was not."""
        keys, arguments = list[str](), list[Any]()
        for job, attempts in jobs.items():
            made = self._made(job, timeout_s)
            fields = [part for pair in made.to_dict(include_meta=False).items() for part in pair]
            keys += [made.key, self._queues[job.kind].key, Queue.redis_queues_keys, *self._asked_keys(job.run)]
            head = [made.id, job.run, job.episode, f"{attempts.first} {attempts.told}", attempts.folded]
            arguments += [len(head) + len(fields), *head, *fields]
        return [bool(one) for one in self._script(keys=keys, args=arguments)]

    def _made(self, job: Job, timeout_s: float) -> RqJob:
        """The job in rq's own form."""
        made = RqJob.create(
            self._function,
            args=[job.kind, job.run, job.episode, job.attempt],
            connection=self._connection,
            status=JobStatus.QUEUED,
            timeout=math.ceil(timeout_s),
            result_ttl=0,
            failure_ttl=FAILURE_TTL_S,
            description=f"{job.kind} {job.run}/episode-{job.episode}",
            id=job_id(job),
            origin=self._queues[job.kind].name,
            serializer=JSONSerializer,
        )
        made.enqueued_at = now()
        return made

    def _asked_keys(self, run: RunId) -> list[str]:
        return [asked_key(self._prefix, run), asked_runs_key(self._prefix)]

    def _asked(self, run: RunId) -> dict[Job, Attempts]:
        members = cast("list[bytes]", self._connection.zrange(asked_key(self._prefix, run), 0, -1))
        found: dict[Job, Attempts] = {}
        # The same job with other counts was put in twice: later ones have heard more.
        for told, first, id_ in sorted((int(told), int(first), id_) for id_, first, told in map(bytes.split, members)):
            found[job_named(id_.decode())] = Attempts(first=first, told=told)
        return found

    def _forget_asked(self, run: RunId) -> None:
        own, runs = self._asked_keys(run)
        with self._connection.pipeline() as pipeline:
            pipeline.delete(own)
            pipeline.srem(runs, run)
            pipeline.execute()

    def _runs(self) -> set[RunId]:
        ids = {id_ for queue in self._queues.values() for id_ in listed(queue)}
        asked = cast("set[bytes]", self._connection.smembers(asked_runs_key(self._prefix)))
        return {run for id_ in ids if (run := run_of(id_)) is not None} | {RunId(name.decode()) for name in asked}

    def _held(self, wanted: set[str]) -> set[str]:
        there: set[str] = set()
        for kind, queue in self._queues.items():
            there |= held(queue, self._prefix, [id_ for id_ in wanted if id_.startswith(f"{kind}-")])
        return there

    def _discard(self, jobs: list[Job]) -> None:
        for kind, queue in self._queues.items():
            remove_unheld(queue, self._prefix, [job_id(job) for job in jobs if job.kind == kind])

    def _refusals(self) -> list[list[dict[str, str]]]:
        """For each queue the runs that its workers refuse; none where somebody may serve any."""
        found: list[list[dict[str, str]]] = []
        for queue in self._queues.values():
            there = standing(queue)
            hosts = host_facts(self._connection, self._prefix, there)
            found.append([] if there.others else [one.refuses for one in hosts])
        return found

    def _tidy(self, run: RunId) -> int:
        still = 0
        asked = self._asked(run)
        for kind, queue in self._queues.items():
            ids = {job_id(job) for job in asked if job.kind == kind}
            ids |= {id_ for id_ in listed(queue) if run_of(id_) == run}
            still += len(remove_unheld(queue, self._prefix, ids))
            remove_dead_workers(queue, self._prefix)
            remove_empty(queue)
        if not still:
            self._forget_asked(run)
        return still

    def _orphans(self, served: Container[RunId], dry_run: bool) -> Orphans:
        jobs: set[str] = set()
        workers: set[str] = set()
        drains = unknown_drains(self._connection, self._queues.values(), self._prefix)
        for queue in self._queues.values():
            found = standing(queue)
            ids = {id_ for id_ in listed(queue) | everywhere(queue) if (run := run_of(id_)) and run not in served}
            jobs |= ids - (held_at(self._connection, self._prefix, found, ids) - found.waiting)
            workers |= {worker_name(key) for key in dead_workers(queue, self._prefix)}
            if not dry_run:
                remove(queue, jobs)
                remove_dead_workers(queue, self._prefix)
                remove_empty(queue)
        if not dry_run:
            if drains:
                self._connection.hdel(drain_key(self._prefix), *drains)
            for run in self._runs():
                if run not in served:
                    self._forget_asked(run)
        return Orphans(jobs=sorted(jobs), workers=sorted(workers), drains=drains)

    def _forget(self, run: RunId, dry_run: bool) -> int:
        ids = scattered(self._connection, run)
        for queue in self._queues.values():
            ids |= {id_ for id_ in listed(queue) if run_of(id_) == run}
        if not dry_run:
            for queue in self._queues.values():
                remove(queue, ids)
                remove_empty(queue)
            self._forget_asked(run)
        return len(ids)


def _waited_s(queue: Queue) -> float | None:
    first = cast("bytes | None", queue.connection.lindex(queue.key, 0))
    since = None if first is None else queue.connection.hget(RqJob.key_for(first.decode()), "enqueued_at")
    if since is None:
        return None
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(cast("bytes", since).decode())).total_seconds())
