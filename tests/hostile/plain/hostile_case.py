"""One episode through the product's engine, its client and its model's edge, in front of a server that plays a row."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import structlog
from hostile_rows import ATTEMPTS, RETRIES, Outcome, Row
from hostile_server import HostileServer, hostile_server

from events import policies
from events.bank import Banks, evolve
from events.codec import decode
from events.errors import ChimeError
from events.ids import RUN_STREAM, Position, RunId, episode_stream
from events.kinds import Abandoned, AnyEvent, Diagnosed, Executed, Noted, Planned, Scored, Usage
from infra import environments
from infra.calls import CallRecord, MemoryCalls, answer_of, calls_of
from infra.list_log import ListLogStore
from runtime.errors import MissingBlob
from runtime.ports import Blobs, ChatAnswer, Job
from runtime.settings import EpisodeSettings
from workers.configuration import Configuration, ModelDefaults, Roles, RoleSettings
from workers.connections import Server
from workers.engine import STOPPED, Engine
from workers.header import begin
from workers.starting import Choice, beginning

RUN = RunId("hostile")
TOY = "infra.environments.toy:Toy"
#: an order whose plan and execution have three steps
TASK = "warehouse-fragile-1"
#: the key that is sent, which must be told to nobody
SECRET = "sk-" + "7e57" * 10
#: seconds within which a case ends, on a machine that is busy with other things
LIMIT_S = 240.0
#: how long a silence lasts by the loop's clock, seconds: longer than what waits for it, and less than a case in all
LAPSE_S = 25.0
#: log lines that stand for one more request each
AGAIN = frozenset({"model_retried", "capability_refused", "context_trimmed"})


class SteppedClock:
    """Sleeps at once; no two moments are the same, as failed calls are told apart by theirs."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._told = 0

    def utc(self) -> str:
        self._told += 1
        return f"2026-01-01T00:00:00.{self._told:06d}Z"

    def monotonic(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()
        self.slept.append(seconds)


@contextmanager
def time_in_hand() -> Iterator[Callable[[float], None]]:
    """Moves the running loop's clock ahead: limits that no busy machine reaches by itself end at once all the same."""
    loop, ahead_s = asyncio.get_running_loop(), 0.0
    told = loop.time

    def move(seconds: float) -> None:
        nonlocal ahead_s
        ahead_s += seconds

    loop.time = lambda: told() + ahead_s  # type: ignore[method-assign] # timers are looked at by this clock
    try:
        yield move
    finally:
        loop.time = told  # type: ignore[method-assign] # as before


class MemoryBlobs:
    """`runtime.ports.Blobs` in memory."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    async def put(self, run: RunId, body: bytes) -> str:
        name = sha256(body).hexdigest()
        self.bodies[name] = body
        return name

    async def put_many(self, run: RunId, bodies: Sequence[bytes]) -> list[str]:
        return [await self.put(run, body) for body in bodies]

    async def get(self, run: RunId, sha256: str) -> bytes:
        if sha256 not in self.bodies:
            raise MissingBlob(run, sha256, "not there")
        return self.bodies[sha256]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A case after it was played: what came of it, and all that was said and kept."""

    outcome: Outcome
    server: HostileServer
    events: list[AnyEvent]
    #: every event as it is stored
    stored: bytes
    records: list[CallRecord]
    answers: list[ChatAnswer]
    blobs: dict[str, bytes]
    lines: list[Any]
    #: seconds that tries waited
    slept: list[float]
    #: errors of jobs, by class
    raised: list[str]


def configuration(row: Row, role: str, server: HostileServer) -> Configuration:
    """Each role a model of its own; the one that the row is for at the hostile address."""
    roles: dict[str, RoleSettings] = {}
    for one in ("planner", "executor", "gate"):
        more: dict[str, Any] = {**row.endpoint, **row.model} if one == role else {}
        url = server.hostile_url if one == role else server.healthy_url
        roles[one] = RoleSettings(**{"model": one, "base_url": url, **more})
    return Configuration(
        models=ModelDefaults(api_key_env="HOSTILE_KEY", retries=RETRIES, timeout_s=LIMIT_S, connect_timeout_s=LIMIT_S),
        roles=Roles(**roles),
        episode=EpisodeSettings(max_steps=12, max_errors=2),
    )


async def play(row: Row, role: str, home: Path) -> Played:
    """One episode with `row` for `role`. Raises whatever is no error of the product's own."""
    clock = SteppedClock()
    blobs, calls, store = MemoryBlobs(), MemoryCalls(), ListLogStore(clock)
    there = Server(store=store, blobs=_as_blobs(blobs), calls=calls, url="", prefix="t", where="here")
    raised: list[str] = []
    with structlog.testing.capture_logs() as lines, time_in_hand() as move:

        async def lapse() -> None:
            await anyio.sleep(0.02)  # what came before the silence is read, as a rule
            move(LAPSE_S)

        with anyio.fail_after(LIMIT_S):
            async with AsyncExitStack() as stack:
                hostile = hostile_server(row.play, at_accept=row.at_accept, lapse=lapse)
                server = await stack.enter_async_context(hostile)
                await _begun(there, configuration(row, role, server), home)
                async with AsyncExitStack() as working:
                    engine = Engine(there, home, {"HOSTILE_KEY": SECRET}, clock, 4, working)
                    raised += await _advanced(engine, store)
                assert await server.left(), "a connection was left open"
    log = store.open(RUN)
    recorded = [one async for page in log.pages(Position(0)) for one in page]
    records = await calls_of(calls, RUN)
    found = [await answer_of(_as_blobs(blobs), RUN, one) for one in records]
    answers = [one for one in found if one is not None]
    events = [decode(one) for one in recorded]
    of_role = [one for one, record in zip(found, records, strict=True) if one is not None and record.role == role]
    return Played(
        outcome=_outcome(role, events, records, of_role, lines), server=server, events=events,
        stored=b"\n".join(one.data for one in recorded), records=records, answers=answers, blobs=blobs.bodies,
        lines=lines, slept=clock.slept, raised=raised,
    )  # fmt: skip


def _as_blobs(blobs: Any) -> Blobs:
    return blobs  # type: ignore[no-any-return] # nobody here lists or deletes bodies


async def _begun(there: Server, made: Configuration, home: Path) -> None:
    environment = environments.load(TOY, home)
    try:
        head = await beginning(made, Choice(environment=TOY, tasks=(TASK,)), environment, there)
    finally:
        await environment.aclose()
    await head.prompts.store(there.blobs, RUN)
    await begin(there.store.open(RUN), head.head)


async def _advanced(engine: Engine, store: ListLogStore) -> list[str]:
    """The episode's jobs, each as often as a conductor would ask for it; the classes of the errors they ended with."""
    raised: list[str] = []
    log = store.open(RUN)
    for kind, done in (("act", "scored"), ("diagnose", "diagnosed")):
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await engine.advance(Job(kind=kind, run=RUN, episode=0, attempt=attempt))  # type: ignore[arg-type]
            except ChimeError as error:
                raised.append(type(error).__name__)
            kinds = {one.kind for one in await log.read_stream(episode_stream(0))}
            told = {one.kind for one in await log.read_stream(RUN_STREAM)}
            if "abandoned" in kinds or ("noted" in told and _paused(await _decoded(log))):
                return raised
            if done in kinds:
                break
    return raised


async def _decoded(log: Any) -> list[AnyEvent]:
    return [decode(one) for one in await log.read_stream(RUN_STREAM)]


def _paused(events: Sequence[AnyEvent]) -> str:
    found = [str(one.facts["kind"]) for one in events if isinstance(one, Noted) and one.topic == STOPPED]
    assert len(found) <= 1, "a pause is said once"
    return "".join(found)


def _outcome(
    role: str,
    events: Sequence[AnyEvent],
    records: Sequence[CallRecord],
    answers: Sequence[ChatAnswer],
    lines: Sequence[Mapping[str, Any]],
) -> Outcome:
    def only(kind: type[Any]) -> Any:
        found = [one for one in events if isinstance(one, kind)]
        assert len(found) <= 1, kind
        return found[0] if found else None

    abandoned, executed, scored, diagnosed = only(Abandoned), only(Executed), only(Scored), only(Diagnosed)
    experiences = [one for one in _experiences(diagnosed) if one is not None]
    stage: Any = {"planner": only(Planned), "executor": executed, "gate": diagnosed}[role]
    return Outcome(
        paused=_paused(events),
        abandoned=abandoned.reason.partition(":")[0] if abandoned else "",
        stop=executed.stop if executed else "",
        success=scored.success if scored else None,
        errors=executed.errors if executed else 0,
        degraded=(diagnosed.degraded or "") if diagnosed else "",
        label=diagnosed.label if diagnosed else "",
        answers=1 if role == "executor" and answers else len(answers),
        unanswered=tuple(one.error for one in records if one.error),
        retried=tuple(one["kind"] for one in lines if one["event"] == "model_retried"),
        changed=tuple(one["capability"] for one in lines if one["event"] == "capability_refused"),
        flags=tuple(sorted({flag for one in answers for flag in one.flags})),
        lint=tuple(sorted({reason for one in experiences for reason in one.lint})),
        dropped=diagnosed.misleading_dropped if diagnosed else 0,
        trimmed=any(one.left_out for one in answers),
        usage=_known(stage.usage if stage else None),
    )


def _experiences(diagnosed: Diagnosed | None) -> list[Any]:
    return [diagnosed.experiences.planning, diagnosed.experiences.execution] if diagnosed else []


def _known(usage: Usage | None) -> str:
    if usage is None or usage.calls == 0:
        return "unknown"
    if isinstance(usage.estimated_prompt_tokens, int) or isinstance(usage.estimated_completion_tokens, int):
        return "estimated"
    return "unknown" if usage.prompt_tokens is None or usage.completion_tokens is None else "counted"


# -- what holds of every case --------------------------------------------------------------------------------------


def held(played: Played, row: Row, role: str) -> list[str]:
    """What does not hold of `played`, in words; empty where all is well."""
    wrong: list[str] = []
    said_again = sum(one["event"] in AGAIN for one in played.lines)
    sent = len(played.records) + said_again
    seen = len(played.server.requests) + played.server.refused_at_accept
    recorded = sum(one.requests for one in played.records)
    if not row.unseen and not sent == seen == recorded:
        wrong.append(f"the server saw {seen} requests; {sent} are logged, {recorded} recorded")
    wrong += [f"job: {one}" for one in played.raised if one != "ModelUnavailable"]
    wrong += [f"log: {one}" for one in played.lines if "exc_info" in one or "exception" in one]
    written = [("events", played.stored), ("log lines", repr(played.lines).encode())]
    written.append(("requests", json.dumps([one.body for one in played.server.requests]).encode()))
    written.append(("call record", repr(played.records).encode()))
    # What came back is kept as it came, for whoever looks at the call; the key is blotted out there, too.
    came = {name for record in played.records for name in (record.answer, record.received)}
    written.append(("bodies", b"\n".join(body for name, body in played.blobs.items() if name not in came)))
    for what, text in written:
        wrong += [f"{what} hold {one!r}" for one in (SECRET, *row.private) if one.encode() in text]
    wrong += ["a body holds the key" for body in played.blobs.values() if SECRET.encode() in body]
    wrong += _banks(played.events)
    return wrong


def _banks(events: Sequence[AnyEvent]) -> list[str]:
    """A degraded diagnosis changes no bank, by the decision of the run's own policy."""
    policy = policies.load("credit")
    for one in events:
        if isinstance(one, Diagnosed):
            operations = policy.decide(Banks(), 0, one)
            after = evolve(Banks(), one, operations)
            if one.degraded and (operations or len(list(after))):
                return [f"a degraded diagnosis leads to {operations}"]
    return []


async def assert_as_expected(row: Row, role: str, home: Path) -> None:
    """Play `row` for `role`: what comes of it is what the row says, and all that holds of every case holds."""
    played = await play(row, role, home)
    wanted = {**asdict(Outcome()), **row.expect(role)}
    came = asdict(played.outcome)
    differs = {name: (came[name], one) for name, one in wanted.items() if one is not ... and came[name] != one}
    assert not differs, f"(came, wanted): {differs}"
    assert held(played, row, role) == []
