"""`chime` in processes of its own, the model they ask, and a run on the tests' server that they play."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
import redis
import uvicorn
from starlette.responses import JSONResponse

from events.ids import Position, RunId
from events.log import Recorded
from events.verify import verify
from infra import environments
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.rehearsal import MODEL
from infra.rehearsal.planting import RehearsalSettings
from infra.rehearsal.server import application
from infra.rehearsal.truth import TruthFile
from workers.configuration import Configuration, ModelDefaults, RunSettings
from workers.connections import connections
from workers.header import begin
from workers.starting import Choice, beginning

ROOT = Path(__file__).parents[3]

RUN = "r"
EPISODES = 10
ARGUMENTS = ("--limit", str(EPISODES), "--concurrency", "4", "--lag", "4", "--run", RUN)
#: seconds within which everything here ends, on a machine that is busy with other things
DEADLINE_S = 150.0


def until(true: Callable[[], Any]) -> Any:
    """Waits for a condition; what it gave."""
    end = time.monotonic() + DEADLINE_S
    while not (found := true()):
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.02)
    return found


class Endpoint:
    """The rehearsal model over HTTP, with a key that can be changed, in a thread of this process."""

    def __init__(self, key: Any) -> None:
        self._model = application(key, RehearsalSettings(), TruthFile(None))
        #: the only key that is accepted; None = any
        self.key: str | None = None
        #: after so many completions every key is refused
        self.left = 1_000_000
        self._asked, self._answered = 0, 1_000_000
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._answer, interface="asgi3", port=0, log_config=None, access_log=False, lifespan="off", ws="none"
            )
        )
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        until(lambda: self._server.started)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"

    @property
    def held(self) -> bool:
        """A completion waits for `release`: whoever asked for it is in the middle of a run."""
        return self._asked > self._answered

    def hold_after(self, completions: int) -> None:
        """Let every completion after so many wait."""
        self._answered = completions

    def step(self) -> None:
        """One more answer may be given, once somebody waits; all that wait go on where that is as many as asked."""
        if self.held:
            self._answered += 1

    def release(self) -> None:
        """Answer what waits, and whatever comes."""
        self._answered = 1_000_000

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"").decode()
        if scope["path"].endswith("completions"):
            self._asked += 1
            while self.held:  # noqa: ASYNC110 - released by another thread
                await anyio.sleep(0.02)
            self.left -= 1
        if self.left < 0 or (self.key is not None and given != f"Bearer {self.key}"):
            refusal = JSONResponse({"error": {"message": "no such key", "code": "invalid_api_key"}}, status_code=401)
            await refusal(scope, receive, send)
        else:
            await self._model(scope, receive, send)

    def close(self) -> None:
        self.release()
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture
def endpoint(toy_key: Any) -> Iterator[Endpoint]:
    one = Endpoint(toy_key)
    yield one
    one.close()


@dataclass
class CommandLine:
    """`chime` in processes of its own, all of which carry a mark in their environment."""

    environment: dict[str, str]
    folder: Path
    mark: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    _said: dict[int, Path] = field(default_factory=dict)

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        # Into a file: whoever says more than a pipe holds would wait for a reader.
        said = self.folder / f"said-{len(self.started)}"
        with said.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "workers", *arguments], env=self.environment, cwd=self.folder, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
            )  # fmt: skip
        self.started.append(process)
        self._said[process.pid] = said
        return process

    def said(self, process: subprocess.Popen[str]) -> str:
        """What a process has logged so far."""
        return self._said[process.pid].read_text()

    def ended(self, process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
        """What a process printed; fails unless it ends with `code`."""
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, self.said(process)
        return out, self.said(process)

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        return self.ended(self.begin(*arguments), code)

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json")[0])

    def alive(self, *words: str) -> list[int]:
        """Pids of our processes whose command line has every one of `words`."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    marked = self.mark.encode() in (entry / "environ").read_bytes()
                    command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                except OSError:
                    continue
                if marked and all(word in command for word in words):
                    found.append(int(entry.name))
        return found

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for pid in self.alive():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def chime(tmp_path: Path, _folder: Path) -> Iterator[CommandLine]:
    """The command line with the home's own server."""
    sockets = _folder / uuid4().hex[:8]
    sockets.mkdir()
    mark = uuid4().hex
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CHIME_")}
    line = CommandLine(
        {**kept, "XDG_RUNTIME_DIR": str(sockets), "CHIME_HOME": str(tmp_path / "home"), "CHIME_TEST_MARK": mark,
         "OPENAI_API_KEY": "right", "PYTHONPATH": str(ROOT)},
        tmp_path, mark,
    )  # fmt: skip
    yield line
    line.close()


