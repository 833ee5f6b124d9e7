"""What must hold of a run's log, whatever happened to those who wrote it."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from events.codec import decode_as
from events.ids import episode_of
from events.kinds import Diagnosed, Folded, RunFinished
from events.log import Recorded
from events.verify import verify

#: an episode to which nothing happened
_WHOLE = ["retrieved", "planned", "retrieved", "executed", "scored", "diagnosed"]
#: why a diagnosis may be degraded in a run of the rehearsal model that nothing disturbs
_OWN = {"unreadable"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run has ended."""

    digests: list[str]
    abandoned: int
    #: diagnoses that were given up because their workers were lost
    lost: int
    attempts: Counter[int]

    @property
    def whole(self) -> bool:
        """Whether no episode was given up: then the digest is the undisturbed run's."""
        return not self.abandoned and not self.lost


def outcome(events: Sequence[Recorded], episodes: int) -> Outcome:
    """How the run has ended, after every invariant of its log was checked.

    Every episode complete or abandoned, folded once, in order; versions and positions gapless; every operation, digest
    and recall what the fold gives; one `run_finished`, at the end, whose counts are true.
    """
    verify(events)
    assert [one.position for one in events] == list(range(1, len(events) + 1))
    streams: defaultdict[str, list[Recorded]] = defaultdict(list)
    for one in events:
        streams[one.stream].append(one)
    for stream in streams.values():
        assert [one.version for one in stream] == list(range(1, len(stream) + 1))
    kinds = {t: [one.kind for one in of] for name, of in streams.items() if (t := episode_of(name)) is not None}
    assert sorted(kinds) == list(range(episodes))
    abandoned = 0
    for t, found in kinds.items():
        if found[-1] == "abandoned":
            abandoned += 1
            assert found[:-1] == _WHOLE[: len(found) - 1], f"episode {t}: {found}"
        else:
            assert found == _WHOLE, f"episode {t}: {found}"
    folds = [decode_as(one, Folded) for one in streams["projector"]]
    assert [one.episode for one in folds] == list(range(episodes))
    assert [one.kind for one in events].count("run_finished") == 1
    counts = decode_as(events[-1], RunFinished).counts
    degraded = [why for one in events if one.kind == "diagnosed" and (why := decode_as(one, Diagnosed).degraded)]
    assert (counts.episodes, counts.abandoned, counts.folded) == (episodes, abandoned, episodes)
    assert (counts.diagnosed, counts.degraded) == (episodes - abandoned, len(degraded))
    return Outcome(
        digests=[one.digest for one in folds],
        abandoned=abandoned,
        lost=sum(why not in _OWN for why in degraded),
        attempts=Counter(one.attempt for one in events),
    )


def kept(events: Sequence[Recorded], acknowledged: Mapping[tuple[str, int], int]) -> None:
    """Every event that somebody was told is there is there, in that place."""
    there = {(str(one.stream), int(one.version)): int(one.position) for one in events}
    lost = {place: position for place, position in acknowledged.items() if there.get(place) != position}
    assert not lost, f"acknowledged and not there: {lost}"


def unchanged(events: Sequence[Recorded], seen: Mapping[int, Mapping[bytes, bytes]]) -> None:
    """Every event that could once be read is still there, byte for byte."""
    for position, fields in seen.items():
        one = events[position - 1]
        now = (one.stream, one.version, one.kind, one.at, one.cause or "", one.attempt, one.data)
        names = (b"stream", b"version", b"kind", b"at", b"cause", b"attempt", b"data")
        assert [fields[name] for name in names] == [
            value if isinstance(value, bytes) else str(value).encode() for value in now
        ], f"the event at position {position} has changed"
