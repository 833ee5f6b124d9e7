"""Who holds which job of a queue at one moment, and who works there.

Host workers say so themselves (`infra.rq_claims`). Ordinary rq workers have no claims; rq's own execution record, which
they renew and which expires after about 90 s, counts instead.
"""

from collections.abc import Iterable

from msgspec import Struct
from redis import Redis
from rq import Queue
from rq.defaults import RQ_KEY_PREFIX
from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from infra.rq_claims import HOST_NAME, JOB, REFUSES, TTL_MS, claims_key, drain_key
from infra.rq_keys import job_part


class Standing(Struct, frozen=True):
    """One queue at one moment: ids waiting, ids popped but not begun, keys of workers, executions begun."""

    waiting: set[str]
    popped: set[str]
    workers: set[str]
    #: (job id, `<job id>:<execution id>`)
    executions: list[tuple[str, str]]

    @property
    def hosts(self) -> list[str]:
        """Keys of the workers that claim what they hold, dead ones included."""
        return sorted(key for key in self.workers if worker_name(key).startswith(HOST_NAME))

    @property
    def others(self) -> list[str]:
        """Keys of ordinary rq workers."""
        return sorted(self.workers.difference(self.hosts))


def standing(queue: Queue) -> Standing:
    """How `queue` stands now. Read in the order that a job goes: one that moves meanwhile is seen where it arrives."""
    # No transaction: a server over its maxmemory refuses even reads in one, and just then somebody looks.
    with queue.connection.pipeline(transaction=False) as pipeline:
        pipeline.lrange(queue.key, 0, -1)
        pipeline.lrange(queue.intermediate_queue_key, 0, -1)
        pipeline.smembers(WORKERS_BY_QUEUE_KEY % queue.name)
        pipeline.zrange(queue.started_job_registry.key, 0, -1)
        waiting, popped, workers, begun = pipeline.execute()
    return Standing(
        waiting={id_.decode() for id_ in waiting},
        popped={id_.decode() for id_ in popped},
        workers={key.decode() for key in workers},
        executions=[(job_part(entry), entry.decode()) for entry in begun],
    )


def held(queue: Queue, prefix: str, wanted: Iterable[str]) -> set[str]:
    """Those of `wanted` that wait or have a live worker.

    A job that is handed back goes against the order of a look, and may be missed once: what is missing is looked for
    again.
    """
    missing, there = set(wanted), set[str]()
    for _ in range(2):
        if missing:
            there |= missing & held_at(queue.connection, prefix, standing(queue), missing)
            missing -= there
    return there


def held_at(connection: Redis, prefix: str, found: Standing, wanted: Iterable[str]) -> set[str]:
    """What waited then or has a live worker; of what an ordinary worker began, only `wanted` is looked up.

    Workers are asked after the lists: a job that left its list was claimed in the same step.
    """
    hosts, others, unknown = found.hosts, found.others, set(wanted) - found.waiting
    begun = [(id_, entry) for id_, entry in found.executions if id_ in unknown]
    with connection.pipeline(transaction=False) as pipeline:
        for key in hosts:
            pipeline.hkeys(claims_key(prefix, worker_name(key)))
        for key in others:
            pipeline.exists(key)
        for _, entry in begun:
            pipeline.hget(f"{RQ_KEY_PREFIX}:execution:{entry}", "worker_name")
        answers = pipeline.execute()
    claims, alive = answers[: len(hosts)], answers[len(hosts) : len(hosts) + len(others)]
    runners = answers[len(hosts) + len(others) :]
    there = set(found.waiting)
    there |= {field.decode().removeprefix(JOB) for fields in claims for field in fields}
    there |= {
        id_
        for (id_, _), runner in zip(begun, runners, strict=True)
        if runner and not runner.decode().startswith(HOST_NAME)
    }
    # An ordinary worker pops and begins in two steps; while one lives, what is between belongs to it.
    return there | found.popped if any(alive) else there


def live_others(queue: Queue) -> list[str]:
    """Names of the ordinary rq workers of a queue that live."""
    others = standing(queue).others
    with queue.connection.pipeline(transaction=False) as pipeline:
        for key in others:
            pipeline.exists(key)
        alive = pipeline.execute()
    return [worker_name(key) for key, lives in zip(others, alive, strict=True) if lives]


class HostFacts(Struct, frozen=True, kw_only=True):
    """A live host worker, as it says of itself."""

    name: str
    queue: str
    host: str
    pid: int
    slots: int
    #: UTC, as events have it
    since: str
    #: seconds since it last said that it lives
    beat_age_s: float
    #: asked to finish what runs and end
    draining: bool
    #: job id -> since when
    jobs: dict[str, str]
    #: run -> why this process cannot serve it
    refuses: dict[str, str]


def host_facts(connection: Redis, prefix: str, found: Standing) -> list[HostFacts]:
    """The live host workers of a queue, by name."""
    hosts = found.hosts
    with connection.pipeline(transaction=False) as pipeline:
        for key in hosts:
            pipeline.hgetall(claims_key(prefix, worker_name(key)))
            pipeline.pttl(claims_key(prefix, worker_name(key)))
            pipeline.hexists(drain_key(prefix), worker_name(key))
        answers = iter(pipeline.execute())
    facts = []
    for key, answer, left_ms, draining in zip(hosts, answers, answers, answers, strict=True):
        fields = {name.decode(): value.decode() for name, value in answer.items()}
        if TTL_MS in fields:  # else dead, or so new that it has not said anything yet
            facts.append(_facts(worker_name(key), fields, left_ms, draining=bool(draining)))
    return facts


def _facts(name: str, fields: dict[str, str], left_ms: int, *, draining: bool) -> HostFacts:
    return HostFacts(
        name=name,
        queue=fields["queue"],
        host=fields["host"],
        pid=int(fields["pid"]),
        slots=int(fields["slots"]),
        since=fields["since"],
        beat_age_s=max(0, int(fields[TTL_MS]) - left_ms) / 1000,
        draining=draining or fields.get("state") == "draining",
        jobs={field.removeprefix(JOB): since for field, since in fields.items() if field.startswith(JOB)},
        refuses={field.removeprefix(REFUSES): why for field, why in fields.items() if field.startswith(REFUSES)},
    )


def worker_name(key: str) -> str:
    """The worker's name in rq's key of it."""
    return key.rsplit(":", 1)[1]
