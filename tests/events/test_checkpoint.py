"""A log's state as bytes: whoever begins there ends where the whole log ends."""

from pathlib import Path

import msgspec
import pytest

from events.checkpoint import Checkpoint, Tally, read, written
from events.codec import canonical, parse_line
from events.errors import FoldMismatch, NotAUnitVector, UnreadableEvent
from events.fold import State, replay
from events.log import Recorded

GOLDEN = sorted((Path(__file__).parent.parent / "golden").glob("schema-*/*.jsonl"))


def events_of(path: Path) -> list[Recorded]:
    """The events of a golden log."""
    return [parse_line(line, str(path)) for line in path.read_bytes().splitlines(keepends=True)]


def counted(events: list[Recorded]) -> Tally:
    """What they come to."""
    tally = Tally()
    for one in events:
        tally.count(one)
    return tally


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda one: f"{one.parent.name}-{one.stem}")
def test_replay_goes_on_from_any_position(golden: Path) -> None:
    """State, banks and digest of the rest are those of the whole log, wherever the checkpoint stands."""
    events = events_of(golden)
    whole = replay(events)
    for place in range(1, len(events) + 1):
        before = Checkpoint(state=replay(events[:place]), tally=counted(events[:place]))
        there = read(written(before), "here")
        assert there.tally == before.tally
        assert there.state.waiting == before.state.waiting
        assert (there.state.header, there.state.tasks) == (before.state.header, before.state.tasks)
        assert written(there) == written(before)
        rest = replay(events[place:], there.state)
        assert (rest.position, rest.banks.version) == (whole.position, whole.banks.version)
        assert rest.banks.digest() == whole.banks.digest()
        for item in rest.banks:
            twin = whole.banks.get(item.id)
            assert twin is not None
            assert rest.banks.scenario_vector(item) == whole.banks.scenario_vector(twin)
            assert rest.banks.experience_vectors(item) == whole.banks.experience_vectors(twin)


def test_what_is_damaged_is_refused() -> None:
    """Another digest, another text, a vector that is none, other code, no checkpoint at all: named."""
    events = events_of(next(one for one in GOLDEN if one.stem == "credit"))
    data = written(Checkpoint(state=replay(events), tally=counted(events)))
    plain = msgspec.json.decode(data)
    assert plain["items"], "the golden log ends with an empty bank"
    for change, error, words in (
        ({"digest": "0" * 64}, FoldMismatch, "digest differs"),
        ({"items": [plain["items"][0] | {"n": 77}, *plain["items"][1:]]}, FoldMismatch, "digest differs"),
        ({"items": plain["items"][1:]}, FoldMismatch, "digest differs"),
        ({"format": 2}, UnreadableEvent, "of other code: format 2"),
        ({"schemas": {}}, UnreadableEvent, "of other code"),
        ({"position": "x"}, UnreadableEvent, "position"),
    ):
        with pytest.raises(error, match=words):
            read(canonical(plain | change), "here")
    short = plain["items"][0] | {"scenario_vector": {"dim": 1, "q24": "AAAAAA=="}}
    with pytest.raises((NotAUnitVector, UnreadableEvent)):
        read(canonical(plain | {"items": [short, *plain["items"][1:]]}), "here")
    for none in (b"", b"{}", data[:-1], b"\xff"):
        with pytest.raises(UnreadableEvent, match="here"):
            read(none, "here")


def test_a_log_that_has_not_begun_has_no_checkpoint() -> None:
    """There is no header to keep."""
    with pytest.raises(UnreadableEvent, match="does not begin"):
        written(Checkpoint(state=State(), tally=Tally()))
