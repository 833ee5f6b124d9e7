"""tau_t and s_t: the executor's loop over one environment, from reset to evaluate.

A step is one answer of the model. A step that cannot be used fails and says so in the history; the environment never
sees it. What the environment does wrong ends an attempt, not the episode: the next attempt starts from reset, and when
all are spent the outcome is recorded as one that says nothing about the agent.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from events.codec import clean_text
from events.kinds import EnvironmentAttempt, Usage
from runtime.actions import read_action, resent, tool_name, tool_schema
from runtime.calls import failed_usage, usage_of
from runtime.errors import (
    EnvironmentCrashed,
    EnvironmentFailed,
    EnvironmentTimeout,
    ModelRefused,
    ModelUnavailable,
)
from runtime.job_time import waited_s
from runtime.ports import CallKey, ChatAnswer, ChatModel, ChatRequest, Clock, Environment, EnvironmentSession
from runtime.prompting import message_text
from runtime.settings import EpisodeSettings
from runtime.task import Evaluation, Message, Opening, StepResult, Task, Tool

Failure = EnvironmentCrashed | EnvironmentTimeout | EnvironmentFailed

#: `executed.stop` of an episode whose environment failed: it says nothing about the agent
ENVIRONMENT_STOPS = frozenset({"env_crashed", "env_timeout", "env_failed"})
#: `executed.stop` of an episode whose endpoint did not answer: likewise
MODEL_STOP = "model"
#: `executed.stop` of an episode whose model, or a filter before it, would not go on: likewise
DECLINED_STOPS = frozenset({"refusal", "content_filter"})
#: `executed.stop` of an episode whose history does not fit into the model's window, however it is shortened
CONTEXT_STOP = "context"
#: kinds of `ModelRefused` that are an `executed.stop` of their own
_REFUSED_STOPS = DECLINED_STOPS | {CONTEXT_STOP}


class Execution(Struct, frozen=True, kw_only=True):
    """What the executor did and what the evaluator says."""

    #: tau_t: the last attempt's messages
    messages: list[Message]
    steps: int
    errors: int
    stop: str
    #: attempts that the environment ended before the last one
    attempts: list[EnvironmentAttempt]
    usage: Usage
    calls: list[str]
    #: None where the environment failed for good
    evaluation: Evaluation | None
    #: why there is no evaluation, or ""
    reason: str


class Lease:
    """One episode's hold on an environment: a session from reset to evaluate, and a new one after a failure.

    Sessions are entered on `stack`, which the caller closes.
    """

    def __init__(
        self,
        environment: Environment,
        stack: AsyncExitStack,
        task: Task,
        episode_id: str,
        settings: EpisodeSettings,
        options: Mapping[str, Any],
    ) -> None:
        self._environment, self._stack = environment, stack
        self._task, self._episode_id, self._settings = task, episode_id, settings
        self._options = options
        self._session: EnvironmentSession | None = None
        #: attempts that failed
        self.failures: list[EnvironmentAttempt] = []

    @property
    def session(self) -> EnvironmentSession:
        assert self._session is not None  # noqa: S101 - opened before it is used
        return self._session

    async def open(self) -> Opening:
        """The task from reset, in a session of its own.

        Raises:
            EnvironmentCrashed, EnvironmentTimeout, EnvironmentFailed: the last attempt's, when all are spent.
            EnvironmentUnavailable: no session can be had.
        """
        while True:
            await self._stack.aclose()
            try:
                self._session = await self._stack.enter_async_context(self._environment.session())
                return await self._session.reset(self._task, self._episode_id, self._settings.seed, self._options)
            except (EnvironmentCrashed, EnvironmentTimeout, EnvironmentFailed) as error:
                if not self.failed(error):
                    raise

    def failed(self, error: Failure) -> bool:
        """Note a failed attempt; whether another one makes sense."""
        attempt = len(self.failures) + 1
        self.failures.append(EnvironmentAttempt(attempt=attempt, reason=f"{stop_of(error)}: {error}"))
        hopeless = isinstance(error, EnvironmentFailed) and not error.retryable
        return not hopeless and attempt < self._settings.environment_attempts


def stop_of(error: Failure) -> str:
    """The word for an environment's failure."""
    match error:
        case EnvironmentCrashed():
            return "env_crashed"
        case EnvironmentTimeout():
            return "env_timeout"
        case EnvironmentFailed():
            return "env_failed"


@dataclass(slots=True)
class _Attempt:
    """One attempt under way."""

    messages: list[Message]
    tools: list[Tool]
    steps: int = 0
    #: failed steps, which the environment never saw
    failed_steps: int = 0
    #: errors as the environment counts them
    environment_errors: int = 0
    stop: str = ""

    @property
    def errors(self) -> int:
        return self.failed_steps + self.environment_errors

    def request(self) -> ChatRequest:
        """The next question: the whole history."""
        return ChatRequest(role="executor", messages=list(self.messages), tools=self.tools)


