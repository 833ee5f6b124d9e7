"""The protocols through which an episode sees the world. `infra/` implements them; tests have their own."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from msgspec import Struct

from events.bank import Banks, Item
from events.checkpoint import Checkpoint
from events.ids import BankVersion, MemoryId, Position, RunId, Stage, StreamId, Version
from events.kinds import Candidate, EmbedderIdentity, Query, Source
from events.log import Draft, Recorded
from events.vectors import Vector
from runtime.task import Description, Evaluation, Message, Opening, StepResult, Task, Tool

# -- log -------------------------------------------------------------------------------------------------------------


class Basis(Struct, frozen=True, kw_only=True):
    """An event that a new one was made from: a server may have lost it meanwhile, and another one be in its place."""

    stream: StreamId
    version: Version
    #: as of a draft
    sha256: str


class Origin(Struct, frozen=True, kw_only=True):
    """Where an event came from: what it records of that, and what must still be in the log for it to be written."""

    cause: str | None
    attempt: int = 1
    #: not recorded; None = nothing
    basis: Basis | None = None


class Appended(Struct, frozen=True, kw_only=True):
    """Every draft is in the log, whether this call or an earlier one wrote it."""

    positions: list[Position]
    #: how many of them this call wrote
    written: int


class Taken(Struct, frozen=True, kw_only=True):
    """A different event holds one of the versions; nothing was written. The caller goes on from `stored`."""

    stored: Recorded


class StreamIndex(Struct, frozen=True, kw_only=True):
    """Where the events of one stream stand."""

    positions: list[Position]
    last_kind: str


class EventLog(Protocol):
    """The events of one run. Appending the same event again is harmless and answered with its position."""

    @property
    def run(self) -> RunId: ...

    async def append(
        self, stream: StreamId, first: Version, drafts: Sequence[Draft], origin: Origin
    ) -> Appended | Taken:
        """Put `drafts` at versions first, first + 1, ... of `stream`, all or none.

        Raises:
            VersionGap: `first` is above the stream's next version, or the basis is not in the log any more.
            RunEnded: the log ends with `run_finished`, and an event is not there yet.
            Unreachable: the server does not answer.
        """
        ...

    async def read_stream(self, stream: StreamId) -> list[Recorded]:
        """All events of one stream in order, in one round trip; empty for a stream that does not exist."""
        ...

    async def length(self, stream: StreamId) -> int:
        """How many events `stream` has: its last version."""
        ...

    async def read(self, after: Position, limit: int, kinds: frozenset[str] | None = None) -> list[Recorded]:
        """Up to `limit` events with positions above `after`, in order; of `kinds` only, where given.

        `limit` counts what is read, not what passes `kinds`; an empty answer means the end only without `kinds`.
        """
        ...

    def pages(self, after: Position, kinds: frozenset[str] | None = None) -> AsyncIterator[list[Recorded]]:
        """Every event above `after` up to the head at the time of the call, page by page."""
        ...

    async def wait(self, after: Position, timeout_s: float) -> bool:
        """Whether the head is above `after`, at once or within `timeout_s`."""
        ...

    async def index(self) -> dict[StreamId, StreamIndex]:
        """Where every stream stands."""
        ...

    async def head(self) -> Position:
        """The last position; 0 for an empty log."""
        ...

    async def checkpoint(self) -> Checkpoint | None:
        """What the log says up to some position of its past, for a reader that would begin there; None = read it all.

        Every version that an open episode may read is at or above the checkpoint's.
        """
        ...


class LogOverview(Struct, frozen=True, kw_only=True):
    """What a list of runs says about one log, without reading it."""

    run: RunId
    #: the last position
    head: Position = Position(0)
    #: of the first event, whatever its stream
    first_kind: str = ""
    first_at: str = ""
    #: of the last one
    last_at: str = ""
    #: the run's own stream in order, `seeded` aside
    told: list[Recorded] = []
    #: the newest `folded`, and how many there are
    folded: Recorded | None = None
    folds: int = 0
    #: episode streams
    episodes: int = 0
    #: t -> s_t; None where the environment failed, so that there is no score of the agent
    scores: dict[int, bool | None] = {}
    #: what is wrong with the log as it is kept; "" for nothing
    damage: str = ""


class LogStore(Protocol):
    """All runs of a server."""

    def open(self, run: RunId) -> EventLog: ...

    async def runs(self) -> list[RunId]:
        """Every run with at least one event, in id order."""
        ...

    async def overview(self) -> list[LogOverview]:
        """Every run of `runs` at a glance; the cost hardly grows with the length of the logs."""
        ...

    async def set_aside(self) -> frozenset[RunId]:
        """Runs that were restored and not taken up since: records, which a coordinator leaves alone."""
        ...

    async def take_up(self, run: RunId) -> None:
        """Somebody goes on with `run` knowingly: it is a run like any other from now on."""
        ...

    async def delete(self, run: RunId, *, dry_run: bool = False) -> dict[str, int]:
        """Remove a run's keys; what -> how many were (or would be) removed."""
        ...

    async def restore(self, run: RunId, pages: AsyncIterator[Sequence[Recorded]]) -> Position:
        """Write the log of `run` as it was recorded elsewhere, positions, `at`, `cause` and `attempt` included.

        Whole or not at all: nobody sees a part of it. It is somebody's record: set aside until it is taken up. Its last
        position.

        Raises:
            Mismatch: `run` has events already.
            VersionGap: an event of `pages` that is not the next of its stream or log.
            Unreachable: the server does not answer.
        """
        ...


