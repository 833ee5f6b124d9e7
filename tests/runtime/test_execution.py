"""The executor's loop: what ends it, what a failed step does, and what reaches the history."""

import json
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from events.ids import StreamId
from runtime.errors import EnvironmentCrashed, EnvironmentFailed, ModelRefused, ModelUnavailable
from runtime.execution import Executor, Lease
from runtime.ports import CallKey
from runtime.task import Evaluation, StepResult


async def run(world, **settings):
    """One execution over the world's environment."""
    chosen = replace(world.settings, **settings)
    executor = Executor(
        model=world.model,
        clock=world.clock,
        settings=chosen,
        key=CallKey(run=world.log.run, stream=StreamId("episode-0"), stage="execution", ordinal=1),
        guidance="Be careful.",
    )
    async with AsyncExitStack() as stack:
        lease = Lease(world.environment, stack, world.tasks[0], "test/episode-0", chosen, {})
        return await executor.run(lease, await lease.open())


GOING = StepResult(messages=[{"role": "user", "content": "And now?"}])


async def test_system_message(world):
    """The benchmark's own system text comes first, ours after it; a benchmark without one gets ours alone."""
    done = await run(world)
    assert done.messages[0]["content"] == "House rules.\n\nBe careful."
    world.environment.opening = replace(world.environment.opening, system="")
    assert (await run(world)).messages[0]["content"] == "Be careful."