@dataclass
class There:
    """A run on the tests' server."""

    url: str
    prefix: str

    def length(self) -> int:
        with redis.Redis.from_url(self.url) as client:
            return int(client.xlen(f"{self.prefix}:{{{RUN}}}:log"))

    def kinds(self) -> list[str]:
        with redis.Redis.from_url(self.url) as client:
            return [entry[b"kind"].decode() for _, entry in client.xrange(f"{self.prefix}:{{{RUN}}}:log")]

    def folds(self) -> int:
        """How many episodes are folded, wherever that stands by now."""
        with redis.Redis.from_url(self.url) as client:
            row = client.hget(f"{self.prefix}:{{{RUN}}}:index", "projector")
        return int(row.split()[0]) if row else 0

    def attempts(self) -> set[int]:
        """The attempts of jobs that wrote its events."""
        with redis.Redis.from_url(self.url) as client:
            return {int(entry[b"attempt"]) for _, entry in client.xrange(f"{self.prefix}:{{{RUN}}}:log")}

    def rq_keys(self) -> list[str]:
        with redis.Redis.from_url(self.url) as client:
            return sorted(key.decode() for key in client.scan_iter(f"{self.prefix}:*") if b"{" not in key)


@pytest.fixture
def there(chime: CommandLine, redis_server: Any, redis_prefix: str) -> There:
    """The command line is told of the tests' server."""
    chime.environment |= {"CHIME_REDIS_URL": redis_server.url, "CHIME_REDIS_PREFIX": redis_prefix}
    return There(redis_server.url, redis_prefix)


@pytest.fixture
async def digest(world: Any, playing: Any) -> str:
    """The digest of the same run, undisturbed, in this process."""
    there = world()
    events = await there.play(RUN, playing.configured(concurrency=4, lag=4), limit=EPISODES, ordering=42)
    return str(playing.digests(events)[-1])


def verified(there: There) -> str:
    """The digest of the run's log, decided again here."""

    async def read() -> list[Recorded]:
        async with connected(there.url) as client:
            log = RedisLogStore(client, there.prefix, SystemClock(), "here").open(RunId(RUN))
            return [one async for page in log.pages(Position(0)) for one in page]

    return verify(anyio.run(read)).digest


def start(endpoint: Endpoint, *more: str) -> list[str]:
    return ["run", "start", "toy", "--base-url", endpoint.url, "--model", "rehearsal", *ARGUMENTS, *more]


def begin_run(
    chime: CommandLine,
    there: There,
    endpoint: Endpoint,
    *,
    limit: int = EPISODES,
    concurrency: int = 4,
    lag: int = 4,
) -> None:
    """A run, that of `ARGUMENTS` unless something else is said, begun and left to whoever serves it."""
    configuration = Configuration(
        models=ModelDefaults(model=MODEL, base_url=endpoint.url), run=RunSettings(concurrency=concurrency, lag=lag)
    )
    home = Path(chime.environment["CHIME_HOME"])
    home.mkdir(exist_ok=True)

    async def work() -> None:
        environment = environments.load("toy", home, environ=chime.environment)
        try:
            made = await beginning(
                configuration, Choice(environment="toy", ordering=42, limit=limit), environment, None
            )
        finally:
            await environment.aclose()
        async with connections(home, there.url, there.prefix, SystemClock()) as server:
            await made.prompts.store(server.blobs, RunId(RUN))
            await begin(server.store.open(RunId(RUN)), made.head)

    anyio.run(work)
