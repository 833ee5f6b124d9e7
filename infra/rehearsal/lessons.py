"""What the rehearsal model's experiences say, and how it recognises them in a prompt.

A lesson names a function in backticks and carries one of a few fixed sentences. A *helpful* one is the antidote of a
pitfall; a *misleading* one recommends the pitfall. An item helps or misleads a task when a line of it names a function
of the task's family; a lesson about other functions is *foreign*.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Literal

from events.ids import Stage
from infra.rehearsal.asking import ShownMemory
from infra.rehearsal.key import KnownTask, calls_of, on_the_wire

Effect = Literal["helpful", "misleading", "foreign"]

_HELPFUL: dict[Stage, tuple[str, ...]] = {
    "planning": (
        "list every constraint in the request before choosing a call",
        "settle the order of all needed calls first, then name each one",
        "check which of the similar functions really fits the verb used",
        "split a compound request into one step per asked result",
        "note optional parameters only where a value was stated",
        "decide up front whether any offered function applies at all",
        "keep the last requested effect as a step of its own",
        "read units, dates and currencies off the wording first",
    ),
    "execution": (
        "copy literal values unchanged, spelling and case included",
        "give numbers as numbers and lists as lists, never as quoted text",
        "compare each result with the step before going on",
        "fill required fields from the conversation and leave others out",
        "issue every planned call, also when an early one looks sufficient",
        "end the turn only after the final effect has been confirmed",
        "use the exact name from the schema, not a paraphrase",
        "repeat a call that returned an error with corrected fields",
    ),
}
_MISLEADING: dict[Stage, tuple[str, ...]] = {
    "planning": (
        "take the first named value for everything and ignore the remainder",
        "one quick call is always enough, drop whatever comes later",
        "pick the function with the shortest name and go",
        "assume standard settings rather than reading the wording",
        "start from the closing sentence and skip the beginning",
        "treat each request like the previous one and reuse its steps",
    ),
    "execution": (
        "abbreviate long values so that they fit better",
        "wrap all numbers in quotation marks to be safe",
        "stop as soon as something came back without checking it",
        "invent a plausible filler wherever nothing was given",
        "swap the fields when two of them look alike",
        "answer from general knowledge, the tool adds nothing",
    ),
}
_VAGUE: dict[Stage, str] = {
    "planning": "think carefully about what is wanted and make a good plan",
    "execution": "carry out the work attentively and pay attention to details",
}
_NAMED = re.compile(r"`([^`]+)`")


def _choice(options: Sequence[str], *parts: str) -> str:
    digest = hashlib.sha256("\x1f".join(parts).encode()).digest()
    return options[int.from_bytes(digest[:8], "big") % len(options)]


def _about(known: KnownTask) -> str:
    """The topic with the argument names the right way gives it, as many as a sentence bears."""
    names: dict[str, None] = {}
    for turn in known.task.turns:
        for message in turn:
            for call in calls_of(message):
                if on_the_wire(call.name) == known.topic:
                    names.update(dict.fromkeys(call.arguments))
    arguments = ", ".join(list(names)[:4])
    return f"`{known.topic}` ({arguments})" if arguments else f"`{known.topic}`"


def helpful(known: KnownTask, stage: Stage) -> str:
    """The lesson that lowers the fault rate of `stage` for tasks of this family."""
    return f"{_about(known)}: {_choice(_HELPFUL[stage], stage, known.topic)}."


def pitfall(known: KnownTask, stage: Stage) -> str:
    """The wrong approach this family invites; a wrong plan, a wrong execution and a misleading lesson all say it."""
    return _choice(_MISLEADING[stage], stage, known.topic)


def misleading(known: KnownTask, stage: Stage) -> str:
    """The lesson that leads tasks of this family astray."""
    return f"{_about(known)}: {pitfall(known, stage)}."


def vague(stage: Stage) -> str:
    """A lesson that says nothing; neither concrete nor actionable."""
    return f"In general, {_VAGUE[stage]}."


def takes_pitfall(text: str, stage: Stage) -> bool:
    """Whether `text` shows a wrong approach of `stage`."""
    return any(sentence in text for sentence in _MISLEADING[stage])


def effect(memory: ShownMemory, known: KnownTask) -> frozenset[Effect]:
    """What an item does to its stage of this task; a merged item may do several things, a vague one none."""
    effects: set[Effect] = set()
    own = set(known.topics)
    for line in memory.experience.splitlines():
        about = set(_NAMED.findall(line))
        good = any(sentence in line for sentence in _HELPFUL[memory.stage])
        bad = any(sentence in line for sentence in _MISLEADING[memory.stage])
        if not (good or bad):
            continue
        if not about & own:
            effects.add("foreign")
            continue
        if good:
            effects.add("helpful")
        if bad:
            effects.add("misleading")
    return frozenset(effects)


def lesson_lines(text: str) -> list[str]:
    """Every lesson that stands in `text`, each once, in order."""
    sentences = [sentence for texts in (*_HELPFUL.values(), *_MISLEADING.values()) for sentence in texts]
    found = re.findall(rf"`[^`\n]+`(?: \([^)\n]*\))?: (?:{'|'.join(map(re.escape, sentences))})\.", text)
    return list(dict.fromkeys(found))


_SPECIFIC = re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`|\S*\d\S*|\S*[@/\\]\S*")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z]\w+")


def scenario(known: KnownTask, stage: Stage) -> str:
    """When the experience applies: the request's wording without quotes, numbers, addresses and names.

    Close to the query of its stage, so that a later task of the family finds it: the task text for planning, the plan's
    calls and the task text for execution.
    """
    text = _NAME.sub("", _SPECIFIC.sub("", known.task.text))
    wording = " ".join(text.split()[:60])
    if stage == "planning":
        return f"{known.task.domain}: {wording}"
    return f"calls {', '.join(known.topics[:4])}. {wording}"
