"""The conductor: what it enqueues, what it gives up, and what it says in the log."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from events.codec import content_sha256, decode, decode_as, draft
from events.errors import VersionGap
from events.ids import RUN_STREAM, RunId, StreamId, Version, episode_stream
from events.kinds import Abandoned, AnyEvent, Diagnosed, Noted, Operated, RunFinished, SeedBank, TasksListed
from events.log import Draft, Recorded
from infra.clock import SystemClock
from infra.list_log import ListLog
from infra.local_queue import LocalQueue
from runtime.ports import FIRST_ATTEMPTS, Attempts, Job, JobKind, Origin
from runtime.schedule import ATTEMPTS
from workers.conductor import Conductor
from workers.coordinator import RunCoordinator


@dataclass
class Queue:
    """A queue that remembers what was put into it, and loses what it is told to."""

    jobs: list[Job] = field(default_factory=list)
    gone: set[Job] = field(default_factory=set)
    timeouts: set[float] = field(default_factory=set)
    discarded: list[Job] = field(default_factory=list)
    refusal: str | None = None
    counted: dict[Job, Attempts] = field(default_factory=dict)

    async def enqueue_all(self, jobs: Mapping[Job, Attempts], timeout_s: float) -> None:
        self.jobs += jobs
        self.timeouts.add(timeout_s)
        self.counted |= jobs

    async def asked(self, run: RunId) -> dict[Job, Attempts]:
        return self.counted

    async def lost(self, jobs: Iterable[Job]) -> list[Job]:
        return [job for job in jobs if job in self.gone]

    async def discard(self, jobs: Iterable[Job]) -> None:
        self.discarded += jobs

    async def refused(self, run: RunId) -> str | None:
        return self.refusal

    async def tidy(self, run: RunId) -> int:
        return 0

    async def forget(self, run: RunId, *, dry_run: bool = False) -> int:
        return 0

    def taken(self) -> list[tuple[str, int, int]]:
        """What was put into it since the last call."""
        jobs, self.jobs = self.jobs, []
        return [(job.kind, job.episode, job.attempt) for job in jobs]


@dataclass
class Stage:
    """A log, a queue and the conductor between them."""

    made: Any
    log: ListLog = field(default_factory=lambda: ListLog(RunId("made"), SystemClock()))
    queue: Queue = field(default_factory=Queue)
    position: int = 0

    def __post_init__(self) -> None:
        self.conductor = Conductor(self.log, self.queue)

    async def begin(self, *, lag: Any = 4, concurrency: int = 3, **changes: Any) -> None:
        started = decode(self.made.events[0])
        config = replace(started.config, lag=lag, concurrency=concurrency, **changes)
        await self.add(RUN_STREAM, replace(started, config=config))

    async def add(self, stream: StreamId, *events: AnyEvent) -> None:
        for event in events:
            first = Version(len(await self.log.read_stream(stream)) + 1)
            await self.log.append(stream, first, [draft(event)], Origin(cause=None))

    async def play(self, t: int, upto: int) -> None:
        """The made run's episode t, up to a version of its stream."""
        for one in self.made.events:
            if one.stream == episode_stream(t) and one.version <= upto:
                item = Draft(kind=one.kind, schema=one.schema, data=one.data, sha256=content_sha256(one.kind, one.data))
                await self.log.append(one.stream, one.version, [item], Origin(cause=None))

    async def fold(self, t: int) -> None:
        fold = next(one for one in self.made.events if one.kind == "folded" and one.version == t + 1)
        await self.add(fold.stream, decode(fold))

    async def round(self) -> list[tuple[str, int, int]]:
        """What the conductor enqueues once it has read on."""
        async for page in self.log.pages(self.position):
            for one in page:
                self.conductor.see(one)
                self.position = one.position
        await self.conductor.enqueue_due(self.conductor.progress.folded)
        return self.queue.taken()

    async def restart(self) -> None:
        self.conductor, self.position = Conductor(self.log, self.queue), 0

    async def taken_over(self) -> list[tuple[str, int, int]]:
        """What another conductor enqueues that takes over here."""
        await self.restart()
        async for page in self.log.pages(self.position):
            for one in page:
                self.conductor.see(one)
                self.position = one.position
        await self.conductor.take_over()
        return await self.round()

    async def lose(self, kind: Any, t: int, attempt: int) -> None:
        """That job, which is lost, is asked for again or given up."""
        await self.conductor.reissue([Job(kind=kind, run=self.log.run, episode=t, attempt=attempt)])

    async def last(self, stream: StreamId) -> Recorded:
        return (await self.log.read_stream(stream))[-1]


