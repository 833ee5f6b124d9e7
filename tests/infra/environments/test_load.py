"""Environments by name, and what their processes get to see of ours."""

import shutil
import sys
from pathlib import Path

import pytest

from events.errors import BadInput, UnknownName
from infra.environments import ChildEnvironment, InProcessEnvironment, host, load, toy
from infra.environments.answers import answer_key
from runtime.errors import EnvironmentFailed, EnvironmentUnavailable


async def test_the_toy_needs_nothing(tmp_path: Path) -> None:
    """`toy` runs in a child of our own interpreter, without reference solutions."""
    environment = load("toy", tmp_path)
    assert isinstance(environment, ChildEnvironment)
    assert (await environment.describe()).env == "toy"
    async with environment.session() as session:
        with pytest.raises(EnvironmentFailed, match="refused"):
            await session.oracle((await environment.tasks())[0])
    await environment.aclose()


async def test_a_command_is_a_program(tmp_path: Path) -> None:
    """`cmd:` starts any command line that speaks the protocol."""
    environment = load(f"cmd:{sys.executable} {host.__file__} {toy.__file__}:Toy", tmp_path)
    assert len(await environment.tasks("shop")) == 36
    await environment.aclose()


def test_a_class_is_in_process(tmp_path: Path) -> None:
    """`module:Class` is imported."""
    assert isinstance(load("infra.environments.toy:Toy", tmp_path), InProcessEnvironment)


def test_names_that_mean_nothing(tmp_path: Path) -> None:
    """An unknown name lists the known ones; a benchmark that is not installed says how to install it."""
    with pytest.raises(
        UnknownName, match=r"unknown environment 'bcfl'; known: bfcl, cmd:PROGRAM \.\.\., module:Class, toy"
    ):
        load("bcfl", tmp_path)
    with pytest.raises(EnvironmentUnavailable, match="chime env install bfcl"):
        load("bfcl", tmp_path)
    with pytest.raises(BadInput, match="names no program"):
        load("cmd:", tmp_path)
    with pytest.raises(BadInput, match="quotation"):
        load("cmd:'x", tmp_path)


async def test_secrets_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A built-in benchmark sees neither our keys nor our interpreter's settings; a user's program sees everything."""
    (tmp_path / "toy.py").write_text(
        "import os\nclass Toy:\n    def describe(self):\n"
        "        return {'env': 'spy', 'version': '1', 'domains': {}, 'limits': dict(os.environ)}\n"
    )
    environ = {"OPENAI_API_KEY": "k", "CHIME_REDIS_URL": "r", "PYTHONPATH": "p", "LANG": "C.UTF-8"}
    monkeypatch.setattr("infra.environments._HERE", tmp_path)
    shutil.copy(host.__file__, tmp_path / "host.py")
    built_in = load("toy", tmp_path, environ=environ)
    seen = (await built_in.describe()).limits
    await built_in.aclose()
    assert not {"OPENAI_API_KEY", "CHIME_REDIS_URL", "PYTHONPATH"} & set(seen)
    assert (seen["LANG"], seen["PYTHONHASHSEED"]) == ("C.UTF-8", "0")
    program = load(f"cmd:{sys.executable} {tmp_path / 'host.py'} {tmp_path / 'toy.py'}:Toy", tmp_path, environ=environ)
    assert (await program.describe()).limits["OPENAI_API_KEY"] == "k"
    await program.aclose()


async def test_the_answer_key_needs_permission(tmp_path: Path) -> None:
    """Only an environment loaded with `oracle` gives its answers away."""
    environment = load("toy", tmp_path)
    with pytest.raises(EnvironmentFailed, match="refused"):
        await answer_key(environment)
    await environment.aclose()
