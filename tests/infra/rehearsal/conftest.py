"""Requests to the rehearsal model as the runtime makes them, and whole episodes of the toy played with it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from infra.capabilities import ALL, parameters
from infra.environments.toy import Toy
from infra.rehearsal.asking import read_request
from infra.rehearsal.key import AnswerKey, answer_key
from infra.rehearsal.planting import Planting, RehearsalSettings
from infra.rehearsal.playing import Played, Rehearsal, Reply
from infra.rehearsal.truth import Truth
from runtime.gate import diagnosis_schema
from runtime.ports import ChatRequest
from runtime.prompting import experiences, load_prompts, outcome, section, tools, trajectory_text
from runtime.settings import EndpointSettings, ModelSettings
from runtime.text_calls import calls_in

PROMPTS = load_prompts()

#: nothing goes wrong
FLAWLESS: dict[str, float] = {
    "wrong_plan": 0, "wrong_execution": 0, "both": 0, "external": 0, "rescued": 0, "misled": 0, "foreign": 0,
    "reliability": 1,
}  # fmt: skip

#: (scenario, experience)
Memory = tuple[str, str]


def shown(stage: Any, memories: Sequence[Memory]) -> str:
    """The memories of a stage as a prompt shows them."""
    items: Any = [SimpleNamespace(scenario=scenario, experience=text) for scenario, text in memories]
    return experiences(stage, items)


def planner_body(
    text: str, memories: Sequence[Memory] = (), offered: Sequence[dict[str, Any]] = (), domain: str = "shop"
) -> dict[str, Any]:
    """A planner's request."""
    values = {
        "domain": domain, "policy": "", "tools": tools(offered), "task": section("task", text),
        "experiences": shown("planning", memories),
    }  # fmt: skip
    return {"model": "rehearsal", "messages": PROMPTS["planner"].messages(values)}


def executor_body(
    history: Sequence[dict[str, Any]], plan: str, offered: Sequence[dict[str, Any]], memories: Sequence[Memory] = ()
) -> dict[str, Any]:
    """An executor's request: its own prompt, then the history."""
    values = {"plan": section("plan", plan), "experiences": shown("execution", memories)}
    messages = [*PROMPTS["executor"].messages(values), *history]
    return {"model": "rehearsal", "messages": messages, "tools": list(offered)}


def gate_body(
    text: str,
    plan: str,
    *,
    success: bool,
    planning: Sequence[Memory] = (),
    execution: Sequence[Memory] = (),
    history: Sequence[dict[str, Any]] = (),
    prompt: str = "gate",
    response_format: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A gate's request; with the schema of its prompt unless another format is given ({} = none)."""
    values = {
        "task": section("task", text), "planning_experiences": shown("planning", planning),
        "execution_experiences": shown("execution", execution), "plan": section("plan", plan),
        "trajectory": section("trajectory", trajectory_text(history, 24_000)), "outcome": outcome(success),
    }  # fmt: skip
    if response_format is None:
        schema = diagnosis_schema(attribution=prompt == "gate")
        response_format = {"type": "json_schema", "json_schema": {"name": schema["title"], "schema": schema}}
    body: dict[str, Any] = {"model": "rehearsal", "messages": PROMPTS[prompt].messages(values)}
    return {**body, "response_format": response_format} if response_format else body


def answered(key: AnswerKey, settings: RehearsalSettings, body: dict[str, Any]) -> Played:
    """What the model answers, without HTTP."""
    return Rehearsal(Planting(settings)).play(read_request(body, key))


def in_words(body: dict[str, Any]) -> dict[str, Any]:
    """The same request as an endpoint without tools gets it."""
    request = ChatRequest(role="executor", messages=body["messages"], tools=body["tools"])
    model, endpoint = ModelSettings(model="rehearsal", tools="text"), EndpointSettings(base_url="")
    return parameters(request, model, endpoint, ALL)


def read_in_words(reply: Reply, offered: Sequence[dict[str, Any]]) -> Reply:
    """A reply whose calls are read from its text."""
    found = calls_in(reply.content or "", [one["function"]["name"] for one in offered])
    calls = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
        for one in found or ()
    ]
    return Reply(content=None if calls else reply.content, tool_calls=calls)


@dataclass(kw_only=True)
class Episode:
    """One toy task, played to its end."""

    plan: str
    history: list[dict[str, Any]]
    success: bool
    diagnosis: dict[str, Any]
    truth: Truth


@dataclass
class Stage:
    """A toy and the rehearsal model that knows its answers."""

    key: AnswerKey
    toy: Toy = field(default_factory=Toy)
    #: whether tools are offered in words, and calls read from text
    in_words: bool = False

    def play(
        self,
        task_id: str,
        settings: RehearsalSettings,
        planning: Sequence[Memory] = (),
        execution: Sequence[Memory] = (),
        prompt: str = "gate",
    ) -> Episode:
        """Plan, execute on the real toy, score, diagnose."""
        task = self.key.tasks[task_id]
        opening = self.toy.reset("e", task.domain, task_id)
        plan = answered(self.key, settings, planner_body(task.text, planning, opening["tools"])).reply.content or ""
        history = list(opening["messages"])
        done = False
        while not done:
            body = executor_body(history, plan, opening["tools"], execution)
            reply = answered(self.key, settings, in_words(body) if self.in_words else body).reply
            if self.in_words:
                reply = read_in_words(reply, opening["tools"])
            message: dict[str, Any] = {"role": "assistant", "content": reply.content}
            if reply.tool_calls:
                message["tool_calls"] = reply.tool_calls
            step = self.toy.step(message)
            history += [message, *step["messages"]]
            done = step["done"]
        success = bool(self.toy.evaluate()["success"])
        body = gate_body(
            task.text, plan, success=success, planning=planning, execution=execution, history=history, prompt=prompt
        )
        played = answered(self.key, settings, body)
        assert played.truth is not None
        return Episode(
            plan=plan, history=history, success=success, diagnosis=msgspec.json.decode(played.reply.content or ""),
            truth=played.truth,
        )  # fmt: skip


@pytest.fixture(scope="session")
def toy_key() -> AnswerKey:
    """The answers of every toy task."""
    toy = Toy()
    raw = {
        task["task_id"]: {"domain": task["domain"], **toy.oracle(task["domain"], task["task_id"])}
        for task in toy.tasks()
    }
    return answer_key(raw, "toy")


@pytest.fixture
def stage(toy_key: AnswerKey) -> Stage:
    """A toy and the rehearsal model that knows its answers."""
    return Stage(toy_key)


@pytest.fixture
def stage_in_words(toy_key: AnswerKey) -> Stage:
    """The same stage behind an endpoint without tools."""
    return Stage(toy_key, in_words=True)


@pytest.fixture(scope="session")
def bodies() -> Any:
    """The request builders of this module."""
    return SimpleNamespace(planner=planner_body, executor=executor_body, gate=gate_body, answered=answered)


@pytest.fixture
def flawless() -> RehearsalSettings:
    """Settings under which nothing goes wrong."""
    return RehearsalSettings(**FLAWLESS)  # type: ignore[arg-type]  # every one is a rate


@pytest.fixture
def spoiled() -> Any:
    """Settings under which only what is named goes wrong."""
    return lambda **rates: RehearsalSettings(**{**FLAWLESS, **rates})
