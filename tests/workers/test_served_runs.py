"""What a worker process keeps of a run it serves, where the server loses some of it."""

from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from events.errors import VersionGap
from events.ids import RunId, StreamId, episode_stream
from infra.banks.replica import Replica
from infra.list_log import ListLog
from runtime.ports import Job
from workers.engine import Engine


@pytest.mark.parametrize("where", ["length", "read"])
async def test_what_was_read_before_a_loss_is_dropped_for_all(
    world: Any, playing: Any, monkeypatch: pytest.MonkeyPatch, where: str
):
    """A job that finds the log shorter than it was drops what was derived, while another one takes that over."""
    there, run, lost, beside = world(), RunId("r"), anyio.Event(), anyio.Event()
    append, look, built = ListLog.append, getattr(ListLog, where), []

    async def appended(self: ListLog, stream: StreamId, *given: Any) -> Any:
        if stream == episode_stream(0) and not lost.is_set():
            lost.set()
            await beside.wait()
            raise VersionGap("append to r/episode-0", 1, 2)
        return await append(self, stream, *given)

    async def looked(self: ListLog, *given: Any) -> Any:
        if lost.is_set() and not beside.is_set():
            beside.set()
            await anyio.wait_all_tasks_blocked()
        return await look(self, *given)

    def replica(*given: Any, **options: Any) -> Replica:
        built.append(given)
        return Replica(*given, **options)

    monkeypatch.setattr("workers.engine._LOOK_S", 0.0)
    monkeypatch.setattr("workers.engine.Replica", replica)
    configuration = playing.configured()
    await there.begin("r", replace(configuration, models=replace(configuration.models, retries=0)), limit=2)
    monkeypatch.setattr(ListLog, "append", appended)
    monkeypatch.setattr(ListLog, where, looked)
    async with AsyncExitStack() as stack:
        working = Engine(there.server(), there.home, {}, there.clock, 1, stack)
        async with anyio.create_task_group() as jobs:
            jobs.start_soon(working.advance, Job(kind="act", run=run, episode=0))
            await lost.wait()
            jobs.start_soon(working.advance, Job(kind="act", run=run, episode=1))
    assert await there.log("r").length(episode_stream(0)) > 0
    assert len(built) == 2, "one before the loss, one after it"
