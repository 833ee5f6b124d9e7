"""Jobs on rq: one entry whatever happens, lost only when nobody holds them, forgotten without a trace."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis import Redis
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from rq import SimpleWorker
from rq.job import Job as RqJob
from rq.job import JobStatus

from events.errors import BadInput, Unreachable
from events.ids import RunId
from infra import rq_leftovers, rq_standing
from infra.rq_claims import HOST_NAME, Claims
from infra.rq_keys import QUEUES, PrefixedCommands, job_id, job_of, rq_connection, rq_queue
from infra.rq_leftovers import sweep
from infra.rq_queue import ADVANCE, FAILURE_TTL_S
from infra.rq_queue import RqQueue as TheQueue
from runtime.ports import Attempts, Job


@pytest.fixture
def job_server(each_redis_server: Any) -> str:
    """Where a server is: Redis, then Valkey."""
    return str(each_redis_server.url)


@pytest.fixture
def prefix(redis_prefix: str) -> str:
    """A key prefix that no other test has."""
    return redis_prefix


@pytest.fixture
async def queue(job_server: str, prefix: str) -> AsyncIterator[TheQueue]:
    """The queue under test."""
    async with TheQueue(job_server, prefix) as queue:
        yield queue


@pytest.fixture
def rq(job_server: str, prefix: str) -> Iterator[Redis]:
    """A client with the eyes of rq: `rq:...` is a key of the test's prefix."""
    connection = rq_connection(job_server, prefix)
    yield connection
    connection.close()


@pytest.fixture
def plain(job_server: str) -> Iterator[Redis]:
    """A client that sees keys as they are."""
    client = Redis.from_url(job_server, decode_responses=True)
    yield client
    client.close()


def act(episode: int = 0, run: str = "r", attempt: int = 1) -> Job:
    return Job(kind="act", run=RunId(run), episode=episode, attempt=attempt)


def claims(rq: Redis, prefix: str, name: str = f"{HOST_NAME}a", ttl_s: float = 60.0) -> Claims:
    """A host worker known to rq that holds nothing yet."""
    rq.sadd(f"rq:workers:{QUEUES['act']}", f"rq:worker:{name}")
    rq.hset(f"rq:worker:{name}", "state", "idle")
    return Claims(rq, prefix, name, rq_queue("act", rq), ttl_s)


def keys(plain: Redis, prefix: str) -> list[str]:
    return sorted(plain.scan_iter(match=f"{prefix}:*"))  # type: ignore[arg-type]  # redis-py's answer has many types


async def test_a_job_is_ids_only_with_all_limits_explicit(queue: TheQueue, rq: Redis) -> None:
    """The rq library stores ids as JSON, a short description, the time limit, and no result."""
    assert await queue.enqueue(act(3, "my-run", 2), 3600.0)
    job = RqJob.fetch("act-my-run-3-2", connection=rq, serializer="json")
    assert (job.func_name, job.args) == (ADVANCE, ["act", "my-run", 3, 2])
    assert (job.description, job.origin, job.timeout) == ("act my-run/episode-3", "chime-act", 3600)
    assert (job.result_ttl, job.failure_ttl) == (0, FAILURE_TTL_S)
    assert json.loads(job.data) == [ADVANCE, None, ["act", "my-run", 3, 2], {}]
    assert job_of(job.args) == act(3, "my-run", 2)


async def test_a_job_is_as_rq_would_have_queued_it(queue: TheQueue, rq: Redis, prefix: str, plain: Redis) -> None:
    """Every field and key but the times is what rq's own enqueueing writes."""
    await queue.enqueue(act(), 10.0)
    ours = rq.hgetall("rq:job:act-r-0-1")
    left = keys(plain, f"{prefix}:rq")
    await queue.forget(RunId("r"))
    rq_queue("act", rq).enqueue_call(
        ADVANCE, args=["act", "r", 0, 1], timeout=10, result_ttl=0, failure_ttl=FAILURE_TTL_S,
        description="act r/episode-0", job_id="act-r-0-1", unique=True,
    )  # fmt: skip
    theirs = rq.hgetall("rq:job:act-r-0-1")
    assert keys(plain, f"{prefix}:rq") == left
    times = {b"created_at", b"enqueued_at"}
    assert set(ours) == set(theirs)
    assert {name: ours[name] for name in set(ours) - times} == {name: theirs[name] for name in set(theirs) - times}
    await queue.forget(RunId("r"))


