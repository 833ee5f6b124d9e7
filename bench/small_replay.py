"""The same replay with events of 1 KB."""

from collections.abc import Iterator

from bench.made import SMALL
from bench.measure import Row, Scale
from bench.replay import replays

EPISODES = 6_000
GOAL = 120_000


def rows(scale: Scale) -> Iterator[Row]:
    """From Redis, from a file, and beside each store of the peer."""
    yield from replays("small_replay", SMALL, scale.of(EPISODES, 20), scale.repeats, GOAL, GOAL)
