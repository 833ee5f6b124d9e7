"""What stores say of their runs at a glance: the list in memory, and the script on every kind of server."""

from collections.abc import Sequence

import pytest

from events import policies
from events.codec import draft
from events.ids import PROJECTOR_STREAM, RUN_STREAM, BankVersion, MemoryId, RunId, StreamId, Version, episode_stream
from events.kinds import (
    AnyEvent,
    Counts,
    EmbedderIdentity,
    Evaluator,
    Folded,
    Noted,
    Operated,
    RunConfig,
    RunFinished,
    RunStarted,
    Scored,
    Seeded,
    SeededItem,
    TasksListed,
)
from events.vectors import fixed_point
from infra import overview
from infra.list_log import ListLogStore
from infra.redis_client import connected
from infra.redis_log import RedisLogStore, index_key, log_key
from runtime.ports import LogOverview, Origin

ORIGIN = Origin(cause=None)


class Stopped:
    """A clock that stands still, so that two stores stamp alike."""

    def utc(self) -> str:
        return "2026-01-01T00:00:00.000000Z"

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, delay_s: float) -> None:
        raise AssertionError(delay_s)


def started() -> RunStarted:
    config = RunConfig(
        policy=policies.load("credit").config(), lag=1, frozen=False, concurrency=1, epochs=1, models={},
        environment={}, protocol={}, ordering={}, limits={}, agent={},
    )  # fmt: skip
    return RunStarted(
        config=config, tasks=["a"], tasks_total=2, prompts={}, code="test", seed_bank=None,
        embedder=EmbedderIdentity(fingerprint="made", dimension=2),
    )  # fmt: skip


def seeded() -> Seeded:
    at = BankVersion(0)
    item = SeededItem(
        bank="planning", id=MemoryId("old.planning-0"), scenario="s", experience="e", delta_sum=0, n=0, bullets=0,
        sources=[0], seeded_sources=1, inserted_at=at, changed_at=at, scenario_vector=fixed_point([1.0, 0.0]),
        experience_vectors=[fixed_point([0.0, 1.0])],
    )  # fmt: skip
    return Seeded(items=[item])


def scored(*, success: bool, **breakdown: object) -> Scored:
    return Scored(
        success=success, reward=float(success), evaluator=Evaluator(name="e", version="1"), breakdown=breakdown
    )


def folded(t: int) -> Folded:
    return Folded(episode=t, bank_version=BankVersion(t + 1), digest=f"{t:064x}", operations=[])


async def at_a_glance(server, prefix: str, events: Sequence[tuple[StreamId, AnyEvent]]) -> LogOverview:
    """The overview of a run with `events`: the same from the server and from memory."""
    run = RunId("r")
    async with connected(server.url) as redis:
        stores = (RedisLogStore(redis, prefix, Stopped(), "here"), ListLogStore(Stopped()))
        for store in stores:
            lengths: dict[StreamId, int] = {}
            for stream, event in events:
                lengths[stream] = lengths.get(stream, 0) + 1
                await store.open(run).append(stream, Version(lengths[stream]), [draft(event)], ORIGIN)
        (kept,), (listed,) = [await store.overview() for store in stores]
    assert kept == listed
    return kept


async def test_a_finished_run(each_redis_server, redis_prefix) -> None:
    """Head, the run's own events in order without the seeds, the newest fold, and what the episodes came to."""
    counts = Counts(episodes=2, diagnosed=2, degraded=0, abandoned=0, folded=2)
    own = [
        started(), TasksListed(tasks=["b"]), seeded(), seeded(),
        Operated(action="pause", target="r", author="me", reason="lunch"), Noted(topic="x", facts={}),
        RunFinished(outcome="completed", counts=counts),
    ]  # fmt: skip
    events = [(RUN_STREAM, one) for one in own[:4]]
    events += [(episode_stream(t), scored(success=t == 0, valid=True)) for t in (0, 1)]
    events += [(PROJECTOR_STREAM, folded(t)) for t in (0, 1)]
    seen = await at_a_glance(each_redis_server, redis_prefix, events + [(RUN_STREAM, one) for one in own[4:]])
    assert (seen.head, seen.first_kind, seen.damage) == (11, "run_started", "")
    assert [one.version for one in seen.told] == [1, 2, 5, 6, 7]
    assert seen.folded is not None
    assert (seen.folded.position, seen.folds, seen.episodes) == (8, 2, 2)
    assert seen.scores == {0: True, 1: False}


