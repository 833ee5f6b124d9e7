from events.ids import RUN_STREAM, RunId, episode_stream
from events.kinds import Abandoned, Noted
from workers.configuration import Price
from workers.views.summary import abandoned_why, summarize


def test_figures_of_a_finished_run(made_run):
    """A summary counts what the log holds: scores, labels, operations, bank sizes, calls."""
    made = made_run()
    summary = summarize(made.events)
    assert (summary.run, summary.status, summary.episodes, summary.episodes_total) == (RunId("made"), "completed", 6, 6)
    assert (summary.successes, summary.scored) == (3, 6)
    assert summary.score.low < 0.5 < summary.score.high
    assert summary.attributions == {"planning": 1, "execution": 1, "both": 1, "none": 3}
    assert summary.bank_sizes == made.banks.sizes()
    assert (summary.bank_version, summary.digest) == (6, made.banks.digest())
    assert {one.role: one.calls for one in summary.usage} == {"planner": 6, "executor": 6, "gate": 6}
    assert summary.counts is not None
    assert summary.counts.folded == 6


def test_unpriced_models_cost_nothing_known(made_run):
    """A model without a price has no cost, not zero; one with a price costs its tokens."""
    events = made_run().events
    assert {one.cost_usd for one in summarize(events).usage} == {None}
    priced = summarize(events, {"made-model": Price(input=1.0, output=2.0)})
    assert {one.cost_usd for one in priced.usage} == {(600 * 1.0 + 60 * 2.0) / 1e6}


def test_an_unfinished_run_is_open(made_run):
    """A log without `run_finished` is an open run that says how far it came."""
    summary = summarize(made_run().events[:9])
    assert (summary.status, summary.episodes, summary.episodes_total, summary.bank_version) == ("open", 2, 6, 1)


def test_the_store_is_the_last_one_named(made_run):
    """A summary says where recalls come from now, and how many came from where."""
    made = made_run()
    assert (summarize(made.events).bank_store, summarize(made.events).recalls) == ("replica", {"exact": 12})
    one = made_run()
    one.events.pop()
    one.add(RUN_STREAM, Noted(topic="operational", facts={"bank": {"store": "weaviate"}}))
    assert summarize(one.events).bank_store == "weaviate"


def test_abandoned_episodes_say_for_what(made_run):
    """The first word of each reason is counted, however long and hostile what follows is."""
    made = made_run()
    made.events.pop()
    for t, reason in (
        (6, "context: 400 too long: 9 of 8"),
        (7, "worker_lost"),
        (8, "context: 400"),
        (9, "\x1b[1m" * 99),
    ):
        made.add(episode_stream(t), Abandoned(stage="planning", reason=reason, attempts=1))
    summary = summarize(made.events)
    assert (summary.abandoned, summary.abandonments["context"], summary.abandonments["worker_lost"]) == (4, 2, 1)
    assert abandoned_why(summary).endswith("context 2, worker_lost 1)")
    assert max(map(len, summary.abandonments)) <= 40
    assert abandoned_why(summarize(made_run().events)) == ""
