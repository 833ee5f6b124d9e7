"""Whole runs in this process: what a run records, learns, and hands on, in every mode."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from events import policies
from events.codec import decode, decode_as
from events.errors import BadInput
from events.fold import replay
from events.ids import RUN_STREAM, RunId, episode_of
from events.kinds import Diagnosed, Executed, Folded, Noted, Operated, Retrieved, RunFinished, RunStarted, Scored
from events.log import Recorded
from events.operations import Merged, ValueUpdated
from infra.clock import SystemClock
from infra.list_log import ListLogStore
from runtime.errors import RunStopped
from runtime.ports import CallKey, ChatAnswer, ChatModel, ChatRequest, Job, TokenUsage, ToolCall
from runtime.settings import EpisodeSettings
from workers.engine import STOPPED
from workers.run_stream import tell

HOST = Path(__file__).parents[2] / "infra" / "environments" / "host.py"


def of_kind(events: Sequence[Recorded], kind: type[Any]) -> list[Any]:
    return [decode_as(one, kind) for one in events if one.kind == kind.KIND]


def digest_at(events: Sequence[Recorded], version: int) -> str:
    return next(one.digest for one in of_kind(events, Folded) if one.bank_version == version)


# -- modes -------------------------------------------------------------------------------------------------------------


async def test_epochs(world: Any, playing: Any):
    """A second epoch passes over the same tasks with the bank carried over, numbered on."""
    events = await world().play("r", playing.configured(epochs=2, lag=2), limit=5)
    started, *_ = of_kind(events, RunStarted)
    assert started.tasks_total == 5
    assert [one.episode for one in of_kind(events, Folded)] == list(range(10))
    queries = {
        episode_of(one.stream): decode_as(one, Retrieved).query.text
        for one in events
        if one.kind == "retrieved" and one.version == 1
    }
    assert all(queries[t] == queries[t + 5] for t in range(5))
    assert of_kind(events, RunFinished)[0].counts.episodes == 10
    recalled = {one.id for event in of_kind(events, Retrieved) for one in event.candidates}
    assert any(int(id_.rsplit("-", 1)[1]) < 5 for id_ in recalled)


async def test_latest_reads_the_newest(world: Any, playing: Any):
    """In `latest` mode the version read is the newest and recorded; the log is verified all the same."""
    events = await world().play("r", playing.configured(lag="latest", concurrency=3), limit=12)
    versions = [one.bank_version for one in of_kind(events, Retrieved)]
    assert max(versions) > 3
    assert of_kind(events, RunStarted)[0].config.lag == "latest"


async def test_latest_with_one_slow_episode(world: Any, playing: Any):
    """An episode that is much slower than the others still finds the version that it read."""
    there = world()
    others_ended = anyio.Event()

    class Slow:
        def __init__(self, model: ChatModel) -> None:
            self._model = model

        async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
            if key.stream == "episode-1" and key.stage == "gate":
                await others_ended.wait()
            return await self._model.complete(request, key)

    there.model = Slow(there.model)

    def counting(advance: Callable[[Job], Any]) -> Callable[[Job], Any]:
        async def handle(job: Job) -> None:
            await advance(job)
            if job.episode == 4 and job.kind == "diagnose":
                others_ended.set()

        return handle

    there.around = counting
    events = await there.play("r", playing.configured(lag="latest", concurrency=2), limit=12)
    assert not [one for one in of_kind(events, Diagnosed) if one.degraded]
    assert of_kind(events, RunFinished)[0].counts.abandoned == 0


async def test_rewriting_merges(world: Any, playing: Any):
    """With merge_text `rewrite` the gate proposes texts, and the fold uses those that still fit."""
    configuration = playing.configured(merge_text="rewrite", lag=4, concurrency=4)
    first = await world().play("r", configuration, limit=24)
    proposals = [one.merge_proposals for one in of_kind(first, Diagnosed)]
    assert any(one.planning or one.execution for one in proposals)
    hows = {op.how for one in of_kind(first, Folded) for op in one.operations if isinstance(op, Merged)}
    assert "rewritten" in hows
    other = world()
    second = await other.play("r", playing.configured(merge_text="rewrite", lag=4, concurrency=1), limit=24)
    assert playing.contents(first) == playing.contents(second)


async def test_frozen_runs_ask_no_gate(world: Any, playing: Any):
    """A frozen run reads version 0 throughout, asks no gate and ends with the bank that it began with."""
    there = world()
    events = await there.play("r", playing.configured(), limit=6, frozen=True)
    assert {one.degraded for one in of_kind(events, Diagnosed)} == {"frozen"}
    assert {one.bank_version for one in of_kind(events, Retrieved)} == {0}
    assert all(one.operations == [] for one in of_kind(events, Folded))
    assert not [one for one in there.model.paid if "/gate/" in one]


@pytest.mark.parametrize("frozen", [False, True])
async def test_transfer(world: Any, playing: Any, frozen: bool):
    """A run that begins with another's bank at a version reads that bank as its version 0."""
    there = world()
    origin = await there.play("origin", playing.configured(), limit=12)
    events = await there.play("r", playing.configured(), limit=8, frozen=frozen, seed_bank="origin@8")
    started = of_kind(events, RunStarted)[0]
    assert (started.seed_bank.run, started.seed_bank.version) == ("origin", 8)
    assert started.seed_bank.digest == digest_at(origin, 8)
    seeds = replay(one for one in events if one.stream == RUN_STREAM).banks
    there_then = replay(one for one in origin if one.kind != "folded" or one.version <= 8).banks
    assert [one.id for one in seeds] == [f"origin.{one.id}" for one in there_then]
    assert {(one.experience, one.delta_sum, one.n) for one in seeds} == {
        (one.experience, one.delta_sum, one.n) for one in there_then
    }
    first = next(one for one in of_kind(events, Retrieved) if one.candidates)
    assert all(one.id.startswith("origin.") for one in first.candidates)
    if frozen:
        assert len(set(playing.digests(events))) == 1
    else:
        used = {op.id for one in of_kind(events, Folded) for op in one.operations if isinstance(op, ValueUpdated)}
        assert any(id_.startswith("origin.") for id_ in used)


