import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from redis import Redis

from events.codec import canonical
from events.ids import RUN_STREAM, RunId
from events.kinds import Evaluator, Noted, Scored
from infra.redis_client import connected
from infra.redis_log import index_key, log_key
from workers.layers import Flags, resolve


def test_list_and_show(chime, uploaded, made_run):
    """Runs are listed newest first with score and interval; `show` prints one in full."""
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
    assert "unpriced" in chime("run", "list", "--full")
    shown = chime("run", "show")
    assert "rehearsal" in shown
    assert first.banks.digest() in chime("run", "show", "a")


def test_prices_make_costs(chime, uploaded, made_run):
    """With a price for the model the cost is shown."""
    uploaded(made_run())
    out = chime("run", "list", "--full", "-s", "prices.made-model.input=1", "-s", "prices.made-model.output=2")
    assert "$0.0022" in out


def test_a_row_says_what_the_summary_says(chime, uploaded, made_run):
    """Every figure of a listed run is the one that reading its whole log gives, whatever its state."""
    for name, events in (("done", None), ("begun", 1), ("half", 20)):
        made = made_run(name)
        made.events = made.events[:events]
        uploaded(made)
    chime("run", "cancel", "half", "--reason", "enough")
    full = {row["run"]: row for row in chime.json("run", "list", "--full")["data"]}
    rows = {row["run"]: row for row in chime.json("run", "list")["data"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "done": "completed", "begun": "open", "half": "cancelled",
    }  # fmt: skip
    for name, row in rows.items():
        assert row == {field: full[name][field] for field in row}


def failing_environment(made, *positions):
    """`made` with the scores at `positions` as they are recorded where the environment failed."""
    evaluator = Evaluator(name="toy", version="1")
    score = Scored(success=False, reward=0.0, evaluator=evaluator, breakdown={"valid": False, "reason": "it is gone"})
    for position in positions:
        made.events[position - 1] = replace(made.events[position - 1], data=canonical(score))
    return made


def test_scores_leave_out_what_the_environment_failed(chime, uploaded, made_run):
    """An episode whose environment failed is told apart: no failure of the agent, and not in the denominator."""
    uploaded(failing_environment(made_run("a"), 27, 41))
    uploaded(made_run("b"))
    for arguments in (("run", "list"), ("run", "list", "--full")):
        (row,) = [one for one in chime.json(*arguments)["data"] if one["run"] == "a"]
        assert (row["scored"], row["successes"], row["not_valid"]) == (4, 3, 2)
    shown = chime("run", "show", "a")
    assert "3 of 4 scored episodes: 75.0%" in shown
    assert "2 more are not counted, their environment failed" in shown
    rows = chime.json("episode", "list", "a")["data"]
    assert [one["episode"] for one in rows if not one["valid"]] == [3, 5]
    assert [one["episode"] for one in chime.json("episode", "list", "a", "--failed")["data"]] == [4]
    assert "not valid: the environment failed" in chime("episode", "show", "a", "3")
    compared = chime.json("run", "compare", "a", "b")["data"]
    assert (compared["tasks"], compared["only_second"]) == (4, 2)
    assert "2 episodes of run a are left out: their environment failed" in compared["warnings"]


def test_damaged_runs_are_listed_with_why(chime, uploaded, made_run, redis_server, redis_prefix):
    """A log that does not begin as ours do, or lost events, is a row that says so, and hides no other run."""
    uploaded(made_run("good"))
    odd = made_run("odd")
    odd.events = [replace(one, version=one.version - 1) for one in odd.events if one.stream == "run"][1:]
    uploaded(odd)
    uploaded(made_run("short"))

    async def lose() -> None:
        async with connected(redis_server.url) as redis:
            await redis.xdel(log_key(redis_prefix, RunId("short")), "1-0")

    anyio.run(lose)
    for arguments in (("run", "list"), ("run", "list", "--full")):
        rows = {row["run"]: row for row in chime.json(*arguments)["data"]}
        assert (rows["good"]["status"], rows["odd"]["status"], rows["short"]["status"]) == (
            "completed", "damaged", "damaged",
        )  # fmt: skip
        assert rows["odd"]["reason"] == "its log does not begin with run_started but with run_finished"
        assert "damaged" in chime(*arguments)
    for arguments in (("run", "show", "odd"), ("run", "cancel", "odd"), ("episode", "list", "short")):
        chime(*arguments, code=2 if arguments[2] == "odd" else 4)
        assert chime.err.count("\n") == 1
    chime("run", "delete", "odd", "--force")


@pytest.mark.parametrize("arguments", [("run", "list"), ("run", "list", "--full")])
def test_a_run_whose_keys_are_of_others(chime, uploaded, made_run, redis_server, redis_prefix, arguments):
    """A run whose index holds something else is a row without a time, with a reason in words."""
    uploaded(made_run("odd"))
    with Redis.from_url(redis_server.url) as client:
        client.set(index_key(redis_prefix, RunId("odd")), "x")
    cells, reason = chime(*arguments).splitlines()[1].split("  its keys cannot be read: ")
    assert cells.split()[:2] == ["odd", "damaged"]
    assert set(cells.split()[2:]) == {"-"}
    assert reason == "a key of ours holds another type; is the prefix used by something else?"


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


def test_delete(chime, uploaded, made_run, keys_left, redis_server, redis_prefix):
    """`delete` says what it would remove, guards runs that are not finished, and leaves no key."""
    made = made_run()
    uploaded(made)
    would = chime.json("run", "delete", "made", "--dry-run")["data"]["deleted"]
    assert would["events"] == len(made.events)
    # What expires by itself may be gone before the deletion: a coordinator's lease, for one.
    with Redis.from_url(redis_server.url) as redis:
        redis.set(f"{redis_prefix}:{{made}}:lease", "x", ex=60)
    assert chime.json("run", "delete", "made", "--dry-run")["data"]["deleted"] == would
    chime("run", "delete", "made")
    assert keys_left() == []
    chime("run", "show", "made", code=2)
    made.events = made.events[:9]
    uploaded(made)
    chime("run", "delete", "made", code=2)
    assert "--force" in chime.err
    chime("run", "delete", "made", "--force")
    assert keys_left() == []


def test_a_deletion_counts_what_it_has_deleted(chime, uploaded, made_run, keys_left, redis_server, redis_prefix):
    """Bodies on a server are counted as the dry run counts them, though they go with the run's other keys."""
    uploaded(made_run())
    with Redis.from_url(redis_server.url) as redis:
        redis.hset(f"{redis_prefix}:{{made}}:blobs", mapping={"a" * 64: b"x", "b" * 64: b"y"})
    would = chime.json("run", "delete", "made", "--dry-run")["data"]["deleted"]
    assert would["blobs"] == 2
    assert chime.json("run", "delete", "made")["data"]["deleted"] == would
    assert keys_left() == []


def shown(terminal: int) -> str:
    """All that a terminal shows, whose other side is closed: it comes in pieces."""
    pieces = list[bytes]()
    with suppress(OSError):  # EIO: that was all
        while piece := os.read(terminal, 4096):
            pieces.append(piece)
    return b"".join(pieces).decode()


@pytest.mark.parametrize(
    ("arguments", "answer", "left"),
    [((), "n", True), ((), "", True), ((), "y", False), (("--yes",), None, False), (("--json",), None, False)],
)
def test_delete_asks_on_a_terminal(chime, uploaded, made_run, keys_left, arguments, answer, left):
    """Who sits at a terminal is shown what would go and asked, unless --yes says it, or a program listens."""
    uploaded(made_run())
    ours, its = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "workers", "run", "delete", "made", *arguments],
        stdin=its, stdout=subprocess.PIPE, stderr=its, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    ) as process:  # fmt: skip
        os.close(its)
        if answer is not None:
            os.write(ours, f"{answer}\n".encode())
        out, _ = process.communicate(timeout=120)
    said = shown(ours)
    os.close(ours)
    assert process.returncode == 0
    assert (keys_left() != []) is left
    assert ("deleted" in out) is not left
    assert ("would delete run made: queue keys 0, banks 0, events" in said) is (answer is not None)