async def test_dialog(world, says, calls):
    """Each answer goes to the environment, what comes back goes into the history, until the environment ends it."""
    world.model.replies["executor"] = [calls(("set_light", "{}")), says("It is on.")]
    world.environment.steps = [
        StepResult(messages=[{"role": "tool", "tool_call_id": "episode-0-1-0", "content": "ok"}]),
        StepResult(messages=[], done=True, terminated_by="user_stop", errors=1),
    ]
    done = await run(world)
    assert [message["role"] for message in done.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert (done.steps, done.errors, done.stop, done.usage.calls) == (2, 1, "user_stop", 2)
    assert done.calls == ["episode-0/execution/1", "episode-0/execution/2"]
    assert world.environment.actions[1] == {"role": "assistant", "content": "It is on."}


async def test_failed_step(world, calls):
    """A step that cannot be used counts, is answered to the model, and never reaches the environment."""
    world.model.replies["executor"] = [calls(("set_light", "{")), calls(("set_light", "{}"))]
    done = await run(world)
    assert (done.steps, done.errors, done.stop) == (2, 1, "done")
    assert len(world.environment.actions) == 1
    history = world.model.requests("executor")[1].messages
    assert json.loads(history[2]["tool_calls"][0]["function"]["arguments"]) == {}


@pytest.mark.parametrize(
    ("settings", "stop", "steps"),
    [({"max_steps": 3}, "max_steps", 3), ({"max_errors": 1}, "max_errors", 2)],
)
async def test_limits(world, says, settings, stop, steps):
    """Steps and errors are bounded, and the evaluator still has its word."""
    world.model.replies["executor"] = [says("")]
    done = await run(world, **settings)
    assert (done.stop, done.steps) == (stop, steps)
    assert world.environment.evaluated == 1


async def test_time_is_up(world, says):
    """The episode's budget is looked at between steps."""
    world.model.replies["executor"] = [says("Go on.")]
    world.environment.steps = [GOING]
    complete = world.model.complete

    async def slow(request, key):
        world.clock.now += 40
        return await complete(request, key)

    world.model.complete = slow
    done = await run(world, budget_s=100.0)
    assert (done.stop, done.steps) == ("timeout", 3)


async def test_waiting_for_a_turn_is_no_time_of_the_episode(world, says, monkeypatch):
    """A low rate makes it longer, not shorter."""
    world.model.replies["executor"] = [says("Go on.")]
    world.environment.steps = [GOING]
    complete, waited = world.model.complete, []

    async def late(request, key):
        world.clock.now += 40
        waited.append(40.0)
        return await complete(request, key)

    world.model.complete = late
    monkeypatch.setattr("runtime.execution.waited_s", lambda: sum(waited))
    done = await run(world, budget_s=100.0, max_steps=7)
    assert (done.stop, done.steps) == ("max_steps", 7)


async def test_single_shot_is_one_step(world, says):
    """One answer ends a single-shot task, whatever the environment says."""
    world.environment.opening = replace(world.environment.opening, mode="single_shot")
    world.environment.steps = [GOING]
    world.model.replies["executor"] = [says("")]
    done = await run(world)
    assert (done.steps, done.stop) == (1, "done")


async def test_opening_that_is_over(world):
    """A task that is over at reset is scored without a step."""
    world.environment.opening = replace(world.environment.opening, done=True)
    done = await run(world)
    assert (done.steps, done.stop, world.model.asked) == (0, "done", [])


@pytest.mark.parametrize(
    ("reply", "stop"),
    [
        (ModelUnavailable("timeout", "no answer"), "model"),
        (ModelRefused("context", "too long"), "context"),
        (ModelRefused("content_filter", "no"), "content_filter"),
        (ModelRefused("bad_request", "no"), "model"),
    ],
)
async def test_model_gives_out(world, reply, stop):
    """Without an answer the episode ends there and is scored."""
    world.model.replies["executor"] = [reply]
    done = await run(world)
    assert (done.stop, done.evaluation.success) == (stop, True)


@pytest.mark.parametrize("word", ["content_filter", "refusal"])
@pytest.mark.parametrize("text", ["", "I cannot help."])
async def test_declined(world, says, calls, word, text):
    """A model that declines, or a filter that takes its answer away, ends the episode: asking again would not help."""
    for answer in (says(text, finish=word), calls(("set_light", "{}"), content=text, finish=word)):
        world.model.replies["executor"] = [answer]
        world.model.cache.clear()
        done = await run(world)
        assert (done.stop, done.usage.calls, done.steps) == (word, 1, 0)
        assert [message["role"] for message in done.messages] == ["system", "user"]
    assert world.environment.actions == []


@pytest.mark.parametrize(
    "content",
    [
        '<tool_call>{"name": "set_light", "arguments": {}}</tool_call>',
        '{"name": "set_light", "parameters": {"room": "kitchen"}}',
    ],
)
async def test_a_call_as_text_is_bounded(world, says, content):
    """A model that writes its calls as text is told so until the limit of errors; the environment sees nothing."""
    world.model.replies["executor"] = [says(content)]
    done = await run(world, max_errors=3)
    assert (done.stop, done.steps, done.errors) == ("max_errors", 4, 4)
    assert world.environment.actions == []
    assert "written as text" in done.messages[-1]["content"]


async def test_wrong_types_are_a_failed_step(world, calls):
    """Arguments are held against the schema of the tools that are offered now."""
    wrong, right = calls(("set_light", '{"on": "yes"}')), calls(("set_light", '{"on": true}'))
    world.model.replies["executor"] = [wrong, right]
    done = await run(world)
    assert (done.steps, done.errors, len(world.environment.actions)) == (2, 1, 1)
    assert "'on' must be true or false" in done.messages[3]["content"]


async def test_a_tool_that_is_not_offered_any_more(world, calls):
    """What a step takes away cannot be called in the next one."""
    world.model.replies["executor"] = [calls(("set_light", "{}"))]
    world.environment.steps = [StepResult(messages=[], tools=[]), StepResult(messages=[], done=True)]
    done = await run(world, max_steps=2)
    assert (done.steps, done.errors, len(world.environment.actions)) == (2, 1, 1)
    assert "There is no tool 'set_light'. The tools are: none." in done.messages[-1]["content"]


async def test_every_call_is_answered_once(world, calls):
    """Results with a foreign id, without one, or missing still answer each call exactly once, before anything else."""
    world.model.replies["executor"] = [
        calls(("set_light", "{}"), ("set_light", "{}"), ("set_light", "{}")),
        calls(("set_light", "{}")),
    ]
    messages = [
        {"role": "user", "content": "Hm."},
        {"role": "tool", "content": "first", "tool_call_id": "foreign"},
        {"role": "tool", "content": "second", "tool_call_id": "episode-0-1-1"},
    ]
    world.environment.steps = [StepResult(messages=messages), StepResult(messages=[], done=True)]
    history = (await run(world)).messages[3:7]
    assert [message.get("tool_call_id") for message in history] == [
        "episode-0-1-0",
        "episode-0-1-1",
        "episode-0-1-2",
        None,
    ]
    assert [message["content"] for message in history] == ["first", "second", "(no result)", "Hm."]


async def test_tools_change(world, calls):
    """A new tool list is offered from the next step on; tools of the runtime are not offered."""
    other = {"type": "function", "function": {"name": "other", "parameters": {}}}
    mine = {"type": "function", "function": {"name": "browse", "parameters": {}}}
    opening = world.environment.opening
    world.environment.opening = replace(opening, tools=[*opening.tools, mine], client_tools=["browse"])
    world.environment.steps = [StepResult(messages=[], tools=[other, mine]), StepResult(messages=[], done=True)]
    world.model.replies["executor"] = [calls(("set_light", "{}")), calls(("other", "{}"))]
    await run(world)
    offered = [[tool["function"]["name"] for tool in request.tools] for request in world.model.requests("executor")]
    assert offered == [["set_light"], ["other"]]


async def test_structured_content_becomes_text(world):
    """Content in parts is kept as its text."""
    opening = world.environment.opening
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    world.environment.opening = replace(opening, messages=parts)
    assert (await run(world)).messages[1]["content"] == "ab"


async def test_reset_fails_in_the_middle(world):
    """Attempts are counted over steps and resets alike, and the last word is recorded."""
    world.environment.failures = {
        "step": [EnvironmentCrashed(1, "")],
        "reset": [None, EnvironmentCrashed(2, ""), EnvironmentCrashed(3, "")],
    }
    done = await run(world)
    assert done.evaluation is None
    assert (done.stop, len(done.attempts)) == ("env_crashed", 2)
    assert "3" in done.reason


@pytest.mark.parametrize(("retryable", "resets"), [(True, 2), (False, 1)])
async def test_environment_answers_an_error(world, retryable, resets):
    """An error that the host calls final is not tried again; another one is, from reset."""
    world.environment.failures = {"evaluate": [EnvironmentFailed("evaluate", "bug", "boom", retryable=retryable)]}
    done = await run(world)
    assert len(world.environment.resets) == resets
    assert done.stop == ("done" if retryable else "env_failed")


@pytest.mark.parametrize("reward", [float("nan"), -0.1, 1.5])
async def test_reward_outside_its_range(world, reward):
    """A reward outside [0, 1] is the environment's fault, not the agent's."""
    world.environment.evaluation = Evaluation(reward=reward, success=True)
    done = await run(world)
    assert (done.evaluation, done.stop) == (None, "env_failed")
