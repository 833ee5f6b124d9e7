"""The home's own Weaviate: shared, adopted, stopped by the last one out, and clear when it cannot start."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.from_thread
import pytest
from weaviate_servers import ROOT, OwnWeaviate, until

from events.errors import BadInput, Unreachable
from infra import weaviate_asking
from infra import weaviate_server as module
from infra.process_identity import identity_of
from infra.weaviate_address import WeaviateAddress
from infra.weaviate_process import VERSION, free_ports
from infra.weaviate_server import (
    Running,
    Start,
    keep,
    named,
    revive,
    running,
    state_of,
    stop,
    weaviate_server,
    weaviate_server_sync,
)

#: enters the home's server, says where it is, and stays until its input ends
USER = """
import sys
from pathlib import Path
from infra.weaviate_server import Start, running, weaviate_server_sync
home = Path(sys.argv[1])
with weaviate_server_sync(home, Start(tools=Path(sys.argv[2]))) as address:
    print('here', running(home).process.pid, address.http_url, flush=True)
    sys.stdin.read()
"""


def asked(address: WeaviateAddress, timeout_s: float = 60.0) -> str | None:
    """The version of a server that is ready, however late it says so."""
    return weaviate_asking.asked(address, timeout_s)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is late has not gone."""
    monkeypatch.setattr(module, "asked", asked)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose server does not outlive the test."""
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    one = named(folder)
    if one is not None and one.process is not None:
        one.process.signal_group(signal.SIGKILL)


@pytest.fixture
def how(weaviate_tools: Path) -> Start:
    """With the program that is at hand."""
    return Start(tools=weaviate_tools)


def started(home: Path, how: Start) -> "subprocess.Popen[str]":
    """A process that uses the home's server."""
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(home), str(how.tools)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, cwd=ROOT,
    )  # fmt: skip


