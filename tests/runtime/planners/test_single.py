"""The default planner, and finding planners and reflections by name."""

import pytest

from events.errors import UnknownName
from events.ids import StreamId
from runtime import planners, reflections
from runtime.errors import ModelRefused
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


@pytest.mark.parametrize(
    ("first", "finish", "told"), [("", "stop", "no text"), ("1. Sw", "length", "cut off"), ("", "length", "cut off")]
)
async def test_no_whole_plan_is_asked_for_once_more(world, says, first, finish, told):
    """An empty answer, or half a one, gets one more chance with other words; both calls count."""
    world.model.replies["planner"] = [says(first, finish=finish), says("A plan.")]
    made = await plan(world)
    assert (made.text, made.usage.calls) == ("A plan.", 2)
    assert made.calls == ["episode-0/planning/1", "episode-0/planning/1.1"]
    first_request, second = world.model.requests("planner")
    assert second.messages[:-1] == first_request.messages
    assert told in second.messages[-1]["content"]


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([("", "stop")], "empty"),
        ([(" ", "tool_calls")], "empty"),
        ([("1. Sw", "length")], "length"),
        ([("", "stop"), ("1. Sw", "length")], "length"),
        ([("1. Sw", "length"), ("", "stop")], "empty"),
    ],
)
async def test_nobody_goes_on_without_a_whole_plan(world, says, answers, kind):
    """After the second try it is a refusal of its own kind; half a plan is never used."""
    world.model.replies["planner"] = [says(text, finish=finish) for text, finish in answers]
    with pytest.raises(ModelRefused) as caught:
        await plan(world)
    assert caught.value.kind == kind
    assert len(world.model.asked) == 2


@pytest.mark.parametrize("kind", ["refusal", "content_filter"])
@pytest.mark.parametrize("text", ["", "I cannot\nhelp.", "x" * 10_000])
async def test_who_declines_is_not_asked_again(world, says, kind, text):
    """Whatever the answer holds, it is no plan."""
    world.model.replies["planner"] = [says(text, finish=kind)]
    with pytest.raises(ModelRefused) as caught:
        await plan(world)
    assert (caught.value.kind, len(world.model.asked)) == (kind, 1)
    assert 0 < len(caught.value.reason) <= 300
    assert "\n" not in caught.value.reason


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
