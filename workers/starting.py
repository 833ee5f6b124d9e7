"""From a configuration and a choice of tasks to the head of a run's log."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any

import msgspec

from events import policies
from events.errors import BadInput
from events.ids import RunId, run_id
from events.kinds import EmbedderIdentity, RunConfig, SeedBank, SeededItem
from events.seeding import seed_items
from infra import embedders
from infra.embedders import Around
from infra.embedding_identity import differences, short
from runtime import planners, reflections
from runtime.ports import Environment, Role
from runtime.prompting import Prompts, load_prompts
from runtime.protocol import Part, Protocol, TaskList, task_list
from runtime.task import Description, Task
from workers.budget import budget_part
from workers.configuration import ROLES, Configuration
from workers.connections import Server
from workers.header import Head, head, recorded_head
from workers.recording import recording_part
from workers.resuming import FLAGS
from workers.sources import banks_at, newest_version
from workers.views.banks import version_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the command line says beside the configuration."""

    environment: str
    #: none = all that the environment has
    domains: tuple[str, ...] = ()
    #: these tasks only, in this order
    tasks: tuple[str, ...] = ()
    protocol: Protocol = "all"
    part: Part = "train"
    #: None = the benchmark's canonical order
    ordering: int | None = None
    limit: int | None = None
    frozen: bool = False
    #: `RUN`, `RUN@VERSION` or `RUN@PERCENT%`
    seed_bank: str | None = None
    #: prompt name -> file
    prompts: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    #: names that every view of the run shows
    labels: tuple[str, ...] = ()
    #: settings that the command line gave; None = it is not known
    flags: tuple[str, ...] | None = None
    #: handed to every reset
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A run that can be begun."""

    head: Head
    prompts: Prompts
    listed: TaskList
    description: Description


def new_run_id(environment: str) -> RunId:
    """A name that sorts by time and says what it is about."""
    name = "".join(char if char.isascii() and char.isalnum() else "-" for char in environment.lower()).strip("-")[:24]
    return run_id(f"{name or 'run'}-{datetime.now(UTC):%m%d-%H%M%S}-{token_hex(2)}")


async def beginning(
    configuration: Configuration,
    choice: Choice,
    environment: Environment,
    server: Server | None,
    around: Around | None = None,
) -> Beginning:
    """The head of a new run.

    Args:
        configuration: every setting.
        choice: which tasks, from which bank.
        environment: the benchmark.
        server: where a seed bank comes from; None where there is none.
        around: what the embedder is handed.

    Raises:
        BadInput: a setting that is missing, a task or domain that does not exist, a seed bank of another embedder.
        UnknownName: a policy, embedder, planner, prompt or protocol that does not exist.
        EnvironmentUnavailable: the environment does not start.
        EmbedderUnavailable, RunStopped: the embedder's server does not answer, or its model cannot be fetched.
    """
    description = await environment.describe()
    listed = await _listed(choice, environment, description)
    prompts = load_prompts(choice.prompts)
    async with embedders.opened(configuration.embedder.name, configuration.embedder.given(), around) as embedder:
        identity = await embedder.identify()
    seed_bank, seeds = await _seeds(choice.seed_bank, server, identity)
    config = run_config(configuration, choice, description, listed)
    return Beginning(
        head=head(config, listed.ids, prompts.sha256s(), identity, seed_bank, seeds),
        prompts=prompts,
        listed=listed,
        description=description,
    )


def labelled(made: Beginning, labels: Sequence[str]) -> Beginning:
    """`made` with the names that every view of its run shows."""
    config = msgspec.structs.replace(made.head.started.config, labels=list(labels))
    started = msgspec.structs.replace(made.head.started, config=config)
    return replace(made, head=replace(made.head, started=started))


def run_config(configuration: Configuration, choice: Choice, description: Description, listed: TaskList) -> RunConfig:
    """Every parameter, as the header records it.

    Raises:
        BadInput: no model or endpoint for a role, or no price where cost is bounded.
        UnknownName: no such policy.
    """
    policy = policies.load(configuration.policy.name, configuration.policy.parameters)
    embedder = embedders.options(configuration.embedder.name, configuration.embedder.given()).semantic
    preparatory = set(listed.preparatory)
    ids = set(listed.ids)
    return RunConfig(
        policy=policy.config(),
        fold_version=policies.FOLD_VERSION,
        lag=configuration.lag(),
        frozen=choice.frozen,
        concurrency=configuration.run.concurrency,
        epochs=configuration.run.epochs,
        models={role: msgspec.to_builtins(configuration.model(role)) for role in ROLES},
        environment={
            "name": choice.environment,
            "version": description.version,
            "domains": list(choice.domains),
            "options": dict(choice.options),
            "seed": configuration.episode.seed,
        },
        protocol={"name": choice.protocol, "part": choice.part, "limit": choice.limit},
        ordering={"seed": choice.ordering, "by": "canonical" if choice.ordering is None else "sha256"},
        limits=msgspec.to_builtins(configuration.episode),
        agent={
            "planner": planners.DEFAULT,
            "reflection": reflections.for_policy(policy.name),
            "embedder": configuration.embedder.name,
            **({"embedder_options": embedder} if embedder else {}),
        },
        depends_on={
            task.task_id: [one for one in task.depends_on if one in ids] for task in listed.tasks if task.depends_on
        },
        preparatory=sorted(preparatory),
        labels=list(choice.labels),
        operational=operational(configuration) | ({} if choice.flags is None else {FLAGS: list(choice.flags)}),
    )


def operational(configuration: Configuration) -> dict[str, Any]:
    """What may differ when a run goes on.

    Raises:
        BadInput: its cost is bounded, and a model has no price.
    """
    endpoints: dict[Role, Any] = {role: msgspec.to_builtins(configuration.endpoint(role)) for role in ROLES}
    found = {"endpoints": endpoints, "slots": configuration.run.slots, "bank": {"store": configuration.bank.store}}
    models: dict[Role, str] = {role: configuration.model(role).model for role in ROLES}
    found |= budget_part(configuration.budget, configuration.prices, models)
    found |= recording_part(configuration.recording)
    embedder = embedders.options(configuration.embedder.name, configuration.embedder.given()).operational
    return found | ({"embedder": embedder} if embedder else {})


async def _listed(choice: Choice, environment: Environment, description: Description) -> TaskList:
    unknown = [one for one in choice.domains if one not in description.domains]
    if unknown:
        known = ", ".join(description.domains)
        raise BadInput(f"{choice.environment} has no domain {unknown[0]!r}; it has {known}")
    tasks = [task for domain in choice.domains or (None,) for task in await environment.tasks(domain)]
    if choice.tasks:
        return _named(choice, tasks)
    return task_list(tasks, protocol=choice.protocol, part=choice.part, seed=choice.ordering, limit=choice.limit)


def _named(choice: Choice, tasks: Sequence[Task]) -> TaskList:
    known = {task.task_id: task for task in tasks}
    for one in choice.tasks:
        if one not in known:
            raise BadInput(f"{choice.environment} has no task {one!r}{_near(one, known)}")
    needed = [known[one] for one in choice.tasks]
    others = [task for task in tasks if task.preparatory]
    return task_list([*needed, *(task for task in others if task not in needed)], limit=len(needed))


def _near(wanted: str, known: Collection[str]) -> str:
    """Behind the name of a task that there is not: those that look like it, or a few of all."""
    if close := get_close_matches(wanted, known, n=3):
        return f"; did you mean {' or '.join(close)}?"
    return f"; its {len(known)} are such as {', '.join(list(known)[:3])}"


async def _seeds(
    wanted: str | None, server: Server | None, identity: EmbedderIdentity
) -> tuple[SeedBank | None, list[SeededItem]]:
    """The items of `RUN@VERSION`, for a run that embeds as `identity`."""
    if wanted is None or server is None:
        return None, []
    name, _, at = wanted.partition("@")
    log = await server.existing(name)
    there = (await recorded_head(log)).started.embedder
    if different := differences(there, identity):
        told = f"the bank of run {name} was embedded with {short(there.fingerprint)}, this run embeds with "
        advice = f"chime memory reembed {name} begins one from the same items"
        raise BadInput(f"{told}{short(identity.fingerprint)}: {'; '.join(different)}; {advice}")
    version = version_at(at or None, await newest_version(log), f"--seed-bank {wanted}")
    banks = await banks_at(log, version)
    return SeedBank(run=log.run, version=version, digest=banks.digest()), seed_items(banks, log.run)
