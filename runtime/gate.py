"""The credit attribution gate: from the model's answer to the fields of `diagnosed` (equation (6)).

The answer is read here and nowhere else. What is tolerated is listed at `TOLERANCES`; everything else is shown to the
model once, for repair, and then recorded as a degraded diagnosis, which changes no bank.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from events.bank import Item
from events.codec import clean_text
from events.ids import STAGES, Label, MemoryId, Stage
from events.kinds import (
    Diagnosed,
    MergeProposals,
    Retrieved,
    RetrievedIds,
    StageExperiences,
    Usage,
)
from events.rules import FULL
from runtime.calls import usage_of
from runtime.errors import ModelRefused, ModelUnavailable, UnreadableAnswer
from runtime.ports import CallKey, ChatAnswer, ChatModel, ChatRequest
from runtime.prompting import (
    INDEX_LETTER,
    Prompt,
    Prompts,
    defused,
    experiences,
    outcome,
    section,
    trajectory_text,
)
from runtime.task import Message

#: why a diagnosis is degraded; the first that applies, `frozen` before all
Degraded = Literal[
    "frozen",  # the run learns nothing
    "gate_off",  # its policy has no gate
    "unscored",  # the task only prepares others
    "environment",  # the environment failed for good: the outcome says nothing about the agent
    "model_unavailable",  # the endpoint did not answer, the executor or the gate
    "refused",  # the endpoint or its filter would not answer
    "unreadable",  # no usable judgement after the repair turn
    "embedding",  # an experience could not be embedded
    "worker_lost",  # the gate's job was lost too often
]

#: of these, what was meant: nobody was to judge
MEANT: frozenset[Degraded] = frozenset({"frozen", "gate_off", "unscored"})
#: and what is the machinery's fault, neither the agent's nor the gate's
FAULTS: frozenset[Degraded] = frozenset({"environment", "model_unavailable", "embedding", "worker_lost"})

#: how the answer may differ from what was asked for and still be read; each row has a test
TOLERANCES: dict[str, str] = {
    "fence": "the object stands in a code fence",
    "prose": "text stands before or after the object",
    "reasoning": "the object is the thinking text and the answer is empty",
    "label_case": "label in another case or with spaces around",
    "confidence_string": 'confidence as a string: "0.85"',
    "confidence_percent": 'confidence as a percentage: "85%"',
    "flag_string": 'concrete, actionable as "true", "yes", "false", "no"',
    "index_form": 'an index as "p1" or "[P1]"',
    "index_alone": "misleading as one string instead of a list",
    "misleading_null": "misleading null instead of an empty list",
}

#: a length beyond which a scenario or experience is cut: the event has a size cap, the lint says `too_long` long before
_TEXT_CAP = 8_000
#: an answer is searched for its object at this many places
_STARTS = 64

_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")
_INDEX = re.compile(r"\[?\s*([PE])\s*-?\s*([1-9][0-9]{0,3})\s*\]?", re.IGNORECASE)
_FLAGS = {"true": True, "yes": True, "false": False, "no": False}


class Case(Struct, frozen=True, kw_only=True):
    """One finished episode as a reflection sees it."""

    task: str
    planning: list[Item]
    execution: list[Item]
    plan: str
    trajectory: list[Message]
    success: bool

    def memories(self, stage: Stage) -> list[Item]:
        return self.planning if stage == "planning" else self.execution

    def indices(self) -> dict[str, MemoryId]:
        """Short index -> memory: P1, P2 ... E1, E2 ... in rank order."""
        return {
            f"{INDEX_LETTER[stage]}{i}": item.id for stage in STAGES for i, item in enumerate(self.memories(stage), 1)
        }


class Lesson(Struct, frozen=True, kw_only=True):
    """(c_new, e_new) of one stage as the model wrote it."""

    scenario: str
    experience: str
    concrete: bool
    actionable: bool
    #: in units of 1e-4; None where it was not asked for
    usefulness_e4: int | None = None


class Judgement(Struct, frozen=True, kw_only=True):
    """g_t, before embedding and lint."""

    label: Label
    confidence_e4: int
    misleading: list[MemoryId]
    #: distinct names that were not retrieved
    misleading_dropped: int
    planning: Lesson | None
    execution: Lesson | None

    def lesson(self, stage: Stage) -> Lesson | None:
        return self.planning if stage == "planning" else self.execution


class Judged(Struct, frozen=True, kw_only=True):
    """What a reflection ends with: a judgement, or why there is none."""

    judgement: Judgement | None
    degraded: Degraded | None
    usage: Usage
    calls: list[str]


def case_messages(prompt: Prompt, case: Case, trajectory_chars: int) -> list[Message]:
    """The request of a reflection on `case`."""
    return prompt.messages(
        {
            "task": section("task", case.task),
            "planning_experiences": experiences("planning", case.planning),
            "execution_experiences": experiences("execution", case.execution),
            "plan": section("plan", case.plan),
            "trajectory": section("trajectory", trajectory_text(case.trajectory, trajectory_chars)),
            "outcome": outcome(case.success),
        }
    )


def diagnosis_schema(*, attribution: bool, usefulness: bool = False) -> dict[str, Any]:
    """The JSON schema of the answer: plain enough for every endpoint, without bounds or patterns.

    Args:
        attribution: whether label, confidence and misleading memories are asked for.
        usefulness: whether each experience carries the gate's own estimate of its use.
    """
    lesson: dict[str, Any] = {
        "scenario": {"type": "string"},
        "experience": {"type": "string"},
        "concrete": {"type": "boolean"},
        "actionable": {"type": "boolean"},
    }
    if usefulness:
        lesson["usefulness"] = {"type": "number"}
    optional = {"anyOf": [_object(lesson), {"type": "null"}]}
    fields: dict[str, Any] = {"planning": optional, "execution": optional}
    if attribution:
        fields = {
            "evidence": {"type": "string"},
            "label": {"type": "string", "enum": list(get_args(Label))},
            "confidence": {"type": "number"},
            **fields,
            "misleading": {"type": "array", "items": {"type": "string"}},
        }
    return {"title": "diagnosis", **_object(fields)}


MERGED_SCHEMA: dict[str, Any] = {
    "title": "merged",
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


async def judge(
    model: ChatModel,
    key: CallKey,
    messages: Sequence[Message],
    schema: Mapping[str, Any],
    read: Callable[[str], Judgement],
) -> Judged:
    """Ask; show the model its error once; give up as degraded.

    Raises:
        RunStopped: nothing on the endpoint can work.
    """
    usage, calls = Usage(), list[str]()
    asked = list(messages)
    for retry in (0, 1):
        call = replace(key, retry=retry)
        try:
            answer = await model.complete(ChatRequest(role="gate", messages=asked, schema=dict(schema)), call)
        except ModelUnavailable:
            return Judged(judgement=None, degraded="model_unavailable", usage=usage, calls=calls)
        except ModelRefused:
            return Judged(judgement=None, degraded="refused", usage=usage, calls=calls)
        usage += usage_of(answer)
        calls.append(call.id)
        try:
            judgement = read(answer_text(answer))
        except UnreadableAnswer as error:
            if answer.finish_reason == "content_filter":
                return Judged(judgement=None, degraded="refused", usage=usage, calls=calls)
            asked = [*messages, *_repair(answer, error)]
        else:
            return Judged(judgement=judgement, degraded=None, usage=usage, calls=calls)
    return Judged(judgement=None, degraded="unreadable", usage=usage, calls=calls)


def answer_text(answer: ChatAnswer) -> str:
    """The text to read: the content, or the thinking text where an endpoint put the answer there."""
    return clean_text(answer.content if answer.content.strip() else answer.reasoning)


def _repair(answer: ChatAnswer, error: UnreadableAnswer) -> list[Message]:
    cut = " Your answer was cut off at the length limit: be shorter." if answer.finish_reason == "length" else ""
    told = f"That answer could not be used: {error.reason}{cut} Answer again with the one JSON object only."
    return [
        {"role": "assistant", "content": clean_text(answer.content) or "(empty)"},
        {"role": "user", "content": told},
    ]


def read_diagnosis(text: str, indices: Mapping[str, MemoryId]) -> Judgement:
    """The judgement that `text` holds.

    Raises:
        UnreadableAnswer: there is none; `kind` is `no_object`, `duplicate`, `label`, `confidence`, `misleading` or
            `experience`.
    """
    given = find_object(text, "label")
    misleading, dropped = _misleading(given, indices)
    return Judgement(
        label=_label(given.get("label")),
        confidence_e4=_e4(given.get("confidence"), "confidence"),
        misleading=misleading,
        misleading_dropped=dropped,
        planning=_lesson(given, "planning"),
        execution=_lesson(given, "execution"),
    )


def read_experiences(text: str) -> Judgement:
    """What a reflection without attribution holds: both stages in full, nothing misleading (reading 23).

    Raises:
        UnreadableAnswer: neither stage is there; `kind` is `no_object`, `duplicate` or `experience`.
    """
    given = find_object(text, "planning", "execution")
    return Judgement(
        label="both",
        confidence_e4=FULL,
        misleading=[],
        misleading_dropped=0,
        planning=_lesson(given, "planning"),
        execution=_lesson(given, "execution"),
    )


def read_merged(text: str) -> str:
    """The merged text, stripped.

    Raises:
        UnreadableAnswer: none, or an empty one.
    """
    merged = find_object(text, "text")["text"]
    if not isinstance(merged, str) or not merged.strip():
        raise UnreadableAnswer("text", '"text" must be a text that is not empty.')
    return merged.strip()


def find_object(text: str, *names: str) -> dict[str, Any]:
    """The first JSON object in `text` that has one of `names`; numbers with a point are `Decimal`, as written.

    Raises:
        UnreadableAnswer: there is none, or it names a field twice.
    """
    decoder = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_once)
    twice: _Twice | None = None
    for start in [match.start() for match in re.finditer(r"\{", text)][:_STARTS]:
        try:
            value, _ = decoder.raw_decode(text, start)
        except _Twice as error:
            twice = error
        except (ValueError, RecursionError):
            continue
        else:
            if any(name in value for name in names):
                return cast("dict[str, Any]", value)
    if twice is not None:
        raise UnreadableAnswer("duplicate", f"the field {twice} stands twice.")
    wanted = " or ".join(f'"{name}"' for name in names)
    raise UnreadableAnswer("no_object", f"it holds no complete JSON object with {wanted}.")


class _Twice(ValueError):
    """A field that stands twice: nobody can say which is meant."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise _Twice(name)
        fields[name] = value
    return fields


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _label(value: object) -> Label:
    named = value.strip().casefold() if isinstance(value, str) else value
    if named not in get_args(Label):
        raise UnreadableAnswer("label", f'"label" must be one of {", ".join(get_args(Label))}.')
    return cast("Label", named)


