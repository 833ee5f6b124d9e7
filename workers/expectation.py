"""What a run may cost before it is started: episodes, calls, tokens, money. Estimates, and labelled as such."""

from collections.abc import Mapping

from msgspec import Struct

from runtime.ports import Role
from runtime.settings import EpisodeSettings
from workers.configuration import ROLES, Configuration
from workers.starting import Beginning

#: tokens of one call, (prompt, completion): what runs over function-calling tasks took, rounded up
_TOKENS: Mapping[Role, tuple[int, int]] = {"planner": (1800, 250), "executor": (2200, 150), "gate": (3200, 500)}
#: executor calls of an episode, from one that ends at once to a long dialog
_STEPS = (1, 12)
#: domains whose tasks end with the first answer
_SINGLE = ("live_",)


class Expectation(Struct, frozen=True, kw_only=True):
    """From the least to the most one would expect; not a bound."""

    episodes: int
    tasks: int
    preparatory: int
    calls: tuple[int, int]
    prompt_tokens: tuple[int, int]
    completion_tokens: tuple[int, int]
    #: None where a model has no price in the configuration
    cost_usd: tuple[float, float] | None

    def facts(self) -> dict[str, object]:
        """For people."""
        cost = (
            f"${self.cost_usd[0]:.2f} to ${self.cost_usd[1]:.2f}" if self.cost_usd else "unpriced (no [prices] entry)"
        )
        return {
            "episodes": f"{self.episodes} over {self.tasks} tasks"
            + (f", {self.preparatory} of them only prepare others" if self.preparatory else ""),
            "model calls": f"about {self.calls[0]:,} to {self.calls[1]:,}",
            "prompt tokens": f"about {self.prompt_tokens[0]:,} to {self.prompt_tokens[1]:,}",
            "completion tokens": f"about {self.completion_tokens[0]:,} to {self.completion_tokens[1]:,}",
            "cost": cost,
        }


def expected(made: Beginning, configuration: Configuration) -> Expectation:
    """What the run `made` may take."""
    config = made.head.started.config
    tasks = made.listed.tasks
    limits: EpisodeSettings = configuration.episode
    single = sum(task.domain.startswith(_SINGLE) for task in tasks)
    most_steps = single + (len(tasks) - single) * min(_STEPS[1], limits.max_steps)
    gated = 0 if config.frozen else len(tasks) - len(made.listed.preparatory)
    least: dict[Role, int] = {"planner": len(tasks), "executor": len(tasks) * _STEPS[0], "gate": gated}
    most: dict[Role, int] = {**least, "executor": most_steps}
    epochs = config.epochs
    return Expectation(
        episodes=len(tasks) * epochs,
        tasks=len(tasks),
        preparatory=len(made.listed.preparatory),
        calls=(sum(least.values()) * epochs, sum(most.values()) * epochs),
        prompt_tokens=(_tokens(least, 0) * epochs, _tokens(most, 0) * epochs),
        completion_tokens=(_tokens(least, 1) * epochs, _tokens(most, 1) * epochs),
        cost_usd=_cost(configuration, least, most, epochs),
    )


def _tokens(calls: Mapping[Role, int], which: int) -> int:
    return sum(count * _TOKENS[role][which] for role, count in calls.items())


def _cost(
    configuration: Configuration, least: Mapping[Role, int], most: Mapping[Role, int], epochs: int
) -> tuple[float, float] | None:
    totals = [0.0, 0.0]
    for role in ROLES:
        price = configuration.prices.get(configuration.model(role).model)
        if price is None:
            return None
        per_call = (_TOKENS[role][0] * price.input + _TOKENS[role][1] * price.output) / 1e6
        totals[0] += least[role] * per_call * epochs
        totals[1] += most[role] * per_call * epochs
    return totals[0], totals[1]
