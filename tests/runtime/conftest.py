"""A world in memory for one run: log, blobs, model, embedder, banks, environment, clock, each with its own faults."""

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio.lowlevel
import pytest
from msgspec.structs import replace as changed

from events.bank import Banks, Item, seed
from events.codec import content_sha256, decode, recorded
from events.errors import VersionGap
from events.ids import BankVersion, MemoryId, Position, RunId, Stage, StreamId, Version, episode_stream
from events.kinds import AnyEvent, EmbedderIdentity, Evaluator, PolicyConfig, Query, RunConfig, SeededItem
from events.log import Draft, Recorded
from events.parameters import Parameters
from events.recall import recall
from events.vectors import Vector, fixed_point
from runtime import planners, reflections
from runtime.context import Context
from runtime.errors import MissingBlob
from runtime.ports import (
    Appended,
    CallKey,
    ChatAnswer,
    ChatRequest,
    Job,
    JobKind,
    Origin,
    Recalled,
    StreamIndex,
    Taken,
    TokenUsage,
    ToolCall,
)
from runtime.prompting import load_prompts
from runtime.settings import EpisodeSettings
from runtime.task import Description, Evaluation, Message, Opening, StepResult, Task, Tool

RUN = RunId("test")
DIMENSION = 32

TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "set_light",
        "description": "Switch a light.",
        "parameters": {"type": "object", "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}}},
    },
}

LESSON = {
    "scenario": "A light has to be switched in a named room.",
    "experience": "Name the room exactly as the user did, and switch one light at a time.",
    "concrete": True,
    "actionable": True,
}

DIAGNOSIS: dict[str, Any] = {
    "evidence": "The plan was followed.",
    "label": "execution",
    "confidence": 0.8,
    "planning": None,
    "execution": LESSON,
    "misleading": [],
}


class Killed(BaseException):
    """The process died here."""


class FakeLog:
    """A log in memory that can die before or after its nth append."""

    def __init__(self) -> None:
        self.run = RUN
        self.streams: dict[StreamId, list[Recorded]] = {}
        self.total = 0
        self.appends = 0
        #: which append dies, and whether before or after it is written
        self.dies: tuple[int, str] | None = None
        #: called before an append, to let somebody else be faster
        self.before: Callable[[StreamId, Version], Awaitable[None]] | None = None

    async def append(
        self, stream: StreamId, first: Version, drafts: Sequence[Draft], origin: Origin
    ) -> Appended | Taken:
        await anyio.lowlevel.checkpoint()
        if self.before is not None:
            meddle, self.before = self.before, None
            await meddle(stream, first)
        self.appends += 1
        if self.dies == (self.appends, "before"):
            raise Killed
        there = self.streams.setdefault(stream, [])
        if first > len(there) + 1:
            raise VersionGap(stream, len(there) + 1, first)
        for old, new in zip(there[first - 1 :], drafts, strict=False):
            if content_sha256(old.kind, old.data) != new.sha256:
                return Taken(stored=old)
        known = len(there) - first + 1
        if known < len(drafts) and (basis := origin.basis) is not None and basis.stream == stream:
            before = there[basis.version - 1]
            if content_sha256(before.kind, before.data) != basis.sha256:
                raise VersionGap(f"{stream}, made from {basis.version}", basis.version, 0)
        for draft in drafts[known:]:
            self.total += 1
            version = len(there) + 1
            there.append(
                recorded(
                    draft,
                    run=RUN,
                    stream=stream,
                    version=version,
                    position=self.total,
                    at="2026-01-01T00:00:00.000000Z",
                    cause=origin.cause,
                    attempt=origin.attempt,
                )
            )
        if self.dies == (self.appends, "after"):
            raise Killed
        positions = [one.position for one in there[first - 1 : first - 1 + len(drafts)]]
        return Appended(positions=positions, written=max(0, len(drafts) - known))

    async def read_stream(self, stream: StreamId) -> list[Recorded]:
        await anyio.lowlevel.checkpoint()
        return list(self.streams.get(stream, ()))

    async def read(self, after: Position, limit: int, kinds: frozenset[str] | None = None) -> list[Recorded]:
        raise NotImplementedError

    def pages(self, after: Position, kinds: frozenset[str] | None = None) -> AsyncIterator[list[Recorded]]:
        raise NotImplementedError

    async def wait(self, after: Position, timeout_s: float) -> bool:
        raise NotImplementedError

    async def index(self) -> dict[StreamId, StreamIndex]:
        return {
            stream: StreamIndex(positions=[one.position for one in there], last_kind=there[-1].kind)
            for stream, there in self.streams.items()
        }

    async def head(self) -> Position:
        return Position(self.total)

    def events(self, t: int = 0) -> list[AnyEvent]:
        return [decode(one) for one in self.streams.get(episode_stream(t), ())]

    def kinds(self, t: int = 0) -> list[str]:
        return [one.kind for one in self.streams.get(episode_stream(t), ())]

    def contents(self, t: int = 0) -> list[tuple[int, str, bytes]]:
        """What must not depend on who wrote it."""
        return [(one.version, one.kind, one.data) for one in self.streams.get(episode_stream(t), ())]


