"""A user's class in our process, sync or async, and what it does wrong."""

import threading
from typing import Any, ClassVar

import anyio
import anyio.to_thread
import pytest

from events.errors import BadInput
from infra.environments import InProcessEnvironment, Limits
from infra.environments.in_process import class_named
from infra.environments.toy import Toy
from runtime.errors import EnvironmentFailed, EnvironmentTimeout, EnvironmentUnavailable
from runtime.task import Evaluation, Opening, Task


class Async:
    """An environment with async methods that returns our own types."""

    closed: ClassVar[int] = 0

    async def describe(self) -> dict[str, Any]:
        return {"env": "async", "version": "1", "domains": {"all": 1}}

    async def tasks(self, domain: str | None, split: str | None) -> list[Task]:
        return [Task(task_id="one", domain="all")]

    async def reset(self, episode_id: str, domain: str, task_id: str, seed: int, options: dict[str, Any]) -> Opening:
        return Opening(system=f"{episode_id} {seed}", messages=[], tools=[])

    async def step(self, action: dict[str, Any]) -> dict[str, Any]:
        if action["content"] == "raise":
            raise LookupError("not here")
        await anyio.sleep_forever()
        return {}

    async def evaluate(self) -> Evaluation:
        return Evaluation(reward=0.5, success=False)

    async def close(self) -> None:
        Async.closed += 1


class Slow(Toy):
    """A toy whose steps last until they are let go."""

    let_go: ClassVar[threading.Event] = threading.Event()
    over: ClassVar[threading.Event] = threading.Event()

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        self.let_go.wait()
        result = super().step(action)
        self.over.set()
        return result


def broken() -> None:
    """Makes nothing."""
    raise OSError("no data here")


async def test_a_sync_class_plays_an_episode() -> None:
    """The toy, in process, scores its own solution."""
    environment = InProcessEnvironment(Toy)
    assert (await environment.describe()).protocol == 1
    task = (await environment.tasks("shop"))[0]
    async with environment.session() as session:
        assert (await session.reset(task, "e", 42, {})).tools
        for message in (await session.oracle(task))["turns"][0]:
            result = await session.step(message)
        assert result.done
        assert (await session.evaluate()).success
    await environment.aclose()


async def test_an_async_class_with_our_types() -> None:
    """Async methods are awaited, our types pass as they are, and the object is closed."""
    environment = InProcessEnvironment(Async, limits=Limits(step_s=0.05))
    assert (await environment.describe()).env == "async"
    (task,) = await environment.tasks()
    Async.closed = 0
    async with environment.session() as session:
        assert (await session.reset(task, "e", 42, {})).system == "e 42"
        with pytest.raises(EnvironmentFailed, match="LookupError: not here"):
            await session.step({"content": "raise"})
        with pytest.raises(EnvironmentTimeout):
            await session.step({"content": "hang"})
        assert (await session.evaluate()).reward == 0.5
        with pytest.raises(EnvironmentFailed, match="refused"):
            await session.oracle(task)
    assert Async.closed == 1


async def test_a_sync_method_that_hangs_times_out() -> None:
    """The call is given up after its limit, though its thread goes on."""
    environment = InProcessEnvironment(Slow, limits=Limits(step_s=0.05))
    task = (await environment.tasks())[0]
    async with environment.session() as session:
        await session.reset(task, "e", 42, {})
        try:
            with pytest.raises(EnvironmentTimeout):
                await session.step({"role": "assistant", "content": "x"})
        finally:
            Slow.let_go.set()
        assert await anyio.to_thread.run_sync(Slow.over.wait, 120)


async def test_a_class_that_cannot_be_made_is_unavailable() -> None:
    """What the constructor raises is the reason."""
    with pytest.raises(EnvironmentUnavailable, match="no data here"):
        await InProcessEnvironment(broken).describe()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere.at.all:Thing", "nowhere"),
        ("infra.environments.toy:Nothing", "Nothing"),
        ("infra.environments.toy:SEED", "no class"),
        ("infra.environments.toy:Family", "has no describe, tasks, reset, step, evaluate"),
    ],
)
def test_a_name_that_is_no_environment(name: str, reason: str) -> None:
    """A wrong module, class, object or interface is bad input that says why."""
    with pytest.raises(BadInput, match=reason):
        class_named(name)
