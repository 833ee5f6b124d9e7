"""The two entry points of a job, by which every worker advances an episode: in a loop that lives on, or for one job."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import numpy  # noqa: F401 - what is loaded late elsewhere is there before a worker forks for each job
import openai  # noqa: F401 - likewise, and no job waits for it while others are under way

from infra.clock import SystemClock
from infra.ownership import assert_sole_owner
from infra.redis_client import PATIENT_RETRIES
from infra.rq_keys import job_of
from infra.telemetry import configure
from runtime.ports import Job
from workers.bank_access import with_banks
from workers.configuration import RedisSettings, WeaviateSettings
from workers.connections import connections
from workers.engine import Engine, engine
from workers.layers import Flags, resolve
from workers.version import VERSION


@asynccontextmanager
async def serving(
    home: Path, redis: RedisSettings, weaviate: WeaviateSettings, keys: Mapping[str, str], slots: int
) -> AsyncIterator[Engine]:
    """An engine on the servers of the settings, or the home's own: what a worker process lives in.

    A bank server is used where there is one, and never started.

    Raises:
        BadInput: another distribution owns our names, or the server refuses us.
        Unreachable: no server.
    """
    assert_sole_owner()
    clock = SystemClock()
    async with (
        connections(home, redis.url, redis.prefix, clock, PATIENT_RETRIES) as logs,
        with_banks(logs, home, weaviate, keys, clock, starting=False) as there,
        engine(there, home, keys, clock, slots) as working,
    ):
        yield working


def advance(kind: str, run: str, episode: int, attempt: int) -> None:
    """One job in a process of its own: what an ordinary rq worker forks for. Configured by `CHIME_*` alone."""

    async def work(job: Job) -> None:
        resolved = resolve(Flags(), os.environ, Path.cwd())
        settings, log = resolved.configuration, resolved.configuration.log
        as_json = None if log.format == "auto" else log.format == "json"
        configure(json=as_json, level=log.level, service=f"worker-{job.kind}", version=VERSION)
        async with serving(resolved.home, settings.redis, settings.weaviate, os.environ, 1) as working:
            await working.advance(job)

    anyio.run(work, job_of((kind, run, episode, attempt)))
