"""Tokens and cost in views: what is estimated is marked, what is unknown or unpriced is never 0."""

from events.ids import RUN_STREAM, RunId, episode_stream
from events.kinds import Noted, Planned, Usage
from runtime.settings import Budget, Price
from workers.views.summary import summarize
from workers.views.usage import completion_said, cost_said, counted, prompt_said, role_usage, total_usage, usage_said

PRICE = Price(input=1.0, output=2.0, cached=0.25)
COUNTED = Usage(prompt_tokens=1_000_000, completion_tokens=500_000, calls=3, cached_tokens=400_000)
ESTIMATED = Usage(prompt_tokens=None, completion_tokens=0, calls=1, estimated_prompt_tokens=2_000_000)
UNKNOWN = Usage(prompt_tokens=None, completion_tokens=None, calls=1)


def test_a_role_costs_what_its_tokens_do() -> None:
    """Cached tokens by their own price; without one, as the others."""
    row = role_usage("gate", "m", COUNTED, PRICE)
    assert (row.cost_usd, row.cost_estimated, cost_said(row)) == (0.6 + 0.1 + 1.0, False, "$1.7000")
    assert role_usage("gate", "m", COUNTED, Price(input=1.0, output=2.0)).cost_usd == 2.0
    assert usage_said(row) == "3 calls, 1,000,000 prompt tokens (400,000 cached), 500,000 completion tokens"


def test_an_estimate_is_marked() -> None:
    """In tokens and in cost."""
    row = role_usage("gate", "m", ESTIMATED, PRICE)
    assert (row.prompt_tokens, row.estimated_prompt_tokens, row.cached_tokens) == (None, 2_000_000, None)
    assert (prompt_said(row), completion_said(row), cost_said(row)) == ("~2,000,000", "0", "~$2.0000")
    assert usage_said(counted(ESTIMATED)) == "1 call, ~2,000,000 prompt tokens, 0 completion tokens"


def test_what_is_unknown_or_unpriced_costs_nothing_known() -> None:
    """Neither the role nor the sum says 0."""
    unknown, unpriced = role_usage("gate", "m", UNKNOWN, PRICE), role_usage("planner", "p", COUNTED, None)
    assert (unknown.cost_usd, prompt_said(unknown), cost_said(unknown)) == (None, "not counted", "unpriced")
    assert (unpriced.cost_usd, cost_said(unpriced)) == (None, "unpriced")
    priced = role_usage("executor", "e", COUNTED, PRICE)
    total = total_usage([unknown, unpriced, priced], UNKNOWN + COUNTED + COUNTED)
    assert (total.cost_usd, total.priced_usd, total.unpriced) == (None, 1.7, ["m", "p"])
    assert (total.calls, total.prompt_tokens, cost_said(total)) == (7, None, "$1.7000 + unpriced")
    assert cost_said(total_usage([unknown], UNKNOWN)) == "unpriced"
    assert cost_said(total_usage([priced], COUNTED)) == "$1.7000"


def test_a_model_that_nobody_asked_needs_no_price() -> None:
    """A role without calls leaves the sum as it is."""
    idle = role_usage("gate", "m", Usage(), None)
    assert cost_said(total_usage([role_usage("executor", "e", COUNTED, PRICE), idle], COUNTED)) == "$1.7000"


def test_a_run_is_summed_over_its_roles(made_run) -> None:
    """With its estimates, by the prices of whoever looks, else by those that it has recorded."""
    made = made_run()
    made.events.pop()
    made.add(episode_stream(6), Planned(plan="p", usage=ESTIMATED, calls=[]))
    budget = {"max_calls": 7, "prices": {"made-model": {"input": 1.0, "output": 1.0}}}
    made.add(RUN_STREAM, Noted(topic="operational", facts={"budget": budget}))
    made.add(RUN_STREAM, Noted(topic="operational", facts={"slots": 3}))
    summary = summarize(made.events)
    assert summary.run == RunId("made")
    planner = next(one for one in summary.usage if one.role == "planner")
    assert (planner.calls, planner.prompt_tokens, planner.estimated_prompt_tokens) == (7, None, 2_000_600)
    assert (planner.cost_usd, planner.cost_estimated) == ((2_000_600 + 60) / 1e6, True)
    assert summary.total is not None
    assert (summary.total.calls, summary.total.estimated_prompt_tokens) == (19, 2_001_800)
    assert summary.budget == Budget(max_calls=7, prices={"made-model": Price(input=1.0, output=1.0)})
    dearer = summarize(made.events, {"made-model": Price(input=10.0, output=10.0)})
    assert dearer.total is not None
    assert dearer.total.cost_usd == 10 * summary.total.cost_usd
