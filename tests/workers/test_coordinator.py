"""The coordinator of a server's runs: takes on what is open, over outages, and leaves alone what cannot go on."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import anyio
import pytest
from looked_up_logs import LookedUpLogs
from msgspec.structs import replace

from events.codec import decode, decode_as, draft
from events.errors import Unreachable
from events.ids import PROJECTOR_STREAM, RUN_STREAM, Position, RunId, Version, episode_stream
from events.kinds import Folded, Noted, Operated, RunStarted
from infra.clock import SystemClock
from infra.leases import LocalLeases
from infra.list_log import ListLog, ListLogStore
from infra.local_queue import LocalQueue
from runtime.errors import RunGone
from runtime.ports import FIRST_ATTEMPTS, Attempts, Job, Origin
from workers.coordinator import Coordinator, RunView, coordinated
from workers.run_stream import tell

NOWHERE = Origin(cause=None)


class Broken:
    """A log or store whose server is away while `away` is set; nothing reaches it then."""

    def __init__(self, there: Any, server: "Outage") -> None:
        self._there, self._server = there, server

    def open(self, run: RunId) -> "Broken":
        return Broken(self._there.open(run), self._server)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._there, name)
        if name == "run":
            return found
        if name == "pages":

            async def pages(*given: Any) -> Any:
                self._server.asked()
                async for page in found(*given):
                    yield page

            return pages

        async def ask(*given: Any) -> Any:
            self._server.asked()
            return await found(*given)

        return ask


class Outage:
    """The state of a server, and how often it was asked, also while it was away."""

    def __init__(self) -> None:
        self.away, self.questions, self.refused = False, 0, 0

    def asked(self) -> None:
        self.questions += 1
        if self.away:
            self.refused += 1
            raise Unreachable("away")


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Waits for a condition."""
    with anyio.fail_after(120):
        while not await true():  # noqa: ASYNC110 - a state of the world, not of a task that could tell us
            await anyio.sleep(0.01)


async def finished(log: Any) -> bool:
    events = await log.read_stream(RUN_STREAM)
    return bool(events) and events[-1].kind == "run_finished"


@pytest.fixture
async def store(made_run: Any) -> ListLogStore:
    return ListLogStore(SystemClock())


async def filled(log: ListLog, made: Any, kinds: tuple[str, ...] | None = None) -> None:
    """The made run in `log`, without its end, and of `kinds` only."""
    versions: dict[str, int] = {}
    for one in made.events:
        if one.kind != "run_finished" and (kinds is None or one.kind in kinds):
            versions[one.stream] = version = versions.get(one.stream, 0) + 1
            await log.append(one.stream, Version(version), [draft(decode(one))], NOWHERE)


async def test_serves_every_open_run(store: ListLogStore, made_run: Any, brisk: None, ground: Any):
    """Runs that are there and runs that come later are brought to their end."""
    await filled(store.open(RunId("a")), made_run("a"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Coordinator(store, ground(LocalQueue())).serve)
        await until(lambda: finished(store.open(RunId("a"))))
        await filled(store.open(RunId("b")), made_run("b"))
        await until(lambda: finished(store.open(RunId("b"))))
        tasks.cancel_scope.cancel()


async def test_a_broken_run_does_not_stop_the_others(store: ListLogStore, made_run: Any, brisk: None, ground: Any):
    """A run whose log holds a fold that this code would not make is left alone; the others go on."""
    bad = store.open(RunId("a"))
    await filled(bad, made_run("a"), ("run_started", "diagnosed"))
    wrong = Folded(episode=0, bank_version=1, digest="0" * 64, operations=[])
    await bad.append(PROJECTOR_STREAM, Version(1), [draft(wrong)], NOWHERE)
    await filled(store.open(RunId("b")), made_run("b"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Coordinator(store, ground(LocalQueue())).serve)
        await until(lambda: finished(store.open(RunId("b"))))
        tasks.cancel_scope.cancel()
    assert decode_as((await bad.read_stream(PROJECTOR_STREAM))[-1], Folded) == wrong


async def test_paused_runs_wait_over_an_outage(store: ListLogStore, made_run: Any, brisk: None, ground: Any):
    """A paused run is taken up again once it is resumed, an outage of the server in between included."""
    log, server = store.open(RunId("a")), Outage()
    await filled(log, made_run("a"), ("run_started",))
    await tell(log, Operated(action="pause", target="a", author="me", reason=""))
    queue = LocalQueue()

    async def waiting() -> bool:
        return await queue.forget(RunId("a"), dry_run=True) > 0

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Coordinator(Broken(store, server), ground(queue)).serve)

        async def looked() -> bool:
            return server.questions > 20

        await until(looked)
        assert not await waiting()
        server.away = True

        async def noticed() -> bool:
            return server.refused > 2

        await until(noticed)
        server.away = False
        await tell(log, Operated(action="resume", target="a", author="me", reason=""))
        await until(waiting)
        tasks.cancel_scope.cancel()


async def test_a_run_goes_on_after_an_outage(store: ListLogStore, made_run: Any, brisk: None, ground: Any):
    """An outage in the middle of a run is waited for, up to the patience given."""
    log, server = store.open(RunId("a")), Outage()
    await filled(log, made_run("a"), ("run_started",))
    server.away = True
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            await coordinated(Broken(log, server), ground(LocalQueue()))

        tasks.start_soon(serve)

        async def noticed() -> bool:
            return server.refused > 2

        await until(noticed)
        await filled(log, made_run("a"))
        server.away = False
        await until(lambda: finished(log))
        tasks.cancel_scope.cancel()
    server.away = True
    with pytest.raises(Unreachable):
        await coordinated(Broken(log, server), ground(LocalQueue()), patience_s=0.0)


class Forgetful:
    """A log whose server can come back without its tail."""

    def __init__(self, log: ListLog) -> None:
        self.there = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.there, name)


