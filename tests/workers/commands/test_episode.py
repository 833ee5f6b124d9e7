import anyio
import msgspec

from events.ids import RunId, episode_stream
from events.kinds import Abandoned
from infra.blobs import RedisBlobs, put_messages
from infra.calls import CallRecord, RedisCalls
from infra.redis_client import connected
from runtime.ports import TokenUsage


def test_list_with_filters(chime, uploaded, made_run):
    """Episodes are listed in stream order; filters narrow them."""
    uploaded(made_run())
    rows = chime.json("episode", "list", "made")["data"]
    assert [row["episode"] for row in rows] == list(range(6))
    assert [row["episode"] for row in chime.json("episode", "list", "--failed")["data"]] == [3, 4, 5]
    assert [row["episode"] for row in chime.json("episode", "--label", "both")["data"]] == [1]
    assert "task-5" in chime("episode", "list", "made")


def test_show(chime, uploaded, made_run):
    """One episode is shown stage by stage, with the recall's arithmetic, the diagnosis and the fold."""
    uploaded(made_run())
    out = chime("episode", "show", "made", "1")
    for part in ("planning bank at version 1", "planning-0", "first this, then that", "3 steps", "success, reward 1",
                 "earned by both, confidence 0.80", "folded into version 2", "merge: "):  # fmt: skip
        assert part in out
    data = chime.json("episode", "show", "episode-1")["data"]
    assert [one["kind"] for one in data["events"]] == [
        "retrieved", "planned", "retrieved", "executed", "scored", "diagnosed",
    ]  # fmt: skip
    assert data["events"][0]["data"]["query"]["vector"] == {"dim": 8}
    assert data["folded"]["data"]["bank_version"] == 2


def test_unknown_episodes(chime, uploaded, made_run):
    """An episode that is not there, or no number, is one line with what there is."""
    uploaded(made_run())
    chime("episode", "show", "made", "9", code=2)
    assert "has no episode 9; it has 0 to 5" in chime.err
    chime("episode", "show", "made", "first", code=2)
    assert "write its number" in chime.err


def test_prompts_of_a_run_without_calls(chime, uploaded, made_run):
    """--prompts lists the recorded calls; a run without any has none."""
    uploaded(made_run())
    assert chime.json("episode", "show", "made", "0", "--prompts")["data"]["calls"] == []


def test_a_failed_call_names_the_model_that_was_asked(chime, uploaded, made_run, redis_server, redis_prefix):
    """Nobody answered a call that failed, so the model that was asked stands there, and why it failed."""
    uploaded(made_run())
    run = RunId("made")

    async def fail() -> None:
        async with connected(redis_server.url) as redis:
            blobs = RedisBlobs(redis, redis_prefix, "here")
            record = CallRecord(
                id="episode-0/planning/1", role="planner", model="", usage=TokenUsage(), latency_ms=7,
                finish_reason="", messages=await put_messages(blobs, run, [{"role": "user", "content": "hello"}]),
                request=await blobs.put(run, b"{}"), answer="", sha256="0" * 64, at="2026-01-01T00:00:00.000000Z",
                error="refused", reason="no such model", asked="asked-model",
            )  # fmt: skip
            await RedisCalls(redis, redis_prefix, "here").put(run, f"{record.id} 0", msgspec.json.encode(record))

    anyio.run(fail)
    out = chime("episode", "show", "made", "0", "--prompts")
    assert "planner  asked-model  7 ms  failed: refused: no such model" in out


def test_problems_are_those_that_nobody_meant(chime, uploaded, made_run):
    """An episode of a run that asks no gate is no problem for that."""
    uploaded(made_run())
    assert chime.json("episode", "list", "--problems")["data"] == []


def test_an_abandoned_episode_counts_the_calls_that_were_made(chime, uploaded, made_run, redis_server, redis_prefix):
    """No event counts them where the stage has left none: they are on record."""
    made = made_run()
    made.events.pop()
    made.add(episode_stream(6), Abandoned(stage="planning", reason="context: too long", attempts=1))
    uploaded(made)
    run = RunId("made")

    async def ask() -> None:
        async with connected(redis_server.url) as redis:
            for ordinal in (1, 2):
                record = CallRecord(
                    id=f"episode-6/planning/{ordinal}", role="planner", model="", usage=TokenUsage(), latency_ms=7,
                    finish_reason="", messages="", request="", answer="", sha256="0" * 64,
                    at="2026-01-01T00:00:00.000000Z", error="context", reason="too long",
                )  # fmt: skip
                await RedisCalls(redis, redis_prefix, "here").put(run, f"{record.id} 0", msgspec.json.encode(record))

    anyio.run(ask)
    *others, abandoned = chime.json("episode", "list", "made")["data"]
    assert (abandoned["calls"], abandoned["abandoned"]) == (2, True)
    assert {one["calls"] for one in others} == {3}
