"""Bare rq: a job for each of five stages with a 1 KB argument, each job enqueues the next one; 16 episodes at once.

The worker is rq's SimpleWorker, the cheapest that it has: it forks for no job. `rq_stages.py worker URL` is one.
"""

import subprocess
import sys
from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker, get_current_job
from serving import serve

STAGES = ("retrieved", "planned", "executed", "scored", "diagnosed")
TEXT = "x" * 1000
DONE = "bench:done"


def stage(number: int, text: str) -> None:
    """One stage; puts the next one into the queue."""
    job = get_current_job()
    assert job is not None
    if number + 1 < len(STAGES):
        queue(job.connection).enqueue("rq_stages.stage", number + 1, text, result_ttl=0)
    else:
        job.connection.rpush(DONE, 1)


def queue(connection: Redis) -> Queue:
    """The one queue."""
    return Queue("bench", connection=connection, serializer="json")


class Peer:
    """Puts episodes into the queue, sixteen at once, and waits for their ends."""

    def __init__(self) -> None:
        self._redis: Any = None
        self._worker: Any = None

    def answer(self, request: dict[str, Any]) -> Any:
        """`open` a server and a worker, `run` episodes, `close`."""
        match request["do"]:
            case "open":
                self._redis = Redis.from_url(request["where"])
                command = [sys.executable, __file__, "worker", request["where"]]
                self._worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                return self._worker.pid
            case "run":
                self._episodes(request["episodes"], request["at_once"])
            case "close":
                self._worker.kill()
                self._worker.wait()
        return None

    def _episodes(self, episodes: int, at_once: int) -> None:
        jobs = queue(self._redis)
        for begun in range(episodes + at_once):
            if begun >= at_once and not self._redis.blpop([DONE], timeout=120):
                raise SystemExit("the worker has stopped")
            if begun < episodes:
                jobs.enqueue("rq_stages.stage", 0, TEXT, result_ttl=0)
            elif begun >= episodes + at_once - 1:
                break


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        connection = Redis.from_url(sys.argv[2])
        SimpleWorker([queue(connection)], connection=connection, serializer="json").work(logging_level="ERROR")
    else:
        serve(Peer().answer)
