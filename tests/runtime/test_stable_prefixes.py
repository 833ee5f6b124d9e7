"""What is sent begins with what was sent before: servers keep what they have read, and a cached token costs little."""

import json
from itertools import pairwise, takewhile

import pytest
from msgspec.structs import replace

from runtime.episode import act, diagnose
from runtime.ports import ChatRequest
from runtime.prompting import load_prompts
from runtime.task import StepResult, Task

POLICY = "House rules: " + "be kind to the lamps. " * 20


def read(request: ChatRequest) -> str:
    """A request in the order in which templates write it out: tools, then messages."""
    parts = [json.dumps(request.tools), *(json.dumps(one, ensure_ascii=False) for one in request.messages)]
    return "\n".join(parts)


def common(one: ChatRequest, other: ChatRequest) -> str:
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(read(one), read(other), strict=False))
    return "".join(letter for letter, _ in pairs)


async def two_episodes(world):
    """Two tasks of one domain, with other texts and other plans."""
    world.tasks = [Task(task_id="lights-1", domain="home"), Task(task_id="heat-2", domain="home")]
    for t, task in enumerate(("Switch on the kitchen light.", "Heat the bathroom to 22 degrees.")):
        opening = world.environment.opening
        world.environment.opening = replace(opening, system=POLICY, messages=[{"role": "user", "content": task}])
        world.model.replies["planner"][:] = [replace(world.model.replies["planner"][0], content=f"1. {task}")]
        await act(world.job("act", t), world.context())
        await diagnose(world.job("diagnose", t), world.context())


async def test_each_step_begins_with_the_one_before(world, calls):
    """Message by message, byte by byte, with the same tools: the system text first and never changed."""
    world.model.replies["executor"] = [calls(("set_light", "{")), calls(("set_light", "{}")), calls(("look", "{}"))]
    world.environment.steps = [StepResult(messages=[{"role": "user", "content": "And now?"}])] * 9
    world.settings = replace(world.settings, max_steps=6)
    await act(world.job(), world.context())
    asked = world.model.requests("executor")
    assert len(asked) == 6
    assert asked[0].messages[0]["role"] == "system"
    for earlier, later in pairwise(asked):
        assert later.tools == earlier.tools
        assert later.messages[: len(earlier.messages)] == earlier.messages
        assert len(later.messages) > len(earlier.messages)


async def test_a_planners_requests_share_all_but_the_task(world):
    """System text, domain, policy and tools stand before what another task changes."""
    await two_episodes(world)
    shared = common(*world.model.requests("planner"))
    assert "You are the planner" in shared
    assert "be kind to the lamps" in shared
    assert "set_light" in shared
    assert shared.endswith(("<task>\\n", "<task>"))


async def test_executors_of_a_domain_share_all_but_the_plan(world):
    """Tools, the benchmark's rules and our own guidance stand before the plan."""
    await two_episodes(world)
    shared = common(*world.model.requests("executor"))
    assert shared.startswith('[{"type": "function"')
    assert "be kind to the lamps" in shared
    assert "You carry out the task" in shared
    assert "<plan>" in shared


async def test_gates_share_their_system_text(world):
    """All of it: what differs is the user's side."""
    await two_episodes(world)
    first, second = world.model.requests("gate")
    assert first.messages[0] == second.messages[0]
    assert first.messages[0]["role"] == "system"
    assert first.schema == second.schema


@pytest.mark.parametrize("answers", [["nothing of use"], [""]])
async def test_a_repair_turn_begins_with_the_question(world, says, answers):
    """What could not be read, and why, comes behind it."""
    world.model.replies["gate"] = [*map(says, answers), *world.model.replies["gate"]]
    await act(world.job(), world.context())
    await diagnose(world.job("diagnose"), world.context())
    first, again = world.model.requests("gate")
    assert again.messages[: len(first.messages)] == first.messages
    assert again.schema == first.schema


def test_packaged_system_texts_are_constant_up_to_their_end():
    """Nothing is filled into a system text but the executor's plan and experiences, behind all of our own words."""
    for name in ("planner", "gate", "outcome"):
        assert "{{" not in load_prompts()[name].system
    executor = load_prompts()["executor"].system
    assert executor.index("{{plan}}") > len(executor) / 2
