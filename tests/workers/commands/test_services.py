"""`chime services`: started, shown and stopped by hand; the key is never printed."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from weaviate_servers import until

from infra.server_locks import ServerLocks
from infra.weaviate_address import WeaviateAddress
from infra.weaviate_asking import asked
from infra.weaviate_process import VERSION
from infra.weaviate_server import folder_of, named, running, stop


@pytest.fixture
def home(folder: Path, weaviate_tools: Path) -> Iterator[Path]:
    """The working folder's home, with the program at hand; nothing of it runs after the test."""
    home = folder / ".chime"
    home.mkdir()
    (home / "tools").symlink_to(weaviate_tools)
    yield home
    stop(home, now=True)


def test_a_server_from_start_to_stop(chime: Any, home: Path) -> None:
    """`start` says where it is, how it was found and what there was beside; a second start and `status` find it; `stop`
    ends it, and a second stop has nothing to do.
    """
    begun = chime.json("services", "start", "weaviate")["data"]
    one = running(home)
    assert one is not None
    assert (begun["started"], begun["version"], begun["http_url"]) == (True, VERSION, one.address.http_url)
    assert begun["way"] in ("PATH", "tool cache")
    assert one.process is not None
    assert begun["pid"] == one.process.pid
    again = chime("services", "start")
    assert "running before" in again
    assert "listen on all interfaces" in chime.err
    shown = chime("services")
    for part in (one.address.http_url, one.address.grpc_url, VERSION, str(one.process.pid), "running", "MB",
                 "chime services stop weaviate", str(folder_of(home) / "server.json"), "CHIME_WEAVIATE_URL",
                 "go install", "docker"):  # fmt: skip
        assert part in shown
    told = chime.json("services", "status", "weaviate")
    assert told["data"]["state"] == "running"
    assert one.api_key not in f"{begun}{again}{chime.err}{shown}{told}"
    assert asked(one.address) == VERSION

    assert f"Weaviate (pid {one.process.pid}) has ended" in chime("services", "stop", "weaviate")
    assert running(home) is None
    assert "no Weaviate of this home runs" in chime("services", "stop")
    assert chime.json("services")["data"]["state"] == "stopped"


def test_one_that_hangs_is_told(chime: Any, home: Path) -> None:
    """`status` ends with 3; the way out is `stop --now`, which also ends one that answers nobody."""
    chime("services", "start")
    one = running(home)
    assert one is not None
    assert one.process is not None
    one.process.signal_group(signal.SIGKILL)
    locks = ServerLocks(folder_of(home))
    until(lambda: not locks.held)
    with locks.given():  # as a server that lives and is silent
        chime("services", "status", code=3)
        assert "holds" in chime.err
        assert "does not answer" in chime.err
    assert chime.json("services", "stop", "--now")["data"] == {"service": "weaviate", "ended": True, "pid": None}


def test_a_server_of_yours_is_looked_at_and_left(
    chime: Any, folder: Path, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its address and the key's variable, never started or stopped; 3 where it is away, 2 with a wrong key."""
    monkeypatch.setenv("CHIME_WEAVIATE_URL", weaviate_server.http_url)
    monkeypatch.setenv("CHIME_WEAVIATE_GRPC_URL", weaviate_server.grpc_url)
    monkeypatch.setenv("CHIME_WEAVIATE_API_KEY", weaviate_server.api_key)
    for command in ("start", "status"):
        out = chime("services", command, "weaviate")
        assert "a server of yours" in out
        assert VERSION in out
        assert weaviate_server.api_key not in out
    assert chime.json("services")["data"]["way"] == "CHIME_WEAVIATE_URL"
    assert "Chime does not stop it" in chime("services", "stop", "--now")
    assert asked(weaviate_server) == VERSION
    monkeypatch.setenv("CHIME_WEAVIATE_API_KEY", "wrong")
    chime("services", code=2)
    assert "refuses the key" in chime.err
    monkeypatch.setenv("CHIME_WEAVIATE_URL", "http://127.0.0.1:9")
    chime("services", "start", code=3)
    assert "refused" in chime.err
    assert list(folder.iterdir()) == []


def test_the_program_is_provided_without_a_start(chime: Any, home: Path) -> None:
    """`install` names the program and the way to it."""
    data = chime.json("services", "install", "weaviate")["data"]
    assert data["version"] == VERSION
    assert Path(data["path"]).exists()
    assert named(home) is None


def test_without_any_way_the_ways_are_listed(
    chime: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One line on stderr and exit code 3, for `start` and for `install`; `status` still tells."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to(shutil.which("sh") or "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    for command in ("start", "install"):
        chime("services", command, code=3)
        [line] = [line for line in chime.err.splitlines() if line.startswith("chime: ")]
        for part in ("no go on PATH", "no docker on PATH", "CHIME_WEAVIATE_URL"):
            assert part in line
    body = json.loads(chime("services", "start", "--json", code=3))
    assert body["error"]["exit_code"] == 3
    assert [way["open"] for way in chime.json("services")["data"]["ways"]] == [False] * 5


def test_what_is_no_service(chime: Any) -> None:
    """An unknown name is refused with the one there is."""
    chime("services", "start", "postgres", code=2)
    assert "weaviate" in chime.err


def test_a_home_that_cannot_be_written(chime: Any, folder: Path) -> None:
    """A file in its place: one line, exit code 2."""
    (folder / ".chime").touch()
    chime("services", "start", code=2)
    assert "CHIME_HOME" in chime.err
    assert [one.name for one in folder.iterdir()] == [".chime"]
