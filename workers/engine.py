"""What a process advances episodes with: its clients and environments, shared by all runs it works on."""

import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import anyio
import msgspec
import structlog

from events import policies
from events.codec import canonical, decode, draft
from events.errors import BadInput, ChimeError, UnreadableEvent, VersionGap
from events.ids import RUN_STREAM, Position, RunId, Version, episode_stream
from events.kinds import Evaluator, Noted, Operated, RunConfig, RunStarted
from events.log import Recorded
from infra import environments
from infra.banks.replica import Replica
from infra.banks.stored import StoredBanks
from infra.calls import RecordedCalls
from infra.capabilities import Place
from infra.embedders import Around
from infra.embedding_cache import CachedEmbedder
from infra.environments.limits import Limits
from infra.environments.scratch import sweep
from infra.openai_client import Clients
from infra.openai_model import OpenAIModel
from infra.pacing import Paced
from infra.spending import SpendingModel
from infra.transcripts import Transcripts
from runtime import planners, reflections
from runtime.context import Context
from runtime.episode import act, diagnose
from runtime.errors import (
    EmbedderUnavailable,
    EnvironmentUnavailable,
    NotServed,
    RunEnded,
    RunSpent,
    RunStopped,
    StoreAway,
)
from runtime.logger import Logger
from runtime.ports import ChatModel, Clock, Embedder, Environment, EventLog, Job, Origin, Role, Taken
from runtime.prompting import stored_prompts
from runtime.settings import EndpointSettings, ModelSettings, Price
from runtime.task import Task
from workers.bank_store import bank_store
from workers.budget import budget_in
from workers.configuration import Store
from workers.connections import Server
from workers.embedding import Embedders
from workers.noting import NotedModel, Notes
from workers.operational import episode_settings, operational_in
from workers.recording import kept, played, recording_in

_log = Logger("chime.engine")

#: runs whose context is kept; another one is built from its header in milliseconds
_CONTEXTS = 64

#: how long a run is taken for the one that has the name now, without a look at its log, seconds
_LOOK_S = 1.0
#: the first and the longest wait for a store that is away or full, seconds
_AWAY_S = (1.0, 15.0)
#: errors of a file system that has no room
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

#: topic of the note that pauses a run
STOPPED = "run_stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Serving:
    """A run as this process serves it."""

    context: Context
    header: RunStarted
    #: where recalls come from
    store: Store
    #: the log's first event, and when it was looked at last, monotonic seconds
    head: Recorded
    looked: float
    #: events of the run's own stream that were read for it
    told: int
    #: no episode is begun any more
    cancelled: bool
    #: what turned out about its models
    notes: Notes
    #: first 12 digits of the hex SHA-256 of the header's configuration, for log lines
    config_hash: str


