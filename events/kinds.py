"""One struct per kind of event: what happened, immutable, complete for whoever folds it.

The field names are the format (docs/events.md). Fields may be added; none is renamed or changes its meaning without a
new `SCHEMA` number and an upcaster.
"""

from typing import Any, ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType

from events.ids import Label, MemoryId, Stage
from events.operations import Operation
from events.ranges import Count, FoldedVersion, Lag, Ordinal, Reward, Sha256, ShareE4
from events.vectors import Vector

Source = Literal["weaviate", "exact", "fallback"]
Outcome = Literal["completed", "stopped", "failed"]


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """The data of one event; `KIND` and `SCHEMA` stand beside it in the log. A tree: it needs no garbage collector."""

    KIND: ClassVar[str]
    SCHEMA: ClassVar[int] = 1
    #: whose stream it belongs to: the run's, the projector's or an episode's
    STREAM: ClassVar[Literal["run", "projector", "episode"]] = "episode"


class PolicyConfig(Struct, frozen=True, kw_only=True):
    """Which policy decides, with every parameter it has."""

    name: str
    version: Ordinal
    #: name -> integer, or decimal or mode as a string (`events.parameters.Parameters.recorded`)
    parameters: dict[str, int | str]


class RunConfig(Struct, frozen=True, kw_only=True):
    """Every parameter of a run. Semantic ones may not change on resume; `operational` ones may."""

    policy: PolicyConfig
    #: which rules of evolve, recall and digest the run goes by
    fold_version: Ordinal = 1
    #: L: episode t reads bank version max(0, t+1-L); `latest` reads the newest and records which
    lag: Lag
    #: reads version 0 throughout and learns nothing
    frozen: bool
    #: episodes in flight
    concurrency: Ordinal
    #: passes over the task list
    epochs: Ordinal
    #: role -> {model, base_url, temperature, max_tokens, ...}; key variables by name, never keys
    models: dict[str, dict[str, Any]]
    #: {name, version, domains, options, seed, ...}
    environment: dict[str, Any]
    #: {name, split}
    protocol: dict[str, Any]
    #: {seed, by}
    ordering: dict[str, Any]
    #: episode budget and step limits: {max_steps, max_errors, trajectory_chars, ...}
    limits: dict[str, Any]
    #: {planner, executor, gate} by name, and further choices of the episode
    agent: dict[str, Any]
    #: task id -> ids of tasks whose episodes must have ended before it starts (BFCL memory chains)
    depends_on: dict[str, list[str]] = {}
    #: tasks that prepare others: they run, but have no score of their own and teach nothing
    preparatory: list[str] = []
    #: names that every view of this run shows, such as `rehearsal`
    labels: list[str] = []
    #: timeouts, retries, addresses, slots: may differ on resume, kept for the reader
    operational: dict[str, Any] = {}


class EmbedderIdentity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a bank's vectors were made with; vectors of two fingerprints never meet."""

    fingerprint: str
    dimension: Ordinal
    #: vectors of texts that are the same for everybody, where a server embeds: it may be another model by the same name
    probes: list[Vector] = []