def _e4(value: object, field: str) -> int:
    """A number in [0, 1] in units of 1e-4, rounded half to even on the decimal text that was written."""
    if isinstance(value, str):
        value = _number(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not 0 <= value <= 1:
        raise UnreadableAnswer("confidence", f'"{field}" must be a number from 0 to 1.')
    if isinstance(value, Decimal) and value.adjusted() < -6:
        return 0  # below half a unit whatever the digits; a vast exponent must not become a vast fraction
    return round(Fraction(value) * FULL)


def _number(text: str) -> Decimal | None:
    if percent := _PERCENT.fullmatch(text):
        return Decimal(percent[1]).scaleb(-2) if len(percent[1]) < 20 else None
    return Decimal(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,99})?", text) else None


def _lesson(given: Mapping[str, Any], stage: Stage) -> Lesson | None:
    """One stage's experience; None where the model wrote null or left a text empty.

    Raises:
        UnreadableAnswer: something else than an object with its four fields.
    """
    value = given.get(stage)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise UnreadableAnswer("experience", f'"{stage}" must be an object or null.')
    texts = [value.get("scenario"), value.get("experience")]
    if any(text is not None and not isinstance(text, str) for text in texts):
        raise UnreadableAnswer("experience", f'"scenario" and "experience" of "{stage}" must be texts.')
    scenario, experience = (str(text or "").strip()[:_TEXT_CAP] for text in texts)
    if not scenario or not experience:
        return None
    useful = value.get("usefulness")
    return Lesson(
        scenario=scenario,
        experience=experience,
        concrete=_flag(value, "concrete", stage),
        actionable=_flag(value, "actionable", stage),
        usefulness_e4=None if useful is None else _e4(useful, "usefulness"),
    )


