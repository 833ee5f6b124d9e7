"""`chime model`: the rehearsal model and how well a gate's labels fit what it planted."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import click
from msgspec import Struct

from events.errors import BadInput
from infra import environments
from infra.environments.answers import answer_key as answers_of
from infra.environments.answers import dump_answer_key
from infra.rehearsal import LABEL, MODEL
from infra.rehearsal.key import AnswerKey, answer_key, read_key
from infra.rehearsal.planting import RehearsalSettings
from infra.rehearsal.scoring import LABELS, SCORED_KINDS, GateScore, judged_episodes
from infra.rehearsal.scoring import score_gate as compared
from infra.rehearsal.server import rehearsal_server
from infra.rehearsal.truth import read_truths
from infra.telemetry import configure
from runtime.statistics import Interval
from workers import paths
from workers.connections import START
from workers.invocation import Invocation, chime_command, run_async
from workers.output import Output
from workers.sources import opened
from workers.tables import Column
from workers.version import VERSION

#: field of `RehearsalSettings` -> help; every one is a probability but `helped`, a factor on probabilities
_RATES = {
    "wrong_plan": "A plan takes a short cut.",
    "wrong_execution": "An execution leaves a right plan.",
    "both": "Both go wrong together, beside the two rates.",
    "external": "The outside fails, whatever plan and execution are.",
    "rescued": "An execution that is right itself leaves a wrong plan.",
    "helped": "Factor on a stage's rates where it is shown a helpful lesson.",
    "misled": "A misleading lesson that is shown leads its stage astray.",
    "foreign": "A lesson about other functions does.",
    "superstition": "A stage that did not earn the outcome gets a misleading lesson.",
    "reliability": "The gate's label is the planted truth.",
    "garbled": "The gate's first answer is no JSON.",
}
#: those that are no probability
_RATE = {"helped": click.FLOAT}


class Serving(Struct, frozen=True, kw_only=True):
    """What `chime model rehearse --json` prints once the endpoint accepts connections."""

    base_url: str
    model: str
    #: what everything made with it is labelled
    label: str
    tasks: int
    truth: str | None
    settings: RehearsalSettings


def _rate_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """One option for each rate, the default taken from `RehearsalSettings`."""
    defaults = RehearsalSettings()
    for name, told in reversed(_RATES.items()):
        option = click.option(
            f"--{name.replace('_', '-')}", name, type=_RATE.get(name, click.FloatRange(0, 1)),
            default=getattr(defaults, name), show_default=True, metavar="P", help=told,
        )  # fmt: skip
        function = option(function)
    return function


@chime_command("rehearse", short_help="Serve the rehearsal model on loopback.")
@click.option("--env", "environment", metavar="NAME", help="Take the answers of this environment (default: toy).")
@click.option("--domain", "domains", multiple=True, metavar="D", help="Of these domains only; may be repeated.")
@click.option("--key", "key_file", metavar="FILE", help="Take the answers from a file instead.")
@click.option("--dump-key", "dumped", metavar="FILE", help="Write the environment's answers to FILE, and end.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="On 127.0.0.1 (default: a free one).")
@click.option("--seed", default=RehearsalSettings().seed, show_default=True, help="Of the planted faults.")
@click.option("--truth", metavar="FILE", help="Append what was planted to FILE, for `chime model score-gate`.")
@_rate_options
def rehearse(
    invocation: Invocation,
    environment: str | None,
    domains: tuple[str, ...],
    key_file: str | None,
    dumped: str | None,
    port: int,
    seed: int,
    truth: str | None,
    **rates: float,
) -> None:
    """Serve an OpenAI-compatible endpoint that plays planner, executor and gate from answers, with planted faults.

    It proves the machinery and says nothing about real models. The address is printed once it accepts connections;
    Ctrl-C ends it.
    """
    if key_file is not None and (environment is not None or domains or dumped is not None):
        raise BadInput("--key replaces the environment: give it without --env, --domain and --dump-key")
    settings = RehearsalSettings(seed=seed, **rates)
    log = invocation.configuration.log
    configure(
        json=None if log.format == "auto" else log.format == "json",
        level=log.level,
        service="rehearsal",
        version=VERSION,
    )
    name = environment or "toy"
    if dumped is not None:
        path = paths.output(invocation.folder, dumped)
        count = run_async(_dump, invocation, name, domains, path)
        invocation.output.data({"path": dumped, "tasks": count})
        invocation.output.line(f"wrote the answers of {count} tasks to {dumped}")
        return

    async def serve() -> None:
        key = read_key(_file(invocation, key_file)) if key_file else await _answers(invocation, name, domains)
        side = paths.output(invocation.folder, truth) if truth is not None else None
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with rehearsal_server(key, settings, port=port, truth=side) as base_url:
                _told(invocation.output, base_url, key, settings, truth)
                async for _ in signals:
                    return

    run_async(serve)


def _told(output: Output, base_url: str, key: AnswerKey, settings: RehearsalSettings, truth: str | None) -> None:
    output.data(Serving(base_url=base_url, model=MODEL, label=LABEL, tasks=len(key), truth=truth, settings=settings))
    output.release()  # its reader waits for the address, not for our end
    output.line(base_url)
    output.note(f"serving {MODEL} with the answers of {len(key)} tasks; Ctrl-C ends it")


def _file(invocation: Invocation, shown: str) -> Path:
    return paths.at(invocation.folder, shown)


async def _answers(invocation: Invocation, name: str, domains: tuple[str, ...]) -> AnswerKey:
    environment = environments.load(name, invocation.resolved.home, oracle=True, environ=invocation.environment)
    try:
        return answer_key(await answers_of(environment, domains or None), f"environment {name}")
    finally:
        await environment.aclose()


async def _dump(invocation: Invocation, name: str, domains: tuple[str, ...], path: Path) -> int:
    environment = environments.load(name, invocation.resolved.home, oracle=True, environ=invocation.environment)
    try:
        return await dump_answer_key(environment, path, domains or None)
    finally:
        await environment.aclose()


@chime_command("score-gate", short_help="Score a gate's labels against the planted truth.")
@click.argument("run", required=False)
@click.option("--truth", required=True, metavar="FILE", help="What `chime model rehearse --truth FILE` wrote.")
def score_gate(invocation: Invocation, run: str | None, truth: str) -> None:
    """Compare the labels of RUN (default: the newest run; or an export's path) with the truth that was planted."""
    truths = read_truths(_file(invocation, truth))

    async def work() -> tuple[str, GateScore]:
        async with opened(invocation, run) as source:
            recorded = [one async for page in source.log.pages(START, SCORED_KINDS) for one in page]
            return source.log.run, compared(judged_episodes(recorded), truths)

    name, score = run_async(work)
    if score.n + score.unmatched == 0:
        raise BadInput(f"run {name} has no judgement to score: {score.degraded} of its diagnoses are degraded")
    if score.n == 0:
        raise BadInput(f"{truth} says nothing about run {name}; it is of another model server or another run")
    invocation.output.data(score, run=name, labels=[LABEL])
    _print(invocation.output, name, score)


def _print(output: Output, run: str, score: GateScore) -> None:
    output.line(f"run {run} ({LABEL}): {score.n} judged episodes with a planted truth")
    output.line()
    output.table(
        [Column("truth \\ gate"), *(Column(label, "right") for label in LABELS)],
        [[true, *(score.confusion[true][told] for told in LABELS)] for true in LABELS],
    )
    output.line()
    right = f", {score.confidence_right:.2f} sure when right" if score.confidence_right is not None else ""
    wrong = f", {score.confidence_wrong:.2f} when wrong" if score.confidence_wrong is not None else ""
    counts = score.misleading
    output.facts(
        {
            "accuracy": f"{_interval(score.accuracy)}{right}{wrong}",
            "misleading precision": _share(score.misleading_precision, counts["named"], "items named"),
            "misleading recall": _share(score.misleading_recall, counts["guilty"], "items that led astray"),
            "not scored": f"{score.degraded} degraded, {score.unmatched} without a truth",
        }
    )
    if score.ambiguous:
        output.note(f"{score.ambiguous} episodes had several truths that fit; taken in the order they were written")


def _interval(interval: Interval) -> str:
    return f"{interval.estimate:.0%} ({interval.low:.0%} to {interval.high:.0%})"


def _share(interval: Interval, of: int, what: str) -> str:
    return f"{_interval(interval)} of {of} {what}" if of else f"- (no {what})"
