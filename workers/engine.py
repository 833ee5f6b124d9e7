"""What a process advances episodes with: its clients and environments, shared by all runs it works on."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import structlog

from events import policies
from events.codec import decode, draft
from events.errors import BadInput
from events.ids import RUN_STREAM, RunId, Version
from events.kinds import Evaluator, Noted, Operated, RunStarted
from events.policies import Policy
from infra import embedders, environments
from infra.banks.replica import Replica
from infra.calls import CallStore, RecordedCalls
from infra.environments.limits import Limits
from infra.openai_client import Clients
from infra.openai_model import OpenAIModel
from runtime import planners, reflections
from runtime.context import Context
from runtime.episode import act, diagnose
from runtime.errors import EnvironmentUnavailable, NotServed, RunStopped
from runtime.ports import Blobs, ChatModel, Clock, Embedder, Environment, EventLog, Job, LogStore, Origin, Role, Taken
from runtime.prompting import stored_prompts
from runtime.settings import EndpointSettings, EpisodeSettings, ModelSettings
from runtime.task import Task

_log = structlog.get_logger("chime.engine")

#: runs whose context is kept; another one is built from its header in milliseconds
_CONTEXTS = 64

#: topic of the note that pauses a run
STOPPED = "run_stopped"
#: topic of the note that changes addresses, time-outs and limits of a run that goes on
OPERATIONAL = "operational"


class Engine:
    """Advances episodes of any run of a store. Made by `engine`, inside the loop it is used in."""

    def __init__(
        self,
        store: LogStore,
        blobs: Blobs,
        calls: CallStore,
        home: Path,
        keys: Mapping[str, str],
        clock: Clock,
        hosts: int,
        stack: AsyncExitStack,
    ) -> None:
        self._store, self._blobs, self._calls = store, blobs, calls
        self._home, self._keys, self._clock, self._hosts = home, keys, clock, hosts
        self._stack = stack
        self._clients = Clients(keys, clock, stack)
        self._building = anyio.Lock()
        self._contexts: dict[RunId, Context] = {}
        self._environments: dict[str, Environment] = {}

    async def advance(self, job: Job) -> None:
        """Bring the job's episode to where its kind of job ends.

        Raises:
            NotServed: this process cannot work on that run; another one may.
            ChimeError: the job failed; it is tried again by whoever asked for it.
        """
        try:
            context = await self._context(job.run)
        except (BadInput, EnvironmentUnavailable) as error:
            raise NotServed(f"run {job.run}: {error}") from error
        try:
            await (act(job, context) if job.kind == "act" else diagnose(job, context))
        except RunStopped as stopped:
            # The next attempt reads the run's addresses and keys anew.
            self._contexts.pop(job.run, None)
            await note_stopped(context.log, stopped)

    async def environment(self, name: str) -> Environment:
        """The environment of that name, shared by all runs of this process."""
        if name not in self._environments:
            limits = Limits(max_hosts=self._hosts)
            self._environments[name] = environment = environments.load(
                name, self._home, limits=limits, environ=self._keys
            )
            self._stack.push_async_callback(environment.aclose)
        return self._environments[name]

    async def _context(self, run: RunId) -> Context:
        async with self._building:
            if run not in self._contexts:
                while len(self._contexts) >= _CONTEXTS:
                    self._contexts.pop(next(iter(self._contexts)))
                self._contexts[run] = await self._built(run)
            return self._contexts[run]

    async def _built(self, run: RunId) -> Context:
        log = self._store.open(run)
        banks = Replica(log)
        header = await banks.header()
        config = header.config
        policy, embedder = served(header)
        environment = await self.environment(config.environment["name"])
        description = await environment.describe()
        operational = await operational_of(log, header)
        return Context(
            config=config,
            tasks=await listed_tasks(environment, config.environment, await banks.tasks()),
            settings=msgspec.convert({**config.limits, **operational.get("limits", {})}, EpisodeSettings),
            parameters=policy.parameters,
            prompts=await stored_prompts(self._blobs, run, header.prompts),
            planner=planners.load(config.agent["planner"]),
            reflection=reflections.load(config.agent["reflection"]),
            evaluator=Evaluator(
                name=description.evaluator or description.env,
                version=description.evaluator_version or description.version,
            ),
            log=log,
            blobs=self._blobs,
            model=self._model(config.models, operational["endpoints"]),
            embedder=embedder,
            banks=banks,
            environment=environment,
            clock=self._clock,
        )

    def _model(self, models: Mapping[str, Any], endpoints: Mapping[str, Any]) -> ChatModel:
        asked = msgspec.convert(models, dict[Role, ModelSettings])
        where = msgspec.convert(endpoints, dict[Role, EndpointSettings])
        names: dict[Role, str] = {role: one.model for role, one in asked.items()}
        model = OpenAIModel(asked, where, self._clients, self._clock)
        return RecordedCalls(model, self._calls, self._blobs, self._clock, names)


@asynccontextmanager
async def engine(
    store: LogStore,
    blobs: Blobs,
    calls: CallStore,
    home: Path,
    keys: Mapping[str, str],
    clock: Clock,
    hosts: int,
) -> AsyncIterator[Engine]:
    """An engine whose clients and environments end with it.

    Args:
        store: the logs to advance.
        blobs: their bodies.
        calls: their recorded model calls.
        home: where environments are installed.
        keys: the process's environment variables: API keys by name.
        clock: of the machine.
        hosts: environment processes at once.
    """
    async with AsyncExitStack() as stack:
        yield Engine(store, blobs, calls, home, keys, clock, hosts, stack)


def served(header: RunStarted) -> tuple[Policy, Embedder]:
    """The policy and embedder of a run that this code can work on.

    Raises:
        BadInput: another version of the fold or policy, or vectors of another embedder.
        UnknownName: no such policy or embedder here.
    """
    name = header.config.agent["embedder"]
    embedder = embedders.load(name)
    if embedder.identity != header.embedder:
        there, here = header.embedder.fingerprint, embedder.identity.fingerprint
        raise BadInput(f"the run embeds with {there}, {name} here is {here}")
    return policies.of_run(header.config), embedder


async def listed_tasks(environment: Environment, chosen: Mapping[str, Any], ids: tuple[str, ...]) -> list[Task]:
    """The tasks that a header names, in its order, as the environment describes them.

    Raises:
        BadInput: the environment has changed: a task of the run is no longer there.
    """
    domains = chosen.get("domains") or [None]
    known = {task.task_id: task for domain in domains for task in await environment.tasks(domain)}
    missing = [one for one in ids if one not in known]
    if missing:
        raise BadInput(
            f"the task list changed: {chosen['name']} has no task {missing[0]!r} any more "
            f"({len(missing)} of {len(ids)} are missing); install the version that the run was started with"
        )
    return [known[one] for one in ids]


async def operational_of(log: EventLog, header: RunStarted) -> dict[str, Any]:
    """Addresses, time-outs, slots and limits as the run was last resumed with."""
    operational = dict(header.config.operational)
    for recorded in await log.read_stream(RUN_STREAM):
        if recorded.kind == "noted" and isinstance(event := decode(recorded), Noted) and event.topic == OPERATIONAL:
            operational.update(event.facts)
    return operational


async def note_stopped(log: EventLog, stopped: RunStopped) -> None:
    """Say in the log that nothing on this endpoint can work, once for each time the run is resumed."""
    event = Noted(topic=STOPPED, facts={"kind": stopped.kind, "reason": str(stopped)})
    while True:
        recorded = await log.read_stream(RUN_STREAM)
        for one in reversed(recorded):
            told = decode(one)
            if isinstance(told, Noted) and told.topic == STOPPED:
                return
            if isinstance(told, Operated) and told.action == "resume":
                break
        result = await log.append(RUN_STREAM, Version(len(recorded) + 1), [draft(event)], Origin(cause=None))
        if not isinstance(result, Taken):
            _log.error("run_stopped", run_id=log.run, kind=stopped.kind, reason=str(stopped))
            return
