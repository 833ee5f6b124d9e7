"""One file per policy; `load` finds it by name.

A policy's module holds `VERSION` and one pure function `decide(banks, t, diagnosed, parameters) -> operations`. What
policies share is a rule in `events.rules`. A name with a dash is a module with an underscore.
"""

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from events.bank import Banks
from events.errors import BadInput, UnknownName
from events.kinds import Diagnosed, PolicyConfig, RunConfig
from events.operations import Operation
from events.parameters import Parameters


class PolicyModule(Protocol):
    """What a file in this folder offers."""

    VERSION: int

    def decide(self, banks: Banks, t: int, diagnosed: Diagnosed, parameters: Parameters, /) -> Sequence[Operation]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A rule with its parameters: what `folded` is decided by."""

    name: str
    version: int
    parameters: Parameters
    _module: PolicyModule

    def decide(self, banks: Banks, t: int, diagnosed: Diagnosed | None) -> list[Operation]:
        """What episode `t` does to M_t: nothing where it was abandoned or its diagnosis is degraded."""
        if diagnosed is None or diagnosed.degraded is not None:
            return []
        return list(self._module.decide(banks, t, diagnosed, self.parameters))

    def config(self) -> PolicyConfig:
        """As the run header records it."""
        return PolicyConfig(name=self.name, version=self.version, parameters=self.parameters.recorded())


#: the rules of evolve, recall and digest; a change that gives another digest for the same log counts it up
FOLD_VERSION = 1


def names() -> list[str]:
    """Every policy there is."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str, parameters: Parameters | None = None) -> Policy:
    """The policy `name` with `parameters` (default: the paper's).

    Raises:
        UnknownName: no such policy.
    """
    if name not in names():
        raise UnknownName("policy", name, names())
    module = cast("PolicyModule", import_module(f"{__name__}.{name.replace('-', '_')}"))
    return Policy(name=name, version=module.VERSION, parameters=parameters or Parameters(), _module=module)


def of_run(config: RunConfig) -> Policy:
    """The policy of a run, whose folds this code can make.

    Raises:
        UnknownName: no such policy or parameter.
        BadInput: another version of the fold or of the policy.
    """
    if config.fold_version != FOLD_VERSION:
        raise BadInput(f"this chime folds by version {FOLD_VERSION}, the run goes by {config.fold_version}")
    return recorded(config.policy)


def recorded(config: PolicyConfig) -> Policy:
    """The policy of a run header.

    Raises:
        UnknownName: no such policy or parameter.
        BadInput: a version of the policy that this code does not have.
    """
    policy = load(config.name, Parameters().changed(config.parameters))
    if policy.version != config.version:
        raise BadInput(f"policy {config.name} is version {policy.version} here, the log was made with {config.version}")
    return policy
