"""What is due, as a pure function of where the streams of a run stand.

A restarted conductor needs no memory of its own. Episode t reads bank version max(0, t+1-L), so it may start once t+1-L
diagnoses were folded; at most `concurrency` episodes are in flight. Only the open window is looked at: every episode
before the first unfolded one has ended.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from events.ids import PROJECTOR_STREAM, BankVersion, StreamId, episode_stream
from runtime.ports import JobKind, StreamIndex

Lag = int | Literal["latest"]

#: how far `latest` episodes may be ahead of the folds, in units of the concurrency: while one slow episode holds up the
#: folds, others go on, and readers need to keep only so many versions (`events.window`)
LATEST_AHEAD = 2

#: how often a job is tried before its episode ends without it
ATTEMPTS = 3

#: kinds after which an episode is over
ENDINGS = frozenset({"diagnosed", "abandoned"})


class Due(Struct, frozen=True, kw_only=True):
    """An episode that a worker should advance."""

    #: t
    episode: int
    kind: JobKind


def read_version(t: int, lag: Lag, *, frozen: bool = False) -> BankVersion | None:
    """The bank version that episode `t` reads: max(0, t+1-L), 0 when frozen, None = the newest (`latest`)."""
    if frozen:
        return BankVersion(0)
    return None if lag == "latest" else BankVersion(max(0, t + 1 - lag))


def folded_episodes(index: Mapping[StreamId, StreamIndex]) -> int:
    """How many episodes were folded: the newest bank version."""
    projector = index.get(PROJECTOR_STREAM)
    return 0 if projector is None else len(projector.positions)


def due(
    index: Mapping[StreamId, StreamIndex],
    *,
    folded: int,
    total: int,
    lag: Lag,
    concurrency: int,
    tasks: Sequence[str] = (),
    depends_on: Mapping[str, Sequence[str]] = {},
) -> list[Due]:
    """What should be under way now, in stream order; an episode that is under way stays due until it ends.

    Args:
        index: where every stream that is not folded stands.
        folded: episodes folded so far.
        total: episodes over all epochs.
        lag: L, or `latest`: a fold is waited for only where episodes are LATEST_AHEAD x concurrency ahead of it.
        concurrency: episodes in flight, at least 1.
        tasks: ids of one epoch in order; needed with `depends_on` only.
        depends_on: task -> tasks before it in `tasks` whose episodes must have ended first, in the same epoch.
    """
    last = min(total, folded + (LATEST_AHEAD * concurrency if lag == "latest" else lag))
    started: list[Due] = []
    fresh: list[Due] = []
    unfinished: set[tuple[int, str]] = set()
    for t in range(folded, last):
        stream = index.get(episode_stream(t))
        if stream is not None and stream.last_kind in ENDINGS:
            continue
        blocked = False
        if depends_on:
            epoch, place = divmod(t, len(tasks))
            # A prerequisite comes earlier in the epoch: it has ended unless this loop has passed it.
            blocked = any((epoch, needed) in unfinished for needed in depends_on.get(tasks[place], ()))
            unfinished.add((epoch, tasks[place]))
        if stream is not None:
            started.append(Due(episode=t, kind="diagnose" if stream.last_kind == "scored" else "act"))
        elif not blocked:
            # One that waits for a prerequisite holds no place: what a later one reads does not depend on it.
            fresh.append(Due(episode=t, kind="act"))
        if len(started) + (0 if depends_on else len(fresh)) >= concurrency:
            break
    return sorted(started + fresh[: max(0, concurrency - len(started))], key=lambda one: one.episode)
