"""Reads a run's log and enqueues the jobs that are due. Workers never enqueue; the log alone says what is missing.

It appends only what no worker can: `abandoned` for an act job lost three times, a degraded diagnosis for a lost
gate job, `run_finished`; and notes what it finds out about the run.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from events.checkpoint import Checkpoint
from events.codec import content_sha256, decode, draft
from events.ids import RUN_STREAM, StreamId, Version, episode_of, episode_stream
from events.kinds import (
    Abandoned,
    AnyEvent,
    Counts,
    Diagnosed,
    Noted,
    Operated,
    Outcome,
    Retrieved,
    RunFinished,
    RunStarted,
    Scored,
    Seeded,
    TasksListed,
)
from events.log import Recorded
from runtime.gate import degraded
from runtime.logger import Logger
from runtime.ports import Attempts, Basis, EventLog, Failures, Job, JobKind, JobQueue, Origin, StreamIndex, Taken
from runtime.schedule import ATTEMPTS, ENDINGS, Due, due
from workers.bank_store import named_store
from workers.gate_rates import GateRates
from workers.operational import budget_s
from workers.run_stream import tell

_log = Logger("chime.conductor")

#: how often in a row all workers must have refused a run before it is stopped: one may have been about to join
_REFUSALS = 3

Control = Literal["running", "paused", "stopped", "cancelled", "finished"]

_KINDS: tuple[JobKind, JobKind] = ("act", "diagnose")

#: which kind of job of which episode
_Work = tuple[JobKind, int]


@dataclass(slots=True)
class Progress:
    """What a run's log says so far, for the live line and the closing table."""

    #: s_t by episode, of valid scores
    scores: dict[int, bool] = field(default_factory=dict)
    labels: Counter[str] = field(default_factory=Counter)
    degraded: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    episodes: int = 0
    diagnosed: int = 0
    abandoned: int = 0
    folded: int = 0
    #: of the diagnoses that were read, which are not those before a checkpoint
    gate: GateRates = field(default_factory=GateRates)


