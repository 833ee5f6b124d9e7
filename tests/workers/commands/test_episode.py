def test_list_with_filters(chime, uploaded, made_run):
    """Episodes are listed in stream order; filters narrow them."""
    uploaded(made_run())
    rows = chime.json("episode", "list", "made")["data"]
    assert [row["episode"] for row in rows] == list(range(6))
    assert [row["episode"] for row in chime.json("episode", "list", "--failed")["data"]] == [3, 4, 5]
    assert [row["episode"] for row in chime.json("episode", "--label", "both")["data"]] == [1]
    assert "task-5" in chime("episode", "list", "made")


def test_show(chime, uploaded, made_run):
    """One episode is shown stage by stage, with the recall's arithmetic, the diagnosis and the fold."""
    uploaded(made_run())
    out = chime("episode", "show", "made", "1")
    for part in ("planning bank at version 1", "planning-0", "first this, then that", "3 steps", "success, reward 1",
                 "earned by both, confidence 0.80", "folded into version 2", "merge: "):  # fmt: skip
        assert part in out
    data = chime.json("episode", "show", "episode-1")["data"]
    assert [one["kind"] for one in data["events"]] == [
        "retrieved", "planned", "retrieved", "executed", "scored", "diagnosed",
    ]  # fmt: skip
    assert data["events"][0]["data"]["query"]["vector"] == {"dim": 8}
    assert data["folded"]["data"]["bank_version"] == 2


def test_unknown_episodes(chime, uploaded, made_run):
    """An episode that is not there, or no number, is one line with what there is."""
    uploaded(made_run())
    chime("episode", "show", "made", "9", code=2)
    assert "has no episode 9; it has 0 to 5" in chime.err
    chime("episode", "show", "made", "first", code=2)
    assert "write its number" in chime.err


def test_prompts_of_a_run_without_calls(chime, uploaded, made_run):
    """--prompts lists the recorded calls; a run without any has none."""
    uploaded(made_run())
    assert chime.json("episode", "show", "made", "0", "--prompts")["data"]["calls"] == []
