"""Whatever crashes, is lost, comes twice, late or in another order: every world ends alike, within the bounds."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from chaos_budget import LONG, SEED
from simulated_checks import ATTEMPTS, given_up, usage_of
from simulated_faults import AIMS, CALM, FATES, Fate, Weather
from simulated_parts import quick, world_of, wrong_with
from simulated_world import REISSUE_S, TAKEOVER_S, World

from runtime.ports import JobKind

#: one world alone, as a failure names it
ONLY = os.environ.get("CHIME_SIMULATION_SEED", "")
#: worlds in all, and in one test
WORLDS, EACH = (1000 if LONG else 200), 25
SEEDS = [int(ONLY)] if ONLY else list(range(SEED, SEED + WORLDS))
#: of the calls before a failure
_SHOWN = 30

PLAIN = Path(__file__).parent / "plain"


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with quick():
        yield


def judge(world: World) -> None:
    """Fails with all that is needed to play the same again."""
    if wrong := wrong_with(world):
        calls = "\n".join(
            f"{at:10.4f} {who:15} {what:20} {fate}" for at, who, what, fate in world.server.trace[-_SHOWN:]
        )
        pytest.fail(
            f"world {world.seed}: " + "; ".join(wrong[:4]) + f"\n{usage_of(world)}\n{world.weather}\n"
            f"last calls:\n{calls}\n"
            f"again: CHIME_SIMULATION_SEED={world.seed} .venv/bin/pytest tests/simulation -k worlds_end -n0",
            pytrace=False,
        )  # fmt: skip


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, len(SEEDS), EACH))
def test_worlds_end_alike(first: int) -> None:
    """The digest, the events and the bounds hold in every one of so many worlds."""
    for seed in SEEDS[first : first + EACH]:
        judge(world_of(seed))


@pytest.mark.parametrize("seed", [SEED, SEED + 1, SEED + 2])
def test_a_seed_is_a_world(seed: int) -> None:
    """The same seed plays the same calls with the same fates at the same moments; another one does not."""
    first = world_of(seed).fingerprint()
    assert world_of(seed + 1).fingerprint() != first
    assert world_of(seed).fingerprint() == first


@pytest.mark.timeout(300)
def test_another_process_plays_the_same() -> None:
    """Another process, whose sets and dictionaries hash otherwise, plays a seed exactly so."""
    here = [world_of(seed).fingerprint() for seed in (SEED + 3, SEED + 4)]
    seeds = [str(SEED + 3), str(SEED + 4)]
    path = os.pathsep.join(sys.path)  # of pytest's own settings, too
    played = subprocess.run(
        [sys.executable, str(PLAIN / "simulated_replay.py"), *seeds],
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert played.stdout.split() == here


@pytest.mark.timeout(300)
def test_deaths_are_made_good_in_time() -> None:
    """Where nothing else disturbs the survivors, lost work is asked for again and a lease taken over in time."""
    sky = Weather(storm_s=120, chances={}, kills_s=6)
    reissues_s, takeovers_s = list[float](), list[float]()
    for seed in range(SEED, SEED + 12):
        world = world_of(seed, sky)
        judge(world)
        reissues_s += world.reissues_s
        takeovers_s += world.takeovers_s
    assert reissues_s
    assert max(reissues_s) <= REISSUE_S
    assert takeovers_s
    assert max(takeovers_s) <= TAKEOVER_S


@pytest.mark.timeout(300)
def test_a_server_that_loses_its_last_seconds_again_and_again() -> None:
    """What was made from a lost event is not written after it: the log verifies, and the digest is the same."""
    sky = Weather(storm_s=60, chances={"slow": 0.01}, outages_s=6, tail_lost=1.0, pauses_s=10)
    for seed in range(SEED, SEED + 14):
        judge(world_of(seed, sky))


@pytest.mark.timeout(300)
def test_a_server_that_loses_what_an_event_is_made_from_on_its_way() -> None:
    """Read, then lost before what follows from it is written: that is refused, and made again from what comes."""
    sky = Weather(storm_s=60, chances={"tail": 0.05})
    for seed in range(SEED, SEED + 4):
        judge(world_of(seed, sky))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["act", "diagnose"])
def test_work_that_kills_everybody_is_given_up(kind: JobKind) -> None:
    """Attempts are counted over all conductors: work that kills its worker and every coordinator ends all the same."""
    for seed in range(SEED, SEED + 3):
        world = world_of(seed, CALM, poison=(kind, 5), contagious=True)
        judge(world)
        assert world.deaths > ATTEMPTS
        assert {t: of for t, (of, _) in given_up(world.events).items()} == {5: kind}


def test_every_fate_is_aimed_at() -> None:
    """So many worlds as are played in the shortest search aim at every fate of every port."""
    assert len(AIMS) <= 200
    assert {fate for fates in FATES.values() for fate in fates} == set(get_args(Fate))
