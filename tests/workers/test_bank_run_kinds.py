"""Runs of every kind whose bank is in a real Weaviate: each recalls there alone, and ends as from replicas."""

from collections.abc import Sequence
from typing import Any

import pytest
from other_timing import EverybodyHolds
from stored_worlds import DEADLINE_S, Stored, sources, stored

from events.codec import decode_as
from events.kinds import Retrieved
from events.log import Recorded
from infra.weaviate_address import WeaviateAddress

LIMIT = 6


pytestmark = pytest.mark.usefixtures("patience")


def plan(playing: Any, store: str, **given: Any) -> Any:
    return playing.configured(**{"concurrency": 3, "lag": 3, "store": store, **given})


async def assert_as_ever(here: Stored, playing: Any, run: str, replicas: Sequence[Recorded]) -> None:
    """Every recall of `run` came from Weaviate, every version is that of `replicas`, and so is what the bank holds."""
    events: Sequence[Recorded] = await here.world.recorded(run)
    assert set(sources(events)) == {"weaviate"}
    assert playing.digests(events) == playing.digests(replicas)
    assert playing.contents(events) == playing.contents(replicas)
    assert await here.differences(run) == []


@pytest.mark.parametrize(
    ("plan_given", "choice"),
    [
        pytest.param({}, {"seed_bank": "origin@4"}, id="seeded"),
        pytest.param({}, {"seed_bank": "origin", "frozen": True}, id="frozen"),
        pytest.param({"lag": 1, "concurrency": 1}, {}, id="one-at-a-time"),
    ],
)
async def test_a_kind_of_run(
    world: Any, playing: Any, redis_server: Any, redis_prefix: str, weaviate_server: WeaviateAddress,
    plan_given: dict[str, Any], choice: dict[str, Any],
):  # fmt: skip
    """From its head to its end."""
    alone = world()
    await alone.play("origin", plan(playing, "replica"), limit=LIMIT)
    replicas = await alone.play("r", plan(playing, "replica", **plan_given), limit=LIMIT, **choice)
    async with stored(world, redis_server.url, redis_prefix, weaviate_server) as here:
        await here.world.play("origin", plan(playing, "replica"), limit=LIMIT)
        await here.world.play("r", plan(playing, "weaviate", **plan_given), limit=LIMIT, **choice)
        await assert_as_ever(here, playing, "r", replicas)


async def test_latest(world: Any, playing: Any, redis_server: Any, redis_prefix: str, weaviate_server: WeaviateAddress):
    """In `latest` mode recalls wait for the newest version to be published; the log is verified all the same."""
    async with stored(world, redis_server.url, redis_prefix, weaviate_server) as here:
        events = await here.world.play("r", plan(playing, "weaviate", lag="latest"), limit=12)
        assert set(sources(events)) == {"weaviate"}
        assert max(decode_as(one, Retrieved).bank_version for one in events if one.kind == "retrieved") > 3
        assert await here.differences() == []


async def test_two_runs_at_once(
    world: Any, playing: Any, redis_server: Any, redis_prefix: str, weaviate_server: WeaviateAddress
):
    """Runs that share a server do not see each other's rows, whatever their items are called."""
    alone = world()
    replicas = {
        run: await alone.play(run, plan(playing, "replica"), limit=LIMIT, ordering=ordering)
        for run, ordering in (("r", 1), ("q", 2))
    }
    async with stored(world, redis_server.url, redis_prefix, weaviate_server) as here:
        for run, ordering in (("r", 1), ("q", 2)):
            await here.world.begin(run, plan(playing, "weaviate"), limit=LIMIT, ordering=ordering)
        assert await here.world.drive("r", "q", deadline_s=DEADLINE_S) == ["finished"] * 2
        for run, events in replicas.items():
            await assert_as_ever(here, playing, run, events)


async def test_two_coordinators_at_once(
    world: Any, playing: Any, redis_server: Any, redis_prefix: str, weaviate_server: WeaviateAddress
):
    """Two coordinators that no lease keeps apart, so two mirrors of one bank, disturb no recall."""
    replicas = await world().play("r", plan(playing, "replica"), limit=LIMIT)
    async with stored(world, redis_server.url, redis_prefix, weaviate_server, leases=EverybodyHolds()) as here:
        await here.world.begin("r", plan(playing, "weaviate"), limit=LIMIT)
        assert await here.world.drive("r", coordinators=2, deadline_s=DEADLINE_S) == ["finished"]
        await assert_as_ever(here, playing, "r", replicas)
