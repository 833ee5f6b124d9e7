"""`chime run start|resume`: a run and all the processes it needs, from one command."""

import getpass
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar, cast

import click
import msgspec
from msgspec import Struct

from events import policies
from events.codec import DEEPEST, canonical, decode
from events.errors import BadInput, BudgetSpent, NestedTooDeep
from events.ids import RUN_STREAM, RunId, run_id
from events.kinds import Noted, Operated, RunStarted
from infra import environments
from infra.clock import SystemClock
from infra.embedders import Around
from infra.environments.limits import Limits
from infra.model_list import Listed, listed_at
from infra.openai_client import Clients
from infra.ownership import assert_sole_owner
from infra.rehearsal import LABEL, OWNER
from infra.weaviate_server import Start
from runtime.errors import RunSpent, RunStopped
from runtime.gate import FAULTS
from runtime.ports import Environment, EventLog, Role
from runtime.settings import EndpointSettings
from workers import paths
from workers.bank_access import assert_bank_there, with_banks
from workers.bank_store import bank_store
from workers.budget import asked_models, budget_in, reached
from workers.conductor import Control
from workers.configuration import ROLES
from workers.connections import Server, connections
from workers.driving import Hands, Interrupted, drive, hands, interruptible, log_lines
from workers.embedding import assert_embeds
from workers.engine import named
from workers.expectation import Expectation, expected
from workers.header import begin, recorded_head
from workers.invocation import AT_LEAST_ONE, Invocation, chime_command, run_async
from workers.live import LiveLine
from workers.noting import note_windows, windows
from workers.operational import OPERATIONAL, operational_of
from workers.recording import REPLAY, assert_playable, prepare, recording_in
from workers.resuming import given_by_flags, refused, resumed_operational
from workers.run_stream import tell
from workers.starting import Beginning, Choice, beginning, labelled, new_run_id
from workers.views.at_hand import NOT_AT_HAND, summarized_at_hand
from workers.views.standing import Standing
from workers.views.summary import Summary, abandoned_why

#: what a reset is told anyway -> where it comes from
_RESERVED = {
    "max_steps": "is a setting: -s episode.max_steps=N",
    "max_errors": "is a setting: -s episode.max_errors=N",
    "artifacts": "is what earlier tasks have left behind",
}

#: how many lists and objects may stand inside each other in them: in the header they are `config.environment.options`
_DEEPEST = DEEPEST - 3

F = TypeVar("F", bound=Callable[..., Any])


class Ended(Struct, frozen=True, kw_only=True):
    """How a run stands when the command that drove it ends."""

    run: str
    control: Control
    reason: str
    #: what it stopped over, as in `runtime.errors.RunStopped`; "" where it did not
    kind: str
    summary: Summary


_OPTIONS = (
    click.option("--in-process", is_flag=True, help="Everything in this process: no workers, no rq."),
    click.option("--slots", type=int, metavar="N", help="Episodes at once in one worker process (run.slots)."),
    click.option(
        "--processes",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        metavar="N",
        help="Act worker processes; 0 leaves the episodes to others.",
    ),
    click.option(
        "--hosts", type=AT_LEAST_ONE, metavar="N", help="Environment processes at once (default: as many as slots)."
    ),
    click.option("--bank", metavar="NAME", help="Where recalls come from: replica or weaviate (bank.store)."),
    click.option("--base-url", metavar="URL", help="Endpoint of every role (models.base_url)."),
    click.option("--api-key-env", metavar="NAME", help="Variable that holds the key (models.api_key_env)."),
    click.option("--max-cost", type=float, metavar="USD", help="Stop at this cost by [prices] (budget.max_cost)."),
    click.option("--max-tokens", type=int, metavar="N", help="Stop at so many tokens (budget.max_tokens)."),
    click.option("--record", metavar="FOLDER", help="Write every answer down in FOLDER (recording.record)."),
    click.option("--replay", metavar="FOLDER", help="Play the answers in FOLDER, ask nobody (recording.replay)."),
    click.option("--loose", is_flag=True, help="Ask for an answer that FOLDER lacks (recording.loose)."),
    click.option("--max-calls", type=int, metavar="N", help="Stop at so many model calls (budget.max_calls)."),
)


