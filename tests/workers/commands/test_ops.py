"""`chime ops`: a server's queues, workers, coordinators and dead letters, and what an operator does to them."""

import getpass
import re
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from redis import Redis
from rq import SimpleWorker

from events.codec import decode_as
from events.errors import Unreachable
from events.ids import RUN_STREAM, BankVersion, RunId
from events.kinds import Operated
from infra.banks.generations import Generations
from infra.clock import SystemClock
from infra.failures import RedisFailures
from infra.leases import RedisLeases
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.rq_claims import HOST_NAME, Claims
from infra.rq_keys import rq_connection, rq_queue
from infra.rq_queue import RqQueue
from runtime.ports import Job


@pytest.fixture
def rq(redis_server: Any, redis_prefix: str) -> Iterator[Redis]:
    """A client with the eyes of rq."""
    connection = rq_connection(redis_server.url, redis_prefix)
    yield connection
    connection.close()


@pytest.fixture
def worker(rq: Redis, redis_prefix: str) -> str:
    """A live host worker that holds the first act job; its name."""
    queue, name = rq_queue("act", rq), f"{HOST_NAME}here-1-abc"
    SimpleWorker([queue], name=name, connection=rq, serializer="json").register_birth()
    claims = Claims(rq, redis_prefix, name, queue, ttl_s=600.0)
    facts = {"queue": "chime-act", "host": "here", "pid": "1", "slots": "16", "since": "2026-01-01T00:00:00.000000Z"}
    claims.renew({"act-made-1-1": "now"}, facts)
    return name


async def operated(url: str, prefix: str, run: str) -> list[Operated]:
    async with connected(url) as redis:
        stream = await RedisLogStore(redis, prefix, SystemClock(), "test").open(RunId(run)).read_stream(RUN_STREAM)
        return [decode_as(one, Operated) for one in stream if one.kind == "operated"]


def open_run(uploaded: Any, made_run: Any, name: str = "made") -> None:
    """A run whose last episodes are missing."""
    made = made_run(name)
    ended = next(place for place, one in enumerate(made.events) if one.stream == "episode-4")
    made.events = made.events[: ended + 2]
    uploaded(made)


def test_status(chime: Any, uploaded: Any, made_run: Any, redis_server: Any, redis_prefix: str, worker: str) -> None:
    """Queues with their depth, workers with what they hold, the lease with its lag, failures by cause."""
    open_run(uploaded, made_run)

    async def busy() -> None:
        async with connected(redis_server.url) as redis, RqQueue(redis_server.url, redis_prefix) as queue:
            await queue.enqueue(Job(kind="diagnose", run=RunId("made"), episode=4), 60)
            failures = RedisFailures(redis, redis_prefix, SystemClock(), "here")
            for t in (1, 2):
                await failures.record(Job(kind="act", run=RunId("made"), episode=t), Unreachable(f"port {t} is shut"))
            log = RedisLogStore(redis, redis_prefix, SystemClock(), "here").open(RunId("made"))
            await RedisLeases(redis, redis_prefix, "here", ttl_s=600).of(RunId("made"), "me").hold(await log.head() - 3)
            generations = Generations(redis, redis_prefix, "here").of(RunId("made"))
            bank = await generations.begin(1)
            await bank.publish(BankVersion(1))
            await generations.doubt(bank.name, "a row is gone")

    anyio.run(busy)
    data = chime.json("ops")["data"]
    assert [(one["queue"], one["depth"]) for one in data["queues"]] == [("act", 0), ("diagnose", 1)]
    assert data["queues"][0]["oldest_ready_s"] is None
    assert data["queues"][1]["oldest_ready_s"] >= 0
    (one,) = data["workers"]
    assert (one["name"], one["jobs"], one["draining"]) == (worker, {"act-made-1-1": "now"}, False)
    (coordinator,) = data["coordinators"]
    assert (coordinator["run"], coordinator["holder"], coordinator["term"], coordinator["lag"]) == ("made", "me", 1, 3)
    assert (coordinator["bank_lag"], coordinator["bank_doubt"]) == (coordinator["bank_version"] - 1, "a row is gone")
    (letters,) = data["dead_letters"]
    assert (letters["error"], letters["count"]) == ("Unreachable", 2)
    assert letters["episodes"] == ["made/episode-2", "made/episode-1"]
    said = chime("ops")
    for word in (
        worker,
        "me",
        "port 2 is shut",
        "1/16",
        "serving",
        "a row is gone",
        "\n\nqueues\n",
        "\n\ndead letters\n",
    ):
        assert word in said
    chime("run", "delete", "made", "--force")


