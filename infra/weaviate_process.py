"""One Weaviate process: its settings, its ports, how it is started, and when it is ready.

It is given settings of ours and nothing of our own environment: keys stay here, and a setting that somebody exported
for another server does not change this one. Only loopback is listened on where that can be set; the gRPC and the
cluster data port listen on all interfaces whatever is set, so the first asks for the key and the second for a password
that nobody knows.
"""

import json
import os
import random
import secrets
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from events.errors import Unreachable
from infra.process_identity import pid_in
from infra.weaviate_address import WeaviateAddress

#: the version that is built, fetched and run: what the bank store was measured on
VERSION = "1.39.0"

#: a quarter of the memory, but no less than this: what 100,000 rows of 1024 numbers want, bytes
_LEAST_MEMORY = 1 << 30
#: ports below those that systems give to outgoing connections, so that none of these takes one between two starts
_PORTS = range(12_000, 30_000)

# The program stays in the background when the shell has ended, in a session of its own, with a pid in the file $1.
_START = (
    'cd "$0" || exit 1; pidfile=$1; log=$2; shift 2; ulimit -S -n "$(ulimit -H -n)" 2>/dev/null; '
    '"$@" >>"$log" 2>&1 </dev/null & echo $! >"$pidfile"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where one server listens; the data port is the gossip port's next, the inner RAFT port the RAFT port's next."""

    http: int
    grpc: int
    gossip: int
    raft: int

    @property
    def all(self) -> tuple[int, ...]:
        return (self.http, self.grpc, self.gossip, self.gossip + 1, self.raft, self.raft + 1)

    def address(self, api_key: str, version: str = "") -> WeaviateAddress:
        """Where clients find the server."""
        return WeaviateAddress(
            http_url=f"http://127.0.0.1:{self.http}",
            grpc_url=f"127.0.0.1:{self.grpc}",
            api_key=api_key,
            version=version,
        )

    @property
    def free(self) -> bool:
        """Whether nobody listens on any of them."""
        with ExitStack() as held:
            return all(_hold(held, port) for port in self.all)


def free_ports() -> Ports:
    """Ports that nobody listens on now.

    Raises:
        Unreachable: there are none.
    """
    rng = random.Random(secrets.randbits(64))  # noqa: S311 - the system's own, to draw from
    for _ in range(200):
        first = rng.randrange(_PORTS.start, _PORTS.stop - 6)
        ports = Ports(http=first, grpc=first + 1, gossip=first + 2, raft=first + 4)
        if ports.free:
            return ports
    raise Unreachable(f"no six ports in a row between {_PORTS.start} and {_PORTS.stop} are free for Weaviate")


def _hold(held: ExitStack, port: int) -> bool:
    try:
        one = held.enter_context(socket.socket())
        # As servers do: a port whose last connections are only fading is free.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("", port))
        one.listen(1)
    except OSError:
        return False
    return True


def settings(data: Path, ports: Ports, api_key: str) -> dict[str, str]:
    """The environment of a server that keeps its files in `data` and asks for `api_key`."""
    return {
        "PERSISTENCE_DATA_PATH": str(data),
        # It names the node in its files: whatever the host is called later, they are found again.
        "CLUSTER_HOSTNAME": "chime",
        "AUTHENTICATION_APIKEY_ENABLED": "true",
        "AUTHENTICATION_APIKEY_ALLOWED_KEYS": api_key,
        "AUTHENTICATION_APIKEY_USERS": "chime",
        "AUTHENTICATION_ANONYMOUS_ACCESS_ENABLED": "false",
        "DISABLE_TELEMETRY": "true",
        "AUTOSCHEMA_ENABLED": "false",
        "DEFAULT_VECTORIZER_MODULE": "none",
        "ENABLE_MODULES": "",
        "API_BASED_MODULES_DISABLED": "true",
        "GRPC_PORT": str(ports.grpc),
        "CLUSTER_IN_LOCALHOST": "true",
        "CLUSTER_BIND_ADDR": "127.0.0.1",
        "CLUSTER_ADVERTISE_ADDR": "127.0.0.1",
        "CLUSTER_GOSSIP_BIND_PORT": str(ports.gossip),
        "CLUSTER_DATA_BIND_PORT": str(ports.gossip + 1),
        # Without these the data port reads and deletes for anybody who reaches it.
        "CLUSTER_BASIC_AUTH_USERNAME": secrets.token_urlsafe(24),
        "CLUSTER_BASIC_AUTH_PASSWORD": secrets.token_urlsafe(24),
        "RAFT_PORT": str(ports.raft),
        "RAFT_INTERNAL_RPC_PORT": str(ports.raft + 1),
        "RAFT_BOOTSTRAP_EXPECT": "1",
        # Ready after 2.4 s instead of 7 to 10 s: there is no second node to wait for.
        "RAFT_TIMEOUTS_MULTIPLIER": "1",
        "GO_PROFILING_DISABLE": "true",
        "PROMETHEUS_MONITORING_ENABLED": "false",
        "QUERY_MAXIMUM_RESULTS": "10000",
        "LOG_FORMAT": "json",
        "LOG_LEVEL": "info",
        "GOMEMLIMIT": str(memory_limit()),
    }


def memory_limit() -> int:
    """What a server may use before it collects harder and refuses imports, bytes: a quarter of the machine's."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        group = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        memory = min(memory, int(group))
    except (OSError, ValueError):
        pass  # no limit of a container's
    return max(_LEAST_MEMORY, memory // 4)


def launch(
    command: list[str], environment: Mapping[str, str], folder: Path, *, pidfile: Path, log: Path, keep: tuple[int, ...]
) -> int:
    """Start a program that outlives us, as many files open as the system allows; its pid.

    Args:
        command: the program with its arguments.
        environment: all of it but PATH and HOME.
        folder: where it runs.
        pidfile: gets its pid, also where we do not live to write it.
        log: gets all that it prints.
        keep: descriptors that it inherits.

    Raises:
        Unreachable: the folder or the shell does not allow it.
    """
    pidfile.unlink(missing_ok=True)
    whole = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), **environment}
    shell = ["/bin/sh", "-c", _START, str(folder), str(pidfile), str(log), *command]
    asked = subprocess.run(  # noqa: S603 - our own words, and a program that we found
        shell, env=whole, capture_output=True, text=True, check=False, pass_fds=keep, start_new_session=True
    )
    pid = pid_in(pidfile)
    if pid is None:
        raise Unreachable(f"{command[0]} cannot be started in {folder}: {asked.stderr.strip() or 'no pid'}")
    return pid


def last_words(log: Path) -> str:
    """The line of a server's log that tells why it ended, short; "" where there is none."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()[-400:]
    except OSError:
        return ""
    plain = [line.strip() for line in lines if line.strip() and not line.startswith("{")]
    entries = [entry for line in lines if line.startswith("{") and isinstance(entry := _entry(line), dict)]
    for levels in (("fatal", "panic"), ("error",)):
        for entry in reversed(entries):
            if entry.get("level") in levels:
                error = f": {entry['error']}" if entry.get("error") else ""
                return f"{entry.get('msg', '')}{error}"[:300]
    telling = [line for line in plain if "panic" in line or "rror" in line or "annot" in line] or plain
    return telling[-1][:300] if telling else ""


def _entry(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None
