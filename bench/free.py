"""What an episode asks of the world, at no cost: a model with answers ready, an environment of one step, known vectors.

What is measured around it is ours: jobs, appends, reads, recalls, folds, prompts, records of calls, log lines.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from typing_extensions import override

from bench.measure import TINY, share_asked
from events.codec import draft
from events.ids import BankVersion, RunId, Stage, Version, episode_stream, run_id
from events.kinds import (
    Diagnosed,
    EmbedderIdentity,
    Evaluator,
    Executed,
    MergeProposals,
    Planned,
    Query,
    Retrieved,
    RetrievedIds,
    Scored,
    StageExperiences,
    Usage,
)
from events.log import Draft
from events.vectors import Vector, fixed_point
from infra import embedders, environments
from infra.clock import SystemClock
from infra.rq_queue import RqQueue
from runtime.ports import CallKey, ChatAnswer, ChatModel, ChatRequest, Clock, Job, Origin, Side, TokenUsage
from runtime.settings import IntakeSettings
from workers import driving, jobs
from workers.configuration import Configuration, ModelDefaults, RunSettings
from workers.connections import Server, connections
from workers.coordinator import RunView
from workers.driving import Hands, drive, grounded, hands
from workers.engine import Engine
from workers.header import begin
from workers.starting import Choice, beginning

#: of one epoch; fewer where a measurement only shows that it works
TASKS = 50 if share_asked() >= TINY else 5
ENVIRONMENT = "bench.free:Free"
#: 1 KB, as the payloads of those we are measured beside
_TEXT = ("first look at the order, then check what it allows, then change it; " * 15)[:1000]

#: waits where a model would think
Pause = Callable[[ChatRequest, CallKey], Awaitable[None]]


class Free:
    """An environment whose tasks end with the agent's first message."""

    async def describe(self) -> dict[str, Any]:
        return {"env": "free", "version": "1", "domains": {"free": TASKS}, "concurrent": True}

    async def tasks(self, domain: str | None, split: str | None) -> list[dict[str, Any]]:
        del domain, split
        return [{"task_id": f"free-{t}", "domain": "free"} for t in range(TASKS)]

    async def reset(self, episode: str, domain: str, task: str, seed: int, options: Mapping[str, Any]) -> Any:
        del episode, domain, seed, options
        return {"system": "", "messages": [{"role": "user", "content": f"{task}: {_TEXT[:300]}"}], "tools": []}

    async def step(self, action: Mapping[str, Any]) -> Any:
        del action
        return {"messages": [], "done": True, "steps": 1}

    async def evaluate(self) -> Any:
        return {"reward": 1.0, "success": True}


class FreeModel:
    """Answers at once, or after `pause`."""

    def __init__(self, pause: Pause | None = None) -> None:
        self._pause = pause

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        """As `runtime.ports.ChatModel.complete`."""
        if self._pause is not None:
            await self._pause(request, key)
        # Its task decides what an episode learns: later ones find it known, as in a run that has gone on for a while.
        kind = int(key.stream.rpartition("-")[2]) % TASKS
        content = _judgement(kind) if request.role == "gate" else f"{kind}: {_TEXT}"
        return ChatAnswer(
            content=content, tool_calls=[], finish_reason="stop", model="free",
            usage=TokenUsage(prompt_tokens=1000, completion_tokens=250),
        )  # fmt: skip


def _judgement(kind: int) -> str:
    lesson = {
        "scenario": f"tasks of kind {kind}, where something was ordered and is to be changed",
        "experience": f"what helped with kind {kind}: read the order before you change it, then check it again",
        "concrete": True, "actionable": True,
    }  # fmt: skip
    return json.dumps(
        {"label": "both", "confidence": 0.8, "misleading": [], "planning": lesson, "execution": lesson, "why": _TEXT}
    )


class FreeEmbedder:
    """Vectors that were made before, one for each kind of text. Implements `runtime.ports.Embedder`."""

    def __init__(self, identity: EmbedderIdentity) -> None:
        self.identity = identity
        rng = np.random.default_rng(3)
        common = rng.normal(size=identity.dimension)
        self._pool = [fixed_point(common + 0.8 * rng.normal(size=identity.dimension)) for _ in range(2 * TASKS)]

    async def embed(self, texts: Sequence[str], side: Side) -> list[Vector]:
        """As `runtime.ports.Embedder.embed`."""
        del side
        return [self._pool[int.from_bytes(sha256(text.encode()).digest()[:4]) % len(self._pool)] for text in texts]


class FreeEngine(Engine):
    """The product's engine with these in place of what costs."""

    pause: Pause | None = None

    @override
    def _asking(self, *_: object) -> ChatModel:
        return FreeModel(self.pause)

    @override
    async def _built(self, *asked: Any) -> Any:
        built = await super()._built(*asked)
        embedder = FreeEmbedder(built.context.embedder.identity)
        return replace(built, context=replace(built.context, embedder=embedder))