def test_status_of_a_full_server(chime: Any, uploaded: Any, made_run: Any, redis_server: Any, worker: str) -> None:
    """A server over its maxmemory refuses writes, and is looked at all the same."""
    open_run(uploaded, made_run)
    with Redis.from_url(redis_server.url) as redis:
        redis.config_set("maxmemory", 1)
        try:
            data = chime.json("ops")["data"]
            assert [one["name"] for one in data["workers"]] == [worker]
            ((run, status, reason),) = [(one["run"], one["status"], one["reason"]) for one in data["coordinators"]]
            assert (run, status) == ("made", "open")
            assert reason == f"its intake is stopped: {data['intake']}"
            assert "of its maxmemory" in data["full"]
            assert "is full and refuses writes: it uses" in chime("ops")
            assert chime.json("ops", "orphans", "--dry-run")["data"]["jobs"] == []
        finally:
            redis.config_set("maxmemory", 0)
    chime("run", "delete", "made", "--force")


def test_near_its_maxmemory(chime: Any, uploaded: Any, made_run: Any, redis_server: Any) -> None:
    """Where only intake is stopped, writes are taken, and nothing says otherwise; a look is no line in the log."""
    open_run(uploaded, made_run)
    with Redis.from_url(redis_server.url) as redis:
        redis.config_set("maxmemory", 1000 << 20)
        try:
            data = chime.json("ops", "-s", "intake.memory=0.0001")["data"]
            assert data["full"] is None
            assert data["coordinators"][0]["reason"] == f"its intake is stopped: {data['intake']}"
            assert "its intake is stopped" in chime("ops", "-s", "intake.memory=0.0001").split("\n\n")[0]
            assert "intake_stopped" not in chime.err
            assert chime.json("ops")["data"]["intake"] is None
            assert chime.json("ops")["data"]["coordinators"][0]["reason"] == ""
        finally:
            redis.config_set("maxmemory", 0)
    chime("run", "delete", "made", "--force")


def test_what_a_full_server_cannot_record(
    chime: Any, uploaded: Any, made_run: Any, redis_server: Any, redis_prefix: str, worker: str
) -> None:
    """What an operator asks of a full server is refused with the cause and the ways on; no worker is denied."""
    open_run(uploaded, made_run)
    with Redis.from_url(redis_server.url) as redis:
        redis.config_set("maxmemory", 1)
        try:
            for arguments, said in (
                (("pause", "made"), "it has no room to record the pause"),
                (("requeue", "made"), "it has no room to record the requeue"),
                (("drain", worker), "SIGTERM"),
                (("drain", "unseen"), "worker 'unseen' cannot be seen"),
                (("drain", "--kind", "diagnose"), "no worker can be seen"),
            ):
                chime("ops", *arguments, code=3)
                assert said in chime.err
                assert "give it more memory (maxmemory)" in chime.err
                assert "Command #" not in chime.err
            redis.delete(f"{redis_prefix}:workers:{worker}")
            chime("ops")
            assert "no worker can be seen: a full server takes no heartbeats" in chime.err
        finally:
            redis.config_set("maxmemory", 0)
    assert anyio.run(operated, redis_server.url, redis_prefix, "made") == []
    chime("run", "delete", "made", "--force")


def test_pause_requeue_resume(chime: Any, uploaded: Any, made_run: Any, redis_server: Any, redis_prefix: str) -> None:
    """What is said to a run stands in its log with author and reason; --dry-run says it to nobody."""
    open_run(uploaded, made_run)
    assert "would be paused" in chime("ops", "pause", "made", "--dry-run")
    assert anyio.run(operated, redis_server.url, redis_prefix, "made") == []
    assert "paused" in chime("ops", "pause", "made", "--author", "ann", "--reason", "tea")
    assert "nobody coordinates made now" in chime.err
    assert chime.json("run", "show", "made")["data"]["status"] == "paused"
    chime("ops", "requeue", "made", "--episode", "4")
    chime("ops", "requeue", "made")
    chime("ops", "resume", "made")
    me = getpass.getuser()
    told = anyio.run(operated, redis_server.url, redis_prefix, "made")
    assert [(one.action, one.target, one.author, one.reason) for one in told] == [
        ("pause", "made", "ann", "tea"), ("requeue", "made/episode-4", me, ""), ("requeue", "made", me, ""),
        ("resume", "made", me, ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("requeue", "made", "--episode", "0"), "episode 0 of run made has ended (diagnosed)"),
        (("requeue", "made", "--episode", "77"), "run made has no episode 77 yet"),
        (("pause", "nade"), "no run 'nade'"),
        (("drain",), "which workers?"),
        (("drain", "nobody"), "no live worker 'nobody'"),
    ],
)
def test_what_cannot_be_done(chime: Any, uploaded: Any, made_run: Any, arguments: tuple[str, ...], said: str) -> None:
    """An ended episode, an unknown run, episode or worker: one line, and nothing is written."""
    open_run(uploaded, made_run)
    chime("ops", *arguments, code=2)
    assert said in chime.err


