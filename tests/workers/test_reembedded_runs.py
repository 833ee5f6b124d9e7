"""A run embedded anew, played by real processes: it goes on, verifies, and seeds others, with a second embedder."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from embedding_server import EmbeddingServer, embedding_server

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

EPISODES = 5


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
def environment(redis_server: Any, redis_prefix: str, tmp_path: Path) -> dict[str, str]:
    """The variables of the command line: a server of the tests', a home of its own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("CHIME_")}
    return own | {
        "CHIME_REDIS_URL": redis_server.url,
        "CHIME_REDIS_PREFIX": redis_prefix,
        "CHIME_HOME": str(tmp_path / "home"),
    }


async def test_it_goes_on_and_seeds_others(environment: dict[str, str], toy_key: Any, tmp_path: Path) -> None:
    """The run that begins from a re-embedded bank recalls from it, learns, verifies; another one begins with it."""
    with embedding_server() as embedder:
        async with rehearsal_server(toy_key, RehearsalSettings()) as url:
            await _played(CommandLine(environment, tmp_path, url, embedder))


async def _played(chime: CommandLine) -> None:
    await chime("run", "start", "toy", "--limit", str(EPISODES), "--run", "first", "--in-process", *chime.model)
    _, first = await chime.seen("first")
    await chime("memory", "reembed", "first", "--run", "second", *chime.served)
    began, seeded = await chime.seen("second")
    header = decode_as(began[0], RunStarted)
    assert header.seed_bank is not None
    assert (header.seed_bank.digest, header.embedder.dimension) == (first.state.banks.digest(), 16)
    assert [item.id for item in seeded.state.banks] == [f"first.{item.id}" for item in first.state.banks]
    await chime("run", "resume", "second", "--in-process")
    events, second = await chime.seen("second")
    report = second.done()
    assert (report.versions, report.recalls) == (EPISODES, 2 * EPISODES)
    recalls = [decode_as(one, Retrieved) for one in events if one.kind == "retrieved"]
    assert {one.query.vector.dim for one in recalls} == {16}
    assert any(found.id.startswith("first.") for one in recalls for found in one.candidates)
    words = ["--limit", "1", "--run", "third", "--frozen", "--seed-bank", "second", "--in-process"]
    await chime("run", "start", "toy", *words, *chime.model, *chime.served)
    _, third = await chime.seen("third")
    kept = {item.id if "." in item.id else f"second.{item.id}" for item in second.state.banks}
    assert {item.id for item in third.state.banks} == kept
    assert (await chime.seen("first"))[1].state.banks.digest() == header.seed_bank.digest