def _driving(function: F) -> F:
    """The options of a command that drives a run."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@chime_command("start", short_help="Start a run over a benchmark's tasks.")
@click.argument("environment")
@click.option("--domain", "domains", multiple=True, metavar="NAME", help="A domain of the benchmark; repeatable.")
@click.option("--task", "tasks", multiple=True, metavar="ID", help="This task; repeatable.")
@click.option("--limit", type=AT_LEAST_ONE, metavar="N", help="At most this many tasks.")
@click.option("--protocol", type=click.Choice(["all", "table1", "text"]), help="How tasks are split (run.protocol).")
@click.option("--part", type=click.Choice(["train", "eval"]), help="Of the split (default: train).")
@click.option("--ordering", metavar="SEED", help="Order by hash under this seed, or canonical (run.ordering_seed).")
@click.option("--model", metavar="NAME", help="Model of every role (models.model).")
@click.option("--role", "roles", multiple=True, metavar="ROLE=MODEL", help="Another model for one role.")
@click.option("--policy", metavar="NAME", help="Which policy decides (policy.name).")
@click.option("--concurrency", type=int, metavar="N", help="Episodes in flight (run.concurrency).")
@click.option("--lag", metavar="L", help="Episode t reads version t+1-L; an integer, auto or latest (run.lag).")
@click.option("--epochs", type=int, metavar="N", help="Passes over the task list (run.epochs).")
@click.option("--embedder", metavar="NAME", help="What texts are compared with (embedder.name).")
@click.option("--run", "name", metavar="RUN", help="Id of the run (default: made from environment and time).")
@click.option("--seed-bank", metavar="RUN@VERSION", help="Begin with that bank.")
@click.option("--frozen", is_flag=True, help="Read version 0 throughout, ask no gate, learn nothing.")
@click.option("--prompt", "prompts", multiple=True, metavar="NAME=FILE", help="Your own text for a prompt.")
@click.option(
    "--env-option", "options", multiple=True, metavar="A.B=VALUE",
    help="Told to the environment at every reset, as JSON or text; recorded, so no place for keys.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would run and what it may cost; start nothing.")
@_driving
def start(invocation: Invocation, **given: Any) -> int:
    """Start a run over the tasks of ENVIRONMENT: toy, bfcl, module:Class, or "cmd:PROGRAM ...".

    The server, the workers and the coordinator are started as needed and end with the run. Ctrl-C stops cleanly;
    the run can be resumed.
    """
    invocation = _with_flags(invocation, given)
    protocol = given["protocol"] or invocation.configuration.run.protocol
    if given["part"] is not None and protocol == "all":
        raise BadInput(f"--part {given['part']}: protocol all has no parts; give --protocol table1 or text")
    choice = Choice(
        environment=given["environment"],
        domains=given["domains"],
        tasks=given["tasks"],
        protocol=protocol,
        part=given["part"] or "train",
        ordering=_ordering(given["ordering"], invocation.configuration.run.ordering_seed),
        limit=given["limit"],
        frozen=given["frozen"],
        seed_bank=given["seed_bank"],
        prompts={name: Path(file) for name, file in _pairs(given["prompts"], "--prompt").items()},
        options=_options(given["options"]),
        flags=tuple(given_by_flags(invocation.resolved)),
    )
    run = run_id(given["name"]) if given["name"] else new_run_id(choice.environment)
    assert_sole_owner()
    if given["dry_run"]:
        return _say_expectation(invocation, run_async(_expected, invocation, choice), run)
    return _driven(invocation, run, given, choice)


@chime_command("resume", short_help="Go on with a run that was stopped.")
@click.argument("run")
@_driving
def resume(invocation: Invocation, run: str, **given: Any) -> int:
    """Go on with RUN where its log ends.

    Slots, addresses, keys, time-outs, limits, budget, recording and the bank's store may differ; nothing
    else may.
    """
    assert_sole_owner()
    return _driven(_with_flags(invocation, given), run_id(run), given, None)


def _with_flags(invocation: Invocation, given: Mapping[str, Any]) -> Invocation:
    named: dict[str, tuple[str, object]] = {
        "run.slots": ("--slots", given["slots"]),
        "bank.store": ("--bank", given["bank"]),
        "models.base_url": ("--base-url", given["base_url"]),
        "models.api_key_env": ("--api-key-env", given["api_key_env"]),
        "budget.max_cost": ("--max-cost", given["max_cost"]),
        "budget.max_tokens": ("--max-tokens", given["max_tokens"]),
        "budget.max_calls": ("--max-calls", given["max_calls"]),
        "recording.record": ("--record", _folder(invocation, given["record"])),
        "recording.replay": ("--replay", _folder(invocation, given["replay"])),
        "recording.loose": ("--loose", given["loose"] or None),
        "models.model": ("--model", given.get("model")),
        "policy.name": ("--policy", given.get("policy")),
        "run.concurrency": ("--concurrency", given.get("concurrency")),
        "run.lag": ("--lag", given.get("lag")),
        "run.epochs": ("--epochs", given.get("epochs")),
        "embedder.name": ("--embedder", given.get("embedder")),
    }
    for role, model in _pairs(given.get("roles", ()), "--role").items():
        if role not in ROLES:
            raise BadInput(f"--role {role}={model}: no role {role!r}; there is {', '.join(ROLES)}")
        named[f"roles.{role}.model"] = ("--role", model)
    return invocation.with_flags(named)


def _folder(invocation: Invocation, given: str | None) -> str | None:
    """A folder for all workers of the run, wherever they were started."""
    return str(paths.at(invocation.folder, given).absolute()) if given is not None else None


def _ordering(given: str | None, configured: int) -> int | None:
    """The seed of the order of tasks; None for the benchmark's own order.

    Raises:
        BadInput: neither an integer nor `canonical`.
    """
    if given is None:
        return configured
    if given == "canonical":
        return None
    try:
        return int(given)
    except ValueError:
        raise BadInput(f"--ordering {given}: must be an integer or canonical") from None


def _pairs(given: tuple[str, ...], flag: str) -> dict[str, str]:
    """`A=B` words as a mapping."""
    pairs: dict[str, str] = {}
    for word in given:
        name, sign, value = word.partition("=")
        if not sign or not name or not value:
            raise BadInput(f"{flag} {word}: expected NAME=VALUE")
        pairs[name] = value
    return pairs


def _options(given: tuple[str, ...]) -> dict[str, Any]:
    """`A.B=VALUE` words as nested options; a value that is no JSON is text.

    Raises:
        BadInput: a name without its form, one that Chime sets itself, what is no text, or nested deeper than a header
            may be.
    """
    options: dict[str, Any] = {}
    for word in given:
        name, sign, value = word.partition("=")
        try:
            word.encode()
        except UnicodeEncodeError:
            raise BadInput(f"--env-option {name}: is not UTF-8") from None
        *above, last = name.split(".")
        if not sign or not all((*above, last)):
            raise BadInput(f"--env-option {word}: expected A.B=VALUE, such as retrieval.corpus=/data/pages.jsonl")
        if (reserved := _RESERVED.get((*above, last)[0])) is not None:
            raise BadInput(f"--env-option {name}: {reserved}")
        inner = options
        for part in above:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise BadInput(f"--env-option {name}: {part} has a value already")
        if last in inner:
            raise BadInput(f"--env-option {name}: has a value already")
        try:
            inner[last] = _option(value)
            canonical(options, _DEEPEST)
        except (RecursionError, NestedTooDeep):
            raise BadInput(f"--env-option {name}: more than {_DEEPEST} lists and objects inside each other") from None
    return options


def _option(value: str) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value


async def _expected(invocation: Invocation, choice: Choice) -> tuple[Beginning, Expectation]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(log_lines(invocation.configuration, invocation.home(), quiet=True))
        environment = environments.load(choice.environment, invocation.home(), environ=invocation.environment)
        stack.push_async_callback(environment.aclose)
        around = Around(environ=invocation.environment)
        made = await beginning(invocation.configuration, choice, environment, None, around)
        assert_playable(invocation.configuration.recording)
        await _assert_usable(map(invocation.configuration.endpoint, ROLES), invocation)
        return made, expected(made, invocation.configuration)


def _say_expectation(invocation: Invocation, found: tuple[Beginning, Expectation], run: RunId) -> int:
    _, expectation = found
    output = invocation.output
    output.data({"run": run, "dry_run": True, "expected": expectation})
    output.facts(expectation.facts())
    output.line("nothing was started (--dry-run)")
    return 0


def _driven(invocation: Invocation, run: RunId, given: Mapping[str, Any], choice: Choice | None) -> int:
    output = invocation.output
    try:
        ended = run_async(_drive, invocation, run, given, choice)
    except Interrupted:
        output.note(f"interrupted; nothing is lost. Go on with: chime run resume {run}")
        return 130
    output.data(ended)
    summary, sizes = ended.summary, ended.summary.bank_sizes
    output.line(
        f"run {run}: {_score(summary)}"
        + (f", banks {sizes['planning']}+{sizes['execution']}" if sizes else "")
        + (f"  [{', '.join(summary.labels)}]" if summary.labels else "")
    )
    if summary.past:
        output.note(f"note: {NOT_AT_HAND}: {summary.past}")
    if ended.control == "stopped":
        reason = (ended.reason or "").removeprefix(f"run {run}: ")
        why = f"run {run} stopped: {reason}. {_way_on(run, ended.kind, reason)}"
        raise BudgetSpent(why) if ended.kind == RunSpent.kind else RunStopped("stopped", why)
    output.line(f"next: chime run show {run}, chime memory list {run}, chime log verify {run}")
    told = [f"{summary.abandoned} abandoned{abandoned_why(summary)}"] if summary.abandoned else []
    told += [f"{count} not judged ({reason})" for reason, count in summary.degraded.items() if reason in FAULTS]
    if told:
        output.note(f"finished with failures: {', '.join(told)}; chime episode list {run} names the episodes")
    return 1 if told else 0


def _score(summary: Summary) -> str:
    if not summary.scored:
        return "no episode scored"
    score = summary.score
    return (
        f"{summary.successes} of {summary.scored} succeeded ({score.estimate:.1%}, 95 % {score.low:.1%} to "
        f"{score.high:.1%})"
    )


def _way_on(run: RunId, kind: str, reason: str) -> str:
    """What to do about a run that has stopped."""
    if kind == "model_not_found":
        return (
            f"A run keeps its model: once the endpoint has it, chime run resume {run}; for another one, "
            f"chime run delete {run} --force, then start it again with that --model"
        )
    if kind == RunSpent.kind:
        flag = next((f"--max-{what}" for what in ("cost", "tokens") if f"(max_{what})" in reason), "--max-calls")
        return f"Go on with a higher bound: chime run resume {run} {flag} N"
    if kind == "not_recorded":
        return f"To ask for what is missing: chime run resume {run} --loose --base-url URL"
    if kind == "not_found":
        return f"Most addresses end in /v1; with the right one: chime run resume {run} --base-url URL"
    return f"Go on with: chime run resume {run}"


async def _drive(invocation: Invocation, run: RunId, given: Mapping[str, Any], choice: Choice | None) -> Ended:
    configuration, home, output = invocation.configuration, invocation.home(), invocation.output
    clock = SystemClock()
    slots = configuration.run.slots
    doing = Hands(
        slots=slots,
        processes=given["processes"],
        in_process=given["in_process"],
        hosts=given["hosts"] or slots,
        marks=configuration.intake,
        warn_degraded=configuration.run.warn_degraded,
        weaviate=configuration.weaviate,
    )
    live = LiveLine(output, clock)
    ended: Ended | None = None
    try:
        async with interruptible(), AsyncExitStack() as stack:
            log = await stack.enter_async_context(log_lines(configuration, home, output.interactive or output.json))
            logs = await stack.enter_async_context(
                connections(home, configuration.redis.url, configuration.redis.prefix, clock)
            )
            there = await stack.enter_async_context(_with_banks(invocation, logs))
            there.warn()
            if choice is not None:
                await _begun(invocation, there, run, choice)
            else:
                await _resumed(invocation, there, run)
            ground = await stack.enter_async_context(hands(there, home, invocation.environment, clock, doing, log))
            controls = await drive(there, ground, [run], live)
            live.done()
            summarizer = await summarized_at_hand(configuration.prices, there.store, there.store.open(run))
            summary, kind = summarizer.summary(), summarizer.standing.kind
            ended = Ended(run=run, control=controls[run], reason=summary.reason, kind=kind, summary=summary)
    except Interrupted:
        # Where it came while the workers of a run that has ended were stopping, there is nothing to go on with.
        if ended is None:
            raise
    if ended is None:
        raise Interrupted
    return ended


def _with_banks(invocation: Invocation, logs: Server) -> AbstractAsyncContextManager[Server]:
    """`logs` with a way to the bank server, which is started where it is the home's own and a run wants it."""
    return with_banks(
        logs,
        invocation.resolved.home,
        invocation.configuration.weaviate,
        invocation.environment,
        SystemClock(),
        starting=True,
        start=Start(progress=invocation.output.note),
    )


