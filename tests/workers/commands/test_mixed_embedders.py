"""Vectors of two embedders never meet in one bank: wherever a run and an embedder come together, one line says why."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from embedding_server import EmbeddingServer, embedding_server

HASH = "hash-ngram-v1-d256-q24"


@pytest.fixture
def served() -> Iterator[EmbeddingServer]:
    """A second embedder."""
    with embedding_server() as serving:
        yield serving


def chosen(served: EmbeddingServer, model: str | None = None) -> list[str]:
    """The words that choose the served embedder."""
    options = {"name": "openai", "model": model or served.model, "base_url": served.url, "api_key_env": "", "retries": 0, "stop_after": 1}  # fmt: skip  # noqa: E501 - one list
    return [word for name, value in options.items() for word in ("-s", f"embedder.{name}={value}")]


@pytest.fixture
def hashed(chime: Any, uploaded: Any, made_run: Any) -> str:
    """A run whose bank is in the vectors of `hash`, not begun to run; its id."""
    uploaded(made_run())
    chime("memory", "reembed", "made", "--at", "2", "--embedder", "hash", "--run", "hashed")
    return "hashed"


@pytest.fixture
def tiny(chime: Any, hashed: str, served: EmbeddingServer) -> str:
    """A run whose bank is in the served embedder's vectors; its id."""
    chime("memory", "reembed", hashed, "--run", "tiny", *chosen(served))
    return "tiny"


def both(said: str) -> bool:
    """Whether both embedders are named by what tells them apart."""
    return all(word in said for word in (HASH, "openai", "tiny"))


def test_a_seed_bank_of_another_embedder(chime: Any, hashed: str, served: EmbeddingServer) -> None:
    """`run start --seed-bank` names both, and the command that makes a bank for this one; no run has begun."""
    model = ["--base-url", served.url, "--model", served.model, "--api-key-env", ""]
    words = ["--limit", "1", "--run", "new", "--seed-bank", hashed, *model, *chosen(served)]
    chime("run", "start", "toy", *words, code=2)
    assert both(chime.err)
    assert f"chime memory reembed {hashed}" in chime.err
    assert "new" not in [row["run"] for row in chime.json("run", "list")["data"]]


def test_a_fork_for_another_embedder(chime: Any, hashed: str, served: EmbeddingServer) -> None:
    """A fork keeps the vectors: another embedder by a flag is refused, not passed over."""
    chime("memory", "fork", hashed, "--run", "new", *chosen(served), code=2)
    assert both(chime.err)
    assert f"chime memory reembed {hashed}" in chime.err
    assert chime.json("memory", "fork", hashed, "--run", "new", "-s", "embedder.name=hash")["data"]["new"] is True


def test_a_fork_takes_no_notice_of_a_file_for_other_runs(chime: Any, hashed: str, served: EmbeddingServer) -> None:
    """As on resume, the header has the last word over a file: the fork is in the vectors of its origin."""
    Path("chime.toml").write_text(f'[embedder]\nname = "openai"\nmodel = "m"\nbase_url = "{served.url}"\n')
    assert chime.json("memory", "fork", hashed, "--run", "new")["data"]["new"] is True
    assert chime.json("run", "show", "new")["data"]["embedder"] == HASH


def test_going_on_with_another_embedder(chime: Any, hashed: str, served: EmbeddingServer) -> None:
    """`run resume` with another embedder by a flag names both."""
    chime("run", "resume", hashed, *chosen(served), code=2)
    assert "embedder.name: hash -> openai" in chime.err
    assert HASH in chime.err
    assert f"chime memory reembed {hashed}" in chime.err


def test_going_on_where_the_server_has_another_model(chime: Any, tiny: str, served: EmbeddingServer) -> None:
    """The same address and name, but other vectors: the probes tell."""
    served.model_of_vectors = "another"
    chime("run", "resume", tiny, code=2)
    assert "probe 1" in chime.err
    assert "openai tiny" in chime.err


def test_going_on_where_the_server_has_another_dimension(chime: Any, tiny: str) -> None:
    """A server elsewhere with a model of the same name and more dimensions is refused, in the facts that differ."""
    with embedding_server(dimension=32) as other:
        chime("run", "resume", tiny, "-s", "embedder.name=openai", "-s", f"embedder.base_url={other.url}", code=2)
    assert "dimension 16 -> 32" in chime.err


def test_an_import_whose_vectors_are_not_the_headers(chime: Any, hashed: str) -> None:
    """A log whose seeds have another dimension than its header says is refused with its line, and nothing is there."""
    chime("log", "export", hashed, "-o", "hashed.jsonl")
    first, *rest = Path("hashed.jsonl").read_text().splitlines()
    header = json.loads(first)
    header["data"]["embedder"] = {"dimension": 16, "fingerprint": "other"}
    lines = [json.dumps(header, sort_keys=True, ensure_ascii=False, separators=(",", ":")), *rest]
    Path("mixed.jsonl").write_text("".join(line + "\n" for line in lines))
    chime("run", "delete", hashed, "--force")
    chime("log", "import", "mixed.jsonl", code=4)
    assert "256" in chime.err
    assert "16" in chime.err
    assert hashed not in [row["run"] for row in chime.json("run", "list")["data"]]


def test_an_import_of_a_run_that_is_there_in_other_vectors(chime: Any, hashed: str, tiny: str) -> None:
    """An export under the id of a run with another embedder is refused: it is another run."""
    chime("log", "export", tiny, "-o", "tiny.jsonl")
    text = Path("tiny.jsonl").read_text().replace(f'"run":"{tiny}"', f'"run":"{hashed}"')
    Path("as.jsonl").write_text(text.replace(f'"{tiny}/run/', f'"{hashed}/run/'))
    before = chime("log", "export", hashed)
    chime("log", "import", "as.jsonl", code=4)
    assert chime("log", "export", hashed) == before
