"""One file per planner; `load` finds it by name.

A planner's module holds `VERSION` and `async plan(view, memories, model, key, prompts) -> Plan`. It asks the model as
role `planner`, and numbers its calls from `key.ordinal` on. A name with a dash is a module with an underscore.
"""

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from msgspec import Struct

from events.bank import Item
from events.errors import UnknownName
from events.kinds import Usage
from runtime.ports import CallKey, ChatModel
from runtime.prompting import Prompts
from runtime.task import Tool

#: the planner of a run that names none
DEFAULT = "single"


class View(Struct, frozen=True, kw_only=True):
    """What a planner may legitimately see of a task (reading 1)."""

    domain: str
    #: the user's side of the opening messages
    task: str
    #: the benchmark's own system text, or ""
    policy: str
    tools: list[Tool]


class Plan(Struct, frozen=True, kw_only=True):
    """p_t and what it cost."""

    #: "" when the model gave none
    text: str
    usage: Usage
    calls: list[str]


class Planner(Protocol):
    """What a file in this folder offers."""

    VERSION: int

    async def plan(
        self, view: View, memories: Sequence[Item], model: ChatModel, key: CallKey, prompts: Prompts, /
    ) -> Plan:
        """Raises: ModelUnavailable, ModelRefused, RunStopped."""
        ...


def names() -> list[str]:
    """Every planner there is, sorted."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Planner:
    """The planner of that name.

    Raises:
        UnknownName: there is none.
    """
    if name not in names():
        raise UnknownName("planner", name, names())
    return cast("Planner", import_module(f"{__name__}.{name.replace('-', '_')}"))
