"""The head of a run: begun once, gone on with where it was cut short, compared where somebody begins it again."""

from typing import Any

import pytest
from msgspec.structs import replace

from events.codec import draft
from events.errors import BadInput, UnreadableEvent
from events.fold import replay
from events.ids import RUN_STREAM, RunId, Version
from events.kinds import Noted, Operated, RunConfig, RunStarted, SeedBank, TasksListed
from events.seeding import seed_items
from infra.clock import SystemClock
from infra.list_log import ListLog
from runtime.ports import Origin
from workers.header import Head, begin, differences, head, recorded_head
from workers.run_stream import tell


@pytest.fixture
def started(made_run: Any) -> RunStarted:
    """The header of a made run of six tasks."""
    made: RunStarted = replay(made_run().events).begun()
    return made


def of(started: RunStarted, tasks: list[str] | None = None, **changes: Any) -> Head:
    config = replace(started.config, **changes)
    return head(config, tasks or started.tasks, started.prompts, started.embedder)


def new_log() -> ListLog:
    return ListLog(RunId("r"), SystemClock())


async def kinds(log: ListLog) -> list[str]:
    return [one.kind for one in await log.read_stream(RUN_STREAM)]


async def test_begun_twice(started: RunStarted):
    """The same head again is harmless and says that the run is not new."""
    log = new_log()
    assert await begin(log, of(started))
    assert not await begin(log, of(started))
    await tell(log, Noted(topic="x", facts={}))
    assert not await begin(log, of(started))
    assert await kinds(log) == ["run_started", "noted"]


async def test_long_task_lists_are_split(started: RunStarted):
    """A list over the size of an event goes on in further ones, directly after the first, and reads back whole."""
    tasks = [f"task-{'x' * 200}-{n}" for n in range(3000)]
    made, log = of(started, tasks), new_log()
    assert await begin(log, made)
    found = await kinds(log)
    assert found == ["run_started", *["tasks_listed"] * (len(found) - 1)]
    assert len(found) > 3
    assert list((await recorded_head(log)).tasks) == tasks
    assert made.started.tasks_total == 3000


@pytest.mark.parametrize("kept", [1, 2, 3])
async def test_a_start_cut_short_goes_on(started: RunStarted, kept: int):
    """What was not written of a head is written by the next start, even with other slots."""
    tasks = [f"task-{'x' * 200}-{n}" for n in range(3000)]
    whole, log = of(started, tasks), new_log()
    for place, event in enumerate([whole.started, *whole.listed][:kept], 1):
        await log.append(RUN_STREAM, Version(place), [draft(event)], Origin(cause=None))
    assert not (await recorded_head(log)).is_whole
    assert not await begin(log, of(started, tasks, operational={"slots": 3}))
    there = await recorded_head(log)
    assert list(there.tasks) == tasks
    assert there.is_whole


async def test_what_came_between_is_not_written_over(started: RunStarted):
    """A head that was cut short and followed by something else cannot be completed, and says so."""
    whole, log = of(started, [f"task-{'x' * 200}-{n}" for n in range(3000)]), new_log()
    await log.append(RUN_STREAM, Version(1), [draft(whole.started)], Origin(cause=None))
    await tell(log, Operated(action="cancel", target="r", author="me", reason=""))
    with pytest.raises(BadInput, match="cut short"):
        await begin(log, whole)
    assert await kinds(log) == ["run_started", "operated"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lag": 7}, "lag: 1 -> 7"),
        ({"epochs": 2}, "epochs: 1 -> 2"),
        ({"environment": {"name": "toy", "version": "2"}}, "environment.version: 1 -> 2"),
        ({"models": {"planner": {"model": "other"}}}, "models.planner.model: made-model -> other"),
        ({"frozen": True}, "frozen: False -> True"),
    ],
)
async def test_semantic_differences_are_refused(started: RunStarted, changes: dict[str, Any], said: str):
    """Another meaning under the same name is refused with the difference; nothing is written."""
    log = new_log()
    await begin(log, of(started))
    with pytest.raises(BadInput, match=r"run r exists with another configuration") as refused:
        await begin(log, of(started, **changes))
    assert said in str(refused.value)
    assert await kinds(log) == ["run_started"]


async def test_operational_differences_are_not(started: RunStarted):
    """Addresses, slots, limits and labels may differ."""
    log = new_log()
    await begin(log, of(started))
    assert not await begin(log, of(started, operational={"slots": 2}, limits={"max_steps": 5}, labels=["x"]))


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (["task-0", "other", *[f"task-{t}" for t in range(2, 6)]], "first at 1: task-1 -> other"),
        ([f"task-{t}" for t in range(7)], "6 -> 7"),
        ([f"task-{t}" for t in range(5)], "6 -> 5"),
    ],
)
async def test_another_task_list_is_refused(started: RunStarted, tasks: list[str], said: str):
    """A task list that changed is refused and says where."""
    log = new_log()
    await begin(log, of(started))
    with pytest.raises(BadInput, match="the list changed") as refused:
        await begin(log, of(started, tasks))
    assert said in str(refused.value)


async def test_seeds(made_run: Any, started: RunStarted):
    """Items of a seed bank come with the head; the header counts them and the log's version 0 holds them."""
    items = seed_items(made_run().banks, RunId("made"))
    bank = SeedBank(run="made", version=6, digest="0" * 64)
    made = head(started.config, started.tasks, started.prompts, started.embedder, bank, items)
    log = new_log()
    assert await begin(log, made)
    assert not await begin(log, made)
    assert made.is_whole
    state = replay([one async for page in log.pages(0) for one in page])
    assert [item.id for item in state.banks] == [item.id for item in items]
    assert state.banks.version == 0
    there = (await recorded_head(log)).started.seed_bank
    assert there == replace(bank, items=len(items))
    changed = [replace(items[0], n=items[0].n + 1), *items[1:]]
    other = head(started.config, started.tasks, started.prompts, started.embedder, bank, changed)
    with pytest.raises(BadInput, match="seed"):
        await begin(log, other)


def test_tasks_are_there_and_differ(started: RunStarted):
    """A run without tasks, or with one twice, is refused."""
    config: RunConfig = started.config
    with pytest.raises(BadInput, match="at least one task"):
        head(config, [], {}, started.embedder)
    with pytest.raises(BadInput, match="twice"):
        head(config, ["a", "a"], {}, started.embedder)


async def test_no_head(started: RunStarted):
    """A run that does not exist, and a log that begins with something else, are told apart."""
    with pytest.raises(BadInput, match="no run r"):
        await recorded_head(new_log())
    log = new_log()
    await tell(log, TasksListed(tasks=["a"]))
    with pytest.raises(UnreadableEvent, match="run_started"):
        await recorded_head(log)


def test_equal_heads_do_not_differ(started: RunStarted):
    """The code's own version is no difference."""
    there = of(started)
    assert differences(Head(started=replace(there.started, code="0.0.0")), there) == []
