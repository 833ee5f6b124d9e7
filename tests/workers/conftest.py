"""A made-up run of a few episodes, folded by the product, for whatever reads logs; and whole runs in this process."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import anyio
import anyio.lowlevel
import msgspec
import pytest
from command_lines import chime, digest, endpoint, there  # noqa: F401 - fixtures of whoever tests processes

from events import policies
from events.bank import Banks, evolve, seed
from events.codec import canonical, draft, recorded
from events.ids import (
    PROJECTOR_STREAM,
    RUN_STREAM,
    BankVersion,
    Label,
    MemoryId,
    Position,
    RunId,
    Stage,
    StreamId,
    episode_stream,
)
from events.kinds import (
    AnyEvent,
    Counts,
    Diagnosed,
    EmbedderIdentity,
    Evaluator,
    Executed,
    Experience,
    Folded,
    MergeProposals,
    Noted,
    Planned,
    Query,
    Retrieved,
    RetrievedIds,
    RunConfig,
    RunFinished,
    RunStarted,
    Scored,
    Seeded,
    SeededItem,
    StageExperiences,
    Usage,
)
from events.log import Recorded
from events.parameters import Parameters
from events.recall import recall
from events.vectors import Vector, fixed_point
from events.verify import verify
from infra import environments
from infra.blobs import FolderBlobs
from infra.calls import MemoryCalls
from infra.clock import SystemClock
from infra.environments.toy import Toy
from infra.failures import LocalFailures
from infra.intake import OpenIntake
from infra.leases import LocalLeases
from infra.list_log import ListLogStore
from infra.local_queue import LocalQueue
from infra.rehearsal import MODEL
from infra.rehearsal.asking import read_request
from infra.rehearsal.key import AnswerKey, KeyTask
from infra.rehearsal.planting import Planting, RehearsalSettings
from infra.rehearsal.playing import Rehearsal
from infra.transcripts import Transcript, Transcripts
from infra.weaviate_address import WeaviateAddress
from runtime.ports import CallKey, ChatAnswer, ChatModel, ChatRequest, Job, JobQueue, TokenUsage, ToolCall
from runtime.settings import EpisodeSettings
from workers.bank_access import BankAccess, with_banks
from workers.configuration import (
    BankSettings,
    Configuration,
    ModelDefaults,
    PolicySettings,
    RunSettings,
    WeaviateSettings,
)
from workers.connections import Server
from workers.coordinator import Ground, coordinated
from workers.engine import Engine
from workers.header import begin
from workers.operational import OPERATIONAL
from workers.run_stream import tell
from workers.starting import Beginning, Choice, beginning

DIMENSION = 8
TEXT = "Look before you leap, always."
USAGE = Usage(prompt_tokens=100, completion_tokens=10, calls=1)


def unit(axis: int, lean: float = 0.0) -> Vector:
    """A unit vector along `axis`, leaning towards the next one."""
    components = [0.0] * DIMENSION
    components[axis % DIMENSION] = 1.0
    components[(axis + 1) % DIMENSION] += lean
    return fixed_point(components)


@dataclass
class MadeRun:
    """Writes one run, event by event; every fold and recall is the product's own."""

    run: RunId
    policy: str = "credit"
    events: list[Recorded] = field(default_factory=list)
    banks: Banks = field(default_factory=Banks)
    versions: dict[StreamId, int] = field(default_factory=dict)

    def add(self, stream: StreamId, event: AnyEvent) -> Recorded:
        self.versions[stream] = version = self.versions.get(stream, 0) + 1
        at = f"2026-01-01T00:00:{len(self.events) % 60:02d}.000000Z"
        cause = self.events[-1].id if self.events else None
        one = recorded(
            draft(event), run=self.run, stream=stream, version=version, position=len(self.events) + 1, at=at,
            cause=cause, attempt=1,
        )  # fmt: skip
        self.events.append(one)
        return one

    def begin(self, tasks: list[str], *, labels: tuple[str, ...] = (), seeds: tuple[SeededItem, ...] = ()) -> None:
        policy = policies.load(self.policy)
        config = RunConfig(
            policy=policy.config(), lag=1, frozen=False, concurrency=1, epochs=1,
            models={role: {"model": "made-model"} for role in ("planner", "executor", "gate")},
            environment={"name": "toy", "version": "1"}, protocol={"name": "table1"},
            ordering={"seed": 42, "by": "sha256"}, limits={"max_steps": 100}, agent={}, labels=list(labels),
        )  # fmt: skip
        self.add(
            RUN_STREAM,
            RunStarted(
                config=config, tasks=tasks, tasks_total=len(tasks), prompts={}, code="0.1.0", seed_bank=None,
                embedder=EmbedderIdentity(fingerprint="made", dimension=DIMENSION),
            ),
        )  # fmt: skip
        if seeds:
            self.add(RUN_STREAM, Seeded(items=list(seeds)))
            self.banks = seed(self.banks, seeds)

    def episode(
        self, t: int, *, success: bool, label: Label, axis: int, lean: float = 0.0, text: str = TEXT,
        misleading: tuple[MemoryId, ...] = (),
    ) -> None:  # fmt: skip
        policy, stream = policies.load(self.policy), episode_stream(t)
        chosen: dict[Stage, list[MemoryId]] = {}

        def retrieve(stage: Stage) -> Retrieved:
            candidates = recall(self.banks, (stage,), unit(axis), policy.parameters)
            chosen[stage] = [one.id for one in candidates if one.chosen]
            return Retrieved(
                stage=stage, bank_version=self.banks.version, query=Query(text="q", vector=unit(axis)),
                candidates=candidates, source="exact",
            )  # fmt: skip

        self.add(stream, retrieve("planning"))
        self.add(stream, Planned(plan="first this, then that", usage=USAGE, calls=[f"{stream}/planning/1"]))
        self.add(stream, retrieve("execution"))
        self.add(
            stream,
            Executed(
                trajectory="0" * 64, steps=3, errors=0, stop="done", attempts=[], usage=USAGE,
                calls=[f"{stream}/execution/1"],
            ),
        )  # fmt: skip
        self.add(
            stream,
            Scored(success=success, reward=float(success), evaluator=Evaluator(name="toy", version="1"), breakdown={}),
        )
        new = Experience(
            scenario=f"scenario {axis}", experience=text, scenario_vector=unit(axis, lean),
            experience_vector=unit(axis, 2 * lean), concrete=True, actionable=True, acceptable=True, lint=[],
        )  # fmt: skip
        diagnosed = Diagnosed(
            success=success, label=label, confidence_e4=8000,
            retrieved=RetrievedIds(planning=chosen["planning"], execution=chosen["execution"]),
            misleading=[one for one in misleading if one in chosen["planning"] + chosen["execution"]],
            misleading_dropped=0,
            experiences=StageExperiences(planning=new, execution=new), merge_proposals=MergeProposals(),
            degraded=None, usage=USAGE, calls=[f"{stream}/gate/1"],
        )  # fmt: skip
        self.add(stream, diagnosed)
        operations = policy.decide(self.banks, t, diagnosed)
        self.banks = evolve(self.banks, diagnosed, operations)
        self.add(
            PROJECTOR_STREAM,
            Folded(
                episode=t, bank_version=BankVersion(t + 1), digest=self.banks.digest(), operations=operations
            ),
        )  # fmt: skip

    def finish(self, episodes: int) -> None:
        counts = Counts(episodes=episodes, diagnosed=episodes, degraded=0, abandoned=0, folded=episodes)
        self.add(RUN_STREAM, RunFinished(outcome="completed", counts=counts))


