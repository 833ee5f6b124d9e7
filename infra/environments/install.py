"""Virtual environments of the benchmarks: `<home>/environments/<name>/venv`, made from the pins in a benchmark's file.

The pins stand in an inline script header (PEP 723). They are exact and complete, and installed without asking for
dependencies: a benchmark's own list may hold gigabytes that its evaluator never touches. A virtual environment cannot
be moved, so it is built in its place; it counts as installed once the marker beside it names the very same pins and
interpreter. What was interrupted has no marker and is begun again.
"""

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from events.errors import UnknownName
from runtime.errors import EnvironmentUnavailable

#: benchmarks that need an environment of their own, by name: the file with the pins
INSTALLABLE: dict[str, Path] = {"bfcl": Path(__file__).with_name("bfcl.py")}

#: lines of pip's output kept for an error
_TAIL = 12
_HEADER = re.compile(r"^# /// script\n(?P<body>(?:#(?: .*)?\n)+?)# ///$", re.MULTILINE)


def pins_of(file: Path) -> list[str]:
    """The requirements in a file's inline script header, in order.

    Raises:
        EnvironmentUnavailable: there is no header, or it is no TOML.
    """
    match = _HEADER.search(file.read_text(encoding="utf-8"))
    if match is None:
        raise EnvironmentUnavailable(f"{file} has no script header with its pins")
    body = "\n".join(line[2:] for line in match["body"].splitlines())
    try:
        pins = tomllib.loads(body)["dependencies"]
    except (tomllib.TOMLDecodeError, KeyError) as problem:
        raise EnvironmentUnavailable(f"the script header of {file} cannot be read: {problem}") from problem
    return [str(pin) for pin in pins]


def folder_of(name: str, home: Path) -> Path:
    """Where the environment of a benchmark is, installed or not.

    Raises:
        UnknownName: not a benchmark that is installed.
    """
    if name not in INSTALLABLE:
        raise UnknownName("installable environment", name, INSTALLABLE)
    return (home / "environments" / name).absolute()


def python_of(name: str, home: Path) -> Path:
    """The interpreter of an installed benchmark.

    Raises:
        UnknownName: not a benchmark that is installed.
        EnvironmentUnavailable: not installed in this home, or for another version of chime or Python.
    """
    folder = folder_of(name, home)
    if not _complete(name, folder):
        raise EnvironmentUnavailable(f"the environment {name!r} is not installed in {home}: chime env install {name}")
    return folder / "venv" / "bin" / "python"


def installed(home: Path) -> list[str]:
    """The names of the benchmarks that are completely installed in `home`, sorted."""
    return sorted(name for name in INSTALLABLE if _complete(name, folder_of(name, home)))


def silent(line: str) -> None:
    """Progress that nobody watches."""
    del line


def install(name: str, home: Path, progress: Callable[[str], None] = silent) -> Path:
    """Make the environment of a benchmark unless it is there; its interpreter.

    `progress` gets a line of text at every step. Blocks for as long as it takes; another process that installs the
    same waits for this one.

    Raises:
        UnknownName: not a benchmark that is installed.
        EnvironmentUnavailable: a step failed; says which and what it printed last.
    """
    folder = folder_of(name, home)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / "lock"):
            if _complete(name, folder):
                progress(f"{name} is installed in {folder}")
            else:
                _build(name, folder, progress)
    except OSError as problem:
        raise EnvironmentUnavailable(f"cannot install {name} in {folder}: {problem.strerror or problem}") from problem
    return folder / "venv" / "bin" / "python"


def _build(name: str, folder: Path, progress: Callable[[str], None]) -> None:
    place, marker, requirements = folder / "venv", folder / "installed.json", folder / "requirements.txt"
    marker.unlink(missing_ok=True)
    if place.exists():
        progress("removing what an earlier installation left")
        shutil.rmtree(place)
    pins = pins_of(INSTALLABLE[name])
    progress(f"making a virtual environment in {place}")
    _run([sys.executable, "-m", "venv", str(place)], "making the virtual environment", progress)
    requirements.write_text("\n".join(pins) + "\n", encoding="utf-8")
    progress(f"installing {len(pins)} packages: {', '.join(pins)}")
    command = [str(place / "bin" / "python"), "-m", "pip", "install", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "-r", str(requirements)]
    _run(command, "installing its packages", progress)
    # the marker is the last thing written, in one step: with it everything before it is there
    draft = folder / "installed.json.part"
    draft.write_text(json.dumps(_identity(name)) + "\n", encoding="utf-8")
    draft.replace(marker)
    progress(f"{name} is installed")


def _run(command: list[str], what: str, progress: Callable[[str], None]) -> None:
    lines: list[str] = []
    with subprocess.Popen(  # noqa: S603 - our own interpreter with our own pins
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    ) as process:
        try:
            for line in process.stdout or ():
                lines.append(line.rstrip())
                progress(lines[-1])
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        last = "\n".join(lines[-_TAIL:])
        raise EnvironmentUnavailable(f"{what} failed (exit code {process.returncode}):\n{last}")


def _identity(name: str) -> dict[str, str]:
    """What an installation depends on: the pins, and the interpreter a virtual environment points to."""
    pins = "\n".join(pins_of(INSTALLABLE[name]))
    return {"pins": hashlib.sha256(pins.encode()).hexdigest(), "python": f"{sys.version_info[0]}.{sys.version_info[1]}"}


def _complete(name: str, folder: Path) -> bool:
    try:
        marker = json.loads((folder / "installed.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    # a home that was moved keeps its marker, but its interpreter's scripts point to the old place; python itself works
    return marker == _identity(name) and (folder / "venv" / "bin" / "python").exists()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; waits for whoever holds it, and is free again when its holder is gone."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