@pytest.fixture
def stage(made_run: Any) -> Stage:
    return Stage(made_run())


async def test_enqueues_exactly_what_is_due(stage: Stage):
    """Each job once: act up to concurrency and lag, the gate for scored episodes, the next after a fold."""
    assert await stage.round() == []
    await stage.begin(lag=4, concurrency=3)
    assert await stage.round() == [("act", 0, 1), ("act", 1, 1), ("act", 2, 1)]
    assert await stage.round() == []
    await stage.play(1, 5)
    assert await stage.round() == [("diagnose", 1, 1)]
    await stage.play(1, 6)
    assert await stage.round() == [("act", 3, 1)]
    await stage.play(2, 6)
    await stage.play(3, 6)
    assert await stage.round() == [], "episode 4 reads version 1, which is not there"
    await stage.play(0, 6)
    assert await stage.round() == []
    await stage.fold(0)
    assert await stage.round() == [("act", 4, 1)]
    assert stage.queue.timeouts == {3660.0}


async def test_a_restarted_conductor_needs_no_memory(stage: Stage):
    """From the log alone a new one enqueues what is open, and nothing that has ended."""
    await stage.begin()
    await stage.round()
    await stage.play(0, 6)
    await stage.fold(0)
    await stage.play(1, 3)
    await stage.play(2, 5)
    await stage.round()
    await stage.restart()
    assert await stage.round() == [("act", 1, 1), ("diagnose", 2, 1), ("act", 3, 1)]


async def test_lost_jobs_are_reissued(stage: Stage):
    """A lost job is put in again as the next attempt; one that has ended meanwhile is not."""
    await stage.begin()
    await stage.round()
    await stage.play(0, 5)
    stage.queue.gone = {Job(kind="act", run=stage.log.run, episode=t) for t in (0, 1)}
    lost = await stage.conductor.lost()
    await stage.round()
    await stage.conductor.reissue(lost)
    assert stage.queue.taken() == [("act", 1, 2)]


async def test_only_a_job_that_is_lost_while_we_look_is_a_warning(stage: Stage):
    """What a coordinator before us asked for ended with its workers, as everybody knows who resumes a run."""
    await stage.begin()
    await stage.round()
    await stage.taken_over()
    with structlog.testing.capture_logs() as told:
        for attempt in (1, 2):
            stage.queue.gone = {Job(kind="act", run=stage.log.run, episode=0, attempt=attempt)}
            await stage.conductor.reissue(await stage.conductor.lost())
    assert [(one["event"], one["log_level"]) for one in told] == [("job_reissued", "info"), ("job_reissued", "warning")]


async def test_a_lease_that_comes_back_makes_nobody_else_of_us(stage: Stage):
    """What this conductor asked for itself is its own after it has taken over from itself; what it found is not."""
    await stage.begin()
    await stage.round()
    await stage.play(0, 5)
    await stage.taken_over()
    await stage.conductor.take_over()
    with structlog.testing.capture_logs() as told:
        await stage.lose("diagnose", 0, 1)
        await stage.lose("act", 1, 1)
        await stage.conductor.take_over()
        await stage.lose("act", 1, 2)
    assert [(one["stage"], one["attempt"], one["log_level"]) for one in told] == [
        ("diagnose", 2, "warning"), ("act", 2, "info"), ("act", 3, "warning"),
    ]  # fmt: skip


async def test_work_that_is_asked_for_again_is_ours(stage: Stage):
    """A job that a coordinator before us asked for, and an operator put in again under us, is lost with a warning."""
    await stage.begin()
    await stage.round()
    await stage.taken_over()
    await stage.add(RUN_STREAM, operated("requeue", "made/episode-0"))
    assert await stage.round() == [("act", 0, 2)]
    with structlog.testing.capture_logs() as told:
        await stage.lose("act", 0, 2)
    assert [(one["event"], one["log_level"]) for one in told] == [("job_reissued", "warning")]


async def give_up(stage: Stage, kind: Any, t: int) -> None:
    """Loses a job as often as it is tried."""
    for attempt in range(1, ATTEMPTS + 1):
        job = Job(kind=kind, run=stage.log.run, episode=t, attempt=attempt)
        stage.queue.gone = {job}
        assert await stage.conductor.lost() == [job]
        await stage.conductor.reissue([job])


@pytest.mark.parametrize(("upto", "where"), [(0, "planning"), (1, "planning"), (2, "execution"), (3, "execution"),
                                              (4, "scoring")])  # fmt: skip
