"""The checks of chaos themselves: each kind of damage to a log is noticed."""

from collections.abc import Callable, Sequence
from typing import Any

import held
import msgspec
import pytest
from troupe import RUN

from events.codec import canonical, decode_as
from events.errors import ChimeError
from events.kinds import Counts, RunFinished
from events.log import Recorded

EPISODES = 5

Damage = Callable[[list[Recorded]], list[Recorded]]


def renumbered(events: Sequence[Recorded]) -> list[Recorded]:
    """The events in this order, with positions and versions that hide what was done to them."""
    versions: dict[str, int] = {}
    found = []
    for position, one in enumerate(events, 1):
        versions[one.stream] = version = versions.get(one.stream, 0) + 1
        found.append(msgspec.structs.replace(one, position=position, version=version))
    return found


def miscounted(events: list[Recorded]) -> list[Recorded]:
    counts = decode_as(events[-1], RunFinished).counts
    wrong = msgspec.structs.replace(counts, degraded=counts.degraded + 1)
    assert isinstance(wrong, Counts)
    data = canonical(RunFinished(outcome="completed", counts=wrong))
    return [*events[:-1], msgspec.structs.replace(events[-1], data=data)]


def last_of(events: Sequence[Recorded], kind: str) -> int:
    return max(place for place, one in enumerate(events) if one.kind == kind)


def without(events: Sequence[Recorded], *kinds: str) -> list[Recorded]:
    """All but the last one of each of `kinds`."""
    gone = {last_of(events, kind) for kind in kinds}
    return [one for place, one in enumerate(events) if place not in gone]


DAMAGES: dict[str, Damage] = {
    "an event is missing": lambda events: [*events[:7], *events[8:]],
    "an event is missing and nobody can tell by numbers": lambda events: renumbered([*events[:7], *events[8:]]),
    "an episode is folded twice": lambda events: renumbered(
        [*events[:-1], events[last_of(events, "folded")], events[-1]]
    ),
    "an episode has no diagnosis": lambda events: renumbered(
        [
            one
            for place, one in enumerate(events)
            if place not in (last_of(events, "diagnosed"), last_of(events, "folded"))
        ]
    ),
    "the run ends twice": lambda events: renumbered([*events, events[-1]]),
    "the run does not end": lambda events: events[:-1],
    "the counts are wrong": miscounted,
    "two events have changed places": lambda events: renumbered([*events[:5], events[6], events[5], *events[7:]]),
}


@pytest.fixture(scope="module")
def played() -> list[Recorded]:
    """Filled once."""
    return []


@pytest.fixture
async def whole(world: Any, playing: Any, played: list[Recorded]) -> list[Recorded]:
    """The log of a run to which nothing happened, one episode after the other."""
    if not played:
        played += await world().play(RUN, playing.configured(concurrency=1, lag=1), limit=EPISODES)
    return list(played)


async def test_a_whole_log_holds(whole: list[Recorded]) -> None:
    """Nothing is found where nothing happened."""
    assert held.outcome(whole, EPISODES).whole
    held.kept(whole, {(one.stream, one.version): one.position for one in whole})


@pytest.mark.parametrize("what", DAMAGES)
async def test_damage_is_noticed(whole: list[Recorded], what: str) -> None:
    """Lost, doubled, out of place, or told wrongly."""
    damaged = DAMAGES[what](whole)
    with pytest.raises((AssertionError, ChimeError)):
        held.outcome(damaged, EPISODES)


async def test_what_was_acknowledged_is_missed(whole: list[Recorded]) -> None:
    """An acknowledged event that is elsewhere, or nowhere, and one that has changed since it was read."""
    with pytest.raises(AssertionError, match="acknowledged"):
        held.kept(whole, {("episode-0", 1): 3})
    with pytest.raises(AssertionError, match="acknowledged"):
        held.kept(whole, {("episode-0", 7): 40})
    seen = dict.fromkeys((b"stream", b"version", b"kind", b"at", b"cause", b"attempt", b"data"), b"")
    with pytest.raises(AssertionError, match="has changed"):
        held.unchanged(whole, {4: seen})
