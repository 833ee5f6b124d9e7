"""A gate without a model: what the reference answer and the call that was made say about who is to blame.

It sees what no gate may see, the reference answer, so it is no gate for an experiment. It shows what the machinery does
with diagnoses that are right, beside a model that is too small to give them.

| what happened | label | lesson |
|---|---|---|
| success | both | none |
| no call, or of another function | planning | which function |
| an argument too many | execution | to leave it out |
| an argument too few, or of another type or value | execution | to give it, its type, or the request's own words |
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.rehearsal.key import AnswerKey, Call, KeyTask, calls_of, on_the_wire
from runtime.task import Message

#: what rules are sure of; only the order of calls might mislead them
SURE = 0.9

_CALL = re.compile(r"^agent calls ([\w.-]+)\((.*)\)$", re.MULTILINE)
_TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


def calls_in(trajectory: str) -> Iterator[Call]:
    """The calls of a trajectory as a gate is shown it; one whose arguments cannot be read has none."""
    for name, written in _CALL.findall(trajectory):
        try:
            arguments = json.loads(written)
        except ValueError:
            arguments = {}
        yield Call(name=name, arguments=arguments if isinstance(arguments, dict) else {})


def reference(task: KeyTask | None) -> list[Call]:
    """The calls of the reference answer; none for a task that nobody knows."""
    turns = task.turns if task is not None else []
    return [call for turn in turns for message in turn for call in calls_of(message)]


def labels(key: AnswerKey, scores: Mapping[str, bool], trajectories: Mapping[str, Sequence[Message]]) -> dict[str, str]:
    """Task -> whom the rules blame or credit for its episode."""
    made = {
        task: [call for message in messages for call in calls_of(message)] for task, messages in trajectories.items()
    }
    return {
        task: diagnosis(reference(key.tasks.get(task)), made.get(task, []), success=success)["label"]
        for task, success in scores.items()
    }


def diagnosis(right: Sequence[Call], made: Sequence[Call], *, success: bool) -> dict[str, Any]:
    """The answer of a gate: the first difference decides.

    Args:
        right: the calls of the reference answer.
        made: the calls of the trajectory.
        success: what the checker said.
    """
    answer: dict[str, Any] = {"planning": None, "execution": None, "misleading": [], "confidence": SURE}
    if success:
        return answer | {"label": "both", "evidence": "The checker accepted it."}
    if not right:
        return answer | {"label": "none", "evidence": "There is no reference answer."}
    wanted = right[0]
    function = on_the_wire(wanted.name)
    given = next((call for call in made if on_the_wire(call.name) == function), None)
    if given is None:
        called = ", ".join(call.name for call in made) or "nothing"
        lesson = _lesson(f"A request that {function} can answer.", f"Call {function}; do not answer in words alone.")
        return answer | {"label": "planning", "evidence": f"It called {called}, not {function}.", "planning": lesson}
    found = _difference(wanted, given)
    if found is None:
        return answer | {"label": "none", "evidence": "The call is that of the reference answer."}
    evidence, action = found
    lesson = _lesson(f"A call of {function}.", f"In calls of {function}, {action}.")
    return answer | {"label": "execution", "evidence": evidence, "execution": lesson}


def _difference(wanted: Call, given: Call) -> tuple[str, str] | None:
    """What is wrong with a call, and what to do about it; None for nothing."""
    for name in given.arguments:
        if name not in wanted.arguments:
            return f"{name} was given.", f"leave {name} out unless the request names it"
    for name, value in wanted.arguments.items():
        if name not in given.arguments:
            return f"{name} is missing.", f"always give {name}"
        other = given.arguments[name]
        if type(other) is not type(value):
            return f"{name} has another type.", f"give {name} as {_TYPES.get(type(value), 'null')}"
        if other != value:
            return f"{name} has another value.", f"write {name} with the very words of the request, and nothing more"
    return None


def _lesson(scenario: str, experience: str) -> dict[str, Any]:
    return {"scenario": scenario, "experience": experience, "concrete": True, "actionable": True}