async def test_abandons_after_three(stage: Stage, upto: int, where: str):
    """An act job lost three times ends its episode, which says how far it was; the run goes on."""
    await stage.begin()
    await stage.play(0, upto)
    await stage.round()
    await give_up(stage, "act", 0)
    assert [attempt for _, _, attempt in stage.queue.taken()] == [2, 3]
    abandoned = await stage.last(episode_stream(0))
    assert decode(abandoned) == Abandoned(stage=where, reason="worker_lost", attempts=3)
    assert abandoned.version == upto + 1
    assert await stage.round() == [("act", 3, 1)]
    assert stage.conductor.progress.abandoned == 1


async def test_a_lost_gate_degrades(stage: Stage):
    """A gate job lost three times becomes a degraded diagnosis with what was retrieved."""
    await stage.begin()
    await stage.play(2, 5)
    await stage.round()
    await give_up(stage, "diagnose", 2)
    diagnosed = decode_as(await stage.last(episode_stream(2)), Diagnosed)
    there = next(decode_as(one, Diagnosed) for one in stage.made.events if one.id == "made/episode-2/6")
    assert diagnosed.degraded == "worker_lost"
    assert (diagnosed.retrieved, diagnosed.success) == (there.retrieved, there.success)
    assert (diagnosed.label, diagnosed.confidence_e4) == ("none", 0)


@pytest.mark.parametrize(("kind", "begun", "ended"), [("act", 3, 5), ("act", 3, 6), ("diagnose", 5, 6)])
async def test_gives_up_nothing_that_has_ended(stage: Stage, kind: str, begun: int, ended: int):
    """What a worker finishes between the look at the log and giving up stays as it is."""
    await stage.begin()
    await stage.play(0, begun)
    await stage.round()
    for attempt in range(1, ATTEMPTS):
        await stage.conductor.reissue([Job(kind=kind, run=stage.log.run, episode=0, attempt=attempt)])
    await stage.play(0, ended)
    await stage.conductor.reissue([Job(kind=kind, run=stage.log.run, episode=0, attempt=ATTEMPTS)])
    assert len(await stage.log.read_stream(episode_stream(0))) == ended


@pytest.mark.parametrize(("kind", "upto"), [("act", 3), ("diagnose", 5)])
async def test_gives_up_nothing_that_the_server_has_lost(stage: Stage, kind: Any, upto: int):
    """Between reading an episode and ending it its last event is lost and comes again otherwise: nothing is written."""
    await stage.begin()
    await stage.play(0, upto)
    await stage.round()
    for attempt in range(1, ATTEMPTS):
        await stage.lose(kind, 0, attempt)
    stream, read_stream = episode_stream(0), stage.log.read_stream

    async def read(of: StreamId) -> list[Recorded]:
        found = await read_stream(of)
        there = stage.log._streams[stream]
        there[-1] = stage.log._events[there[-1].position - 1] = replace(
            there[-1], data=there[-1].data[:-1] + b',"x":1}'
        )
        return found

    stage.log.read_stream = read  # type: ignore[method-assign]
    with pytest.raises(VersionGap, match=f"made from made/{stream}/{upto}"):
        await stage.lose(kind, 0, ATTEMPTS)
    assert len(await read_stream(stream)) == upto


async def test_pause_resume_cancel(stage: Stage):
    """Paused and stopped runs get no jobs, a resumed one gets all that is open, a cancelled one begins nothing."""
    await stage.begin()
    await stage.add(RUN_STREAM, operated("pause"))
    assert await stage.round() == []
    assert (stage.conductor.control, stage.conductor.reason) == ("paused", "me: because")
    await stage.add(RUN_STREAM, operated("resume"))
    assert len(await stage.round()) == 3
    await stage.add(RUN_STREAM, Noted(topic="run_stopped", facts={"kind": "key", "reason": "no key"}))
    assert await stage.round() == []
    assert (stage.conductor.control, stage.conductor.reason) == ("stopped", "no key")
    await stage.add(RUN_STREAM, operated("resume"))
    assert await stage.round() == [("act", 0, 2), ("act", 1, 2), ("act", 2, 2)]
    await stage.play(0, 5)
    await stage.add(RUN_STREAM, operated("cancel"))
    assert await stage.round() == [("diagnose", 0, 1)]
    assert stage.conductor.control == "cancelled"
    assert stage.conductor.ended(0) is None, "jobs are under way"


