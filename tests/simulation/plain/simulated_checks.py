"""What must hold in every world once it has ended, whatever happened in it."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulated_server import RUN
from simulated_worker import Parts
from simulated_world import World, undisturbed

from events.errors import ChimeError
from events.ids import PROJECTOR_STREAM, RUN_STREAM
from events.log import Recorded
from events.verify import verify
from runtime.ports import Job, JobKind

#: an episode is given up after so many
ATTEMPTS = 3

#: (stream, version, kind, data): what must not depend on timing
Contents = set[tuple[str, int, str, bytes]]


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a run gives where nothing goes wrong."""

    digests: list[str]
    contents: Contents


@dataclass
class Reference:
    """The undisturbed runs of one configuration, each played once: one for every set of episodes given up."""

    parts: Parts
    _played: dict[frozenset[int], Given] = field(default_factory=dict)

    def without(self, episodes: frozenset[int]) -> Given:
        """The run in which the jobs of `episodes` fail whenever they are tried."""
        if episodes not in self._played:
            world = undisturbed(self.parts, episodes)
            assert not world.wrong, world.wrong
            assert given_up(world.events).keys() == episodes
            self._played[episodes] = Given(digests=digests(world.events), contents=contents(world.events))
        return self._played[episodes]


def digests(events: list[Recorded]) -> list[str]:
    """The digest at every version from 1."""
    return [json.loads(one.data)["digest"] for one in events if one.kind == "folded"]


def contents(events: list[Recorded]) -> Contents:
    """Every event of episodes and projector."""
    return {(one.stream, one.version, one.kind, one.data) for one in events if one.stream != RUN_STREAM}


def given_up(events: list[Recorded]) -> dict[int, tuple[JobKind, Recorded]]:
    """T -> which job of it was lost too often, and the event that says so."""
    found: dict[int, tuple[JobKind, Recorded]] = {}
    for one in events:
        if one.kind in ("abandoned", "diagnosed"):
            data = json.loads(one.data)
            if "worker_lost" in (data.get("reason"), data.get("degraded")):
                found[int(one.stream.removeprefix("episode-"))] = (
                    "act" if one.kind == "abandoned" else "diagnose",
                    one,
                )
    return found


def faults_of(world: World, reference: Reference, *, ordered: bool = True) -> list[str]:
    """What is wrong with a world that was played; empty where all is well.

    Args:
        world: played.
        reference: of its configuration.
        ordered: whether the digest must not depend on timing: not so in `latest` mode.
    """
    wrong = list(world.wrong)
    if wrong:
        return wrong
    checks: list[Callable[[World], list[str]]] = [
        _numbered, _ended_once, _folded_once, _verified, _tried, _paid, _led, _tidy,
    ]  # fmt: skip
    for check in checks:
        wrong += check(world)
    return wrong + (_same(world, reference) if ordered and not wrong else [])


def _numbered(world: World) -> list[str]:
    wrong, versions = [], Counter[str]()
    for place, one in enumerate(world.events, 1):
        versions[one.stream] += 1
        if (one.position, one.version) != (place, versions[one.stream]):
            wrong.append(f"{one.id} stands at position {one.position}; {place} and {versions[one.stream]} were next")
    return wrong


def _ended_once(world: World) -> list[str]:
    ends = [one.position for one in world.events if one.kind == "run_finished"]
    return [] if ends == [len(world.events)] else [f"run_finished stands at {ends} of {len(world.events)}"]


def _folded_once(world: World) -> list[str]:
    total = len(world.parts.beginning.head.tasks)
    folded = [json.loads(one.data)["episode"] for one in world.events if one.stream == PROJECTOR_STREAM]
    wrong = [] if folded == list(range(total)) else [f"folded were {folded}"]
    endings = Counter(one.stream for one in world.events if one.kind in ("diagnosed", "abandoned"))
    return wrong + [f"{stream} ended {times} times" for stream, times in endings.items() if times != 1]


def _verified(world: World) -> list[str]:
    try:
        verify(world.events)
    except ChimeError as error:
        return [f"verify: {error}"]
    return [f"noted: {one.data!r}" for one in world.events if one.kind == "noted"]


def _tried(world: World) -> list[str]:
    """An episode is given up only after so many attempts were lost."""
    wrong = []
    for t, (kind, event) in given_up(world.events).items():
        jobs = {Job(kind=kind, run=RUN, episode=t, attempt=attempt) for attempt in range(1, ATTEMPTS + 1)}
        if event.attempt != ATTEMPTS or not jobs <= world.server.queue.told_lost:
            wrong.append(f"{event.id} was given up at attempt {event.attempt}")
    attempts = [job.attempt for _, job in world.server.queue.entered]
    if attempts and max(attempts) > ATTEMPTS:
        wrong.append(f"a job was tried {max(attempts)} times")
    return wrong


def _paid(world: World) -> list[str]:
    """Whoever begins after an answer was recorded does not pay for it."""
    return [f"paid again for {one}" for one in world.server.paid_again]


def _led(world: World) -> list[str]:
    return world.server.unled


def _tidy(world: World) -> list[str]:
    wrong = [f"{job} was asked for while the attempt before had left something" for job in world.server.queue.untidy]
    return wrong + [f"{job} is left behind" for job in world.server.queue.left]


def _same(world: World, reference: Reference) -> list[str]:
    lost = given_up(world.events)
    wanted = reference.without(frozenset(lost))
    found = digests(world.events)
    if found != wanted.digests:
        first = next(place for place, pair in enumerate(zip(found, wanted.digests, strict=True)) if pair[0] != pair[1])
        return [f"another digest from version {first + 1} on"]
    if lost or world.server.crashes:
        return []  # which stage was reached, and what a crashed attempt had asked, differs
    different = sorted(contents(world.events) ^ wanted.contents)
    return [f"{stream}/{version} is another {kind}" for stream, version, kind, _ in different[:3]]


def usage_of(world: World) -> dict[str, Any]:
    """How much happened, for whoever wonders whether the worlds are worth their time."""
    queue = world.server.queue
    return {
        "deaths": world.deaths,
        "calls": len(world.server.trace),
        "virtual_s": world.finished_s,
        "reissues": len(world.reissues_s),
        "takeovers": len(world.takeovers_s),
        "tails": len(world.server.tails),
        "given_up": len(given_up(world.events)),
        "attempts": max((job.attempt for _, job in queue.entered), default=0),
    }
