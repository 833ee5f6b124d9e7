"""Whole episodes whose model declines, is cut off, or thinks aloud: what the log says, and what it lacks."""

import json
from datetime import UTC, datetime
from typing import Any

import anyio.lowlevel
import pytest

from events.kinds import Abandoned, Diagnosed, Executed
from infra.calls import MemoryCalls, RecordedCalls, calls_of
from infra.completion import completion
from runtime.episode import act, diagnose
from runtime.ports import CallKey, ChatAnswer, ChatRequest

MARKER = "xyzzy"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def play(world):
    """Both jobs of an episode."""
    context = world.context()
    await act(world.job(), context)
    await diagnose(world.job("diagnose"), context)


def found(world, kind):
    return next(event for event in world.log.events() if isinstance(event, kind))


@pytest.mark.parametrize(
    ("text", "finish", "word"),
    [
        ("I cannot help.", "refusal", "refusal: I cannot help."),
        ("", "content_filter", "content_filter: without a word"),
        ("1. Swi", "length", "length: the plan was cut off"),
        ("", "stop", "empty: the answer held no plan"),
    ],
)
async def test_an_episode_without_a_plan_is_abandoned(world, says, text, finish, word):
    """At once, with its own reason; the executor and the gate are not asked."""
    world.model.replies["planner"] = [says(text, finish=finish)]
    await play(world)
    assert world.log.kinds() == ["retrieved", "abandoned"]
    assert found(world, Abandoned).stage == "planning"
    assert found(world, Abandoned).reason.startswith(word)
    assert {request.role for request, _ in world.model.asked} == {"planner"}


@pytest.mark.parametrize("word", ["refusal", "content_filter"])
async def test_an_execution_that_was_declined_is_not_judged(world, says, word):
    """It is scored, and says nothing about plan or memories: the diagnosis is degraded with the same word."""
    world.model.replies["executor"] = [says("No.", finish=word)]
    await play(world)
    assert found(world, Executed).stop == word
    assert found(world, Diagnosed).degraded == word
    assert not world.model.requests("gate")


@pytest.mark.parametrize("word", ["refusal", "content_filter"])
async def test_a_diagnosis_that_was_declined_is_degraded(world, says, diagnosis, word):
    """Whatever the answer holds besides."""
    world.model.replies["gate"] = [says(json.dumps(diagnosis), finish=word)]
    await play(world)
    assert found(world, Diagnosed).degraded == word


class Bodies:
    """A model that answers each role with the message of a completion, as it came over a wire."""

    def __init__(self, messages: dict[str, dict[str, Any]]) -> None:
        self.messages = messages
        self.asked: list[ChatRequest] = []

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        await anyio.lowlevel.checkpoint()
        self.asked.append(request)
        body = {"choices": [{"message": self.messages[request.role]}]}
        return completion(json.dumps(body).encode(), request, key, NOW)


def text_with(form: str, text: str) -> dict[str, Any]:
    """A message with thinking that holds the marker in one of the forms, and `text`."""
    match form:
        case "reasoning_content" | "reasoning" | "thinking":
            return {"content": text, form: MARKER}
        case "details":
            return {"content": text, "reasoning_details": [{"type": "reasoning.text", "text": MARKER}]}
        case "parts":
            return {"content": [{"type": "thinking", "thinking": MARKER}, {"type": "text", "text": text}]}
        case "object":
            return {"content": text, "reasoning": json.dumps({"label": MARKER, "text": MARKER, "planning": None})}
        case _:
            return {"content": form.format(thought=MARKER, text=text)}


FORMS = [
    "reasoning_content",
    "reasoning",
    "thinking",
    "details",
    "parts",
    "object",
    "<think>{thought}</think>{text}",
    "{thought}\n</think>\n{text}",
    "<thinking>{thought}</thinking>\n{text}",
    "<reasoning>{thought}</reasoning>{text}",
    "<think>{thought}</think><think>{thought}</think>{text}",
    "{text}\n<think>{thought}",
    "[THINK]{thought}[/THINK]{text}",
    "<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final<|message|>{text}<|return|>",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("silent", [False, True], ids=["with an answer", "without one"])
async def test_thinking_stays_in_the_answer_s_blob(world, diagnosis, form, silent):
    """No event, prompt, plan, trajectory or message holds it, whether the rest is an answer or not."""
    texts = {"planner": "1. Switch it on.", "executor": "It is on.", "gate": json.dumps(diagnosis)}
    model = Bodies(
        {role: text_with(form, "" if silent and role != "planner" else text) for role, text in texts.items()}
    )
    store = MemoryCalls()
    world.model = RecordedCalls(model, store, world.blobs, world.clock)
    await play(world)
    assert world.log.kinds()[-1] == "diagnosed"
    assert MARKER.encode() not in b"".join(data for _, _, data in world.log.contents())
    for request in model.asked:
        assert MARKER not in json.dumps([request.messages, request.tools, request.schema])
    answers = {record.answer for record in await calls_of(store, world.log.run)}
    holding = {name for name, body in world.blobs.bodies.items() if MARKER.encode() in body}
    assert holding
    assert holding <= answers


async def test_thinking_alone_makes_no_plan(world):
    """A planner that only thinks has said nothing."""
    world.model = Bodies({"planner": {"content": None, "reasoning": MARKER}})
    await play(world)
    assert world.log.kinds() == ["retrieved", "abandoned"]
    assert MARKER not in found(world, Abandoned).reason
