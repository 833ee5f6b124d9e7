"""One file per way to reflect on a finished episode; `load` finds it by name.

A reflection's module holds `VERSION` and `async reflect(case, model, key, prompts, *, trajectory_chars, usefulness) ->
Judged`. It asks the model as role `gate`. A name with a dash is a module with an underscore.
"""

import pkgutil
from importlib import import_module
from typing import Protocol, cast

from events.errors import UnknownName
from runtime.gate import Case, Judged
from runtime.ports import CallKey, ChatModel
from runtime.prompting import Prompts

#: the reflection of a run that names none
DEFAULT = "credit"


class Reflection(Protocol):
    """What a file in this folder offers."""

    VERSION: int

    async def reflect(
        self,
        case: Case,
        model: ChatModel,
        key: CallKey,
        prompts: Prompts,
        /,
        *,
        trajectory_chars: int,
        usefulness: bool = False,
    ) -> Judged:
        """Raises: RunStopped."""
        ...


def names() -> list[str]:
    """Every reflection there is, sorted."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Reflection:
    """The reflection of that name.

    Raises:
        UnknownName: there is none.
    """
    if name not in names():
        raise UnknownName("reflection", name, names())
    return cast("Reflection", import_module(f"{__name__}.{name.replace('-', '_')}"))


def for_policy(policy: str) -> str:
    """The reflection that goes with a policy: `outcome` for those without attribution, else the gate."""
    return "outcome" if policy.split("-")[0] == "outcome" else DEFAULT
