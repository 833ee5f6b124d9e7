"""The configurations that worlds are played in, and which world plays which."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import anyio
import msgspec
import structlog
from simulated_checks import Reference, faults_of
from simulated_faults import Weather
from simulated_ports import Hosts
from simulated_worker import Parts
from simulated_world import World, played

import infra.embedders.hash
import runtime.lint
from infra.environments.toy import Toy
from infra.rehearsal.key import AnswerKey, KeyTask
from infra.rehearsal.planting import RehearsalSettings
from runtime.ports import JobKind
from workers.starting import Choice, beginning

EPISODES = 16

#: what the worlds take turns at
CONFIGURATIONS: tuple[dict[str, Any], ...] = (
    {"lag": 4, "concurrency": 4},
    {"lag": 4, "concurrency": 4},
    {"lag": 4, "concurrency": 4},
    {"lag": 1, "concurrency": 3},
    {"lag": 8, "concurrency": 6},
    {"lag": 4, "concurrency": 4, "merge_text": "rewrite"},
    {"lag": "latest", "concurrency": 4},
)
#: every so many worlds one work kills whoever touches it
_POISONED = 12


def _workers_conftest() -> ModuleType:
    path = Path(__file__).parents[2] / "workers" / "conftest.py"
    spec = importlib.util.spec_from_file_location("parts_of_workers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_playing = _workers_conftest()


@lru_cache
def reference(place: int) -> Reference:
    """The undisturbed runs of a configuration."""
    made = _playing.configured(**CONFIGURATIONS[place])
    choice = Choice(environment=_playing.TOY, limit=EPISODES, ordering=42)

    async def begun() -> Any:
        return await beginning(made, choice, Hosts(), None)

    return Reference(Parts(beginning=anyio.run(begun), model=_playing.Rehearsed(_key(), RehearsalSettings())))


def _key() -> AnswerKey:
    toy = Toy()
    return AnswerKey(
        {
            one["task_id"]: msgspec.convert(
                {"domain": one["domain"], **toy.oracle(one["domain"], one["task_id"])}, KeyTask
            )
            for one in toy.tasks()
        }
    )


def _place(seed: int) -> int:
    """Of the world's configuration. Aims go round with the seed too: places must not do so in step with them."""
    return Random(f"configuration {seed}").randrange(len(CONFIGURATIONS))  # noqa: S311 - chance, no secret


def _poison(seed: int) -> tuple[JobKind, int] | None:
    dice = Random(f"poison {seed}")  # noqa: S311 - chance, no secret
    kind: JobKind = dice.choice(("act", "diagnose"))
    return (kind, dice.randrange(EPISODES)) if dice.randrange(_POISONED) == 0 else None


def world_of(seed: int, sky: Weather | None = None, **given: Any) -> World:
    """World `seed`, played to its end."""
    poison = _poison(seed) if sky is None else None
    return played(seed, reference(_place(seed)).parts, sky=sky, **{"poison": poison, **given})


def wrong_with(world: World) -> list[str]:
    """What is wrong with a world of `world_of`."""
    place = _place(world.seed)
    return faults_of(world, reference(place), ordered=CONFIGURATIONS[place]["lag"] != "latest")


@contextmanager
def quick() -> Iterator[None]:
    """Nobody reads what is logged, and a text that was embedded or linted in one world is not so again in the next."""
    embedded: Callable[..., Any] = infra.embedders.hash.embedded
    findings: Callable[[str], Any] = runtime.lint.findings
    before = structlog.get_config()
    infra.embedders.hash.embedded = lru_cache(maxsize=1 << 14)(embedded)
    runtime.lint.findings = lru_cache(maxsize=1 << 14)(lambda text: list(findings(text)))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        yield
    finally:
        structlog.configure(**before)
        infra.embedders.hash.embedded = embedded
        runtime.lint.findings = findings
