"""What a worker process knows of runs: whose jobs it takes, when it stops one, and what a resume changes."""

from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from events.codec import decode, decode_as, draft
from events.errors import BadInput
from events.ids import RUN_STREAM, RunId, Version
from events.kinds import Executed, Noted, Operated, RunStarted
from infra.clock import SystemClock
from infra.environments.in_process import InProcessEnvironment
from infra.environments.toy import Toy
from infra.list_log import ListLog
from runtime.errors import NotServed, RunStopped
from runtime.ports import Job, Origin
from workers.engine import OPERATIONAL, STOPPED, Engine, listed_tasks, note_stopped, operational_of
from workers.run_stream import tell

RESUME = Operated(action="resume", target="r", author="me", reason="")


@pytest.fixture
async def begun(made_run: Any) -> ListLog:
    """A log with a head."""
    log = ListLog(RunId("r"), SystemClock())
    await log.append(RUN_STREAM, Version(1), [draft(decode(made_run().events[0]))], Origin(cause=None))
    return log


async def notes(log: ListLog) -> list[Noted]:
    return [decode_as(one, Noted) for one in await log.read_stream(RUN_STREAM) if one.kind == "noted"]


async def test_a_stop_is_noted_once_until_resumed(begun: ListLog):
    """Many workers that find an endpoint unusable leave one note, and another one after a resume."""
    stopped = RunStopped("key", "no such key")
    async with anyio.create_task_group() as workers:
        for _ in range(5):
            workers.start_soon(note_stopped, begun, stopped)
    assert [(one.topic, one.facts) for one in await notes(begun)] == [
        (STOPPED, {"kind": "key", "reason": "no such key"})
    ]
    await tell(begun, RESUME)
    await note_stopped(begun, stopped)
    await note_stopped(begun, stopped)
    assert [one.topic for one in await notes(begun)] == [STOPPED, STOPPED]


async def test_operational_of_the_last_resume(begun: ListLog, made_run: Any):
    """What the header says is overlaid by what each resume said, in order."""
    header = replace(decode_as(made_run().events[0], RunStarted))
    header = replace(header, config=replace(header.config, operational={"slots": 1, "endpoints": {"gate": "a"}}))
    assert await operational_of(begun, header) == {"slots": 1, "endpoints": {"gate": "a"}}
    await tell(begun, Noted(topic=OPERATIONAL, facts={"slots": 2}))
    await tell(begun, Noted(topic="other", facts={"slots": 9}))
    await tell(begun, Noted(topic=OPERATIONAL, facts={"limits": {"max_steps": 3}}))
    assert await operational_of(begun, header) == {
        "slots": 2, "endpoints": {"gate": "a"}, "limits": {"max_steps": 3},
    }  # fmt: skip


async def test_limits_of_a_resume_are_played_with(world: Any, playing: Any):
    """A limit that a resume has changed holds for the episodes that follow."""
    there = world()
    log = await there.begin("r", playing.configured(), limit=2)
    await tell(log, Noted(topic=OPERATIONAL, facts={"limits": {"max_steps": 1}}))
    assert await there.drive("r") == ["finished"]
    events = await there.recorded("r")
    assert [decode_as(one, Executed).steps for one in events if one.kind == "executed"] == [1, 1]


@pytest.mark.parametrize("what", ["fold", "embedder", "environment", "tasks"])
async def test_runs_that_it_cannot_serve(world: Any, playing: Any, what: str):
    """A run of other code, another embedder, an environment or task that is not here, is left to others, untouched."""
    there = world()
    started = (await there.head(playing.configured(), limit=2)).head.started
    config = started.config
    other = {
        "fold": replace(started, config=replace(config, fold_version=99)),
        "embedder": replace(started, embedder=replace(started.embedder, fingerprint="another")),
        "environment": replace(started, config=replace(config, environment={**config.environment, "name": "none"})),
        "tasks": replace(started, tasks=["gone", "warehouse-frozen-0"]),
    }[what]
    log = there.log("r")
    await log.append(RUN_STREAM, Version(1), [draft(other)], Origin(cause=None))
    async with AsyncExitStack() as stack:
        engine = Engine(there.store, there.blobs, there.calls, there.home, {}, there.clock, 1, stack)
        with pytest.raises(NotServed, match="run r:"):
            await engine.advance(Job(kind="act", run=RunId("r"), episode=0))
    assert await log.head() == 1


async def test_tasks_that_are_gone():
    """A task list that changed names the first task that is missing, and how many are."""
    environment = InProcessEnvironment(Toy)
    chosen = {"name": "toy", "domains": ["shop"]}
    found = await listed_tasks(environment, chosen, ("shop-gift-1", "shop-gift-0"))
    assert [one.task_id for one in found] == ["shop-gift-1", "shop-gift-0"]
    with pytest.raises(BadInput, match=r"toy has no task 'warehouse-bulk-0' any more \(1 of 2 are missing\)"):
        await listed_tasks(environment, chosen, ("shop-gift-1", "warehouse-bulk-0"))
