import csv
import json

import msgspec
import pytest

from events.codec import export_line


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "folder"])
def test_export_and_import(chime, uploaded, made_run, folder, name):
    """A log that was exported, deleted and imported is the same bytes when exported again."""
    made = made_run()
    uploaded(made)
    chime("log", "export", "made", "-o", name)
    before = chime("log", "export", "made")
    assert [json.loads(line)["position"] for line in before.splitlines()] == list(range(1, len(made.events) + 1))
    chime("run", "delete", "made")
    report = chime.json("log", "import", f"./{name}")["data"]
    assert (report["run"], report["events"], report["written"]) == ("made", len(made.events), True)
    assert chime("log", "export", "made") == before
    assert chime.json("log", "import", f"./{name}")["data"]["written"] is False
    assert chime.json("log", "verify", "made")["data"]["digest"] == made.banks.digest()


def test_exports_are_read_like_runs(chime, uploaded, made_run, folder):
    """Every reading command takes the path of an export in place of a run, without a server."""
    made = made_run()
    (folder / "a.jsonl").write_bytes(b"".join(map(export_line, made.events)))
    for arguments in (
        ("memory", "list"), ("run", "show"), ("run", "export-config"), ("episode", "list"), ("log", "verify"),
        ("log", "refold"), ("log", "tail"), ("memory", "export"), ("log", "export"),
    ):  # fmt: skip
        assert chime(*arguments, "a.jsonl", "--redis-url", "unix:///nowhere/s")
    for arguments in (
        ("memory", "show", "a.jsonl", "execution-1"), ("memory", "history", "a.jsonl", "planning-0"),
        ("memory", "diff", "a.jsonl", "--at", "1"), ("episode", "show", "a.jsonl", "3"),
        ("run", "compare", "a.jsonl", "./a.jsonl"),
    ):  # fmt: skip
        assert chime(*arguments, "--redis-url", "unix:///nowhere/s")
    chime("episode", "show", "a.jsonl", "3", "--prompts", code=2)
    assert "--with-blobs" in chime.err


def test_export_as_rows(chime, uploaded, made_run, folder):
    """A .csv holds one row an episode."""
    uploaded(made_run())
    assert chime.json("log", "export", "-o", "a.csv")["data"] == {"path": "a.csv", "rows": 6}
    with (folder / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["task_id"] for row in rows] == [f"task-{t}" for t in range(6)]


def test_exports_on_stdout_as_an_envelope(chime, uploaded, made_run):
    """--json without -o is one envelope for banks, and refused for a log, whose lines are JSON already."""
    made = made_run()
    uploaded(made)
    data = chime.json("memory", "export", "made")["data"]
    assert (data["run"], data["digest"], len(data["items"])) == ("made", made.banks.digest(), len(made.banks))
    lines = chime("memory", "export", "made").splitlines()
    assert [json.loads(line)["id"] for line in lines[1:]] == [item["id"] for item in data["items"]]
    body = chime.json("log", "export", "made", code=2)
    assert "-o PATH" in body["error"]["message"]


def test_export_with_bodies(chime, uploaded, made_run, folder):
    """--with-blobs writes bodies along, and needs somewhere to write them."""
    uploaded(made_run())
    report = chime.json("log", "export", "made", "-o", "out", "--with-blobs")["data"]
    assert (report["blobs"], report["calls"]) == (0, 0)
    assert chime.json("episode", "show", "./out", "0", "--prompts")["data"]["calls"] == []
    chime("log", "export", "made", "--with-blobs", code=2)
    chime("log", "export", "made", "--format", "csv", code=2)
    chime("log", "export", "made", "-o", "a.csv", "--with-blobs", code=2)
    chime("log", "export", "made", "-o", "a.txt", code=2)


def test_import_under_another_name(chime, uploaded, made_run, folder):
    """--run gives the run another name; its banks are equal."""
    made = made_run()
    (folder / "a.jsonl").write_bytes(b"".join(map(export_line, made.events)))
    assert chime.json("log", "import", "a.jsonl", "--run", "copy")["data"]["run"] == "copy"
    assert chime.json("memory", "list", "copy")["digest"] == made.banks.digest()


def test_damaged_exports(chime, made_run, folder):
    """A truncated, a changed, an empty and a missing export are named, with the exit code of their condition."""
    made = made_run()
    lines = list(map(export_line, made.events))
    (folder / "cut.jsonl").write_bytes(b"".join(lines)[:-20])
    (folder / "gap.jsonl").write_bytes(b"".join([*lines[:5], *lines[6:]]))
    (folder / "newer.jsonl").write_bytes(b"".join(lines).replace(b'"schema":1', b'"schema":7'))
    (folder / "empty.jsonl").write_bytes(b"")
    for name, code in (("cut", 4), ("gap", 4), ("newer", 2), ("empty", 2), ("missing", 2)):
        for command in ("verify", "import"):
            chime("log", command, f"{name}.jsonl", code=code)
            (line,) = chime.err.splitlines()
            assert name in line or "schema 7" in line
    assert chime("run") == ""


def test_import_over_another_log(chime, uploaded, made_run, folder):
    """An export whose run is there with other events is refused, and nothing is changed."""
    made = made_run()
    (folder / "a.jsonl").write_bytes(b"".join(map(export_line, made.events)))
    other = made_run(flipped=True)
    uploaded(other)
    chime("log", "import", "a.jsonl", code=4)
    assert "another name" in chime.err
    assert chime.json("memory", "list", "made")["digest"] == other.banks.digest()


def test_a_changed_event_in_a_segment(chime, uploaded, made_run, folder):
    """A segment whose bytes changed is named with its positions."""
    uploaded(made_run())
    chime("log", "export", "made", "-o", "out")
    manifest = msgspec.json.decode((folder / "out" / "manifest.json").read_bytes())
    segment = folder / "out" / manifest["segments"][0]["file"]
    segment.write_bytes(segment.read_bytes()[:-30])
    chime("log", "verify", "./out", code=4)
    assert "000001.jsonl.zst" in chime.err
    assert "positions 1 to" in chime.err
