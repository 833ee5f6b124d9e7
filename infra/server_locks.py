"""A server that several processes share: who uses it, who starts or stops it, and whether it lives, by three locks.

The kernel drops a lock when its holder ends, however it ends. `start.lock` is held by whoever starts or stops the
server; `users.lock` is shared by all who use it; `server.lock` is held by the server itself from start to end.
"""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from events.errors import BadInput, Unreachable

#: how long another command may take to start or stop a server, seconds
_LOCK_S = 90.0
_POLL_S = 0.02


@contextmanager
def locked(path: Path, held: Callable[[], None], poll_s: float) -> Iterator[int]:
    """Hold the lock file `path`, made where it is not there; its descriptor.

    Args:
        path: of the file.
        held: called each time somebody else is found to hold it; raises where nobody waits any more.
        poll_s: how long after that it is tried again, seconds.
    """
    with path.open("ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            held()
            time.sleep(poll_s)
        yield lock.fileno()


class ServerLocks:
    """The locks of the server that keeps its files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        """Make the folder and its files.

        Raises:
            BadInput: it cannot be written; says what to set.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in ("start.lock", "users.lock", "server.lock"):
                (self._folder / name).touch(mode=0o600)
        except OSError as error:
            reason = error.strerror or str(error)
            raise BadInput(f"{self._folder} cannot be written ({reason}); name a home with CHIME_HOME") from error

    @contextmanager
    def alone(self, go_on: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Nobody else starts or stops the server meanwhile.

        Args:
            go_on: asked while somebody else does; raises where nobody waits any more.

        Raises:
            Unreachable: somebody else has been at it for a minute and a half.
        """
        deadline = time.monotonic() + _LOCK_S

        def held() -> None:
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"another chime has been starting or stopping the server of {self._folder} for "
                    f"{_LOCK_S:.0f} s; end it, then try again"
                )
            go_on()

        with locked(self._folder / "start.lock", held, _POLL_S):
            yield

    def use(self) -> IO[bytes]:
        """A use of the server, which ends when the file is closed or its process ends."""
        users = (self._folder / "users.lock").open("ab")
        fcntl.flock(users, fcntl.LOCK_SH)
        return users

    def last(self, users: IO[bytes]) -> bool:
        """Whether nobody uses the server but `users`; asked where `alone`."""
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @property
    def used(self) -> bool:
        """Whether anybody uses the server; asked where `alone`."""
        with (self._folder / "users.lock").open("ab") as users:
            return not self.last(users)

    @contextmanager
    def given(self) -> Iterator[int]:
        """The lock that shows that a server lives: its descriptor, for a server to inherit and keep."""
        with (self._folder / "server.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock.fileno()

    @property
    def held(self) -> bool:
        """Whether a server lives that writes to this folder."""
        try:
            lock = (self._folder / "server.lock").open("ab")
        except FileNotFoundError:
            return False
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def kept_by(self, pid: int) -> bool:
        """Whether a process keeps the server's lock open: it is the server, whatever its pid was before."""
        try:
            lock = (self._folder / "server.lock").stat()
            opened = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            return False
        for one in opened:
            with suppress(OSError):  # closed meanwhile
                found = one.stat()
                if (found.st_dev, found.st_ino) == (lock.st_dev, lock.st_ino):
                    return True
        return False