async def test_the_same_job_is_queued_once(queue: TheQueue, rq: Redis) -> None:
    """The second enqueue of a job says False and leaves one entry; another attempt is another job."""
    assert await queue.enqueue(act(), 10.0)
    assert not await queue.enqueue(act(), 10.0)
    assert await queue.enqueue(act(attempt=2), 10.0)
    assert rq.lrange("rq:queue:chime-act", 0, -1) == [b"act-r-0-1", b"act-r-0-2"]
    assert await queue.depths() == {"act": 2, "diagnose": 0}


async def test_jobs_are_queued_together(queue: TheQueue, rq: Redis) -> None:
    """Several jobs are one command; one that is there already is passed over, one that has failed is queued again."""
    await queue.enqueue(act(1), 10.0)
    await queue.enqueue(act(2), 10.0)
    rq.lrem("rq:queue:chime-act", 1, "act-r-2-1")  # as of a worker that died with it
    gate = Job(kind="diagnose", run=RunId("r"), episode=4)
    before = int(rq.info("commandstats")["cmdstat_evalsha"]["calls"])  # type: ignore[index]  # a dict when sync
    await queue.enqueue_all({act(t): Attempts(folded=1) for t in (0, 1, 3)} | {gate: Attempts(told=5)}, 10.0)
    assert int(rq.info("commandstats")["cmdstat_evalsha"]["calls"]) == before + 1  # type: ignore[index]  # as above
    await queue.enqueue_all({act(2): Attempts()}, 10.0)
    await queue.enqueue_all({}, 10.0)
    waiting = [b"act-r-1-1", b"act-r-0-1", b"act-r-3-1", b"act-r-2-1"]
    assert rq.lrange("rq:queue:chime-act", 0, -1) == waiting
    assert rq.lrange("rq:queue:chime-diagnose", 0, -1) == [b"diagnose-r-4-1"]
    job = RqJob.fetch("act-r-3-1", connection=rq, serializer="json")
    assert (job.args, job.description) == (["act", "r", 3, 1], "act r/episode-3")
    assert (await queue.asked(RunId("r")))[gate] == Attempts(told=5)


async def test_kinds_have_queues_of_their_own(queue: TheQueue, rq: Redis) -> None:
    """Acting on and diagnosing one episode wait in two queues."""
    await queue.enqueue(act(), 10.0)
    await queue.enqueue(Job(kind="diagnose", run=RunId("r"), episode=0), 10.0)
    assert rq.lrange("rq:queue:chime-diagnose", 0, -1) == [b"diagnose-r-0-1"]


