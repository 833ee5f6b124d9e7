"""The head of a run's log: built once, appended once, compared when somebody starts the same run again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from events.codec import EVENT_CAP, canonical, decode, draft
from events.errors import BadInput, UnreadableEvent
from events.ids import RUN_STREAM, Version, event_id
from events.kinds import EmbedderIdentity, RunConfig, RunStarted, SeedBank, Seeded, SeededItem, TasksListed
from events.seeding import seeded_events
from infra import embedding_identity
from runtime.logger import Logger
from runtime.ports import Appended, EventLog, Origin
from workers.version import VERSION

_log = Logger("chime.run")

#: parts of a configuration that may differ when a run goes on: they change no prompt, no answer and no fold
OPERATIONAL = frozenset({"operational", "limits", "labels"})

#: bytes of task ids in one event
_TASKS_CAP = EVENT_CAP // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first events of a log, in order."""

    started: RunStarted
    listed: tuple[TasksListed, ...] = ()
    seeded: tuple[Seeded, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        """Every task id of one epoch, in order."""
        return (*self.started.tasks, *(task for one in self.listed for task in one.tasks))

    @property
    def is_whole(self) -> bool:
        """Whether every task and every item of the seed bank is there: a start may have been cut short."""
        seeds = (self.started.seed_bank.items or 0) if self.started.seed_bank is not None else 0
        return len(self.tasks) >= self.started.tasks_total and sum(len(one.items) for one in self.seeded) >= seeds


def head(
    config: RunConfig,
    tasks: Sequence[str],
    prompts: Mapping[str, str],
    embedder: EmbedderIdentity,
    seed_bank: SeedBank | None = None,
    seeds: Sequence[SeededItem] = (),
) -> Head:
    """The first events of a run.

    Args:
        config: every parameter.
        tasks: ids of one epoch, in order.
        prompts: name -> hex SHA-256.
        embedder: what the bank's vectors are made with.
        seed_bank: where `seeds` come from.
        seeds: items of version 0, in id order.

    Raises:
        BadInput: no tasks, or a task twice.
        EventTooLarge: a configuration over the size cap.
    """
    if not tasks:
        raise BadInput("a run needs at least one task; this selection has none")
    if len(set(tasks)) != len(tasks):
        raise BadInput("a task list names a task twice; use epochs to pass over it again")
    first, *rest = _parts(tasks)
    started = RunStarted(
        config=config,
        tasks=first,
        tasks_total=len(tasks),
        prompts=dict(prompts),
        embedder=embedder,
        code=VERSION,
        seed_bank=replace(seed_bank, items=len(seeds)) if seed_bank is not None else None,
    )
    listed = tuple(TasksListed(tasks=part) for part in rest)
    return Head(started=started, listed=listed, seeded=tuple(seeded_events(seeds)))


def _parts(tasks: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for task in tasks:
        length = len(canonical(task)) + 1
        if part and size + length > _TASKS_CAP:
            yield part
            part, size = [], 0
        part.append(task)
        size += length
    yield part


async def begin(log: EventLog, head: Head) -> bool:
    """Append the head; whether the run is new. The same head again is harmless; one that was cut short goes on.

    Raises:
        BadInput: the run exists with another meaning; names every difference.
    """
    events: list[RunStarted | TasksListed | Seeded] = [head.started, *head.listed, *head.seeded]
    written = 0
    # Each event is appended by itself: together they may be far over what one script call should hold.
    for place, event in enumerate(events, 1):
        cause = None if place == 1 else event_id(log.run, RUN_STREAM, 1)
        result = await log.append(RUN_STREAM, Version(place), [draft(event)], Origin(cause=cause))
        if isinstance(result, Appended):
            written += result.written
        else:
            await _compare(log, head, result.stored.kind == event.KIND)
    if written:
        seeds = sum(len(one.items) for one in head.seeded)
        _log.info("run_started", run_id=log.run, tasks=head.started.tasks_total, seeded=seeds)
    return written == len(events)


async def _compare(log: EventLog, head: Head, is_head: bool) -> None:
    different = differences(await recorded_head(log), head)
    if different:
        lines = "; ".join(different[:8]) + ("; ..." if len(different) > 8 else "")
        raise BadInput(f"run {log.run} exists with another configuration: {lines}. Choose another --run, or resume it")
    if not is_head:
        raise BadInput(f"run {log.run} was cut short while it was begun, and cannot be; choose another --run")


async def recorded_head(log: EventLog) -> Head:
    """The head of a log that exists.

    Raises:
        BadInput: no such run.
        UnreadableEvent: a log that does not begin with `run_started`.
    """
    started: RunStarted | None = None
    listed: list[TasksListed] = []
    seeded: list[Seeded] = []
    for recorded in await log.read_stream(RUN_STREAM):
        match decode(recorded):
            case RunStarted() as event:
                started = event
            case TasksListed() as event:
                listed.append(event)
            case Seeded() as event:
                seeded.append(event)
            case _:
                break
    if started is None:
        if await log.head() == 0:
            raise BadInput(f"there is no run {log.run}; `chime run list` names those there are")
        raise UnreadableEvent(f"log of run {log.run}", "it does not begin with run_started")
    return Head(started=started, listed=tuple(listed), seeded=tuple(seeded))


def differences(there: Head, wanted: Head) -> list[str]:
    """What two heads mean differently, as `path: there -> wanted`; empty where a run may go on.

    Of a head that is not whole yet, what is there is compared.
    """
    found = list(_different("", _meaning(there.started), _meaning(wanted.started)))
    # A server's vectors are never twice the same to the last bit.
    embedders = embedding_identity.differences(there.started.embedder, wanted.started.embedder)
    found += [f"embedder: {one}" for one in embedders]
    tasks = list(zip(there.tasks, wanted.tasks, strict=False))
    at = next((i for i, (one, other) in enumerate(tasks) if one != other), None)
    if at is not None:
        found.append(f"tasks: the list changed (first at {at}: {tasks[at][0]} -> {tasks[at][1]})")
    elif there.started.tasks_total != wanted.started.tasks_total:
        found.append(f"tasks: the list changed ({there.started.tasks_total} -> {wanted.started.tasks_total})")
    elif any(one != other for one, other in zip(there.seeded, wanted.seeded, strict=False)):
        found.append("seeds: the items of the seed bank changed")
    return found


def _meaning(started: RunStarted) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(started)
    for name in ("tasks", "tasks_total", "code", "embedder"):
        del plain[name]
    config = plain.pop("config")
    return {**plain, **{name: value for name, value in config.items() if name not in OPERATIONAL}}


def _different(path: str, there: object, wanted: object) -> Iterator[str]:
    if isinstance(there, dict) and isinstance(wanted, dict):
        for name in sorted({*there, *wanted}):
            yield from _different(f"{path}.{name}" if path else name, there.get(name), wanted.get(name))
    elif there != wanted:
        yield f"{path}: {there} -> {wanted}"
