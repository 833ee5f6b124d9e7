from workers.layers import Flags, resolve


def test_list_and_show(chime, uploaded, made_run):
    """Runs are listed newest first with score, interval and bank sizes; `show` prints one in full."""
    assert chime("run") == ""
    assert "no runs yet" in chime.err
    first, second = made_run("a"), made_run("b", labels=("rehearsal",))
    uploaded(first)
    uploaded(second)
    rows = chime.json("run", "list")["data"]
    assert [row["run"] for row in rows] == ["b", "a"]
    assert rows[0]["labels"] == ["rehearsal"]
    out = chime("run")
    assert "50.0% of 6" in out
    assert "unpriced" in out
    shown = chime("run", "show")
    assert "rehearsal" in shown
    assert first.banks.digest() in chime("run", "show", "a")


def test_prices_make_costs(chime, uploaded, made_run):
    """With a price for the model the cost is shown."""
    uploaded(made_run())
    out = chime("run", "list", "-s", "prices.made-model.input=1", "-s", "prices.made-model.output=2")
    assert "$0.0022" in out


def test_compare(chime, uploaded, made_run):
    """`compare` pairs by task: counts, intervals, difference, p, flips."""
    uploaded(made_run("a"))
    uploaded(made_run("b", flipped=True))
    data = chime.json("run", "compare", "a", "b")["data"]
    assert (data["tasks"], data["first"]["successes"], data["second"]["successes"]) == (6, 3, 2)
    assert [flip["task"] for flip in data["flips"]] == ["task-1"]
    out = chime("run", "compare", "a", "b")
    assert "difference -16.7%" in out
    assert "McNemar" in out
    assert "task-1" in out
    chime("run", "compare", "a", "nobody", code=2)


def test_cancel(chime, uploaded, made_run):
    """`cancel` ends an open run for good, is recorded with its author, and is refused on a finished one."""
    made = made_run()
    made.events = made.events[:15]
    uploaded(made)
    assert chime.json("run", "cancel", "made", "--dry-run")["data"]["not_begun"] == 4
    assert chime.json("run", "show", "made")["data"]["status"] == "open"
    data = chime.json("run", "cancel", "made", "--reason", "enough")["data"]
    assert data == {"run": "made", "dry_run": False, "not_begun": 4, "finished": True}
    shown = chime.json("run", "show", "made")["data"]
    assert shown["status"] == "stopped"
    assert shown["counts"] == {"episodes": 2, "diagnosed": 2, "degraded": 0, "abandoned": 0, "folded": 2}
    chime("run", "cancel", "made", code=2)
    assert "finished already" in chime.err


def test_cancel_with_open_episodes(chime, uploaded, made_run):
    """A run with an episode under way is cancelled, and finished only when that has ended."""
    made = made_run()
    made.events = made.events[:11]
    uploaded(made)
    assert chime.json("run", "cancel", "made")["data"]["finished"] is False
    assert chime.json("run", "show", "made")["data"]["status"] == "cancelled"


def test_delete(chime, uploaded, made_run, keys_left):
    """`delete` says what it would remove, guards runs that are not finished, and leaves no key."""
    made = made_run()
    uploaded(made)
    would = chime.json("run", "delete", "made", "--dry-run")["data"]
    assert would["deleted"]["events"] == len(made.events)
    assert keys_left() != []
    chime("run", "delete", "made")
    assert keys_left() == []
    chime("run", "show", "made", code=2)
    made.events = made.events[:9]
    uploaded(made)
    chime("run", "delete", "made", code=2)
    assert "--force" in chime.err
    chime("run", "delete", "made", "--force")
    assert keys_left() == []


def test_export_config(chime, uploaded, made_run, folder):
    """A run's configuration comes back as a file that this code reads as the same settings."""
    uploaded(made_run())
    chime("run", "export-config", "made", "-o", "chime.toml")
    got = resolve(Flags(), {}, folder)
    assert got.configuration.run.concurrency == 1
    assert got.configuration.lag() == 1
    assert got.configuration.model("gate").model == "made-model"
    assert got.origins["policy.theta_merge"].kind == "file"
    assert chime("run", "export-config").startswith("# Configuration of a run")
