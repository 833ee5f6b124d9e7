"""How a run's gate fares, out of its log alone."""

import io
import re

import pytest
import structlog.testing
from msgspec.structs import replace as changed

from events.codec import decode, draft, recorded
from events.ids import RunId
from infra.clock import SystemClock
from infra.list_log import ListLog
from infra.local_queue import LocalQueue
from runtime.gate import degraded
from workers.commands.run import gate_line
from workers.conductor import Conductor
from workers.coordinator import RunView
from workers.gate_rates import FEWEST, WINDOW, GateRates
from workers.live import LiveLine, told
from workers.output import Output
from workers.projector import Projector
from workers.views.summary import summarize


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
        changed(judged, calls=["episode-1/gate/1", "episode-1/gate/1.1"], unread=["cut"], misleading_dropped=2),
        changed(judged, calls=["episode-2/gate/1", "episode-2/gate/2"]),
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
        if reason := rates.warning(0.2):
            warned.append((t, reason))
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


class Garbled:
    """A model that plays well and whose gate says nothing that can be read."""

    def __init__(self, model):
        self._model = model

    async def complete(self, request, key):
        answer = await self._model.complete(request, key)
        return changed(answer, content="I would rather not.") if request.role == "gate" else answer


async def test_a_run_with_a_bad_gate_warns_once(world):
    """Whoever coordinates the run writes one line; nothing about it goes into the log, and the banks stay empty."""
    there = world()
    there.model = Garbled(there.model)
    with structlog.testing.capture_logs() as lines:
        events = await there.play("r", limit=25)
    warnings = [line for line in lines if line["event"] == "gate_degraded"]
    assert [(line["log_level"], line["run_id"]) for line in warnings] == [("warning", "r")]
    assert "above 20%" in warnings[0]["reason"]
    assert [one for one in events if one.kind == "noted"] == []
    summary = summarize(events)
    assert (summary.gate.to_judge, summary.gate.degraded, summary.gate.unread) == (25, 25, {"no_object": 50})
    assert summary.bank_sizes == {"planning": 0, "execution": 0}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def view(events, warning=""):
    log, queue = ListLog(RunId("made"), SystemClock()), LocalQueue()
    conductor, projector = Conductor(log, queue), Projector(log)
    for one in events:
        conductor.see(one)
    return RunView(
        run=RunId("made"), conductor=conductor, projector=projector, acting=True, waits_for=None, warning=warning
    )


def with_troubles(made):
    """The made run's events, the diagnoses of three episodes otherwise: repaired, unreadable, with unknown names."""
    others = {
        "episode-0": lambda one: changed(one, calls=["episode-0/gate/1", "episode-0/gate/1.1"], unread=["cut"]),
        "episode-1": lambda _: failed(),
        "episode-2": lambda one: changed(one, misleading_dropped=3),
    }
    return [
        _again(one, others[one.stream](decode(one))) if one.kind == "diagnosed" and one.stream in others else one
        for one in made.events
    ]


def _again(one, event):
    return recorded(
        draft(event), run=one.run, stream=one.stream, version=one.version, position=one.position, at=one.at,
        cause=one.cause, attempt=one.attempt,
    )  # fmt: skip


def test_the_live_line_tells(made_run):
    """Degraded and repaired diagnoses and dropped names stand on the line; where there are none, nothing does."""
    assert "degraded 1  repaired 1  ids dropped 3" in told(view(with_troubles(made_run())))
    assert not re.search("degraded|repaired|dropped", told(view(made_run().events)))


@pytest.mark.parametrize(
    ("stream", "as_json", "said"), [(Terminal, False, 1), (io.StringIO, True, 1), (io.StringIO, False, 0)]
)
def test_the_warning_is_one_line(made_run, stream, as_json, said):
    """On a terminal, and beside an envelope, it is one line that stays; elsewhere the log line is there."""
    err = stream()
    live = LiveLine(Output(json=as_json, out=io.StringIO(), err=err), SystemClock())
    live(RunId("made"), view(made_run().events))
    live(RunId("made"), view(made_run().events, "11 of the last 50 diagnoses are degraded\x1b[2J"))
    live(RunId("made"), view(made_run().events))
    live.done()
    assert err.getvalue().count("warning: run made: 11 of the last 50") == said
    assert "\x1b[2J" not in err.getvalue()
    # What is drawn over is what came after the warning, never the warning itself.
    assert "F" not in err.getvalue().partition("warning:")[2].partition("made")[0]


def test_run_show(made_run):
    """`run show` has the figures as a line and, in JSON, by name."""
    figures = summarize(with_troubles(made_run())).gate
    assert gate_line(figures) == (
        "6 to judge, 1 degraded (16.7%), 1 repaired, 2 misleading named, 3 unknown names dropped; "
        "unread: cut 1, label 1, no_object 1"
    )
    assert gate_line(GateRates().figures()) == "nothing to judge yet"
