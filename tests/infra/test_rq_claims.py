"""What a worker claims of a job: as rq's tools read it, gone when the job has ended, and never another worker's."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError
from rq import Queue
from rq.job import Job as RqJob
from rq.job import JobStatus
from rq.registry import StartedJobRegistry

from events.ids import RunId
from infra.rq_claims import HOST_NAME, Claims, TakenJob, claims_key, drain_key
from infra.rq_keys import rq_connection, rq_queue
from infra.rq_queue import RqQueue
from runtime.ports import Attempts, Job

Named = Callable[[str], Claims]


@pytest.fixture
def rq(redis_server: Any, redis_prefix: str) -> Iterator[Redis]:
    """A client with the eyes of rq: `rq:...` is a key of the test's prefix."""
    connection = rq_connection(str(redis_server.url), redis_prefix)
    yield connection
    connection.close()


@pytest.fixture
def act_queue(rq: Redis) -> Queue:
    return rq_queue("act", rq)


@pytest.fixture
async def queue(redis_server: Any, redis_prefix: str) -> AsyncIterator[RqQueue]:
    """Where the tests put jobs."""
    async with RqQueue(str(redis_server.url), redis_prefix) as queue:
        yield queue


@pytest.fixture
def worker(rq: Redis, redis_prefix: str, act_queue: Queue) -> Named:
    """The claims of a worker of that name."""
    return lambda name: Claims(rq, redis_prefix, f"{HOST_NAME}{name}", act_queue, ttl_s=60.0)


@pytest.fixture
def left(redis_server: Any, redis_prefix: str) -> Iterator[Callable[[], list[str]]]:
    """Every key of the test that is there; what was asked for aside, which goes with the run."""
    plain = Redis.from_url(str(redis_server.url), decode_responses=True)

    def found() -> list[str]:
        keys = [str(key).removeprefix(f"{redis_prefix}:") for key in plain.scan_iter(match=f"{redis_prefix}:*")]
        return sorted(key for key in keys if not key.endswith("asked"))

    yield found
    plain.close()


def act(episode: int = 0) -> Job:
    return Job(kind="act", run=RunId("r"), episode=episode)


async def test_what_we_write_of_a_job_is_what_rq_reads(
    queue: RqQueue, rq: Redis, act_queue: Queue, worker: Named, left: Callable[[], list[str]]
) -> None:
    """A begun job looks to rq's own tools as if rq's worker had begun it; an ended or handed back one likewise."""
    await queue.enqueue(act(), 60.0)
    claims = worker("x")
    at = "2026-01-02T03:04:05.000006Z"
    assert [(one.id, one.timeout_s) for one in claims.take(16, at)] == [("act-r-0-1", 60.0)]
    job = RqJob.fetch("act-r-0-1", connection=rq, serializer="json")
    assert (job.get_status(), job.worker_name) == (JobStatus.STARTED, f"{HOST_NAME}x")
    assert job.started_at == datetime.fromisoformat(at)
    assert act_queue.started_job_registry.get_job_ids() == ["act-r-0-1"]
    assert act_queue.job_ids == []
    StartedJobRegistry(queue=act_queue).cleanup()
    assert act_queue.started_job_registry.get_job_ids() == ["act-r-0-1"], "rq's own sweep leaves it to us"
    assert claims.hand_back("act-r-0-1", at, at_front=True)
    job = RqJob.fetch("act-r-0-1", connection=rq, serializer="json")
    assert (job.get_status(), job.worker_name, job.started_at) == (JobStatus.QUEUED, None, None)
    assert (act_queue.job_ids, act_queue.started_job_registry.get_job_ids()) == (["act-r-0-1"], [])
    assert claims.take(16, "2026-01-02T03:04:07.500006Z") == [TakenJob("act-r-0-1", 60.0, 2500)]
    claims.settle(["act-r-0-1"])
    claims.end()
    assert left() == ["rq:queues"]


async def test_claims_that_had_run_out(rq: Redis, queue: RqQueue, worker: Named, redis_prefix: str) -> None:
    """Who renews is told that its claims had run out, also where it has taken something since."""
    late = worker("x")
    await queue.enqueue(act(), 60.0)
    late.renew({}, {})
    assert late.lapsed
    late.renew({}, {})
    assert not late.lapsed
    rq.delete(f"{redis_prefix}:workers:{HOST_NAME}x")
    late.take(1, "now")
    late.renew({"act-r-0-1": "now"}, {})
    assert late.lapsed
    late.end()
    await queue.forget(RunId("r"))