async def test_a_lost_reply_leaves_one_entry(queue: TheQueue, rq: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-py sends the command again when the reply does not come; the queue holds the job once."""
    await queue.enqueue(act(9), 10.0)  # the script is known to the server from here on
    original, lost = AbstractConnection.read_response, []

    def lose_one(self: Any, *args: Any, **kwargs: Any) -> Any:
        reply = original(self, *args, **kwargs)
        if reply == [1] and not lost:
            lost.append(reply)
            self.disconnect()
            raise RedisConnectionError("reply lost")
        return reply

    before = int(rq.info("commandstats")["cmdstat_evalsha"]["calls"])  # type: ignore[index]  # a dict when sync
    # Only the script answers a list, of one job that is new.
    monkeypatch.setattr(AbstractConnection, "read_response", lose_one)
    await queue.enqueue(act(), 10.0)
    monkeypatch.undo()
    assert lost
    assert int(rq.info("commandstats")["cmdstat_evalsha"]["calls"]) == before + 2  # type: ignore[index]  # as above
    assert rq.lrange("rq:queue:chime-act", 0, -1) == [b"act-r-9-1", b"act-r-0-1"]


async def test_what_was_asked_for_outlives_its_jobs(queue: TheQueue, rq: Redis, prefix: str, plain: Redis) -> None:
    """Attempts stay counted whatever becomes of the job, until its episode is over or the run is tidied away."""
    attempts = Attempts(first=2, told=7)
    await queue.enqueue(act(0), 10.0)
    await queue.enqueue(act(3, attempt=2), 10.0, attempts)
    held = claims(rq, prefix)
    held.take(2, "now")
    held.settle(["act-r-0-1"])
    held.end()
    await queue.discard([act(3, attempt=2)])
    assert await queue.asked(RunId("r")) == {act(0): Attempts(), act(3, attempt=2): attempts}
    assert await queue.asked(RunId("r-3")) == {}
    await queue.enqueue(act(4), 10.0, Attempts(folded=3))
    assert set(await queue.asked(RunId("r"))) == {act(3, attempt=2), act(4)}
    claims(rq, prefix).take(1, "now")
    assert await queue.tidy(RunId("r")) == 1
    assert len(await queue.asked(RunId("r"))) == 2, "a job of the run is still held"
    claims(rq, prefix).end()
    assert await queue.runs() == {"r"}
    assert await queue.tidy(RunId("r")) == 0
    assert (await queue.runs(), keys(plain, prefix)) == (set(), [])


async def test_the_newest_tries_count(queue: TheQueue, rq: Redis, prefix: str) -> None:
    """A job that is put in once more, after somebody asked for fresh attempts, is counted as it was last asked for."""
    await queue.enqueue(act(), 10.0, Attempts(told=9))
    claims(rq, prefix).take(1, "now")
    claims(rq, prefix).end()
    await queue.enqueue(act(), 10.0, Attempts(first=1, told=10))
    assert await queue.asked(RunId("r")) == {act(): Attempts(told=10)}


async def test_prefixes_do_not_meet(job_server: str, queue: TheQueue, prefix: str, plain: Redis) -> None:
    """Two prefixes on one server hold the same job each; every key starts with its prefix."""
    async with TheQueue(job_server, f"{prefix}x") as other:
        assert await queue.enqueue(act(), 10.0)
        assert await other.enqueue(act(), 10.0)
        assert await queue.forget(RunId("r")) == 1
        assert await other.lost([act()]) == []
        assert await queue.lost([act()]) == [act()]
    assert keys(plain, prefix) == []
    assert keys(plain, f"{prefix}x") == [
        f"{prefix}x:{key}" for key in ("asked", "rq:job:act-r-0-1", "rq:queue:chime-act", "rq:queues", "{r}:asked")
    ]
    assert not list(plain.scan_iter(match="rq:*"))


async def test_members_that_are_keys_carry_the_prefix(queue: TheQueue, prefix: str, plain: Redis) -> None:
    """The library's own tools, started with RQ_KEY_PREFIX, find queues by the list of queues."""
    await queue.enqueue(act(), 10.0)
    assert plain.smembers(f"{prefix}:rq:queues") == {f"{prefix}:rq:queue:chime-act"}


async def test_what_waits_is_not_lost(queue: TheQueue) -> None:
    """A queued job is held by the queue; one that nobody queued is lost."""
    await queue.enqueue(act(0), 10.0)
    assert await queue.lost([act(0), act(1), act(0, attempt=2)]) == [act(1), act(0, attempt=2)]
    assert await queue.lost([]) == []


@pytest.mark.parametrize(
    ("who", "look"), [("lost", 1), ("enqueue", 1), ("discard", 1), ("sweep", 1), ("sweep", 2), ("sweep", 3)]
)
async def test_what_is_handed_back_while_somebody_looks_is_not_lost(
    queue: TheQueue, rq: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch, who: str, look: int
) -> None:
    """It leaves its worker for the queue after that was read, and before workers are asked: there it waits."""
    await queue.enqueue(act(0), 10.0)
    worker = claims(rq, prefix)
    worker.take(1, "now")
    seen, looks = rq_standing.standing, count(1)

    def standing(one: Any) -> Any:
        found = seen(one)
        if next(looks) == look:
            worker.hand_back("act-r-0-1", "now", at_front=False)
        return found

    for module in (rq_standing, rq_leftovers):
        monkeypatch.setattr(module, "standing", standing)
    match who:
        case "lost":
            assert await queue.lost([act(0)]) == []
        case "sweep":
            rq_leftovers.sweep(rq_queue("act", rq), prefix)
        case "enqueue":
            assert not await queue.enqueue(act(0), 10.0)
        case "discard":
            await queue.discard([act(0)])
    monkeypatch.undo()
    assert await queue.lost([act(0)]) == []
    assert (await queue.depths())["act"] == 1


async def test_many_runs_are_answered_by_one_look(queue: TheQueue, rq: Redis) -> None:
    """Who asks while a look is under way shares the next one, begun after he asked; each gets his own answer."""

    def looks() -> int:
        # Nothing is there of a command that nobody has given yet.
        commands: dict[str, Any] = rq.info("commandstats")  # type: ignore[assignment]  # a dict when sync
        return int(commands.get("cmdstat_lrange", {"calls": 0})["calls"]) // 2

    runs = [f"r-{number}" for number in range(40)]
    for run in runs[::2]:
        await queue.enqueue(act(0, run), 10.0)
    lost, before = dict[str, list[Job]](), looks()

    async def ask(run: str) -> None:
        lost[run] = await queue.lost([act(0, run)])

    async with anyio.create_task_group() as tasks:
        for run in runs:
            tasks.start_soon(ask, run)
    assert lost == {run: [] if place % 2 == 0 else [act(0, run)] for place, run in enumerate(runs)}
    # Twice each, as some are missing.
    assert looks() - before <= 4


async def test_a_look_that_fails_is_tried_again_by_who_is_next(
    queue: TheQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those who share a look the first hears that it failed; the next one looks again."""
    failures, answers = [Unreachable("away")], list[object]()
    held = queue._held

    def failing(wanted: set[str]) -> set[str]:
        if failures:
            raise failures.pop()
        return held(wanted)

    monkeypatch.setattr(queue, "_held", failing)

    async def ask(number: int) -> None:
        try:
            answers.append(await queue.lost([act(number)]))
        except Unreachable as error:
            answers.append(str(error))

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(ask, number)
    assert answers[0] == "away"
    assert answers[1:] == [[act(1)], [act(2)]]


async def test_what_a_live_host_took_is_not_lost(queue: TheQueue, rq: Redis, prefix: str) -> None:
    """From the pop on the job is its worker's, until the worker lets it go or is gone."""
    await queue.enqueue(act(0), 10.0)
    await queue.enqueue(act(1), 10.0)
    held = claims(rq, prefix)
    taken = [held.take(1, "now"), held.take(2, "now"), held.take(2, "now")]
    assert [[one.id for one in some] for some in taken] == [["act-r-0-1"], ["act-r-1-1"], []]
    assert await queue.lost([act(0), act(1)]) == []
    held.settle(["act-r-0-1"])
    assert await queue.lost([act(0), act(1)]) == [act(0)]
    held.end()
    assert await queue.lost([act(0), act(1)]) == [act(0), act(1)]


async def test_a_claim_that_is_not_renewed_expires(queue: TheQueue, rq: Redis, prefix: str) -> None:
    """Popping sets the claim's time to live; the server ends it, whatever the clocks of the machines say."""
    await queue.enqueue(act(), 10.0)
    claims(rq, prefix, ttl_s=500.0).take(1, "now")
    assert 0 < int(rq.pttl(f"{prefix}:workers:host-a")) <= 500_000  # type: ignore[arg-type]  # an integer when sync


async def test_renewing_drops_a_pop_whose_reply_was_lost(queue: TheQueue, rq: Redis, prefix: str) -> None:
    """A worker claims exactly what it knows to hold: a job it never heard of is lost, and found."""
    await queue.enqueue(act(0), 10.0)
    await queue.enqueue(act(1), 10.0)
    held = claims(rq, prefix)
    held.take(2, "now")
    held.renew({"act-r-1-1": "now"}, {"queue": "chime-act"})
    assert await queue.lost([act(0), act(1)]) == [act(0)]


async def test_a_job_between_pop_and_begin_of_an_ordinary_worker_is_held(queue: TheQueue, rq: Redis) -> None:
    """Workers of rq pop first and sign later: while one lives the popped job is its; without any it is lost."""
    await queue.enqueue(act(), 10.0)
    rq.lmove("rq:queue:chime-act", "rq:queue:chime-act:intermediate")
    assert await queue.lost([act()]) == [act()]
    worker = SimpleWorker([rq_queue("act", rq)], connection=rq, serializer="json")
    worker.register_birth()
    assert await queue.lost([act()]) == []
    worker.register_death()
    assert await queue.lost([act()]) == [act()]


async def test_a_job_that_an_ordinary_worker_runs_is_held_while_its_execution_lives(
    queue: TheQueue, rq: Redis, plain: Redis, prefix: str
) -> None:
    """The library's execution record, renewed by the worker's monitor, counts for workers without claims."""
    await queue.enqueue(act(), 10.0)
    worker = SimpleWorker([rq_queue("act", rq)], connection=rq, serializer="json")
    worker.register_birth()
    taken = rq_queue("act", rq).dequeue_any([rq_queue("act", rq)], None, connection=rq, serializer="json")
    assert taken
    worker.prepare_execution(taken[0])
    worker.prepare_job_execution(taken[0], remove_from_intermediate_queue=True)
    assert await queue.lost([act()]) == []
    (execution,) = plain.scan_iter(match=f"{prefix}:rq:execution:*")
    plain.delete(execution)
    assert await queue.lost([act()]) == [act()]


async def test_a_failed_job_is_lost(queue: TheQueue, rq: Redis) -> None:
    """A job that rq keeps for its traceback is neither waiting nor running."""
    await queue.enqueue(act(), 10.0)
    job = RqJob.fetch("act-r-0-1", connection=rq, serializer="json")
    rq.lpop("rq:queue:chime-act")
    job.set_status(JobStatus.FAILED)
    job.failed_job_registry.add(job, ttl=60)
    assert await queue.lost([act()]) == [act()]


async def test_forgetting_a_run_leaves_no_key_of_it(queue: TheQueue, rq: Redis, prefix: str, plain: Redis) -> None:
    """Waiting, popped, running and failed jobs go with all their records; runs with similar names stay."""
    for episode in range(4):
        await queue.enqueue(act(episode, "a"), 10.0)
    await queue.enqueue(Job(kind="diagnose", run=RunId("a"), episode=7), 10.0)
    others = [act(2, "a-1"), act(0, "a-0-1"), act(0, "b-a")]
    for other in others:
        await queue.enqueue(other, 10.0)
    worker = SimpleWorker([rq_queue("act", rq)], connection=rq, serializer="json")
    worker.register_birth()
    held = claims(rq, prefix, worker.name)
    ours, theirs = (
        held.take(1, "now"),
        rq_queue("act", rq).dequeue_any([rq_queue("act", rq)], None, connection=rq, serializer="json"),
    )
    assert theirs
    job, _ = theirs
    execution = worker.prepare_execution(job)
    worker.prepare_job_execution(job, remove_from_intermediate_queue=True)
    error = ValueError("for the record")
    worker._finalize_failure(job, worker.queues[0], execution, (type(error), error, None))
    assert [*ours, *held.take(1, "now")]
    worker.register_death()
    held.end()

    assert await queue.forget(RunId("a"), dry_run=True) == 5
    assert await queue.forget(RunId("a")) == 5
    assert await queue.forget(RunId("a")) == 0
    assert await queue.lost(others) == []
    left = keys(plain, prefix)
    assert not [key for key in left if re.search(r":(act|diagnose)-a-\d+-\d+(:|$)", key)]
    assert [key for key in left if ":job:" in key] == sorted(f"{prefix}:rq:job:{job_id(other)}" for other in others)
    assert not [key for key in left if "wip" in key or "failed" in key or "result" in key or "execution" in key]
    for run in ("a-1", "a-0-1", "b-a"):
        assert await queue.forget(RunId(run)) == 1
    plain.delete(f"{prefix}:rq:worker:{worker.name}", f"{prefix}:rq:workers:chime-act")
    assert keys(plain, prefix) == []


async def test_a_sweep_drops_what_died_between_pop_and_begin_only(
    queue: TheQueue, rq: Redis, prefix: str, plain: Redis
) -> None:
    """A popped or begun job without a live owner goes; claimed and waiting ones stay; no key of the sweep remains."""
    for episode in range(3):
        await queue.enqueue(act(episode), 10.0)
    rq.lmove("rq:queue:chime-act", "rq:queue:chime-act:intermediate")
    claims(rq, prefix).take(1, "now")
    await queue.enqueue(act(3), 10.0)
    dead = claims(rq, prefix, f"{HOST_NAME}b")
    rq.lmove("rq:queue:chime-act", "rq:queue:chime-act", "RIGHT", "LEFT")
    assert [one.id for one in dead.take(1, "now")] == ["act-r-3-1"]
    dead.end()
    sweep(rq_queue("act", rq), prefix)
    assert rq.zrange("rq:wip:chime-act", 0, -1) == [b"act-r-1-1:host"]
    assert [key for key in keys(plain, prefix) if not key.endswith(":asked")] == sorted(
        [f"{prefix}:rq:{key}" for key in ("job:act-r-1-1", "job:act-r-2-1", "queue:chime-act", "queues")]
        + [f"{prefix}:rq:wip:chime-act", f"{prefix}:workers:host-a"]
        + [f"{prefix}:rq:worker:host-a", f"{prefix}:rq:workers:chime-act"]
    )


async def test_a_sweep_moves_what_died_running_to_the_failed(
    queue: TheQueue, rq: Redis, prefix: str, plain: Redis
) -> None:
    """An execution that nobody renewed becomes a failed job, which expires."""
    await queue.enqueue(act(), 10.0)
    rq_queue("act", rq).dequeue_any([rq_queue("act", rq)], None, connection=rq, serializer="json")
    worker = SimpleWorker([rq_queue("act", rq)], connection=rq, serializer="json")
    job = RqJob.fetch("act-r-0-1", connection=rq, serializer="json")
    execution = worker.prepare_execution(job)
    worker.prepare_job_execution(job, remove_from_intermediate_queue=True)
    rq.zadd("rq:wip:chime-act", {execution.composite_key: 1})
    sweep(rq_queue("act", rq), prefix)
    assert plain.zrange(f"{prefix}:rq:failed:chime-act", 0, -1) == ["act-r-0-1"]
    assert not plain.exists(f"{prefix}:rq:wip:chime-act")
    assert 0 < int(plain.ttl(f"{prefix}:rq:job:act-r-0-1")) <= FAILURE_TTL_S  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("kind", ["act", "diagnose"])
def test_ids_are_distinct_where_run_names_end_in_numbers(kind: Any) -> None:
    """Run `a`, episode 1, attempt 3 is not run `a-1`, whatever follows; rq accepts the characters."""
    jobs = [
        Job(kind=kind, run=RunId(run), episode=e, attempt=n)
        for run in ("a", "a-1", "a-1-1")
        for e in (0, 1)
        for n in (1, 3)
    ]
    ids = {job_id(job) for job in jobs}
    assert len(ids) == len(jobs)
    for id_ in ids:
        RqJob(id=id_, connection=Redis())


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["act", "r", 0],
        ["walk", "r", 0, 1],
        ["act", "R!", 0, 1],
        ["act", "r", -1, 1],
        ["act", "r", 0, 0],
        ["act", 1, 0, 1],
    ],
)
def test_foreign_arguments_are_refused(args: list[Any]) -> None:
    """A job that somebody else put into our queue has other arguments than (kind, run, episode, attempt)."""
    with pytest.raises(BadInput):
        job_of(args)