def test_a_finished_run_is_left_alone(chime: Any, uploaded: Any, made_run: Any) -> None:
    """A run that is finished can be neither paused nor resumed."""
    uploaded(made_run("made"))
    for action in ("pause", "resume", "requeue"):
        chime("ops", action, "made", code=2)
        assert f"run made is finished (completed): there is nothing to {action}" in chime.err


def test_drain(chime: Any, uploaded: Any, made_run: Any, worker: str) -> None:
    """A worker asked to drain shows it; a dry run asks nobody; the server remembers who asked."""
    open_run(uploaded, made_run)
    assert f"would drain {worker}" in chime("ops", "drain", "--all", "--dry-run")
    assert chime.json("ops")["data"]["workers"][0]["draining"] is False
    assert chime.json("ops", "drain", "--kind", "diagnose")["data"]["workers"] == []
    chime("ops", "drain", worker, "--author", "ann", "--reason", "new code")
    data = chime.json("ops")["data"]
    assert data["workers"][0]["draining"] is True
    assert [(one["action"], one["target"], one["author"], one["reason"]) for one in data["operations"]] == [
        ("drain", worker, "ann", "new code")
    ]
    said = chime("ops")
    assert "\n\noperations\n" in said
    assert "new code" in said


def test_a_run_that_is_played_is_deleted(chime: Any, uploaded: Any, made_run: Any, worker: str) -> None:
    """Who deletes a run beneath a worker is told that it still writes, and what removes that."""
    open_run(uploaded, made_run)
    assert chime.json("run", "delete", "made", "--dry-run")["data"]["under_way"] == 1
    chime("run", "delete", "made", "--dry-run")
    assert chime.err == "note: 1 job of it is under way\n"
    chime("run", "delete", "made", "--force")
    told = re.fullmatch(r"note: 1 job of it is under way; `chime (.*)` removes what they write.*\n", chime.err)
    assert told
    chime(*told[1].split())


def test_orphans(
    chime: Any,
    uploaded: Any,
    made_run: Any,
    redis_server: Any,
    redis_prefix: str,
    worker: str,
    rq: Redis,
    keys_left: Any,
) -> None:
    """What is of finished or lost runs, or of workers that are dead or unknown, goes; what lives or is held stays."""
    open_run(uploaded, made_run)
    uploaded(made_run("done"))
    SimpleWorker([rq_queue("act", rq)], name=f"{HOST_NAME}dead-1-x", connection=rq, serializer="json").register_birth()

    async def fill() -> None:
        async with RqQueue(redis_server.url, redis_prefix) as queue:
            for run in ("made", "done", "gone"):
                await queue.enqueue(Job(kind="act", run=RunId(run), episode=4), 60)

    anyio.run(fill)
    drain, endless = f"{redis_prefix}:drain", f"{redis_prefix}:{{done}}:lease"
    with Redis.from_url(redis_server.url, decode_responses=True) as plain:
        plain.hset(drain, mapping={f"{HOST_NAME}unknown-1-x": "ann", worker: "ann"})
        for lease in (endless, f"{redis_prefix}:{{made}}:lease"):
            plain.hset(lease, mapping={"holder": "me", "position": "1"})
        plain.expire(lease, 600)
    found = {
        "jobs": ["act-done-4-1", "act-gone-4-1"],
        "workers": [f"{HOST_NAME}dead-1-x"],
        "drains": [f"{HOST_NAME}unknown-1-x"],
        "leases": ["done"],
    }
    assert chime.json("ops", "orphans", "--dry-run")["data"] == found | {"dry_run": True}
    assert chime.json("ops", "orphans")["data"] == found | {"dry_run": False}
    assert "nothing is left over" in chime("ops", "orphans")
    with Redis.from_url(redis_server.url, decode_responses=True) as plain:
        assert plain.hgetall(drain) == {worker: "ann"}
        assert [plain.exists(lease) for lease in (endless, f"{redis_prefix}:{{made}}:lease")] == [0, 1]
    left = [key for key in keys_left() if ":rq:" in key]
    assert not [key for key in left if "done" in key or "gone" in key or "dead" in key]
    assert f"{redis_prefix}:rq:job:act-made-4-1" in left
    assert f"{redis_prefix}:rq:worker:{worker}" in left
    chime("run", "delete", "made", "--force")


def test_a_home_without_a_server(chime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing was ever started there is nothing to look after, in one line."""
    monkeypatch.delenv("CHIME_REDIS_URL")
    assert chime("ops", code=2) == ""
    assert "has no server yet" in chime.err
