"""`chime demo`: the whole loop in a minute, without a key and without a server of yours."""

from contextlib import suppress
from math import inf

import click

from events.errors import BadInput
from infra.ownership import assert_sole_owner
from runtime.statistics import Interval
from workers.demo import FIRST, Demonstration, Plan, chosen_environment, demonstrate
from workers.driving import Interrupted
from workers.invocation import Invocation, chime_command, run_async
from workers.output import Output
from workers.tables import Column


@chime_command("demo", short_help="Run three arms on real tasks without a key, and compare them.")
@click.option("--env", "environment", metavar="NAME", help="bfcl or toy (default: bfcl where it is installed).")
@click.option("--bank", metavar="NAME", help="Where recalls come from: replica or weaviate.")
@click.option("--embedder", metavar="NAME", help="What texts are compared with: hash or minilm.")
@click.option("--limit", default=50, show_default=True, metavar="N", help="Episodes an arm.")
@click.option(
    "--seconds",
    default=40.0,
    show_default=True,
    metavar="S",
    help="Begin no more episodes so long after every arm has begun.",
)
@click.option("--seed", default=42, show_default=True, help="Of the planted faults.")
def demo(
    invocation: Invocation,
    environment: str | None,
    bank: str | None,
    embedder: str | None,
    limit: int,
    seconds: float,
    seed: int,
) -> int:
    """Play three arms: credit (the gate decides), outcome (success credits all), frozen (nothing is learnt).

    A rehearsal model plays planner, executor and gate from the tasks' ground truth, with planted faults. It proves the
    machinery and says nothing about real models. The runs stay in the home for `chime run list`.
    """
    assert_sole_owner()
    if limit < 1 or not 0 < seconds < inf:
        raise BadInput("--limit and --seconds must be numbers above 0")
    invocation = invocation.with_flags({"bank.store": ("--bank", bank), "embedder.name": ("--embedder", embedder)})
    name = chosen_environment(environment, invocation)
    output = invocation.output
    if name == "toy" and environment is None:
        output.note("playing the built-in toy; for real BFCL tasks: chime env install bfcl")
    try:
        shown = run_async(demonstrate, invocation, Plan(environment=name, limit=limit, seconds=seconds, seed=seed))
    except Interrupted:
        output.note("interrupted; the arms' logs are in the home (chime run list)")
        return 130
    output.data(shown)
    with suppress(BrokenPipeError):
        _print(output, shown)
    return 0


def _print(output: Output, shown: Demonstration) -> None:
    if shown.stopped_after_s is not None:
        output.line(f"{shown.stopped_after_s:g} s are over: {shown.episodes_per_arm} episodes in every arm")
    output.line()
    output.table(
        [
            Column("arm"), Column("n", "right"), Column("success", "right"), Column("95 % interval", "right"),
            Column("banks", "right"), Column("calls", "right"), Column("labels"), Column("run", wide=True),
        ],
        [
            [
                arm.arm, arm.n, f"{arm.successes} ({arm.score.estimate:.0%})",
                f"{arm.score.low:.0%} to {arm.score.high:.0%}",
                f"{arm.banks['planning']}+{arm.banks['execution']}", arm.calls,
                " ".join(f"{label} {count}" for label, count in arm.labels.items()) or "-", arm.run,
            ]
            for arm in shown.arms
        ],
    )  # fmt: skip
    for one in shown.differences:
        output.line(
            f"{FIRST} minus {one.arm}, paired over {shown.episodes_per_arm} tasks: {_points(one.difference)}; "
            f"only {FIRST} {one.first_only}, only {one.arm} {one.other_only}, McNemar p {one.p_value:.3f}"
        )
    output.line(f"[{', '.join(shown.labels)}: a scripted model with planted faults; no claim about real models]")
    output.line()
    for done in shown.rebuilt:
        sources = ", ".join(f"{source} {count}" for source, count in done.sources.items() if source != "exact")
        output.line(
            f"{done.run}: rebuilt {done.versions} versions from {done.events} events, {done.recalls} recalls "
            f"{f'({sources}) ' if sources else ''}recomputed: digest matches ({done.digest[:16]})"
        )
    run = shown.arms[0].run
    output.line()
    output.line("next:")
    steps = (
        (f"chime memory list {run} --at 50%", "the banks half way"),
        (f"chime memory diff {run} --at 50% --at 100%", "what changed since"),
        (f"chime episode show {run} {min(7, shown.episodes_per_arm - 1)}", "one episode, stage by stage"),
        (f"chime run compare {shown.arms[1].run} {run}", "which tasks flipped"),
        ("chime init", "a configuration for your own model"),
    )
    width = max(len(command) for command, _ in steps)
    for command, why in steps:
        output.line(f"  {command:<{width}}  {why}")


def _points(interval: Interval) -> str:
    return f"{100 * interval.estimate:+.0f} points (95 % {100 * interval.low:+.0f} to {100 * interval.high:+.0f})"
