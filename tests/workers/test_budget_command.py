"""Bounds on the command line: with worker processes, in one process, and those that are refused at the start."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from infra.rehearsal import MODEL
from infra.rehearsal.planting import RehearsalSettings
from infra.rehearsal.server import rehearsal_server


@pytest.fixture
def commands(
    redis_server: Any, redis_prefix: str, toy_key: Any, tmp_path: Path, patient_children: Callable[..., str]
) -> Callable[[], Any]:
    """Opens an endpoint; then what calls `chime` in processes of their own: (exit code, stdout, stderr)."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CHIME_")}
    variables = kept | {
        "CHIME_REDIS_URL": redis_server.url,
        "CHIME_REDIS_PREFIX": redis_prefix,
        "CHIME_HOME": str(tmp_path / "home"),
        "CHIME_MODELS_MODEL": MODEL,
        # A worker that is taken for dead, and is not, would make its calls beside the next attempt.
        "PYTHONPATH": patient_children("claims"),
    }

    async def chime(url: str, *words: str) -> tuple[int, str, str]:
        done = await anyio.run_process(
            [sys.executable, "-m", "workers", *words], check=False, cwd=tmp_path, stdin=subprocess.DEVNULL,
            env={**variables, "CHIME_MODELS_BASE_URL": url},
        )  # fmt: skip
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Callable[..., Any]]:
        async with rehearsal_server(toy_key, RehearsalSettings()) as url:
            yield lambda *words: chime(url, *words)

    return opened


async def spent(chime: Any, run: str) -> dict[str, Any]:
    code, out, err = await chime("run", "show", run, "--json")
    assert code == 0, err
    return dict(json.loads(out)["data"])


@pytest.fixture
async def digest(world: Any, playing: Any) -> str:
    """The digest of the same run without a bound, played in this process."""
    events = await world().play("free", playing.configured(concurrency=4, lag=4), limit=4, ordering=42)
    return str(playing.digests(events)[-1])


@pytest.mark.timeout(400)
async def test_a_run_stops_at_its_bound_and_is_resumed_with_more(commands: Any, digest: str) -> None:
    """Exit code 5, exactly so many calls; again without more; then to the end, with the banks of an unbounded run."""
    common = ("toy", "--limit", "4", "--concurrency", "4", "--lag", "4")
    async with commands() as chime:
        code, out, err = await chime("run", "start", *common, "--run", "bound", "--max-calls", "7", "--json")
        assert code == 5, err
        assert "the budget is spent: 7 of 7 calls (max_calls)" in json.loads(out)["error"]["message"]
        assert "Traceback" not in err
        shown = await spent(chime, "bound")
        assert (shown["status"], shown["spent"]["calls"], shown["budget"]["max_calls"]) == ("paused", 7, 7)
        code, _, err = await chime("run", "resume", "bound")
        assert code == 5
        assert err.splitlines()[-1].startswith("chime: run bound cannot go on: the budget is spent: 7 of 7 calls")
        assert err.endswith("chime run resume bound --max-calls N\n")
        assert (await spent(chime, "bound"))["spent"]["calls"] == 7
        code, _, err = await chime("run", "resume", "bound", "--max-calls", "1000")
        assert code in (0, 1), err
        shown = await spent(chime, "bound")
        assert (shown["status"], shown["digest"]) == ("completed", digest)
        assert shown["spent"]["calls"] == shown["total"]["calls"]
        code, out, _ = await chime("run", "show", "bound")
        assert f"{shown['total']['calls']:,} of 1,000 calls" in out


async def test_a_run_in_one_process_stops_at_its_bound(commands: Any) -> None:
    """By tokens, which are known once a call has ended: what is under way is finished and recorded."""
    async with commands() as chime:
        code, _, err = await chime(
            "run", "start", "toy", "--limit", "2", "--run", "r", "--max-tokens", "1", "--in-process"
        )
        assert code == 5, err
        assert err.splitlines()[-1].startswith("chime: run r stopped: the budget is spent: ")
        shown = await spent(chime, "r")
        assert 1 <= shown["spent"]["calls"] <= 2
        assert shown["spent"]["roles"]["planner"]["prompt_tokens"] > 0


async def test_a_bound_without_a_price_is_refused(commands: Any) -> None:
    """One line, and nothing is begun."""
    async with commands() as chime:
        for more in ((), ("--dry-run",)):
            code, _, err = await chime("run", "start", "toy", "--limit", "1", "--run", "r", "--max-cost", "1", *more)
            assert code == 2
            assert err.splitlines()[-1].startswith(
                f"chime: budget.max_cost: {MODEL}, the planner's model, has no price"
            )
        code, _, err = await chime("run", "start", "toy", "--max-calls", "-1")
        assert (code, err) == (
            2,
            "chime: --max-calls: budget.max_calls: is out of its range; it must be 0 (no bound) to 10^15\n",
        )
        code, out, _ = await chime("run", "list", "--json")
        assert json.loads(out)["data"] == []
