"""Virtual environments made from pins: complete or not there, whatever interrupted them."""

from pathlib import Path

import pytest

from events.errors import UnknownName
from infra.environments import install as module
from infra.environments.install import INSTALLABLE, install, installed, pins_of, python_of
from runtime.errors import EnvironmentUnavailable


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A benchmark file `tiny` that needs no package."""
    file = tmp_path / "tiny.py"
    file.write_text('# /// script\n# dependencies = [\n# ]\n# ///\n"""Nothing to install."""\n')
    monkeypatch.setitem(INSTALLABLE, "tiny", file)
    return file


def test_pins_are_exact_and_read_from_the_header() -> None:
    """BFCL's header names exact versions, the wheel first."""
    pins = pins_of(INSTALLABLE["bfcl"])
    assert pins[0] == "bfcl-eval==2026.3.23"
    assert all(pin.count("==") == 1 for pin in pins)


@pytest.mark.parametrize(
    "text", ["print()\n", "# /// script\n# dependencies = [\n# ///\n", "# /// script\n# x = 1\n# ///\n"]
)
def test_a_file_without_pins_is_named(tmp_path: Path, text: str) -> None:
    """No header, broken TOML or no dependencies is an error that names the file."""
    file = tmp_path / "none.py"
    file.write_text(text)
    with pytest.raises(EnvironmentUnavailable, match=str(file)):
        pins_of(file)


def test_an_installation_is_complete_and_resumes(tmp_path: Path, pinned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted installation does not count and is begun again; a complete one is left alone until pins change."""
    home, lines = tmp_path / "home", list[str]()
    assert installed(home) == []
    with pytest.raises(EnvironmentUnavailable, match="chime env install tiny"):
        python_of("tiny", home)

    run = module._run

    def interrupt(command: list[str], what: str, progress: object) -> None:
        if "pip" in command:
            raise KeyboardInterrupt
        run(command, what, lines.append)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            install("tiny", home)
    assert (home / "environments" / "tiny" / "venv").exists()
    assert installed(home) == []

    python = install("tiny", home, lines.append)
    assert any("earlier installation" in line for line in lines)
    assert python == python_of("tiny", home)
    assert python.exists()
    assert installed(home) == ["tiny"]
    made = python.lstat().st_ctime_ns
    install("tiny", home, lines.append)
    assert lines[-1].startswith("tiny is installed in")
    assert python.lstat().st_ctime_ns == made

    pinned.write_text('# /// script\n# dependencies = ["six==1.0"]\n# ///\n')
    assert installed(home) == []


def test_a_failing_step_is_named(tmp_path: Path, pinned: Path) -> None:
    """What pip said last is in the error, and nothing counts as installed."""
    pinned.write_text('# /// script\n# dependencies = ["./nowhere-1.0-py3-none-any.whl"]\n# ///\n')
    with pytest.raises(EnvironmentUnavailable, match=r"(?s)installing its packages failed.*nowhere"):
        install("tiny", tmp_path / "home")
    assert installed(tmp_path / "home") == []


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file in the place of the folder is a clear error."""
    (tmp_path / "environments").write_text("in the way")
    with pytest.raises(EnvironmentUnavailable, match="cannot install bfcl"):
        install("bfcl", tmp_path)


def test_an_unknown_benchmark_lists_the_known(tmp_path: Path) -> None:
    """A wrong name says what can be installed."""
    for function in (python_of, install):
        with pytest.raises(UnknownName, match="bfcl"):
            function("bcfl", tmp_path)