async def test_transfer_of_a_transfer_keeps_the_origin(world: Any, playing: Any):
    """An id that has an origin keeps it through a second transfer."""
    there = world()
    await there.play("one", playing.configured(), limit=6)
    await there.play("two", playing.configured(), limit=4, seed_bank="one@100%")
    with pytest.raises(BadInput, match=r"^--seed-bank two@999: the newest bank version of this run is 4"):
        await there.head(playing.configured(), limit=4, seed_bank="two@999")
    made = await there.head(playing.configured(), limit=4, seed_bank="two")
    origins = {item.id.split(".")[0] for event in made.head.seeded for item in event.items}
    assert "one" in origins
    assert origins <= {"one", "two"}


async def test_another_embedder_refuses_the_bank(world: Any, playing: Any, made_run: Any):
    """A bank of vectors of another embedder is no seed."""
    there = world()

    async def pages() -> Any:
        yield made_run("other").events

    await there.store.restore(RunId("other"), pages())
    with pytest.raises(BadInput, match="was embedded with made"):
        await there.head(playing.configured(), limit=4, seed_bank="other@2")


async def test_limits(world: Any, playing: Any):
    """The step limit of the configuration reaches the environment, and what was cut short is scored."""
    settings = EpisodeSettings(max_steps=1)
    events = await world().play("r", playing.configured(episode=settings), limit=3)
    assert [one.steps for one in of_kind(events, Executed)] == [1, 1, 1]
    assert [one.stop for one in of_kind(events, Executed)] == ["max_steps"] * 3
    assert not any(one.success for one in of_kind(events, Scored))


@pytest.mark.parametrize("policy", policies.names())
async def test_every_policy_runs_and_verifies(world: Any, playing: Any, policy: str):
    """A run under another policy ends, verifies, and does not depend on timing either."""
    first = await world().play("r", playing.configured(policy=policy, concurrency=1), limit=8)
    second = await world().play("r", playing.configured(policy=policy, concurrency=8), limit=8)
    assert playing.contents(first) == playing.contents(second)


# -- stopping and going on ---------------------------------------------------------------------------------------------


