"""Which generation of a run's bank serves: one owner, one that serves, none comes back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from events.codec import draft
from events.errors import VersionGap
from events.ids import PROJECTOR_STREAM, BankVersion, RunId, Version
from events.kinds import Noted
from infra.banks.errors import DeadGeneration
from infra.banks.generations import Generations, Serving, stem
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from runtime.ports import Basis, Origin

V = BankVersion
RUN = RunId("r-1")


@asynccontextmanager
async def opened(url: str, prefix: str) -> AsyncIterator[Generations]:
    """The generations of a server and prefix."""
    async with connected(url) as redis:
        yield Generations(redis, prefix, url)


async def test_from_the_first_to_the_next(each_redis_server, redis_prefix: str):
    """The first serves once it has published; the next is begun beside it and takes over when it publishes."""
    async with opened(each_redis_server.url, redis_prefix) as all_runs:
        run = all_runs.of(RUN)
        assert await run.serving() is None
        first = await run.begin(term=1)
        assert await run.serving() is None
        assert await first.newest() is None
        await first.publish(V(3))
        await first.publish(V(2))
        assert await run.serving() == Serving(generation=first.name, version=V(3))
        second = await run.begin(term=1)
        assert await run.serving() == Serving(generation=first.name, version=V(3))
        with pytest.raises(DeadGeneration, match=first.name):
            await first.publish(V(4))
        await second.publish(V(1))
        assert await run.serving() == Serving(generation=second.name, version=V(1))
        assert await first.newest() is None
        assert (await run.standing()).retired == [first.name]
        assert await run.retired(0) == [first.name]
        assert await run.retired(60) == []
        await run.dropped(first.name)
        assert await run.retired(0) == []


async def test_one_that_never_served_is_retired(each_redis_server, redis_prefix: str):
    """Whoever began it is dead or asleep; it may exist all the same."""
    async with opened(each_redis_server.url, redis_prefix) as all_runs:
        run = all_runs.of(RUN)
        first, second = await run.begin(term=1), await run.begin(term=2)
        assert await run.retired(0) == [first.name]
        await second.publish(V(0))
        assert first.name != second.name


async def test_a_term_that_is_over(each_redis_server, redis_prefix: str):
    """Whoever held the lease before begins nothing any more; a rebuild by hand is no term."""
    async with opened(each_redis_server.url, redis_prefix) as all_runs:
        run = all_runs.of(RUN)
        await run.begin(term=4)
        with pytest.raises(DeadGeneration, match="term 3"):
            await run.begin(term=3)
        await run.begin()
        await run.begin(term=4)


async def test_a_doubt_is_kept_until_the_next_serves(each_redis_server, redis_prefix: str):
    """The first reason stays; one about a generation that does not serve is passed over."""
    async with opened(each_redis_server.url, redis_prefix) as all_runs:
        run = all_runs.of(RUN)
        first = await run.begin(term=1)
        assert not await run.doubt(first.name, "too early")
        await first.publish(V(1))
        assert await run.doubt(first.name, "a row is missing")
        assert await run.doubt(first.name, "another")
        assert await run.serving() == Serving(generation=first.name, version=V(1), doubt="a row is missing")
        second = await run.begin(term=1)
        await second.publish(V(1))
        assert await run.serving() == Serving(generation=second.name, version=V(1), doubt="")
        assert not await run.doubt(first.name, "late")


async def test_only_what_the_log_holds_is_published(each_redis_server, redis_prefix: str):
    """A version whose event the log has lost, or holds otherwise, is refused."""
    async with connected(each_redis_server.url) as redis:
        log = RedisLogStore(redis, redis_prefix, SystemClock(), each_redis_server.url).open(RUN)
        run = Generations(redis, redis_prefix, each_redis_server.url).of(RUN)
        there, other = (draft(Noted(topic=topic, facts={})) for topic in ("there", "other"))
        await log.append(PROJECTOR_STREAM, Version(1), [there], Origin(cause=None))
        generation = await run.begin(term=1)
        for version, one in ((1, other), (2, there)):
            basis = Basis(stream=PROJECTOR_STREAM, version=Version(version), sha256=one.sha256)
            with pytest.raises(VersionGap, match="lost version"):
                await generation.publish(V(version), basis)
        assert await run.serving() is None
        await generation.publish(V(1), Basis(stream=PROJECTOR_STREAM, version=Version(1), sha256=there.sha256))
        assert await generation.newest() == 1


async def test_a_pointer_that_is_forgotten(each_redis_server, redis_prefix: str):
    """The numbers begin again, the names do not: nobody's rows are taken for somebody else's."""
    async with opened(each_redis_server.url, redis_prefix) as all_runs:
        run = all_runs.of(RUN)
        first = await run.begin(term=7)
        await first.publish(V(1))
        await run.forget()
        with pytest.raises(DeadGeneration):
            await first.publish(V(2))
        second = await run.begin(term=1)
        assert second.name != first.name


async def test_deployments_tell_their_tenants_apart(each_redis_server, redis_prefix: str):
    """Two prefixes name a run's generations differently; one prefix always alike."""
    async with (
        opened(each_redis_server.url, f"{redis_prefix}-a") as one,
        opened(each_redis_server.url, f"{redis_prefix}-b") as other,
        opened(each_redis_server.url, f"{redis_prefix}-a") as again,
    ):
        assert await one.deployment() == await again.deployment() != await other.deployment()


@pytest.mark.parametrize("run", ["r", "a" * 39, "a" * 40, "a" * 41, "a" * 62 + "b", "a" * 63, "a-" * 31 + "a"])
async def test_names_are_names_of_tenants(each_redis_server, redis_prefix: str, run: str):
    """Whatever the run's id, 64 characters of those that a tenant may have."""
    async with opened(each_redis_server.url, redis_prefix) as all_runs:
        generation = await all_runs.of(RunId(run)).begin(term=1)
        apart = await all_runs.of(RunId(run)).apart(V(123_456))
    for name in (generation.name, apart.name):
        assert len(name) <= 64
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_")
        assert name.startswith(run[:20])


def test_no_two_runs_have_one_name():
    """Also not where a long id was shortened, and another one looks like what became of it."""
    runs = ["a" * length for length in range(1, 64)] + ["a" * 62 + "b", "a" * 23 + "-" + "b" * 39]
    stems = [stem(RunId(run), "0123abcd") for run in runs]
    assert len(set(stems)) == len(stems)
    assert not any(one.startswith(other) for one in stems for other in stems if one != other)
