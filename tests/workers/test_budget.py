"""A run's budget: it stops where a bound is reached, and goes on as if nothing had been once there is more."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from events.codec import decode_as
from events.errors import BadInput
from events.ids import RUN_STREAM, RunId
from events.kinds import Noted, Operated, RunStarted
from infra.calls import calls_of
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.rehearsal import MODEL
from infra.spending import CountedCalls, Ledger
from runtime.ports import CallKey, ChatAnswer, ChatModel, ChatRequest
from runtime.settings import Budget, BudgetSettings, Price
from workers.budget import budget_in, budget_part
from workers.engine import STOPPED
from workers.layers import Flags, Resolved, resolve
from workers.operational import OPERATIONAL
from workers.resuming import resumed_operational
from workers.run_stream import tell

EPISODES = 8


class Slow:
    """A model that takes a moment, so that several calls are under way when the budget is spent."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        await anyio.sleep(0.005)
        return await self._model.complete(request, key)


@pytest.fixture
def budgeted(world: Any, redis_server: Any, redis_prefix: str) -> Callable[[], Any]:
    """Opens a world on a real server, which counts what runs spend."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        async with connected(redis_server.url) as redis:
            there = world(
                store=RedisLogStore(redis, redis_prefix, SystemClock(), "here"),
                calls=CountedCalls(redis, redis_prefix, "here"),
                ledger=Ledger(redis, redis_prefix, "here"),
            )
            there.model = Slow(there.model)
            yield there

    return opened


async def raised(log: Any, **bounds: Any) -> None:
    """As `chime run resume` does it."""
    budget = {"max_cost": 0.0, "max_tokens": 0, "max_calls": 0, "prices": {}} | bounds
    await tell(log, Noted(topic=OPERATIONAL, facts={"budget": budget}))
    await tell(log, Operated(action="resume", target="r", author="me", reason=""))


async def stops(log: Any) -> list[dict[str, Any]]:
    notes = [decode_as(one, Noted) for one in await log.read_stream(RUN_STREAM) if one.kind == "noted"]
    return [one.facts for one in notes if one.topic == STOPPED]


async def test_a_run_stops_at_its_bound_and_goes_on(budgeted: Any, world: Any, playing: Any) -> None:
    """Exactly so many calls, one note, nothing more without more; then the banks of a run without bounds."""
    undisturbed = await world().play("r", playing.configured(concurrency=8), limit=EPISODES)
    plan = replace(playing.configured(concurrency=8), budget=BudgetSettings(max_calls=19))
    async with budgeted() as there:
        log = await there.begin("r", plan, limit=EPISODES)
        assert await there.drive("r") == ["stopped"]
        spent = await there.ledger.spent(RunId("r"))
        assert spent.calls == 19 == len(await calls_of(there.calls, RunId("r")))
        assert await stops(log) == [{"kind": "budget", "reason": "the budget is spent: 19 of 19 calls (max_calls)"}]
        await raised(log, max_calls=19)
        assert await there.drive("r") == ["stopped"]
        assert (await there.ledger.spent(RunId("r"))).calls == 19
        for bound in (20, 26):
            await raised(log, max_calls=bound)
            assert await there.drive("r") == ["stopped"]
            assert (await there.ledger.spent(RunId("r"))).calls == bound
        assert len(await stops(log)) == 4
        await raised(log)
        assert await there.drive("r") == ["finished"]
        events = await there.recorded("r")
        assert playing.digests(events) == playing.digests(undisturbed)
        assert playing.contents(events) == playing.contents(undisturbed)


async def test_what_is_under_way_is_finished(budgeted: Any, playing: Any) -> None:
    """A call that was begun is answered and recorded before the run stops: it is paid for."""
    plan = replace(playing.configured(concurrency=8), budget=BudgetSettings(max_tokens=1))
    async with budgeted() as there:
        log = await there.begin("r", plan, limit=EPISODES)
        assert await there.drive("r") == ["stopped"]
        calls = await calls_of(there.calls, RunId("r"))
        assert 1 <= len(calls) <= 8
        assert {(one.error, bool(one.answer)) for one in calls} == {("", True)}
        assert [one["kind"] for one in await stops(log)] == ["budget"]


async def test_a_worker_that_knows_an_old_budget_does_not_stop_the_run(budgeted: Any, playing: Any) -> None:
    """Who is told that the budget is spent looks whether it was raised meanwhile, before it stops anything."""
    plan = replace(playing.configured(concurrency=1, lag=1), budget=BudgetSettings(max_calls=5))
    async with budgeted() as there:
        log = await there.begin("r", plan, limit=3)
        asked = there.model

        class Raising:
            async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
                if (await there.ledger.spent(RunId("r"))).calls == 4:
                    budget = {"max_cost": 0.0, "max_tokens": 0, "max_calls": 50, "prices": {}}
                    await tell(log, Noted(topic=OPERATIONAL, facts={"budget": budget}))
                return await asked.complete(request, key)

        there.model = Raising()
        assert await there.drive("r") == ["finished"]
        assert await stops(log) == []


async def test_cost_stops_a_run(budgeted: Any, playing: Any) -> None:
    """By the prices that the run was begun with."""
    prices = {MODEL: Price(input=1.0, output=1000.0)}
    plan = replace(playing.configured(concurrency=2), budget=BudgetSettings(max_cost=0.01), prices=prices)
    async with budgeted() as there:
        log = await there.begin("r", plan, limit=EPISODES)
        assert await there.drive("r") == ["stopped"]
        [stop] = await stops(log)
        assert stop["reason"].startswith("the budget is spent: $0.01")
        spent = (await there.ledger.spent(RunId("r"))).cost(
            {"planner": MODEL, "executor": MODEL, "gate": MODEL}, Budget(prices=prices)
        )
        assert 0.01 <= spent < 0.013


MODELS: Any = {"planner": "a", "executor": "b", "gate": "a"}


def test_only_the_runs_own_prices_are_recorded() -> None:
    """And nothing at all where there is neither a bound nor a price: such a header is as it was."""
    prices = {"a": Price(input=1, output=2), "b": Price(input=3, output=4, cached=0.5), "c": Price(input=5, output=6)}
    assert budget_part(BudgetSettings(), {"c": prices["c"]}, MODELS) == {}
    assert budget_in(budget_part(BudgetSettings(), prices, MODELS)) == Budget(
        prices={"a": prices["a"], "b": prices["b"]}
    )
    told = budget_part(BudgetSettings(max_cost=2.5), prices, MODELS)
    assert told == {
        "budget": {
            "max_cost": 2.5, "max_tokens": 0, "max_calls": 0,
            "prices": {"a": {"input": 1, "output": 2}, "b": {"input": 3, "output": 4, "cached": 0.5}},
        }
    }  # fmt: skip
    assert budget_in(told) == Budget(max_cost=2.5, prices={"a": prices["a"], "b": prices["b"]})
    assert budget_in({}).is_free


def test_cost_without_a_price_is_no_bound() -> None:
    """Whoever bounds the cost of a model without a price is told which, and what to do."""
    with pytest.raises(BadInput, match=r"^budget\.max_cost: b, the executor's model, has no price"):
        budget_part(BudgetSettings(max_cost=1), {"a": Price(input=1, output=1)}, MODELS)
    assert budget_part(BudgetSettings(max_calls=1), {}, MODELS)["budget"]["prices"] == {}


def test_a_budget_that_is_none_is_refused() -> None:
    """A log made by hand, or by later code."""
    with pytest.raises(BadInput, match="budget cannot be read"):
        budget_in({"budget": {"max_calls": "many"}})


def resolved(*sets: str, folder: Path) -> Resolved:
    (folder / "chime.toml").write_text('[prices."a"]\ninput = 1\noutput = 2\n')
    return resolve(Flags(sets=sets), {}, folder)


def test_a_resume_changes_the_bounds_that_are_given(made_run: Any, tmp_path: Path) -> None:
    """The others stay, prices are those of now, and a bound that is taken away is gone."""
    header = decode_as(made_run().events[0], RunStarted)
    config = replace(header.config, models={role: {"model": name} for role, name in MODELS.items()})
    there = {"endpoints": {}, "budget": {"max_calls": 5, "max_tokens": 9, "prices": {"b": {"input": 7, "output": 7}}}}

    def now(*sets: str) -> Budget:
        return budget_in(resumed_operational(resolved(*sets, folder=tmp_path), there, config))

    prices = {"a": Price(input=1, output=2), "b": Price(input=7, output=7)}
    assert now() == Budget(max_calls=5, max_tokens=9, prices=prices)
    assert now("budget.max_calls=50", "budget.max_cost=1") == Budget(
        max_calls=50, max_tokens=9, max_cost=1, prices=prices
    )
    assert now("budget.max_calls=0", "budget.max_tokens=0") == Budget(prices=prices)
    unpriced = {"endpoints": {}, "budget": {"max_calls": 5}}
    unasked = replace(config, models={})
    free = resumed_operational(resolved("budget.max_calls=0", folder=tmp_path), unpriced, unasked)
    assert free["budget"] == {}, "a note adds to what stands in the header"
    with pytest.raises(BadInput, match="b, the executor's model, has no price"):
        resumed_operational(resolved("budget.max_cost=1", folder=tmp_path), unpriced, config)
