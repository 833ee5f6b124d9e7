"""What the rehearsal model knows before the first request: for every task a right and a wrong way through it."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from events.errors import BadInput
from runtime.task import Message

#: the assistant messages of each user turn, in order
Turns = list[list[Message]]


class KeyTask(Struct, frozen=True, kw_only=True):
    """One task with its answers; gold data, for the rehearsal model only."""

    domain: str
    #: the task's first user message, exactly
    text: str
    turns: Turns
    #: same shape as `turns`, scored 0 by the benchmark: what a wrong execution does
    saboteur: Turns
    #: what following a wrong plan does, and what a wrong execution of a wrong plan does, where they differ
    saboteur_plan: Turns | None = None
    saboteur_both: Turns | None = None
    #: names of the functions a solver may need; informative, the right way says which ones matter
    family: list[str] = []


class Call(Struct, frozen=True, kw_only=True):
    """One function call of an answer."""

    name: str
    arguments: dict[str, Any]


def calls_of(message: Message) -> Iterator[Call]:
    """The calls of one assistant message; arguments may stand in the key as an object or as its JSON text."""
    for call in message.get("tool_calls") or []:
        function = call.get("function", call)
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        yield Call(name=str(function["name"]), arguments=dict(arguments))


def on_the_wire(name: str) -> str:
    """A function's name as tool schemas spell it: without dots."""
    return name.replace(".", "_")


def functions(task: KeyTask) -> list[str]:
    """The functions that the right way calls, as tool schemas spell them, in the order of their first use."""
    names = {on_the_wire(call.name): None for turn in task.turns for message in turn for call in calls_of(message)}
    return list(names)


class KnownTask(Struct, frozen=True, kw_only=True):
    """A task of the key under its id, with what experiences about it are about."""

    task_id: str
    task: KeyTask
    #: functions of the right way, or the domain where it calls none; tasks that share one can learn from each other
    topics: list[str]
    #: the one of `topics` that experiences written here name
    topic: str


#: a function that fewer tasks share teaches nobody
_SHARED = 3


def folded_text(text: str) -> str:
    """`text` with every run of white space as one blank: what survives a prompt's own layout."""
    return " ".join(text.split())


class AnswerKey:
    """Tasks by their text. Several tasks may share one text (variants of a benchmark); they stay in id order."""

    def __init__(self, tasks: Mapping[str, KeyTask]) -> None:
        self.tasks = dict(tasks)
        self._by_text: dict[str, list[KnownTask]] = {}
        topics = {task_id: functions(task) or [task.domain] for task_id, task in self.tasks.items()}
        counts = Counter(topic for found in topics.values() for topic in found)
        for task_id in sorted(self.tasks):
            # The rarest function that is still shared tells a family from its neighbours; else the most common one.
            shared = [topic for topic in topics[task_id] if counts[topic] >= _SHARED]
            topic = min(shared, key=counts.__getitem__) if shared else max(topics[task_id], key=counts.__getitem__)
            known = KnownTask(task_id=task_id, task=self.tasks[task_id], topics=topics[task_id], topic=topic)
            self._by_text.setdefault(folded_text(known.task.text), []).append(known)

    def __len__(self) -> int:
        return len(self.tasks)

    def named(self, text: str) -> list[KnownTask]:
        """Every task whose text is `text`, white space aside."""
        return self._by_text.get(folded_text(text), [])

    def inside(self, text: str) -> list[KnownTask]:
        """The tasks with the longest text that stands somewhere in `text`."""
        folded = folded_text(text)
        found = max((known for known in self._by_text if known and known in folded), key=len, default=None)
        return [] if found is None else self._by_text[found]


def meant(known: Sequence[KnownTask], kind: str, tools: Iterable[str]) -> KnownTask | None:
    """Which of the tasks with one text is meant; None for none.

    Args:
        known: the tasks.
        kind: a text that names the domain, where it is known: it decides first.
        tools: what is offered: the first task whose functions are all among them comes next, then the first of all.
    """
    named = [one for one in known if re.search(rf"(?<!\w){re.escape(one.task.domain)}(?!\w)", kind)] or known
    names = frozenset(tools)
    fitting = [one for one in named if all(name in names for name in functions(one.task))] or named
    return fitting[0] if fitting else None


def answer_key(tasks: Mapping[str, Any], where: str) -> AnswerKey:
    """The answer key that plain data holds: {task id: {domain, text, turns, saboteur, ...}}; `where` it is from.

    Raises:
        BadInput: it is none; says at which task.
    """
    try:
        known = msgspec.convert(tasks, dict[str, KeyTask])
    except msgspec.ValidationError as error:
        raise BadInput(f"{where} is no answer key: {error}") from error
    if not known:
        raise BadInput(f"{where} holds no task")
    for task_id, task in known.items():
        ways = (task.turns, task.saboteur, task.saboteur_plan or [], task.saboteur_both or [])
        try:
            for turn in chain.from_iterable(ways):
                for message in turn:
                    list(calls_of(message))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{where}: task {task_id}: a message with unreadable tool_calls: {error!r}") from error
    return AnswerKey(known)


def read_key(path: Path) -> AnswerKey:
    """The answer key in a JSON file.

    Raises:
        BadInput: no such file, or not an answer key; says where.
    """
    try:
        tasks = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise BadInput(f"cannot read the answer key {path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise BadInput(f"{path} is no JSON: {error}") from error
    return answer_key(tasks, str(path))
