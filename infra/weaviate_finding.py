"""The ways to a Weaviate server program, in the order in which they are tried, and why one does not lead there."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from events.errors import Unreachable
from infra.process_identity import identity_of
from infra.server_locks import ServerLocks
from infra.weaviate_asking import version_of
from infra.weaviate_building import (
    BUILD_SPACE,
    Missing,
    Waiter,
    archive_name,
    build,
    cached,
    fetch,
    go_version,
    run_watched,
)
from infra.weaviate_process import VERSION, free_ports, last_words, launch, settings

IMAGE = f"cr.weaviate.io/semitechnologies/weaviate:{VERSION}"

#: how long a program may take until it says its version, seconds
PROBE_S = 30.0
_POLL_S = 0.05
#: how long one that was killed may take to be gone, seconds
_KILLED_S = 10.0
#: how long a container engine may take to say that it is there, seconds
_ENGINE_S = 10.0

#: what a user can do, said where every way has failed
ADVICE = (
    "set CHIME_WEAVIATE_URL to a server of yours, put a weaviate-server "
    f"{VERSION} on PATH, install Go 1.26 or newer, which builds it, let this machine reach github.com, "
    "which has its release, or start a Docker engine"
)


@dataclass(frozen=True, slots=True)
class Program:
    """A server that can be started: a program, or an image that a container engine runs."""

    path: str
    #: the name of the way that led there
    way: str
    #: name and version of the image that `path`, a container engine, runs; "" for the server itself
    image: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to a program."""

    name: str
    #: whether it would lead to one now
    open: bool
    #: what it would take, or what is in the way
    detail: str


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    #: the program; builds, fetches or pulls it. Raises Missing
    program: Callable[[Path, Waiter], Program]
    #: what `program` would do, at no cost. Raises Missing
    outlook: Callable[[Path], str]


def programs(tools: Path, waiter: Waiter, misses: list[str]) -> Iterator[Program]:
    """Each program that there is, in order, found, built or fetched only once it is asked for.

    Args:
        tools: the tool cache.
        waiter: gets lines while something is built or fetched.
        misses: gets a line for each way that leads nowhere.
    """
    for source in _SOURCES:
        try:
            yield source.program(tools, waiter)
        except Missing as reason:
            misses.append(f"{source.name}: {reason}")


def provided(tools: Path, waiter: Waiter, misses: list[str]) -> Program | None:
    """The first program that there is, as `programs`; None where no way leads to one."""
    return next(programs(tools, waiter, misses), None)


def ways(tools: Path) -> list[Way]:
    """All ways as they stand; nothing is built, fetched or started for it."""
    found: list[Way] = []
    for source in _SOURCES:
        try:
            found.append(Way(source.name, True, source.outlook(tools)))
        except Missing as reason:
            found.append(Way(source.name, False, str(reason)))
    return found


def _on_path(tools: Path, waiter: Waiter) -> Program:
    path = Path(_which("weaviate-server"))
    version = _probed(path, tools, waiter)
    if version != VERSION:
        raise Missing(f"{path} is version {version}, not {VERSION}")
    return Program(str(path), "PATH")


def _path_outlook(tools: Path) -> str:
    path = Path(_which("weaviate-server"))
    known = _remembered(path, tools)
    if known is not None and known != VERSION:
        raise Missing(f"{path} is version {known}, not {VERSION}")
    return f"{path}, " + (f"version {known}" if known else "to be asked for its version")


def _in_cache(tools: Path, waiter: Waiter) -> Program:
    del waiter
    path = Path(_cache_outlook(tools))
    return Program(str(path), "tool cache")


def _cache_outlook(tools: Path) -> str:
    path = cached(tools)
    if not path.is_file():
        raise Missing(f"nothing at {path} yet")
    if not os.access(path, os.X_OK):
        raise Missing(f"{path} is not executable")
    return str(path)


def _built(tools: Path, waiter: Waiter) -> Program:
    _assert_not_cached(tools)
    return Program(str(build(tools, waiter, partial(_check, waiter))), "go install")


def _go_outlook(tools: Path) -> str:
    _, version = go_version()
    free = shutil.disk_usage(next(one for one in (tools, *tools.parents) if one.exists())).free
    if free < BUILD_SPACE:
        raise Missing(f"{tools} has {free >> 20} MiB free, {BUILD_SPACE >> 20} are needed")
    return f"go {version} builds it, some minutes, once"


def _fetched(tools: Path, waiter: Waiter) -> Program:
    _assert_not_cached(tools)
    return Program(str(fetch(tools, waiter, partial(_check, waiter))), "release")


def _assert_not_cached(tools: Path) -> None:
    """What stands in the cache was tried before these ways; making it again would not change it."""
    if cached(tools).exists():
        raise Missing(f"{cached(tools)} is there and does not start; remove it to have it made again")


