"""Weaviate servers for tests: one that all tests of a session share, and ones that a test may kill, pause and wipe.

None outlives the tests, also where these are killed: a process of its own sees the end of their pipe and ends them.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from infra import weaviate_server
from infra.process_identity import ProcessIdentity
from infra.server_locks import ServerLocks
from infra.weaviate_address import WeaviateAddress
from infra.weaviate_server import Running, Start, folder_of, keep, named

ROOT = Path(weaviate_server.__file__).parent.parent

#: reads `use HOME TOOLS` and `end HOME`, one a line; uses the first until its input ends, and ends the others then
_GUARD = """
import sys
from contextlib import ExitStack
from pathlib import Path
import msgspec
from events.errors import ChimeError
from infra.weaviate_server import Start, stop, weaviate_server_sync
own = []
with ExitStack() as used:
    for line in sys.stdin:
        word, home, *rest = line.rstrip("\\n").split("\\t")
        if word == "end":
            own.append(Path(home))
            continue
        try:
            address = used.enter_context(weaviate_server_sync(Path(home), Start(tools=Path(rest[0]))))
            print("address " + msgspec.json.encode(address).decode(), flush=True)
        except ChimeError as error:
            print("error " + str(error), flush=True)
    for home in own:
        try:
            stop(home, now=True)
        except ChimeError as error:
            print(error, file=sys.stderr)
"""


def until(condition: Callable[[], bool]) -> None:
    """Wait for it; two minutes at most."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.02)


class Guard:
    """Ends servers once this process has ended, however it ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _GUARD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip

    def use(self, home: Path, tools: Path) -> WeaviateAddress:
        """The server of `home`, shared with whoever else uses it, for as long as this process lives."""
        self._say("use", str(home), str(tools))
        assert self._process.stdout is not None
        answers = (line for line in self._process.stdout if line.startswith(("address ", "error ")))  # logs beside them
        word, _, rest = next(answers, "error its guard has ended").partition(" ")
        assert word == "address", f"no Weaviate server: {rest}"
        return msgspec.json.decode(rest, type=WeaviateAddress)

    def end(self, home: Path) -> None:
        """Have whatever server `home` has ended at the end."""
        self._say("end", str(home))

    def close(self) -> None:
        """End what is left now."""
        self._process.communicate(timeout=120)

    def _say(self, *words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()


class OwnWeaviate:
    """A server of a test's own: it keeps its ports, its key and its data over each `start`."""

    def __init__(self, home: Path, tools: Path) -> None:
        self.home, self.tools = home, tools
        self._locks = ServerLocks(folder_of(home))

    @property
    def running(self) -> Running:
        """As its file names it, whether it lives or not."""
        one = named(self.home)
        assert one is not None, "it was never started"
        return one

    @property
    def address(self) -> WeaviateAddress:
        """Where it is, or was."""
        return self.running.address

    @property
    def data(self) -> Path:
        """The folder of its data."""
        return folder_of(self.home) / "data"

    @property
    def log(self) -> str:
        """What it has printed since its last start."""
        return (folder_of(self.home) / "server.log").read_text(errors="replace")

    @property
    def lives(self) -> bool:
        """Whether its process is there, paused or not."""
        return self._locks.held

    def start(self, *, api_key: str | None = None, **settings: str) -> WeaviateAddress:
        """Start it where it does not run; wait until it is ready.

        Args:
            api_key: another one than before.
            settings: environment variables of the server, beside and over ours.
        """
        if api_key is not None:
            file = folder_of(self.home) / "server.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"api_key": api_key}))
        one, _ = keep(self.home, Start(tools=self.tools, extra=settings))
        return one.address

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._send(signal.SIGKILL)
        self._gone()

    def stop(self) -> None:
        """SIGTERM, and wait until it is gone."""
        self._send(signal.SIGTERM)
        self._gone()

    def restart(self, **settings: str) -> WeaviateAddress:
        """Stop and start."""
        self.stop()
        return self.start(**settings)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and says nothing."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._send(signal.SIGCONT)

    def wipe(self) -> None:
        """Kill it, if it lives, and remove its data; ports and key stay."""
        if self.lives:
            self.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def close(self) -> None:
        """End it."""
        if self.lives:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._gone()

    @property
    def _process(self) -> ProcessIdentity:
        process = self.running.process
        assert process is not None
        return process

    def _send(self, number: signal.Signals) -> None:
        assert self._process.signal_group(number), "it does not run"

    def _gone(self) -> None:
        until(lambda: not self.lives)


def full(disk: Path) -> Path:
    """The disk is full, by this file."""
    with (disk / "full").open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return disk / "full"