class Engine:
    """Advances episodes of any run of a server. Made by `engine`, inside the loop it is used in."""

    def __init__(
        self,
        there: Server,
        home: Path,
        keys: Mapping[str, str],
        clock: Clock,
        hosts: int,
        stack: AsyncExitStack,
    ) -> None:
        self._there, self._home, self._keys, self._clock, self._hosts = there, home, keys, clock, hosts
        self._stack = stack
        self._clients = Clients(keys, clock, stack)
        self._embedders = Embedders(Around(environ=keys, clock=clock, home=home), stack)
        self._building = anyio.Lock()
        self._runs: dict[RunId, _Serving] = {}
        self._environments: dict[str, Environment] = {}

    async def advance(self, job: Job) -> None:
        """Bring the job's episode to where its kind of job ends; while the store is away or full, wait for it.

        What was paid for is recorded before it is used, so that going on after an outage asks no model again.

        Raises:
            NotServed: this process cannot work on that run; another one may.
            ChimeError: the job failed, which is kept as a dead letter; it is tried again by whoever asked for it.
        """
        wait_s, longest_s = _AWAY_S
        while True:
            try:
                await self._advance(job)
            except (StoreAway, OSError) as error:
                if isinstance(error, OSError) and error.errno not in _FULL:
                    raise
                _log.warning("store_waited_for", run_id=job.run, episode=job.episode, reason=str(error))
            except VersionGap as gap:
                # The server has lost what this job read: all that was derived from it goes, and the job begins again.
                _log.warning("log_read_again", run_id=job.run, episode=job.episode, reason=str(gap))
                async with self._building:  # else whoever is about to take it over would bring it back
                    self._runs.pop(job.run, None)
            else:
                return
            await self._clock.sleep(wait_s)
            wait_s = min(2 * wait_s, longest_s)

    async def _advance(self, job: Job) -> None:
        try:
            serving = await self._serving(job.run)
        except (BadInput, EnvironmentUnavailable, EmbedderUnavailable) as error:
            raise NotServed(f"run {job.run}: {error}") from error
        except RunStopped as stopped:
            await note_stopped(self._there.store.open(job.run), stopped)
            return
        context = serving.context
        if serving.cancelled and not await context.log.length(episode_stream(job.episode)):
            return
        try:
            with structlog.contextvars.bound_contextvars(config_hash=serving.config_hash):
                await (act(job, context) if job.kind == "act" else diagnose(job, context))
        except RunStopped as stopped:
            await note_stopped(context.log, stopped)
        except RunSpent as spent:
            if await context.log.length(RUN_STREAM) > serving.told:
                await self._advance(job)  # perhaps somebody has raised the budget meanwhile
            else:
                await note_stopped(context.log, spent)
        except RunEnded:
            return  # cancelled, and finished while this job hung
        except (StoreAway, VersionGap):
            raise
        except ChimeError as error:
            await self._there.failures.record(job, error)
            raise

    async def environment(self, name: str) -> Environment:
        """The environment of that name, shared by all runs of this process."""
        if name not in self._environments:
            limits = Limits(max_hosts=self._hosts)
            self._environments[name] = environment = environments.load(
                name, self._home, limits=limits, environ=self._keys
            )
            self._stack.push_async_callback(environment.aclose)
        return self._environments[name]

    async def _serving(self, run: RunId) -> _Serving:
        """The run as it is now: what was said of it meanwhile is taken over, its banks stay."""
        async with self._building:
            known = await self._known(run)
            log = self._there.store.open(run) if known is None else known.context.log
            told = await log.length(RUN_STREAM)
            if known is None or told < known.told:
                self._runs.pop(run, None)
                while len(self._runs) >= _CONTEXTS:
                    self._runs.pop(next(iter(self._runs)))
                self._runs[run] = await self._built(log, told)
            elif told > known.told:
                self._runs[run] = await self._told(known)
            return self._runs[run]

    async def _known(self, run: RunId) -> _Serving | None:
        """The run as it was served before, unless it was deleted and its name is another run's now."""
        known, now = self._runs.get(run), self._clock.monotonic()
        if known is None or now - known.looked < _LOOK_S:
            return known
        if await known.context.log.read(Position(0), 1) != [known.head]:
            del self._runs[run]
            return None
        self._runs[run] = known = replace(known, looked=now)
        return known

    async def _told(self, known: _Serving) -> _Serving:
        """`known` after somebody has spoken in the run's own stream: perhaps it has been resumed elsewhere."""
        log, config = known.context.log, known.header.config
        said = await log.read_stream(RUN_STREAM)
        operational = operational_in(said, known.header)
        store = bank_store(operational)
        context = replace(
            known.context,
            settings=episode_settings(config, operational),
            model=self._noted(log, said, config, operational, known.notes),
            embedder=await self._embedder(log.run, known.header, operational),
            banks=known.context.banks if store == known.store else self._reader(log, store),
        )
        return replace(
            known,
            context=context,
            store=store,
            told=len(said),
            cancelled=_cancelled(said),
        )

    def _reader(self, log: EventLog, store: Store) -> Replica | StoredBanks:
        """Where recalls come from. A store that this process knows no way to is stood in for by a replica."""
        access, generations = self._there.banks, self._there.generations
        if store == "weaviate" and access is not None and generations is not None:
            return StoredBanks(log, access.reachable, generations.of(log.run), self._clock)
        return Replica(log, source="exact" if store == "replica" else "fallback")

    async def _built(self, log: EventLog, told: int) -> _Serving:
        run, blobs = log.run, self._there.blobs
        said = await log.read_stream(RUN_STREAM)
        header = begun_with(log, said)
        config, operational = header.config, operational_in(said, header)
        store = bank_store(operational)
        banks = self._reader(log, store)
        policy = policies.of_run(header.config)
        embedder = await self._embedder(run, header, operational)
        notes = Notes(log, self._there.calls, self._clients)
        environment = await self.environment(named(config.environment, "name", "environment"))
        description = await environment.describe()
        context = Context(
            config=config,
            tasks=await listed_tasks(environment, config.environment, await banks.tasks()),
            settings=episode_settings(config, operational),
            parameters=policy.parameters,
            prompts=await stored_prompts(blobs, run, header.prompts),
            planner=planners.load(named(config.agent, "planner")),
            reflection=reflections.load(named(config.agent, "reflection")),
            evaluator=Evaluator(
                name=description.evaluator or description.env,
                version=description.evaluator_version or description.version,
            ),
            log=log,
            blobs=blobs,
            model=self._noted(log, said, config, operational, notes),
            embedder=embedder,
            banks=banks,
            environment=environment,
            clock=self._clock,
        )
        return _Serving(
            context=context,
            header=header,
            store=store,
            head=said[0],
            looked=self._clock.monotonic(),
            told=told,
            cancelled=_cancelled(said),
            notes=notes,
            config_hash=_config_hash(config),
        )

    async def _embedder(self, run: RunId, header: RunStarted, operational: Mapping[str, Any]) -> Embedder:
        embedder = await self._embedders.of(header, operational)
        # What costs nothing need not be remembered.
        return embedder if embedder.is_free else CachedEmbedder(embedder, self._there.embeddings, run)

    def _noted(
        self,
        log: EventLog,
        said: Sequence[Recorded],
        config: RunConfig,
        operational: Mapping[str, Any],
        notes: Notes,
    ) -> ChatModel:
        """The run's models, which say in its log what turns out about them; what it says already is known to them."""
        model = self._model(log.run, config.models, operational)
        endpoints = operational.get("endpoints", {})
        places: dict[Role, Place] = {
            role: Place(str(endpoints[role]["base_url"]), str(config.models[role]["model"])) for role in get_args(Role)
        }
        notes.read(said, places)
        return NotedModel(model, places, notes)

    def _model(self, run: RunId, models: Mapping[str, Any], operational: Mapping[str, Any]) -> ChatModel:
        """What a stage asks: the record of the run's calls, and behind it what is recorded elsewhere, or endpoints.

        Raises:
            BadInput: the header or the operational part was made by hand, or by other code.
        """
        try:
            asked = msgspec.convert(models, dict[Role, ModelSettings])
            where = msgspec.convert(operational.get("endpoints", {}), dict[Role, EndpointSettings])
        except msgspec.ValidationError as error:
            raise BadInput(f"the header's models or endpoints cannot be read: {error}") from error
        if missing := [role for role in get_args(Role) if role not in asked or role not in where]:
            raise BadInput(f"the header names no model or endpoint for the {missing[0]}")
        names: dict[Role, str] = {role: one.model for role, one in asked.items()}
        transcripts = Transcripts()
        model = self._asking(run, asked, where, transcripts)
        budget, ledger = budget_in(operational), self._there.ledger
        prices: dict[Role, Price] = {role: budget.prices[name] for role, name in names.items() if name in budget.prices}
        if ledger is not None and not budget.is_free:
            longest_s: dict[Role, float] = {role: one.deadline_s for role, one in where.items()}
            model = SpendingModel(model, ledger, budget, names, longest_s, transcripts)
        recording = recording_in(operational)
        # What is played costs nothing; of what is made twice, what the run keeps is written down.
        model = played(model, recording, names)
        model = RecordedCalls(
            model, self._there.calls, self._there.blobs, self._clock, names, prices, transcripts=transcripts
        )
        return kept(model, recording, names)

    def _asking(
        self,
        run: RunId,
        models: Mapping[Role, ModelSettings],
        endpoints: Mapping[Role, EndpointSettings],
        transcripts: Transcripts,
    ) -> ChatModel:
        """What asks the endpoints, at the pace of the run."""
        pace = Paced(self._there.pace(run), self._clock)
        return OpenAIModel(models, endpoints, self._clients, self._clock, pace=pace, transcripts=transcripts)


