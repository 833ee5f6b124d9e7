import json

import msgspec
import pytest

from events.codec import export_line, parse_line
from events.kinds import KINDS
from workers.schema import kind_schemas


def test_verify(chime, uploaded, made_run):
    """A log that the fold gives again is verified: events, versions, recalls, digest."""
    made = made_run()
    uploaded(made)
    data = chime.json("log", "verify", "made")["data"]
    assert (data["events"], data["versions"], data["recalls"]) == (len(made.events), 6, 12)
    assert data["digest"] == made.banks.digest()
    assert "verified" in chime("log", "verify")


def test_verify_names_what_differs(chime, uploaded, made_run):
    """A log whose fold was changed ends with 4, naming the event."""
    made = made_run()
    at = next(i for i, one in enumerate(made.events) if one.id == "made/projector/3")
    broken = json.loads(made.events[at].data)
    broken["digest"] = "0" * 64
    changed = json.dumps(broken, sort_keys=True, separators=(",", ":")).encode()
    made.events[at] = msgspec.structs.replace(made.events[at], data=changed)
    uploaded(made)
    body = chime.json("log", "verify", "made", code=4)
    assert "made/projector/3: digest differs" in body["error"]["message"]
    assert body["error"]["kind"] == "FoldMismatch"


def test_refold_with_other_parameters(chime, uploaded, made_run):
    """A refold under other parameters is labelled off-policy and says what changed, without a model."""
    made = made_run()
    uploaded(made)
    data = chime.json("log", "refold", "made", "-s", "policy.theta_merge=0.99")["data"]
    assert data["off_policy"] is True
    assert data["differs"] == {"theta_merge": ["0.88", "0.99"]}
    assert data["recorded"]["digest"] == made.banks.digest()
    assert data["first_difference"] == 2
    assert data["refolded"]["operations"]["insert"] > data["recorded"]["operations"]["insert"]
    out = chime("log", "refold", "made", "--policy", "outcome")
    assert out.startswith("OFF-POLICY: name credit -> outcome")
    chime("log", "refold", "made", "--policy", "nobody", code=2)
    chime("log", "refold", "made", "-s", "policy.theta_merge=2", code=2)


def test_a_refold_takes_the_policy_only(chime, uploaded, made_run):
    """A setting that has no part in a refold is refused, not ignored; a preset gives its policy."""
    uploaded(made_run())
    for one in ("run.lag=3", "models.temperature=1", "policy.theta_merge", "theta_merge=0.9"):
        chime("log", "refold", "made", "-s", one, code=2)
        assert f"-s {one}: a refold takes policy.NAME=VALUE only" in chime.err
    chime("log", "refold", "made", "--preset", "papr", code=2)
    assert chime.json("log", "refold", "made", "--preset", "paper")["data"]["off_policy"] is False
    data = chime.json("log", "refold", "made", "--preset", "paper", "-s", "policy.name=outcome")["data"]
    assert data["differs"] == {"name": ["credit", "outcome"]}


def test_refold_as_recorded(chime, uploaded, made_run):
    """A refold without changes is exact: the same digest and no difference."""
    made = made_run()
    uploaded(made)
    data = chime.json("log", "refold", "made")["data"]
    assert (data["off_policy"], data["first_difference"], data["changes"]) == (False, None, [])
    assert data["refolded"]["digest"] == made.banks.digest()
    assert "exact refold" in chime("log", "refold", "made")


def test_tail(chime, uploaded, made_run):
    """`tail` prints the last events; with --json as export lines, byte for byte but for the time."""
    made = made_run()
    uploaded(made)
    out = chime("log", "tail", "made", "-n", "3")
    assert [line.split()[4] for line in out.splitlines()] == ["diagnosed", "folded", "run_finished"]
    lines = chime("log", "tail", "made", "-n", "2", "--json").encode().splitlines(keepends=True)
    parsed = [parse_line(line, "tail") for line in lines]
    assert [export_line(one) for one in parsed] == lines
    assert [one.data for one in parsed] == [one.data for one in made.events[-2:]]
    folds = chime("log", "tail", "made", "--kind", "folded", "-n", "2")
    assert [line.split()[3] for line in folds.splitlines()] == ["5", "6"]
    assert chime("log", "tail", "made", "--follow", "-n", "1").split()[4] == "run_finished"
    chime("log", "tail", "made", "--kind", "nothing", code=2)


