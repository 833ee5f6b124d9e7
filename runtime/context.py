"""What an episode is played with, and how far it is: the run's header and ports, and its stream as the log has it."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from events.codec import content_sha256, decode
from events.ids import RunId, Stage, StreamId, Version
from events.kinds import AnyEvent, Evaluator, Executed, Planned, Retrieved, RunConfig, Scored
from events.parameters import Parameters
from runtime.planners import Planner
from runtime.ports import BankReader, Blobs, ChatModel, Clock, Embedder, Environment, EventLog
from runtime.prompting import Prompts
from runtime.reflections import Reflection
from runtime.schedule import ENDINGS
from runtime.settings import EpisodeSettings
from runtime.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a run's episodes are played with: its header as data, and the ports."""

    config: RunConfig
    #: of one epoch in order
    tasks: Sequence[Task]
    settings: EpisodeSettings
    #: of the run's policy
    parameters: Parameters
    prompts: Prompts
    planner: Planner
    reflection: Reflection
    evaluator: Evaluator
    log: EventLog
    blobs: Blobs
    model: ChatModel
    embedder: Embedder
    banks: BankReader
    environment: Environment
    clock: Clock

    @property
    def run(self) -> RunId:
        return self.log.run

    def task(self, t: int) -> Task:
        return self.tasks[t % len(self.tasks)]


class Progress(Struct, frozen=True, kw_only=True):
    """One episode as its stream stands: its events in order, from version 1."""

    events: list[AnyEvent]
    #: of the last one, as of a draft; "" for none
    sha256: str = ""

    def retrieved(self, stage: Stage) -> Retrieved | None:
        return next((one for one in self.events if isinstance(one, Retrieved) and one.stage == stage), None)

    @property
    def retrievals(self) -> list[Retrieved]:
        return [one for one in self.events if isinstance(one, Retrieved)]

    @property
    def planned(self) -> Planned | None:
        return next((one for one in self.events if isinstance(one, Planned)), None)

    @property
    def executed(self) -> Executed | None:
        return next((one for one in self.events if isinstance(one, Executed)), None)

    @property
    def scored(self) -> Scored | None:
        return next((one for one in self.events if isinstance(one, Scored)), None)

    @property
    def ended(self) -> bool:
        return bool(self.events) and self.events[-1].KIND in ENDINGS

    @property
    def next_version(self) -> Version:
        return Version(len(self.events) + 1)


async def progress(log: EventLog, stream: StreamId) -> Progress:
    """The episode as the log has it."""
    there = await log.read_stream(stream)
    sha256 = content_sha256(there[-1].kind, there[-1].data) if there else ""
    return Progress(events=[decode(one) for one in there], sha256=sha256)
