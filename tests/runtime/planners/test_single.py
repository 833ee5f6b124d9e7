"""The default planner, and finding planners and reflections by name."""

import pytest

from events.errors import UnknownName
from events.ids import StreamId
from runtime import planners, reflections
from runtime.planners import View
from runtime.ports import CallKey
from runtime.prompting import load_prompts


async def plan(world, **view):
    facts = {"domain": "home", "task": "Switch it on.", "policy": "", "tools": [], **view}
    key = CallKey(run=world.log.run, stream=StreamId("episode-0"), stage="planning", ordinal=1)
    return await planners.load("single").plan(View(**facts), [], world.model, key, load_prompts())


async def test_one_call(world):
    """A plan is one call, in text alone: no tools, no schema."""
    made = await plan(world)
    assert (made.text, made.calls, made.usage.calls) == (
        "1. Switch on the kitchen light.",
        ["episode-0/planning/1"],
        1,
    )
    (request,) = world.model.requests("planner")
    assert (request.role, request.tools, request.schema) == ("planner", [], None)


async def test_sees_policy_and_tools(world):
    """What the benchmark tells an agent before it starts is in the prompt, in sections."""
    tool = {"type": "function", "function": {"name": "set_light", "description": "Switch.", "parameters": {}}}
    await plan(world, policy="House rules.", tools=[tool])
    text = world.model.requests("planner")[0].messages[1]["content"]
    assert "<policy>\nHouse rules.\n</policy>" in text
    assert "<tools>\n- set_light(): Switch.\n</tools>" in text


@pytest.mark.parametrize(("second", "text"), [("A plan.", "A plan."), (" ", "")])
async def test_empty_answer_is_asked_for_once_more(world, says, second, text):
    """An empty answer gets one more chance; then the episode goes on without a plan, and both calls count."""
    world.model.replies["planner"] = [says(""), says(second)]
    made = await plan(world)
    assert (made.text, made.usage.calls) == (text, 2)
    assert made.calls == ["episode-0/planning/1", "episode-0/planning/1.1"]


async def test_filtered_answer_is_not_asked_for_again(world, says):
    """What a filter held back once it holds back again."""
    world.model.replies["planner"] = [says("", finish="content_filter")]
    assert (await plan(world)).usage.calls == 1


@pytest.mark.parametrize("folder", [planners, reflections])
def test_found_by_name(folder):
    """Every file of the folder loads by its name; an unknown name lists the known ones."""
    assert folder.DEFAULT in folder.names()
    assert all(folder.load(name).VERSION >= 1 for name in folder.names())
    with pytest.raises(UnknownName, match=folder.DEFAULT):
        folder.load("nothing")


@pytest.mark.parametrize(("policy", "reflection"), [("credit", "credit"), ("outcome-signed", "outcome")])
def test_reflection_of_a_policy(policy, reflection):
    """A policy without attribution reflects without it."""
    assert reflections.for_policy(policy) == reflection
