"""`chime memory reembed`: a bank in another embedder's vectors, served over real HTTP, on a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from embedding_server import EmbeddingServer, embedding_server

from events.codec import canonical

MADE = "made"


@pytest.fixture
def served() -> Iterator[EmbeddingServer]:
    """A server with 16 dimensions; those of the made run have 8."""
    with embedding_server() as serving:
        yield serving


def chosen(served: EmbeddingServer) -> list[str]:
    """The words that choose the served embedder."""
    options = {"model": served.model, "base_url": served.url, "api_key_env": "", "retries": 0, "stop_after": 1}
    return ["--embedder", "openai", *(word for name, value in options.items() for word in ("-s", f"embedder.{name}={value}"))]  # fmt: skip  # noqa: E501 - one list


def exported(chime: Any, run: str) -> str:
    """The log of a run."""
    return str(chime("log", "export", run))


def test_a_run_begins_from_the_same_items_in_other_vectors(
    chime: Any, uploaded: Any, made_run: Any, served: EmbeddingServer
) -> None:
    """Ids with their origin, texts, values and sources as in a fork; one vector for each whole experience."""
    uploaded(made_run())
    before = exported(chime, MADE)
    data = chime.json("memory", "reembed", MADE, "--at", "2", "--run", "child", *chosen(served))["data"]
    assert (data["run"], data["origin"], data["version"], data["items"], data["new"]) == ("child", MADE, 2, 2, True)
    assert (data["before"], data["now"].split("; ")[:2]) == ("made", ["openai", "model=tiny"])
    old, new = (chime.json("memory", "list", run, "--at", at)["items"] for run, at in ((MADE, "2"), ("child", "0")))
    kept = ("bank", "scenario", "experience", "delta_sum", "n", "value", "bullets", "sources")
    assert [{name: item[name] for name in kept} for item in new] == [
        {name: item[name] for name in kept} for item in old
    ]
    assert [item["id"] for item in new] == [f"{MADE}.{item['id']}" for item in old]
    assert exported(chime, MADE) == before
    shown = chime.json("run", "show", "child")["data"]
    assert shown["embedder"] == data["now"]
    assert shown["seed_bank"] == {"run": MADE, "version": 2, "digest": data["digest"]}
    lines = chime("memory", "export", "child").splitlines()
    assert all('"dim": 16' in line and '"dim": 8' not in line for line in lines[1:])
    assert [line.count('"q24"') for line in lines[1:]] == [2, 2]
    wanted = list(dict.fromkeys(text for item in old for text in (item["scenario"], item["experience"])))
    assert served.texts[-len(wanted) :] == wanted


def test_the_new_log_is_whole(chime: Any, uploaded: Any, made_run: Any, served: EmbeddingServer) -> None:
    """It verifies, and an export of it is read by an empty server and exported as the same bytes."""
    uploaded(made_run())
    chime("memory", "reembed", MADE, "--at", "2", "--run", "child", *chosen(served))
    assert chime.json("log", "verify", "child")["data"]["events"] == 2
    chime("log", "export", "child", "-o", "child.jsonl")
    chime("run", "delete", "child", "--force")
    chime("log", "import", "child.jsonl")
    chime("log", "export", "child", "-o", "again.jsonl")
    assert Path("child.jsonl").read_bytes() == Path("again.jsonl").read_bytes()


def test_deleted_it_leaves_nothing(
    chime: Any, uploaded: Any, made_run: Any, served: EmbeddingServer, keys_left: Any
) -> None:
    """With the run go the vectors that were remembered for it."""
    uploaded(made_run())
    before = keys_left()
    chime("memory", "reembed", MADE, "--at", "2", "--run", "child", *chosen(served))
    assert any("{child}" in key for key in keys_left())
    chime("run", "delete", "child", "--force")
    assert [key for key in keys_left() if "child" in key] == []
    assert set(before) <= set(keys_left())


def test_said_twice_it_is_the_same_run(chime: Any, uploaded: Any, made_run: Any, served: EmbeddingServer) -> None:
    """The same command again goes on with what is there; another bank under that name is refused."""
    uploaded(made_run())
    words = ["memory", "reembed", MADE, "--at", "2", "--run", "child", *chosen(served)]
    assert chime.json(*words)["data"]["new"] is True
    asked = len(served.texts)
    assert chime.json(*words)["data"]["new"] is False
    # The probes tell whether it is the same model; the items' texts are remembered.
    assert len(served.texts) - asked <= 4
    chime("memory", "reembed", MADE, "--at", "1", "--run", "child", *chosen(served), code=2)


def test_a_server_that_dies_leaves_no_run(chime: Any, uploaded: Any, made_run: Any, served: EmbeddingServer) -> None:
    """Cut off between probes and items, nothing has begun; said again it begins."""
    uploaded(made_run())
    served.answers_left = 4
    words = ["memory", "reembed", MADE, "--at", "2", "--run", "child", *chosen(served)]
    chime(*words, code=3)
    assert "child" not in chime("run", "list")
    served.answers_left = None
    assert chime.json(*words)["data"]["new"] is True


def test_thresholds_are_those_of_the_new_embedder(
    chime: Any, uploaded: Any, made_run: Any, served: EmbeddingServer
) -> None:
    """Those of its profile; what is given wins; where nobody has measured it the run's own stay, and it says so."""
    uploaded(made_run())
    data = chime.json("memory", "reembed", MADE, "--run", "a", "--embedder", "hash", "-s", "policy.floor=0.25")["data"]
    rows = {one["name"]: (one["before"], one["now"], one["origin"]) for one in data["thresholds"]}
    assert rows["floor"] == ("0.3", "0.25", "flag -s policy.floor")
    assert rows["theta_merge"] == ("0.88", "0.88", "profile hash")
    assert "floor = 0.25\n" in chime("run", "export-config", "a")
    data = chime.json("memory", "reembed", MADE, "--run", "b", *chosen(served))["data"]
    assert {one["origin"] for one in data["thresholds"]} == {""}
    chime("memory", "reembed", MADE, "--run", "c", *chosen(served))
    assert "nobody has measured this embedder" in chime.err


