"""Two runs over the same tasks: paired by task, with an interval for the difference and the tasks that flipped."""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from events.errors import BadInput
from runtime.resampling import clustered_difference
from runtime.statistics import Interval, Pairs, mcnemar, paired, paired_difference, wilson
from workers.views.summary import Summarizer


class Side(Struct, frozen=True, kw_only=True):
    """One run over the tasks that both have."""

    run: str
    n: int
    successes: int
    #: Wilson
    score: Interval


class Flip(Struct, frozen=True, kw_only=True):
    """A task that one run does and the other does not."""

    task: str
    first: float
    second: float


class Comparison(Struct, frozen=True, kw_only=True):
    """Second minus first, over the tasks that both have."""

    first: Side
    second: Side
    #: tasks that both have
    tasks: int
    #: tasks that only one of them has
    only_first: int
    only_second: int
    difference: Interval
    #: how the interval was made
    method: Literal["newcombe", "task_bootstrap"]
    #: two-sided exact McNemar; None where tasks have several outcomes
    p_value: float | None
    pairs: Pairs | None
    #: tasks whose mean outcome differs, the largest differences first
    flips: list[Flip]
    #: what makes the comparison doubtful
    warnings: list[str]


def compare(first: Summarizer, second: Summarizer) -> Comparison:
    """Second against first.

    Raises:
        BadInput: the runs share no scored task.
        UnreadableEvent: a log does not begin with `run_started`.
    """
    one, two = first.task_scores(), second.task_scores()
    shared = sorted(one.keys() & two.keys())
    if not shared:
        raise BadInput("these runs have no scored task in common; a comparison needs the same tasks")
    single = all(len(one[task]) == len(two[task]) == 1 for task in shared)
    pairs: Pairs | None = None
    p_value: float | None = None
    if single:
        pairs = paired({task: one[task][0] for task in shared}, {task: two[task][0] for task in shared})
        interval, p_value = paired_difference(pairs), mcnemar(pairs)
    else:
        differences = [[b - a for a, b in zip(one[task], two[task], strict=False)] for task in shared]
        interval = clustered_difference(differences)
    return Comparison(
        first=_side(first, one, shared),
        second=_side(second, two, shared),
        tasks=len(shared),
        only_first=len(one.keys() - two.keys()),
        only_second=len(two.keys() - one.keys()),
        difference=interval,
        method="newcombe" if single else "task_bootstrap",
        p_value=p_value,
        pairs=pairs,
        flips=_flips(one, two, shared),
        warnings=_warnings(first, second),
    )


def _side(run: Summarizer, scores: Mapping[str, Sequence[bool]], shared: Sequence[str]) -> Side:
    outcomes = [outcome for task in shared for outcome in scores[task]]
    return Side(
        run=run.summary().run,
        n=len(outcomes),
        successes=sum(outcomes),
        score=wilson(sum(outcomes), len(outcomes)),
    )


def _flips(one: Mapping[str, Sequence[bool]], two: Mapping[str, Sequence[bool]], shared: Sequence[str]) -> list[Flip]:
    flips = [
        Flip(task=task, first=sum(one[task]) / len(one[task]), second=sum(two[task]) / len(two[task]))
        for task in shared
    ]
    return sorted(
        (flip for flip in flips if flip.first != flip.second), key=lambda f: (-abs(f.second - f.first), f.task)
    )


def _warnings(first: Summarizer, second: Summarizer) -> list[str]:
    a, b = first.header, second.header
    checks: list[tuple[str, object, object]] = [
        ("environment", a.config.environment.get("name"), b.config.environment.get("name")),
        ("environment version", a.config.environment.get("version"), b.config.environment.get("version")),
        ("evaluator", sorted(first.evaluators), sorted(second.evaluators)),
        ("embedder", a.embedder.fingerprint, b.embedder.fingerprint),
        ("epochs", a.config.epochs, b.config.epochs),
        ("labels", sorted(a.config.labels), sorted(b.config.labels)),
        ("models", _models(first), _models(second)),
    ]
    warnings = [f"different {what}: {x} and {y}" for what, x, y in checks if x != y]
    for run in (first, second):
        summary = run.summary()
        if summary.status in ("open", "paused"):
            warnings.append(
                f"run {summary.run} is not finished ({summary.episodes} of {summary.episodes_total} episodes)"
            )
        if summary.not_valid:
            warnings.append(f"{summary.not_valid} episodes of run {summary.run} are left out: their environment failed")
        warnings.extend(f"run {summary.run} is labelled {label}" for label in summary.labels)
    # A run beside itself says everything twice.
    return list(dict.fromkeys(warnings))


def _models(run: Summarizer) -> dict[str, str]:
    return {role: str(model.get("model", "")) for role, model in run.header.config.models.items()}