class Blobs(Protocol):
    """Bodies too large for an event, by the hex SHA-256 of their bytes, per run."""

    async def put(self, run: RunId, body: bytes) -> str:
        """Store `body` once; its hash."""
        ...

    async def put_many(self, run: RunId, bodies: Sequence[bytes]) -> list[str]:
        """Store each of `bodies` once, in one go; their hashes, in order."""
        ...

    async def get(self, run: RunId, sha256: str) -> bytes:
        """The body.

        Raises:
            MissingBlob: not there, or what is there has another hash.
        """
        ...

    async def hashes(self, run: RunId) -> list[str]:
        """Every hash of the run, sorted."""
        ...

    async def discard(self, run: RunId, hashes: Collection[str]) -> None:
        """Remove these bodies, where they are there."""
        ...

    async def delete(self, run: RunId, *, dry_run: bool = False) -> int:
        """Remove the run's bodies; how many there were."""
        ...


# -- jobs ------------------------------------------------------------------------------------------------------------

JobKind = Literal["act", "diagnose"]


class Job(Struct, frozen=True, kw_only=True):
    """A wake-up: advance this episode. Ids only."""

    kind: JobKind
    run: RunId
    #: t
    episode: int
    attempt: int = 1


class Attempts(Struct, frozen=True, kw_only=True):
    """How the attempts at a job are counted: kept beside the queue, for a conductor that takes over."""

    #: the first attempt that counts, since somebody asked for fresh ones
    first: int = 1
    #: how many events of the run's own stream the conductor had read
    told: int = 0
    #: episodes before it are over
    folded: int = 0


FIRST_ATTEMPTS = Attempts()


class JobQueue(Protocol):
    """Where the conductor puts jobs; workers take them on their own."""

    async def enqueue_all(self, jobs: Mapping[Job, Attempts], timeout_s: float) -> None:
        """Queue each of `jobs` unless the same (kind, run, episode, attempt) waits or runs already.

        That it was asked for is kept in the same step, until a later call says that its episode is over. Where this
        fails, some of them may be queued.
        """
        ...

    async def asked(self, run: RunId) -> dict[Job, Attempts]:
        """What was asked for of the episodes of `run` that are not over, whatever has become of it."""
        ...

    async def lost(self, jobs: Iterable[Job]) -> list[Job]:
        """Those of `jobs` that are neither waiting in a queue nor held by a live worker."""
        ...

    async def discard(self, jobs: Iterable[Job]) -> None:
        """Remove what lost `jobs` have left behind; one that is waiting or held stays."""
        ...

    async def refused(self, run: RunId) -> str | None:
        """Why no live worker can serve `run`, where each worker of a queue has said so; None where one may."""
        ...

    async def runs(self) -> set[RunId]:
        """The runs of which anything is there: a job that waits, is held or left behind, or what was asked for."""
        ...

    async def tidy(self, run: RunId) -> int:
        """Remove what the jobs of a finished run have left behind; how many live workers still hold."""
        ...

    async def forget(self, run: RunId, *, dry_run: bool = False) -> int:
        """Remove every trace of the run's jobs, held or not; how many there were."""
        ...