async def test_a_cancelled_run_ends_once_its_episodes_have(stage: Stage):
    """After a cancel the open episodes end, then the run is finished as stopped."""
    await stage.begin(concurrency=1)
    await stage.round()
    await stage.play(0, 5)
    await stage.add(RUN_STREAM, operated("cancel"))
    assert await stage.round() == [("diagnose", 0, 1)]
    await stage.play(0, 6)
    await stage.fold(0)
    assert await stage.round() == []
    assert stage.conductor.ended(1) == "stopped"


async def test_a_cancel_is_for_good(stage: Stage):
    """What is said of a cancelled run later does not bring it back; a job that had begun nothing is not reissued."""
    await stage.begin()
    await stage.round()
    await stage.play(0, 3)
    await stage.add(RUN_STREAM, operated("cancel"), Noted(topic="run_stopped", facts={"kind": "key", "reason": "x"}))
    await stage.add(RUN_STREAM, operated("resume"))
    assert await stage.round() == []
    assert (stage.conductor.control, stage.conductor.reason) == ("cancelled", "because")
    stage.queue.gone = {Job(kind="act", run=stage.log.run, episode=t) for t in (0, 1, 2)}
    await stage.conductor.reissue(await stage.conductor.lost())
    assert stage.queue.taken() == [("act", 0, 2)]
    assert stage.conductor.ended(0) is None
    await stage.play(0, 6)
    await stage.fold(0)
    await stage.round()
    assert stage.conductor.ended(1) == "stopped"


async def test_requeued_work_is_tried_afresh(stage: Stage):
    """An operator's requeue gives one episode, or each one, three more attempts; what they leave is cleared away."""
    await stage.begin()
    await stage.round()
    for attempt in (1, 2):
        job = Job(kind="act", run=stage.log.run, episode=1, attempt=attempt)
        await stage.conductor.reissue([job])
    await stage.add(RUN_STREAM, operated("requeue", "made/episode-1"))
    stage.queue.taken()
    assert await stage.round() == [("act", 1, 4)]
    for attempt in (4, 5):
        await stage.conductor.reissue([Job(kind="act", run=stage.log.run, episode=1, attempt=attempt)])
    assert stage.queue.taken() == [("act", 1, 5), ("act", 1, 6)]
    assert [job.attempt for job in stage.queue.discarded] == [1, 2, 4, 5]
    await stage.conductor.reissue([Job(kind="act", run=stage.log.run, episode=1, attempt=6)])
    assert decode_as(await stage.last(episode_stream(1)), Abandoned).attempts == 6
    await stage.add(RUN_STREAM, operated("requeue"))
    assert [one for one in await stage.round() if one[2] > 1] == [("act", 0, 2), ("act", 2, 2)]


async def test_attempts_are_counted_over_conductors(stage: Stage):
    """One that takes over asks for nothing twice, and gives up what was lost three times under whomever."""
    await stage.begin()
    await stage.round()
    await stage.lose("act", 0, 1)
    await stage.play(1, 5)
    await stage.round()
    assert await stage.taken_over() == []
    await stage.lose("act", 0, 2)
    assert stage.queue.taken() == [("act", 0, 3)]
    await stage.lose("diagnose", 1, 1)
    assert stage.queue.taken() == [("diagnose", 1, 2)]
    assert await stage.taken_over() == []
    await stage.lose("act", 0, 3)
    assert decode_as(await stage.last(episode_stream(0)), Abandoned).attempts == 3
    await stage.lose("diagnose", 1, 2)
    assert stage.queue.taken() == [("diagnose", 1, 3)]
    assert await stage.taken_over() == [("act", 3, 1)]
    await stage.lose("diagnose", 1, 3)
    assert decode_as(await stage.last(episode_stream(1)), Diagnosed).degraded == "worker_lost"


async def test_fresh_attempts_are_counted_over_conductors(stage: Stage):
    """A requeue gives three more attempts to whoever takes over, before it or after, and no more than those."""
    await stage.begin()
    await stage.round()
    for attempt in (1, 2):
        await stage.lose("act", 0, attempt)
    await stage.add(RUN_STREAM, operated("requeue", "made/episode-0"))
    stage.queue.taken()
    assert await stage.taken_over() == []
    for attempt in (3, 4, 5):
        await stage.lose("act", 0, attempt)
        assert stage.queue.taken() == [("act", 0, attempt + 1)]
        assert await stage.taken_over() == []
    await stage.lose("act", 0, 6)
    assert decode_as(await stage.last(episode_stream(0)), Abandoned).attempts == 6


