"""Environments for the tests: one that misbehaves on request, any program, and BFCL in a home of its own."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.environments import ChildEnvironment, Limits, install
from infra.environments.install import install as install_environment

ROOT = Path(__file__).parents[3]
HOST = Path(install.__file__).with_name("host.py")

#: a benchmark whose tasks are ways to misbehave; `step`s take the way as their content
MISBEHAVING = """
import os, subprocess, sys, time
from pathlib import Path

print("noise at import")


class Benchmark:
    def describe(self):
        print("noise in describe")
        return {"env": "misbehaving", "version": "1", "domains": {"all": 1}}

    def tasks(self, domain, split):
        return [{"task_id": "one", "domain": "all"}]

    def reset(self, episode_id, domain, task_id, seed, options):
        if options.get("refuse"):
            raise KeyError("no such task")
        return {"system": "", "messages": [{"role": "user", "content": repr(sorted(options))}], "tools": []}

    def step(self, action):
        match action["content"]:
            case "exit":
                print("last words", file=sys.stderr)
                os._exit(7)
            case "system exit":
                sys.exit(3)
            case "hang":
                while True:
                    time.sleep(60)
            case "busy":
                while True:
                    pass
            case "print":
                print("noise in step")
                os.write(1, b"noise under the carpet\\n")
                subprocess.run(["echo", "noise of a child"])
            case "huge":
                return {"messages": [{"role": "tool", "content": "x" * 5_000_000}]}
            case "surrogate":
                return {"messages": [{"role": "tool", "content": "a\\ud800b"}]}
            case "nan":
                return {"messages": [{"role": "tool", "content": float("nan")}]}
            case "object":
                return {"messages": [{"role": "tool", "content": object()}]}
            case "shapeless":
                return {"messages": 7}
            case "spawn":
                child = subprocess.Popen(["sleep", "600"])
                return {"messages": [{"role": "tool", "content": str(child.pid)}]}
            case "read":
                return {"messages": [{"role": "tool", "content": sys.stdin.read()}]}
            case "scratch":
                import tempfile
                place = tempfile.mkdtemp()
                return {"messages": [{"role": "tool", "content": place}]}
            case "environ":
                return {"messages": [{"role": "tool", "content": " ".join(sorted(os.environ))}]}
            case "complain":
                print("complaint " * 300_000, file=sys.stderr)
            case "raise":
                error = RuntimeError("the user went away")
                error.retryable = True
                raise error
        return {"messages": []}

    def evaluate(self):
        raise ZeroDivisionError("the evaluator divides by zero")
"""


def child(argv: list[str], limits: Limits | None = None) -> ChildEnvironment:
    """A child environment with this process's variables."""
    return ChildEnvironment(argv, environ=dict(os.environ), limits=limits)


@pytest.fixture
def misbehaving_file(tmp_path: Path) -> Path:
    """The misbehaving benchmark's file."""
    path = tmp_path / "misbehaving.py"
    path.write_text(MISBEHAVING)
    return path


@pytest.fixture
def misbehaving(misbehaving_file: Path) -> Callable[..., ChildEnvironment]:
    """Makes the misbehaving environment with the limits given."""

    def make(limits: Limits | None = None) -> ChildEnvironment:
        return child([sys.executable, str(HOST), str(misbehaving_file)], limits)

    return make


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., ChildEnvironment]:
    """Makes an environment of a whole program, which speaks the protocol or does not."""

    def make(source: str, limits: Limits | None = None) -> ChildEnvironment:
        path = tmp_path / "program.py"
        path.write_text(source)
        return child([sys.executable, str(path)], limits)

    return make


@pytest.fixture(scope="session")
def bfcl_home() -> Path:
    """A home with BFCL installed: $CHIME_TEST_HOME, or the project's own; installs it there once."""
    home = Path(os.environ.get("CHIME_TEST_HOME") or ROOT / ".chime")
    install_environment("bfcl", home)
    return home