def test_delete_of_an_open_run_is_refused_before_it_asks(chime, uploaded, made_run, keys_left, monkeypatch):
    """A run that is not finished is refused as it is without a terminal."""
    made = made_run()
    made.events = made.events[:9]
    uploaded(made)
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    chime("run", "delete", "made", code=2)
    assert "--force" in chime.err
    assert keys_left() != []


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
    assert "--prompt" not in chime("run", "export-config"), "the run has no prompts of its own"


def test_what_endpoints_do_not_take_is_shown(chime, uploaded, made_run):
    """All notes of one place together, what is asked instead, and what it said."""
    made = made_run()
    made.versions[made.events.pop().stream] -= 1  # its end
    place = {"base_url": "http://127.0.0.1:1/v1", "model": "made-model"}
    for abilities, said in (({"temperature": False}, "no heat"), ({"format": "json_object"}, "no schema")):
        made.add(RUN_STREAM, Noted(topic="capabilities", facts={**place, "abilities": abilities, "evidence": [said]}))
    uploaded(made)
    out = chime("run", "show", "made")
    assert "made-model at http://127.0.0.1:1/v1 is asked with format: json_object, temperature: no" in out
    assert chime.json("run", "show", "made")["data"]["goes_without"] == [
        {**place, "abilities": {"format": "json_object", "temperature": False}, "evidence": ["no heat", "no schema"]}
    ]


def test_what_a_model_holds_is_nothing_that_it_goes_without(chime, uploaded, made_run):
    """A server that lists its models' windows takes all that it is asked."""
    made = made_run()
    made.versions[made.events.pop().stream] -= 1  # its end
    facts = {"base_url": "http://127.0.0.1:1/v1", "model": "made-model", "abilities": {"window": 32768}, "evidence": []}
    made.add(RUN_STREAM, Noted(topic="capabilities", facts=facts))
    uploaded(made)
    assert "goes without" not in chime("run", "show", "made")
    assert chime.json("run", "show", "made")["data"]["goes_without"] == []
