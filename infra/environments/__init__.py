"""Environments by name: built-in ones, a user's class, any program that speaks the protocol.

- `toy`, `bfcl`: built in, in a child process; `bfcl` must be installed first
- `module:Class`: a class in our process (`infra.environments.in_process`)
- `cmd:PROGRAM ARGUMENT ...`: any program that speaks the protocol on its stdin and stdout
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from events.errors import BadInput, UnknownName
from infra.environments.child import ChildEnvironment
from infra.environments.in_process import InProcessEnvironment, class_named
from infra.environments.install import INSTALLABLE, python_of
from infra.environments.limits import Limits

__all__ = ["BUILT_IN", "ChildEnvironment", "InProcessEnvironment", "Limits", "host_argv", "load"]

#: name -> the class in `<name>.py` here
BUILT_IN: dict[str, str] = {"bfcl": "Bfcl", "toy": "Toy"}
#: variables that a benchmark's tools read themselves; no other secret of ours reaches a built-in benchmark
PASSED: dict[str, tuple[str, ...]] = {"bfcl": ("SERPAPI_API_KEY",)}

_HERE = Path(__file__).parent
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|REDIS_URL", re.IGNORECASE)
#: settings of our own interpreter that mean nothing, or harm, in another one
_OURS = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}


def load(
    name: str,
    home: Path,
    *,
    limits: Limits | None = None,
    oracle: bool = False,
    environ: Mapping[str, str] | None = None,
) -> ChildEnvironment | InProcessEnvironment:
    """The environment that `name` names; no process is started yet.

    Args:
        name: a built-in name, `module:Class`, or `cmd:` and a command line.
        home: where benchmarks are installed.
        limits: of time and hosts.
        oracle: start built-in hosts so that they answer `oracle`: for tests and rehearsals only.
        environ: the variables the hosts get, before secrets are taken out; this process's own where None.

    Raises:
        UnknownName: nothing has this name; says what has one.
        BadInput: the class or command cannot be used.
        EnvironmentUnavailable: a built-in one that is not installed; says how to install it.
    """
    environ = os.environ if environ is None else environ
    if name in BUILT_IN:
        argv = host_argv(name, home, oracle=oracle)
        return ChildEnvironment(argv, environ=_shielded(environ, PASSED.get(name, ())), limits=limits)
    if name.startswith("cmd:"):
        try:
            argv = shlex.split(name.removeprefix("cmd:"))
        except ValueError as problem:
            raise BadInput(f"environment {name!r}: {problem}") from problem
        if not argv:
            raise BadInput("environment 'cmd:' names no program")
        return ChildEnvironment(argv, environ=environ, limits=limits)
    if ":" in name:
        return InProcessEnvironment(class_named(name), limits=limits)
    raise UnknownName("environment", name, [*BUILT_IN, "module:Class", "cmd:PROGRAM ..."])


def host_argv(name: str, home: Path, *, oracle: bool = False) -> list[str]:
    """The command line of a built-in environment's host.

    Raises:
        EnvironmentUnavailable: not installed.
    """
    python = str(python_of(name, home)) if name in INSTALLABLE else sys.executable
    flags = ["--oracle"] if oracle else []
    return [python, str(_HERE / "host.py"), *flags, f"{_HERE / name}.py:{BUILT_IN[name]}"]


def _shielded(environ: Mapping[str, str], passed: tuple[str, ...]) -> dict[str, str]:
    """`environ` for a process that evaluates what a model wrote: without secrets, with a fixed hash seed."""
    kept = {
        key: value for key, value in environ.items() if key not in _OURS and (key in passed or not _SECRET.search(key))
    }
    return {**kept, "PYTHONHASHSEED": "0"}
