"""Which tasks a run works on and in which order: splits in integer arithmetic, orderings by hash, prerequisites first.

A stream order is the order of sha256(seed, domain, task id); a split cuts each domain at floor(7n/10) along it.
`table1` takes every domain whole, `text` first cuts each to the size of the smallest; `all` does not split.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Literal, get_args

from msgspec import Struct

from events.errors import BadInput, UnknownName
from runtime.task import Task

Protocol = Literal["table1", "text", "all"]
Part = Literal["train", "eval"]

#: share of a domain that trains, as a fraction in integers
_TRAIN, _OF = 7, 10


class TaskList(Struct, frozen=True, kw_only=True):
    """The tasks of one epoch in stream order; a prerequisite stands before its dependents."""

    tasks: list[Task]
    #: ids that only prepare others here: they have no score of their own
    preparatory: list[str]

    @property
    def ids(self) -> list[str]:
        return [task.task_id for task in self.tasks]


def order_key(seed: int, domain: str, task_id: str) -> str:
    """What a stream is sorted by: hex SHA-256 of seed, domain and task id, one a line."""
    return sha256(f"{seed}\n{domain}\n{task_id}".encode()).hexdigest()


def ordered(tasks: Iterable[Task], seed: int | None) -> list[Task]:
    """`tasks` by order key; as they come for seed None (the benchmark's canonical order)."""
    if seed is None:
        return list(tasks)
    return sorted(tasks, key=lambda task: order_key(seed, task.domain, task.task_id))


def task_list(
    tasks: Sequence[Task],
    *,
    protocol: Protocol = "all",
    part: Part = "train",
    seed: int | None = None,
    limit: int | None = None,
) -> TaskList:
    """The tasks of one part of the protocol in stream order, with the prerequisites they need.

    Args:
        tasks: every task of the chosen domains in canonical order.
        protocol: `table1`, `text` or `all`; `all` has no parts.
        part: which side of the split.
        seed: of the ordering; None keeps the canonical order.
        limit: at most this many scored tasks, the first ones; what they need comes on top.

    Raises:
        BadInput: a task twice, a prerequisite that is not there, prerequisites in a circle, a limit below 1.
        UnknownName: no such protocol.
    """
    if protocol not in get_args(Protocol):
        raise UnknownName("protocol", protocol, get_args(Protocol))
    if limit is not None and limit < 1:
        raise BadInput(f"a limit of {limit} tasks leaves nothing to do")
    known = {task.task_id: task for task in tasks}
    if len(known) != len(tasks):
        raise BadInput("a task id stands twice in the task list")
    scored = ordered((task for task in tasks if not task.preparatory), seed)
    chosen = scored if protocol == "all" else _part(scored, protocol, part)
    if limit is not None:
        chosen = chosen[:limit]
    whole = _with_prerequisites(chosen, known)
    wanted = {task.task_id for task in chosen}
    return TaskList(tasks=whole, preparatory=[task.task_id for task in whole if task.task_id not in wanted])


def train_size(n: int) -> int:
    """floor(7n/10)."""
    return n * _TRAIN // _OF


def _part(scored: Sequence[Task], protocol: Protocol, part: Part) -> list[Task]:
    sizes: dict[str, int] = {}
    for task in scored:
        sizes[task.domain] = sizes.get(task.domain, 0) + 1
    if protocol == "text":
        smallest = min(sizes.values(), default=0)
        sizes = dict.fromkeys(sizes, smallest)
    seen = dict.fromkeys(sizes, 0)
    chosen: list[Task] = []
    for task in scored:
        place = seen[task.domain]
        seen[task.domain] += 1
        if place >= sizes[task.domain]:
            continue
        if (place < train_size(sizes[task.domain])) == (part == "train"):
            chosen.append(task)
    return chosen


def _with_prerequisites(chosen: Sequence[Task], known: dict[str, Task]) -> list[Task]:
    """`chosen` in order, each after the prerequisites that are not there yet."""
    done: dict[str, Task] = {}
    for task in chosen:
        _place(task, known, done)
    return list(done.values())


def _place(task: Task, known: dict[str, Task], done: dict[str, Task]) -> None:
    """Put `task` and what it needs behind `done`; iterative, since a chain can be long."""
    waiting: list[str] = []
    stack: list[tuple[Task, bool]] = [(task, False)]
    while stack:
        one, ready = stack.pop()
        if ready:
            waiting.remove(one.task_id)
            done[one.task_id] = one
            continue
        if one.task_id in done:
            continue
        if one.task_id in waiting:
            raise BadInput(f"task {one.task_id!r} needs itself: {' -> '.join([*waiting, one.task_id])}")
        waiting.append(one.task_id)
        stack.append((one, True))
        for needed in reversed(one.depends_on):
            if needed not in known:
                raise BadInput(f"task {one.task_id!r} needs {needed!r}, which is not in the task list")
            stack.append((known[needed], False))
