"""Every write of a mirror as a step that a test can stop before or after."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from banked_run import Place

#: what happens at a step: its number from 0, its name, and whether it is over
OnStep = Callable[[int, str, bool], Awaitable[None]]

#: what a mirror does to the world, in Redis and in Weaviate
_STEPS = (
    ("generations", "begin"),
    ("generations", "publish"),
    ("generations", "dropped"),
    ("server", "create"),
    ("server", "remove"),
    ("edge", "put"),
    ("edge", "delete"),
)


@dataclass
class Steps:
    """The steps taken so far, by name."""

    taken: list[str] = field(default_factory=list)


def stepped(place: Place, on_step: OnStep) -> Steps:
    """From now on `on_step` is told before and after each write through `place`."""
    steps = Steps()
    owners: dict[str, Any] = {
        "generations": place.generations,
        "server": place.server,
        "edge": place.server._edge,  # type: ignore[attr-defined]  # Weaviate's
    }
    for owner, name in _STEPS:
        setattr(owners[owner], name, _watched(getattr(owners[owner], name), name, steps, on_step))
    return steps


def _watched(write: Any, name: str, steps: Steps, on_step: OnStep) -> Any:
    async def watched(*args: Any) -> Any:
        number = len(steps.taken)
        steps.taken.append(name)
        await on_step(number, name, False)
        answer = await write(*args)
        await on_step(number, name, True)
        return answer

    return watched
