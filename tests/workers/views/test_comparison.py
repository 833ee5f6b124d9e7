import pytest

from events.errors import BadInput
from workers.views.comparison import compare
from workers.views.summary import Summarizer


def summarizer(made):
    one = Summarizer()
    for recorded in made.events:
        one.feed(recorded)
    return one


def test_paired_by_task(made_run):
    """Two runs over the same tasks: paired table, interval, exact p, and the tasks that flipped."""
    first, second = made_run("a"), made_run("b", flipped=True)
    found = compare(summarizer(first), summarizer(second))
    assert (found.tasks, found.first.successes, found.second.successes) == (6, 3, 2)
    assert found.pairs is not None
    assert (found.pairs.first_only, found.pairs.second_only) == (1, 0)
    assert (found.method, found.p_value) == ("newcombe", 1.0)
    assert found.difference.low < found.difference.estimate == pytest.approx(-1 / 6)
    assert [(flip.task, flip.first, flip.second) for flip in found.flips] == [("task-1", 1.0, 0.0)]
    assert found.warnings == []


def test_what_makes_it_doubtful(made_run):
    """Labels and unfinished runs are said beside the numbers."""
    first, second = made_run("a", labels=("rehearsal",)), made_run("b")
    second.events.pop()
    warnings = compare(summarizer(first), summarizer(second)).warnings
    assert any("rehearsal" in one for one in warnings)
    assert any("run b is not finished" in one for one in warnings)


def test_a_run_beside_itself(made_run):
    """What makes a run doubtful is said once where it is both sides."""
    made = made_run("a", labels=("rehearsal",))
    made.events.pop()
    warnings = compare(summarizer(made), summarizer(made)).warnings
    assert len(warnings) == len(set(warnings)) == 2


def test_nothing_in_common(made_run):
    """Runs without a common task cannot be compared."""
    first, second = made_run("a"), made_run("b")
    other = summarizer(second)
    other._tasks = [f"other-{t}" for t in range(6)]
    with pytest.raises(BadInput, match="in common"):
        compare(summarizer(first), other)
