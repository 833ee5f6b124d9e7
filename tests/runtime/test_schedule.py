"""What is due, over made-up and randomly played runs."""

import random

from hypothesis import given
from hypothesis import strategies as st

from events.ids import PROJECTOR_STREAM, Position, StreamId, episode_stream
from runtime.ports import StreamIndex
from runtime.schedule import Due, due, folded_episodes, read_version

NEXT = {None: "retrieved", "retrieved": "planned", "planned": "executed", "executed": "scored", "scored": "diagnosed"}


def index_of(*last_kinds: str | None, folded: int = 0) -> dict[StreamId, StreamIndex]:
    index = {
        episode_stream(t): StreamIndex(positions=[Position(1)], last_kind=kind)
        for t, kind in enumerate(last_kinds)
        if kind is not None
    }
    if folded:
        positions = [Position(1)] * folded
        index[PROJECTOR_STREAM] = StreamIndex(positions=positions, last_kind="folded")
    return index


def test_read_version():
    """Episode t reads max(0, t+1-L); frozen runs read 0; latest reads the newest."""
    assert [read_version(t, 1) for t in range(3)] == [0, 1, 2]
    assert [read_version(t, 3) for t in range(5)] == [0, 0, 0, 1, 2]
    assert read_version(9, 3, frozen=True) == 0
    assert read_version(9, "latest") is None


def test_by_last_kind():
    """Started episodes act until they are scored, then are diagnosed; ended ones need nothing."""
    index = index_of("scored", "planned", "diagnosed", "abandoned", "executed", None)
    assert due(index, folded=0, total=6, lag=6, concurrency=9) == [
        Due(episode=0, kind="diagnose"),
        Due(episode=1, kind="act"),
        Due(episode=4, kind="act"),
        Due(episode=5, kind="act"),
    ]


def test_lag_holds_back():
    """Episode t starts only once t+1-L diagnoses were folded."""
    assert [one.episode for one in due({}, folded=0, total=9, lag=1, concurrency=9)] == [0]
    assert [one.episode for one in due(index_of("diagnosed"), folded=0, total=9, lag=1, concurrency=9)] == []
    assert [one.episode for one in due({}, folded=2, total=9, lag=3, concurrency=9)] == [2, 3, 4]


def test_latest_waits_for_nothing():
    """Without a lag only the concurrency bounds what is in flight."""
    assert [one.episode for one in due({}, folded=0, total=9, lag="latest", concurrency=4)] == [0, 1, 2, 3]


def test_latest_does_not_run_away():
    """While one slow episode holds up the folds, others end; nobody gets further ahead than readers keep versions."""
    index = index_of("planned", *["diagnosed"] * 7)
    assert [one.episode for one in due(index, folded=0, total=99, lag="latest", concurrency=4)] == [0]
    del index[episode_stream(7)]
    assert [one.episode for one in due(index, folded=0, total=99, lag="latest", concurrency=4)] == [0, 7]


def test_end_of_the_run():
    """Nothing is due beyond the last episode."""
    assert due(index_of("diagnosed"), folded=1, total=1, lag=4, concurrency=4) == []


def test_prerequisites():
    """A task waits for its prerequisites in the same epoch and leaves its place to others meanwhile."""
    tasks, needs = ["a", "b", "c"], {"b": ["a"]}

    def episodes(index: dict[StreamId, StreamIndex], folded: int) -> list[int]:
        found = due(index, folded=folded, total=6, lag="latest", concurrency=2, tasks=tasks, depends_on=needs)
        return [one.episode for one in found]

    assert episodes({}, 0) == [0, 2]
    assert episodes(index_of("diagnosed"), 0) == [1, 2]
    assert episodes(index_of("abandoned", folded=1), 1) == [1, 2]
    assert episodes(index_of("diagnosed", "diagnosed", "diagnosed"), 3) == [3, 5]


def test_folded_counts_the_projector():
    """The newest bank version is the length of the projector's stream."""
    assert folded_episodes({}) == 0
    assert folded_episodes(index_of(folded=3)) == 3


@given(
    st.integers(1, 12), st.one_of(st.just("latest"), st.integers(1, 6)), st.integers(1, 5), st.integers(0, 2**32),
    st.booleans(),
)  # fmt: skip
def test_random_timing(total, lag, concurrency, seed, chained):
    """Whatever is played in whatever order, no episode starts beyond the lag or the concurrency, and the run ends."""
    chance = random.Random(seed)  # noqa: S311 - a schedule to play, no secret
    tasks = [f"t{i}" for i in range(total)]
    needs = {f"t{i}": [f"t{i - 1}"] for i in range(1, total) if i % 2} if chained else {}
    index: dict[StreamId, StreamIndex] = {}
    folded = 0
    while folded < total:
        now = due(index, folded=folded, total=total, lag=lag, concurrency=concurrency, tasks=tasks, depends_on=needs)
        assert len(now) <= concurrency
        assert all(lag == "latest" or one.episode < folded + lag for one in now)
        choices = [("play", one.episode) for one in now]
        head = index.get(episode_stream(folded))
        if head is not None and head.last_kind in ("diagnosed", "abandoned"):
            choices.append(("fold", folded))
        assert choices, "something can always go on"
        what, t = chance.choice(choices)
        if what == "fold":
            folded += 1
            del index[episode_stream(t)]
            continue
        stream = index.get(episode_stream(t))
        for needed in needs.get(tasks[t], ()):
            other = index.get(episode_stream(tasks.index(needed)))
            assert tasks.index(needed) < folded or (other is not None and other.last_kind in ("diagnosed", "abandoned"))
        kind = NEXT[stream.last_kind if stream else None]
        index[episode_stream(t)] = StreamIndex(positions=[Position(1)], last_kind=kind)
