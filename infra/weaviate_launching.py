"""How each kind of server is started: a program, a program in a network namespace, an image in a container engine."""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from events.errors import Unreachable
from infra.weaviate_finding import Program, command
from infra.weaviate_process import Ports, settings

_FORWARDER = Path(__file__).with_name("weaviate_isolated.py")
#: inside a container, where nobody else's are
_INNER = Ports(http=8080, grpc=50051, gossip=7946, raft=8300)
_INNER_DATA = "/var/lib/weaviate"
#: how long a namespace or a container's removal may take, seconds
_STEP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is run, and with what."""

    command: list[str]
    environment: Mapping[str, str]
    #: descriptors that it inherits
    keep: tuple[int, ...] = ()


@contextmanager
def launch_of(
    program: Program, folder: Path, ports: Ports, api_key: str, *, isolated: bool, extra: Mapping[str, str]
) -> Iterator[Launch]:
    """How `program` is started so that it listens on `ports` of our loopback; the sockets it inherits are open here.

    Args:
        program: what was found.
        folder: where the server keeps its files.
        ports: ours; an image has its own inside.
        api_key: what it asks for.
        isolated: in a network namespace of its own.
        extra: settings over ours.

    Raises:
        Unreachable: no namespace is allowed here, or a port is taken.
    """
    if program.image:
        yield _in_container(program, folder, ports, {**settings(Path(_INNER_DATA), _INNER, api_key), **extra})
        return
    environment = {**settings(folder / "data", ports, api_key), **extra}
    line = command(program.path, ports.http)
    if not isolated:
        yield Launch(command=line, environment=environment)
        return
    entered = namespace()
    with ExitStack() as stack:
        doors = {stack.enter_context(_door(port)).fileno(): port for port in (ports.http, ports.grpc)}
        passed = [f"{number}={port}" for number, port in doors.items()]
        forwarder = [sys.executable, "-I", str(_FORWARDER), *passed, "--", *line]
        yield Launch(command=[*entered, *forwarder], environment=environment, keep=tuple(doors))


def namespace() -> list[str]:
    """The beginning of a command line that runs the rest in a network namespace of its own.

    Raises:
        Unreachable: this system allows none; says why.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        raise Unreachable("a network namespace needs the program unshare, which is not on PATH")
    alone = ["--net"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--net"]
    tried = subprocess.run([unshare, *alone, "true"], capture_output=True, text=True, timeout=_STEP_S, check=False)  # noqa: S603 - found on PATH
    if tried.returncode != 0:
        said = tried.stderr.strip().splitlines() or ["it says nothing"]
        raise Unreachable(f"this system allows no network namespace ({said[-1]}); start it without one")
    return [unshare, *alone, "--"]


def _door(port: int) -> socket.socket:
    one = socket.socket()
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", port))
        one.listen(128)
    except OSError as error:
        one.close()
        raise Unreachable(f"port {port}: {error.strerror}: address already in use") from error
    return one


def _in_container(program: Program, folder: Path, ports: Ports, environment: Mapping[str, str]) -> Launch:
    """In the foreground, so that the engine's client lives as long as the server; two ports, on loopback alone."""
    (folder / "data").mkdir(mode=0o700, exist_ok=True)
    remove_container(program.path, folder)  # of a client that was killed
    inner = {**environment, "CLUSTER_BIND_ADDR": "127.0.0.1"}
    # By name: a value on the command line could be read by every user of the machine.
    names = [word for name in inner for word in ("--env", name)]
    line = [
        program.path, "run", "--rm", "--init", "--name", container_name(folder),
        "--user", f"{os.getuid()}:{os.getgid()}",
        "--publish", f"127.0.0.1:{ports.http}:{_INNER.http}", "--publish", f"127.0.0.1:{ports.grpc}:{_INNER.grpc}",
        "--volume", f"{folder / 'data'}:{_INNER_DATA}", *names,
        program.image, *command("", _INNER.http, "0.0.0.0")[1:],  # noqa: S104 - of the container, which publishes it on loopback
    ]  # fmt: skip
    theirs = {name: value for name, value in os.environ.items() if name == "HOME" or name.startswith("DOCKER_")}
    return Launch(command=line, environment=theirs | inner)


def container_name(folder: Path) -> str:
    """One for each folder."""
    return f"chime-weaviate-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"


def remove_container(engine: str, folder: Path) -> None:
    """Remove the container of a folder, running or not; nothing where there is none."""
    line = [engine, "rm", "--force", container_name(folder)]
    try:
        subprocess.run(line, capture_output=True, timeout=_STEP_S, check=False)  # noqa: S603 - found on PATH
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"{engine} does not answer ({error})") from error
