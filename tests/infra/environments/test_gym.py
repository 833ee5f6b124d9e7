"""A gymnasium environment with text observations, wrapped."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import pytest

from infra.environments import InProcessEnvironment
from infra.environments.gym import GymEnvironment


class Guess(gymnasium.Env[str, str]):
    """Guess a number; three tries."""

    action_space = gymnasium.spaces.Text(20)
    observation_space = gymnasium.spaces.Text(40)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        assert options is not None
        self.secret, self.tries = options["secret"], 0
        return "Guess a number.", {"tools": [{"type": "function"}]} if options.get("tools") else {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.tries += 1
        right = str(self.secret) in action
        return ("yes" if right else "no"), float(right), right, self.tries == 3, {}


class Guessing(GymEnvironment):
    """The wrapper a user writes."""

    task_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "five": {"secret": 5},
        "seven": {"secret": 7, "tools": 1},
    }
    name = "guess"

    def make(self, task_id: str) -> Guess:
        return Guess()


@pytest.mark.parametrize(
    ("guesses", "reward", "ended"), [(["4", "5"], 1.0, "terminated"), (["1"] * 3, 0.0, "truncated")]
)
async def test_text_is_the_action(guesses: list[str], reward: float, ended: str) -> None:
    """What the agent writes goes in, the observation comes out, the last reward is the score."""
    environment = InProcessEnvironment(Guessing)
    assert (await environment.describe()).domains == {"guess": 2}
    task = (await environment.tasks("guess"))[0]
    async with environment.session() as session:
        opening = await session.reset(task, "e", 42, {})
        assert opening.messages == [{"role": "user", "content": "Guess a number."}]
        for guess in guesses:
            result = await session.step({"role": "assistant", "content": guess})
        assert result.terminated_by == ended
        assert (await session.evaluate()).reward == reward


async def test_tool_calls_are_actions() -> None:
    """Tools of the reset's info are offered; every call is a step until the episode ends."""
    environment = InProcessEnvironment(Guessing)
    task = (await environment.tasks())[1]
    calls = [
        {"id": str(number), "function": {"name": "guess", "arguments": json.dumps({"number": number})}}
        for number in (6, 7, 8)
    ]
    async with environment.session() as session:
        assert (await session.reset(task, "e", 42, {})).tools == [{"type": "function"}]
        result = await session.step({"role": "assistant", "content": None, "tool_calls": calls})
        assert [m["content"] for m in result.messages] == ["no", "yes", "not executed: the episode has ended"]
        assert (await session.evaluate()).success