class HoldingEngine(FreeEngine):
    """An engine whose executor never gets an answer: every episode stays where it holds most."""

    @staticmethod
    @override
    async def pause(request: ChatRequest, key: CallKey) -> None:
        if request.role == "executor":
            await anyio.sleep_forever()


class BareEngine(Engine):
    """An episode's six events of 1 KB and nothing else: no prompts, records of calls or log lines, nothing learnt."""

    @override
    async def advance(self, job: Job) -> None:
        """Append what the job is about."""
        log, stream = self._there.store.open(job.run), episode_stream(job.episode)
        steps = _ACT if job.kind == "act" else _DIAGNOSE
        for first, drafts in steps:
            await log.append(stream, Version(first), drafts, Origin(cause=None, attempt=job.attempt))


def _bare(dimension: int) -> tuple[list[tuple[int, list[Draft]]], list[tuple[int, list[Draft]]]]:
    vector = fixed_point(np.ones(dimension))
    usage = Usage(prompt_tokens=1000, completion_tokens=250, calls=1)

    def retrieved(stage: Stage) -> Draft:
        return draft(
            Retrieved(stage=stage, bank_version=BankVersion(0), query=Query(text=_TEXT, vector=vector), candidates=[],
                      source="exact")
        )  # fmt: skip

    executed = Executed(trajectory="0" * 64, steps=1, errors=0, stop="done", attempts=[], usage=usage,
                        calls=[f"call {one}: {_TEXT[:80]}" for one in range(10)])  # fmt: skip
    scored = Scored(success=True, reward=1.0, evaluator=Evaluator(name="free", version="1"), breakdown={"why": _TEXT})
    diagnosed = Diagnosed(
        success=True, label="none", confidence_e4=8000, retrieved=RetrievedIds(planning=[], execution=[]),
        misleading=[], misleading_dropped=0, experiences=StageExperiences(), merge_proposals=MergeProposals(),
        degraded=None, usage=usage, calls=[f"call {one}: {_TEXT[:80]}" for one in range(10)],
    )  # fmt: skip
    act = [
        (1, [retrieved("planning")]),
        (2, [draft(Planned(plan=_TEXT, usage=usage, calls=[])), retrieved("execution")]),
        (4, [draft(executed), draft(scored)]),
    ]
    return act, [(6, [draft(diagnosed)])]


_ACT, _DIAGNOSE = _bare(embedders.load("hash").identity.dimension)


@asynccontextmanager
async def _free_engine(
    there: Server, home: Path, keys: Mapping[str, str], clock: Clock, hosts: int, *, made: type[Engine]
) -> AsyncIterator[Engine]:
    async with AsyncExitStack() as stack:
        yield made(there, home, keys, clock, hosts, stack)


def freed(made: type[Engine] = FreeEngine) -> None:
    """Let every engine of this process be a free one: for a process that does nothing else."""
    driving.engine = jobs.engine = partial(_free_engine, made=made)  # type: ignore[attr-defined]


def configuration(concurrency: int = 16, epochs: int = 1) -> Configuration:
    """Of a run with lag 32."""
    return Configuration(
        models=ModelDefaults(model="free", base_url="http://127.0.0.1:9/v1"),
        run=RunSettings(concurrency=concurrency, lag=2 * concurrency, epochs=epochs),
    )


async def begun(there: Server, home: Path, name: str, episodes: int, concurrency: int = 16) -> RunId:
    """A new run of at least `episodes` free episodes; how many it has is a multiple of the tasks."""
    made = configuration(concurrency, epochs=-(-episodes // TASKS))
    environment = environments.load(ENVIRONMENT, home)
    start = await beginning(made, Choice(environment=ENVIRONMENT), environment, there)
    run = run_id(name)
    await start.prompts.store(there.blobs, run)
    await begin(there.store.open(run), start.head)
    return run


@asynccontextmanager
async def served(url: str, home: Path, prefix: str = "chime") -> AsyncIterator[Server]:
    """The server at `url` with everything of ours on it."""
    async with connections(home, url, prefix, SystemClock()) as there:
        yield there


async def played(there: Server, home: Path, runs: Sequence[RunId], slots: int = 16) -> None:
    """`runs` from where they are to their end, all in this process. Call `freed` before."""
    async with hands(there, home, {}, SystemClock(), Hands(slots=slots, in_process=True, hosts=slots), None) as ground:
        await drive(there, ground, runs, _unseen)


async def queued(there: Server, runs: Sequence[RunId]) -> None:
    """`runs` from where they are to their end, by workers that run already; this process coordinates."""
    async with RqQueue(there.url, there.prefix) as rq:
        await drive(there, grounded(there, rq, SystemClock(), IntakeSettings()), runs, _unseen)


def _unseen(run: RunId, view: RunView) -> None:
    """Nobody watches."""