class FakeBlobs:
    """Bodies in memory."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    async def put(self, run: RunId, body: bytes) -> str:
        name = hashlib.sha256(body).hexdigest()
        self.bodies[name] = body
        return name

    async def put_many(self, run: RunId, bodies: Sequence[bytes]) -> list[str]:
        return [await self.put(run, body) for body in bodies]

    async def get(self, run: RunId, sha256: str) -> bytes:
        if sha256 not in self.bodies:
            raise MissingBlob(run, sha256, "not there")
        return self.bodies[sha256]

    async def hashes(self, run: RunId) -> list[str]:
        return sorted(self.bodies)

    async def delete(self, run: RunId, *, dry_run: bool = False) -> int:
        raise NotImplementedError


class ClockFake:
    """Time that moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def utc(self) -> str:
        return "2026-01-01T00:00:00.000000Z"

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await anyio.lowlevel.checkpoint()


def said(content: str = "", *, finish: str = "stop", reasoning: str = "") -> ChatAnswer:
    """An answer in text."""
    usage = TokenUsage(prompt_tokens=10, completion_tokens=5)
    return ChatAnswer(
        content=content, tool_calls=[], finish_reason=finish, usage=usage, model="fake", reasoning=reasoning
    )


def called(*calls: tuple[str, str], content: str = "", finish: str = "tool_calls") -> ChatAnswer:
    """An answer with tool calls (name, arguments as written), all under the same foreign id."""
    answer = said(content, finish=finish)
    return changed(answer, tool_calls=[ToolCall(id="call_0", name=name, arguments=text) for name, text in calls])


Reply = ChatAnswer | Exception


@dataclass
class FakeModel:
    """Answers by role from a list, the last of them for ever; remembers what it was asked, and answers a key once."""

    replies: dict[str, list[Reply]] = field(default_factory=dict)
    asked: list[tuple[ChatRequest, CallKey]] = field(default_factory=list)
    #: (key id, request) -> reply: what the call cache does
    cache: dict[tuple[str, str], ChatAnswer] = field(default_factory=dict)

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        await anyio.lowlevel.checkpoint()
        place = (key.id, json.dumps([request.messages, request.tools, request.schema], sort_keys=True))
        if place in self.cache:
            return self.cache[place]
        self.asked.append((request, key))
        replies = self.replies[request.role]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(reply, Exception):
            raise reply
        self.cache[place] = reply
        return reply

    def requests(self, role: str) -> list[ChatRequest]:
        return [request for request, _ in self.asked if request.role == role]


class FakeEmbedder:
    """Words hashed into a few dimensions; fails on a text that says so."""

    identity = EmbedderIdentity(fingerprint="fake", dimension=DIMENSION)

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def embed(self, texts: Sequence[str], side: str) -> list[Vector]:
        await anyio.lowlevel.checkpoint()
        if self.error is not None and side == "document":
            raise self.error
        return [vector_of(text) for text in texts]


def vector_of(text: str) -> Vector:
    """A unit vector that shares direction with texts of the same words."""
    components = [0.01] * DIMENSION
    for word in text.casefold().split():
        components[hashlib.sha256(word.encode()).digest()[0] % DIMENSION] += 1
    return fixed_point(components)


@dataclass
class FakeBanks:
    """One bank for all versions."""

    banks: Banks
    parameters: Parameters = field(default_factory=Parameters)
    current: int = 0
    read: list[tuple[Stage, int]] = field(default_factory=list)

    async def newest(self) -> BankVersion:
        return BankVersion(self.current)

    async def recall(self, stage: Stage, query: Query, version: BankVersion) -> Recalled:
        self.read.append((stage, version))
        candidates = recall(self.banks, (stage,), query.vector, self.parameters)
        chosen = [item for one in candidates if one.chosen and (item := self.banks.get(one.id)) is not None]
        return Recalled(candidates=candidates, chosen=chosen, source="exact")

    async def at(self, version: BankVersion) -> Banks:
        return self.banks

    async def items(self, ids: Sequence[MemoryId], version: BankVersion) -> list[Item]:
        return [item for one in ids if (item := self.banks.get(one)) is not None]


def bank_of(*memories: tuple[str, str, str]) -> Banks:
    """A bank of (id, scenario, experience)."""
    items = [
        SeededItem(
            bank="planning" if "planning" in name else "execution",
            id=MemoryId(name),
            scenario=scenario,
            experience=experience,
            delta_sum=0,
            n=0,
            bullets=0,
            sources=[0],
            seeded_sources=1,
            inserted_at=BankVersion(0),
            changed_at=BankVersion(0),
            scenario_vector=vector_of(scenario),
            experience_vectors=[vector_of(experience)],
        )
        for name, scenario, experience in memories
    ]
    return seed(Banks(), items)


OPENING = Opening(
    system="House rules.",
    messages=[{"role": "user", "content": "Switch on the light in the kitchen."}],
    tools=[TOOL],
)