def _fetch_outlook(tools: Path) -> str:
    del tools
    return f"{archive_name()} from github.com, once"


def _image(tools: Path, waiter: Waiter) -> Program:
    del tools
    docker = _engine()
    if subprocess.run([docker, "image", "inspect", IMAGE], capture_output=True, check=False).returncode != 0:  # noqa: S603 - found on PATH
        waiter.tell(f"pulling {IMAGE}")
        code, said = run_watched([docker, "pull", "--quiet", IMAGE], waiter)
        if code != 0:
            raise Missing(f"pull fails: {said}")
    return Program(docker, "docker", image=IMAGE)


def _image_outlook(tools: Path) -> str:
    del tools
    _engine()
    return f"runs {IMAGE}"


def _engine() -> str:
    docker = _which("docker")
    try:
        asked_ = subprocess.run(  # noqa: S603 - found on PATH
            [docker, "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True, timeout=_ENGINE_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        raise Missing(f"{docker} does not say whether its engine runs") from None
    if asked_.returncode != 0 or not asked_.stdout.strip():
        raise Missing("no engine runs")
    return docker


def _which(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise Missing(f"no {name} on PATH")
    return path


def _check(waiter: Waiter, path: Path) -> None:
    """Start what was built or fetched once, before it is put in its place."""
    version = version_by_trial(path, waiter)
    if version != VERSION:
        raise Missing(f"it says that it is version {version}, not {VERSION}")


def _probed(path: Path, tools: Path, waiter: Waiter) -> str:
    """The version of a program, by starting it once on an empty folder; remembered for as long as it is the same file.

    Never on the home's data: a newer version would change them so that this one reads them no more.
    """
    if (known := _remembered(path, tools)) is not None:
        return known
    waiter.tell(f"asking {path} for its version")
    version = version_by_trial(path, waiter)
    try:
        tools.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = tools / f".probed.{os.getpid()}"
        draft.write_text(json.dumps({"file": _facts(path), "version": version}))
        draft.replace(tools / "probed.json")
    except OSError:
        pass  # asked again next time
    return version


def _remembered(path: Path, tools: Path) -> str | None:
    try:
        known = json.loads((tools / "probed.json").read_text())
        return str(known["version"]) if known["file"] == _facts(path) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _facts(path: Path) -> list[str | int]:
    there = path.resolve().stat()
    return [str(path.resolve()), there.st_ino, there.st_size, there.st_mtime_ns]


def sound(program: Program, waiter: Waiter) -> bool:
    """Whether a program that did not start elsewhere does so in an empty folder."""
    try:
        return not program.image and version_by_trial(Path(program.path), waiter) == VERSION
    except Missing:
        return False


def version_by_trial(path: Path, waiter: Waiter) -> str:
    """The version that a server program says once it is up, in a folder of its own that is removed again.

    Raises:
        Missing: it does not come up, or never becomes ready.
    """
    with tempfile.TemporaryDirectory(prefix="chime-weaviate-", ignore_cleanup_errors=True) as made:
        folder, key = Path(made), secrets.token_urlsafe(32)
        locks = ServerLocks(folder)
        locks.prepare()
        try:
            ports = free_ports()
            with locks.given() as lock:
                pid = launch(
                    command(str(path), ports.http), settings(folder / "data", ports, key), folder,
                    pidfile=folder / "pid", log=folder / "log", keep=(lock,),
                )  # fmt: skip
        except Unreachable as error:
            raise Missing(str(error)) from error
        one = identity_of(pid)
        try:
            deadline = time.monotonic() + PROBE_S
            while locks.held and time.monotonic() < deadline:
                waiter.go_on()
                try:
                    return version_of(ports.address(key).http_url, key)
                except OSError:
                    time.sleep(_POLL_S)
            reason = f"is not ready after {PROBE_S:.0f} s" if locks.held else "ends at once"
            words = last_words(folder / "log")
            raise Missing(f"{path} {reason}" + (f": {words}" if words else ""))
        finally:
            if one is not None and one.signal_group(signal.SIGKILL):
                # It may write until it is gone, and its folder is about to be removed.
                deadline = time.monotonic() + _KILLED_S
                while locks.held and time.monotonic() < deadline:
                    time.sleep(_POLL_S)


def command(path: str, http_port: int, host: str = "127.0.0.1") -> list[str]:
    """The command line of a server program."""
    return [path, "--host", host, "--port", str(http_port), "--scheme", "http"]


_SOURCES = (
    _Source("PATH", _on_path, _path_outlook),
    _Source("tool cache", _in_cache, _cache_outlook),
    _Source("go install", _built, _go_outlook),
    _Source("release", _fetched, _fetch_outlook),
    _Source("docker", _image, _image_outlook),
)