def make_run(
    run: str = "made", policy: str = "credit", *, flipped: bool = False, labels: tuple[str, ...] = ()
) -> MadeRun:
    """Six episodes: two inserts, a merge, credits, a penalty, a prune."""
    made = MadeRun(run=RunId(run), policy=policy)
    made.begin([f"task-{t}" for t in range(6)], labels=labels)
    made.episode(0, success=True, label="planning", axis=0)
    made.episode(1, success=not flipped, label="both", axis=0, lean=0.3, text="Another way to look at it, closely.")
    made.episode(2, success=True, label="execution", axis=0)
    bad = (MemoryId("planning-0"),)
    for t in (3, 4, 5):
        made.episode(t, success=False, label="none", axis=0, misleading=bad if t < 5 else ())
    made.finish(6)
    return made


@pytest.fixture
def made_run() -> Callable[..., MadeRun]:
    """`make_run`: its events are a whole log, its banks the newest version."""
    return make_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without a CHIME_ variable around it."""
    for name in list(os.environ):
        if name.startswith("CHIME_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- whole runs in this process ----------------------------------------------------------------------------------------

#: the built-in toy as a class of this process: no child to start
TOY = "infra.environments.toy:Toy"


class Rehearsed:
    """The rehearsal model as a `ChatModel`: what its endpoint answers, without HTTP."""

    def __init__(self, key: AnswerKey, settings: RehearsalSettings) -> None:
        self._key, self._rehearsal = key, Rehearsal(Planting(settings))
        #: ids of calls that somebody paid for
        self.paid: list[str] = []

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        await anyio.lowlevel.checkpoint()
        body: dict[str, Any] = {"messages": request.messages, "tools": request.tools}
        if request.schema is not None:
            wanted = {"name": request.schema.get("title", "answer"), "schema": request.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": wanted}
        reply = self._rehearsal.play(read_request(body, self._key)).reply
        self.paid.append(key.id)
        return ChatAnswer(
            content=reply.content or "",
            tool_calls=[
                ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
                for call in reply.tool_calls
            ],
            finish_reason="tool_calls" if reply.tool_calls else "stop",
            usage=TokenUsage(prompt_tokens=len(request.messages), completion_tokens=1),
            model=MODEL,
        )


@dataclass
class Wired:
    """A model that leaves word of each call it was asked, as one behind a wire does."""

    model: ChatModel
    transcripts: Transcripts

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        answer = await self.model.complete(request, key)
        self.transcripts.put(key, Transcript(sent={}))
        return answer


class _Engine(Engine):
    """The product's engine with a model of ours behind its record of calls."""

    def ask(self, model: ChatModel) -> None:
        self._asked = model

    def _asking(self, *given: Any) -> ChatModel:
        return Wired(self._asked, given[-1])