async def test_who_dies_before_it_has_renewed_holds_nothing_for_long(
    rq: Redis, queue: RqQueue, worker: Named, redis_prefix: str
) -> None:
    """A claim expires from the moment a job is taken: nobody else would ever look for the job."""
    claims, key = worker("x"), f"{redis_prefix}:workers:{HOST_NAME}x"
    claims.take(1, "now")
    assert not rq.exists(key), "who has taken nothing claims nothing"
    await queue.enqueue(act(), 60.0)
    claims.take(1, "now")
    assert 0 < int(rq.pttl(key)) <= 60_000  # type: ignore[arg-type]  # an int when sync
    claims.end()
    await queue.forget(RunId("r"))


async def test_what_another_has_taken_over_stays(
    queue: RqQueue, act_queue: Queue, worker: Named, left: Callable[[], list[str]]
) -> None:
    """A worker whose claim is gone, because it hung, ends and hands back nothing of others."""
    hung, other = worker("a"), worker("b")
    await queue.enqueue(act(), 60.0)
    hung.take(1, "then")
    hung.end()
    await queue.discard([act()])
    assert await queue.enqueue(act(), 60.0)
    hung.settle(["act-r-0-1"])
    assert not hung.hand_back("act-r-0-1", "now", at_front=True)
    assert other.take(1, "now") == [TakenJob("act-r-0-1", 60.0)]
    hung.settle(["act-r-0-1"])
    assert not hung.hand_back("act-r-0-1", "now", at_front=True)
    assert act_queue.started_job_registry.get_job_ids() == ["act-r-0-1"], "it is begun, whatever the other says"
    other.settle(["act-r-0-1"])
    other.end()
    assert left() == ["rq:queues"]


async def test_a_job_that_ends_after_its_claim_is_gone_leaves_nothing(
    queue: RqQueue, worker: Named, left: Callable[[], list[str]]
) -> None:
    """Over a slow line the end arrives late: where nobody has taken the job over, it is removed all the same."""
    late = worker("a")
    await queue.enqueue(act(), 60.0)
    late.take(1, "then")
    late.renew({}, {"queue": "chime-act"})
    late.settle(["act-r-0-1"])
    late.end()
    # Its episode is over: it is not asked for any more, so that nobody would look for it.
    await queue.enqueue(act(1), 60.0, Attempts(folded=1))
    assert left() == ["rq:job:act-r-1-1", "rq:queue:chime-act", "rq:queues"]


def test_a_full_server_keeps_what_is_claimed(each_redis_server: Any, redis_prefix: str) -> None:
    """Out of memory, a server lets a live worker's claims live on, says who is to drain, and takes no new worker's."""
    name = f"{HOST_NAME}a"
    connection = rq_connection(str(each_redis_server.url), redis_prefix)
    queue = rq_queue("act", connection)
    claims, longer, other = (
        Claims(connection, redis_prefix, one, queue, ttl_s=ttl_s)
        for one, ttl_s in ((name, 60.0), (name, 600.0), (f"{HOST_NAME}b", 60.0))
    )
    claims.renew({"act-r-1-1": "now"}, {"pid": "1"})
    before = connection.hgetall(claims_key(redis_prefix, name))
    connection.config_set("maxmemory", 1)
    try:
        assert longer.renew({"act-r-1-1": "now"}, {"pid": "1"}) is False
        assert connection.ttl(claims_key(redis_prefix, name)) > 300
        assert connection.hgetall(claims_key(redis_prefix, name)) == before
        with pytest.raises(OutOfMemoryError):
            other.renew({}, {"pid": "2"})
        assert (longer.stale, longer.lapsed) == (True, False)
        connection.config_set("maxmemory", 0)
        connection.hset(drain_key(redis_prefix), name, "ann")
        connection.config_set("maxmemory", 1)
        assert longer.renew({}, {"pid": "1"}) is True
    finally:
        connection.config_set("maxmemory", 0)
    assert longer.renew({}, {"pid": "1"}) is True
    assert longer.stale is False
    assert connection.hget(claims_key(redis_prefix, name), "job:act-r-1-1") is None
    claims.end()
    connection.close()