async def _begun(invocation: Invocation, there: Server, run: RunId, choice: Choice) -> None:
    """The run's head is in the log: the same command again goes on with the same run."""
    configuration = invocation.configuration
    await assert_bank_there(there, configuration.bank.store)
    if configuration.recording.loose and not configuration.recording.replay:
        raise BadInput("--loose is for answers that --replay FOLDER lacks: give that too")
    prepare(configuration.recording)
    loaded = environments.load(
        choice.environment, invocation.home(), limits=Limits(max_hosts=1), environ=invocation.environment
    )
    try:
        await _assert_usable(map(configuration.endpoint, ROLES), invocation)
        around = Around(environ=invocation.environment)
        made = await beginning(configuration, choice, cast("Environment", loaded), there, around)
    finally:
        await loaded.aclose()
    # The endpoint is asked last: what is wrong on our side needs no server to be told.
    listed, labels = Listed(), list(choice.labels)
    if configuration.recording.replay:
        labels.append(REPLAY)
    else:
        listed = await listed_at(configuration.endpoint("planner"), invocation.environment)
    if listed.owner == OWNER:
        labels.append(LABEL)
    made = labelled(made, labels)
    await made.prompts.store(there.blobs, run)
    log = there.store.open(run)
    is_new = await begin(log, made.head)
    if is_new:
        await note_windows(log, windows(configuration, listed))
    else:
        await _tell_operational(invocation, log, (await recorded_head(log)).started)
    total = made.head.started.tasks_total * made.head.started.config.epochs
    word = "run" if is_new else "going on with run"
    invocation.output.note(
        f"{word} {run}: {total} episodes of {choice.environment}, policy {made.head.started.config.policy.name}"
        + (", frozen" if choice.frozen else "")
        + (f"  [{', '.join(labels)}]" if labels else "")
    )


