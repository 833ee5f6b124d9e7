"""Runs at an endpoint that refuses what others take: played to their end, and learnt from once."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from answering_endpoint import answering
from looked_up_logs import LookedUpLogs
from msgspec.structs import replace as changed
from scripted_endpoint import Request, Scripted, completion, failed

from events.codec import decode
from events.ids import RUN_STREAM, RunId
from events.kinds import Diagnosed, Noted, RunFinished
from infra.calls import calls_of
from infra.local_queue import LocalQueue
from infra.rehearsal import MODEL
from infra.rehearsal.asking import read_request
from infra.rehearsal.planting import Planting, RehearsalSettings
from infra.rehearsal.playing import Rehearsal
from runtime.ports import Job
from workers.coordinator import coordinated
from workers.engine import Engine
from workers.noting import CAPABILITIES, MODEL_CHANGED


def refused_in(body: Any) -> str | None:
    """The first thing of a request that this endpoint does not take, as it words that."""
    if body.get("temperature") is not None:
        return "Unsupported value: 'temperature' does not support 0.0 with this model."
    if any(one["role"] == "system" for one in body["messages"]):
        return "System role not supported"
    if (body.get("response_format") or {}).get("type") == "json_schema":
        return "This response_format type is unavailable now"
    return None


@pytest.fixture
def picky(toy_key: Any) -> Callable[..., bytes]:
    """The rehearsal model, for whoever asks without these, under any name."""
    rehearsal = Rehearsal(Planting(RehearsalSettings()))

    def answer(request: Request, model: str = MODEL) -> bytes:
        if (why := refused_in(request.body)) is not None:
            return failed(400, why)
        reply = rehearsal.play(read_request(request.body, toy_key)).reply
        message = {"role": "assistant", "content": reply.content, "tool_calls": reply.tool_calls or None}
        return completion(message, model=model, usage={"prompt_tokens": 500, "completion_tokens": 50})

    return answer


async def work(there: Any, ground: Callable[..., Any], home: Path, run: str, killed: anyio.Event) -> None:
    """One process works on `run` until it is finished or killed."""
    queue = LocalQueue()
    with anyio.fail_after(120):
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(there.with_banks())
            working = Engine(server, home, {}, there.clock, 16, stack)
            async with anyio.create_task_group() as tasks:

                async def coordinate() -> None:
                    await coordinated(there.log(run), replace(ground(queue, clock=there.clock), banks=server.banks))
                    tasks.cancel_scope.cancel()

                async def die() -> None:
                    await killed.wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(queue.serve, working.advance, 4)
                tasks.start_soon(coordinate)
                tasks.start_soon(die)
            queue.close()


def refusals(server: Scripted) -> int:
    return sum(refused_in(one.body) is not None for one in server.requests)


async def test_a_run_goes_on_where_it_has_learnt(
    world: Any, playing: Any, ground: Any, picky: Any, tmp_path: Path
) -> None:
    """A process learns while it begins; the one that goes on after it was killed is never refused again."""
    there, killed = world(), anyio.Event()

    def answer(request: Request) -> bytes:
        # Some of the answers, none of them at the run's end.
        if len(server.requests) - refusals(server) == 12:
            killed.set()
        return picky(request)

    async with answering(answer) as server:
        configuration = playing.configured(concurrency=2, lag=2)
        models = changed(configuration.models, base_url=server.url, retries=0)
        log = await there.begin("r", changed(configuration, models=models), limit=6)

        def notes() -> list[Noted]:
            return [one for one in told if isinstance(one, Noted) and one.topic == CAPABILITIES]

        await work(there, ground, tmp_path, "r", killed)
        with anyio.fail_after(120):
            while server.writers:  # noqa: ASYNC110 - what it had sent may not have come yet; who reads it tells nobody
                await anyio.sleep(0.01)
        told = [decode(one) for one in await log.read_stream(RUN_STREAM)]
        assert not any(isinstance(one, RunFinished) for one in told)
        assert notes()[-1].facts["abilities"]["system"] == "user"
        assert notes()[-1].facts["abilities"]["temperature"] is False
        before = refusals(server)
        assert before > 0
        schema_known = notes()[-1].facts["abilities"]["format"] == "json_object"
        await work(there, ground, tmp_path, "r", anyio.Event())
        told = [decode(one) for one in await log.read_stream(RUN_STREAM)]
        assert isinstance(told[-1], RunFinished)
        # The gate may have been asked for the first time after the interruption.
        assert refusals(server) - before <= (0 if schema_known else 2)
    events = await there.recorded("r")
    judged = [decode(one) for one in events if one.kind == "diagnosed"]
    assert [one.degraded for one in judged if isinstance(one, Diagnosed)] == [None] * 6


async def test_a_run_that_comes_again_has_a_first_model_of_its_own(
    world: Any, playing: Any, picky: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What answered in a run that was deleted is nothing to the next one of its name, beside the same process."""
    monkeypatch.setattr("workers.engine._LOOK_S", 0.0)
    there, run, answers = world(), RunId("r"), list[str]()

    def answer(request: Request) -> bytes:
        return bytes(picky(request, answers[-1]))

    async with answering(answer) as server, AsyncExitStack() as stack:
        configuration = playing.configured()
        models = changed(configuration.models, base_url=server.url, retries=0)
        there_now = replace(there.server(), store=LookedUpLogs(there.store))
        working = Engine(there_now, there.home, {}, there.clock, 1, stack)
        for name in ("one", "other"):
            answers.append(name)
            await there.store.delete(run)
            await there.calls.discard(run, await there.calls.all(run))
            log = await there.begin("r", changed(configuration, models=models), limit=1)
            await working.advance(Job(kind="act", run=run, episode=0))
            assert {one.model for one in await calls_of(there.calls, run)} == {name}
            told = [decode(one) for one in await log.read_stream(RUN_STREAM)]
            assert [one for one in told if isinstance(one, Noted) and one.topic == MODEL_CHANGED] == []
