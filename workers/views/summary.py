"""One run in a row: feed it the log, read the figures."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from events.checkpoint import Checkpoint
from events.codec import decode
from events.errors import UnreadableEvent
from events.ids import STAGES, Position, RunId, Stage, episode_of
from events.kinds import (
    Abandoned,
    AnyEvent,
    Counts,
    Diagnosed,
    Executed,
    Folded,
    Noted,
    Planned,
    Retrieved,
    RunFinished,
    RunStarted,
    Scored,
    Seeded,
    TasksListed,
    Usage,
)
from events.log import Recorded
from events.operations import Inserted, Merged, Pruned
from infra.capabilities import ALL, learnt_from
from infra.pacing import Seen
from infra.spending import Spent
from runtime.ports import EventLog, LogOverview, Role
from runtime.settings import Budget, Price
from runtime.statistics import Interval, wilson
from workers.bank_store import named_store
from workers.budget import budget_in
from workers.gate_rates import GateFigures, GateRates
from workers.views.heading import heading
from workers.views.standing import Standing
from workers.views.usage import RoleUsage, TotalUsage, role_usage, total_usage

#: the kinds a summary reads
SUMMARY_KINDS = frozenset(
    {
        "run_started", "tasks_listed", "seeded", "retrieved", "planned", "executed", "scored", "diagnosed", "abandoned",
        "folded", "operated", "noted", "run_finished",
    }
)  # fmt: skip

#: of a reason that has no word before a colon as much is shown, characters
_WORD_CHARS = 40
_LABELS = ("planning", "execution", "both", "none")


class GoesWithout(Struct, frozen=True, kw_only=True):
    """What an endpoint's model was found not to take, and how it is asked since."""

    base_url: str
    model: str
    #: name as in `infra.capabilities.Abilities` -> what is in its place
    abilities: dict[str, Any]
    #: what it said, a short line each
    evidence: list[str]


class Summary(Struct, frozen=True, kw_only=True):
    """A run's figures."""

    run: RunId
    #: `completed`, `stopped`, `failed`, `cancelled`, `paused`, or `open`
    status: str
    #: why it is paused, stopped or cancelled
    reason: str
    labels: list[str]
    environment: str
    policy: str
    frozen: bool
    lag: int | str
    concurrency: int
    epochs: int
    embedder: str
    #: where recalls come from: `replica` or `weaviate`
    bank_store: str
    #: recalls by `source`: `exact`, `weaviate`, `fallback`
    recalls: dict[str, int]
    models: dict[str, str]
    #: endpoints that do not take all that is asked
    goes_without: list[GoesWithout]
    seed_bank: dict[str, Any] | None
    #: episodes the run has in all its epochs
    episodes_total: int
    #: that have begun
    episodes: int
    #: with a score of the agent: no preparatory ones, and none whose environment failed
    scored: int
    #: whose environment failed for good: no word about the agent, so they are not among the scored ones
    not_valid: int
    #: of the scored ones
    successes: int
    #: successes of the scored ones, Wilson
    score: Interval
    attributions: dict[str, int]
    degraded: dict[str, int]
    #: how the gate fared; None where that part of the log is not at hand
    gate: GateFigures | None
    abandoned: int
    #: for what: the first word of each reason, such as `context` or `worker_lost`
    abandonments: dict[str, int]
    #: newest bank version
    bank_version: int
    digest: str
    #: live items by birth stage
    bank_sizes: dict[Stage, int]
    operations: dict[str, int]
    usage: list[RoleUsage]
    #: of all roles; None where none is known
    total: TotalUsage | None
    #: what it may spend as it was last resumed; None = as much as it takes
    budget: Budget | None
    #: what it has spent, failed calls among it: only where its server is at hand
    spent: Spent | None = None
    #: how fast its endpoints are asked: those that are, and were lately
    pace: list[Seen] = []
    events: int
    #: of the first and last event
    started_at: str
    last_at: str
    counts: Counts | None
    #: why the archived part of the log is not at hand; "" = it is. Without it usage, operations, recalls and
    #: abandonments are unknown and empty; without its checkpoint attributions, degraded and bank sizes are so too, and
    #: `abandoned` is 0
    past: str = ""


def abandoned_why(one: Summary) -> str:
    """Behind a number of abandoned episodes: for what; "" where that is not at hand."""
    told = ", ".join(f"{reason} {count}" for reason, count in sorted(one.abandonments.items()))
    return f" ({told})" if told else ""


