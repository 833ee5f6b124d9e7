"""Real processes killed, paused and cut off while they play a run: the run ends as if nothing had happened."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import held
import leftovers
import pytest
from chaos_budget import KILLS, LONG, SEED, told
from faults import Faults
from troupe import PATIENCE_S, RUN, Troupe, until

#: faults in one run; with more to come, one run follows the other
FAULTS = 20 if LONG else 8
EPISODES = 36 if LONG else 12
CONCURRENCY, LAG = 6, 6
#: an episode may be given up where its workers are killed again and again; among so many runs one is whole
_WHOLE_AMONG = 3
#: the longest time the model thinks, seconds: so long that a run outlasts its faults
SLOWEST_S = 1.0 if LONG else 0.5


@pytest.fixture
def undisturbed(world: Any, playing: Any) -> list[str]:
    """The digests of the same run in this process."""

    async def play() -> list[str]:
        configuration = playing.configured(concurrency=CONCURRENCY, lag=LAG)
        return playing.digests(await world().play(RUN, configuration, limit=EPISODES, ordering=42))

    return anyio.run(play)


def disturbed(troupe: Troupe, seed: int, faults: int) -> tuple[Faults, held.Outcome]:
    """A run through `faults` faults; everything that must hold of its log and of what it leaves behind holds."""
    begin = troupe.begin if seed % 3 else troupe.begin_and_die
    begin(limit=EPISODES, concurrency=CONCURRENCY, lag=LAG)
    troupe.start_all()
    until(lambda: troupe.length() > 1, "the first episode begins")
    schedule = Faults(troupe, seed)
    schedule.play(faults)
    until(lambda: troupe.revive() or troupe.finished(), "the run ends", 2 * PATIENCE_S)
    leftovers.of_jobs(troupe)
    leftovers.of_orphans(troupe)
    leftovers.of_claims(troupe)
    codes = troupe.end()
    events = troupe.log()
    outcome = held.outcome(events, EPISODES)
    held.kept(events, troupe.line.acknowledged)
    held.unchanged(events, schedule.seen)
    assert troupe.line.acknowledged
    assert not troupe.line.moved
    assert set(codes.values()) == {0}, codes
    assert troupe.said("Traceback") == []
    leftovers.of_processes(troupe)
    leftovers.of_keys(troupe)
    return schedule, outcome


@pytest.mark.chaos
@pytest.mark.timeout(600 + 40 * KILLS)
def test_runs_survive_kills(
    undisturbed: list[str],
    toy_key: Any,
    new_folder: Callable[[], Path],
    server_binaries: list[str],
    record_property: Callable[[str, object], None],
) -> None:
    """Each run ends with nothing lost, doubled or left over; where no episode was given up, as if undisturbed."""
    done: Counter[str] = Counter()
    whole, seed = 0, SEED
    while True:
        faults = max(1, min(FAULTS, (KILLS or FAULTS) - done.total()))
        folder, sockets = new_folder(), new_folder()
        troupe = Troupe(server_binaries[seed % len(server_binaries)], folder, sockets, toy_key, slowest_s=SLOWEST_S)
        try:
            with told(seed, kills=faults):
                schedule, outcome = disturbed(troupe, seed, faults)
                if outcome.whole:
                    assert outcome.digests == undisturbed
        finally:
            troupe.close()
        done += schedule.done
        whole += outcome.whole
        told_of = f"{dict(schedule.done)}; {outcome.abandoned} abandoned, {outcome.lost} lost"
        record_property("chaos", f"seed {seed}: {told_of}; events by attempt {dict(outcome.attempts)}")
        seed += 1
        if done.total() >= (KILLS or 1) and (whole or seed >= SEED + _WHOLE_AMONG):
            break
    assert whole, "every run lost an episode: no digest was compared"