async def _assert_usable(endpoints: Iterable[EndpointSettings], invocation: Invocation) -> None:
    """No request is made: an address that holds a password must not come into a log.

    Raises:
        BadInput: an address or a key that no request can be made with.
    """
    async with AsyncExitStack() as stack:
        clients = Clients(invocation.environment, SystemClock(), stack)
        for endpoint in endpoints:
            clients.of(endpoint)


async def _resumed(invocation: Invocation, there: Server, run: RunId) -> None:
    """The run is told that somebody goes on with it, and where its endpoints are now."""
    log = await there.existing(run)
    recorded = await recorded_head(log)
    header = recorded.started
    if (await log.read_stream(RUN_STREAM))[-1].kind == "run_finished":
        raise BadInput(f"run {run} is finished; `chime memory fork {run} --run NEW` starts another from its banks")
    if not recorded.is_whole:
        raise BadInput(f"run {run} was cut short while it was begun; give the command that began it once more")
    if different := refused(invocation.resolved, header):
        told = f"a run goes on as it was started, {run} cannot change: {'; '.join(different)}"
        if any(one.startswith("embedder.") for one in different):
            told += (
                f". Its bank is in the vectors of {header.embedder.fingerprint}; chime memory reembed {run} begins "
                "one in others"
            )
        raise BadInput(told)
    policies.of_run(header.config)
    now = resumed_operational(invocation.resolved, await operational_of(log, header), header.config)
    await _assert_affordable(there, log, header, now)
    await assert_embeds(header, now, Around(environ=invocation.environment))
    await assert_bank_there(there, bank_store(now))
    prepare(recording_in(now))
    await there.store.take_up(log.run)
    name = named(header.config.environment, "name", "environment")
    environments.load(name, invocation.home(), environ=invocation.environment)  # raises where it is not installed
    await _tell_operational(invocation, log, header)
    await tell(log, Operated(action="resume", target=run, author=getpass.getuser(), reason="chime run resume"))
    invocation.output.note(f"going on with run {run}")


async def _assert_affordable(there: Server, log: EventLog, header: RunStarted, now: Mapping[str, Any]) -> None:
    """A run that stopped because its budget was spent has more now: else nothing of it could go on.

    Raises:
        BudgetSpent: it has not.
    """
    standing = Standing()
    for recorded in await log.read_stream(RUN_STREAM):
        standing = standing.after(decode(recorded))
    if standing.kind != RunSpent.kind or there.ledger is None:
        return
    spent = reached(await there.ledger.spent(log.run), budget_in(now), asked_models(header.config.models))
    if spent is not None:
        raise BudgetSpent(f"run {log.run} cannot go on: {spent}. {_way_on(log.run, spent.kind, str(spent))}")


async def _tell_operational(invocation: Invocation, log: EventLog, header: RunStarted) -> None:
    """Addresses, time-outs, slots and limits, where they differ from those that the run has."""
    there = await operational_of(log, header)
    now = resumed_operational(invocation.resolved, there, header.config)
    await _assert_usable(msgspec.convert(now["endpoints"], dict[Role, EndpointSettings]).values(), invocation)
    if now != there:
        await tell(log, Noted(topic=OPERATIONAL, facts=now))