def said(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Where the server of `process` is: pid and address."""
    assert process.stdout is not None
    line = next(line for line in process.stdout if line.startswith("here "))
    _, pid, address = line.split()
    return int(pid), address


def alive(one: Running) -> bool:
    """Whether its process runs."""
    assert one.process is not None
    return one.process.lives


def found(home: Path) -> Running:
    """The server that runs."""
    one = running(home)
    assert one is not None
    return one


def status_of(url: str, **headers: str) -> int:
    """What a GET is answered with."""
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - a server of the test's
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - as above
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def listening(pid: int) -> dict[int, str]:
    """Port -> the address that a process listens on there, in hexadecimal: zeros are every interface."""
    inodes = {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()}
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        if (file := Path(f"/proc/{pid}/net/{table}")).exists()  # a machine may have no IPv6
        for row in file.read_text().splitlines()[1:]
    ]
    return {
        int(row[1].split(":")[1], 16): row[1].split(":")[0]
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in inodes
    }


async def test_a_server_lives_as_long_as_its_users(home: Path, how: Start) -> None:
    """Two share one server; the last one out stops it and leaves neither process nor file with its key."""
    async with weaviate_server(home, how) as first:
        one = found(home)
        assert (asked(first), first.version, state_of(home)) == (VERSION, VERSION, "running")
        async with weaviate_server(home, how) as second:
            assert second == first
        assert found(home) == one
    assert (running(home), state_of(home)) == (None, "stopped")
    assert not alive(one)
    assert not (home / "weaviate" / "server.json").exists()


def test_it_is_set_up_to_be_alone(home: Path, how: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are ours alone, its file and folder are their owner's, and its doors ask."""
    monkeypatch.setenv("OPENAI_API_KEY", "a secret of ours")
    monkeypatch.setenv("DEFAULT_QUANTIZATION", "rq-8")
    monkeypatch.setenv("ASYNC_INDEXING", "true")
    with weaviate_server_sync(home, how) as address:
        one = found(home)
        assert one.process is not None
        given = Path(f"/proc/{one.process.pid}/environ").read_text().rstrip("\0").split("\0")
        settings = dict(line.split("=", 1) for line in given)
        assert not {"OPENAI_API_KEY", "DEFAULT_QUANTIZATION", "ASYNC_INDEXING"} & set(settings)
        assert {
            "AUTHENTICATION_APIKEY_ENABLED": "true", "AUTHENTICATION_ANONYMOUS_ACCESS_ENABLED": "false",
            "DISABLE_TELEMETRY": "true", "AUTOSCHEMA_ENABLED": "false", "ENABLE_MODULES": "",
            "API_BASED_MODULES_DISABLED": "true", "GO_PROFILING_DISABLE": "true",
            "PROMETHEUS_MONITORING_ENABLED": "false", "RAFT_TIMEOUTS_MULTIPLIER": "1",
        }.items() <= settings.items()  # fmt: skip
        assert len({settings[f"CLUSTER_BASIC_AUTH_{one}"] for one in ("USERNAME", "PASSWORD")} - {""}) == 2
        assert int(settings["GOMEMLIMIT"]) >= 1 << 30
        command = Path(f"/proc/{one.process.pid}/cmdline").read_text()
        assert address.api_key not in command
        assert len(address.api_key) >= 40
        assert address.api_key not in f"{address!r}{one!r}"

        assert (home / "weaviate").stat().st_mode & 0o077 == 0
        assert (home / "weaviate" / "server.json").stat().st_mode & 0o077 == 0
        limits = Path(f"/proc/{one.process.pid}/limits").read_text()
        soft, hard = next(line for line in limits.splitlines() if "open files" in line).split()[3:5]
        assert soft == hard

        # The two that no setting confines, and nothing else, are on every interface.
        open_to_all = {port for port, host in listening(one.process.pid).items() if set(host) == {"0"}}
        assert open_to_all == {one.ports.grpc, one.ports.gossip + 1}
        assert set(listening(one.process.pid)) == set(one.ports.all)
        key = f"Bearer {address.api_key}"
        assert status_of(f"{address.http_url}/v1/schema") == 401
        assert status_of(f"{address.http_url}/v1/schema", Authorization="Bearer wrong") == 401
        assert status_of(f"{address.http_url}/v1/schema", Authorization=key) == 200
        data = f"http://127.0.0.1:{one.ports.gossip + 1}"
        assert status_of(f"{data}/indices/Any/shards/x/objects/00000000-0000-0000-0000-000000000001") == 401
        assert status_of(f"{data}/nodes/status") == 401


def test_a_user_that_was_killed_does_not_count(home: Path, how: Start) -> None:
    """It keeps no server alive, and what it left is adopted by the next one and stopped by the last."""
    killed = started(home, how)
    pid, http_url = said(killed)
    killed.kill()
    killed.communicate()
    assert identity_of(pid) is not None
    with weaviate_server_sync(home, how) as address:
        one = found(home)
        assert (one.process is not None and one.process.pid, address.http_url) == (pid, http_url)
    assert identity_of(pid) is None


def test_four_that_start_at_once_share_one(home: Path, how: Start) -> None:
    """Whoever is first starts it; all get the same; it ends with the last."""
    users = [started(home, how) for _ in range(4)]
    places = {said(one) for one in users}
    assert len(places) == 1
    [(pid, _)] = places
    for one in users[:-1]:
        one.communicate(timeout=120)
        assert (one.returncode, identity_of(pid) is not None) == (0, True)
    users[-1].communicate(timeout=120)
    assert (users[-1].returncode, identity_of(pid)) == (0, None)


def test_it_comes_back_where_it_was(own_weaviate_server: OwnWeaviate) -> None:
    """Killed, wiped or restarted: at the same address, with the same key, started by whoever looks after it."""
    first = own_weaviate_server.address
    own_weaviate_server.kill()
    assert (asked(first), running(own_weaviate_server.home)) == (None, None)
    assert revive(own_weaviate_server.home, Start(tools=own_weaviate_server.tools)) == first
    assert asked(first) == VERSION
    own_weaviate_server.wipe()
    assert own_weaviate_server.start() == first
    assert own_weaviate_server.restart() == first


def test_a_kept_one_stays(home: Path, how: Start) -> None:
    """It outlasts its users until it is stopped; while one is left it ends with that one, or at once where asked."""
    one, begun = keep(home, how)
    assert begun
    assert keep(home, how) == (one, False)
    with weaviate_server_sync(home, how):
        pass
    assert found(home).kept
    with weaviate_server_sync(home, how):
        told = stop(home, now=False)
        assert (told.ended, told.server is not None and told.server.process) == (False, one.process)
        assert alive(one)
    assert not alive(one)
    assert stop(home, now=True).server is None

    with weaviate_server_sync(home, how) as address:
        assert stop(home, now=True).ended
        assert asked(address) is None
        with pytest.raises(Unreachable, match="stopped by hand; `chime services start weaviate`"):
            revive(home, how)
        with weaviate_server_sync(home, how) as again:  # whoever comes anew wants one
            assert revive(home, how) == again
    assert state_of(home) == "stopped"


def test_one_whose_starter_was_killed_is_found(home: Path, how: Start) -> None:
    """Between the start and the file that names it, only its pid was written: it is adopted, and ends with its user."""
    one, _ = keep(home, how)
    file = home / "weaviate" / "server.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"process": None, "kept": False}))
    with weaviate_server_sync(home, how) as address:
        assert address == one.address
        assert found(home).process == one.process
    assert not alive(one)


def test_another_process_with_its_pid_is_left_alone(home: Path, how: Start) -> None:
    """The file names a process that is gone; its pid has been given to another one, which nobody touches."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as other:
        try:
            theirs = identity_of(other.pid)
            assert theirs is not None
            (home / "weaviate").mkdir()
            for process in (
                {"pid": theirs.pid, "started": "1", "boot": theirs.boot},
                {"pid": theirs.pid, "started": theirs.started, "boot": "another"},
                None,
            ):
                before = {
                    "process": process, "ports": {"http": 12001, "grpc": 12002, "gossip": 12003, "raft": 12005},
                    "api_key": "k", "version": VERSION, "way": "PATH", "path": "x", "kept": True,
                }  # fmt: skip
                (home / "weaviate" / "server.json").write_text(json.dumps(before))
                (home / "weaviate" / "pid").write_text(str(theirs.pid))
                assert running(home) is None
                assert stop(home, now=True).server is None
            (home / "weaviate" / "server.json").write_text(json.dumps(before | {"process": process}))
            with weaviate_server_sync(home, how) as address:
                assert address.api_key == "k"  # whoever waits for that server finds it again
            assert state_of(home) == "stopped"  # it was kept in another life of the machine
            assert identity_of(other.pid) == theirs
        finally:
            other.kill()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"process":null,"ports":{},"api_key":1}'])
def test_a_stale_file_is_no_server(content: str, home: Path) -> None:
    """Whatever stands in it, nothing runs and nothing is to be stopped."""
    (home / "weaviate").mkdir()
    (home / "weaviate" / "server.json").write_text(content)
    (home / "weaviate" / "pid").write_text("0\n")
    assert (running(home), named(home), state_of(home)) == (None, None, "stopped")
    assert stop(home, now=True).server is None


def test_a_silent_one_is_named_and_can_be_ended(
    own_weaviate_server: OwnWeaviate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second one is started on its data; it is adopted once it answers, and ended where somebody asks for that."""
    home, how = own_weaviate_server.home, Start(tools=own_weaviate_server.tools, silent_s=0.2)
    one, said = own_weaviate_server.running, list[str]()
    own_weaviate_server.pause()
    monkeypatch.setattr(module, "asked", lambda address: asked(address, 0.2))
    assert state_of(home) == "silent"
    assert one.process is not None
    with (
        pytest.raises(Unreachable, match=rf"pid {one.process.pid}\) holds the data .*--now"),
        weaviate_server_sync(home, how),
    ):
        pytest.fail("a second server was started")
    own_weaviate_server.resume()
    monkeypatch.setattr(module, "asked", asked)
    with weaviate_server_sync(home, Start(tools=own_weaviate_server.tools)) as again:
        assert again == one.address

    def told(line: str) -> None:
        said.append(line)
        monkeypatch.setattr(module, "STOP_S", 30.0)  # of the kill, which nobody hurries

    monkeypatch.setattr(module, "STOP_S", 2.0)
    monkeypatch.setattr(module, "_MOMENT_S", 0.0)
    own_weaviate_server.pause()
    assert stop(home, now=True, progress=told).ended
    assert said == [f"waiting for Weaviate (pid {one.process.pid}) to close its connections; it is killed after 2 s"], (
        "once"
    )
    assert not alive(one)


def test_ports_that_somebody_takes_are_given_up(home: Path, how: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken between the look and the start, or while the server was away: it starts on others, and says where."""
    taken = [free_ports() for _ in range(2)]
    with socket.create_server(("127.0.0.1", taken[0].http)), socket.create_server(("", taken[1].grpc)):
        offers = iter([*taken, free_ports()])
        monkeypatch.setattr(module, "free_ports", lambda: next(offers))
        monkeypatch.setattr(module, "asked", lambda address: asked(address, 1.0))  # whoever took one says nothing
        one, _ = keep(home, how)
        assert one.ports not in taken
    assert one.process is not None
    one.process.signal_group(signal.SIGKILL)
    monkeypatch.setattr(module, "free_ports", free_ports)
    until(lambda: one.ports.free and state_of(home) == "stopped")
    with socket.create_server(("", one.ports.gossip)):
        moved = revive(home, how)
        assert moved.http_url != one.address.http_url
        assert (moved.api_key, asked(moved)) == (one.api_key, VERSION)


def test_a_cancelled_user_still_leaves(home: Path, how: Start) -> None:
    """Cancellation stops the server as an ordinary end does."""

    async def use() -> None:
        with anyio.CancelScope() as scope:
            async with weaviate_server(home, how):
                scope.cancel()
                await anyio.sleep(60)

    anyio.run(use)
    assert state_of(home) == "stopped"


def test_one_who_is_cancelled_while_it_starts_leaves_nothing(
    home: Path, how: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the server any more: it is ended before it is ready."""
    asks: list[WeaviateAddress] = []

    async def use() -> None:
        with anyio.CancelScope() as scope:

            def cancelled(address: WeaviateAddress) -> None:
                asks.append(address)
                anyio.from_thread.run_sync(scope.cancel)

            monkeypatch.setattr(module, "asked", cancelled)
            async with weaviate_server(home, how):
                pytest.fail("it was never ready")

    anyio.run(use)
    assert len(asks) == 1
    assert state_of(home) == "stopped"


def test_a_home_that_cannot_be_written(tmp_path: Path, how: Start) -> None:
    """One line that names the way out; a file in the way is told as what it is."""
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="CHIME_HOME"), weaviate_server_sync(tmp_path / "file", how):
        pass
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "weaviate").touch()
    with pytest.raises(BadInput, match="CHIME_HOME"), weaviate_server_sync(tmp_path / "home", how):
        pass