def grounded_here(
    queue: JobQueue, *, clock: Any = None, leases: Any = None, failures: Any = None, holder: str = ""
) -> Ground:
    """What one coordinator of this process stands on; each one has a name of its own unless it is given."""
    clock = clock or SystemClock()
    return Ground(
        queue=queue, leases=leases or LocalLeases(clock.monotonic), intake=OpenIntake(),
        failures=failures or LocalFailures(clock), clock=clock,
        holder=holder or uuid4().hex,
    )  # fmt: skip


@pytest.fixture
def ground() -> Callable[..., Ground]:
    """Makes what a coordinator of this process stands on."""
    return grounded_here


@dataclass
class World:
    """Logs, bodies, calls and a model: all that runs need, in this process."""

    home: Path
    model: ChatModel
    clock: Any = field(default_factory=SystemClock)
    store: Any = None
    blobs: Any = None
    calls: Any = field(default_factory=MemoryCalls)
    leases: Any = None
    #: what workers see of the store; None = all of it
    workers_store: Any = None
    #: where the bank server is, and which generation of each bank serves; None = every bank is a replica
    weaviate: WeaviateAddress | None = None
    generations: Any = None
    #: what runs have spent; None = nobody bounds it
    ledger: Any = None
    #: put around the handling of every job
    around: Callable[[Callable[[Job], Any]], Callable[[Job], Any]] = lambda advance: advance

    def __post_init__(self) -> None:
        self.store = self.store or ListLogStore(self.clock)
        self.blobs = self.blobs or FolderBlobs(self.home)
        self.leases = self.leases or LocalLeases(self.clock.monotonic)

    def server(self) -> Server:
        return Server(
            store=self.store, blobs=self.blobs, calls=self.calls, url="", prefix="t", where="here",
            leases=self.leases, generations=self.generations, ledger=self.ledger,
        )  # fmt: skip

    def with_banks(self) -> AbstractAsyncContextManager[Server]:
        """The server with a way to its banks."""
        where = self.weaviate or WeaviateAddress(http_url="http://127.0.0.1:9", grpc_url="", api_key="", version="")
        settings = WeaviateSettings(url=where.http_url, grpc_url=where.grpc_url, api_key_env="KEY")
        return with_banks(self.server(), self.home, settings, {"KEY": where.api_key}, self.clock, starting=False)

    def log(self, run: str) -> Any:
        return self.store.open(RunId(run))

    async def head(self, configuration: Configuration | None = None, **choice: Any) -> Beginning:
        """The head of a run of the toy unless `choice` says otherwise."""
        made = configuration or configured()
        chosen = Choice(**{"environment": TOY, **choice})
        environment = environments.load(chosen.environment, self.home)
        try:
            return await beginning(made, chosen, environment, self.server())
        finally:
            await environment.aclose()

    async def begin(self, run: str, configuration: Configuration | None = None, **choice: Any) -> Any:
        """A run begun; its log."""
        made = await self.head(configuration, **choice)
        await made.prompts.store(self.blobs, RunId(run))
        await begin(self.log(run), made.head)
        return self.log(run)

    async def drive(self, *runs: str, slots: int = 16, coordinators: int = 1, deadline_s: float = 200) -> list[str]:
        """Workers and coordinators until the runs stand still; how each stands."""
        queue = LocalQueue()
        controls: dict[str, str] = {}

        async def serve(run: str, banks: BankAccess | None) -> None:
            here = grounded_here(queue, clock=self.clock, leases=self.leases)
            here = replace(here, banks=banks, generations=self.generations)
            controls[run] = (await coordinated(self.log(run), here)).conductor.control

        with anyio.fail_after(deadline_s):
            async with AsyncExitStack() as stack:
                there = await stack.enter_async_context(self.with_banks())
                there = replace(there, store=self.workers_store or self.store)
                working = _Engine(there, self.home, {}, self.clock, 16, stack)
                working.ask(self.model)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(queue.serve, self.around(working.advance), slots)
                    async with anyio.create_task_group() as serving:
                        for run in runs * coordinators:
                            serving.start_soon(serve, run, there.banks)
                    queue.close()
                    tasks.cancel_scope.cancel()
        return [controls[run] for run in runs]

    async def play(self, run: str, configuration: Configuration | None = None, **choice: Any) -> list[Recorded]:
        """A run from its head to its end; its log, verified."""
        await self.begin(run, configuration, **choice)
        assert await self.drive(run) == ["finished"]
        return await self.recorded(run)

    async def recorded(self, run: str) -> list[Recorded]:
        """The whole log, after the product has verified it."""
        events = [one async for page in self.log(run).pages(Position(0)) for one in page]
        verify(events)
        return events


