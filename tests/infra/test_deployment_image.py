"""infra/Dockerfile as far as it can be tried without an engine: its instructions, what it copies, what it runs."""

import json
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest
from deployment_files import INFRA, ROOT, assert_command, assert_settings, is_pinned

from workers.version import VERSION

_INSTRUCTIONS = {
    "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "HEALTHCHECK", "ENTRYPOINT", "CMD", "ARG", "LABEL", "EXPOSE",
}  # fmt: skip


class Instruction(NamedTuple):
    """One instruction of the Dockerfile."""

    word: str
    rest: str
    #: from 0, by its FROM
    stage: int


@pytest.fixture(scope="module")
def instructions() -> list[Instruction]:
    """The Dockerfile's instructions in order, continued lines as one."""
    lines = [line for line in (INFRA / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    found: list[Instruction] = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            stage = sum(one.word == "FROM" for one in found) - (word != "FROM")
            found.append(Instruction(word, rest.strip(), stage))
    return found


def of(instructions: list[Instruction], word: str, stage: int | None = None) -> list[str]:
    """What stands behind each `word`, perhaps of one stage."""
    return [one.rest for one in instructions if one.word == word and stage in (None, one.stage)]


def test_every_instruction_is_one_and_every_shell_line_parses(instructions: list[Instruction]) -> None:
    """A mistyped word or a quote that is left open would be found when somebody builds the image."""
    assert {one.word for one in instructions} <= _INSTRUCTIONS
    for line in of(instructions, "RUN"):
        subprocess.run(["sh", "-n", "-c", line], check=True)


def test_the_base_is_pinned_and_new_enough(instructions: list[Instruction]) -> None:
    """Every stage stands on one Python image of a whole version, which the project's own floor allows."""
    bases = [rest.split()[0] for rest in of(instructions, "FROM")]
    assert len(set(bases)) == 1
    assert is_pinned(bases[0])
    found = re.fullmatch(r"python:(\d+)\.(\d+)\.\d+-slim-\w+", bases[0])
    assert found is not None
    floor = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert (int(found[1]), int(found[2])) >= tuple(map(int, floor.split(".")))


def test_what_is_copied_exists_and_is_not_ignored(instructions: list[Instruction]) -> None:
    """Each source of a COPY is in the tree and let through by the ignore file, or comes from an earlier stage."""
    ignored = (INFRA / "Dockerfile.dockerignore").read_text().splitlines()
    let_in = [line[1:] for line in ignored if line.startswith("!")]
    assert "**" in ignored
    names = [rest.split()[2] for rest in of(instructions, "FROM") if " AS " in rest]
    copied: list[str] = []
    for rest in of(instructions, "COPY"):
        *sources, _ = [word for word in rest.split() if not word.startswith("--")]
        if found := re.match(r"--from=(\w+) ", rest):
            assert found[1] in names
            continue
        copied += sources
    assert [one for one in copied if not (ROOT / one).exists()] == []
    assert sorted(copied) == sorted(let_in)
    for kept_out in (".env", "infra/.env", ".chime/redis/server.json", ".venv/bin/python", "infra/__pycache__/a.pyc"):
        assert is_ignored(kept_out, ignored), kept_out
    assert not is_ignored("infra/append.lua", ignored)


def is_ignored(path: str, rules: list[str]) -> bool:
    """Whether an engine leaves the path out: of the rules that match it or a folder above it, the last one counts."""
    parts = path.split("/")
    above = ["/".join(parts[: at + 1]) for at in range(len(parts))]
    ignored = False
    for rule in rules:
        pattern = rule.removeprefix("!")
        if pattern.startswith("#") or not pattern:
            continue
        deep = pattern.removeprefix("**/")
        if any(fnmatch(one, pattern) or (deep != pattern and fnmatch(one.split("/")[-1], deep)) for one in above):
            ignored = not rule.startswith("!")
    return ignored


def test_the_secrets_beside_the_compose_file_go_nowhere() -> None:
    """`infra/.env` is in no commit, so in no wheel either, and in no image."""
    asked = subprocess.run(["git", "check-ignore", "-q", "infra/.env"], cwd=ROOT)
    assert asked.returncode == 0 or not (ROOT / ".git").exists()
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_what_the_build_needs_is_copied(instructions: list[Instruction]) -> None:
    """The project's own metadata names files; a build without one of them fails."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    copied = " ".join(of(instructions, "COPY"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    version = project["tool"]["hatch"]["version"]["path"].split("/")[0]
    needed = [project["project"]["readme"], *project["project"]["license-files"], version, "pyproject.toml"]
    assert [one for one in needed if one not in copied.split()] == []
    # A package that only a checkout has (the bench) is left out of the image; the wheel is made of what is there.
    assert {"events", "runtime", "infra", "workers"} <= set(wheel)


def test_packages_come_from_the_lock_alone(instructions: list[Instruction]) -> None:
    """Fetched by hash, as wheels, without dependencies; every later step is without an index."""
    (fetch,) = [line for line in of(instructions, "RUN") if "download" in line]
    for flag in ("--require-hashes", "--no-deps", "--only-binary :all:", "-r .requirements.lock"):
        assert flag in fetch
    for line in of(instructions, "RUN"):
        for step in line.split("&&"):
            if " pip " in step and "download" not in step:
                assert "--no-index" in step, step


def test_the_extras_exist_and_are_locked(instructions: list[Instruction]) -> None:
    """What the image has beside the core is an extra of ours whose packages the lock pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = re.search(r'"chime-runtime\[([\w,-]+)\]"', " ".join(of(instructions, "RUN")))
    assert found is not None
    locked = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / ".requirements.lock").read_text(), re.MULTILINE))
    wanted = [*project["dependencies"], *(one for extra in found[1].split(",") for one in project["optional-dependencies"][extra])]  # fmt: skip  # noqa: E501 - two lists
    names = {re.split(r"[\[<>=]", one)[0] for one in wanted}
    assert names - locked == set()


def test_it_runs_as_somebody_who_may_little(instructions: list[Instruction]) -> None:
    """The last stage ends as a numbered user that is not root, whom Kubernetes can check."""
    last = max(one.stage for one in instructions)
    words = [one.word for one in instructions if one.stage == last]
    (user,) = of(instructions, "USER", last)
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert "RUN" not in words[words.index("USER") :]


def test_its_command_and_its_health_check_exist(instructions: list[Instruction], tmp_path: Path) -> None:
    """Entry point and health check are commands of ours with options they have; its variables are settings."""
    (health,) = of(instructions, "HEALTHCHECK")
    options, _, command = health.partition("CMD ")
    for option in ("--interval=", "--timeout=", "--start-period=", "--retries="):
        assert option in options
    assert json.loads(command)[0] == "chime"
    assert_command(json.loads(command)[1:])
    assert [json.loads(one) for one in of(instructions, "ENTRYPOINT")] == [["chime"]]
    variables = dict(re.findall(r"(\w+)=(\S+)", " ".join(of(instructions, "ENV"))))
    assert_settings(variables, tmp_path)
    assert variables["CHIME_HOME"] == of(instructions, "WORKDIR", 1)[0]


def test_the_version_that_it_is_built_as_is_ours() -> None:
    """The tag that comment, Compose file and Kubernetes example give the image is the release's version."""
    for file in ("Dockerfile", "compose.yaml", "kubernetes/kustomization.yaml"):
        tags = re.findall(r"chime-runtime:(\d+\.\d+\.\d+)|newTag: (\S+)", (INFRA / file).read_text())
        assert {one or other for one, other in tags} == {VERSION}, file
