"""A user's own class as an environment, in our process: quick to write, but nothing stops a call that hangs.

The class has the methods of a benchmark file (`infra.environments.host`), each sync or async, and may return plain
data or the types of `runtime.task`. Every session makes an object of its own. A sync method runs in a thread; on
timeout or cancellation the thread is left behind, which only a child process avoids.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from typing import Any

import anyio
import anyio.to_thread

from events.errors import BadInput
from infra.environments.limits import Limits, of_operation
from infra.environments.wire import PROTOCOL, typed
from runtime.errors import EnvironmentFailed, EnvironmentTimeout, EnvironmentUnavailable
from runtime.task import Description, Evaluation, Message, Opening, StepResult, Task

METHODS = ("describe", "tasks", "reset", "step", "evaluate")


def class_named(name: str) -> Callable[[], Any]:
    """The class (or function that makes an environment) that `module:Class` names.

    Raises:
        BadInput: no such module or class, it cannot be imported, or it lacks a method.
    """
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError) as problem:
        raise BadInput(f"environment {name!r}: {problem}") from problem
    except Exception as problem:  # the border to a user's code: importing it may raise anything
        raise BadInput(f"environment {name!r}: {type(problem).__name__}: {problem}") from problem
    if not callable(found):
        raise BadInput(f"environment {name!r} is no class")
    missing = [method for method in METHODS if inspect.isclass(found) and not callable(getattr(found, method, None))]
    if missing:
        raise BadInput(f"environment {name!r} has no {', '.join(missing)}")
    return found  # type: ignore[no-any-return] # callable() does not tell mypy what comes out


async def _call(limits: Limits, op: str, method: Callable[..., Any], *arguments: Any) -> Any:
    """Run a user's method, in a thread where it is sync.

    Raises:
        EnvironmentTimeout: not done within the limit of `op`.
        EnvironmentFailed: it raised.
    """
    limit_s = of_operation(limits, op)
    try:
        with anyio.move_on_after(limit_s):
            if inspect.iscoroutinefunction(method):
                return await method(*arguments)
            return await anyio.to_thread.run_sync(method, *arguments, abandon_on_cancel=True)
    except Exception as problem:  # the border to a user's code: whatever it raises is an answer of the environment
        raise EnvironmentFailed(
            op,
            type(problem).__name__,
            str(problem) or type(problem).__name__,
            retryable=getattr(problem, "retryable", False) is True,
        ) from problem
    raise EnvironmentTimeout(op, limit_s)


class InProcessSession:
    """One object of the user's class. Implements `runtime.ports.EnvironmentSession`."""

    def __init__(self, benchmark: Any, limits: Limits) -> None:
        self._benchmark = benchmark
        self._limits = limits

    async def reset(self, task: Task, episode_id: str, seed: int, options: Mapping[str, Any]) -> Opening:
        """Raises: EnvironmentTimeout, EnvironmentFailed."""
        method = self._benchmark.reset
        answer = await _call(self._limits, "reset", method, episode_id, task.domain, task.task_id, seed, dict(options))
        return typed(answer, Opening, "reset")

    async def step(self, action: Message) -> StepResult:
        """One assistant message. Raises: as `reset`."""
        return typed(await _call(self._limits, "step", self._benchmark.step, action), StepResult, "step")

    async def evaluate(self) -> Evaluation:
        """Once, after done or an abort. Raises: as `reset`."""
        return typed(await _call(self._limits, "evaluate", self._benchmark.evaluate), Evaluation, "evaluate")

    async def oracle(self, task: Task) -> dict[str, Any]:
        """The reference solution, where the class offers one; never called outside tests."""
        method = getattr(self._benchmark, "oracle", None)
        if method is None:
            raise EnvironmentFailed("oracle", "refused", "this environment offers no reference solutions")
        return typed(await _call(self._limits, "oracle", method, task.domain, task.task_id), dict, "oracle")


class InProcessEnvironment:
    """A class as an environment. Implements `runtime.ports.Environment`."""

    def __init__(self, make: Callable[[], Any], *, limits: Limits | None = None) -> None:
        self._make = make
        self._limits = limits or Limits()
        #: a class without a constructor of its own: nothing in it can wait or fail, and no thread is needed
        self._plain = inspect.isclass(make) and make.__init__ is object.__init__ and make.__new__ is object.__new__
        self._places = anyio.Semaphore(self._limits.max_hosts)

    async def describe(self) -> Description:
        """What the class says of itself; protocol and concurrency are ours to say.

        Raises:
            EnvironmentUnavailable: no object can be made.
            EnvironmentTimeout, EnvironmentFailed: it hangs or raises.
        """
        async with self._object() as benchmark:
            answer = await _call(self._limits, "describe", benchmark.describe)
        if isinstance(answer, Description):
            return answer
        return typed({"concurrent": False, **answer, "protocol": PROTOCOL}, Description, "describe")

    async def tasks(self, domain: str | None = None, split: str | None = None) -> list[Task]:
        """In canonical order. Raises: as `describe`."""
        async with self._object() as benchmark:
            answer = await _call(self._limits, "tasks", benchmark.tasks, domain, split)
        return [typed(task, Task, "tasks") for task in answer]

    @asynccontextmanager
    async def session(self) -> AsyncIterator[InProcessSession]:
        """A session over an object of its own.

        Raises:
            EnvironmentUnavailable: no object can be made.
        """
        async with self._places, self._object() as benchmark:
            yield InProcessSession(benchmark, self._limits)

    async def aclose(self) -> None:
        """Nothing is held between sessions."""

    @asynccontextmanager
    async def _object(self) -> AsyncIterator[Any]:
        try:
            benchmark = self._make() if self._plain else await _call(self._limits, "describe", self._make)
        except (EnvironmentFailed, EnvironmentTimeout) as problem:
            raise EnvironmentUnavailable(f"the environment's class cannot be used: {problem}") from problem
        try:
            yield benchmark
        finally:
            close = getattr(benchmark, "close", None)
            if close is not None:
                with anyio.CancelScope(shield=True), suppress(EnvironmentFailed, EnvironmentTimeout):
                    await _call(self._limits, "close", close)
