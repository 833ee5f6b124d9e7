"""A run embedded anew, played by real processes: it goes on, verifies, and seeds others, with a second embedder."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from embedding_server import EmbeddingServer, embedding_server
from stored_worlds import sources

from events.codec import decode_as
from events.ids import Position, RunId
from events.kinds import Retrieved, RunStarted
from events.log import Recorded
from events.verify import Verifier
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.rehearsal import MODEL
from infra.rehearsal.planting import RehearsalSettings
from infra.rehearsal.server import rehearsal_server
from infra.weaviate_address import WeaviateAddress

EPISODES = 5

#: embeds otherwise, with options that the second embedder has as well
OTHERS = """
[embedder]
name = "sentence-transformers"
model = "another"
batch_size = 3
"""


@dataclass
class CommandLine:
    """`chime` in processes of its own, beside a model and an embedder."""

    environment: dict[str, str]
    folder: Path
    model_url: str
    embedder: EmbeddingServer

    @property
    def model(self) -> list[str]:
        """The words that choose the model."""
        return ["--base-url", self.model_url, "--model", MODEL, "--api-key-env", ""]

    @property
    def served(self) -> list[str]:
        """The words that choose the second embedder."""
        options = {"name": "openai", "model": self.embedder.model, "base_url": self.embedder.url, "api_key_env": ""}
        return [word for name, value in options.items() for word in ("-s", f"embedder.{name}={value}")]

    async def __call__(self, *arguments: str) -> None:
        """Fails unless the command does what it says."""
        done = await anyio.run_process(
            [sys.executable, "-m", "workers", *arguments],
            env=self.environment, cwd=self.folder, check=False, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()

    async def seen(self, run: str) -> tuple[list[Recorded], Verifier]:
        """A run's events, and what they fold to: every recall and version decided again."""
        url, prefix = self.environment["CHIME_REDIS_URL"], self.environment["CHIME_REDIS_PREFIX"]
        async with connected(url) as redis:
            log = RedisLogStore(redis, prefix, SystemClock(), url).open(RunId(run))
            events = [one async for page in log.pages(Position(0)) for one in page]
        verifier = Verifier()
        for one in events:
            verifier.feed(one)
        return events, verifier


@pytest.fixture
def environment(
    redis_server: Any, redis_prefix: str, tmp_path: Path, patient_children: Callable[..., str]
) -> dict[str, str]:
    """The variables of the command line: a server of the tests', a home of its own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("CHIME_")}
    return own | {
        "CHIME_REDIS_URL": redis_server.url,
        "CHIME_REDIS_PREFIX": redis_prefix,
        "CHIME_HOME": str(tmp_path / "home"),
        # A bank that is published or answers late would be recalled from a replica.
        "PYTHONPATH": patient_children("publishing", "reading"),
    }


@pytest.mark.timeout(400)
async def test_it_goes_on_and_seeds_others(environment: dict[str, str], toy_key: Any, tmp_path: Path) -> None:
    """The run that begins from a re-embedded bank recalls from it, learns, verifies; another one begins with it."""
    with embedding_server() as embedder:
        async with rehearsal_server(toy_key, RehearsalSettings()) as url:
            await _played(CommandLine(environment, tmp_path, url, embedder), "exact")


@pytest.mark.timeout(400)
async def test_so_does_one_whose_bank_is_in_weaviate(
    environment: dict[str, str], toy_key: Any, tmp_path: Path, weaviate_server: WeaviateAddress
) -> None:
    """The same on a server of banks, where a fork too recalls from a bank of its own."""
    there = {
        "CHIME_WEAVIATE_URL": weaviate_server.http_url,
        "CHIME_WEAVIATE_GRPC_URL": weaviate_server.grpc_url,
        "CHIME_WEAVIATE_API_KEY": weaviate_server.api_key,
        "CHIME_BANK_STORE": "weaviate",
    }
    with embedding_server() as embedder:
        async with rehearsal_server(toy_key, RehearsalSettings()) as url:
            chime = CommandLine(environment | there, tmp_path, url, embedder)
            await _played(chime, "weaviate")
            await chime("memory", "fork", "second", "--run", "forked")
            await chime("run", "resume", "forked", "--in-process")
            events, forked = await chime.seen("forked")
            assert forked.done().recalls == 2 * EPISODES
            assert "weaviate" in sources(events)
            for run in ("second", "forked"):
                await chime("memory", "verify", run)


def recalls(events: list[Recorded]) -> list[Retrieved]:
    """Every recall."""
    return [decode_as(one, Retrieved) for one in events if one.kind == "retrieved"]


async def _played(chime: CommandLine, source: str) -> None:
    await chime("run", "start", "toy", "--limit", str(EPISODES), "--run", "first", "--in-process", *chime.model)
    _, first = await chime.seen("first")
    # A file for other runs, over whose embedder the flags of this one stand, from here on to its end.
    (chime.folder / "chime.toml").write_text(OTHERS)
    await chime("memory", "reembed", "first", "--run", "second", *chime.served)
    began, seeded = await chime.seen("second")
    header = decode_as(began[0], RunStarted)
    assert header.seed_bank is not None
    assert "embedder.name" in header.config.operational["flags"]
    assert (header.seed_bank.digest, header.embedder.dimension) == (first.state.banks.digest(), 16)
    assert [item.id for item in seeded.state.banks] == [f"first.{item.id}" for item in first.state.banks]
    await chime("run", "resume", "second", "--in-process")
    events, second = await chime.seen("second")
    report = second.done()
    assert (report.versions, report.recalls) == (EPISODES, 2 * EPISODES)
    assert {one.query.vector.dim for one in recalls(events)} == {16}
    assert source in sources(events)
    assert any(found.id.startswith("first.") for one in recalls(events) for found in one.candidates)
    words = ["--limit", "1", "--run", "third", "--frozen", "--seed-bank", "second", "--in-process"]
    await chime("run", "start", "toy", *words, *chime.model, *chime.served)
    events, third = await chime.seen("third")
    assert source in sources(events)
    kept = {item.id if "." in item.id else f"second.{item.id}" for item in second.state.banks}
    assert {item.id for item in third.state.banks} == kept
    assert (await chime.seen("first"))[1].state.banks.digest() == header.seed_bank.digest
