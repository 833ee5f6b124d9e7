"""What the demonstration prints: counts, their intervals, and no claim."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from bench.real_model.runs import Played
from runtime.statistics import Interval, mcnemar, paired, paired_difference, wilson


def scores(arms: Mapping[str, Played]) -> Iterator[str]:
    """One line an arm: how many tasks it did, and what it remembers at the end."""
    for name, arm in arms.items():
        n, done = len(arm.scores), sum(arm.scores.values())
        rate = f"{done}/{n} = {_percent(wilson(done, n))}" if n else "nothing scored"
        shown = sum(1 for count in arm.recalled.values() if count)
        banks = " + ".join(f"{arm.banks.get(stage, 0)} {stage}" for stage in ("planning", "execution"))
        yield f"{name:<28} {rate:<34} remembers {banks}; shown in {shown} episodes"


def comparisons(arms: Mapping[str, Played], first: str, tasks: set[str], where: str) -> Iterator[str]:
    """Each other arm beside the first, paired by task, over `tasks`."""
    base = {task: done for task, done in arms[first].scores.items() if task in tasks}
    for name, arm in arms.items():
        if name == first:
            continue
        pairs = paired(base, arm.scores)
        difference = paired_difference(pairs)
        yield (
            f"{name} - {first}, {where}: both {pairs.both}, only {name} {pairs.second_only}, only {first} "
            f"{pairs.first_only}, neither {pairs.neither}; difference {_percent(difference, signed=True)}, "
            f"exact McNemar p = {mcnemar(pairs):.2g}"
        )


def agreement(model: Mapping[str, str], rules: Mapping[str, str]) -> Iterator[str]:
    """The labels of the model's gate beside those of rules for the same episodes."""
    counts = Counter((rules[task], label) for task, label in model.items() if task in rules)
    same = sum(count for (one, other), count in counts.items() if one == other)
    yield f"the same episodes judged by rules: {same} of {counts.total()} labels equal"
    for (one, other), count in sorted(counts.items()):
        yield f"  rules {one:<10} model {other:<24} {count}"


def caution(tasks: int) -> Sequence[str]:
    """What these figures are not."""
    return (
        f"{tasks} tasks of one small model: intervals this wide hold no claim about the method.",
        "The rules know the reference answers, which no gate of an experiment may.",
    )


def _percent(interval: Interval, *, signed: bool = False) -> str:
    form = "+.0%" if signed else ".0%"
    return f"{interval.estimate:{form}} [{interval.low:{form}}, {interval.high:{form}}]"
