"""Any `gymnasium.Env` whose observations are text (or can be printed) as an environment class.

Subclass `GymEnvironment`, write `make`, name the tasks, and give `module:Class` to chime:

- an observation becomes the next user message; what the agent writes becomes the action, or, where `info["tools"]`
  holds OpenAI tool schemas at reset, the agent's tool calls as one JSON text `{"name", "arguments"}` each;
- `terminated` and `truncated` end the episode, the last reward is the score: success from `success_at` on.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium


class GymEnvironment(ABC):
    """Wraps one environment object at a time; a subclass says which."""

    #: task id -> options handed to its `reset`
    task_options: ClassVar[Mapping[str, Mapping[str, Any]]]
    name: ClassVar[str] = "gym"
    version: ClassVar[str] = "1"
    #: reward from which an episode counts as a success
    success_at: ClassVar[float] = 1.0
    #: what the agent is told before the first observation
    system: ClassVar[str] = ""

    def __init__(self) -> None:
        self._env: gymnasium.Env[Any, Any] | None = None
        self._reward = 0.0
        self._info: dict[str, Any] = {}
        self._steps = 0

    @abstractmethod
    def make(self, task_id: str) -> "gymnasium.Env[Any, Any]":
        """A new environment object for a task."""

    def describe(self) -> dict[str, Any]:
        """One domain, named after the environment."""
        return {
            "env": self.name,
            "version": self.version,
            "domains": {self.name: len(self.task_options)},
            "evaluator": f"gymnasium:{self.name}",
            "evaluator_version": gymnasium.__version__,
        }

    def tasks(self, domain: str | None = None, split: str | None = None) -> list[dict[str, Any]]:
        """In the order of `task_options`."""
        del split
        if domain not in {None, self.name}:
            return []
        return [{"task_id": task_id, "domain": self.name} for task_id in self.task_options]

    def reset(
        self, episode_id: str, domain: str, task_id: str, seed: int, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A fresh environment object, reset with the task's options and the run's seed."""
        del episode_id, domain, options
        self.close()
        self._env = self.make(task_id)
        self._reward, self._steps = 0.0, 0
        observation, self._info = self._env.reset(seed=seed, options=dict(self.task_options[task_id]))
        return {
            "system": self.system,
            "messages": [{"role": "user", "content": text_of(observation)}],
            "tools": list(self._info.get("tools", [])),
            "mode": "dialog",
        }

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        """Every tool call is one step of the environment; without calls the content is the action."""
        calls: Sequence[Mapping[str, Any]] = action.get("tool_calls") or []
        messages: list[dict[str, Any]] = []
        ended: str | None = None
        for call in calls:
            if ended is None:
                text, ended = self._act(json.dumps(call["function"], ensure_ascii=False))
            else:
                text = "not executed: the episode has ended"
            messages.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": text})
        if not calls:
            text, ended = self._act(str(action.get("content") or ""))
            messages.append({"role": "user", "content": text})
        return {"messages": messages, "done": ended is not None, "terminated_by": ended, "steps": self._steps}

    def evaluate(self) -> dict[str, Any]:
        """The last reward, cut to [0, 1]."""
        reward = min(1.0, max(0.0, self._reward))
        return {"reward": reward, "success": self._reward >= self.success_at}

    def close(self) -> None:
        """Close the environment object, if there is one."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _act(self, action: str) -> tuple[str, str | None]:
        if self._env is None:
            raise ValueError("no episode: reset first")
        observation, reward, terminated, truncated, self._info = self._env.step(action)
        self._reward = float(reward)
        self._steps += 1
        return text_of(observation), "terminated" if terminated else "truncated" if truncated else None


def text_of(observation: Any) -> str:
    """An observation as the agent reads it."""
    return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False, default=str)