class Lease(Protocol):
    """Who coordinates a run. It serves liveness only: two that coordinate at once write the same."""

    async def hold(self, position: Position) -> int | None:
        """Take the lease or keep it, having read the log up to `position`; its term, None while another holds it.

        A term is one holder's time from taking to losing it: 1, 2, 3 ... over the life of the run.
        """
        ...

    async def release(self) -> None:
        """Let go of it at once, where we hold it."""
        ...


class Intake(Protocol):
    """Whether a server has room for more: episodes that are under way go on in any case."""

    async def stopped(self) -> str | None:
        """Why no episode should be begun now, in words; None where there is room."""
        ...


class JobFailure(Struct, frozen=True, kw_only=True):
    """A job that ended with an error: a dead letter. Kept beside the log, which it does not change."""

    kind: JobKind
    episode: int
    attempt: int
    #: as events have it
    at: str
    #: class of the error
    error: str
    #: its text, one line
    message: str
    #: equal for failures of one cause: error and message without numbers, ids and addresses, 12 hex digits
    fingerprint: str


class Failures(Protocol):
    """The dead letters of each run, newest last, a bounded number of them."""

    async def record(self, job: Job, error: BaseException) -> None: ...

    async def of(self, run: RunId) -> list[JobFailure]: ...


# -- model -----------------------------------------------------------------------------------------------------------

Role = Literal["planner", "executor", "gate"]


class ToolCall(Struct, frozen=True, kw_only=True):
    """One call the model asks for; `arguments` as the model wrote it, not necessarily JSON."""

    id: str
    name: str
    arguments: str


class TokenUsage(Struct, frozen=True, kw_only=True):
    """Tokens of one call as its endpoint counted them; None where it did not say, or what cannot be true."""

    prompt_tokens: int | None = None
    #: thinking included
    completion_tokens: int | None = None
    #: of `prompt_tokens`, those that the endpoint had read before
    cached_tokens: int | None = None
    #: of `completion_tokens`, those of the thinking
    reasoning_tokens: int | None = None
    #: our own count, only where the endpoint's is None
    estimated_prompt_tokens: int | None = None
    estimated_completion_tokens: int | None = None

    @property
    def estimated(self) -> bool:
        """Whether a count is ours and not the endpoint's."""
        return self.estimated_prompt_tokens is not None or self.estimated_completion_tokens is not None


class ChatRequest(Struct, frozen=True, kw_only=True):
    """One question to a model, complete: what is hashed, recorded and cached."""

    role: Role
    messages: list[Message]
    tools: list[Tool] = []
    #: JSON schema the answer should follow
    schema: dict[str, Any] | None = None


class ChatAnswer(Struct, frozen=True, kw_only=True):
    """What came back, checked for shape but not for sense."""

    content: str
    tool_calls: list[ToolCall]
    #: `stop`, `length`, `tool_calls`, `content_filter`, `refusal`, or what the endpoint says
    finish_reason: str
    usage: TokenUsage
    #: as the server names it
    model: str
    #: of the server's build and settings, as it names them
    fingerprint: str = ""
    #: thinking text; never goes into a prompt, plan, memory or trajectory
    reasoning: str = ""
    #: what was odd about it, sorted words: `answer_in_reasoning`, `choices`, `text_call`, `trimmed` ...
    flags: list[str] = []
    #: characters of the request that were not sent, since the context is smaller
    left_out: int = 0

    @property
    def silent(self) -> bool:
        """Whether its text shows nothing: none, white space, or characters that nobody sees."""
        return not any(one.isprintable() and not one.isspace() for one in self.content)


