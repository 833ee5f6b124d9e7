from events.ids import episode_stream
from events.kinds import Executed, Usage
from runtime.execution import CONTEXT_STOP
from workers.views.episodes import episode_rows


def test_rows_say_how_each_episode_went(made_run):
    """A row has task, outcome, label, calls and what the fold did."""
    rows = episode_rows(made_run().events)
    assert [(row.episode, row.task, row.success, row.label) for row in rows[:3]] == [
        (0, "task-0", True, "planning"),
        (1, "task-1", True, "both"),
        (2, "task-2", True, "execution"),
    ]
    assert rows[0].operations == ["insert"]
    assert rows[1].operations == ["merge", "insert"]
    assert {row.calls for row in rows} == {3}
    assert rows[1].retrieved == 1
    assert {row.stage for row in rows} == {"diagnosed"}


def test_an_episode_that_outgrew_the_window_has_a_problem(made_run):
    """Judged or not, its row says so."""
    made = made_run()
    made.events.pop()
    executed = Executed(trajectory="0" * 64, steps=1, errors=0, stop=CONTEXT_STOP, attempts=[], usage=Usage(), calls=[])
    made.add(episode_stream(6), executed)
    assert [row.problem for row in episode_rows(made.events)] == [None] * 6 + ["context"]
