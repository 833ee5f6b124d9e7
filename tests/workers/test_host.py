"""The worker that hosts many episodes on one loop: deadlines, failures, signals, deaths; the rq hooks it uses."""

import inspect
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
import structlog
from anyio import Event, create_task_group, fail_after
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError
from rq import SimpleWorker
from rq.worker import BaseWorker
from structlog.testing import capture_logs

from events.errors import Unreachable
from events.ids import RunId
from infra import rq_leftovers, rq_standing
from infra.rq_claims import HOST_NAME, Claims, TakenJob
from infra.rq_keys import rq_connection, rq_queue
from infra.rq_leftovers import remove_dead_workers
from infra.rq_queue import RqQueue
from runtime.ports import Job
from workers.host import Advance, HostWorker

LIMIT_S = 120


@pytest.fixture
def job_server(redis_server: Any) -> str:
    """Where a server is."""
    return str(redis_server.url)


@pytest.fixture
def prefix(redis_prefix: str) -> str:
    """A key prefix that no other test has."""
    return redis_prefix


@pytest.fixture
async def queue(job_server: str, prefix: str) -> AsyncIterator[RqQueue]:
    """Where the tests put jobs."""
    async with RqQueue(job_server, prefix) as queue:
        yield queue


@pytest.fixture
def plain(job_server: str) -> Iterator[Redis]:
    """A client that sees keys as they are."""
    client = Redis.from_url(job_server, decode_responses=True)
    yield client
    client.close()


class Bodies:
    """The bodies of a host's jobs: each says that it began, then waits for `release`."""

    def __init__(self) -> None:
        self.release = Event()
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.unwound: list[int] = []
        self.threads: set[int] = set()
        self._changed = Event()
        self.open = False

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[Advance]:
        self.open = True
        yield self.advance
        self.open = False

    async def advance(self, job: Job) -> None:
        assert self.open
        self.threads.add(threading.get_ident())
        self.begun.append(job.episode)
        self._tell()
        try:
            if job.run == "broken":
                raise ValueError(f"episode {job.episode}")
            await self.release.wait()
            self.ended.append(job.episode)
        finally:
            self.unwound.append(job.episode)
            self._tell()

    async def until_begun(self, n: int) -> None:
        await self._until(lambda: len(self.begun) >= n)

    async def until_unwound(self, n: int) -> None:
        await self._until(lambda: len(self.unwound) >= n)

    async def _until(self, condition: Any) -> None:
        with fail_after(LIMIT_S):
            while not condition():
                await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = Event()


def act(episode: int = 0, run: str = "r") -> Job:
    return Job(kind="act", run=RunId(run), episode=episode)


def host(url: str, prefix: str, bodies: Bodies, **options: Any) -> HostWorker:
    # Claims that last for minutes: where this process stands still, nobody is to take its worker for dead.
    options = {"beat_s": 60.0, "poll_s": 0.01, "grace_s": 600.0, **options}
    return HostWorker("act", url, prefix, bodies.lifespan, **options)


def keys(plain: Redis, prefix: str) -> list[str]:
    """Beside what the run keeps of what was asked for: that outlives jobs, and goes with the run."""
    found = cast("Iterator[str]", plain.scan_iter(match=f"{prefix}:*"))
    return sorted(key for key in found if not key.endswith(":asked"))


async def eventually(condition: Callable[[], Awaitable[Any]]) -> Any:
    """What `condition` gives once that is true; Redis tells nobody, so it is asked."""
    with fail_after(LIMIT_S):
        while True:
            if found := await condition():
                return found
            await anyio.sleep(0.01)


async def test_many_jobs_share_one_loop(queue: RqQueue, job_server: str, prefix: str, plain: Redis) -> None:
    """Sixteen jobs are under way at once in one thread, the seventeenth waits; afterwards nothing of them is left."""
    bodies = Bodies()
    for episode in range(17):
        await queue.enqueue(act(episode), 60.0)
    worker = host(job_server, prefix, bodies)
    async with create_task_group() as group:
        group.start_soon(worker.serve)
        await bodies.until_begun(16)
        assert await queue.depths() == {"act": 1, "diagnose": 0}
        assert await queue.lost([act(episode) for episode in range(17)]) == []
        bodies.release.set()
        await bodies.until_unwound(17)
        worker.stop()
    assert sorted(bodies.ended) == list(range(17))
    assert bodies.threads == {threading.get_ident()}
    assert worker.ended == 17
    assert not bodies.open
    assert keys(plain, prefix) == [f"{prefix}:rq:queues"]
    assert await queue.forget(RunId("r")) == 0
    assert keys(plain, prefix) == []