@dataclass
class FakeSession:
    """Plays `world.steps`, one for each action."""

    world: "FakeEnvironment"

    async def reset(self, task: Task, episode_id: str, seed: int, options: Mapping[str, Any]) -> Opening:
        self.world.resets.append(dict(options))
        self._fail("reset")
        self.place = 0
        return self.world.opening

    async def step(self, action: Message) -> StepResult:
        await anyio.lowlevel.checkpoint()
        self.world.actions.append(action)
        self._fail("step")
        results = self.world.steps
        result = results[min(self.place, len(results) - 1)]
        self.place += 1
        return result

    async def evaluate(self) -> Evaluation:
        self._fail("evaluate")
        self.world.evaluated += 1
        return self.world.evaluation

    def _fail(self, op: str) -> None:
        failures = self.world.failures.get(op, [])
        if failures and (failure := failures.pop(0)) is not None:
            raise failure


@dataclass
class FakeEnvironment:
    """A benchmark of one task shape, with failures to come by operation."""

    opening: Opening = OPENING
    steps: list[StepResult] = field(default_factory=lambda: [StepResult(messages=[], done=True)])
    evaluation: Evaluation = field(default_factory=lambda: Evaluation(reward=1.0, success=True))
    failures: dict[str, list[Exception | None]] = field(default_factory=dict)
    resets: list[dict[str, Any]] = field(default_factory=list)
    actions: list[Message] = field(default_factory=list)
    evaluated: int = 0
    open_sessions: int = 0

    async def describe(self) -> Description:
        raise NotImplementedError

    async def tasks(self, domain: str | None = None, split: str | None = None) -> list[Task]:
        raise NotImplementedError

    @asynccontextmanager
    async def session(self) -> AsyncIterator[FakeSession]:
        self.open_sessions += 1
        try:
            yield FakeSession(self)
        finally:
            self.open_sessions -= 1

    async def aclose(self) -> None:
        return


def config_of(**changes: Any) -> RunConfig:
    """A header's configuration."""
    facts: dict[str, Any] = {
        "policy": PolicyConfig(name="credit", version=1, parameters={}),
        "lag": 2,
        "frozen": False,
        "concurrency": 1,
        "epochs": 1,
        "models": {},
        "environment": {},
        "protocol": {},
        "ordering": {},
        "limits": {},
        "agent": {},
    }
    return RunConfig(**{**facts, **changes})


@dataclass
class World:
    """Everything one run needs, ready to be changed before `context` is asked for."""

    log: FakeLog = field(default_factory=FakeLog)
    blobs: FakeBlobs = field(default_factory=FakeBlobs)
    model: FakeModel = field(default_factory=FakeModel)
    embedder: FakeEmbedder = field(default_factory=FakeEmbedder)
    banks: FakeBanks = field(default_factory=lambda: FakeBanks(Banks()))
    environment: FakeEnvironment = field(default_factory=FakeEnvironment)
    clock: ClockFake = field(default_factory=ClockFake)
    settings: EpisodeSettings = field(default_factory=EpisodeSettings)
    parameters: Parameters = field(default_factory=Parameters)
    tasks: list[Task] = field(default_factory=lambda: [Task(task_id="lights-1", domain="home")])
    config: dict[str, Any] = field(default_factory=dict)
    reflection: str = "credit"

    def __post_init__(self) -> None:
        self.model.replies = {
            "planner": [said("1. Switch on the kitchen light.")],
            "executor": [called(("set_light", '{"room": "kitchen", "on": true}'))],
            "gate": [said(json.dumps(DIAGNOSIS))],
        }

    def context(self) -> Context:
        return Context(
            config=config_of(**self.config),
            tasks=self.tasks,
            settings=self.settings,
            parameters=self.parameters,
            prompts=load_prompts(),
            planner=planners.load("single"),
            reflection=reflections.load(self.reflection),
            evaluator=Evaluator(name="fake", version="1"),
            log=self.log,
            blobs=self.blobs,
            model=self.model,
            embedder=self.embedder,
            banks=self.banks,
            environment=self.environment,
            clock=self.clock,
        )

    def job(self, kind: JobKind = "act", t: int = 0, attempt: int = 1) -> Job:
        return Job(kind=kind, run=RUN, episode=t, attempt=attempt)


@pytest.fixture
def world() -> World:
    """A run that goes well from end to end."""
    return World()


@pytest.fixture
def says() -> Callable[..., ChatAnswer]:
    """Make an answer in text."""
    return said


@pytest.fixture
def calls() -> Callable[..., ChatAnswer]:
    """Make an answer with tool calls."""
    return called


@pytest.fixture
def bank() -> Callable[..., Banks]:
    """Make a bank of (id, scenario, experience)."""
    return bank_of


@pytest.fixture
def diagnosis() -> dict[str, Any]:
    """A diagnosis as the gate's model should write it; a copy."""
    copy: dict[str, Any] = json.loads(json.dumps(DIAGNOSIS))
    return copy


@pytest.fixture
def killed() -> type[Killed]:
    """What a dying process raises."""
    return Killed