class Refusing:
    """A model whose key is refused after some calls, until somebody sets another one."""

    def __init__(self, model: ChatModel, calls: int) -> None:
        self._model, self.left = model, calls

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        if self.left <= 0:
            raise RunStopped("key", "the key is refused")
        self.left -= 1
        return await self._model.complete(request, key)


async def test_stopped_and_resumed(world: Any, playing: Any):
    """A key that is refused stops the run with one note; once resumed it ends as if nothing had been."""
    undisturbed = await world().play("r", playing.configured(), limit=10)
    there = world()
    there.model = Refusing(there.model, 23)
    log = await there.begin("r", playing.configured(), limit=10)
    assert await there.drive("r") == ["stopped"]
    notes = [decode_as(one, Noted) for one in await log.read_stream(RUN_STREAM) if one.kind == "noted"]
    assert [(one.topic, one.facts["reason"]) for one in notes] == [(STOPPED, "the key is refused")]
    there.model.left = 10_000
    assert await there.drive("r") == ["stopped"], "nobody has resumed it"
    await tell(log, Operated(action="resume", target="r", author="me", reason=""))
    assert await there.drive("r") == ["finished"]
    assert playing.contents(await there.recorded("r")) == playing.contents(undisturbed)


async def test_cancelled_in_the_middle(world: Any, playing: Any):
    """After a cancel the open episodes end and are folded, no other begins, and the run is finished as stopped."""
    there = world()
    log = await there.begin("r", playing.configured(concurrency=2), limit=20)

    def cancelling(advance: Callable[[Job], Any]) -> Callable[[Job], Any]:
        async def handle(job: Job) -> None:
            await advance(job)
            if (job.kind, job.episode) == ("act", 4):
                await tell(log, Operated(action="cancel", target="r", author="me", reason="enough"))

        return handle

    there.around = cancelling
    assert await there.drive("r") == ["finished"]
    events = await there.recorded("r")
    finish = of_kind(events, RunFinished)[0]
    assert finish.outcome == "stopped"
    assert finish.counts.episodes == finish.counts.diagnosed == finish.counts.folded < 20


# -- environments of other kinds ---------------------------------------------------------------------------------------


CHAIN = '''
"""Three tasks in a chain: each is told what the one before left behind."""


class Chain:
    def describe(self):
        return {"env": "chain", "version": "1", "domains": {"d": 3}}

    def tasks(self, domain, split):
        return [
            {"task_id": "a", "domain": "d", "preparatory": True},
            {"task_id": "b", "domain": "d", "depends_on": ["a"], "preparatory": True},
            {"task_id": "c", "domain": "d", "depends_on": ["a", "b"]},
            {"task_id": "z", "domain": "d"},
        ]

    def reset(self, episode_id, domain, task_id, seed, options):
        self.task, self.told = task_id, options.get("artifacts")
        return {"system": "", "messages": [{"role": "user", "content": f"task {task_id}"}], "tools": [],
                "mode": "answer"}

    def step(self, action):
        return {"messages": [], "done": True, "terminated_by": "answered", "steps": 1}

    def evaluate(self):
        left = {"by": self.task, "told": sorted(self.told or {})}
        return {"reward": 1.0, "success": True, "breakdown": {"told": self.told or {}}, "artifact": left}
'''

DIAGNOSIS = {
    "label": "both", "confidence": 0.9, "evidence": "It was.", "misleading": [],
    "planning": {"scenario": "A task of a chain is to be done.", "concrete": True, "actionable": True,
                 "experience": "Do what the task before it has prepared, and nothing else."},
    "execution": None,
}  # fmt: skip


