import json

import pytest


def test_list_is_the_format(chime, uploaded, made_run):
    """`memory list --at --json` has version, digest and items at the top level, every item under the fixed names."""
    made = made_run()
    uploaded(made)
    body = chime.json("memory", "list", "made", "--at", "2")
    assert body.keys() == {"schema", "as_of", "version", "digest", "items"}
    assert body["version"] == 2
    assert [item["id"] for item in body["items"]] == ["planning-0", "execution-1"]
    assert set(body["items"][0]) == {
        "bank", "id", "scenario", "experience", "delta_sum", "n", "value", "bullets", "sources", "seeded_sources",
        "inserted_at", "changed_at",
    }  # fmt: skip
    assert body["items"][0]["experience"].endswith("\n- Another way to look at it, closely.")
    newest = chime.json("memory", "list", "made")
    assert (newest["version"], newest["digest"]) == (6, made.banks.digest())
    assert chime.json("memory")["digest"] == newest["digest"]
    assert chime.json("memory", "list", "made", "--at", "0")["items"] == []
    assert chime.json("memory", "list", "made", "--at", "50%")["version"] == 3


def test_list_for_people(chime, uploaded, made_run):
    """The table names id, value and uses; the last line the version, the sizes and the digest."""
    uploaded(made_run())
    out = chime("memory", "list", "made", "--at", "2", "--bank", "planning")
    assert "planning-0" in out
    assert "execution-1  " not in out
    assert out.splitlines()[-1].startswith("version 2: 1 planning, 1 execution; digest ")


def test_show_and_history(chime, uploaded, made_run):
    """`show` prints one item in full, `history` its life with episode, label and confidence; RUN may be left out."""
    uploaded(made_run())
    assert chime.json("memory", "show", "made", "planning-0", "--at", "2")["data"]["n"] == 1
    assert "Look before you leap" in chime("memory", "show", "planning-0", "--at", "2")
    moments = chime.json("memory", "history", "made", "planning-0")["data"]
    assert [one["what"] for one in moments] == [
        "inserted", "credited", "merged (appended)", "used", "penalised", "penalised", "pruned",
    ]  # fmt: skip
    out = chime("memory", "history", "planning-0")
    assert "task-3" in out
    assert "0.80" in out


def test_diff(chime, uploaded, made_run):
    """`diff` counts and lists what was added, merged, revalued and pruned between two versions."""
    uploaded(made_run())
    data = chime.json("memory", "diff", "made", "--at", "1", "--at", "2")["data"]
    assert data["counts"] == {"added": 1, "text": 1, "value": 1, "gone": 0}
    out = chime("memory", "diff", "made", "--at", "2", "--at", "100%")
    assert "1 gone" in out.splitlines()[0]
    assert out.startswith("made version 2 (2 items) -> made version 6 (")
    uploaded(made_run("other"))
    assert chime("memory", "diff", "made", "other").startswith("made version 6 (")
    assert " -> other version 6 (" in chime("memory", "diff", "made", "other")
    data = chime.json("memory", "diff", "made", "other")["data"]
    assert (data["before"]["run"], data["after"]["run"]) == ("made", "other")
    assert chime.json("memory", "diff", "made", "made")["data"]["changes"] == []
    chime("memory", "diff", "made", code=2)


def test_unknown_names(chime, uploaded, made_run):
    """An unknown run, memory or version is one line that names what is near or how to list, exit code 2."""
    chime("memory", "list", "made", code=2)
    assert chime.err.startswith("chime: no run 'made' on ")
    assert "there are none yet" in chime.err
    chime("memory", "list", code=2)
    assert "chime demo" in chime.err
    uploaded(made_run())
    chime("memory", "list", "maed", code=2)
    assert "did you mean made?" in chime.err
    chime("memory", "list", "Not A Run", code=2)
    assert "is no run id" in chime.err
    chime("memory", "show", "made", "planing-0", "--at", "2", code=2)
    assert "did you mean planning-0" in chime.err
    chime("memory", "history", "made", "zzz", code=2)
    assert "chime memory list" in chime.err
    chime("memory", "list", "made", "--at", "7", code=2)
    assert "newest bank version of this run is 6" in chime.err
    assert len(chime.err.splitlines()) == 1


def test_export(chime, uploaded, made_run, folder):
    """`export` writes the origin, then every item with its vectors."""
    made = made_run()
    uploaded(made)
    chime("memory", "export", "made", "-o", "bank.jsonl")
    first, *items = [json.loads(line) for line in (folder / "bank.jsonl").read_text().splitlines()]
    assert (first["run"], first["version"], first["digest"]) == ("made", 6, made.banks.digest())
    assert [item["id"] for item in items] == [f"made.{item.id}" for item in made.banks]
    assert items[0]["scenario_vector"]["dim"] == 8


def test_fork(chime, uploaded, made_run):
    """`fork` begins a run whose version 0 is the bank, with ids that name the origin; doing it twice is harmless."""
    uploaded(made_run())
    body = chime.json("memory", "fork", "made", "--at", "2", "--run", "child", "--frozen")["data"]
    assert body == {"run": "child", "seed_version": 2, "items": 2, "new": True}
    listed = chime.json("memory", "list", "child")
    assert [item["id"] for item in listed["items"]] == ["made.planning-0", "made.execution-1"]
    assert {item["inserted_at"] for item in listed["items"]} == {0}
    assert chime.json("memory", "fork", "made", "--at", "2", "--run", "child", "--frozen")["data"]["new"] is False
    shown = chime.json("run", "show", "child")["data"]
    assert (shown["frozen"], shown["seed_bank"]["run"], shown["seed_bank"]["version"]) == (True, "made", 2)
    chime("memory", "fork", "made", "--at", "1", "--run", "child", code=2)
    assert "exists with another configuration" in chime.err


@pytest.mark.parametrize("words", [["a", "b", "c"], []])
def test_too_many_words(chime, words):
    """Too many or too few words are a usage error."""
    chime("memory", "show", *words, code=2)