class SeedBank(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where version 0 comes from: the origin and its digest at that version."""

    run: str
    version: FoldedVersion
    digest: Sha256
    #: how many items the `seeded` events hold together; None in logs that do not say
    items: Count | None = None


class RunStarted(Event, frozen=True, kw_only=True):
    """The run header, first event of its log."""

    KIND: ClassVar[str] = "run_started"
    STREAM = "run"
    config: RunConfig
    #: ids of one epoch in order; episode t works on task t mod tasks_total
    tasks: list[str]
    tasks_total: Count
    #: prompt name -> hex SHA-256
    prompts: dict[str, Sha256]
    embedder: EmbedderIdentity
    #: version of the code
    code: str
    seed_bank: SeedBank | None


class TasksListed(Event, frozen=True, kw_only=True):
    """The next ids of a task list too long for one event; directly after `run_started`."""

    KIND: ClassVar[str] = "tasks_listed"
    STREAM = "run"
    tasks: list[str]


class SeededItem(Struct, frozen=True, kw_only=True):
    """One item of the seed bank, whole."""

    bank: Stage
    id: MemoryId
    scenario: str
    #: base text and bullets
    experience: str
    delta_sum: int
    n: Count
    #: how many bullets `experience` holds
    bullets: Count
    sources: list[Count]
    #: length of `sources`
    seeded_sources: Count
    inserted_at: FoldedVersion
    changed_at: FoldedVersion
    scenario_vector: Vector
    #: in order of arrival
    experience_vectors: list[Vector]


class Seeded(Event, frozen=True, kw_only=True):
    """Items of the seed bank in id order; they make version 0."""

    KIND: ClassVar[str] = "seeded"
    STREAM = "run"
    items: list[SeededItem]


class Query(Struct, frozen=True, kw_only=True, gc=False):
    """What was searched for."""

    text: str
    vector: Vector


class Candidate(Struct, frozen=True, kw_only=True, gc=False):
    """One of the at most N items at or above the floor, with its arithmetic of equation (5)."""

    id: MemoryId
    #: q . c in units of 2^-48, never clipped
    dot: int
    #: nearest float64 of dot / 2^48
    similarity: float
    delta_sum: int
    n: Count
    #: nearest float64 of delta_sum / (10000 (n + lambda)), before alpha and clip
    adjusted: float
    #: nearest float64 of similarity x (1 + clip(alpha x adjusted, -beta, beta))
    score: float
    #: 1, 2, 3 ... after the near-tie step
    rank: Ordinal
    #: among the first K
    chosen: bool


class Retrieved(Event, frozen=True, kw_only=True):
    """What a stage recalled, from which version, and what was passed over."""

    KIND: ClassVar[str] = "retrieved"
    stage: Stage
    bank_version: FoldedVersion
    query: Query
    candidates: list[Candidate]
    source: Source


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """Tokens as the endpoints counted them; null where one did not say, or said what cannot be true."""

    prompt_tokens: Count | None = 0
    completion_tokens: Count | None = 0
    calls: Count = 0
    #: of the prompts, those that an endpoint had read before, as far as one said so; absent where none did
    cached_tokens: Count | UnsetType = UNSET
    #: beside null: the whole, with our own count of the calls whose endpoint did not say; absent where nobody counted
    estimated_prompt_tokens: Count | UnsetType = UNSET
    estimated_completion_tokens: Count | UnsetType = UNSET

    @property
    def prompt_estimate(self) -> int | None:
        """Tokens of the prompts, counted or estimated; None where nobody did."""
        return _best(self.prompt_tokens, self.estimated_prompt_tokens)

    @property
    def completion_estimate(self) -> int | None:
        """Tokens of the answers, counted or estimated; None where nobody did."""
        return _best(self.completion_tokens, self.estimated_completion_tokens)

    def __add__(self, other: "Usage") -> "Usage":
        prompt = _both(self.prompt_tokens, other.prompt_tokens)
        completion = _both(self.completion_tokens, other.completion_tokens)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            calls=self.calls + other.calls,
            cached_tokens=_told(self.cached_tokens, other.cached_tokens),
            estimated_prompt_tokens=_estimate(prompt, self.prompt_estimate, other.prompt_estimate),
            estimated_completion_tokens=_estimate(completion, self.completion_estimate, other.completion_estimate),
        )


def _best(counted: int | None, estimated: int | UnsetType) -> int | None:
    if counted is not None:
        return counted
    return None if estimated is UNSET else estimated


def _both(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _told(a: int | UnsetType, b: int | UnsetType) -> int | UnsetType:
    if a is UNSET:
        return b
    return a if b is UNSET else a + b


def _estimate(counted: int | None, a: int | None, b: int | None) -> int | UnsetType:
    """The estimate of a sum: none where it was counted."""
    return UNSET if counted is not None or a is None or b is None else a + b


class Planned(Event, frozen=True, kw_only=True):
    """p_t."""

    KIND: ClassVar[str] = "planned"
    plan: str
    usage: Usage
    #: call ids `<stream>/<stage>/<ordinal>`
    calls: list[str]


class EnvironmentAttempt(Struct, frozen=True, kw_only=True, gc=False):
    """An attempt that the environment, not the agent, ended."""

    attempt: Ordinal
    reason: str


class Executed(Event, frozen=True, kw_only=True):
    """tau_t, by hash."""

    KIND: ClassVar[str] = "executed"
    #: hex SHA-256 of the body in the blob store
    trajectory: Sha256
    steps: Count
    errors: Count
    #: why it ended: `done`, `max_steps`, `max_errors`, `timeout`, `env_crashed`, `env_timeout`, `model` ...
    stop: str
    attempts: list[EnvironmentAttempt]
    usage: Usage
    calls: list[str]


class Evaluator(Struct, frozen=True, kw_only=True, gc=False):
    name: str
    version: str


class Scored(Event, frozen=True, kw_only=True):
    """s_t, from the benchmark's own evaluator."""

    KIND: ClassVar[str] = "scored"
    success: bool
    reward: Reward
    evaluator: Evaluator
    breakdown: dict[str, Any]

    @property
    def valid(self) -> bool:
        """Whether it says something about the agent: not where the environment failed for good."""
        return self.breakdown.get("valid") is not False


class RetrievedIds(Struct, frozen=True, kw_only=True, gc=False):
    """The chosen ids of both stages, in rank order."""

    planning: list[MemoryId]
    execution: list[MemoryId]

    def of(self, stage: Stage) -> list[MemoryId]:
        return self.planning if stage == "planning" else self.execution


class Experience(Struct, frozen=True, kw_only=True, gc=False):
    """(c_new, e_new) of one stage, with the gate's own flags and our lint."""

    scenario: str
    experience: str
    scenario_vector: Vector
    experience_vector: Vector
    concrete: bool
    actionable: bool
    #: concrete and actionable and no lint reason
    acceptable: bool
    lint: list[str]
    #: the gate's own word, units of 1e-4, in [0, 10000]; only where the policy asks for it
    usefulness_e4: ShareE4 | None = None


class StageExperiences(Struct, frozen=True, kw_only=True, gc=False):
    planning: Experience | None = None
    execution: Experience | None = None

    def of(self, stage: Stage) -> Experience | None:
        return self.planning if stage == "planning" else self.execution


class MergeProposal(Struct, frozen=True, kw_only=True, gc=False):
    """A text the model wrote for the item that looked nearest to the diagnosing worker."""

    target: MemoryId
    #: hex SHA-256 of the UTF-8 bytes of the target's experience
    target_sha256: Sha256
    text: str


class MergeProposals(Struct, frozen=True, kw_only=True, gc=False):
    planning: MergeProposal | None = None
    execution: MergeProposal | None = None

    def of(self, stage: Stage) -> MergeProposal | None:
        return self.planning if stage == "planning" else self.execution


class Diagnosed(Event, frozen=True, kw_only=True):
    """g_t of equation (6) and all else that the fold needs: nothing is looked up."""

    KIND: ClassVar[str] = "diagnosed"
    #: s_t
    success: bool
    #: a_t
    label: Label
    #: gamma_t in units of 1e-4, an integer in [0, 10000]
    confidence_e4: ShareE4
    retrieved: RetrievedIds
    #: within `retrieved`, each once
    misleading: list[MemoryId]
    #: distinct names the gate gave that were not retrieved
    misleading_dropped: Count
    experiences: StageExperiences
    merge_proposals: MergeProposals
    #: why there was no usable judgement; then no bank changes
    degraded: str | None
    usage: Usage
    calls: list[str]
    #: what was wrong with each answer of the gate that could not be read, in words of our own; absent where all could
    unread: list[str] | UnsetType = UNSET


class Abandoned(Event, frozen=True, kw_only=True):
    """The episode ends without a diagnosis."""

    KIND: ClassVar[str] = "abandoned"
    stage: Literal["planning", "execution", "scoring"]
    reason: str
    attempts: Count


class Folded(Event, frozen=True, kw_only=True):
    """M_{t+1}, by digest, and the operations that lead to it from M_t."""

    KIND: ClassVar[str] = "folded"
    STREAM = "projector"
    #: t
    episode: Count
    #: t + 1
    bank_version: FoldedVersion
    #: hex SHA-256 of the banks at that version
    digest: Sha256
    operations: list[Operation]


class Operated(Event, frozen=True, kw_only=True):
    """What a person did to the run."""

    KIND: ClassVar[str] = "operated"
    STREAM = "run"
    action: str
    target: str
    author: str
    reason: str


class Noted(Event, frozen=True, kw_only=True):
    """What the runtime learned that a later reader needs."""

    KIND: ClassVar[str] = "noted"
    STREAM = "run"
    topic: str
    facts: dict[str, Any]


class Counts(Struct, frozen=True, kw_only=True):
    """What a finished run's log holds."""

    #: episode streams in the log
    episodes: Count
    diagnosed: Count
    #: those of `diagnosed` with a reason
    degraded: Count
    abandoned: Count
    folded: Count


class RunFinished(Event, frozen=True, kw_only=True):
    """The last event of a run that cannot go on."""

    KIND: ClassVar[str] = "run_finished"
    STREAM = "run"
    outcome: Outcome
    counts: Counts


AnyEvent = (
    RunStarted
    | TasksListed
    | Seeded
    | Retrieved
    | Planned
    | Executed
    | Scored
    | Diagnosed
    | Abandoned
    | Folded
    | Operated
    | Noted
    | RunFinished
)

KINDS: dict[str, type[AnyEvent]] = {
    kind.KIND: kind
    for kind in (
        RunStarted,
        TasksListed,
        Seeded,
        Retrieved,
        Planned,
        Executed,
        Scored,
        Diagnosed,
        Abandoned,
        Folded,
        Operated,
        Noted,
        RunFinished,
    )
}
