"""A server in a network namespace of its own, and one in a container."""

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from weaviate_servers import until

from events.errors import BadInput, Unreachable
from infra.process_identity import identity_of
from infra.weaviate_asking import asked
from infra.weaviate_building import Missing, cached
from infra.weaviate_finding import IMAGE
from infra.weaviate_launching import container_name, namespace
from infra.weaviate_process import VERSION
from infra.weaviate_server import Start, folder_of, keep, named, revive, state_of, stop


def test_an_isolated_one_is_reached_by_two_doors_alone(tmp_path: Path, weaviate_tools: Path) -> None:
    """Two ports on loopback lead to it; of its own ports none is on the machine's network. It ends as others do."""
    home, how = tmp_path / "home", Start(tools=weaviate_tools, isolated=True)
    home.mkdir()
    try:
        namespace()
    except Unreachable as refused:  # a system that allows none is told about, and nothing runs
        with pytest.raises(Unreachable, match=re.escape(str(refused))):
            keep(home, how)
        return
    one, _ = keep(home, how)
    assert one.process is not None
    try:
        assert asked(one.address, 60) == VERSION
        assert one.isolated
        outer = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        ]
        heard = {int(row[1].split(":")[1], 16): row[1].split(":")[0] for row in outer if row[3] == "0A"}
        assert {port: heard[port] for port in one.ports.all if port in heard} == {
            one.ports.http: "0100007F", one.ports.grpc: "0100007F",
        }  # fmt: skip
        [server] = _children(one.process.pid)
        assert Path(f"/proc/{server}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()

        stop(home, now=True)
        keep(home, Start(tools=weaviate_tools))
        with pytest.raises(BadInput, match="without a namespace"):
            keep(home, how)
        stop(home, now=True)
        one, _ = keep(home, how)
        assert one.process is not None
        [server] = _children(one.process.pid)
        before = identity_of(server)
        os.kill(one.process.pid, signal.SIGKILL)
        assert before is not None
        until(lambda: not before.lives)  # nobody passes bytes to its server any more: it goes too
        assert revive(home, Start(tools=weaviate_tools)) == one.address
        again = named(home)
        assert again is not None
        assert again.isolated  # as it was started
        [server] = _children(again.process.pid if again.process is not None else 0)
        os.kill(server, signal.SIGKILL)
        until(lambda: state_of(home) == "stopped")
    finally:
        stop(home, now=True)
    assert state_of(home) == "stopped"


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_system_without_namespaces_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weaviate_tools: Path
) -> None:
    """Nothing is built or started for it."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(Unreachable, match="needs the program unshare"):
        keep(home, Start(tools=weaviate_tools, isolated=True))
    (tmp_path / "bin" / "unshare").write_text(
        "#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n"
    )
    (tmp_path / "bin" / "unshare").chmod(0o755)
    with pytest.raises(
        Unreachable, match=r"allows no network namespace \(unshare: .*not permitted\); start it without"
    ):
        namespace()
    assert not (home / "weaviate" / "server.json").exists()


#: an engine that runs the image's program here, in the foreground, with the ports and the folder it is told to publish
ENGINE = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
with open({calls!r}, "a") as file:
    file.write(" ".join(words) + "\\n")
if words[0] == "info":
    print("28.2.2")
elif words[:2] == ["image", "inspect"] or words[0] == "rm":
    pass
elif words[0] == "run":
    given = lambda flag: [words[i + 1] for i, word in enumerate(words) if word == flag]
    names = set(given("--env"))
    environment = {{name: value for name, value in os.environ.items() if name in names}}
    http, grpc = [one.split(":")[1] for one in given("--publish")]
    place = given("--volume")[0].split(":")[0]
    gossip, raft = int(grpc) + 1, int(grpc) + 3
    environment.update(
        GRPC_PORT=grpc, PERSISTENCE_DATA_PATH=place, CLUSTER_GOSSIP_BIND_PORT=str(gossip),
        CLUSTER_DATA_BIND_PORT=str(gossip + 1), RAFT_PORT=str(raft), RAFT_INTERNAL_RPC_PORT=str(raft + 1),
    )
    rest = words[words.index({image!r}) + 1 :]
    rest[rest.index("--port") + 1], rest[rest.index("--host") + 1] = http, "127.0.0.1"
    os.execve({program!r}, [{program!r}, *rest], environment)
else:
    sys.exit(1)
"""


def test_an_image_is_run_with_two_ports_on_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weaviate_tools: Path
) -> None:
    """Pinned, as this user, on the home's own folder, without a secret on the command line; it ends with its client.

    The engine is a stand-in that runs the real server with what it is told: there is none on a test machine.
    """
    folder, home = tmp_path / "bin", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    for name in ("sh",):
        (folder / name).symlink_to(shutil.which(name) or "")
    calls = tmp_path / "calls"
    engine = ENGINE.format(python=sys.executable, calls=str(calls), image=IMAGE, program=str(cached(weaviate_tools)))
    (folder / "docker").write_text(engine)
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("infra.weaviate_finding.fetch", _unreachable)
    lines: list[str] = []
    one, _ = keep(home, Start(progress=lines.append))
    try:
        assert (one.way, one.path, asked(one.address, 60)) == ("docker", IMAGE, VERSION)
        asked_of = calls.read_text().splitlines()
        [run] = [line for line in asked_of if line.startswith("run ")]
        name = container_name(folder_of(home))
        for part in (
            f"run --rm --init --name {name} --user {os.getuid()}:{os.getgid()}",
            f"--publish 127.0.0.1:{one.ports.http}:8080 --publish 127.0.0.1:{one.ports.grpc}:50051",
            f"--volume {folder_of(home) / 'data'}:/var/lib/weaviate",
            f"{IMAGE} --host 0.0.0.0 --port 8080 --scheme http",
        ):
            assert part in run
        assert one.api_key not in calls.read_text()
        assert run.count("--publish") == 2
        assert asked_of.index(f"rm --force {name}") < asked_of.index(run)
        assert f"({IMAGE})" in lines[-1]
    finally:
        stop(home, now=True)
    assert (state_of(home), named(home)) == ("stopped", None)
    assert calls.read_text().splitlines()[-1] == f"rm --force {name}"


def _unreachable(*_: object) -> Path:
    raise Missing("the network is unreachable")
