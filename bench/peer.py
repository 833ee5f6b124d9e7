"""A library that we are measured beside, in a process and an environment of its own.

A peer's file in bench/peers/ reads one JSON request a line, does the work and answers with one JSON line; the time is
taken here, by the CPU clock of its process, so that all peers are measured alike.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
#: of the environment that `make bench` makes from bench/peers.txt
PYTHON = Path(os.environ.get("CHIME_BENCH_PEERS", _HERE.parent / ".bench-venv")) / "bin" / "python"


class PeerMissing(Exception):
    """The peer cannot be run here; says why."""


class Peer:
    """A running peer."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def ask(self, **request: Any) -> Any:
        """Its answer.

        Raises:
            PeerMissing: it ended instead, or says that it cannot.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            assert self._process.stderr is not None
            said = self._process.stderr.read().strip().splitlines()
            raise PeerMissing(said[-1] if said else f"exit code {self._process.wait()}")
        found = json.loads(answer)
        if isinstance(found, dict) and "cannot" in found:
            raise PeerMissing(found["cannot"])
        return found


@contextmanager
def peer(name: str, **environment: str) -> Iterator[Peer]:
    """The peer in bench/peers/<name>.py.

    Raises:
        PeerMissing: its environment is not there.
    """
    if not PYTHON.exists():
        raise PeerMissing("no .bench-venv: `make bench` makes it")
    with subprocess.Popen(
        [PYTHON, _HERE / "peers" / f"{name}.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment},
    ) as process:  # fmt: skip
        try:
            yield Peer(process)
        finally:
            process.kill()