def _flag(value: Mapping[str, Any], name: str, stage: Stage) -> bool:
    flag = value.get(name)
    if isinstance(flag, str):
        flag = _FLAGS.get(flag.strip().casefold())
    if not isinstance(flag, bool):
        raise UnreadableAnswer("experience", f'"{name}" of "{stage}" must be true or false.')
    return flag


def _misleading(given: Mapping[str, Any], indices: Mapping[str, MemoryId]) -> tuple[list[MemoryId], int]:
    """The retrieved memories that were named, each once, in rank order; how many other names there were."""
    named = given.get("misleading", ...)
    if isinstance(named, str):
        named = [named]
    if named is None:
        named = []
    if not isinstance(named, list):
        raise UnreadableAnswer("misleading", '"misleading" must be a list of memory indices, empty if none misled.')
    found: set[str] = set()
    dropped: set[str] = set()
    for name in named:
        match = _INDEX.fullmatch(name.strip()) if isinstance(name, str) else None
        index = f"{match[1].upper()}{match[2]}" if match else ""
        if index in indices:
            found.add(index)
        else:
            dropped.add(index or json.dumps(name, default=str, sort_keys=True))
    # A memory that both stages were given has two indices; it is named once.
    return list(dict.fromkeys(memory for index, memory in indices.items() if index in found)), len(dropped)


