"""Recall from a run's bank in Weaviate, beside a bare call of its client and the search in this process; rebuild.

Vectors of 384 dimensions. CPU time is this process's and the server's together.
"""

import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import weaviate
from anyio.from_thread import start_blocking_portal
from msgspec.structs import replace
from weaviate.classes.init import AdditionalConfig, Auth, Timeout
from weaviate.classes.query import Filter, MetadataQuery

from bench.made import RUN, vector
from bench.measure import Row, Scale, Spread, Subject, rounds, spread, timing, within
from bench.server import server
from events import policies
from events.bank import Banks, seed
from events.codec import draft
from events.errors import ChimeError
from events.ids import RUN_STREAM, BankVersion, RunId, Version, memory_id, seeded_id
from events.kinds import EmbedderIdentity, Query, RunConfig, RunStarted, Seeded, SeededItem
from events.recall import recall
from infra import banks as stores
from infra.banks import upkeep
from infra.banks.generations import Generations
from infra.banks.serving import BankServer
from infra.banks.stored import StoredBanks
from infra.banks.weaviate_wire import BORN, COLLECTIONS, ID
from infra.clock import SystemClock
from infra.list_log import ListLog
from infra.redis_client import connected
from infra.weaviate_address import WeaviateAddress
from infra.weaviate_finding import ways
from infra.weaviate_server import Start, running, weaviate_server_sync
from runtime.ports import Origin

SIZES = (130, 3_600, 100_000)
DIMENSION, TOP = 384, 20
#: rows of the rebuild, and how many it is to write in a second
REBUILT, GOAL = 20_000, 5_000
#: items of one event
_SEEDED = 50


@dataclass(frozen=True, slots=True)
class _Place:
    address: WeaviateAddress
    pid: int
    redis_url: str


def rows(scale: Scale) -> Iterator[Row]:
    """One for each bank size, and the rebuild."""
    tools = Path(os.environ.get("CHIME_HOME") or ".chime").absolute() / "tools"
    if not any(way.open for way in ways(tools) if way.name in ("PATH", "tool cache")):
        yield Row(group="bank", what="recall, rebuild", not_run="no Weaviate server: `make weaviate`")
        return
    with tempfile.TemporaryDirectory(prefix="cw", dir="/tmp") as folder, server(None) as redis:
        home = Path(folder)
        try:
            with weaviate_server_sync(home, Start(tools=tools)) as address:
                one = running(home)
                pid = one.process.pid if one is not None and one.process is not None else 0
                place = _Place(address, pid, redis.url)
                for full in SIZES:
                    yield _recall(full if full < 1_000 else scale.of(full, 200), place, scale)
                yield _rebuild(scale.of(REBUILT, 500), place, scale)
        except ChimeError as error:
            yield Row(group="bank", what="recall, rebuild", not_run=str(error))