async def test_scores_wherever_they_stand(each_redis_server, redis_prefix) -> None:
    """A score is found at any version; one of an environment that failed is neither success nor failure."""
    events = [(episode_stream(0), scored(success=True, valid=True))]
    events += [(episode_stream(11), Noted(topic=f"{version}", facts={})) for version in range(7)]
    events += [(episode_stream(11), scored(success=False))]
    events += [(episode_stream(2), scored(success=False, valid=False, reason="gone"))]
    events += [(episode_stream(3), Noted(topic="x", facts={}))]
    seen = await at_a_glance(each_redis_server, redis_prefix, events)
    assert seen.scores == {0: True, 11: False, 2: None}
    assert (seen.episodes, seen.folds, seen.folded, seen.told) == (4, 0, None, [])


async def test_a_log_that_does_not_begin_as_ours_do(each_redis_server, redis_prefix) -> None:
    """A run is listed as soon as its log has an event, whatever that is."""
    seen = await at_a_glance(each_redis_server, redis_prefix, [(RUN_STREAM, Noted(topic="x", facts={}))])
    assert (seen.first_kind, [one.kind for one in seen.told]) == ("noted", ["noted"])


async def test_many_runs(redis_server, redis_prefix) -> None:
    """More runs than fit into one round trip come all, in id order."""
    async with connected(redis_server.url) as redis:
        store = RedisLogStore(redis, redis_prefix, Stopped(), "here")
        names = [f"r-{number:03d}" for number in range(130)]
        for name in names:
            await store.open(RunId(name)).append(RUN_STREAM, Version(1), [draft(started())], ORIGIN)
        assert [seen.run for seen in await store.overview()] == names


async def test_damage_is_told_run_by_run(each_redis_server, redis_prefix) -> None:
    """A run whose keys hold something else, or whose log lost events, is told as such; the others are as they are."""
    async with connected(each_redis_server.url) as redis:
        store = RedisLogStore(redis, redis_prefix, Stopped(), "here")
        for name in ("a", "b", "c"):
            for version in (1, 2):
                note = draft(Noted(topic=f"{version}", facts={}))
                await store.open(RunId(name)).append(RUN_STREAM, Version(version), [note], ORIGIN)
        await redis.set(index_key(redis_prefix, RunId("a")), "x")
        await redis.xdel(log_key(redis_prefix, RunId("b")), "2-0")
        a, b, c = await store.overview()
        assert a.damage == (
            "its keys cannot be read: a key of ours holds another type; is the prefix used by something else?"
        )
        assert b.damage == "its index ends at position 2, its log at 1"
        assert (c.damage, c.head) == ("", 2)


@pytest.mark.parametrize(
    "said",
    [
        f"Error running script (call to f_{'0a' * 20}): @user_script:9: no such thing",
        f"no such thing script: {'0a' * 20}, on @user_script:9.",
        f"user_script:9: no such thing script: {'0a' * 20}, on @user_script:9.",
    ],
)
async def test_a_reason_is_without_the_script(redis_server, redis_prefix, monkeypatch, said: str) -> None:
    """What a server says of a script's place stands in no reason, in the words of any release."""
    # The server's own sentence, since no command of the script can be made to fail otherwise than by a wrong type.
    monkeypatch.setattr(overview, "_OVERVIEW", f"return redis.error_reply('{said}')")
    async with connected(redis_server.url) as redis:
        store = RedisLogStore(redis, redis_prefix, Stopped(), "here")
        await store.open(RunId("r")).append(RUN_STREAM, Version(1), [draft(started())], ORIGIN)
        (seen,) = await store.overview()
    assert seen.damage == "its keys cannot be read: no such thing"
