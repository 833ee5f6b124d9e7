"""The demo: three arms over the same real tasks, played by the rehearsal model, with real workers and a real server."""

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, zip_longest
from typing import Any

import anyio
import msgspec
from msgspec import Struct

from events.codec import decode
from events.errors import BadInput, UnknownName
from events.ids import Label, RunId, Stage, episode_of, run_id
from events.kinds import Diagnosed, Executed, Operated, Planned, Retrieved, Scored
from events.verify import Verifier
from infra import environments
from infra.clock import SystemClock
from infra.embedders import Around
from infra.environments.answers import answer_key
from infra.environments.install import installed
from infra.rehearsal import LABEL, MODEL
from infra.rehearsal.key import AnswerKey, KeyTask
from infra.rehearsal.planting import RehearsalSettings
from infra.rehearsal.server import rehearsal_server
from infra.weaviate_server import Start
from runtime.ports import Environment, EventLog
from runtime.settings import BudgetSettings
from runtime.statistics import Interval, mcnemar, paired, paired_difference, wilson
from workers.bank_access import assert_bank_there, with_banks
from workers.configuration import Configuration
from workers.connections import START, Server, connections
from workers.coordinator import RunView
from workers.driving import Hands, drive, hands, interruptible, log_lines
from workers.header import begin
from workers.invocation import Invocation
from workers.live import LiveLine
from workers.run_stream import tell
from workers.starting import Choice, beginning

#: arm -> (policy, whether it learns nothing)
ARMS: Mapping[str, tuple[str, bool]] = {
    "credit": ("credit", False),
    "outcome": ("outcome", False),
    "frozen": ("credit", True),
}
#: the arm that the others are compared with
FIRST = "credit"

#: episodes in flight in each arm; small, so that an arm of fifty episodes sees what it has learnt
_CONCURRENCY = 4
_SLOTS, _HOSTS = 12, 4
#: BFCL: domains, and how many tasks of the dialogs beside those that end with one answer
_DIALOG, _SINGLE, _DIALOGS = "multi_turn_base", "live_simple", 6
#: a family of tasks that share functions must be at least this large, for a lesson to meet its next task
_FAMILY = 4


class Arm(Struct, frozen=True, kw_only=True):
    """One arm over the tasks that all arms have, whatever it has played beside them."""

    arm: str
    run: str
    n: int
    successes: int
    score: Interval
    #: live items once the last of these tasks was folded
    banks: dict[str, int]
    #: of the episodes of these tasks
    calls: int
    labels: dict[str, int]


class Difference(Struct, frozen=True, kw_only=True):
    """The first arm's rate minus another's, paired by task."""

    arm: str
    difference: Interval
    first_only: int
    other_only: int
    #: two-sided exact McNemar
    p_value: float


class Rebuilt(Struct, frozen=True, kw_only=True):
    """Banks decided again from the log alone."""

    run: str
    versions: int
    events: int
    recalls: int
    digest: str
    #: the recalls by where they came from: `exact` (a replica), `weaviate`, `fallback` (a replica in its place)
    sources: dict[str, int]


