"""What the rehearsal model answers: planner, executor and gate over tasks whose answers it knows, with planted faults.

Pure: the same request gets the same answer from every process that has the same key and settings. The executor knows
from the plan's own words whether it is wrong; the gate works out again what was planted from what its prompt shows.
"""

import hashlib
import json
from typing import Any

from msgspec import Struct

from events.errors import ChimeError
from events.ids import STAGES, Label, Stage, attributed
from infra.rehearsal.asking import Asked
from infra.rehearsal.key import KnownTask, Turns, calls_of, on_the_wire
from infra.rehearsal.lessons import helpful, lesson_lines, misleading, pitfall, scenario, takes_pitfall, vague
from infra.rehearsal.planting import Planted, Planting, StagePlanted
from infra.rehearsal.truth import Told, Truth
from runtime.prompting import message_text
from runtime.task import Message

_LABELS: tuple[Label, ...] = ("planning", "execution", "both", "none")
_UNAVAILABLE = "The service did not respond, so nothing could be done here."
_FINISHED = "That is done."


class UnknownTask(ChimeError):
    """The request is about no task of the answer key."""


class Reply(Struct, frozen=True, kw_only=True):
    """One assistant message."""

    content: str | None
    #: OpenAI tool calls
    tool_calls: list[dict[str, Any]] = []
    #: whether it ends where the request's cap is
    is_cut: bool = False


class Played(Struct, frozen=True, kw_only=True):
    """An answer, and the truth behind it where it judged an episode."""

    reply: Reply
    truth: Truth | None = None


