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