class CallKey(Struct, frozen=True, kw_only=True):
    """Which call of which stage this is; its id is `<stream>/<stage>/<ordinal>`."""

    run: RunId
    stream: StreamId
    #: `planning`, `execution`, `gate`
    stage: str
    #: from 1 inside the stage
    ordinal: int
    #: from 0; a repair turn or a retry with other words is another call of the same ordinal
    retry: int = 0

    @property
    def id(self) -> str:
        base = f"{self.stream}/{self.stage}/{self.ordinal}"
        return base if self.retry == 0 else f"{base}.{self.retry}"


class ChatModel(Protocol):
    """A model behind an endpoint, for all roles."""

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        """Ask once; transport retries happen inside.

        Raises:
            ModelRefused: the endpoint will not answer this request (4xx); asking again unchanged is useless.
            ModelUnavailable: no usable answer within the retries and the time limit.
            RunStopped: nothing on this endpoint can work (key, quota, unknown model).
        """
        ...


# -- embeddings and banks --------------------------------------------------------------------------------------------

Side = Literal["query", "document"]


class Embedder(Protocol):
    """Texts to unit vectors in fixed point."""

    @property
    def identity(self) -> EmbedderIdentity: ...

    async def embed(self, texts: Sequence[str], side: Side) -> list[Vector]:
        """One vector per text, in order.

        Raises:
            EmbeddingFailed: a vector that is zero, not finite, of another dimension, or missing.
        """
        ...


class Recalled(Struct, frozen=True, kw_only=True):
    """The candidates of one recall with the items behind the chosen ones."""

    candidates: list[Candidate]
    #: the chosen items as of the version read, in rank order
    chosen: list[Item]
    source: Source
    #: the `folded` that made the version read; None for version 0, and where an archive holds it
    basis: Basis | None = None


class BankReader(Protocol):
    """A run's banks as a worker reads them, at versions in [newest - L, newest]."""

    async def newest(self) -> BankVersion: ...

    async def recall(self, stage: Stage, query: Query, version: BankVersion) -> Recalled:
        """Equation (5) over the stage's bank at `version`; waits until that version is there."""
        ...

    async def at(self, version: BankVersion) -> Banks:
        """The banks at `version`; waits until it is there."""
        ...

    async def items(self, ids: Sequence[MemoryId], version: BankVersion) -> list[Item]:
        """Those of `ids` that are live at `version`, in the order asked."""
        ...


# -- environments ----------------------------------------------------------------------------------------------------


class EnvironmentSession(Protocol):
    """A host leased to one episode from reset to evaluate."""

    async def reset(self, task: Task, episode_id: str, seed: int, options: Mapping[str, Any]) -> Opening:
        """Raises: EnvironmentCrashed, EnvironmentTimeout, EnvironmentFailed."""
        ...

    async def step(self, action: Message) -> StepResult:
        """One assistant message. Raises: as `reset`."""
        ...

    async def evaluate(self) -> Evaluation:
        """Once, after done or an abort. Raises: as `reset`."""
        ...


class Environment(Protocol):
    """A benchmark: its tasks, and sessions to work on them."""

    async def describe(self) -> Description: ...

    async def tasks(self, domain: str | None = None, split: str | None = None) -> list[Task]:
        """In the benchmark's canonical order."""
        ...

    def session(self) -> AbstractAsyncContextManager[EnvironmentSession]:
        """A session of its own; leaving it gives the host back, or ends it where it is not clean."""
        ...

    async def aclose(self) -> None:
        """End every host."""
        ...


# -- time ------------------------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Time as an input, so that tests wait for nothing."""

    def utc(self) -> str:
        """Now, as `YYYY-MM-DDTHH:MM:SS.ffffffZ`."""
        ...

    def monotonic(self) -> float:
        """Seconds from some fixed moment."""
        ...

    async def sleep(self, seconds: float) -> None: ...