async def test_work_that_the_server_has_lost_is_no_lost_attempt(stage: Stage):
    """An act job whose gate was asked for had done its work: where its events are lost it is counted afresh."""
    await stage.begin(concurrency=1)
    kinds: tuple[JobKind, ...] = ("act", "diagnose")
    stage.queue.counted = {Job(kind=kind, run=stage.log.run, episode=0, attempt=2): FIRST_ATTEMPTS for kind in kinds}
    assert await stage.taken_over() == [("act", 0, 1)]


async def test_a_run_that_every_worker_refuses_is_stopped(stage: Stage):
    """Three looks in a row at which no live worker can serve the run stop it, with the reason."""
    await stage.begin()
    await stage.round()
    stage.queue.refusal = "other code"
    await stage.conductor.look_for_workers()
    await stage.conductor.look_for_workers()
    stage.queue.refusal = None
    await stage.conductor.look_for_workers()
    stage.queue.refusal = "other code"
    for _ in range(3):
        await stage.round()
        assert stage.conductor.control == "running"
        await stage.conductor.look_for_workers()
    assert await stage.round() == []
    assert (stage.conductor.control, stage.conductor.reason) == ("stopped", "other code")


async def test_without_room_only_what_has_begun_goes_on(stage: Stage):
    """While intake is stopped no episode is begun; diagnoses and half-played episodes go on."""
    await stage.begin()
    await stage.play(0, 2)
    await stage.play(1, 5)
    await stage.round()
    stage.queue.taken()
    await stage.restart()
    async for page in stage.log.pages(0):
        for one in page:
            stage.conductor.see(one)
    await stage.conductor.enqueue_due(0, begin=False)
    assert stage.queue.taken() == [("act", 0, 1), ("diagnose", 1, 1)]


def operated(action: str, target: str = "made") -> Operated:
    return Operated(action=action, target=target, author="me", reason="because")


async def test_an_incomplete_head_waits(stage: Stage):
    """Nothing begins before the task list and the seed bank are whole."""
    started = decode(stage.made.events[0])
    seeded = SeedBank(run="other", version=1, digest="0" * 64, items=0)
    await stage.add(RUN_STREAM, replace(started, tasks=started.tasks[:2], seed_bank=seeded))
    assert await stage.round() == []
    await stage.add(RUN_STREAM, TasksListed(tasks=started.tasks[2:]))
    assert await stage.round() == [("act", 0, 1)]


async def test_a_seed_bank_is_waited_for(stage: Stage):
    """With items of a seed bank still to come, nothing begins."""
    started = decode(stage.made.events[0])
    await stage.add(RUN_STREAM, replace(started, seed_bank=SeedBank(run="o", version=1, digest="0" * 64, items=2)))
    assert await stage.round() == []


async def coordinate(log: ListLog, ground: Any) -> RunCoordinator:
    coordinator = RunCoordinator(log, ground(LocalQueue()))
    await coordinator.run()
    return coordinator


async def test_finishes_once_and_last(stage: Stage, brisk: None, ground: Any):
    """The end of a run is its last event, with counts, however many coordinators look at it."""
    await stage.begin()
    for t in range(6):
        await stage.play(t, 6)
        await stage.fold(t)
    first, second = RunCoordinator(stage.log, ground(stage.queue)), stage.log
    assert await first.run() == "finished"
    assert (await coordinate(second, ground)).conductor.control == "finished"
    events = [one async for page in stage.log.pages(0) for one in page]
    assert [one.kind for one in events].count("run_finished") == 1
    finished = decode_as(events[-1], RunFinished)
    assert finished.outcome == "completed"
    assert (finished.counts.episodes, finished.counts.diagnosed, finished.counts.folded) == (6, 6, 6)


async def test_wrong_recalls_are_noted_once(stage: Stage, brisk: None, ground: Any):
    """A wrong recall is noted in the run's stream before its end, and not again by the next coordinator."""
    await stage.begin(lag=1, concurrency=1)
    wrong: Sequence[str] = ()
    for t in range(6):
        await stage.play(t, 6)
        await stage.fold(t)
    events = list(stage.made.events)
    log = ListLog(RunId("made"), SystemClock())
    for one in events:
        if one.kind == "run_finished":
            continue
        event = decode(one)
        if one.id == "made/episode-2/1":
            event, wrong = replace(event, candidates=[]), [one.id]
        await log.append(one.stream, one.version, [draft(event)], Origin(cause=None))
    await coordinate(log, ground)
    await coordinate(log, ground)
    told = [decode(one) for one in await log.read_stream(RUN_STREAM)]
    assert [one.facts["event"] for one in told if isinstance(one, Noted)] == wrong
    assert isinstance(told[-1], RunFinished)
