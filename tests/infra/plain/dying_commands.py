"""`chime` commands in processes of their own that die by SIGKILL at a chosen instant; run as a program, it forks them.

An instant is before and after each thing that others can see: a file opened for writing, half written, flushed, renamed
or removed, a folder made, a command sent to the server. A fork of a process that has loaded everything costs little, so
that a command can be killed at every one of its instants.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from asyncio import selector_events
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from archived_runs import small

from workers.__main__ import main
from workers.commands import log, log_archive, memory

#: what an audit hook is told of, and where the path stands in its arguments
_SEEN = {"open": 0, "os.rename": 0, "os.remove": 0, "os.mkdir": 0, "os.rmdir": 0}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
#: the names of commands in what is sent to a server
_ASKED = re.compile(rb"\*\d+\r\n\$\d+\r\n([A-Za-z]+)\r\n")
#: what tells one file from another of its kind
_OWN = re.compile(r"[0-9a-f]{32}|\d+")
#: loaded before anything is forked
_LOADED = (log, log_archive, memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of a command."""

    #: negative = the signal that ended it
    code: int
    out: str
    err: str
    #: its instants, in order; the last one is where it died
    instants: list[str]
    #: how long it lived, seconds
    lasted_s: float


class Commands:
    """Commands of one home, each in a process of its own. Nothing is left of them after `close`."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._program = subprocess.Popen(
            [sys.executable, __file__, str(folder)], env=dict(environment), cwd=folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __call__(
        self, *arguments: str, die_at: tuple[int, str] | None = None, killed_after_s: float | None = None
    ) -> Ended:
        """`chime` with `arguments`, killed so long after its start, or at an instant: which of those of that name.

        Every instant is one of the name "".
        """
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        print(json.dumps([arguments, die_at, killed_after_s]), file=self._program.stdin, flush=True)
        answer = self._program.stdout.readline()
        assert answer, "the program that forks commands has died"
        code, lasted_s = json.loads(answer)
        out, err, instants = ((self._folder / name).read_text() for name in ("out", "err", "instants"))
        return Ended(code=code, out=out, err=err, instants=instants.splitlines(), lasted_s=lasted_s)

    def json(self, *arguments: str) -> Any:
        """What a command that ends well says with `--json`."""
        ended = self(*arguments, "--json")
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    def close(self) -> None:
        self._program.communicate()


class _Dying:
    """Counts the instants of this process, and ends it at one of them."""

    def __init__(self, die_at: tuple[int, str] | None, told: int, home: str) -> None:
        self._die_at, self._told, self._home = die_at or (-1, ""), told, home
        self._seen = 0

    def passes(self, name: str, spoil: Callable[[], object] = lambda: None) -> None:
        """One more instant; `spoil` is done where it is the last one."""
        name, (nth, wanted) = _OWN.sub("N", name), self._die_at
        os.write(self._told, f"{name}\n".encode())
        if wanted in ("", name):
            if self._seen == nth:
                spoil()
                os.kill(os.getpid(), signal.SIGKILL)
            self._seen += 1

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _SEEN or (event == "open" and not arguments[2] & _WRITES):
            return
        path = arguments[_SEEN[event]]
        if isinstance(path, str) and path.startswith(self._home):
            self.passes(f"{event} {Path(path).name}")

    def watch(self) -> None:
        sys.addaudithook(self.audit)
        write = selector_events._SelectorSocketTransport.write  # type: ignore[attr-defined]

        def fsync(handle: int) -> None:
            # All of it is with the kernel by now: as much of it as was written when a process died half way.
            size = os.fstat(handle).st_size
            path = Path(f"/proc/self/fd/{handle}").readlink()
            if path.is_file():
                self.passes(f"half of {path.name}", lambda: os.ftruncate(handle, size // 2))
            # What the kernel has survives a process: the disk itself need not be waited for.
            self.passes(f"flush {path.name}")

        def send(transport: Any, data: Any) -> None:
            asked = " ".join(sorted({name.decode().upper() for name in _ASKED.findall(bytes(data))}))
            self.passes(f"ask {asked}")
            write(transport, data)
            self.passes(f"asked {asked}")

        os.fsync = fsync
        selector_events._SelectorSocketTransport.write = send  # type: ignore[attr-defined]


def _run(arguments: list[str], die_at: tuple[int, str] | None, folder: Path) -> NoReturn:
    for name, stream in (("out", 1), ("err", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    told = os.open(folder / "instants", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    code = 70
    try:
        _Dying(die_at, told, os.environ["CHIME_HOME"]).watch()
        code = main(arguments)
    except BaseException:  # noqa: BLE001 - the command's own process: nobody else would say what it ended of
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(folder: Path) -> None:
    small()
    for line in sys.stdin:
        arguments, die_at, killed_after_s = json.loads(line)
        began = time.monotonic()
        pid = os.fork()
        if not pid:
            _run(arguments, die_at, folder)
        if killed_after_s is not None:
            time.sleep(killed_after_s)
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(f"{json.dumps([code, time.monotonic() - began])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
