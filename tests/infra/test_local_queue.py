"""Jobs inside one process, on asyncio and on trio: the same contract as on rq."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import anyio
import pytest
from anyio import Event, create_task_group, fail_after
from structlog.testing import capture_logs

from events.ids import RunId
from infra.local_queue import LocalQueue
from runtime.ports import Attempts, Job, JobKind

Play = Callable[[Callable[[], Awaitable[None]]], None]
#: no job here takes so long, seconds, on a machine however slow
LONG_S = 600.0


def job(episode: int = 0, kind: JobKind = "act", run: str = "r", attempt: int = 1) -> Job:
    return Job(kind=kind, run=RunId(run), episode=episode, attempt=attempt)


@pytest.fixture(params=["asyncio", "trio"])
def play(request: pytest.FixtureRequest) -> Play:
    """Run an async function on one of the two event loops, with a limit."""
    backend: Literal["asyncio", "trio"] = request.param

    def run(scenario: Callable[[], Awaitable[None]]) -> None:
        async def limited() -> None:
            with fail_after(120):
                await scenario()

        anyio.run(limited, backend=backend)

    return run


def test_a_job_is_queued_once_while_it_waits_or_runs(play: Play) -> None:
    """The same job again says False; once it has ended it may be queued again."""

    async def scenario() -> None:
        queue, begun, release = LocalQueue(), Event(), Event()

        async def handler(_: Job) -> None:
            begun.set()
            await release.wait()
            queue.close()

        assert await queue.enqueue(job(), LONG_S)
        assert not await queue.enqueue(job(), LONG_S)
        assert await queue.enqueue(job(attempt=2), LONG_S)
        async with create_task_group() as group:
            group.start_soon(queue.serve, handler, 1, "act")
            await begun.wait()
            assert not await queue.enqueue(job(), LONG_S)
            assert await queue.lost([job(), job(attempt=2), job(5)]) == [job(5)]
            release.set()
        assert await queue.lost([job()]) == [job()]
        assert await queue.enqueue(job(), LONG_S)

    play(scenario)


def test_what_was_asked_for_outlives_its_jobs(play: Play) -> None:
    """Attempts stay counted until a later job says that their episodes are over; each run has its own."""

    async def scenario() -> None:
        queue = LocalQueue()
        await queue.enqueue(job(0), LONG_S)
        await queue.enqueue(job(1, attempt=2), LONG_S, Attempts(first=2, told=3))
        await queue.forget(job().run)
        assert await queue.asked(job().run) == {job(0): Attempts(), job(1, attempt=2): Attempts(first=2, told=3)}
        await queue.enqueue(job(5), LONG_S, Attempts(folded=1))
        assert set(await queue.asked(job().run)) == {job(1, attempt=2), job(5)}
        assert await queue.asked(job(run="other").run) == {}

    play(scenario)


def test_jobs_of_a_kind_run_in_order_up_to_the_slots(play: Play) -> None:
    """Three slots run the three oldest; the fourth waits for one to end; the other kind has slots of its own."""

    async def scenario() -> None:
        queue, release = LocalQueue(), Event()
        running: list[Job] = []
        most: dict[str, int] = {"act": 0, "diagnose": 0}
        order: list[int] = []

        async def handler(this: Job) -> None:
            running.append(this)
            order.extend([this.episode] if this.kind == "act" else [])
            most[this.kind] = max(most[this.kind], sum(each.kind == this.kind for each in running))
            if len(running) == 5:
                release.set()
            await release.wait()
            running.remove(this)
            if this.episode == 9:
                queue.close()

        for episode in range(10):
            await queue.enqueue(job(episode), LONG_S)
        for episode in range(2):
            await queue.enqueue(job(episode, "diagnose"), LONG_S)
        await queue.serve(handler, 3)
        assert most == {"act": 3, "diagnose": 2}
        assert sorted(order) == list(range(10))
        assert set(order[:3]) == {0, 1, 2}

    play(scenario)


def test_a_handler_that_raises_loses_its_job_only(play: Play) -> None:
    """The failure is logged once, the job is lost (and can be queued again), the others go on."""

    async def scenario() -> None:
        queue, seen = LocalQueue(), []

        async def handler(this: Job) -> None:
            if this.episode == 0:
                raise ValueError("no")
            seen.append(this.episode)
            queue.close()

        await queue.enqueue(job(0), LONG_S)
        await queue.enqueue(job(1), LONG_S)
        with capture_logs() as lines:
            await queue.serve(handler, 1, "act")
        assert seen == [1]
        assert [(line["event"], line["run_id"], line["episode_id"]) for line in lines] == [
            ("job failed", "r", "episode-0")
        ]
        assert await queue.lost([job(0)]) == [job(0)]
        assert await queue.enqueue(job(0), LONG_S)

    play(scenario)


def test_a_job_over_its_limit_is_cancelled_and_unwinds(play: Play) -> None:
    """The deadline cancels the handler, its `finally` runs, the job is lost."""

    async def scenario() -> None:
        queue, unwound = LocalQueue(), []

        async def handler(this: Job) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                unwound.append(this.episode)
                queue.close()

        await queue.enqueue(job(), 0.0)
        with capture_logs() as lines:
            await queue.serve(handler, 1, "act")
        assert unwound == [0]
        assert [line["event"] for line in lines] == ["job overran its time limit"]
        assert await queue.lost([job()]) == [job()]

    play(scenario)


def test_forgetting_a_run_removes_what_waits(play: Play) -> None:
    """Waiting jobs of the run go, those of others stay, in both kinds; what runs is counted and goes on."""

    async def scenario() -> None:
        queue, begun, release, ended = LocalQueue(), Event(), Event(), []

        async def handler(this: Job) -> None:
            begun.set()
            await release.wait()
            ended.append(this)
            if this.run == "other":
                queue.close()

        async with create_task_group() as group:
            await queue.enqueue(job(0), LONG_S)
            group.start_soon(queue.serve, handler, 1, "act")
            await begun.wait()
            await queue.enqueue(job(1), LONG_S)
            await queue.enqueue(job(1, "diagnose"), LONG_S)
            await queue.enqueue(job(1, run="other"), LONG_S)
            assert await queue.forget(RunId("r"), dry_run=True) == 3
            assert await queue.forget(RunId("r")) == 3
            assert await queue.forget(RunId("r")) == 1
            release.set()
        assert ended == [job(0), job(1, run="other")]

    play(scenario)


def test_a_cancelled_server_holds_nothing(play: Play) -> None:
    """When `serve` is cancelled its jobs unwind and are lost; a new `serve` takes what waits."""

    async def scenario() -> None:
        queue, begun = LocalQueue(), Event()

        async def hang(_: Job) -> None:
            begun.set()
            await anyio.sleep_forever()

        async def end(_: Job) -> None:
            queue.close()

        await queue.enqueue(job(0), LONG_S)
        await queue.enqueue(job(1), LONG_S)
        async with create_task_group() as group:
            group.start_soon(queue.serve, hang, 1, "act")
            await begun.wait()
            group.cancel_scope.cancel()
        assert await queue.lost([job(0), job(1)]) == [job(0)]
        await queue.serve(end, 1, "act")
        assert await queue.lost([job(1)]) == [job(1)]

    play(scenario)


def test_a_queue_may_be_made_before_its_loop(play: Play) -> None:
    """Made outside, filled and served inside: what a command does that starts everything in one process."""
    queue, seen = LocalQueue(), []

    async def scenario() -> None:
        async def handler(this: Job) -> None:
            seen.append(this.episode)
            queue.close()

        async with create_task_group() as group:
            group.start_soon(queue.serve, handler, 2)
            await queue.enqueue(job(3), LONG_S)

    play(scenario)
    assert seen == [3]


def test_a_job_put_by_a_handler_is_served(play: Play) -> None:
    """A chain of jobs, each queued by the one before, runs without a gap."""

    async def scenario() -> None:
        queue = LocalQueue()
        order: list[Any] = []

        async def handler(this: Job) -> None:
            order.append((this.kind, this.episode))
            if this.episode == 4:
                queue.close()
                return
            await queue.enqueue(job(this.episode + 1, "diagnose" if this.kind == "act" else "act"), LONG_S)

        await queue.enqueue(job(0), LONG_S)
        await queue.serve(handler, 2)
        assert order == [("act", 0), ("diagnose", 1), ("act", 2), ("diagnose", 3), ("act", 4)]

    play(scenario)