async def test_a_lost_tail(made_run: Any, brisk: None, ground: Any):
    """Where the server lost the tail of a log, the coordinator drops what it derived and folds again."""
    made = made_run("a")
    long, short = ListLog(RunId("a"), SystemClock()), ListLog(RunId("a"), SystemClock())
    diagnosed = [one for one in made.events if one.kind == "diagnosed"]
    for log, episodes in ((long, 3), (short, 1)):
        await filled(log, made, ("run_started",))
        for one in diagnosed[:episodes]:
            await log.append(one.stream, Version(1), [draft(decode(one))], NOWHERE)
    seen = Forgetful(long)

    async def lose() -> None:
        async def folded() -> bool:
            return len(await long.read_stream(PROJECTOR_STREAM)) == 3

        await until(folded)
        seen.there = short

        async def folded_again() -> bool:
            return len(await short.read_stream(PROJECTOR_STREAM)) == 1

        await until(folded_again)
        for one in diagnosed[1:]:
            await short.append(one.stream, Version(1), [draft(decode(one))], NOWHERE)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lose)
        coordinator = await coordinated(seen, ground(LocalQueue()))
    assert coordinator.projector.state.banks.digest() == made.banks.digest()
    assert len(await short.read_stream(PROJECTOR_STREAM)) == 6


async def test_a_run_that_is_deleted_ends_its_command(made_run: Any, brisk: None, ground: Any):
    """Who plays a run whose log somebody has deleted is told so, whatever its patience; nobody holds it then."""
    store = LookedUpLogs(ListLogStore(SystemClock()))
    run, leases = RunId("a"), LocalLeases(SystemClock().monotonic)
    await filled(store.open(run), made_run("a"), ("run_started",))

    async def delete() -> None:
        async def held() -> bool:
            return await leases.holder(run) is not None

        await until(held)
        await store.delete(run)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delete)
        with pytest.raises(RunGone, match="run a is gone"):
            await coordinated(store.open(run), ground(LocalQueue(), leases=leases))
    assert await leases.holder(run) is None


async def test_a_run_that_comes_again_is_served(made_run: Any, brisk: None, ground: Any):
    """A coordinator leaves a run that was deleted, and takes on the next one of its name."""
    store = LookedUpLogs(ListLogStore(SystemClock()))
    run, leases = RunId("a"), LocalLeases(SystemClock().monotonic)

    async def left() -> bool:
        return await leases.holder(run) is None

    async def held() -> bool:
        return not await left()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Coordinator(store, ground(LocalQueue(), leases=leases)).serve)
        await filled(store.open(run), made_run("a"), ("run_started",))
        await until(held)
        await store.delete(run)
        await until(left)
        await filled(store.open(run), made_run("a"))
        await until(lambda: finished(store.open(run)))
        tasks.cancel_scope.cancel()


async def test_jobs_of_a_finished_run_are_cleared_away(
    store: ListLogStore, made_run: Any, brisk: None, ground: Any, monkeypatch: pytest.MonkeyPatch
):
    """Whoever finished or deleted a run may have died before it cleared the queue: the next coordinator does that."""
    monkeypatch.setattr("workers.coordinator._RUNS_S", 0.01)
    monkeypatch.setattr("workers.coordinator._SWEEP_S", 0.0)
    done, tidied = made_run("done"), list[RunId]()
    for one in done.events:
        await store.open(RunId("done")).append(one.stream, one.version, [draft(decode(one))], NOWHERE)
    await filled(store.open(RunId("open")), made_run("open"), ("run_started",))

    class Littered(LocalQueue):
        async def runs(self) -> set[RunId]:
            return {RunId("done"), RunId("gone"), RunId("open")}

        async def tidy(self, run: RunId) -> int:
            tidied.append(run)
            return 0

    async def cleared() -> bool:
        return len(set(tidied)) > 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Coordinator(store, ground(Littered())).serve)
        await until(cleared)
        tasks.cancel_scope.cancel()
    assert set(tidied) == {"done", "gone"}