@dataclass(slots=True)
class Executor:
    """Plays one task. `run` once."""

    model: ChatModel
    clock: Clock
    settings: EpisodeSettings
    #: of the first call; the next ones count on, over all attempts
    key: CallKey
    #: the executor prompt, filled in
    guidance: str
    usage: Usage = field(default_factory=Usage)
    calls: list[str] = field(default_factory=list)

    async def run(self, lease: Lease, opening: Opening) -> Execution:
        """The episode from an open lease to its score.

        Raises:
            RunStopped: nothing on the endpoint can work.
            EnvironmentUnavailable: no session can be had.
        """
        started = self.clock.monotonic() - waited_s()
        attempt = self._begun(opening)
        while True:
            try:
                await self._play(attempt, lease.session, opening, started)
                evaluation = _checked(await lease.session.evaluate())
            except (EnvironmentCrashed, EnvironmentTimeout, EnvironmentFailed) as error:
                last = error
                again = lease.failed(error)
            else:
                return self._done(attempt, lease.failures, evaluation, "")
            if again:
                try:
                    opening = await lease.open()
                except (EnvironmentCrashed, EnvironmentTimeout, EnvironmentFailed) as error:
                    last, again = error, False
                else:
                    attempt = self._begun(opening)
            if not again:
                attempt.stop = stop_of(last)
                return self._done(attempt, lease.failures[:-1], None, lease.failures[-1].reason)

    def _begun(self, opening: Opening) -> _Attempt:
        # Tools that the runtime would have to execute are not offered: it has none.
        tools = [tool for tool in opening.tools if tool_name(tool) not in opening.client_tools]
        system = f"{opening.system}\n\n{self.guidance}" if opening.system.strip() else self.guidance
        messages = [{"role": "system", "content": clean_text(system)}, *map(_received, opening.messages)]
        return _Attempt(messages=messages, tools=tools, stop="done" if opening.done else "")

    async def _play(self, attempt: _Attempt, session: EnvironmentSession, opening: Opening, started: float) -> None:
        """Steps until something ends the attempt and names it in `attempt.stop`."""
        while not attempt.stop:
            if attempt.steps >= self.settings.max_steps:
                attempt.stop = "max_steps"
            elif attempt.errors > self.settings.max_errors:
                attempt.stop = "max_errors"
            elif self.clock.monotonic() - waited_s() - started > self.settings.budget_s:
                attempt.stop = "timeout"
            elif (answer := await self._asked(attempt)) is not None:
                await self._step(attempt, session, opening, answer)

    async def _asked(self, attempt: _Attempt) -> ChatAnswer | None:
        """The model's next answer; None, with `attempt.stop` set, where there is none."""
        key = replace(self.key, ordinal=self.key.ordinal + len(self.calls))
        try:
            answer = await self.model.complete(attempt.request(), key)
        except (ModelUnavailable, ModelRefused) as error:
            refused = isinstance(error, ModelRefused) and error.kind in _REFUSED_STOPS
            attempt.stop = error.kind if refused else MODEL_STOP
            if (told := failed_usage(error)) is not None:
                self.calls.append(key.id)
                self.usage += told
            return None
        self.calls.append(key.id)
        self.usage += usage_of(answer)
        if answer.finish_reason in DECLINED_STOPS:
            attempt.stop = answer.finish_reason
            return None
        return answer

    async def _step(self, attempt: _Attempt, session: EnvironmentSession, opening: Opening, answer: ChatAnswer) -> None:
        attempt.steps += 1
        offered = {tool_name(tool): tool_schema(tool) for tool in attempt.tools}
        ids = f"{self.key.stream}-{attempt.steps}"
        action = read_action(answer, offered, ids, opening.mode)
        attempt.messages.extend(action.history)
        if action.message is None:
            attempt.failed_steps += 1
            return
        result = await session.step(action.message)
        attempt.messages.extend(_answered(action.message, result, opening.mode))
        attempt.environment_errors = max(attempt.environment_errors, result.errors)
        if result.tools is not None:
            attempt.tools = [tool for tool in result.tools if tool_name(tool) not in opening.client_tools]
        if result.done or opening.mode == "single_shot":
            attempt.stop = result.terminated_by or "done"

    def _done(
        self,
        attempt: _Attempt,
        failures: Sequence[EnvironmentAttempt],
        evaluation: Evaluation | None,
        reason: str,
    ) -> Execution:
        return Execution(
            messages=attempt.messages,
            steps=attempt.steps,
            errors=attempt.errors,
            stop=attempt.stop,
            attempts=list(failures),
            usage=self.usage,
            calls=list(self.calls),
            evaluation=evaluation,
            reason=reason,
        )


def _received(message: Message) -> Message:
    """An environment's message in the shape a history needs: known roles, text content."""
    kept: Message = {"role": message.get("role", "user"), "content": clean_text(message_text(message))}
    for name in ("tool_call_id", "name"):
        if message.get(name):
            kept[name] = message[name]
    if calls := resent(message.get("tool_calls")):
        kept["tool_calls"] = calls
    return kept


def _answered(action: Message, result: StepResult, mode: str) -> list[Message]:
    """What the environment said, each tool call answered exactly once and first: an endpoint refuses a gap."""
    calls = [call["id"] for call in action.get("tool_calls", ())]
    received = [_received(message) for message in result.messages]
    results = [message for message in received if message["role"] == "tool"]
    others = [message for message in received if message["role"] != "tool"]
    by_id = {message.get("tool_call_id"): message for message in results}
    nameless = iter([message for message in results if message.get("tool_call_id") not in calls])
    answered: list[Message] = []
    for call in calls:
        message = by_id.get(call) or next(nameless, None)
        if message is None and (result.done or mode == "single_shot"):
            continue
        content = message["content"] if message else "(no result)"
        answered.append({"role": "tool", "tool_call_id": call, "content": content})
    return [*answered, *others]


def _checked(evaluation: Evaluation) -> Evaluation:
    """Raises: EnvironmentFailed: a reward outside [0, 1]."""
    if not (math.isfinite(evaluation.reward) and 0 <= evaluation.reward <= 1):
        raise EnvironmentFailed("evaluate", "reward", f"a reward of {evaluation.reward} is outside [0, 1]")
    return evaluation