class Rehearsal:
    """The model: requests in, answers out."""

    def __init__(self, planting: Planting) -> None:
        self.planting = planting

    def play(self, asked: Asked) -> Played:
        """The answer to one request.

        Raises:
            UnknownTask: no task of the key has the request's text.
        """
        if asked.part == "merge":
            return Played(reply=Reply(content=json.dumps({"text": _merged(asked)}, ensure_ascii=False)))
        if asked.known is None:
            raise UnknownTask(
                "the answer key this rehearsal model was started with has no task with this text; "
                "start it with the key of the tasks you run"
            )
        match asked.part:
            case "planner":
                return Played(reply=Reply(content=self._plan(asked, asked.known)))
            case "executor":
                return Played(reply=self._act(asked, asked.known))
            case "gate":
                return self._judge(asked, asked.known)

    # -- planner -----------------------------------------------------------------------------------------------------

    def _plan(self, asked: Asked, known: KnownTask) -> str:
        planted = self.planting.stage(known, "planning", asked.shown("planning"))
        turns = _way(known, planted, StagePlanted()) if planted.wrong else known.task.turns
        steps = [_approach(known, planted, "planning"), *_steps(turns), "Look at every result, then say how it ended."]
        # The kind of task tells variants with one text apart, for the executor and the gate that see only the plan.
        lines = [f"{number}. {step}" for number, step in enumerate(steps, 1)]
        return "\n".join([f"A {known.task.domain} task.", *lines])

    # -- executor ----------------------------------------------------------------------------------------------------

    def _act(self, asked: Asked, known: KnownTask) -> Reply:
        turn, position = _place(asked.history)
        if self.planting.external(known):
            return _outage(asked, known, turn, position)
        execution = self.planting.stage(known, "execution", asked.shown("execution"))
        plan = StagePlanted(wrong=takes_pitfall(asked.plan, "planning"))
        remark = ""
        if execution.wrong:
            remark = _approach(known, execution, "execution")
        elif plan.wrong and self.planting.rescued(known):
            plan, remark = StagePlanted(), "The plan takes a short cut here; the request asks for more, so I go on."
        return _next(asked, known, _way(known, plan, execution), turn, position, remark)

    # -- gate --------------------------------------------------------------------------------------------------------

    def _judge(self, asked: Asked, known: KnownTask) -> Played:
        success = bool(asked.success)
        wrong_plan = takes_pitfall(asked.plan, "planning") if asked.plan else None
        planted = self.planting.episode(known, asked.shown("planning"), asked.shown("execution"), wrong_plan=wrong_plan)
        if asked.repairs == 0 and self.planting.draw(known, "garbled") < self.planting.settings.garbled:
            return Played(reply=Reply(content="Let me think about which stage earned this. The plan"))
        told = self._told(asked, known, planted, success=success)
        answer: dict[str, Any] = {
            "label": told.label,
            "confidence": told.confidence_e4 / 10_000,
            "evidence": _evidence(told.label, success=success),
            "planning": self._experience(asked, known, planted, "planning"),
            "execution": self._experience(asked, known, planted, "execution"),
            "misleading": told.misleading,
        }
        if asked.fields is not None:
            answer = {name: value for name, value in answer.items() if name in asked.fields}
        truth = Truth(
            task=known.task_id,
            success=success,
            fault=planted.fault,
            label=planted.label(success=success),
            misleading=planted.misleading,
            planted=planted,
            told=told if "label" in answer else None,
            plan=hashlib.sha256(asked.plan.encode()).hexdigest(),
            shown={stage: len(asked.shown(stage)) for stage in STAGES},
        )
        return Played(reply=Reply(content=json.dumps(answer, ensure_ascii=False)), truth=truth)

    def _told(self, asked: Asked, known: KnownTask, planted: Planted, *, success: bool) -> Told:
        """What the gate says: the truth as often as it is reliable, more sure of itself where it is right."""
        draw, reliability = self.planting.draw, self.planting.settings.reliability
        truth = planted.label(success=success)
        sure = draw(known, "sure", truth, str(success))
        if draw(known, "gate", truth, str(success)) < reliability:
            label, confidence = truth, 0.70 + 0.28 * sure
        else:
            others: list[Label] = [label for label in _LABELS if label != truth]
            label = others[int(draw(known, "other", truth, str(success)) * len(others))]
            confidence = 0.35 + 0.45 * sure
        named = []
        for memory in asked.memories:
            guilty = memory.index in planted.misleading
            # an innocent item is blamed a fifth as often as a guilty one is missed
            chance = reliability if guilty else (1 - reliability) / 5
            if draw(known, "named", memory.stage, memory.scenario) < chance:
                named.append(memory.index)
        return Told(label=label, confidence_e4=100 * round(100 * confidence), misleading=named)

    def _experience(self, asked: Asked, known: KnownTask, planted: Planted, stage: Stage) -> dict[str, Any]:
        """What the gate writes for a stage, whatever label it gives.

        Right about a stage that earned the outcome or did nothing wrong in a success. Of the others a reflection tells
        stories: it blames what was right when something else failed, and praises a short cut that went well.
        """
        success = bool(asked.success)
        earned = stage in attributed(planted.label(success=success))
        sound = success and not planted.external and not planted.of(stage).wrong
        concrete = True
        if earned or sound:
            text = helpful(known, stage)
        elif self.planting.draw(known, "superstition", stage, str(success)) < self.planting.settings.superstition:
            text = misleading(known, stage)
        else:
            text, concrete = vague(stage), False
        written = {
            "scenario": scenario(known, stage),
            "experience": text,
            "concrete": concrete,
            "actionable": concrete,
        }
        return {**written, "usefulness": 0.8 if concrete else 0.05} if asked.usefulness else written


def _way(known: KnownTask, plan: StagePlanted, execution: StagePlanted) -> Turns:
    """The messages of an episode whose plan and execution are right or wrong."""
    task = known.task
    if plan.wrong and execution.wrong:
        return task.saboteur_both or task.saboteur
    if plan.wrong:
        return task.saboteur_plan or task.saboteur
    return task.saboteur if execution.wrong else task.turns


def _approach(known: KnownTask, planted: StagePlanted, stage: Stage) -> str:
    """How a stage goes about it, in words that show whether it is wrong."""
    if not planted.wrong:
        return "Read the whole request and keep to it."
    said = pitfall(known, stage)
    return f"As [{planted.astray_by}] advises: {said}." if planted.astray_by else f"Best here: {said}."