def configured(
    *,
    concurrency: int = 4,
    lag: Any = 4,
    epochs: int = 1,
    policy: str = "credit",
    episode: Any = None,
    store: Any = "replica",
    **parameters: Any,
) -> Configuration:
    """A configuration with the rehearsal model behind an address that nobody asks."""
    return Configuration(
        models=ModelDefaults(model=MODEL, base_url="http://127.0.0.1:9/v1"),
        run=RunSettings(concurrency=concurrency, lag=lag, epochs=epochs),
        policy=PolicySettings(name=policy, parameters=Parameters(**parameters)),
        episode=episode or EpisodeSettings(),
        bank=BankSettings(store=store),
    )


def contents(events: Sequence[Recorded]) -> set[tuple[str, int, str, bytes]]:
    """What must not depend on timing: (stream, version, kind, data) of episodes and projector, `source` aside."""
    found = set()
    for one in events:
        if one.stream != RUN_STREAM:
            data = json.loads(one.data)
            data.pop("source", None) if one.kind == "retrieved" else None
            found.add((one.stream, one.version, one.kind, canonical(data)))
    return found


def digests(events: Sequence[Recorded]) -> list[str]:
    """The digest at every version from 1, in order."""
    return [json.loads(one.data)["digest"] for one in events if one.kind == "folded"]