@dataclass(slots=True)
class Summarizer:
    """Feed it a log in position order (`SUMMARY_KINDS` suffice), then ask for `summary`."""

    prices: Mapping[str, Price] = field(default_factory=dict)
    _run: RunId | None = None
    _header: RunStarted | None = None
    _tasks: list[str] = field(default_factory=list)
    standing: Standing = field(default_factory=Standing)
    _counts: Counts | None = None
    #: s_t by episode, of valid scores
    scores: dict[int, bool] = field(default_factory=dict)
    #: episodes whose environment failed for good
    not_valid: set[int] = field(default_factory=set)
    evaluators: set[str] = field(default_factory=set)
    _begun: set[int] = field(default_factory=set)
    _attributions: Counter[str] = field(default_factory=Counter)
    _degraded: Counter[str] = field(default_factory=Counter)
    _gate: GateRates = field(default_factory=GateRates)
    _operations: Counter[str] = field(default_factory=Counter)
    _recalls: Counter[str] = field(default_factory=Counter)
    _store: str = ""
    _sizes: Counter[Stage] = field(default_factory=Counter)
    _usage: dict[Role, Usage] = field(default_factory=dict)
    _budget: Budget = field(default_factory=Budget)
    _capabilities: list[Mapping[str, Any]] = field(default_factory=list)
    _abandoned: int = 0
    _abandonments: Counter[str] = field(default_factory=Counter)
    _version: int = 0
    _digest: str = ""
    _position: int = 0
    _first_at: str = ""
    _last_at: str = ""
    #: as in a summary
    past: str = ""
    _judged: bool = True

    def begin(self, checkpoint: Checkpoint, own: Iterable[Recorded], past: str) -> None:
        """Begin where `checkpoint` stands: events after it follow; of `own`, the run's stream, later ones stay out."""
        state, tally = checkpoint.state, checkpoint.tally
        for one in own:
            if one.position <= state.position:
                self.feed(one)
        self.past, self._position = past, state.position
        self.scores = dict.fromkeys(tally.succeeded, True) | dict.fromkeys(tally.failed, False)
        self._begun, self._abandoned = set(range(tally.episodes)), tally.abandoned
        self._attributions, self._degraded = Counter(tally.labels), Counter(tally.degraded)
        self._version, self._digest = state.banks.version, state.banks.digest()
        self._sizes = Counter(state.banks.sizes())

    def glance(self, seen: LogOverview, past: str) -> None:
        """All that an overview says; nothing follows."""
        for one in seen.told:
            self.feed(one)
        if seen.folded is not None:
            self.feed(seen.folded)
        self.past, self._judged = past, False
        self.scores = {t: outcome for t, outcome in seen.scores.items() if outcome is not None}
        self.not_valid = {t for t, outcome in seen.scores.items() if outcome is None}
        self._begun = set(range(seen.episodes))
        self._position, self._first_at, self._last_at = seen.head, seen.first_at, seen.last_at

    def feed(self, recorded: Recorded) -> None:
        """One more event.

        Raises:
            UnreadableEvent: data that is none, or an unknown kind or schema.
        """
        self._run, self._position, self._last_at = recorded.run, recorded.position, recorded.at
        self._first_at = self._first_at or recorded.at
        t = episode_of(recorded.stream)
        if t is not None:
            self._begun.add(t)
        if recorded.kind in SUMMARY_KINDS:
            event = decode(recorded)
            if t is not None:
                self._see_episode(t, event)
            else:
                self._see_run(event)

    def _see_episode(self, t: int, event: AnyEvent) -> None:
        match event:
            case Retrieved():
                self._recalls[event.source] += 1
            case Planned():
                self._add("planner", event.usage)
            case Executed():
                self._add("executor", event.usage)
            case Scored():
                if event.valid:
                    self.scores[t] = event.success
                else:
                    self.not_valid.add(t)
                self.evaluators.add(f"{event.evaluator.name} {event.evaluator.version}".strip())
            case Diagnosed():
                self._add("gate", event.usage)
                self._gate.see(event)
                if event.degraded is None:
                    self._attributions[event.label] += 1
                else:
                    self._degraded[event.degraded] += 1
            case Abandoned():
                self._abandoned += 1
                self._abandonments[event.reason.partition(":")[0][:_WORD_CHARS]] += 1
            case _:
                pass

    def _see_run(self, event: AnyEvent) -> None:
        self.standing = self.standing.after(event)
        match event:
            case RunStarted():
                self._header, self._tasks = event, list(event.tasks)
                self._store = named_store(event.config.operational)
                self._budget = budget_in(event.config.operational)
            case Noted(topic="operational"):
                self._store = named_store(event.facts, self._store)
                self._budget = budget_in(event.facts, self._budget)
            case Noted(topic="capabilities"):
                self._capabilities.append(event.facts)
            case TasksListed():
                self._tasks.extend(event.tasks)
            case Seeded():
                self._sizes.update(item.bank for item in event.items)
            case Folded():
                self._fold(event)
            case RunFinished():
                self._counts = event.counts
            case _:
                pass

    def _fold(self, event: Folded) -> None:
        self._version, self._digest = event.bank_version, event.digest
        for operation in event.operations:
            match operation:
                case Inserted():
                    self._operations["insert"] += 1
                    self._sizes[operation.bank] += 1
                case Pruned():
                    self._operations["prune"] += 1
                    self._sizes[operation.bank] -= 1
                case Merged():
                    self._operations["merge"] += 1
                case _:
                    name = operation.__struct_config__.tag
                    self._operations[str(name)] += 1

    def _add(self, role: Role, usage: Usage) -> None:
        self._usage[role] = self._usage.get(role, Usage()) + usage

    @property
    def header(self) -> RunStarted:
        """Raises: UnreadableEvent: the log does not begin with one."""
        if self._header is None:
            raise UnreadableEvent(f"log of run {self._run}", "it does not begin with run_started")
        return self._header

    def task(self, t: int) -> str:
        """The task of episode `t`."""
        return self._tasks[t % len(self._tasks)]

    @property
    def _preparatory(self) -> frozenset[str]:
        return frozenset(self.header.config.preparatory)

    def task_scores(self) -> dict[str, list[bool]]:
        """Task -> s_t of its episodes in order; preparatory tasks have no score of their own and are left out.

        So are episodes whose environment failed.
        """
        preparatory = self._preparatory
        by_task: dict[str, list[bool]] = {}
        for t in sorted(self.scores):
            if (task := self.task(t)) not in preparatory:
                by_task.setdefault(task, []).append(self.scores[t])
        return by_task

    def summary(self) -> Summary:
        """The figures so far.

        Raises:
            UnreadableEvent: the log does not begin with `run_started`.
        """
        header, config = self.header, self.header.config
        assert self._run is not None  # noqa: S101 - the header was fed
        rows = [] if self.past else self._usage_rows(config.models)
        outcomes = [one for scores in self.task_scores().values() for one in scores]
        return Summary(
            run=self._run,
            status=self.standing.status,
            reason=self.standing.reason,
            **heading(header),
            goes_without=_goes_without(self._capabilities),
            bank_store=self._store,
            recalls={} if self.past else dict(sorted(self._recalls.items())),
            episodes=len(self._begun),
            scored=len(outcomes),
            not_valid=sum(self.task(t) not in self._preparatory for t in self.not_valid),
            successes=sum(outcomes),
            score=wilson(sum(outcomes), len(outcomes)),
            attributions={label: self._attributions[label] for label in _LABELS} if self._judged else {},
            degraded=dict(sorted(self._degraded.items())),
            gate=None if self.past or not self._judged else self._gate.figures(),
            abandoned=self._abandoned,
            abandonments={} if self.past else dict(self._abandonments),
            bank_version=self._version,
            digest=self._digest,
            bank_sizes={stage: self._sizes[stage] for stage in STAGES} if self._judged else {},
            operations={} if self.past else dict(sorted(self._operations.items())),
            usage=rows,
            total=total_usage(rows, sum(self._usage.values(), Usage())) if rows else None,
            budget=None if self._budget.is_free else self._budget,
            events=self._position,
            started_at=self._first_at,
            last_at=self._last_at,
            counts=self._counts,
            past=self.past,
        )

    def _usage_rows(self, models: Mapping[str, Mapping[str, Any]]) -> list[RoleUsage]:
        """What each role's calls came to, by the caller's prices, or by those that the run has recorded."""
        prices = {**self._budget.prices, **self.prices}
        rows = []
        for role, usage in sorted(self._usage.items()):
            model = str(models.get(role, {}).get("model", ""))
            rows.append(role_usage(role, model, usage, prices.get(model)))
        return rows


def _goes_without(noted: Iterable[Mapping[str, Any]]) -> list[GoesWithout]:
    return [
        GoesWithout(base_url=place.base_url, model=place.model, abilities=less, evidence=list(learnt.evidence))
        for place, learnt in sorted(learnt_from(noted).items())
        # How much a model holds is nothing that it does not take.
        if (less := replace(learnt.abilities, window=0).since(ALL))
    ]


async def summarized(prices: Mapping[str, Price], log: EventLog) -> Summarizer:
    """A summarizer that has read the whole log. Raises: as `Summarizer`, and as the log."""
    summarizer = Summarizer(prices=prices)
    async for page in log.pages(Position(0)):
        for recorded in page:
            summarizer.feed(recorded)
    return summarizer


def summarize(events: Iterable[Recorded], prices: Mapping[str, Price] | None = None) -> Summary:
    """The whole log's figures. Raises: as `Summarizer`."""
    summarizer = Summarizer(prices=prices or {})
    for recorded in events:
        summarizer.feed(recorded)
    return summarizer.summary()
