"""Whose `events`, `runtime`, `workers` and `infra` Python imports.

Our packages are plain top-level names of an application with an environment of its own. Another distribution that
installs one of them would replace files of ours or hide them; whoever starts a process asks here first.
"""

import re
import sys
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, distributions
from pathlib import Path

from msgspec import Struct

from events.errors import BadInput

DISTRIBUTION = "chime-runtime"
PACKAGES = ("events", "runtime", "infra", "workers")

_NAMES = "|".join(PACKAGES)
#: RECORD's line of what makes an editable installation importable
_EDITABLE_LINE = re.compile(r"^([^,/\n]+\.pth|__editable__[^,/\n]*\.py),", re.MULTILINE)
#: an entry of setuptools' `MAPPING = {'events': '/path/events'}`
_MAPPED = re.compile(rf"['\"]({_NAMES})['\"]\s*:")


class Conflict(Struct, frozen=True, kw_only=True):
    """One of our names that is not ours alone."""

    package: str
    #: the other distribution; None where the packages come from several folders
    distribution: str | None
    #: what is wrong and what helps, one sentence each
    reason: str
    fix: str


def conflicts(path: list[str] | None = None) -> list[Conflict]:
    """Every other owner of our package names on `path` (None: `sys.path`), and packages that are not together."""
    search = sys.path if path is None else path
    found = {
        (package, other.name): Conflict(
            package=package,
            distribution=other.name,
            reason=f"the distribution {other.name!r} ({where}) also installs the top-level package {package!r}",
            fix=f"pip uninstall {other.name}, or install {DISTRIBUTION} into an environment of its own",
        )
        for other in distributions(path=search)
        for package, where in _owned(other)
        if _normalised(other.name) != DISTRIBUTION
    }
    return [*found.values(), *_apart(search)]


def assert_sole_owner(path: list[str] | None = None) -> None:
    """Pass when nobody else owns our package names.

    Raises:
        BadInput: somebody does; names the distribution and what to do.
    """
    found = conflicts(path)
    if found:
        raise BadInput("; ".join(f"{each.reason}: {each.fix}" for each in found))


def _owned(other: Distribution) -> list[tuple[str, str]]:
    """Which of our packages `other` installs, and where."""
    # Plain searches: a pattern stops at every line (twice the cost over 75 distributions), `files` makes path objects.
    record = "\n" + (other.read_text("RECORD") or other.read_text("installed-files.txt") or "")
    owned = {package for package in PACKAGES if f"\n{package}/" in record or f"\n{package}.py," in record}
    editable = _EDITABLE_LINE.findall(record) if ".pth," in record or "__editable__" in record else []
    if not owned and not editable:
        return []
    folder = Path(str(other.locate_file("")))
    places = {(package, str(folder / package)) for package in owned}
    for name in editable:
        places |= _editable(folder / name)
    return sorted(places)


def _editable(file: Path) -> set[tuple[str, str]]:
    """Our names among what a `.pth` file or a generated finder makes importable."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    if file.suffix == ".py":
        return {(package, str(file)) for package in _MAPPED.findall(text)}
    lines = (line.strip() for line in text.splitlines())
    folders = [Path(line) for line in lines if line and not line.startswith(("import ", "import\t", "#"))]
    return {
        (package, str(folder / package))
        for folder in folders
        for package in PACKAGES
        if (folder / package / "__init__.py").is_file() or (folder / f"{package}.py").is_file()
    }


def _apart(path: list[str]) -> list[Conflict]:
    """The packages that `path` gives from another folder than `infra`, or not at all."""
    parents = {package: _parent(package, path) for package in PACKAGES}
    home = parents["infra"]
    return [
        Conflict(
            package=package,
            distribution=None,
            reason=f"{package!r} is imported from {parent or 'nowhere'}, the rest of Chime from {home}",
            fix=f"start from another folder, clear PYTHONPATH, or reinstall {DISTRIBUTION}",
        )
        for package, parent in parents.items()
        if parent is None or parent != home
    ]


def _parent(package: str, path: list[str]) -> Path | None:
    """The folder that holds `package`: as it was imported, else as it would be."""
    module = sys.modules.get(package) if path is sys.path else None
    if module is not None:
        origin = module.__file__
    else:
        spec = PathFinder.find_spec(package, path)
        origin = spec.origin if spec else None
    return Path(origin).resolve().parent.parent if origin else None


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