def test_only_rq_keys_are_rewritten() -> None:
    """Text and bytes that start like rq's keys get the prefix, once; passwords, channels and our own keys do not."""
    packer = PrefixedCommands("{p}")
    assert b"".join(packer.pack("DEL", "rq:a", b"rq:b", "{p}:rq:c", "{p}:workers:d", "xrq:e")) == (
        b"*6\r\n$3\r\nDEL\r\n$8\r\n{p}:rq:a\r\n$8\r\n{p}:rq:b\r\n$8\r\n{p}:rq:c\r\n$13\r\n{p}:workers:d\r\n$5\r\nxrq:e\r\n"
    )
    assert b"".join(packer.pack("AUTH", "rq:name", "rq:password")).count(b"{p}") == 0
    assert b"".join(packer.pack("SUBSCRIBE", "rq:pubsub:x")).count(b"{p}") == 0


@pytest.mark.parametrize("wrong", ["", "a b", "a*", "a[1]"])
def test_a_prefix_that_rq_or_a_pattern_would_misread_is_refused(wrong: str) -> None:
    """Only the characters that rq allows."""
    with pytest.raises(BadInput, match="prefix"):
        rq_connection("redis://localhost", wrong)


def test_a_url_that_is_none_is_refused() -> None:
    """The error names what is wrong, not redis-py."""
    with pytest.raises(BadInput, match="URL"):
        rq_connection("localhost:6379", "chime")


async def test_a_dead_server_is_unreachable(tmp_path: Path) -> None:
    """Every call says so in one error of ours."""
    async with TheQueue(f"unix://{tmp_path}/none") as queue:
        with pytest.raises(Unreachable, match="job queue"):
            await queue.enqueue(act(), 1.0)
        with pytest.raises(Unreachable):
            await queue.lost([act()])
        with pytest.raises(Unreachable):
            await queue.forget(RunId("r"))