def test_data_that_it_cannot_use_are_told_in_its_own_words(home: Path, how: Start) -> None:
    """A file where its folder should be: one line, and no other way is tried, for it would meet the same."""
    (home / "weaviate").mkdir(mode=0o700)
    (home / "weaviate" / "data").touch()
    with pytest.raises(Unreachable, match=r"no Weaviate starts on .*weaviate.*: not a directory") as caught:
        keep(home, how)
    assert "\n" not in str(caught.value)
    assert "CHIME_WEAVIATE_URL" not in str(caught.value)
    assert (state_of(home), named(home)) == ("stopped", None)


def test_interrupted_while_it_starts_it_is_ended(home: Path, how: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before it is ready leaves no process that nobody would end."""

    def interrupted(address: WeaviateAddress) -> None:
        del address
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "asked", interrupted)
    with pytest.raises(KeyboardInterrupt), weaviate_server_sync(home, how):
        pass
    assert state_of(home) == "stopped"


def test_servers_of_tests_end_with_them(tmp_path: Path, weaviate_tools: Path) -> None:
    """A test process that is killed, with a server it shares and one of its own, leaves neither."""
    code = """
import signal, os, sys
from pathlib import Path
from weaviate_servers import Guard, OwnWeaviate
folder, tools = Path(sys.argv[1]), Path(sys.argv[2])
guard = Guard()
guard.use(folder / "shared", tools)
guard.end(folder / "own")
OwnWeaviate(folder / "own", tools).start()
os.kill(os.getpid(), signal.SIGKILL)
"""
    for name in ("shared", "own"):
        (tmp_path / name).mkdir()
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests/infra/plain")])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(weaviate_tools)], env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    until(lambda: all(state_of(tmp_path / name) == "stopped" for name in ("shared", "own")))


def test_folders_of_other_homes_do_not_meet(home: Path, how: Start, weaviate_server: WeaviateAddress) -> None:
    """Two homes have two servers, with data and keys of their own; a home by a link is the same home."""
    link = home.parent / "link"
    link.symlink_to(home)
    with weaviate_server_sync(home, how) as own:
        with weaviate_server_sync(link, how) as same:
            assert same == own
        assert own.http_url != weaviate_server.http_url
        assert asked(WeaviateAddress(http_url=own.http_url, grpc_url=own.grpc_url, api_key=weaviate_server.api_key,
                                     version="")) is None  # fmt: skip
