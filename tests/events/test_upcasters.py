"""Old shapes are brought to the newest one step at a time, and a stored event never changes."""

import msgspec
import pytest

from events import codec, upcasters
from events.errors import UnreadableEvent
from events.ids import Position, RunId, StreamId, Version
from events.kinds import KINDS, Planned, Usage
from events.log import Recorded


class PlannedOfTomorrow(Planned, frozen=True, kw_only=True):
    """`planned` two schemas on."""

    SCHEMA = 3


@pytest.fixture
def tomorrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """`planned` has schema 3: 1 called the plan `text`, 2 called it `outline`."""

    def first(data: dict[str, object]) -> dict[str, object]:
        return {("outline" if key == "text" else key): value for key, value in data.items()}

    def second(data: dict[str, object]) -> dict[str, object]:
        return {("plan" if key == "outline" else key): value for key, value in data.items()}

    monkeypatch.setitem(upcasters.STEPS, ("planned", 1), first)
    monkeypatch.setitem(upcasters.STEPS, ("planned", 2), second)
    monkeypatch.setitem(KINDS, "planned", PlannedOfTomorrow)
    monkeypatch.setitem(codec._DECODERS, "planned", msgspec.json.Decoder(PlannedOfTomorrow))


def planned(name: str, schema: int) -> Recorded:
    return Recorded(
        run=RunId("r"),
        stream=StreamId("episode-0"),
        version=Version(2),
        position=Position(3),
        kind="planned",
        schema=schema,
        at="2026-01-01T00:00:00.000000Z",
        cause=None,
        attempt=1,
        data=codec.canonical({name: "1. look", "usage": {"calls": 1}, "calls": []}),
    )


@pytest.mark.parametrize(("name", "schema"), [("text", 1), ("outline", 2), ("plan", 3)])
def test_every_schema_is_read_as_the_newest(tomorrow: None, name: str, schema: int) -> None:
    """Each old shape takes the steps it needs; the stored bytes stay."""
    stored = planned(name, schema)
    before = stored.data
    assert codec.decode(stored) == PlannedOfTomorrow(plan="1. look", usage=Usage(calls=1), calls=[])
    assert stored.data == before


@pytest.mark.parametrize("data", [b"[]", b"{", b"null", b'{"text":1}', b'"x"', b"\xff", b"[" * 100_000])
def test_old_data_that_is_none_is_refused_by_name(tomorrow: None, data: bytes) -> None:
    """A damaged event of an old schema is an UnreadableEvent, whatever the step makes of it."""
    with pytest.raises(UnreadableEvent, match="r/episode-0/2"):
        codec.decode(msgspec.structs.replace(planned("text", 1), data=data))