async def test_a_job_over_its_limit_is_cancelled_and_unwinds(
    queue: RqQueue, job_server: str, prefix: str, plain: Redis
) -> None:
    """The deadline cancels the body, its `finally` runs, a dead letter says so, the host goes on."""
    bodies = Bodies()
    await queue.enqueue(act(0), 0.5)  # rq counts whole seconds: 1
    worker = host(job_server, prefix, bodies)
    with capture_logs() as lines:
        async with create_task_group() as group:
            group.start_soon(worker.serve)
            await bodies.until_unwound(1)
            await queue.enqueue(act(1), 60.0)
            await bodies.until_begun(2)
            bodies.release.set()
            worker.stop()
    assert (bodies.ended, worker.ended) == ([1], 2)
    (line,) = [line for line in lines if line["event"] == "job failed"]
    assert line["job_id"] == "act-r-0-1"
    assert "overran" in str(line["exc_info"])
    (letter,) = [json.loads(one) for one in plain.lrange(f"{prefix}:{{r}}:failures", 0, -1)]
    assert (letter["error"], letter["episode"]) == ("JobTimeoutException", 0)
    assert await queue.lost([act(0)]) == [act(0)]
    assert [key for key in keys(plain, prefix) if ":job:" in key] == []


async def test_a_job_that_raises_is_logged_once_and_leaves_nothing(
    queue: RqQueue, job_server: str, prefix: str, plain: Redis
) -> None:
    """An exception ends its job and nothing else."""
    bodies = Bodies()
    bodies.release.set()
    await queue.enqueue(act(0, "broken"), 60.0)
    await queue.enqueue(act(1), 60.0)
    with capture_logs() as lines:
        await host(job_server, prefix, bodies).serve(burst=True)
    assert bodies.ended == [1]
    assert [line["log_level"] for line in lines if line["event"] == "job failed"] == ["error"]
    await queue.tidy(RunId("broken"))
    assert keys(plain, prefix) == []


async def test_a_foreign_job_fails_alone(job_server: str, prefix: str, plain: Redis) -> None:
    """A job that is none of ours never reaches the body."""
    bodies = Bodies()
    connection = rq_connection(job_server, prefix)
    rq_queue("act", connection).enqueue_call("os.system", args=["true"], job_id="foreign", failure_ttl=60)
    with capture_logs() as lines:
        await host(job_server, prefix, bodies).serve(burst=True)
    assert bodies.begun == []
    assert [line["job_id"] for line in lines if line["event"] == "job failed"] == ["foreign"]
    assert [key for key in keys(plain, prefix) if "foreign" in key] == []
    connection.close()


async def test_an_id_without_a_job_is_passed_over(queue: RqQueue, job_server: str, prefix: str, plain: Redis) -> None:
    """An id whose job was deleted meanwhile leaves the queue and its list of popped jobs."""
    bodies = Bodies()
    bodies.release.set()
    plain.rpush(f"{prefix}:rq:queue:chime-act", "act-gone-0-1")
    await queue.enqueue(act(), 60.0)
    await host(job_server, prefix, bodies).serve(burst=True)
    assert bodies.ended == [0]
    assert not plain.exists(f"{prefix}:rq:queue:chime-act:intermediate")


async def test_stopping_finishes_what_runs_and_takes_no_more(queue: RqQueue, job_server: str, prefix: str) -> None:
    """After `stop` running jobs end by themselves; what waits goes on waiting."""
    bodies = Bodies()
    worker = host(job_server, prefix, bodies, slots=2)
    for episode in range(3):
        await queue.enqueue(act(episode), 60.0)
    async with create_task_group() as group:
        group.start_soon(worker.serve)
        await bodies.until_begun(2)
        worker.stop()
        bodies.release.set()
    assert sorted(bodies.ended) == [0, 1]
    assert await queue.depths() == {"act": 1, "diagnose": 0}


