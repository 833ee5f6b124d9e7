"""Which process a pid names: pids are used again, a pid with its start and its boot is not."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
#: below a process in /proc: sums over its memory, in kB
_ROLLUP = "smaps_rollup"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, for as long as the machine keeps records."""

    pid: int
    #: when it began, as the system tells it: clock ticks since the boot on Linux
    started: str
    #: the boot that it lives in; "" where the system does not name one
    boot: str

    @property
    def lives(self) -> bool:
        """Whether this very process runs."""
        return identity_of(self.pid) == self

    def signal_group(self, number: signal.Signals) -> bool:
        """Send a signal to it and all that it has started in its group; whether it was there to be sent one.

        Raises:
            PermissionError: it belongs to somebody else.
        """
        try:
            group = os.getpgid(self.pid)
            # Asked after the group: a group is not given away while the process that we know lives in it.
            if not self.lives or group == os.getpgrp():
                return False
            os.killpg(group, number)
        except ProcessLookupError:
            return False
        return True


def identity_of(pid: int) -> ProcessIdentity | None:
    """The process that has this pid now; None where there is none, or only what is left of one that has ended."""
    if pid <= 0:
        return None
    try:
        # The name in parentheses may hold anything, parentheses and spaces too.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None if _BOOT.exists() else _by_ps(pid)
    if fields[0] in "ZX":
        return None
    return ProcessIdentity(pid=pid, started=fields[19], boot=_BOOT.read_text().strip())


def pid_in(pidfile: Path) -> int | None:
    """The pid that was written when a process was started; None where none was."""
    try:
        return int(pidfile.read_text())
    except (OSError, ValueError):
        return None


def resident_bytes(process: ProcessIdentity) -> int | None:
    """The memory that a process and what it has started hold; None where the system does not say, or it has ended."""
    held = _held_bytes(process.pid)
    return held if held and process.lives else None


def _held_bytes(pid: int) -> int:
    """Of a process and of those beneath it; 0 where the system does not say."""
    return _own_bytes(pid) + sum(map(_held_bytes, _started_by(pid)))


def _own_bytes(pid: int) -> int:
    """Of one process, with its share of what others hold too: a fork has most in common with its origin."""
    with suppress(OSError, ValueError, IndexError):  # not every system tells shares
        rollup = Path(f"/proc/{pid}/{_ROLLUP}").read_text()
        return int(rollup.split("\nPss:", 1)[1].split(maxsplit=1)[0]) * 1024
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _started_by(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it may end meanwhile
            yield from map(int, thread.read_text().split())


def _by_ps(pid: int) -> ProcessIdentity | None:
    """Where there is no /proc."""
    asked = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S603, S607 - a program that POSIX names
    state, _, started = asked.stdout.strip().partition(" ")
    if asked.returncode != 0 or not state or state.startswith("Z"):
        return None
    return ProcessIdentity(pid=pid, started=started.strip(), boot="")
