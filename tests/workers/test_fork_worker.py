"""Ordinary rq workers: `rq worker`, which forks a process for every job, plays the same run as any other worker."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from redis import Redis

from infra.blobs import RedisBlobs
from infra.calls import RedisCalls
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.rehearsal import MODEL
from infra.rehearsal.planting import RehearsalSettings
from infra.rehearsal.server import rehearsal_server
from infra.rq_queue import RqQueue
from workers.configuration import Configuration, ModelDefaults
from workers.coordinator import coordinated

RUN = "r"
EPISODES = 2
#: seconds within which a run ends here: every job imports what it needs anew
DEADLINE_S = 200.0


@pytest.fixture
def settings(redis_server: Any, redis_prefix: str, tmp_path: Path) -> dict[str, str]:
    """All that a fork worker is told: variables. The first is rq's, the others are ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CHIME_", "RQ_"))}
    return kept | {
        "RQ_KEY_PREFIX": f"{redis_prefix}:rq",
        "CHIME_REDIS_URL": redis_server.url,
        "CHIME_REDIS_PREFIX": redis_prefix,
        "CHIME_HOME": str(tmp_path / "home"),
        "OPENAI_API_KEY": "any",
    }


@asynccontextmanager
async def rq_worker(queue: str, variables: dict[str, str], folder: Path, *more: str) -> AsyncIterator[None]:
    """`rq worker QUEUE`; SIGTERM ends it well. Its output goes to `<queue>.log`."""
    command = [sys.executable, "-P", "-m", "rq.cli", "worker", "--serializer", "json", *more]
    command += ["--url", variables["CHIME_REDIS_URL"], queue]
    async with await anyio.open_file(folder / f"{queue}.log", "wb") as log:
        process = await anyio.open_process(
            command, stdin=subprocess.DEVNULL, stdout=log.fileno(), stderr=log.fileno(), env=variables, cwd=folder
        )
        async with process:
            yield
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(DEADLINE_S):
                assert await process.wait() == 0


def lasting(url: str, prefix: str) -> list[str]:
    """Keys of rq's that nothing would ever remove; those that expire by themselves are removed now."""
    with Redis.from_url(url, decode_responses=True) as client:
        keys = {str(key): client.ttl(key) for key in client.scan_iter(match=f"{prefix}:rq:*", count=1000)}
        client.delete(*(key for key, ttl_s in keys.items() if ttl_s != -1))
    return [key for key, ttl_s in keys.items() if ttl_s == -1]


@pytest.mark.timeout(300)
async def test_a_run_on_fork_workers(
    world: Callable[..., Any], playing: Any, toy_key: Any, settings: dict[str, str], tmp_path: Path,
    ground: Any,
) -> None:  # fmt: skip
    """Every job is done by a fork of `rq worker`, once; the banks are those of a run in one process.

    Its log lines are those of any worker of ours, so what is struck out there is struck out here.
    """
    plan: Configuration = playing.configured(concurrency=2, lag=2)
    alone = world()
    expected = playing.digests(await alone.play(RUN, plan, limit=EPISODES))
    url, prefix, clock = settings["CHIME_REDIS_URL"], settings["CHIME_REDIS_PREFIX"], SystemClock()
    async with connected(url) as redis, rehearsal_server(toy_key, RehearsalSettings()) as endpoint:
        shared = world(
            store=RedisLogStore(redis, prefix, clock, url),
            blobs=RedisBlobs(redis, prefix, url),
            calls=RedisCalls(redis, prefix, url),
        )
        plan = msgspec.structs.replace(plan, models=ModelDefaults(model=MODEL, base_url=endpoint))
        log = await shared.begin(RUN, plan, environment="toy", limit=EPISODES)
        async with (
            RqQueue(url, prefix) as queue,
            rq_worker("chime-act", settings, tmp_path, "--config", "workers.jobs"),  # imports before it forks
            rq_worker("chime-diagnose", settings, tmp_path),
        ):
            with anyio.fail_after(DEADLINE_S):
                served = await coordinated(log, ground(queue, clock=clock))
        assert served.conductor.control == "finished"
        events = await shared.recorded(RUN)
    assert playing.digests(events) == expected
    assert {one.attempt for one in events} == {1}
    last = {"act": "scored", "diagnose": "diagnosed"}
    for kind, event in last.items():
        said = await anyio.Path(tmp_path / f"chime-{kind}.log").read_text()
        # rq says which job it forks for, we say in the fork what becomes of it
        assert [said.count(f"({kind}-{RUN}-{t}-1)") for t in range(EPISODES)] == [1] * EPISODES, said
        facts = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        assert {one["service"] for one in facts} == {f"worker-{kind}"}
        ended = sorted(one["episode_id"] for one in facts if one["event"] == event)
        assert ended == [f"episode-{t}" for t in range(EPISODES)]
    assert set(lasting(url, prefix)) <= {f"{prefix}:rq:queues"}