async def test_the_last_one_out_clears_the_dead_away(job_server: str, prefix: str, plain: Redis) -> None:
    """A worker that ends takes the records of those that were killed with it."""
    connection = rq_connection(job_server, prefix)
    dead = SimpleWorker([rq_queue("act", connection)], name=f"{HOST_NAME}dead", connection=connection)
    dead.register_birth()
    await host(job_server, prefix, Bodies()).serve(burst=True)
    assert keys(plain, prefix) == []
    connection.close()


@pytest.mark.parametrize("how", ["grace is over", "second stop", "cancelled from outside"])
async def test_what_does_not_finish_is_handed_back(
    queue: RqQueue, job_server: str, prefix: str, plain: Redis, how: str
) -> None:
    """A cancelled job unwinds, goes to the head of the queue as the same job, and another worker runs it."""
    bodies = Bodies()
    worker = host(job_server, prefix, bodies, slots=1, grace_s=0.0 if how == "grace is over" else 600.0)
    await queue.enqueue(act(0), 60.0)
    await queue.enqueue(act(1), 60.0)
    async with create_task_group() as group:
        group.start_soon(worker.serve)
        await bodies.until_begun(1)
        if how == "cancelled from outside":
            group.cancel_scope.cancel()
        else:
            worker.stop()
        if how == "second stop":
            worker.stop()
    assert (bodies.ended, bodies.unwound) == ([], [0])
    assert plain.lrange(f"{prefix}:rq:queue:chime-act", 0, -1) == ["act-r-0-1", "act-r-1-1"]
    assert plain.hget(f"{prefix}:rq:job:act-r-0-1", "status") == "queued"
    assert not [key for key in keys(plain, prefix) if "wip" in key or "execution" in key or "worker" in key]
    again = Bodies()
    again.release.set()
    await host(job_server, prefix, again).serve(burst=True)
    assert sorted(again.ended) == [0, 1]


async def test_a_job_of_a_forgotten_run_is_not_handed_back(
    queue: RqQueue, job_server: str, prefix: str, plain: Redis
) -> None:
    """A run that is deleted while its job runs does not come back with the job."""
    bodies = Bodies()
    worker = host(job_server, prefix, bodies, grace_s=0.0)
    await queue.enqueue(act(), 60.0)
    async with create_task_group() as group:
        group.start_soon(worker.serve)
        await bodies.until_begun(1)
        assert await queue.forget(RunId("r")) == 1
        worker.stop()
    assert bodies.unwound == [0]
    assert keys(plain, prefix) == []