def _recall(size: int, place: _Place, scale: Scale) -> Row:
    items, many = _items(size), scale.of(max(20, min(200, 400_000 // size)), 5)
    banks = seed(Banks(), items)
    query = Query(text="q", vector=vector(np.random.default_rng(5), DIMENSION))
    parameters = policies.load("credit").parameters.changed({"floor": -1})
    walls: dict[str, list[float]] = {"ours": [], "raw": []}
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_opened(place, items, banks)) as opened:
        bank, client, generation = opened
        tenant = client.collections.use(COLLECTIONS["planning"]).with_tenant(generation)
        born, components = Filter.by_property(BORN).less_or_equal(0), (query.vector.exact() / (1 << 24)).tolist()

        async def ours() -> None:
            found = await bank.recall("planning", query, BankVersion(0))
            assert found.source == "weaviate"
            assert len(found.candidates) == TOP

        async def raw() -> None:
            await tenant.query.near_vector(
                near_vector=components, limit=TOP, filters=born, include_vector=True, return_properties=[ID],
                return_metadata=MetadataQuery(distance=True),
            )  # fmt: skip

        def often(what: str, call: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
            async def calls() -> None:
                for _ in range(many):
                    started = time.perf_counter()
                    await call()
                    walls[what].append(time.perf_counter() - started)

            return lambda: portal.call(calls)

        subjects = [
            Subject(what="recall through us", run=often("ours", ours), operations=many, pids=[place.pid]),
            Subject(what="near_vector of the client", run=often("raw", raw), operations=many, pids=[place.pid]),
        ]
        found = rounds(subjects, scale.repeats)
    row = within("bank", found, subjects[0].what, subjects[1].what, times=1.2, plus_s=1e-3)
    inside = _timed(lambda: recall(banks, ("planning",), query.vector, parameters))
    return replace(
        row, what=f"recall, {size:,} items x {DIMENSION}", remark=f"{_told(walls)}; in process {inside:.2f} ms"
    )


def _told(walls: dict[str, list[float]]) -> str:
    """p50 and p99, wall."""
    parts = []
    for what, seconds in walls.items():
        p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
        parts.append(f"{what} {p50:.1f} / {p99:.1f} ms")
    return "p50 / p99 wall: " + ", ".join(parts)


def _timed(call: Callable[[], object]) -> float:
    """Median CPU time of one call, ms."""
    found = []
    for _ in range(20):
        started = time.process_time()
        call()
        found.append(time.process_time() - started)
    return float(np.median(found)) * 1e3


def _rebuild(size: int, place: _Place, scale: Scale) -> Row:
    banks, rates = seed(Banks(), _items(size)), list[float]()
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_reached(place)) as (there, generations):

        async def build() -> None:
            made = await upkeep.rebuild(there, generations.of(RUN), banks)
            rates.append(size / made.seconds)

        subject = Subject(what="rebuild", run=lambda: portal.call(build), operations=size, pids=[place.pid])
        samples = rounds([subject], scale.repeats)["rebuild"]
    figure: Spread = spread(rates[1:])
    return Row(
        group="bank", what=f"rebuild, {size:,} rows x {DIMENSION}", ours=timing(samples), figure=figure, unit="rows/s",
        goal=f">= {GOAL:,} rows/s", met=figure.median >= GOAL,
        remark="written, counted, each found by two searches, published; wall time",
    )  # fmt: skip


def _items(size: int) -> list[SeededItem]:
    rng = np.random.default_rng(7)
    return [
        SeededItem(
            bank="planning", id=seeded_id(RunId("origin"), memory_id("planning", t)), scenario=f"tasks like number {t}",
            experience=f"do what task {t} needs, step by step" * 5, delta_sum=2000 * (t % 5), n=t % 5, bullets=0,
            sources=[t], seeded_sources=1, inserted_at=BankVersion(0), changed_at=BankVersion(0), scenario_vector=one,
            experience_vectors=[one],
        )
        for t in range(size)
        for one in (vector(rng, DIMENSION),)
    ]  # fmt: skip


@asynccontextmanager
async def _reached(place: _Place) -> AsyncIterator[tuple[BankServer, Generations]]:
    async with connected(place.redis_url) as redis, stores.connected(place.address) as there:
        yield there, Generations(redis, "bench", "bench")


@asynccontextmanager
async def _opened(
    place: _Place, items: list[SeededItem], banks: Banks
) -> AsyncIterator[tuple[StoredBanks, weaviate.WeaviateAsyncClient, str]]:
    """A reader of a run that was seeded with `items`, the vendor's client, and the run's generation."""
    log, origin = ListLog(RUN, SystemClock()), Origin(cause=None)
    policy = policies.load("credit", policies.load("credit").parameters.changed({"floor": -1}))
    config = RunConfig(
        policy=policy.config(), lag=32, frozen=False, concurrency=16, epochs=1,
        models={}, environment={}, protocol={}, ordering={}, limits={}, agent={},
    )  # fmt: skip
    started = RunStarted(
        config=config, tasks=["a"], tasks_total=1, prompts={}, code="bench", seed_bank=None,
        embedder=EmbedderIdentity(fingerprint="random", dimension=DIMENSION),
    )  # fmt: skip
    drafts = [draft(started)]
    drafts += [draft(Seeded(items=items[at : at + _SEEDED])) for at in range(0, len(items), _SEEDED)]
    for version, one in enumerate(drafts, 1):
        await log.append(RUN_STREAM, Version(version), [one], origin)
    async with _reached(place) as (there, generations), _client(place.address) as client:
        made = await upkeep.rebuild(there, generations.of(RUN), banks)

        async def reach() -> BankServer:
            return there

        yield StoredBanks(log, reach, generations.of(RUN), SystemClock()), client, made.generation


def _client(address: WeaviateAddress) -> weaviate.WeaviateAsyncClient:
    host, http = address.http_url.removeprefix("http://").split(":")
    return weaviate.use_async_with_custom(
        host, int(http), False, host, int(address.grpc_url.rsplit(":", 1)[1]), False,
        auth_credentials=Auth.api_key(address.api_key), skip_init_checks=True,
        additional_config=AdditionalConfig(timeout=Timeout(init=3, query=30, insert=30)),
    )  # fmt: skip