def test_its_name_is_made_from_run_and_embedder(chime: Any, uploaded: Any, made_run: Any) -> None:
    """Without --run it is RUN-EMBEDDER, cut where a run's id would be too long."""
    uploaded(made_run())
    assert chime.json("memory", "reembed", MADE, "--embedder", "hash")["data"]["run"] == "made-hash"
    uploaded(made_run("a" * 63))
    name = chime.json("memory", "reembed", "a" * 63, "--embedder", "hash")["data"]["run"]
    assert (len(name), name.endswith("aa-hash")) == (63, True)


def test_the_same_embedder_is_refused(chime: Any, uploaded: Any, made_run: Any) -> None:
    """A bank that is in these vectors already is forked, not embedded again."""
    uploaded(made_run())
    chime("memory", "reembed", MADE, "--run", "child", "--embedder", "hash")
    chime("memory", "reembed", "child", "--embedder", "hash", code=2)
    assert "hash-ngram-v1-d256-q24 already" in chime.err
    assert "chime memory fork child" in chime.err


def test_what_is_wrong_anyway_is_said_before_the_embedder_is_asked(
    chime: Any, uploaded: Any, made_run: Any, served: EmbeddingServer
) -> None:
    """A version that is not there, and a name that no run can have."""
    uploaded(made_run())
    for words, told in (
        (("--at", "99"), "the newest bank version of this run is"),
        (("--at", "200%"), "--at 200%"),
        (("--run", "a b"), "a b"),
    ):
        chime("memory", "reembed", MADE, *words, *chosen(served), code=2)
        assert told in chime.err
    assert served.texts == []


def test_an_option_that_the_embedder_has_not_is_refused(chime: Any, uploaded: Any, made_run: Any) -> None:
    """One line names the option; nothing has begun."""
    uploaded(made_run())
    chime("memory", "reembed", MADE, "--run", "child", "--embedder", "hash", "-s", "embedder.model=m", code=2)
    assert "the hash embedder has no such option" in chime.err
    chime("memory", "reembed", MADE, "--run", "child", "--embedder", "words", code=2)
    assert "unknown embedder 'words'" in chime.err


def in_weaviate(made: Any) -> Any:
    """The made run, whose bank is in Weaviate by its header."""
    first = made.events[0]
    data = json.loads(first.data)
    data["config"]["operational"] = {"bank": {"store": "weaviate"}}
    made.events[0] = msgspec.structs.replace(first, data=canonical(data))
    return made


def test_a_bank_in_weaviate_gets_its_generation_at_once(
    chime: Any, uploaded: Any, made_run: Any, served: EmbeddingServer, weaviate_server: Any, monkeypatch: Any
) -> None:
    """Where the old run's bank is in Weaviate, the new one's is built there and holds the new vectors, row by row."""
    monkeypatch.setenv("CHIME_WEAVIATE_URL", weaviate_server.http_url)
    monkeypatch.setenv("CHIME_WEAVIATE_GRPC_URL", weaviate_server.grpc_url)
    monkeypatch.setenv("CHIME_WEAVIATE_API_KEY", weaviate_server.api_key)
    name = f"r{uuid4().hex[:8]}"  # Weaviate is shared by tests
    uploaded(in_weaviate(made_run()))
    data = chime.json("memory", "reembed", MADE, "--at", "2", "--run", name, *chosen(served))["data"]
    assert data["generation"]
    checked = chime.json("memory", "verify", name)["data"]
    assert (checked["generation"], checked["rows"], checked["differences"]) == (data["generation"], 2, [])
    chime("run", "delete", name, "--force")


def test_while_weaviate_is_away_the_run_begins(
    chime: Any, uploaded: Any, made_run: Any, served: EmbeddingServer, monkeypatch: Any
) -> None:
    """The bank follows from the log: it is built when the run goes on, and the command says so."""
    monkeypatch.setenv("CHIME_WEAVIATE_URL", "http://127.0.0.1:9")
    uploaded(in_weaviate(made_run()))
    data = chime.json("memory", "reembed", MADE, "--at", "2", "--run", "child", *chosen(served))["data"]
    assert (data["new"], data["generation"]) == (True, None)
    assert "it is built when the run goes on" in chime.err


def test_an_export_without_bodies_is_refused_before_anything_is_embedded(
    chime: Any, uploaded: Any, made_run: Any, served: EmbeddingServer
) -> None:
    """Prompts are needed to go on: that is said first, not after minutes of embedding."""
    made = made_run()
    data = json.loads(made.events[0].data)
    data["prompts"] = {"planner": "0" * 64}
    made.events[0] = msgspec.structs.replace(made.events[0], data=canonical(data))
    uploaded(made)
    chime("log", "export", MADE, "-o", "made.jsonl")
    asked = len(served.texts)
    chime("memory", "reembed", "./made.jsonl", "--run", "child", *chosen(served), code=2)
    assert "--with-blobs" in chime.err
    assert len(served.texts) - asked <= 4