async def test_a_moment_without_redis_is_waited_out(
    queue: RqQueue, job_server: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host says once that Redis is away, and goes on when it answers."""
    bodies = Bodies()
    bodies.release.set()
    worker = host(job_server, prefix, bodies)
    original, failures = worker._claims.take, iter([RedisConnectionError("away"), RedisConnectionError("away")])

    def take(count: int, since: str) -> list[TakenJob]:
        error = next(failures, None)
        if error:
            raise error
        return original(count, since)

    monkeypatch.setattr(worker._claims, "take", take)
    await queue.enqueue(act(), 60.0)
    with capture_logs() as lines:
        await worker.serve(burst=True)
    assert bodies.ended == [0]
    said = [line["event"] for line in lines if line["event"].startswith("redis")]
    assert said == ["redis unreachable, waiting for it", "redis answers again"]


async def test_a_server_that_takes_no_beats_is_said_once(
    job_server: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a server refuses what the host says, one line tells of it, and another one of the next time."""
    bodies = Bodies()
    # It looks into its queue once, which renews its claims too where they are due.
    worker = host(job_server, prefix, bodies, beat_s=0.02, poll_s=600.0)
    original, beats = worker._claims.renew, list[bool]()
    refused = [False, True, True, True, False, False, True, True, False]

    def renew(*facts: Any) -> bool:
        beats.append(len(beats) < len(refused) and refused[len(beats)])
        if beats[-1]:
            raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")
        return original(*facts)

    async def all_beaten() -> bool:
        return len(beats) > len(refused)

    monkeypatch.setattr(worker._claims, "renew", renew)
    with capture_logs() as lines:
        async with create_task_group() as group:
            group.start_soon(worker.serve)
            await eventually(all_beaten)
            worker.stop()
    assert [line["event"] for line in lines].count("redis did not take a worker's note") == 2


@pytest.fixture
def full(own_redis_server: Any) -> Iterator[Redis]:
    """A client of a server of the test's own that is over its maxmemory."""
    with Redis.from_url(own_redis_server.url, decode_responses=True) as client:
        client.config_set("maxmemory", 1)
        yield client
        client.config_set("maxmemory", 0)


async def test_a_full_server_is_waited_for_at_the_start(own_redis_server: Any, full: Redis) -> None:
    """A worker that is started on a full server says so once, waits for room, and then works as ever."""
    bodies = Bodies()
    bodies.release.set()
    # Its beats come quickly, so that many are refused before there is room.
    worker = host(own_redis_server.url, "p", bodies, beat_s=0.05)
    refused, original = list[int](), worker._renew

    def renew() -> bool:
        refused.append(1)
        return original()

    worker._renew = renew  # type: ignore[method-assign]  # counts what it passes on

    async def often_refused() -> bool:
        return len(refused) > 3

    async def ended() -> bool:
        return worker.ended == 1

    with capture_logs() as lines:
        async with create_task_group() as group:
            group.start_soon(worker.serve)
            await eventually(often_refused)
            assert full.keys("p:*") == []
            full.config_set("maxmemory", 0)
            async with RqQueue(own_redis_server.url, "p") as queue:
                await queue.enqueue(act(), 60.0)
            await eventually(ended)
            worker.stop()
    told = [line for line in lines if "full" in line["event"]]
    assert [line["event"] for line in told] == ["server full, waiting for room"]
    assert "give it more memory" in told[0]["reason"]
    assert "Command #" not in told[0]["reason"]


async def test_a_worker_that_waits_for_room_can_be_stopped(own_redis_server: Any, full: Redis) -> None:
    """Whoever stops a worker whose server is still full need not kill it, and it has written nothing."""
    worker = host(own_redis_server.url, "p", Bodies())

    async def waits() -> bool:
        return any(line["event"] == "server full, waiting for room" for line in lines)

    with capture_logs() as lines:
        async with create_task_group() as group:
            group.start_soon(worker.serve)
            await eventually(waits)
            worker.stop()
    assert full.keys("p:*") == []


async def test_beats_keep_a_job_held(queue: RqQueue, job_server: str, prefix: str, plain: Redis) -> None:
    """A job is held for as long as its host beats, past the life of a single claim; its claims name the process."""
    bodies = Bodies()
    worker = host(job_server, prefix, bodies, beat_s=0.02)
    await queue.enqueue(act(), 60.0)
    async with create_task_group() as group:
        group.start_soon(worker.serve)
        await bodies.until_begun(1)

        async def held() -> bool:
            return await queue.lost([act()]) == []

        for _ in range(20):
            await anyio.sleep(0.02)
            await eventually(held)  # on a loaded machine a beat may come late, but it comes

        async def claims() -> dict[str, str]:
            return dict(plain.hgetall(f"{prefix}:workers:{worker.name}"))  # type: ignore[arg-type]  # a dict when sync

        facts = await eventually(claims)
        assert (facts["queue"], facts["pid"], facts["slots"]) == ("chime-act", str(os.getpid()), "16")
        assert set(facts) == {"queue", "host", "pid", "slots", "since", "state", "ttl_ms", "job:act-r-0-1"}
        bodies.release.set()
        worker.stop()


async def test_a_host_that_was_taken_for_dead_is_seen_again(
    queue: RqQueue, job_server: str, prefix: str, plain: Redis
) -> None:
    """Its claims had run out and it was cleared away: a moment later rq knows it again, with what it holds."""
    bodies = Bodies()
    worker = host(job_server, prefix, bodies, beat_s=0.02)
    await queue.enqueue(act(), 60.0)
    async with create_task_group() as group:
        group.start_soon(worker.serve)
        await bodies.until_begun(1)
        with rq_connection(job_server, prefix) as rq:

            def cleared_away() -> None:
                plain.delete(f"{prefix}:workers:{worker.name}")
                remove_dead_workers(rq_queue("act", rq), prefix)
                assert not plain.exists(f"{prefix}:rq:worker:{worker.name}")

            # In the worker's own thread: it cannot say meanwhile that it lives.
            await worker._call(cleared_away)

        async def seen() -> bool:
            names = [one.name for one in await queue.hosts()]
            record = plain.hgetall(f"{prefix}:rq:worker:{worker.name}")
            return names == [worker.name] and {"birth", "queues"} <= set(cast("dict[str, str]", record))

        async def held() -> bool:
            return await queue.lost([act()]) == []

        await eventually(seen)
        await eventually(held)  # a claim lives for a moment only, and on a loaded machine a beat may come late
        bodies.release.set()
        worker.stop()
    assert [key for key in keys(plain, prefix) if "worker" in key] == []


def test_a_host_that_is_seen_again_is_not_cleared_away(
    job_server: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stood still, and wakes up while somebody takes it for dead, keeps its record: its jobs would be lost."""
    with rq_connection(job_server, prefix) as rq:
        queue = rq_queue("act", rq)
        name = f"{HOST_NAME}slept"
        sleeper = SimpleWorker([queue], name=name, connection=rq)
        sleeper.register_birth()
        look = rq_leftovers.dead_workers

        def looked(*given: Any) -> list[str]:
            found = look(*given)
            Claims(rq, prefix, name, queue, ttl_s=60.0).renew({}, {})
            return found

        monkeypatch.setattr(rq_leftovers, "dead_workers", looked)
        remove_dead_workers(queue, prefix)
        assert rq.exists(sleeper.key)
        assert rq_standing.standing(queue).hosts == [f"{prefix}:{sleeper.key}"]
        rq.delete(f"{prefix}:workers:{name}")
        monkeypatch.setattr(rq_leftovers, "dead_workers", look)
        remove_dead_workers(queue, prefix)
        assert not rq.exists(sleeper.key)
        assert rq_standing.standing(queue).hosts == []


async def test_a_birth_that_rq_missed_is_said_again(
    queue: RqQueue, job_server: str, prefix: str, plain: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claims are there again when the server goes away once more: rq hears of the worker with the next beat."""
    worker = host(job_server, prefix, Bodies(), beat_s=0.5)
    record = f"{prefix}:rq:worker:{worker.name}"
    register, missed = worker.register_birth, Event()

    async def known() -> bool:
        return bool(plain.hexists(record, "birth"))

    def miss() -> None:
        monkeypatch.setattr(worker, "register_birth", register)
        anyio.from_thread.run_sync(missed.set)
        raise RedisConnectionError("away")

    # A line with a traceback takes longer to show than claims last.
    with capture_logs():
        async with create_task_group() as group:
            group.start_soon(worker.serve)
            await eventually(known)
            monkeypatch.setattr(worker, "register_birth", miss)
            plain.delete(f"{prefix}:workers:{worker.name}")
            with fail_after(LIMIT_S):
                await missed.wait()
            await eventually(known)
            worker.stop()


async def test_nothing_is_taken_before_claims_are_renewed(
    queue: RqQueue, job_server: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal that the server did not take is none: what is taken after it would count as lost."""
    bodies = Bodies()
    bodies.release.set()
    worker = host(job_server, prefix, bodies, beat_s=600.0)
    done, failed, away, renew = 0, 0, False, worker._claims.renew

    def renewed(*given: Any) -> bool:
        nonlocal done, failed
        if away:
            failed += 1
            raise RedisConnectionError("away")
        done += 1
        return renew(*given)

    def stop_for_long() -> None:
        nonlocal away
        away, worker._renewed = True, -math.inf

    async def begun() -> bool:
        return done > 1  # at the start, and with the first beat; the next one is far away

    async def looked() -> bool:
        return failed > 1 or bool(bodies.begun)

    monkeypatch.setattr(worker._claims, "renew", renewed)
    async with create_task_group() as group:
        group.start_soon(worker.serve)
        await eventually(begun)
        await worker._call(stop_for_long)
        await queue.enqueue(act(), 60.0)
        await eventually(looked)
        assert bodies.begun == []
        away = False
        await bodies.until_unwound(1)
        worker.stop()
    assert bodies.ended == [0]


async def test_lines_inside_a_job_name_it(queue: RqQueue, job_server: str, prefix: str) -> None:
    """Run, episode, attempt, job and worker are bound while a body runs, for that body only."""
    seen: dict[int, dict[str, Any]] = {}

    async def advance(job: Job) -> None:
        await anyio.lowlevel.checkpoint()
        seen[job.episode] = dict(structlog.contextvars.get_contextvars())

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[Advance]:
        yield advance

    await queue.enqueue(act(0), 60.0)
    await queue.enqueue(act(1), 60.0)
    worker = HostWorker("act", job_server, prefix, lifespan, poll_s=0.01)
    await worker.serve(burst=True)
    expected = {"run_id": "r", "attempt": 1, "queue": "act", "worker_id": worker.name}
    for episode in (0, 1):
        waited = seen[episode].pop("queue_wait_ms")
        assert isinstance(waited, int)
        assert waited >= 0
        assert seen[episode] == {**expected, "episode_id": f"episode-{episode}", "job_id": f"act-r-{episode}-1"}


async def test_a_dead_server_is_unreachable(tmp_path: Path) -> None:
    """A worker that cannot start says so in one error of ours."""
    with pytest.raises(Unreachable, match="worker"):
        HostWorker("act", f"unix://{tmp_path}/none", "p", Bodies().lifespan)


HOST = """
import sys
from contextlib import asynccontextmanager
import anyio
from redis import Redis
from workers.host import HostWorker

url, prefix, beat_s = sys.argv[1:]
told, key, go = Redis.from_url(url), f"told-{prefix}", f"go-{prefix}"

async def advance(job):
    try:
        await anyio.to_thread.run_sync(told.rpush, key, f"begun {job.episode}")
        while not await anyio.to_thread.run_sync(told.get, go):
            await anyio.sleep(0.01)
        await anyio.to_thread.run_sync(told.rpush, key, f"ended {job.episode}")
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(told.rpush, key, f"unwound {job.episode}")

@asynccontextmanager
async def lifespan():
    yield advance

HostWorker("act", url, prefix, lifespan, beat_s=float(beat_s), poll_s=0.01, grace_s=600).work()
"""


def told(plain: Redis, prefix: str, what: str) -> None:
    """Wait until a process said `what`."""
    deadline = time.monotonic() + LIMIT_S
    while what not in plain.lrange(f"told-{prefix}", 0, -1):  # type: ignore[operator]  # a list when sync
        assert time.monotonic() < deadline, f"never {what}"
        time.sleep(0.01)


@pytest.fixture
def process(request: pytest.FixtureRequest, job_server: str, prefix: str) -> Iterator[subprocess.Popen[bytes]]:
    """A host worker in a process of its own, whose jobs wait for the key `go`; its parameter is how often it beats."""
    beat_s = getattr(request, "param", 60.0)  # as in `host`
    child = subprocess.Popen([sys.executable, "-c", HOST, job_server, prefix, str(beat_s)])
    yield child
    child.kill()
    child.wait()


async def test_sigterm_drains_and_exits_with_0(
    queue: RqQueue, process: subprocess.Popen[bytes], plain: Redis, prefix: str
) -> None:
    """After the first signal the running job ends, the waiting one waits, the exit code is 0, no key is left."""
    await queue.enqueue(act(0), 60.0)
    await anyio.to_thread.run_sync(told, plain, prefix, "begun 0")
    process.send_signal(signal.SIGTERM)
    plain.set(f"go-{prefix}", 1)
    assert await anyio.to_thread.run_sync(process.wait, LIMIT_S) == 0
    assert plain.lrange(f"told-{prefix}", 0, -1) == ["begun 0", "ended 0", "unwound 0"]
    assert await queue.forget(RunId("r")) == 0
    assert keys(plain, prefix) == []


async def test_a_second_signal_hands_back_at_once(
    queue: RqQueue, process: subprocess.Popen[bytes], plain: Redis, prefix: str
) -> None:
    """Two signals: the job unwinds, goes back to the queue, exit code 0."""
    await queue.enqueue(act(0), 60.0)
    await anyio.to_thread.run_sync(told, plain, prefix, "begun 0")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert await anyio.to_thread.run_sync(process.wait, LIMIT_S) == 0
    assert plain.lrange(f"told-{prefix}", 0, -1) == ["begun 0", "unwound 0"]
    assert await queue.depths() == {"act": 1, "diagnose": 0}
    assert await queue.lost([act(0)]) == []


@pytest.mark.parametrize("process", [0.1], indirect=True)
async def test_a_killed_host_loses_its_job_within_seconds(
    queue: RqQueue, process: subprocess.Popen[bytes], plain: Redis, prefix: str
) -> None:
    """SIGKILL leaves no claim that is renewed: the job is lost, can be queued as another attempt, and forgotten."""
    await queue.enqueue(act(0), 60.0)
    await anyio.to_thread.run_sync(told, plain, prefix, "begun 0")

    async def held() -> bool:
        return await queue.lost([act(0)]) == []

    await eventually(held)  # on a loaded machine a beat may come late, but it comes
    process.kill()

    async def lost() -> list[Job]:
        return await queue.lost([act(0)])

    assert await eventually(lost) == [act(0)]
    assert await queue.enqueue(Job(kind="act", run=RunId("r"), episode=0, attempt=2), 60.0)
    assert await queue.forget(RunId("r")) == 2
    left = [key for key in keys(plain, prefix) if ":worker" not in key and not key.endswith(":queues")]
    assert left == []


async def test_a_fork_worker_runs_the_same_jobs(
    queue: RqQueue, job_server: str, prefix: str, plain: Redis, tmp_path: Path
) -> None:
    """A forking rq worker calls the function with (kind, run, episode, attempt) and leaves nothing."""
    (tmp_path / "forkable.py").write_text(
        "import sys\nfrom redis import Redis\n"
        "def advance(kind, run, episode, attempt):\n"
        "    Redis.from_url(sys.argv[1]).rpush('told-' + sys.argv[2], f'{kind} {run} {episode} {attempt}')\n"
    )
    program = (
        "import sys\nfrom rq import Worker\nfrom infra.rq_keys import rq_connection, rq_queue\n"
        "connection = rq_connection(sys.argv[1], sys.argv[2])\n"
        "Worker([rq_queue('act', connection)], connection=connection, serializer='json').work(burst=True)\n"
    )
    async with RqQueue(job_server, prefix, function="forkable.advance") as forked:
        await forked.enqueue(act(3), 60.0)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", program, job_server, prefix]
    done = await anyio.run_process(command, env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert plain.lrange(f"told-{prefix}", 0, -1) == ["act r 3 1"]
    assert await queue.forget(RunId("r")) == 0
    # rq itself keeps the record of an ended worker for a minute, and its lock on groups until the next sweep.
    passing = [key for key in keys(plain, prefix) if int(plain.ttl(key)) < 0]  # type: ignore[arg-type]  # as above
    assert passing == []


def test_rq_hooks_have_the_signatures_we_call() -> None:
    """Hooks of rq 3.0 take what `HostWorker` hands them."""
    expected = {
        "heartbeat": ["self", "timeout", "pipeline"],
        "set_state": ["self", "state", "pipeline"],
        "register_birth": ["self"],
        "register_death": ["self"],
        "procline": ["self", "message"],
    }
    found = {name: list(inspect.signature(getattr(SimpleWorker, name)).parameters) for name in expected}
    assert found == expected


def test_a_host_is_a_worker_of_rq() -> None:
    """The library's tools see it as one of theirs."""
    assert issubclass(HostWorker, BaseWorker)
