"""Whole runs with real workers and a real Redis, of whose model calls three in ten meet a hostile answer."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chaos_budget import LONG, SEED, limit_s, rounds, told
from every_row import ROWS
from hostile_command import ALONE, Command, contents, digests
from hostile_mix import MIXABLE, SHARE, STREAMED, Mix, serving

from events.log import Recorded

EPISODES = 48 if LONG else 12
#: runs that are played for one in which every worker was heard of all the time, at most
TURNS = 3
#: what hangs is given up after so long, each try; and texts are asked for that memories are merged into
STREAMING = {
    "models.stream": "true", "models.timeout_s": "20", "policy.merge_text": "rewrite", "policy.theta_merge": "0.2",
}  # fmt: skip


def mixed(command: Command, seed: int, episodes: int, *, streams: bool = False) -> Mix:
    """Two runs of one seed, with one worker and with two; everything that must hold of each and of both holds."""
    rows = STREAMED if streams else MIXABLE
    settings = ALONE | (STREAMING if streams else {})
    one_mix = partial(Mix, seed, rows=rows, merging=1.0 if streams else SHARE)
    (mix, one), (other_mix, other) = (
        played(command, one_mix, f"seed-{seed}", processes, episodes, settings) for processes in (1, 2)
    )
    assert digests(one) == digests(other)
    assert contents(one) == contents(other)
    assert mix.met == other_mix.met
    return mix


def played(
    command: Command,
    one_mix: Callable[[], Mix],
    name: str,
    processes: int,
    episodes: int,
    settings: Mapping[str, str],
    turn: int = 1,
) -> tuple[Mix, list[Recorded]]:
    """A run on so many workers that holds what each one must: what it met, and its log.

    A worker that stands still for seconds counts as dead: its calls are made twice, and its jobs may be given up. Then
    another run is played in the place of that one.
    """
    run, mix = f"{name}-{processes}-{turn}", one_mix()
    with serving(mix) as (server,):
        ended = command.start(
            run, server.hostile_url, "--processes", str(processes), episodes=episodes, settings=settings
        )
        if (lost := ended.lost()) and turn < TURNS:
            return played(command, one_mix, name, processes, episodes, settings, turn + 1)
        assert lost == []
        assert ended.code in (0, 1), ended.err
        assert (ended.code == 1) == ended.last.startswith("finished with failures: ")
        assert ended.failures() == []
        events = command.log(run)
        finished = json.loads(events[-1].data)
        counts = finished["counts"]
        assert (finished["outcome"], counts["episodes"], counts["folded"]) == ("completed", episodes, episodes)
        assert counts["diagnosed"] + counts["abandoned"] == episodes
        assert sum(one.requests for one in command.calls(run)) == len(server.requests)
        assert command("log", "verify", run).code == 0
        return mix, events


@pytest.fixture
def command(tmp_path: Path, redis_server: Any, redis_prefix: str) -> Command:
    """The command line on the tests' server."""
    return Command(folder=tmp_path, redis_url=redis_server.url, prefix=redis_prefix)


@pytest.mark.chaos
@pytest.mark.timeout(limit_s(600, 0.1))
def test_mixed_runs_end_and_end_alike(command: Command, record_property: Callable[[str, object], None]) -> None:
    """They complete, every episode has an end, every request is recorded, and the same seed learns the same."""
    assert all(len(rows) >= 200 for rows in MIXABLE.values())
    met: set[str] = set()
    for seed in rounds(0.1):
        with told(seed):
            met |= set(mixed(command, seed, EPISODES).met)
    assert len(met) >= 8
    record_property("chaos", f"{len(met)} of {len(ROWS)} rows met in runs from seed {SEED}")


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_mixed_runs_that_stream(command: Command, record_property: Callable[[str, object], None]) -> None:
    """Likewise where answers are read as they are written, some of which hang or break off, and memories are merged."""
    assert all(len(rows) >= 50 for rows in STREAMED.values())
    with told(SEED):
        mix = mixed(command, SEED, EPISODES // 2, streams=True)
    assert mix.met
    record_property("chaos", f"{len(mix.met)} rows met in a run that streams, {mix.merges_met} of them by merges")