def test_list(chime, uploaded, made_run):
    """Logs are listed with events, streams and bank versions."""
    made = made_run()
    uploaded(made)
    assert chime.json("log")["data"] == [
        {"run": "made", "events": len(made.events), "streams": 8, "bank_version": 6, "finished": True}
    ]
    assert "made" in chime("log", "list")


def test_a_schema_for_every_kind(chime):
    """`log schema` has one schema a kind; each names every field of the struct and of the line, all required."""
    schemas = chime.json("log", "schema")["data"]
    assert set(schemas) == set(KINDS)
    for kind, struct in KINDS.items():
        schema = schemas[kind]
        assert schema["properties"]["kind"] == {"const": kind}
        assert schema["properties"]["schema"] == {"const": struct.SCHEMA}
        assert set(schema["required"]) == {
            "id", "run", "stream", "version", "position", "kind", "schema", "at", "cause", "attempt", "data",
        }  # fmt: skip
        fields = schema["$defs"][struct.__name__]["properties"]
        assert set(fields) == {field.encode_name for field in msgspec.structs.fields(struct)}
    assert json.loads(chime("log", "schema", "diagnosed"))["title"] == "diagnosed"
    chime("log", "schema", "nothing", code=2)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_schemas_stand_alone(kind):
    """Every reference inside a schema is resolved inside it."""
    schema = kind_schemas()[kind]
    text = json.dumps(schema)
    named = {part.split('"')[0] for part in text.split("#/$defs/")[1:]}
    assert named <= set(schema["$defs"])
    assert f"#/$defs/{KINDS[kind].__name__}" in text


def test_archive(chime, uploaded, made_run, folder, monkeypatch):
    """Most of a finished run's log goes into the home; every reader says what it said before; a deletion takes both."""
    monkeypatch.setattr("infra.archive.SEGMENT", 10)
    made = made_run()
    uploaded(made)
    run, events = made.run, len(made.events)
    words = [
        f"log verify {run}", f"memory list {run} --at 1", f"memory list {run}", f"episode show {run} 1",
        f"log refold {run} -s policy.theta_merge=0.9", f"run show {run}", "run list", "log list", f"episode list {run}",
        f"log tail {run}", f"log export {run}",
    ]  # fmt: skip
    asked = [one.split() for one in words]
    before = [chime(*one) for one in asked]
    assert f"would archive {events - 1} more of {events} events" in chime("log", "archive", run, "--dry-run")
    assert f"archived {events - 1} events of run {run} in" in chime("log", "archive", run)
    assert "nothing to add" in chime("log", "archive", run)
    assert [chime(*one) for one in asked] == before
    segments = sorted(folder.rglob("archive/*/*.jsonl.zst"))
    whole = segments[0].read_bytes()
    segments[0].write_bytes(b"x")
    chime("log", "verify", run, code=4)
    assert "positions 1 to 10) is damaged" in chime.err
    assert "archived files" in chime("run", "delete", run, "--dry-run", "--force")
    segments[0].write_bytes(whole)
    assert "archived files" in chime("run", "delete", run, "--dry-run")
    chime("run", "delete", run)
    assert not list(folder.rglob("archive/*/*"))


def test_archive_elsewhere(chime, uploaded, made_run, folder):
    """A folder of one's own; a reader without it is told which one is missing, and ends with 3."""
    made = made_run()
    uploaded(made)
    assert str(folder / "mine") in chime("log", "archive", made.run, "--to", str(folder / "mine"))
    (folder / "mine").rename(folder / "moved")
    chime("log", "verify", made.run, code=3)
    assert f"archive at folder {folder / 'mine' / made.run}: there is no such folder on this machine" in chime.err
    chime("log", "archive", made.run, "--to", str(folder / "other"), code=2)
    assert "one place" in chime.err