async def told_operational(log: Any, facts: Mapping[str, Any]) -> None:
    """What a resume elsewhere says of a run that goes on."""
    await tell(log, Noted(topic=OPERATIONAL, facts=dict(facts)))


@pytest.fixture(scope="session")
def toy_key() -> AnswerKey:
    """What the rehearsal model knows of the toy."""
    toy = Toy()
    answers = {one["task_id"]: {"domain": one["domain"], **toy.oracle(one["domain"], one["task_id"])}
               for one in toy.tasks()}  # fmt: skip
    return AnswerKey({task: msgspec.convert(one, KeyTask) for task, one in answers.items()})


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that looks after its jobs in every round, and whose rounds are short."""
    monkeypatch.setattr("workers.coordinator._LIVENESS_S", 0.0)
    monkeypatch.setattr("workers.coordinator._GRACE_S", 0.0)
    monkeypatch.setattr("workers.coordinator._RENEW_S", 0.0)
    monkeypatch.setattr("workers.coordinator._PATIENCE_S", 0.05)
    monkeypatch.setattr("workers.coordinator._AGAIN_S", 0.01)


@pytest.fixture
def world(tmp_path: Path, toy_key: AnswerKey, brisk: None) -> Callable[..., World]:
    """Makes worlds of their own, with the rehearsal model unless another one is given."""
    made = 0

    def make(model: ChatModel | None = None, **given: Any) -> World:
        nonlocal made
        made += 1
        home = tmp_path / f"home{made}"
        home.mkdir()
        return World(home=home, model=model or Rehearsed(toy_key, RehearsalSettings()), **given)

    return make


#: what is given up, or taken for dead, while a machine stands still: module -> name -> seconds or beats
_PATIENCE: dict[str, dict[str, dict[str, float]]] = {
    "claims": {"workers.host": {"CLAIM_BEATS": 600.0}},
    "publishing": {"infra.banks.stored": {"_PUBLISHED_S": 60.0}},
    "reading": {"infra.banks.weaviate_edge": {"READ_S": 60.0, "_GREET_S": 60.0}},
    "settling": {"workers.mirroring": {"_SETTLE_S": 60.0, "_AWAY_S": 60.0, "_REVIVED_S": 90.0}},
}

#: `sitecustomize` of a child, after a line that says what is given: each module has it once it is loaded
_GIVING = """
import sys


class Giving:
    def find_spec(self, name, path, target=None):
        if name not in GIVEN:
            return None
        others = [one for one in sys.meta_path if one is not self]
        spec = next(found for one in others if (found := one.find_spec(name, path, target)))
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            assert not GIVEN[name].keys() - vars(module).keys(), f"{name} has no such names"
            vars(module).update(GIVEN[name])

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Giving())
"""


@pytest.fixture
def patient_children(tmp_path: Path) -> Callable[..., str]:
    """Makes a PYTHONPATH whose processes are patient about parts of `_PATIENCE`, and have other numbers of ours."""

    def made(*parts: str, others: Mapping[str, Mapping[str, float]] | None = None) -> str:
        given = {module: numbers for part in parts for module, numbers in _PATIENCE[part].items()} | dict(others or {})
        folder = tmp_path / "patient"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(f"GIVEN = {given!r}\n{_GIVING}")
        return os.pathsep.join([str(folder), str(Path(__file__).parents[2])])

    return made


@pytest.fixture
def patience() -> Iterator[None]:
    """Slow machines publish and answer late: what is waited for in vain would be recalled from a replica."""
    with pytest.MonkeyPatch.context() as patient:
        for part in ("publishing", "reading", "settling"):
            for module, numbers in _PATIENCE[part].items():
                for name, number in numbers.items():
                    patient.setattr(f"{module}.{name}", number)
        yield


@pytest.fixture
def playing() -> Any:
    """Names that tests of whole runs share."""
    return SimpleNamespace(
        configured=configured, contents=contents, digests=digests, toy=TOY, rehearsed=Rehearsed, world=World,
        told=told_operational,
    )  # fmt: skip
