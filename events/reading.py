"""A log read in order: what takes more than one of its events to see, short of folding.

`events.consistency` asks one event; `events.verify` asks the fold. Between them lies what a log says twice, or what
its header promises.
"""

from dataclasses import dataclass, field

from events.codec import decode
from events.consistency import vectors
from events.errors import BadInput, FoldMismatch, UnreadableEvent, VersionGap
from events.ids import STAGES, MemoryId, Stage, StreamId, episode_of, memory_order
from events.kinds import (
    Abandoned,
    AnyEvent,
    Counts,
    Diagnosed,
    Folded,
    Retrieved,
    RunFinished,
    RunStarted,
    Scored,
    Seeded,
    TasksListed,
)
from events.log import Recorded
from events.vectors import Vector

#: the policy whose two queries search both banks: an id of either may answer
_ONE_BANK = "one-bank"


@dataclass(slots=True)
class _Episode:
    """What the events of an open episode said that its diagnosis says again."""

    chosen: dict[Stage, list[MemoryId]] = field(default_factory=dict)
    success: bool | None = None


@dataclass(slots=True)
class Reading:
    """Feed it a log in position order; memory for its streams and open episodes, not for events."""

    events: int = 0
    _header: RunStarted | None = None
    _tasks: int = 0
    _finished: bool = False
    _versions: dict[StreamId, int] = field(default_factory=dict)
    _open: dict[StreamId, _Episode] = field(default_factory=dict)
    _diagnosed: int = 0
    _degraded: int = 0
    _abandoned: int = 0
    _folded: int = 0
    _episodes: int = 0

    def feed(self, recorded: Recorded) -> AnyEvent:
        """The next event, which fits those before it.

        Raises:
            VersionGap: a position or version that is not the next.
            UnreadableEvent: as `events.codec.decode`; a stream of another sort; a vector that is none; a log that does
                not begin with `run_started`, begins twice, or goes on after `run_finished`.
            FoldMismatch: not what the header or earlier events say.
        """
        self._check_order(recorded)
        event = decode(recorded)
        self._check_place(recorded, event)
        for vector in vectors(event):
            self._check_vector(recorded, vector)
        match event:
            case RunStarted():
                self._header, self._tasks = event, len(event.tasks)
            case TasksListed():
                self._tasks += len(event.tasks)
            case Retrieved():
                self._check_bank(recorded, event.stage, [one.id for one in event.candidates])
                chosen = [one.id for one in event.candidates if one.chosen]
                self._open.setdefault(recorded.stream, _Episode()).chosen[event.stage] = chosen
            case Scored():
                self._open.setdefault(recorded.stream, _Episode()).success = event.success
            case Diagnosed():
                self._check_diagnosed(recorded, event)
            case Abandoned():
                self._abandoned += 1
                self._open.pop(recorded.stream, None)
            case Folded():
                self._folded += 1
            case RunFinished():
                self._check_counts(recorded, event.counts)
                self._finished = True
            case _:
                pass
        self.events += 1
        return event

    def _check_order(self, recorded: Recorded) -> None:
        if recorded.position != self.events + 1:
            raise VersionGap(f"position of {recorded.id}", self.events + 1, recorded.position)
        expected = self._versions.get(recorded.stream, 0) + 1
        if recorded.version != expected:
            raise VersionGap(f"version of {recorded.id}", expected, recorded.version)
        self._versions[recorded.stream] = expected

    def _check_place(self, recorded: Recorded, event: AnyEvent) -> None:
        own = event.STREAM
        if recorded.stream != own and (own != "episode" or episode_of(recorded.stream) is None):
            raise UnreadableEvent(recorded.id, f"{recorded.kind} belongs to the stream of the {own}")
        if self._finished:
            raise UnreadableEvent(recorded.id, "it stands behind run_finished, the last event of a log")
        if (self._header is None) != isinstance(event, RunStarted):
            raise UnreadableEvent(recorded.id, "a log begins with run_started, and only once")
        if event.STREAM == "episode" and recorded.version == 1:
            if self._header is not None and self._tasks != self._header.tasks_total:
                raise FoldMismatch(recorded.id, "number of tasks", self._header.tasks_total, self._tasks)
            self._episodes += 1
        if isinstance(event, Seeded | TasksListed) and self._episodes:
            raise UnreadableEvent(recorded.id, f"{recorded.kind} comes before any episode's event")

    def _check_vector(self, recorded: Recorded, vector: Vector) -> None:
        try:
            vector.exact()
        except BadInput as error:
            raise UnreadableEvent(recorded.id, str(error)) from error
        expected = self._header.embedder.dimension if self._header is not None else vector.dim
        if vector.dim != expected:
            raise FoldMismatch(recorded.id, "dimension of a vector", vector.dim, expected)

    def _check_bank(self, recorded: Recorded, stage: Stage, ids: list[MemoryId]) -> None:
        if self._header is None or self._header.config.policy.name == _ONE_BANK:
            return
        for one in ids:
            if (born := STAGES[memory_order(one)[2]]) != stage:
                raise FoldMismatch(recorded.id, f"bank of {one}, retrieved for {stage},", born, stage)

    def _check_diagnosed(self, recorded: Recorded, event: Diagnosed) -> None:
        episode = self._open.pop(recorded.stream, _Episode())
        for stage in STAGES:
            ids = event.retrieved.of(stage)
            self._check_bank(recorded, stage, ids)
            chosen = episode.chosen.get(stage, ids)
            if ids != chosen:
                raise FoldMismatch(recorded.id, f"retrieved.{stage}", ids, chosen)
        if episode.success is not None and event.success != episode.success:
            raise FoldMismatch(recorded.id, "success", event.success, episode.success)
        self._diagnosed += 1
        self._degraded += event.degraded is not None

    def _check_counts(self, recorded: Recorded, counts: Counts) -> None:
        counted = Counts(
            episodes=self._episodes,
            diagnosed=self._diagnosed,
            degraded=self._degraded,
            abandoned=self._abandoned,
            folded=self._folded,
        )
        if counts != counted:
            raise FoldMismatch(recorded.id, "counts", counts, counted)
