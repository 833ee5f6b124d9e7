"""How a run's gate fares, out of its log alone."""

import pytest
from msgspec.structs import replace

from events.codec import decode
from runtime.gate import degraded
from workers.gate_rates import FEWEST, WINDOW, GateRates


@pytest.fixture
def judged(made_run):
    """A diagnosis with a judgement."""
    return next(decode(one) for one in made_run().events if one.kind == "diagnosed")


def failed(reason="unreadable", unread=("no_object", "label")):
    return degraded(reason, success=False, retrieved=[], unread=unread)


def test_counts(judged):
    """Repairs are seen by the call, dropped names and kinds are summed, and what nobody was to judge does not count."""
    rates = GateRates()
    for event in (
        judged,
        replace(judged, calls=["episode-1/gate/1", "episode-1/gate/1.1"], unread=["cut"], misleading_dropped=2),
        replace(judged, calls=["episode-2/gate/1", "episode-2/gate/2"]),
        failed(),
        failed("content_filter", ()),
        failed("frozen", ()),
        failed("gate_off", ()),
        failed("unscored", ()),
    ):
        rates.see(event)
    figures = rates.figures()
    assert (figures.to_judge, figures.degraded, figures.degraded_rate, figures.repaired) == (5, 2, 0.4, 1)
    assert (figures.misleading, figures.misleading_dropped) == (3 * len(judged.misleading), 2)
    assert figures.unread == {"cut": 1, "label": 1, "no_object": 1}


def test_nothing_to_judge():
    """A run that judged nothing has no rate, and warns of nothing."""
    rates = GateRates()
    rates.see(failed("frozen", ()))
    assert rates.figures().degraded_rate is None
    assert rates.warning(0.0) == ""


def test_warns_once_a_crossing(judged):
    """It warns when the share rises above the bound, not again until it has fallen to half and risen again."""
    rates = GateRates()
    warned = []
    for t in range(300):
        rates.see(failed() if t < 20 or 100 <= t < 130 else judged)
        if told := rates.warning(0.2):
            warned.append((t, told))
    assert [t for t, _ in warned] == [FEWEST - 1, 110]
    assert warned[0][1] == f"{FEWEST} of the last {FEWEST} diagnoses are degraded (unreadable {FEWEST}), above 20%"
    assert warned[1][1].startswith(f"11 of the last {WINDOW} ")


def test_at_the_bound_is_not_above(judged):
    """One in five is what the default still lets pass."""
    rates = GateRates()
    for t in range(50):
        rates.see(failed() if t % 5 == 4 else judged)
        assert rates.warning(0.2) == ""


def test_a_few_do_not_warn():
    """Fewer diagnoses than that say nothing."""
    rates = GateRates()
    for _ in range(FEWEST - 1):
        rates.see(failed())
        assert rates.warning(0.2) == ""
