"""`chime` in processes of its own, in front of a hostile server, on the tests' Redis."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from hostile_case import SECRET

from events.codec import canonical
from events.ids import RUN_STREAM, Position, RunId
from events.log import Recorded
from events.verify import verify
from infra.calls import CallRecord, RedisCalls, calls_of
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore

_ADDRESS = re.compile(rb"http://127\.0\.0\.1:\d+")
#: seconds within which a command ends, on a machine that is busy with other things
DEADLINE_S = 300.0
#: asked again at once, and given up by nobody else's failures: what comes of a call is then its own matter alone
ALONE = {
    "models.retries": "2", "models.retry_base_s": "0.001", "models.stop_after": "1000", "models.retry_budget": "0",
    "models.connect_timeout_s": "60",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """What a person reads last."""
        return self.err.strip().splitlines()[-1]

    def lines(self) -> list[Any]:
        """What was logged, in order."""
        return [json.loads(one) for one in self.err.splitlines() if one.startswith("{")]

    def lost(self) -> list[str]:
        """Jobs that were asked for again, or given up, and had not failed: their workers stood still too long."""
        failed, lost = set[str](), list[str]()
        for one in self.lines():
            if one["event"] == "job failed":
                failed.add(one["job_id"])
            elif one["event"] in ("job_reissued", "job_given_up"):
                attempt = one["attempts"] if "attempts" in one else one["attempt"] - 1
                job = f"{one['stage']}-{one['run_id']}-{one['episode']}-{attempt}"
                lost += [job] if job not in failed else []
        return lost

    def failures(self) -> list[str]:
        """Log lines of errors, those of a planner aside that got no answer and is asked again; and every traceback."""
        errors = [one for one in self.lines() if one.get("level") in ("error", "critical")]
        wrong = [str(one) for one in errors if one.get("error.type") != "ModelUnavailable"]
        return wrong + [one for one in self.err.splitlines() if "Traceback" in one or SECRET in one]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The command line of one home."""

    folder: Path
    redis_url: str
    prefix: str

    def __call__(self, *arguments: str) -> Ended:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CHIME_")}
        environment = {
            **kept, "CHIME_HOME": str(self.folder / "home"), "CHIME_REDIS_URL": self.redis_url,
            "CHIME_REDIS_PREFIX": self.prefix, "OPENAI_API_KEY": SECRET, "PYTHONPATH": str(Path(__file__).parents[3]),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "workers", *arguments], env=environment, cwd=self.folder, capture_output=True,
            text=True, timeout=DEADLINE_S,
        )  # fmt: skip
        return Ended(code=done.returncode, out=done.stdout, err=done.stderr)

    def start(self, run: str, url: str, *more: str, episodes: int, settings: Mapping[str, str] = ALONE) -> Ended:
        """`run start` with a model of its own for each role."""
        roles = [word for role in ("planner", "executor", "gate") for word in ("--role", f"{role}={role}")]
        given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return self(
            "run", "start", "toy", "--base-url", url, "--model", "any", *roles, "--run", run, "--limit", str(episodes),
            "--concurrency", "4", "--lag", "4", *given, *more,
        )  # fmt: skip

    def log(self, run: str) -> list[Recorded]:
        """The run's log, after the product has verified it."""

        async def read() -> list[Recorded]:
            async with connected(self.redis_url) as client:
                log = RedisLogStore(client, self.prefix, SystemClock(), "here").open(RunId(run))
                return [one async for page in log.pages(Position(0)) for one in page]

        events = anyio.run(read)
        verify(events)
        return events

    def calls(self, run: str) -> list[CallRecord]:
        """Every recorded call."""

        async def read() -> list[CallRecord]:
            async with connected(self.redis_url) as client:
                return await calls_of(RedisCalls(client, self.prefix, "here"), RunId(run))

        return anyio.run(read)


def digests(events: Sequence[Recorded]) -> list[str]:
    """The digest at every version from 1, in order."""
    return [json.loads(one.data)["digest"] for one in events if one.kind == "folded"]


def contents(events: Sequence[Recorded]) -> set[tuple[str, int, str, bytes]]:
    """What must not depend on timing: episodes and banks, without the server's port."""
    found: set[tuple[str, int, str, bytes]] = set()
    for one in events:
        if one.stream != RUN_STREAM:
            data: dict[str, Any] = json.loads(_ADDRESS.sub(b"http://here", one.data))
            found.add((one.stream, one.version, one.kind, canonical(data)))
    return found