class Demonstration(Struct, frozen=True, kw_only=True):
    """What `chime demo --json` prints."""

    environment: str
    environment_version: str
    labels: list[str]
    bank: str
    embedder: str
    episodes_per_arm: int
    #: the tasks were cut short at this time, seconds; None where all were played
    stopped_after_s: float | None
    arms: list[Arm]
    differences: list[Difference]
    rebuilt: list[Rebuilt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for."""

    environment: str
    limit: int
    seconds: float
    seed: int


def chosen_environment(wanted: str | None, invocation: Invocation) -> str:
    """BFCL where it is installed, else the toy.

    Raises:
        UnknownName: no such environment in the demo.
    """
    known = ("bfcl", "toy")
    if wanted is not None:
        if wanted not in known:
            raise UnknownName("demo environment", wanted, known)
        return wanted
    return "bfcl" if "bfcl" in installed(invocation.resolved.home) else "toy"


async def demonstrate(invocation: Invocation, plan: Plan) -> Demonstration:
    """Play the three arms, compare them, rebuild their banks.

    Raises:
        EnvironmentUnavailable: the benchmark is not installed.
        Interrupted: a signal came.
    """
    home, clock, output = invocation.home(), SystemClock(), invocation.output
    configuration = _configured(invocation.configuration)
    result: Demonstration | None = None
    async with interruptible(), AsyncExitStack() as stack:
        log = await stack.enter_async_context(log_lines(configuration, home, quiet=True))
        loaded = environments.load(plan.environment, home, oracle=True, environ=invocation.environment)
        stack.push_async_callback(loaded.aclose)
        raw = await answer_key(loaded, [_SINGLE, _DIALOG] if plan.environment == "bfcl" else None)
        key = {task: msgspec.convert(one, KeyTask) for task, one in raw.items()}
        tasks = demo_tasks(key, plan.limit)
        settings = RehearsalSettings(seed=plan.seed)
        url = await stack.enter_async_context(rehearsal_server(AnswerKey(key), settings))
        redis = configuration.redis
        logs = await stack.enter_async_context(connections(home, redis.url, redis.prefix, clock))
        there = await stack.enter_async_context(
            with_banks(
                logs, home, configuration.weaviate, invocation.environment, clock,
                starting=True, start=Start(progress=output.note),
            )
        )  # fmt: skip
        there.warn()
        await assert_bank_there(there, configuration.bank.store)
        output.note(
            f"{plan.environment}: {len(tasks)} tasks in {len(ARMS)} arms; model {MODEL} at {url}; "
            f"{_product(there)} of {there.where}; bank {configuration.bank.store}, "
            f"embedder {configuration.embedder.name}"
        )
        around = Around(environ=invocation.environment, clock=clock)
        runs = await _begun(there, configuration, plan, loaded, tasks, url, around)
        live = LiveLine(output, clock, names={run: arm for arm, run in runs.items()})
        doing = Hands(slots=_SLOTS, hosts=_HOSTS, weaviate=configuration.weaviate)
        ground = await stack.enter_async_context(hands(there, home, invocation.environment, clock, doing, log))
        limit = _Deadline(there, list(runs.values()), plan.seconds, live)
        async with anyio.create_task_group() as beside:
            beside.start_soon(limit.watch)
            await drive(there, ground, list(runs.values()), limit.seen)
            beside.cancel_scope.cancel()
        live.done()
        description = await loaded.describe()
        result = await _compared(there, runs, plan, description.version, configuration, limit.stopped_after_s)
    assert result is not None  # noqa: S101 - `interruptible` raises where the body was cut short
    return result


def demo_tasks(key: Mapping[str, KeyTask], limit: int) -> list[str]:
    """Up to `limit` tasks: families that share functions, dealt out in turn, so that a lesson meets its next task."""
    dialogs = [task for task, one in sorted(key.items()) if one.domain == _DIALOG][:_DIALOGS]
    families: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for task, one in sorted(key.items()):
        if one.domain != _DIALOG:
            families[tuple(sorted(one.family))].append(task)
    large = [tasks for tasks in families.values() if len(tasks) >= _FAMILY] or list(families.values())
    large.sort(key=lambda tasks: (-len(tasks), tasks))
    dealt = [task for task in chain.from_iterable(zip_longest(*large)) if task is not None]
    singles = dealt[: max(0, limit - len(dialogs))]
    every = max(1, len(singles) // (len(dialogs) + 1))
    for at, task in enumerate(dialogs, 1):
        singles.insert(at * every + at - 1, task)
    return singles[:limit]


def _configured(configuration: Configuration) -> Configuration:
    """The configuration with the demo's own model and pace; what that costs is nothing, and bounded by nothing."""
    run = msgspec.structs.replace(configuration.run, concurrency=_CONCURRENCY, lag="auto", epochs=1)
    return msgspec.structs.replace(configuration, run=run, budget=BudgetSettings())


async def _begun(
    there: Server,
    configuration: Configuration,
    plan: Plan,
    environment: Environment,
    tasks: Sequence[str],
    url: str,
    around: Around,
) -> dict[str, RunId]:
    """Arm -> its run, begun."""
    models = msgspec.structs.replace(configuration.models, model=MODEL, base_url=url)
    roles = type(configuration.roles)()
    runs: dict[str, RunId] = {}
    stamp = f"{datetime.now(UTC):%m%d-%H%M%S}"
    choice = Choice(environment=plan.environment, tasks=tuple(tasks), labels=(LABEL, "demo"))
    # The last one that is begun is the newest run, which every command takes where none is named.
    for arm, (policy, frozen) in reversed(list(ARMS.items())):
        own = msgspec.structs.replace(
            configuration,
            models=models,
            roles=roles,
            policy=msgspec.structs.replace(configuration.policy, name=policy),
        )
        run = run_id(f"demo-{stamp}-{arm}")
        made = await beginning(own, replace(choice, frozen=frozen), environment, None, around)
        await made.prompts.store(there.blobs, run)
        await begin(there.store.open(run), made.head)
        runs[arm] = run
    return {arm: runs[arm] for arm in ARMS}


class _Deadline:
    """Ends every arm at the same time, where fifty episodes do not fit: open episodes end, no other one begins."""

    def __init__(self, there: Server, runs: Sequence[RunId], seconds: float, live: LiveLine) -> None:
        self._there, self._runs, self._seconds, self._live = there, runs, seconds, live
        self._waiting, self._started = set(runs), anyio.Event()
        self.stopped_after_s: float | None = None

    def seen(self, run: RunId, view: RunView) -> None:
        """A round of an arm; the clock starts once each has begun an episode, or will not: before, nothing compares."""
        if view.conductor.progress.episodes or view.conductor.control != "running":
            self._waiting.discard(run)
        if not self._waiting:
            self._started.set()
        self._live(run, view)

    async def watch(self) -> None:
        await self._started.wait()
        began = time.monotonic()
        await anyio.sleep(self._seconds)
        self.stopped_after_s = round(time.monotonic() - began, 1)
        event = Operated(action="cancel", target="all", author="demo", reason=f"{self._seconds:g} s are over")
        for run in self._runs:
            await tell(self._there.store.open(run), event)


async def _compared(
    there: Server,
    runs: Mapping[str, RunId],
    plan: Plan,
    version: str,
    configuration: Configuration,
    stopped_after_s: float | None,
) -> Demonstration:
    seen = {arm: await _verified(there.store.open(run)) for arm, run in runs.items()}
    scores = {arm: one.scores for arm, one in seen.items()}
    shared = set.intersection(*(set(one) for one in scores.values()))
    if not shared:
        raise BadInput(f"no task was played in every arm within {plan.seconds:g} s; give it more with --seconds")
    arms = []
    for arm, run in runs.items():
        wins = sum(scores[arm][task] for task in shared)
        one = seen[arm]
        arms.append(
            Arm(
                arm=arm, run=run, n=len(shared), successes=wins, score=wilson(wins, len(shared)),
                **one.facts(shared),
            )
        )  # fmt: skip
    differences = []
    for arm in runs:
        if arm == FIRST:
            continue
        pairs = paired({task: scores[arm][task] for task in shared}, {task: scores[FIRST][task] for task in shared})
        differences.append(
            Difference(
                arm=arm, difference=paired_difference(pairs), first_only=pairs.second_only, other_only=pairs.first_only,
                p_value=mcnemar(pairs),
            )
        )  # fmt: skip
    return Demonstration(
        environment=plan.environment,
        environment_version=version,
        labels=[LABEL],
        bank=configuration.bank.store,
        embedder=configuration.embedder.name,
        episodes_per_arm=len(shared),
        stopped_after_s=stopped_after_s,
        arms=arms,
        differences=differences,
        rebuilt=[one.rebuilt(runs[arm]) for arm, one in seen.items()],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """One arm's log, read and decided again."""

    #: task -> s_t
    scores: dict[str, bool]
    #: of one epoch, in order
    tasks: Sequence[str]
    #: live items by version, from version 0
    sizes: Sequence[dict[Stage, int]]
    #: t -> calls of its stages
    calls: Mapping[int, int]
    #: t -> a_t, where the gate has judged
    labels: Mapping[int, Label]
    #: recalls by source
    sources: Mapping[str, int]
    verifier: Verifier

    def facts(self, shared: Collection[str]) -> dict[str, Any]:
        """Banks, calls and labels of the arm, over its episodes of the tasks `shared`."""
        episodes = [t for t, task in enumerate(self.tasks) if task in shared]
        labels = Counter(self.labels[t] for t in episodes if t in self.labels)
        return {
            "banks": self.sizes[min(episodes[-1] + 1, len(self.sizes) - 1)],
            "calls": sum(self.calls.get(t, 0) for t in episodes),
            "labels": dict(sorted(labels.items())),
        }

    def rebuilt(self, run: RunId) -> Rebuilt:
        report = self.verifier.done()
        return Rebuilt(
            run=run, versions=report.versions, events=report.events, recalls=report.recalls, digest=report.digest,
            sources=dict(sorted(self.sources.items())),
        )  # fmt: skip


async def _verified(log: EventLog) -> _Seen:
    verifier = Verifier()
    scores: dict[int, bool] = {}
    calls: Counter[int] = Counter()
    labels: dict[int, Label] = {}
    sources: Counter[str] = Counter()
    sizes = [verifier.state.banks.sizes()]
    async for page in log.pages(START):
        for recorded in page:
            verifier.feed(recorded)
            if recorded.kind == "folded":
                sizes.append(verifier.state.banks.sizes())
            if recorded.kind not in ("retrieved", "planned", "executed", "scored", "diagnosed"):
                continue
            t = episode_of(recorded.stream)
            match decode(recorded):
                case Retrieved() as retrieved:
                    sources[retrieved.source] += 1
                case Scored() as scored if t is not None and scored.valid:
                    scores[t] = scored.success
                case Planned() | Executed() | Diagnosed() as event if t is not None:
                    calls[t] += event.usage.calls
                    if isinstance(event, Diagnosed) and event.degraded is None:
                        labels[t] = event.label
                case _:
                    pass
    tasks = verifier.state.tasks
    return _Seen(
        scores={tasks[t]: success for t, success in scores.items()},
        tasks=tasks,
        sizes=sizes,
        calls=calls,
        labels=labels,
        sources=sources,
        verifier=verifier,
    )


def _product(there: Server) -> str:
    return f"{there.promises.product} {there.promises.version}" if there.promises else "no server"
