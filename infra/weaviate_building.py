"""A Weaviate server program for the tool cache: built from its sources, or fetched as it was released.

Both work in a folder beside the cache and put the program in its place in one step, under a lock: of two processes one
does it and the other finds it done. What fails leaves nothing; what was killed is gone on with.
"""

import hashlib
import http.client
import os
import platform
import re
import shutil
import signal
import subprocess
import tarfile
import threading
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from infra.server_locks import locked
from infra.weaviate_process import VERSION

MODULE = f"github.com/weaviate/weaviate/cmd/weaviate-server@v{VERSION}"
RELEASES = f"https://github.com/weaviate/weaviate/releases/download/v{VERSION}"

#: the oldest Go that the sources ask for
OLDEST_GO = (1, 26)
#: what modules, objects and program take while it is built, bytes
BUILD_SPACE = 6 << 30
#: what archive and program take, bytes
_FETCH_SPACE = 512 << 20
#: how often whoever waits hears that it goes on, seconds
_TELL_S = 30.0
#: how long the server of the releases may be silent, seconds
_SILENT_S = 30.0

#: how often whoever waits is asked whether it still does, seconds
_ASK_S = 0.2


@dataclass(frozen=True, slots=True)
class Waiter:
    """Whoever waits for a server, which may take minutes."""

    #: gets a line at each step that takes long
    tell: Callable[[str], None]
    #: asked again and again; raises where nobody waits any more
    go_on: Callable[[], None] = lambda: None


class Missing(Exception):
    """A way to a server that does not lead there; says why in one line."""


def cached(tools: Path) -> Path:
    """Where the tool cache keeps the program, there or not."""
    return tools / f"weaviate-{VERSION}" / "weaviate-server"


