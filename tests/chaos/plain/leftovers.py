"""What a run may leave behind when all its processes have ended, and what is there beside it."""

import fcntl
from pathlib import Path

from troupe import PREFIX, RUN, Troupe, until

#: keys of the server's own list of runs and of rq's list of queues: one of each, however many runs there were
_LISTS = {f"{PREFIX}:runs", f"{PREFIX}:set-aside", f"{PREFIX}:rq:queues"}
#: how long a key may live on by itself: a failed job is there for five minutes, a lock of rq's for fifteen, seconds
_EXPIRES_S = 900


def of_processes(troupe: Troupe) -> None:
    """No process, connection, socket, lock or temporary file once everybody was asked to end."""
    until(lambda: not troupe.alive(), "every process ends")
    until(lambda: not troupe.line.connections, "every connection ends")
    assert _files(troupe.sockets / "runtime") == []
    until(lambda: not _files(troupe.folder / "tmp"), lambda: f"no temporary file: {_files(troupe.folder / 'tmp')}")
    assert [path for path in (troupe.folder / "home").rglob("*.lock") if _locked(path)] == []


def of_keys(troupe: Troupe) -> None:
    """Beside the run's own keys and the lists, only what expires by itself and soon, once everybody has ended."""
    assert not _keys(troupe), f"keys left over: {_keys(troupe)}"


def of_jobs(troupe: Troupe) -> None:
    """While the workers live on, nothing of the finished run's jobs is left before long."""
    until(
        lambda: not [key for key in _keys(troupe) if f"-{RUN}-" in key],
        lambda: f"jobs are cleared away: {_keys(troupe)}",
    )


def of_claims(troupe: Troupe) -> None:
    """Whoever was killed a moment ago counts as dead: its claims are gone, so that the others clear it away."""
    until(lambda: all(map(_lives, _claims(troupe))), "the claims of the dead expire")


def of_orphans(troupe: Troupe) -> None:
    """Whoever worked for the dead has ended too and holds no folder, so that the others clear it away as they end."""
    until(lambda: not troupe.orphans(), "the children of the dead end")


def _claims(troupe: Troupe) -> list[str]:
    return [key for key, _ in troupe.keys().items() if key.startswith(f"{PREFIX}:workers:host-")]


def _lives(key: str) -> bool:
    return Path(f"/proc/{key.rsplit('-', 2)[1]}").exists()


def _keys(troupe: Troupe) -> dict[str, int]:
    keys = {key: ttl for key, ttl in troupe.keys().items() if not key.startswith(f"{PREFIX}:{{{RUN}}}:")}
    return {key: ttl for key, ttl in keys.items() if key not in _LISTS and not 0 <= ttl <= _EXPIRES_S}


def _files(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))


def _locked(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