class Conductor:
    """One run's open episodes and outstanding jobs. `see` events in position order."""

    def __init__(self, log: EventLog, queue: JobQueue, failures: Failures | None = None) -> None:
        self._events, self._queue, self._failures = log, queue, failures
        self._header: RunStarted | None = None
        self._tasks: list[str] = []
        #: items of the seed bank seen so far
        self._seeds = 0
        #: streams of episodes that are not folded, and how the others stand
        self._index: dict[StreamId, StreamIndex] = {}
        self._run_version = 0
        self._outstanding: dict[_Work, Job] = {}
        #: the last attempt of each work in the open window, and the first since somebody asked for fresh ones
        self._attempts: dict[_Work, int] = {}
        self._first: dict[_Work, int] = {}
        #: asked for by a coordinator before this one, and not again since
        self._inherited: set[_Work] = set()
        #: t (None: every episode) -> version of the event that asked for fresh attempts last
        self._asked_afresh: dict[int | None, int] = {}
        #: how often in a row no worker could serve the run
        self._refusals = 0
        self.progress = Progress()
        self.control: Control = "running"
        #: why it is paused or stopped
        self.reason = ""
        #: what it stopped over, as in `runtime.errors`; "" where it did not
        self.kind = ""
        #: as the run was last resumed with
        self._budget_s = 3600.0
        #: where recalls come from, likewise
        self.store = named_store({})
        #: ids of wrong recalls that the log names already
        self.recalls_noted: set[str] = set()

    @property
    def total(self) -> int:
        """Episodes the run has in all its epochs."""
        return self._header.tasks_total * self._header.config.epochs if self._header else 0

    @property
    def header(self) -> RunStarted | None:
        return self._header

    def begin(self, checkpoint: Checkpoint, own: Iterable[Recorded]) -> None:
        """Begin where `checkpoint` stands: events after it follow.

        Args:
            checkpoint: of the log; every episode with an event before it is folded.
            own: the run's own stream; what comes later is left for `see`.
        """
        state, tally = checkpoint.state, checkpoint.tally
        for one in own:
            if one.position <= state.position:
                self.see(one)
        self.progress = Progress(
            scores=dict.fromkeys(tally.succeeded, True) | dict.fromkeys(tally.failed, False),
            labels=Counter(tally.labels),
            degraded=Counter(tally.degraded),
            calls=tally.calls,
            episodes=tally.episodes,
            diagnosed=tally.diagnosed,
            abandoned=tally.abandoned,
            folded=state.banks.version,
        )

    def see(self, recorded: Recorded) -> None:
        """One more event of the log."""
        t = episode_of(recorded.stream)
        if t is not None:
            self._see_episode(t, recorded)
        elif recorded.stream == RUN_STREAM:
            self._run_version = recorded.version
            self._see_run(decode(recorded))
        elif recorded.kind == "folded":
            self.progress.folded = recorded.version
            t = recorded.version - 1
            self._index.pop(episode_stream(t), None)
            for kind in _KINDS:
                self._attempts.pop((kind, t), None)
                self._first.pop((kind, t), None)

    def _see_episode(self, t: int, recorded: Recorded) -> None:
        before = self._index.get(recorded.stream)
        positions = [*(before.positions if before else ()), recorded.position]
        self._index[recorded.stream] = StreamIndex(positions=positions, last_kind=recorded.kind)
        self.progress.episodes += recorded.version == 1
        if recorded.kind == "scored" or recorded.kind in ENDINGS:
            self._outstanding.pop(("act", t), None)
        if recorded.kind in ENDINGS:
            self._outstanding.pop(("diagnose", t), None)
        if recorded.kind in ("planned", "executed", "scored", *ENDINGS):
            self._count(t, decode(recorded))

    def _count(self, t: int, event: AnyEvent) -> None:
        match event:
            case Scored():
                if event.valid:
                    self.progress.scores[t] = event.success
            case Diagnosed():
                self.progress.diagnosed += 1
                if event.degraded is None:
                    self.progress.labels[event.label] += 1
                else:
                    self.progress.degraded[event.degraded] += 1
                self.progress.calls += event.usage.calls
                self.progress.gate.see(event)
            case Abandoned():
                self.progress.abandoned += 1
            case _:
                self.progress.calls += getattr(event, "usage").calls  # noqa: B009 - planned and executed have it

    def _see_run(self, event: AnyEvent) -> None:
        match event:
            case RunStarted():
                self._header, self._tasks = event, list(event.tasks)
                self._budget_s = budget_s(event.config.limits, self._budget_s)
                self.store = named_store(event.config.operational)
            case TasksListed():
                self._tasks.extend(event.tasks)
            case Seeded():
                self._seeds += len(event.items)
            case Operated():
                self._see_operated(event)
            case Noted():
                self._see_note(event)
            case RunFinished():
                self.control = "finished"
            case _:
                pass

    def _see_operated(self, event: Operated) -> None:
        if self.control == "cancelled":
            return  # for good
        match event.action:
            case "pause":
                self.control, self.reason = (
                    "paused",
                    f"{event.author}: {event.reason}" if event.reason else event.author,
                )
            case "resume":
                self.control, self.reason, self.kind = "running", "", ""
                # What was given up while the run stood still is tried afresh.
                self._afresh(None)
            case "requeue":
                self._afresh(episode_of(StreamId(event.target.rpartition("/")[2])))
            case "cancel":
                self.control, self.reason = "cancelled", event.reason
            case _:
                pass

    def _afresh(self, t: int | None) -> None:
        """Jobs of episode `t` (None: of each one) are asked for again, as if none had been lost."""
        self._asked_afresh[t] = self._run_version
        for work in [one for one in self._attempts if t in (None, one[1])]:
            self._outstanding.pop(work, None)
            self._first[work] = self._attempts[work] + 1
        self._refusals = 0

    def _see_note(self, event: Noted) -> None:
        match event.topic:
            case "run_stopped" if self.control != "cancelled":
                self.control, self.reason = "stopped", str(event.facts.get("reason", ""))
                self.kind = str(event.facts.get("kind", ""))
            case "operational":
                self._budget_s = budget_s(event.facts.get("limits", {}), self._budget_s)
                self.store = named_store(event.facts, self.store)
            case "recall_differs":
                self.recalls_noted.add(str(event.facts.get("event")))
            case _:
                pass

    async def take_over(self) -> None:
        """Go on from what was asked for before, by whomever: attempts are counted over all conductors of the run."""
        ours = {work: job for work, job in self._outstanding.items() if work not in self._inherited}
        self._outstanding, self._attempts, self._first, self._inherited = {}, {}, {}, set()
        header, found = self._header, dict[_Work, tuple[int, Attempts]]()
        for job, attempts in (await self._queue.asked(self._events.run)).items():
            known = found.get((job.kind, job.episode))
            if known is None or job.attempt > known[0]:
                found[job.kind, job.episode] = job.attempt, attempts
        for one in self._due(header, self.progress.folded) if header is not None else ():
            work: _Work = (one.kind, one.episode)
            # Where the gate was asked for too, the act job had succeeded, and the server has lost what it wrote.
            if work not in found or (one.kind == "act" and ("diagnose", one.episode) in found):
                continue
            attempt, attempts = found[work]
            afresh = max(self._asked_afresh.get(None, 0), self._asked_afresh.get(one.episode, 0))
            self._attempts[work] = attempt
            self._first[work] = attempts.first if attempts.told >= afresh else attempt + 1
            # Whether somebody still has it is asked with the others.
            self._outstanding[work] = job = self._job(work, attempt)
            if ours.get(work) != job:
                self._inherited.add(work)

    async def enqueue_due(self, folded: int, *, begin: bool = True) -> None:
        """Put every job that is due and not outstanding into its queue; without `begin`, of no episode that is new."""
        header = self._header
        if header is None or self.control not in ("running", "cancelled") or not self._begun(header):
            return
        works: list[_Work] = []
        for one in self._due(header, folded):
            work: _Work = (one.kind, one.episode)
            is_new = episode_stream(one.episode) not in self._index
            if work not in self._outstanding and not (is_new and (not begin or self.control == "cancelled")):
                works.append(work)
        await self._enqueue(works)

    async def _enqueue(self, works: Sequence[_Work]) -> list[Job]:
        jobs = [self._job(work, self._attempts.get(work, 0) + 1) for work in works]
        attempts = [
            Attempts(first=self._first.get(work, 1), told=self._run_version, folded=self.progress.folded)
            for work in works
        ]
        if jobs:
            await self._queue.enqueue_all(dict(zip(jobs, attempts, strict=True)), self._timeout_s)
        # Only now: a server that did not answer is asked again, and knows a job if it has it.
        for work, job in zip(works, jobs, strict=True):
            self._outstanding[work] = job
            self._attempts[work] = job.attempt
        self._inherited.difference_update(works)
        return jobs

    def _job(self, work: _Work, attempt: int) -> Job:
        return Job(kind=work[0], run=self._events.run, episode=work[1], attempt=attempt)

    def _begun(self, header: RunStarted) -> bool:
        """Whether task list and seed bank are whole: they may come in several events."""
        seeds = header.seed_bank.items if header.seed_bank is not None else None
        return len(self._tasks) >= header.tasks_total and self._seeds >= (seeds or 0)

    def _due(self, header: RunStarted, folded: int) -> Sequence[Due]:
        return due(
            self._index,
            folded=folded,
            total=self.total,
            lag=header.config.lag,
            concurrency=header.config.concurrency,
            tasks=self._tasks,
            depends_on=header.config.depends_on,
        )

    async def lost(self) -> list[Job]:
        """Outstanding jobs that nobody waits for or works on. Read the log once more before acting on it."""
        return await self._queue.lost(list(self._outstanding.values())) if self._outstanding else []

    async def under_way(self) -> bool:
        """Whether an outstanding job waits or is worked on."""
        return len(await self.lost()) < len(self._outstanding)

    async def reissue(self, jobs: Sequence[Job]) -> None:
        """Enqueue lost jobs again, and end the episode of one that was lost too often."""
        gone = [job for job in jobs if self._outstanding.get((job.kind, job.episode)) == job]  # else done meanwhile
        await self._queue.discard(gone)
        for job in gone:
            work: _Work = (job.kind, job.episode)
            if self.control == "cancelled" and episode_stream(job.episode) not in self._index:
                del self._outstanding[work]
            elif job.attempt - self._first.get(work, 1) + 1 >= ATTEMPTS:
                await self._give_up(job)
            elif self.control in ("running", "cancelled"):
                # One that another coordinator asked for ended with that coordinator's workers: no news to anybody.
                say = _log.info if work in self._inherited else _log.warning
                (again,) = await self._enqueue([work])
                say("job_reissued", run_id=job.run, episode=job.episode, stage=job.kind, attempt=again.attempt)

    async def look_for_workers(self) -> None:
        """Stop a run that every live worker refuses: other code, benchmark or embedder."""
        why = await self._queue.refused(self._events.run) if self._outstanding else None
        self._refusals = 0 if why is None else self._refusals + 1
        if why is not None and self._refusals >= _REFUSALS and self.control == "running":
            await self._queue.forget(self._events.run)
            await self.tell(Noted(topic="run_stopped", facts={"kind": "not_served", "reason": why}))

    async def _give_up(self, job: Job) -> None:
        stream = episode_stream(job.episode)
        recorded = await self._events.read_stream(stream)
        kinds = {one.kind for one in recorded}
        if kinds.intersection(ENDINGS if job.kind == "diagnose" else ("scored", *ENDINGS)):
            return  # done meanwhile; the next round reads it
        event: Abandoned | Diagnosed
        if job.kind == "act":
            stage: Literal["planning", "execution", "scoring"] = "planning"
            if "planned" in kinds:
                stage = "scoring" if "executed" in kinds else "execution"
            event = Abandoned(stage=stage, reason=await self._why(job), attempts=job.attempt)
        else:
            events = [decode(one) for one in recorded]
            scored = next(one for one in events if isinstance(one, Scored))
            retrieved = [one for one in events if isinstance(one, Retrieved)]
            event = degraded("worker_lost", success=scored.success, retrieved=retrieved)
        origin = Origin(cause=None, attempt=job.attempt)
        if recorded:
            last = recorded[-1]
            sha256 = content_sha256(last.kind, last.data)
            basis = Basis(stream=stream, version=last.version, sha256=sha256)
            origin = Origin(cause=last.id, attempt=job.attempt, basis=basis)
        result = await self._events.append(stream, Version(len(recorded) + 1), [draft(event)], origin)
        _log.error("job_given_up", run_id=job.run, episode=job.episode, stage=job.kind, attempts=job.attempt)
        if not isinstance(result, Taken):
            del self._outstanding[job.kind, job.episode]

    async def _why(self, job: Job) -> str:
        """What the last attempt failed of; where none failed, workers died with them."""
        failed = [
            one
            for one in (await self._failures.of(job.run) if self._failures is not None else [])
            if (one.kind, one.episode) == (job.kind, job.episode)
        ]
        return f"{failed[-1].error}: {failed[-1].message}" if failed else "worker_lost"

    def ended(self, folded: int) -> Outcome | None:
        """How the run has ended, once nothing of it is left to do."""
        if self._header is None or self.control == "finished":
            return None
        if folded == self.total:
            return "completed"
        if self.control == "cancelled" and not self._outstanding and not self._open():
            return "stopped"
        return None

    def _open(self) -> bool:
        """Whether an episode has started and not ended."""
        return any(one.last_kind not in ENDINGS for one in self._index.values())

    async def finish(self, outcome: Outcome, folded: int) -> None:
        """Append `run_finished`, the last event of the log."""
        event = RunFinished(
            outcome=outcome,
            counts=Counts(
                episodes=self.progress.episodes,
                diagnosed=self.progress.diagnosed,
                degraded=sum(self.progress.degraded.values()),
                abandoned=self.progress.abandoned,
                folded=folded,
            ),
        )
        await self.tell(event)
        _log.info("run_finished", run_id=self._events.run, outcome=outcome, episodes=event.counts.episodes)

    @property
    def _timeout_s(self) -> float:
        """The time one job may take, seconds: the episode's budget and room for the gate."""
        return self._budget_s + 60.0

    async def tell(self, event: AnyEvent, cause: str | None = None) -> None:
        """Append `event` to the run's own stream, after whatever else is written there."""
        self._run_version = await tell(self._events, event, cause=cause, length=self._run_version)
