"""Whole runs with a real model: worker processes, recorded and remembered vectors, equal digests."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from infra.redis_server import embedded_server

CHIME = [str(Path(sys.executable).parent / "chime")]


def chime(home: Path, *words: str) -> Any:
    """What a command answers with `--json`."""
    done = subprocess.run(
        [*CHIME, *words, "--home", str(home), "--json"], capture_output=True, text=True, check=False, cwd=home.parent
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)["data"]


@pytest.mark.timeout(900)
async def test_a_demo_plays_and_is_rebuilt_with_minilm(tmp_path: Path) -> None:
    """Two demos in two homes: each arm is rebuilt from its log, and the banks of both are equal to the last bit."""
    digests: list[list[str]] = []
    for place in ("a", "b"):
        home = tmp_path / place
        told = chime(home, "demo", "--env", "toy", "--limit", "4", "--seconds", "600", "--embedder", "minilm")
        assert told["embedder"] == "minilm"
        assert [one["n"] for one in told["arms"]] == [4, 4, 4]
        digests.append([one["digest"] for one in told["rebuilt"]])
        run = told["arms"][0]["run"]
        assert chime(home, "log", "verify", run)["digest"] == told["rebuilt"][0]["digest"]
        async with embedded_server(home) as server:
            with redis.Redis.from_url(server.url) as client:
                (key,) = client.scan_iter(match=f"*{{{run}}}:embeddings")
                assert client.hlen(key) > 0
                assert {len(raw) for raw in client.hvals(key)} == {4 * 384}
                assert client.ttl(key) > 0
    assert digests[0] == digests[1]
    assert len(set(digests[0])) > 1