class Plain:
    """A model with one plan, one act and one diagnosis."""

    def __init__(self, act: str = "", arguments: str = "{}") -> None:
        self._act, self._arguments = act, arguments

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        calls = []
        content = {"planner": "1. Do it.", "executor": "done", "gate": json.dumps(DIAGNOSIS)}[request.role]
        if request.role == "executor" and self._act:
            content, calls = "", [ToolCall(id="call-1", name=self._act, arguments=self._arguments)]
        return ChatAnswer(content=content, tool_calls=calls, finish_reason="stop", usage=TokenUsage(), model="plain")


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the chain as an environment of this process."""
    (tmp_path / "made_up_chain.py").write_text(CHAIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "made_up_chain", raising=False)
    return "made_up_chain:Chain"


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_preparatory_tasks_hand_on_what_they_left(world: Any, playing: Any, chain: str, concurrency: int):
    """A task begins after those it depends on, in its own epoch, is told their artifacts, and they teach nothing."""
    there = world(Plain())
    events = await there.play("r", playing.configured(concurrency=concurrency, lag=8, epochs=2), environment=chain)
    config = of_kind(events, RunStarted)[0].config
    assert config.preparatory == ["a", "b"]
    assert config.depends_on == {"b": ["a"], "c": ["a", "b"]}
    tasks = of_kind(events, RunStarted)[0].tasks
    scored = {
        (t // len(tasks), tasks[t % len(tasks)]): decode_as(one, Scored)
        for one in events
        if one.kind == "scored" and (t := episode_of(one.stream)) is not None
    }
    for epoch in (0, 1):
        assert scored[epoch, "b"].breakdown["told"] == {"a": {"by": "a", "told": []}}
        assert scored[epoch, "c"].breakdown["told"]["b"] == {"by": "b", "told": ["a"]}
        assert scored[epoch, "z"].breakdown["told"] == {}
    reasons = {
        tasks[t % len(tasks)]: decode_as(one, Diagnosed).degraded
        for one in events
        if one.kind == "diagnosed" and (t := episode_of(one.stream)) is not None
    }
    assert reasons == {"a": "unscored", "b": "unscored", "c": None, "z": None}


CRASH = """
import os


class Crash:
    def describe(self):
        return {"protocol": 1, "env": "crash", "version": "1", "domains": {"d": 2}}

    def tasks(self, domain=None, split=None):
        return [{"task_id": name, "domain": "d"} for name in ("crashes", "works")]

    def reset(self, episode_id, domain, task_id, seed=0, options=None):
        self.task = task_id
        return {"system": "", "messages": [{"role": "user", "content": f"task {task_id}"}], "tools": [],
                "mode": "answer"}

    def step(self, action):
        if self.task == "crashes":
            os._exit(7)
        return {"messages": [], "done": True, "terminated_by": "answered", "steps": 1}

    def evaluate(self):
        return {"reward": 1.0, "success": True, "breakdown": {}}
"""


async def test_a_crashing_environment_is_not_blamed_on_the_agent(world: Any, playing: Any, tmp_path: Path):
    """A crash is recorded with its attempts, has no valid score, is judged by nobody, and the others go on."""
    (tmp_path / "crash.py").write_text(CRASH)
    there = world(Plain())
    events = await there.play(
        "r", playing.configured(), environment=f"cmd:{sys.executable} {HOST} {tmp_path / 'crash.py'}:Crash"
    )
    crashed, worked = ({one.kind: decode(one) for one in events if one.stream == f"episode-{t}"} for t in (0, 1))
    assert of_kind(events, RunStarted)[0].tasks == ["crashes", "works"]
    assert crashed["executed"].stop == "env_crashed"
    assert [one.attempt for one in crashed["executed"].attempts] == [1, 2]
    assert crashed["scored"].breakdown["valid"] is False
    assert crashed["diagnosed"].degraded == "environment"
    assert worked["scored"].success
    assert worked["diagnosed"].degraded is None
    assert [bool(one.operations) for one in of_kind(events, Folded)] == [False, True]


async def test_two_runs_share_workers(world: Any, playing: Any):
    """Two runs of one store, driven together, give what each gives alone."""
    alone = {
        "a": await world().play("a", playing.configured(), limit=6),
        "b": await world().play("b", playing.configured(policy="outcome"), limit=6),
    }
    there = world(store=ListLogStore(SystemClock()))
    await there.begin("a", playing.configured(), limit=6)
    await there.begin("b", playing.configured(policy="outcome"), limit=6)
    assert await there.drive("a", "b") == ["finished", "finished"]
    for run, events in alone.items():
        assert playing.contents(await there.recorded(run)) == playing.contents(events)