def _steps(turns: Turns) -> list[str]:
    """The calls of the first turn as steps of a plan: names and argument names, no values."""
    steps = []
    for message in turns[0] if turns else []:
        called = [
            f"`{on_the_wire(call.name)}` with {', '.join(call.arguments)}"
            if call.arguments
            else f"`{on_the_wire(call.name)}`"
            for call in calls_of(message)
        ]
        if called:
            steps.append(f"Call {' and '.join(called)}.")
    return steps or ["Answer in text; no call is needed."]


def _place(history: list[Message]) -> tuple[int, int]:
    """Which user turn it is, and how many assistant messages it has already; both from 0.

    User messages without an assistant message between them are one turn.
    """
    turn, position, previous = -1, 0, ""
    for message in history:
        role = message.get("role")
        if role == "user" and previous != "user":
            turn, position = turn + 1, 0
        elif role == "assistant":
            position += 1
        previous = str(role)
    return max(turn, 0), position


def _next(asked: Asked, known: KnownTask, turns: Turns, turn: int, position: int, remark: str) -> Reply:
    """The message at a place of a script; after its end a text, which ends the turn."""
    script = turns[turn] if turn < len(turns) else []
    if position >= len(script):
        return Reply(content=_FINISHED)
    message = script[position]
    calls = list(calls_of(message))
    text = message_text(message)
    if not calls:
        return Reply(content=text or _FINISHED)
    if not asked.tools:  # no calls can be made; say which
        return Reply(content=json.dumps([{call.name: call.arguments} for call in calls], ensure_ascii=False))
    made: list[dict[str, Any]] = []
    for number, call in enumerate(calls):
        name = call.name if call.name in asked.tools else on_the_wire(call.name)
        place = f"{known.task_id}/{turn}/{position}/{number}".encode()
        made.append(
            {
                "id": f"call_{hashlib.sha256(place).hexdigest()[:24]}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
        )
    said = " ".join(part for part in (remark if (turn, position) == (0, 0) else "", text) if part)
    if asked.in_words:
        written = [
            {"name": one["function"]["name"], "arguments": json.loads(one["function"]["arguments"])} for one in made
        ]
        marked = (f"<tool_call>\n{json.dumps(one, ensure_ascii=False)}\n</tool_call>" for one in written)
        return Reply(content="\n".join([said, *marked] if said else marked))
    return Reply(content=said or None, tool_calls=made)


def _outage(asked: Asked, known: KnownTask, turn: int, position: int) -> Reply:
    """The outside fails: nothing is done, in words; a task that is solved by doing nothing gets a stray call."""
    right = any(message.get("tool_calls") for script in known.task.turns for message in script)
    stray = any(message.get("tool_calls") for script in known.task.saboteur for message in script)
    if stray and not right:
        return _next(asked, known, known.task.saboteur, turn, position, _UNAVAILABLE)
    return Reply(content=_UNAVAILABLE)


def _evidence(label: Label, *, success: bool) -> str:
    """A reason for a label, in plain words."""
    match label, success:
        case "planning", True:
            return "The plan set the right steps before anything was called; the rest followed from it."
        case "planning", False:
            return "The plan itself took a short cut, and the calls followed it."
        case "execution", True:
            return "The calls were made with care; the plan alone would not have been enough."
        case "execution", False:
            return "The plan was sufficient, but the calls did not follow it."
        case "both", True:
            return "A sufficient plan, followed to its end."
        case "both", False:
            return "The plan took a short cut and the calls were careless as well."
        case _:
            return "Nothing in the plan or the calls explains this outcome; it came from outside."


def _merged(asked: Asked) -> str:
    """One text from the lessons of a merge request, each once; from its texts where they hold no lesson of ours."""
    lines = lesson_lines("\n".join(asked.merging))
    return " ".join(lines or dict.fromkeys(" ".join(text.split()) for text in asked.merging))