@pytest.mark.parametrize(
    ("gone", "code", "told"),
    [
        ("", 3, "archive at folder {place}: there is no such folder on this machine"),
        ("manifest*.json", 3, "archive at folder {place}: it has no manifest-"),
        ("*20.jsonl.zst", 4, "folder {place}, 000000000020.jsonl.zst (positions 11 to 20) is damaged: it is missing"),
    ],
)
def test_an_archive_that_is_gone_is_told_where_nothing_is_to_be_added(
    chime, uploaded, made_run, folder, monkeypatch, gone, code, told
):
    """Whoever archives every night hears of it that night; once it is back, there is nothing to add again."""
    monkeypatch.setattr("infra.archive.SEGMENT", 10)
    made = made_run()
    uploaded(made)
    run, place = made.run, folder / ".chime" / "archive" / made.run
    chime("log", "archive", run)
    moved = [(one, folder / f"{one.name} moved") for one in (place.glob(gone) if gone else [place])]
    assert moved
    for here, there in moved:
        here.rename(there)
    for words in ((), ("--dry-run",), ()):
        chime("log", "archive", run, *words, code=code)
        assert told.format(place=place) in chime.err
        assert place.exists() == bool(gone)
    for here, there in moved:
        there.rename(here)
    assert "nothing to add" in chime("log", "archive", run)


def test_a_place_that_ends_with_the_command(chime, uploaded, made_run):
    """An archive in the command's own memory is refused before the server lets go of anything."""
    made = made_run()
    uploaded(made)
    chime("log", "archive", made.run, "--to", "memory://mine", code=2)
    assert "name a place that lasts" in chime.err
    chime("log", "verify", made.run)


@pytest.mark.parametrize("place", ["", " "])
def test_a_place_without_a_name(chime, uploaded, made_run, folder, place):
    """An empty place, as a shell's unset variable is, is refused: it is not the folder that one happens to be in."""
    made = made_run()
    uploaded(made)
    chime("log", "archive", made.run, "--to", place, code=2)
    assert "names no place" in chime.err
    assert not (folder / made.run).exists()


def test_a_run_whose_archive_is_away(chime, uploaded, made_run, folder):
    """It is shown with what checkpoint and server say, and a line about the rest; it can be deleted without --force."""
    made = made_run()
    uploaded(made)
    run, place = made.run, folder / ".chime" / "archive" / made.run
    before = chime.json("run", "show", run)["data"]
    banks = chime.json("memory", "list", run)["items"]
    chime("log", "archive", run)

    def shown(reason, **unlike):
        text = " ".join(chime("run", "show", run).split())
        assert f"banks version {made.banks.version}: " in text
        assert "operations not at hand" in text
        assert chime.err.count("note: the archived part of the log is not at hand, ") == 1
        assert reason in chime.err
        found = chime.json("run", "show", run)["data"]
        assert reason in found.pop("past")
        assert found == {name: value for name, value in before.items() if name != "past"} | unlike

    for segment in place.glob("*.jsonl.zst"):
        segment.unlink()
    unknown = {"usage": [], "total": None, "gate": None, "operations": {}, "recalls": {}}
    shown("it is missing", **unknown)
    # The newest banks lie in the checkpoint, older ones do not.
    assert chime.json("memory", "list", run)["items"] == banks
    chime("memory", "list", run, "--at", "1", code=4)
    assert ".jsonl.zst (positions 1 to " in chime.err
    place.rename(folder / "moved")
    shown("no such folder", **unknown, attributions={}, degraded={}, bank_sizes={}, abandoned=0)
    chime("run", "cancel", run, code=2)
    assert "is finished already" in chime.err
    chime("run", "delete", run)
    chime("run", "show", run, code=2)