async def test_jobs_of_a_lost_worker(store: ListLogStore, made_run: Any, brisk: None, ground: Any):
    """Jobs that a queue has lost are put in again; after the third the run goes on without their episode."""
    log, queue = store.open(RunId("a")), LocalQueue()
    started = decode_as(made_run("a").events[0], RunStarted)
    config = replace(started.config, concurrency=2, lag=2)
    await log.append(
        RUN_STREAM, Version(1), [draft(replace(started, config=config, tasks=["x", "y", "z"], tasks_total=3))], NOWHERE
    )
    tried: list[tuple[int, int]] = []

    async def fail(job: Job) -> None:
        tried.append((job.episode, job.attempt))
        raise Unreachable("nothing works")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.serve, fail, 4)
        with anyio.fail_after(120):
            control = (await coordinated(log, ground(queue))).conductor.control
        queue.close()
        tasks.cancel_scope.cancel()
    assert control == "finished"
    assert sorted(tried) == [(t, attempt) for t in range(3) for attempt in (1, 2, 3)]
    finish = decode((await log.read_stream(RUN_STREAM))[-1])
    assert (finish.counts.abandoned, finish.counts.folded, finish.outcome) == (3, 3, "completed")
    assert not [one for one in await log.read_stream(RUN_STREAM) if isinstance(decode(one), Noted)]


class Looked(LocalQueue):
    """A queue that lets `meanwhile` happen when it is first asked for lost jobs, to one that is then in it no more."""

    def __init__(self, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._meanwhile, self.looks, self.attempts = meanwhile, 0, list[tuple[int, int]]()

    async def enqueue(self, job: Job, timeout_s: float, attempts: Attempts = FIRST_ATTEMPTS) -> bool:
        self.attempts.append((job.episode, job.attempt))
        return await super().enqueue(job, timeout_s, attempts)

    async def lost(self, jobs: Iterable[Job]) -> list[Job]:
        self.looks += 1
        if self.looks == 1:
            self._waiting["act"].pop(Job(kind="act", run=RunId("a"), episode=0))
            await self._meanwhile()
        return await super().lost(jobs)


async def coordinated_until(over: Callable[[RunView], bool], log: ListLog, ground: Any) -> None:
    """The run's coordinator at work, until `over` says so after a round."""
    with anyio.fail_after(120), anyio.CancelScope() as scope:
        await coordinated(log, ground, lambda view: scope.cancel() if over(view) else None)


async def test_a_job_that_ends_while_it_is_looked_for_is_not_asked_for_again(
    store: ListLogStore, made_run: Any, brisk: None, ground: Any
):
    """It is in no queue any more when the queue is asked; that its episode is over stands in the log."""
    log, made = store.open(RunId("a")), made_run("a")
    await filled(log, made, ("run_started",))

    async def end() -> None:
        for one in made.events:
            if one.stream == episode_stream(0):
                await log.append(one.stream, one.version, [draft(decode(one))], NOWHERE)

    queue = Looked(end)
    await coordinated_until(lambda _: queue.looks > 1, log, ground(queue))
    assert (0, 1) in queue.attempts
    assert {attempt for _, attempt in queue.attempts} == {1}


async def test_who_has_lost_the_lease_while_it_looked_asks_for_nothing(
    store: ListLogStore, made_run: Any, brisk: None, ground: Any
):
    """A coordinator that stood still wakes up and finds a job lost: another one has looked after it by then."""
    log, leases = store.open(RunId("a")), LocalLeases(lambda: 0.0)
    await filled(log, made_run("a"), ("run_started",))
    queue = Looked(lambda: leases.of(RunId("a"), "another", by_force=True).hold(Position(0)))
    await coordinated_until(lambda view: queue.looks > 0 and not view.acting, log, ground(queue, leases=leases))
    assert (0, 1) in queue.attempts
    assert {attempt for _, attempt in queue.attempts} == {1}


async def test_who_takes_the_lease_asks_for_nothing_twice(store: ListLogStore, made_run: Any, brisk: None, ground: Any):
    """What a coordinator before it has asked for goes on to count: a third attempt stays the third."""
    log, queue = store.open(RunId("a")), LocalQueue()
    await filled(log, made_run("a"), ("run_started",))
    third = Job(kind="act", run=RunId("a"), episode=0, attempt=3)
    await queue.enqueue(third, 60.0)
    await coordinated_until(lambda view: view.acting, log, ground(queue))
    assert list(await queue.asked(RunId("a"))) == [third]