@asynccontextmanager
async def engine(there: Server, home: Path, keys: Mapping[str, str], clock: Clock, hosts: int) -> AsyncIterator[Engine]:
    """An engine whose clients and environments end with it.

    Args:
        there: the server whose runs are advanced.
        home: where environments are installed.
        keys: the process's environment variables: API keys by name.
        clock: of the machine.
        hosts: environment processes at once.
    """
    async with AsyncExitStack() as stack:
        # last, when our own hosts have ended: of those that died beside us we may be the last one who looks
        stack.push_async_callback(_sweep)
        yield Engine(there, home, keys, clock, hosts, stack)


async def _sweep() -> None:
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(sweep)


def begun_with(log: EventLog, said: Sequence[Recorded]) -> RunStarted:
    """The header of a run whose own stream is `said`.

    Raises:
        UnreadableEvent: the log does not begin with one.
    """
    event = decode(said[0]) if said else None
    if not isinstance(event, RunStarted):
        raise UnreadableEvent(f"log of run {log.run}", "it does not begin with run_started")
    return event


def named(section: Mapping[str, Any], key: str, what: str = "") -> str:
    """What a header's section says under `key`: the name of a part that the run is played with.

    Raises:
        BadInput: no name stands there.
    """
    name = section.get(key)
    if not isinstance(name, str) or not name:
        raise BadInput(f"the run's header names no {what or key}: it was made by hand, or by other code")
    return name


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


def _cancelled(said: Sequence[Recorded]) -> bool:
    """Whether somebody ended the run for good."""
    return any(
        one.kind == "operated" and isinstance(event := decode(one), Operated) and event.action == "cancel"
        for one in said
    )


def _config_hash(config: RunConfig) -> str:
    return sha256(canonical(config)).hexdigest()[:12]


async def note_stopped(log: EventLog, stopped: RunStopped | RunSpent) -> None:
    """Say in the log that nothing on this endpoint can work, or may, once for each time the run is resumed."""
    event = Noted(topic=STOPPED, facts={"kind": stopped.kind, "reason": str(stopped)})
    while True:
        recorded = await log.read_stream(RUN_STREAM)
        for one in reversed(recorded):
            told = decode(one)
            if isinstance(told, Noted) and told.topic == STOPPED:
                return
            if isinstance(told, Operated) and told.action == "resume":
                break
        try:
            result = await log.append(RUN_STREAM, Version(len(recorded) + 1), [draft(event)], Origin(cause=None))
        except RunEnded:
            return
        if not isinstance(result, Taken):
            _log.error("run_stopped", run_id=log.run, kind=stopped.kind, reason=str(stopped))
            return
