"""The harness: medians and ratios by round, goals, and the table that is made of them."""

import os
import subprocess
import sys

import msgspec
import pytest

from bench.__main__ import Results, merged
from bench.machine import Machine, machine
from bench.measure import (
    Row,
    Sample,
    Scale,
    Spread,
    Subject,
    compared,
    cpu_of,
    limited,
    rated,
    ratio,
    rounds,
    sampled,
    spread,
    within,
)
from bench.table import duration, line, markdown, worst

#: ours takes 1, 2, 6 ms where theirs takes 1, 1, 2 ms
FOUND = {
    "ours": [Sample(cpu_s=s, wall_s=2 * s) for s in (0.001, 0.002, 0.006)],
    "theirs": [Sample(cpu_s=s, wall_s=s) for s in (0.001, 0.001, 0.002)],
}


def test_a_spread_is_median_lowest_and_highest():
    """Whatever the order of the rounds."""
    assert spread([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0)


def test_a_ratio_is_taken_in_each_round():
    """The median of 1, 2 and 3, not the ratio of the medians: a busy neighbour hits both in one round."""
    assert ratio(FOUND["ours"], FOUND["theirs"]) == Spread(2.0, 1.0, 3.0)


@pytest.mark.parametrize(("at_most", "met"), [(1.9, False), (2.0, True)])
def test_a_goal_as_a_ratio(at_most: float, met: bool):
    """It is met at its value and missed above it."""
    row = compared("group", FOUND, "ours", "theirs", at_most=at_most)
    assert (row.met, row.goal) == (met, f"<= {at_most:g} x")


@pytest.mark.parametrize(("plus_s", "met"), [(0.0006, False), (0.0008, True)])
def test_a_goal_with_an_allowance(plus_s: float, met: bool):
    """Ours less 1.3 x theirs is -0.3, 0.7 and 3.4 ms: 0.7 ms counts."""
    assert within("group", FOUND, "ours", "theirs", times=1.3, plus_s=plus_s).met is met


def test_a_goal_as_a_time_and_as_a_rate():
    """2 ms of CPU time, whatever the wall says; 500 in a second."""
    assert limited("group", FOUND, "ours", unit="ms", at_most=2.0).figure == Spread(2.0, 1.0, 6.0)
    assert limited("group", FOUND, "ours", unit="ms", at_most=1.9).met is False
    assert rated("group", FOUND, "ours", unit="events/s", at_least=500.0).met is True


def test_rounds_interleave_and_drop_the_first():
    """Each subject in each round, and once before that."""
    said: list[str] = []
    subjects = [Subject(what=name, run=lambda name=name: said.append(name)) for name in ("a", "b")]
    found = rounds(subjects, 2)
    assert said == ["a", "b"] * 3
    assert {name: len(samples) for name, samples in found.items()} == {"a": 2, "b": 2}


def test_cpu_time_of_another_process_counts_for_each_operation():
    """A child that computes costs what its own clock says; ours is left out where it should be."""
    code = (
        "import sys, time\nprint('ready', flush=True)\n"
        "for _ in sys.stdin:\n end = time.process_time() + 0.2\n"
        " while time.process_time() < end: pass\n print(1, flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()  # what its start costs is over
        started = cpu_of(child.pid)

        def ask() -> None:
            print(file=child.stdin, flush=True)
            child.stdout.readline()  # type: ignore[union-attr]  # asserted above

        sample = sampled(Subject(what="child", run=ask, operations=10, pids=[child.pid], own=False))
        assert sample.cpu_s == pytest.approx((cpu_of(child.pid) - started) / 10, abs=0.005)
        child.kill()
    assert cpu_of(2**22 - 1) == 0.0, "a process that is gone costs nothing"


def test_a_scale_keeps_the_least():
    """A tiny share still measures something."""
    assert Scale(share=0.02).of(1_000, 50) == 50
    assert Scale(share=0.02).of(10_000, 50) == 200


def test_the_table_says_missed_and_not_run():
    """A goal that is missed says so, and a row that could not be measured says why, printed and in Markdown."""
    missed = compared("append", FOUND, "ours", "theirs", at_most=1.0)
    absent = Row(group="orchestration", what="beside", beside="a library", not_run="it needs a module")
    assert "2.00 x (1.00 .. 3.00)  <= 1 x missed" in line(missed)
    assert "not run: it needs a module" in line(absent)
    text = markdown(machine(), [missed, absent])
    assert "| append: ours | theirs | 2.00 ms | 1.00 ms | 2.00 x (1.00 .. 3.00) | <= 1 x: **missed** |" in text
    assert "| not run: it needs a module |" in text


def test_the_brief_table_shows_what_stands_worst():
    """Of rows with one goal beside one library the largest ratio stays, or the smallest rate, and says of how many."""
    ratios = [
        Row(group="append", what=name, beside="XADD", figure=Spread(at, at, at), unit="x", goal="<= 2 x", met=at <= 2)
        for name, at in (("small", 1.0), ("large", 3.0), ("middle", 1.5))
    ]
    rates = [
        Row(group="replay", what=name, figure=Spread(at, at, at), unit="events/s", goal=">= 1 events/s", met=True)
        for name, at in (("fast", 9.0), ("slow", 4.0))
    ]
    assert [row.what for row in worst([*ratios, *rates])] == ["large (worst of 3)", "slow (worst of 2)"]
    assert worst(ratios[:1]) == ratios[:1]


def test_results_are_read_as_they_were_written():
    """Rows and machine survive the results file."""
    row = compared("append", FOUND, "ours", "theirs", at_most=1.0)
    assert msgspec.json.decode(msgspec.json.encode(row), type=Row) == row
    here = machine()
    assert msgspec.json.decode(msgspec.json.encode(here), type=Machine) == here
    assert here.cpus == os.cpu_count()


@pytest.mark.parametrize(("seconds", "shown"), [(2.5, "2.50 s"), (0.0025, "2.50 ms"), (2.5e-5, "25.00 us")])
def test_durations_have_the_unit_that_suits_them(seconds: float, shown: str):
    """Seconds, milliseconds, microseconds."""
    assert duration(seconds) == shown


def test_results_of_several_runs_are_merged_by_row():
    """Of each file's rows the last results count, in the table's order; each row keeps its commit."""
    here = machine()

    def results(commit: str, *groups: str) -> Results:
        rows = [Row(group=name, what=commit, commit=commit, load=1.0) for name in groups]
        return Results(scale=1.0, machine=here, rows=rows)

    both = merged([results("old", "replay", "append"), results("new", "replay")])
    assert [(row.group, row.what) for row in both.rows] == [("append", "old"), ("replay", "new")]
    assert "append at old (load 1 to 1); replay at new (load 1 to 1)" in markdown(here, both.rows)
