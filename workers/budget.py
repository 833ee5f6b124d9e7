"""A run's budget: out of a configuration into its log, and out of the log to those who ask its models."""

from collections.abc import Mapping
from typing import Any

import msgspec

from events.errors import BadInput
from infra.spending import Spent
from runtime.errors import RunSpent
from runtime.ports import Role
from runtime.settings import Budget, BudgetSettings, Price
from workers.configuration import ROLES

_FREE = Budget()


def asked_models(models: Mapping[str, Any]) -> dict[Role, str]:
    """The name that each role's model is asked by, from the models of a header."""
    return {role: str(models[role]["model"]) for role in ROLES if role in models}


def budget_in(operational: Mapping[str, Any], otherwise: Budget = _FREE) -> Budget:
    """The budget that a run's operational part names, or a change of it.

    Raises:
        BadInput: the log holds something else in its place.
    """
    if "budget" not in operational:
        return otherwise
    try:
        return msgspec.convert(operational["budget"], Budget)
    except msgspec.ValidationError as error:
        raise BadInput(f"the run's budget cannot be read: {error}") from error


def budget_part(bounds: BudgetSettings, prices: Mapping[str, Price], models: Mapping[Role, str]) -> dict[str, Any]:
    """A budget as a run's operational part holds it: nothing where there is neither a bound nor a price.

    Args:
        bounds: what may be spent.
        prices: of every model that has one.
        models: that each role of the run asks.

    Raises:
        BadInput: cost is bounded, and a model has no price.
    """
    budget = Budget(
        **{name: getattr(bounds, name) for name in BudgetSettings.__struct_fields__},
        prices={name: prices[name] for name in sorted({*models.values()}) if name in prices},
    )
    if budget.is_free and not budget.prices:
        return {}
    for role, model in models.items():
        if budget.max_cost and model not in budget.prices:
            raise BadInput(
                f"budget.max_cost: {model}, the {role}'s model, has no price, so that its cost cannot be bounded; "
                f'add [prices."{model}"] with input and output to chime.toml, or bound max_tokens or max_calls instead'
            )
    plain: dict[str, Any] = msgspec.to_builtins(budget)
    return {"budget": plain}


def reached(spent: Spent, budget: Budget, models: Mapping[Role, str]) -> RunSpent | None:
    """The bound that is reached, as the next call would be told; None where it may be made."""
    for what, so_far in (("calls", spent.calls), ("tokens", spent.tokens), ("cost", spent.cost(models, budget) or 0.0)):
        bound = getattr(budget, f"max_{what}")
        if bound and so_far >= bound:
            return RunSpent(what, so_far, bound)
    return None


def budget_said(spent: Spent, budget: Budget, models: Mapping[Role, str]) -> str:
    """What is spent of each bound; "" without bounds."""
    cost = spent.cost(models, budget)
    parts = [
        f"{spent.calls:,} of {budget.max_calls:,} calls" if budget.max_calls else "",
        f"{spent.tokens:,} of {budget.max_tokens:,} tokens" if budget.max_tokens else "",
        f"{'unpriced' if cost is None else f'${cost:.4f}'} of ${budget.max_cost:g}" if budget.max_cost else "",
        f"{spent.unknown} answers of unknown size" if spent.unknown and not budget.is_free else "",
    ]
    return ", ".join(part for part in parts if part)
