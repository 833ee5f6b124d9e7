"""The credit attribution gate: asks for a judgement of an episode (equation (6)), once more where it cannot be read.

What an answer says is read in `runtime.diagnosis`. An answer that cannot be used is shown to the model once, for
repair, and then recorded as a degraded diagnosis, which changes no bank.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, get_args

from msgspec import UNSET, Struct
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
from runtime.calls import failed_usage, usage_of
from runtime.diagnosis import Judgement
from runtime.errors import ModelRefused, ModelUnavailable, UnreadableAnswer
from runtime.logger import Logger
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

_log = Logger("chime.gate")

#: why a diagnosis is degraded; the first that applies, `frozen` before all
Degraded = Literal[
    "frozen",  # the run learns nothing
    "gate_off",  # its policy has no gate
    "unscored",  # the task only prepares others
    "environment",  # the environment failed for good: the outcome says nothing about the agent
    "model_unavailable",  # the endpoint did not answer, the executor or the gate
    "refused",  # the endpoint would not answer
    "refusal",  # the model declined to
    "content_filter",  # the endpoint's filter took the answer away
    "context",  # the request is longer than the model's context, however much of it is left out
    "length",  # cut off at the length limit, after the repair turn too
    "unreadable",  # no usable judgement after the repair turn
    "embedding",  # an experience could not be embedded
    "worker_lost",  # the gate's job was lost too often
]

#: of these, what was meant: nobody was to judge
MEANT: frozenset[Degraded] = frozenset({"frozen", "gate_off", "unscored"})
#: and what is the machinery's fault, neither the agent's nor the gate's
FAULTS: frozenset[Degraded] = frozenset({"environment", "model_unavailable", "embedding", "worker_lost"})
#: kinds of refusal that are told apart
_OWN_WORDS: frozenset[Degraded] = frozenset({"refusal", "content_filter", "context", "length"})
#: how an answer ends that is none
_DECLINED = frozenset({"refusal", "content_filter"})

#: how much of an unusable answer the model is shown again, characters
_SHOWN_CHARS = 4_000


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


class Judged(Struct, frozen=True, kw_only=True):
    """What a reflection ends with: a judgement, or why there is none."""

    judgement: Judgement | None
    degraded: Degraded | None
    usage: Usage
    calls: list[str]
    #: kinds of the answers that could not be read, in order
    unread: list[str]


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
    usage, calls, unread = Usage(), list[str](), list[str]()

    def judged(judgement: Judgement | None, degraded: Degraded | None) -> Judged:
        return Judged(judgement=judgement, degraded=degraded, usage=usage, calls=calls, unread=unread)

    asked = list(messages)
    reason: Degraded = "unreadable"
    for retry in (0, 1):
        call = replace(key, retry=retry)
        try:
            answer = await model.complete(ChatRequest(role="gate", messages=asked, schema=dict(schema)), call)
        except (ModelUnavailable, ModelRefused) as error:
            if (told := failed_usage(error)) is not None:
                usage += told
                calls.append(call.id)
            refused = isinstance(error, ModelRefused)
            return judged(None, _own_word(error.kind) or "refused" if refused else "model_unavailable")
        usage += usage_of(answer)
        calls.append(call.id)
        if answer.finish_reason in _DECLINED:
            return judged(None, _own_word(answer.finish_reason))
        try:
            return judged(read(answer_text(answer)), None)
        except UnreadableAnswer as error:
            unread.append(error.kind)
            _log.info(
                "answer_unreadable", run_id=key.run, episode_id=key.stream, call=call.id, kind=error.kind,
                finish_reason=answer.finish_reason, outcome="degraded" if retry else "repair",
            )  # fmt: skip
            asked = [*messages, *_repair(answer, error)]
            reason = "length" if answer.finish_reason == "length" else "unreadable"
    return judged(None, reason)


def _own_word(kind: str) -> Degraded | None:
    return next((word for word in _OWN_WORDS if word == kind), None)


def answer_text(answer: ChatAnswer) -> str:
    """The text to read: never the thinking, which the edge has made the content where it is the answer."""
    return clean_text(answer.content)


def _repair(answer: ChatAnswer, error: UnreadableAnswer) -> list[Message]:
    cut = " Your answer was cut off at the length limit: be shorter." if answer.finish_reason == "length" else ""
    told = f"That answer could not be used: {error.reason}{cut} Answer again with the one JSON object only."
    return [
        {"role": "assistant", "content": defused(answer.content[:_SHOWN_CHARS]).strip() or "(empty)"},
        {"role": "user", "content": defused(told)},
    ]


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
    unread: Sequence[str] = (),
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
        unread=list(unread) or UNSET,
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
