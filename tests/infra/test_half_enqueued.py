"""A job that no list of a queue holds: enqueued in one step, and then taken out of its list by somebody else's hand.

A coordinator that is killed while it enqueues leaves none: the script puts the job and its entry, or neither.
"""

from typing import Any

from redis import Redis

from events.ids import RunId
from infra.rq_keys import QUEUES, job_id, rq_connection, rq_queue
from infra.rq_queue import RqQueue
from runtime.ports import Job

RUN = RunId("r")


async def test_a_finished_run_leaves_no_job_that_no_queue_holds(redis_server: Any, redis_prefix: str) -> None:
    """Of the finished run's jobs nothing stays, whatever list they are in or not; another run's are left alone."""
    url, other = redis_server.url, Job(kind="act", run=RunId("r-1"), episode=18, attempt=2)
    with Redis.from_url(url, decode_responses=True) as plain, rq_connection(url, redis_prefix) as rq:
        async with RqQueue(url, redis_prefix) as queue:
            for kind in QUEUES:
                half = Job(kind=kind, run=RUN, episode=18, attempt=2)
                for job in (half, other):
                    await queue.enqueue(job, 60)
                assert rq_queue(kind, rq).remove(job_id(half)) is not None
            await queue.tidy(RUN)
            keys = set(plain.scan_iter(match=f"{redis_prefix}:rq:job:*"))
            assert keys == {f"{redis_prefix}:rq:job:{job_id(other)}"}
            await queue.forget(RunId("r-1"))
            assert set(plain.scan_iter(match=f"{redis_prefix}:rq:*")) == set()
