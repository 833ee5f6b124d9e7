"""What a run has spent of its budget, and how fast it asks, as `run show` and `ops status` say it."""

import re
from typing import Any

import anyio
import msgspec

from events.ids import RUN_STREAM, RunId
from events.kinds import Noted
from infra.calls import CallRecord
from infra.capabilities import Place
from infra.pacing import Bounds
from infra.pacing_redis import RedisCounts
from infra.redis_client import connected
from infra.spending import CountedCalls
from runtime.ports import TokenUsage

RUN = RunId("made")
BUDGET = {
    "max_calls": 30,
    "max_tokens": 10_000,
    "max_cost": 2.0,
    "prices": {"made-model": {"input": 1000.0, "output": 0.0}},
}


async def spend(url: str, prefix: str) -> None:
    """Two calls that are recorded, one of them failed, and one request under way."""
    usage = TokenUsage(prompt_tokens=1000, completion_tokens=10)
    record = CallRecord(
        id="episode-0/gate/1", role="gate", model="m", usage=usage, latency_ms=1, finish_reason="stop", messages="",
        request="", answer="", sha256="", at="", requests=1,
    )  # fmt: skip
    failed = msgspec.structs.replace(record, usage=TokenUsage(), error="timeout")
    async with connected(url) as redis:
        calls = CountedCalls(redis, prefix, "here")
        await calls.put(RUN, "episode-0/gate/1 a", msgspec.json.encode(record))
        await calls.put(RUN, "episode-0/gate/1 a failed now", msgspec.json.encode(failed))
        bounds = Bounds(requests=60, tokens=0, concurrent=0, adaptive=True)
        await RedisCounts(redis, prefix, RUN, "here").look(Place("http://there/v1", "made-model"), "one", 250, bounds)


def test_what_is_spent_and_how_fast(
    chime: Any, uploaded: Any, made_run: Any, redis_server: Any, redis_prefix: str, keys_left: Any
) -> None:
    """Bounds with what is spent of each, the pace of each model, and nothing of it once the run is deleted."""
    made = made_run()
    made.events = made.events[:15]
    made.versions[RUN_STREAM] = 1
    made.add(RUN_STREAM, Noted(topic="operational", facts={"budget": BUDGET}))
    uploaded(made)
    anyio.run(spend, redis_server.url, redis_prefix)
    pace = "made-model: 1 under way, at most 4 at once (adaptive), 1 asked in the past minute, 250 tokens"
    told = "2 of 30 calls, 1,010 of 10,000 tokens, $1.0000 of $2"
    shown = re.sub(" +", " ", chime("run", "show", "made"))
    assert f"budget {told}" in shown
    assert f"pace {pace}" in shown
    assert re.search(r"total .* \$0\.6000", shown)
    data = chime.json("run", "show", "made")["data"]
    assert (data["spent"]["calls"], data["budget"]["max_calls"], data["pace"][0]["tokens"]) == (2, 30, 250)
    status = re.sub(" +", " ", chime("ops", "status"))
    assert f"made {told} {pace}" in status
    assert chime.json("ops", "status")["data"]["spending"][0]["told"] == told
    chime("run", "delete", "made", "--force")
    assert keys_left() == []


def test_an_open_run_without_bounds_has_no_line(chime: Any, uploaded: Any, made_run: Any) -> None:
    """Nothing is bounded: nothing is said."""
    made = made_run()
    made.events = made.events[:15]
    uploaded(made)
    assert "budgets and pace" not in chime("ops", "status")
    assert "budget" not in chime("run", "show", "made")