def retrieved_ids(retrieved: Collection[Retrieved]) -> RetrievedIds:
    """The chosen ids of both stages in rank order; a stage that has no event has none."""
    chosen: dict[Stage, list[MemoryId]] = {stage: [] for stage in STAGES}
    for event in retrieved:
        chosen[event.stage] = [one.id for one in event.candidates if one.chosen]
    return RetrievedIds(planning=chosen["planning"], execution=chosen["execution"])


def degraded(
    reason: Degraded,
    *,
    success: bool,
    retrieved: Collection[Retrieved],
    usage: Usage = Usage(),  # noqa: B008 - frozen
    calls: Sequence[str] = (),
) -> Diagnosed:
    """The diagnosis of an episode without a usable judgement: it changes no bank, not even n."""
    return Diagnosed(
        success=success,
        label="none",
        confidence_e4=0,
        retrieved=retrieved_ids(retrieved),
        misleading=[],
        misleading_dropped=0,
        experiences=StageExperiences(),
        merge_proposals=MergeProposals(),
        degraded=reason,
        usage=usage,
        calls=list(calls),
    )


def merge_messages(prompts: Prompts, item: Item, lesson: str, limit: int) -> list[Message]:
    """The request for one text out of `item` and the new experience."""
    return prompts["merge"].messages(
        {
            "scenario": " ".join(defused(item.scenario).split()),
            "existing": section("existing", item.experience),
            "new": section("new", lesson),
            "limit": str(limit),
        }
    )