def go_version() -> tuple[str, str]:
    """The go program and its version, where it is new enough; nothing is fetched to find out.

    Raises:
        Missing: there is none, or it is too old, or it does not say.
    """
    go = shutil.which("go")
    if go is None:
        raise Missing("no go on PATH")
    try:
        environment = {**os.environ, "GOTOOLCHAIN": "local"}
        asked = subprocess.run(  # noqa: S603 - found on PATH
            [go, "env", "GOVERSION"], capture_output=True, text=True, timeout=30, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{go} does not run ({error})") from error
    found = re.match(r"go(\d+)\.(\d+)", asked.stdout)
    if found is None:
        raise Missing(f"{go} does not say its version ({_telling(asked.stderr.splitlines()) or 'it prints nothing'})")
    if (int(found[1]), int(found[2])) < OLDEST_GO:
        raise Missing(f"{asked.stdout.strip()} is older than go{OLDEST_GO[0]}.{OLDEST_GO[1]}")
    return go, asked.stdout.strip().removeprefix("go")


def build(tools: Path, waiter: Waiter, check: Callable[[Path], None]) -> Path:
    """Build the server with Go; some three minutes on two cores, once. Module and build caches are removed after it.

    Args:
        tools: the tool cache.
        waiter: gets a line at the beginning, every half minute and at the end.
        check: looks at the program before it is put in its place; raises what is wrong.

    Raises:
        Missing: no Go that is new enough, no room, or it does not build; says why.
    """
    go, version = go_version()

    def make(work: Path, lock: int) -> Path:
        waiter.tell(f"building Weaviate {VERSION} with go {version}: some minutes, once")
        _compile([go, "install", "-trimpath", "-modcacherw", "-ldflags", "-s -w", MODULE], work, lock, waiter)
        return work / "bin" / "weaviate-server"

    return _made(tools, BUILD_SPACE, make, waiter, check)


def _compile(command: list[str], work: Path, lock: int, waiter: Waiter) -> None:
    """Run go in a group of its own, all its caches in `work`; it keeps the lock if we are killed."""
    folders = {name: work / name.lower() for name in ("GOMODCACHE", "GOCACHE", "GOTMPDIR", "GOPATH")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    theirs = {name: value for name, value in os.environ.items() if name not in ("GOOS", "GOARCH", "GOWORK", "GOEXE")}
    environment = theirs | {name: str(folder) for name, folder in folders.items()}
    environment |= {"GOBIN": str(work / "bin"), "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    with _told(waiter, f"still building Weaviate {VERSION}"):
        code, said = run_watched(command, waiter, environment=environment, folder=work, keep=(lock,))
    if code != 0:
        raise Missing(said or f"it ends with {code}")


def run_watched(
    command: list[str],
    waiter: Waiter,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    keep: tuple[int, ...] = (),
) -> tuple[int, str]:
    """Run a program that takes minutes, in a group of its own, which is killed where nobody waits any more.

    Returns:
        its exit code, and the line that tells why: the last one but lines about downloads.
    """
    lines: list[str] = []
    with subprocess.Popen(  # noqa: S603 - a program found on PATH, with arguments of ours
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        errors="replace", env=environment, cwd=folder, pass_fds=keep, start_new_session=True,
    ) as process:  # fmt: skip
        reader = threading.Thread(target=_read, args=(process.stdout, lines))
        reader.start()
        try:
            while reader.is_alive():
                waiter.go_on()
                reader.join(_ASK_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            reader.join()
            raise
    return process.returncode, _telling(lines)


def _read(output: IO[str] | None, lines: list[str]) -> None:
    """The last lines that a program prints, until it ends."""
    for line in output or ():
        lines.append(line.rstrip())
        del lines[:-200]


@contextmanager
def _told(waiter: Waiter, what: str) -> Iterator[None]:
    """Say `what` every half minute while the body runs."""
    ended = threading.Event()

    def tell() -> None:
        seconds = 0.0
        while not ended.wait(_TELL_S):
            seconds += _TELL_S
            waiter.tell(f"{what}: {seconds:.0f} s")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _telling(lines: list[str]) -> str:
    """The line that says what is wrong: go ends with it, after lines about what it has downloaded."""
    said = [line.strip() for line in lines if line.strip() and not line.startswith("go: downloading")]
    return said[-1][:300] if said else ""


def archive_name() -> str:
    """What the release for this machine is called.

    Raises:
        Missing: there is none for it.
    """
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    if system == "darwin":
        return f"weaviate-v{VERSION}-darwin-all.zip"
    if system != "linux" or machine not in ("amd64", "arm64"):
        raise Missing(f"there is none for {system} on {machine}")
    return f"weaviate-v{VERSION}-linux-{machine}.tar.gz"


def fetch(tools: Path, waiter: Waiter, check: Callable[[Path], None], releases: str = RELEASES) -> Path:
    """Fetch the released program, the one that the client library's embedded mode runs; some 70 MB, once.

    Args:
        tools: the tool cache.
        waiter: gets a line at the beginning and every half minute.
        check: as for `build`.
        releases: where the archive and its SHA-256 are.

    Raises:
        Missing: not reachable, no room, or not what its SHA-256 says.
    """
    name = archive_name()

    def make(work: Path, lock: int) -> Path:
        del lock
        try:
            wanted = _opened(f"{releases}/{name}.sha256").decode("ascii", "replace").split()
            if not wanted or not re.fullmatch(r"[0-9a-f]{64}", wanted[0]):
                raise Missing(f"{name}.sha256 holds no SHA-256")
            waiter.tell(f"fetching {name}")
            archive = work / name
            with _told(waiter, f"still fetching {name}"), archive.open("wb") as file:
                found = _copied(f"{releases}/{name}", file, waiter)
        except urllib.error.HTTPError as error:
            with error:
                raise Missing(f"{error.url} answers {error.code}") from None
        except (OSError, http.client.HTTPException) as error:
            raise Missing(f"{releases}: {getattr(error, 'reason', None) or error}") from error
        if found != wanted[0]:
            raise Missing(f"{name} is not what its SHA-256 says")
        return _unpacked(archive, work)

    return _made(tools, _FETCH_SPACE, make, waiter, check)


def _opened(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_SILENT_S) as answer:  # noqa: S310 - https, a constant of ours
        body: bytes = answer.read(1 << 12)
        return body


def _copied(url: str, file: IO[bytes], waiter: Waiter) -> str:
    """The SHA-256 of what was written."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=_SILENT_S) as answer:  # noqa: S310 - https, a constant of ours
        while chunk := answer.read(1 << 20):
            waiter.go_on()
            file.write(chunk)
            digest.update(chunk)
    return digest.hexdigest()


def _unpacked(archive: Path, work: Path) -> Path:
    """The program inside an archive, and nothing else of it."""
    program = work / "program"
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                name = next(one for one in packed.namelist() if one.rsplit("/", 1)[-1] == "weaviate")
                with packed.open(name) as source, program.open("wb") as target:
                    shutil.copyfileobj(source, target)
        else:
            with tarfile.open(archive) as tape:
                member = next(one for one in tape if one.isfile() and one.name.rsplit("/", 1)[-1] == "weaviate")
                inside = tape.extractfile(member)
                assert inside is not None  # noqa: S101 - it is for what is no file
                with inside, program.open("wb") as target:
                    shutil.copyfileobj(inside, target)
    except StopIteration:
        raise Missing(f"{archive.name} holds no program") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        reason = str(error).splitlines() or [type(error).__name__]
        raise Missing(f"{archive.name} cannot be unpacked ({reason[0]})") from error
    return program


def _made(
    tools: Path, space: int, make: Callable[[Path, int], Path], waiter: Waiter, check: Callable[[Path], None]
) -> Path:
    """The program in its place: put there by us, or by whoever was at it when we came."""
    place = cached(tools)
    work = tools / f".weaviate-{VERSION}"
    try:
        tools.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(tools / ".weaviate.lock", waiter) as lock:
            if place.exists():
                return place
            if (free := shutil.disk_usage(tools).free) < space:
                raise Missing(f"{tools} has {free >> 20} MiB free, {space >> 20} are needed")
            try:
                work.mkdir(mode=0o700, exist_ok=True)
                program = make(work, lock)
                program.chmod(0o755)
                check(program)
                place.parent.mkdir(mode=0o700, exist_ok=True)
                program.replace(place)
            finally:
                # The caches hold gigabytes. An exception leaves nothing either; only what was killed is gone on with.
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise Missing(f"{tools} cannot be written ({error.strerror or error})") from error
    waiter.tell(f"Weaviate {VERSION} is at {place}")
    return place


@contextmanager
def _alone(path: Path, waiter: Waiter) -> Iterator[int]:
    """Hold the lock file, whose descriptor is given; says so when somebody else does."""
    said = False

    def held() -> None:
        nonlocal said
        if not said:
            waiter.tell(f"waiting for another process that builds or fetches Weaviate {VERSION}")
        said = True
        waiter.go_on()

    with locked(path, held, _ASK_S) as lock:
        yield lock
