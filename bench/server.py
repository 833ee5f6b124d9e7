"""A Redis of its own for a row: another folder, another fsync policy, gone afterwards."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from infra.redis_server import binaries


class NoServer(Exception):
    """It does not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server."""

    url: str
    pid: int


@contextmanager
def server(
    fsync: str | None = "everysec", *, binary: str | None = None, arguments: Sequence[str] = ()
) -> Iterator[Server]:
    """A server on a unix socket; `fsync` everysec or always, None = no append-only file.

    Raises:
        NoServer: it does not start with these arguments.
    """
    binary = binary or binaries()[0].path
    kept = ["--appendonly", "no"] if fsync is None else ["--appendonly", "yes", "--appendfsync", fsync]
    with tempfile.TemporaryDirectory(prefix="cb", dir="/tmp") as folder:
        socket = Path(folder) / "s"
        command = [
            binary, "--port", "0", "--unixsocket", str(socket), "--dir", folder, "--save", "",
            # A rewrite of the file in the middle of a round would be measured with it.
            "--maxmemory-policy", "noeviction", "--auto-aof-rewrite-percentage", "0", *kept, *arguments,
        ]  # fmt: skip
        # Freed pages are kept: fresh ones are slow on small virtual machines and would be measured instead.
        environment = {**os.environ, "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as one:
            try:
                _await(socket, one, binary)
                yield Server(url=f"unix://{socket}", pid=one.pid)
            finally:
                one.kill()


def _await(socket: Path, process: subprocess.Popen[bytes], binary: str) -> None:
    with Redis(unix_socket_path=str(socket)) as client:
        for _ in range(1000):
            try:
                client.ping()
            except (RedisError, OSError):
                if process.poll() is not None:
                    break
                time.sleep(0.02)
            else:
                return
    raise NoServer(f"{binary} does not start")
