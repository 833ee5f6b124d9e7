"""Who owns the names events, runtime, infra and workers."""

from pathlib import Path

import pytest

from events.errors import BadInput
from infra.ownership import PACKAGES, assert_sole_owner, conflicts

ROOT = Path(__file__).parent.parent.parent


def install(folder: Path, name: str, record: str, **files: str) -> None:
    """A distribution as pip leaves it."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text(record)
    for path, text in files.items():
        (folder / path).write_text(text)


def found(folder: Path) -> list[tuple[str, str | None]]:
    return [(each.package, each.distribution) for each in conflicts([str(ROOT), str(folder)])]


def test_this_environment_is_ours() -> None:
    """In the environment of the project nobody else owns our names."""
    assert conflicts() == []
    assert_sole_owner()


def test_a_distribution_that_installs_one_of_our_names_is_found(tmp_path: Path) -> None:
    """Packages and modules count, at the top level only; the error names the distribution and the fix."""
    install(
        tmp_path, "evil-events", "events/__init__.py,sha256=x,1\nevents/a.py,,\nevil_events-1.0.dist-info/RECORD,,\n"
    )
    install(tmp_path, "one-module", "workers.py,sha256=x,1\n")
    install(
        tmp_path,
        "innocent",
        "innocent/events/__init__.py,,\nmyevents/__init__.py,,\nevents.pyi,,\n../../bin/workers,,\n",
    )
    assert sorted(found(tmp_path)) == [("events", "evil-events"), ("workers", "one-module")]
    with pytest.raises(BadInput, match=r"'evil-events'.*'events'.*pip uninstall evil-events") as caught:
        assert_sole_owner([str(ROOT), str(tmp_path)])
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", ["chime-runtime", "Chime_Runtime", "chime.runtime"])
def test_our_own_distribution_is_no_conflict(tmp_path: Path, name: str) -> None:
    """However its name is spelled."""
    install(tmp_path, name, "".join(f"{package}/__init__.py,,\n" for package in PACKAGES))
    assert found(tmp_path) == []


def test_an_editable_installation_by_path_is_found(tmp_path: Path) -> None:
    """A `.pth` file that adds a folder with one of our names; its code lines are not paths."""
    source = tmp_path / "source"
    (source / "infra").mkdir(parents=True)
    (source / "infra" / "__init__.py").touch()
    (source / "runtime.py").touch()
    (source / "workers").mkdir()  # no package: only a folder
    pth = f"# a comment\nimport sys\n\n{source}\n{tmp_path}/missing\n"
    install(tmp_path / "site", "other-app", "other_app.pth,sha256=x,1\n", **{"other_app.pth": pth})
    assert found(tmp_path / "site") == [("infra", "other-app"), ("runtime", "other-app")]


def test_an_editable_installation_by_finder_is_found(tmp_path: Path) -> None:
    """What setuptools generates maps names to folders."""
    finder = "MAPPING: dict[str, str] = {'events': '/src/events', 'other': '/src/other'}\n"
    name = "__editable___other_1_0_finder.py"
    install(tmp_path, "other", f"__editable__.other-1.0.pth,,\n{name},,\n", **{name: finder})
    assert found(tmp_path) == [("events", "other")]


def test_a_distribution_without_records_is_passed_over(tmp_path: Path) -> None:
    """Debian's packages have none; what cannot be read cannot be judged."""
    install(tmp_path, "bare", "")
    (tmp_path / "bare-1.0.dist-info" / "RECORD").unlink()
    assert found(tmp_path) == []


def test_packages_from_two_folders_are_found(tmp_path: Path) -> None:
    """A package that would come from elsewhere, as a folder without `__init__` does, is named with both places."""
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").touch()
    found = conflicts([str(tmp_path), str(ROOT)])
    assert [(each.package, each.distribution) for each in found] == [("workers", None)]
    assert str(tmp_path) in found[0].reason
    assert str(ROOT) in found[0].reason


def test_missing_packages_are_found(tmp_path: Path) -> None:
    """Half an installation is none."""
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra" / "__init__.py").touch()
    found = {each.package: each.reason for each in conflicts([str(tmp_path)])}
    assert found.keys() == {"events", "runtime", "workers"}
    assert "nowhere" in found["events"]
