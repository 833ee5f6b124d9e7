"""What holds of every event, text and line: canonical bytes, round trips, refusals that name what they refuse."""

import json
from typing import Any

import made_events
import msgspec
import plain_fold
import plain_logs
import product_fold
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from events.codec import (
    DEEPEST,
    EVENT_CAP,
    canonical,
    clean_text,
    content_sha256,
    decode,
    draft,
    export_line,
    parse_line,
)
from events.codec import recorded as placed
from events.errors import (
    BadInput,
    EventTooLarge,
    NestedTooDeep,
    NewerSchema,
    UnknownKind,
    UnreadableEvent,
    UnwritableEvent,
)
from events.ids import BankVersion, Position, RunId, StreamId, Version
from events.kinds import KINDS, AnyEvent, Evaluator, Folded, Noted, Planned, Query, Retrieved, Scored, Usage
from events.log import Recorded
from events.skim import Skim
from events.vectors import of_raw

#: a stream of each sort
STREAMS = {"run": "run", "projector": "projector", "episode": "episode-3"}


def in_place(kind: str, data: bytes, schema: int = 1) -> Recorded:
    return Recorded(
        run=RunId("r"),
        stream=StreamId(STREAMS[KINDS[kind].STREAM] if kind in KINDS else "episode-3"),
        version=Version(6),
        position=Position(20),
        kind=kind,
        schema=schema,
        at="2026-01-01T00:00:00.000000Z",
        cause=None,
        attempt=1,
        data=data,
    )


def without_lone_surrogates(text: str) -> str:
    """One code unit after the other: a pair is its character, whatever is left over is U+FFFD."""
    out, at = [], 0
    while at < len(text):
        here = ord(text[at])
        after = ord(text[at + 1]) if at + 1 < len(text) else 0
        if 0xD800 <= here < 0xDC00 and 0xDC00 <= after < 0xE000:
            out.append(chr(0x10000 + ((here - 0xD800) << 10) + (after - 0xDC00)))
            at += 2
            continue
        out.append("\ufffd" if 0xD800 <= here < 0xE000 else text[at])
        at += 1
    return "".join(out)


def cleaned(value: Any) -> Any:
    """What the format says of numbers and texts, said once more."""
    if isinstance(value, str):
        return without_lone_surrogates(value)
    if isinstance(value, float) and value == int(value) and abs(value) <= 2**53:
        return int(value)
    if isinstance(value, list):
        return [cleaned(one) for one in value]
    if isinstance(value, dict):
        return {without_lone_surrogates(key): cleaned(one) for key, one in value.items()}
    return value


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_decoding_an_encoded_event_gives_it_back(kind: str) -> None:
    """For every kind: decode(draft(e)) = e, and its bytes are the same again."""

    @given(made_events.made(KINDS[kind]))
    def law(event: AnyEvent) -> None:
        item = draft(event)
        back = decode(in_place(item.kind, item.data, item.schema))
        assert back == event
        assert draft(back) == item
        assert item.sha256 == content_sha256(kind, item.data)

    law()


@given(made_events.json_values)
@example({"b": -0.0, "a": [1.0, 1e16, 0.1, 1e-7, 2.0**53, 2.0**53 + 2], "é": '\u2028\x7f\x00\\"'})
def test_canonical_bytes_are_those_of_the_standard_module(value: Any) -> None:
    """Keys sorted, no spaces, no escapes: `json.dumps` over cleaned data, and stable when read again."""
    data = canonical(value)
    assert data == json.dumps(cleaned(value), sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    assert canonical(json.loads(data)) == data


@given(st.dictionaries(made_events.surrogates, made_events.surrogates, max_size=3))
def test_any_text_has_canonical_bytes(facts: dict[str, str]) -> None:
    """Lone surrogates in keys and values become U+FFFD on the way into an event."""
    data = canonical(facts)
    assert json.loads(data.decode("utf-8")) == cleaned(facts)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_has_not_are_refused(number: float) -> None:
    """No NaN and no infinity gets into an event."""
    with pytest.raises(ValueError, match="no place in an event"):
        canonical({"x": [number]})
    with pytest.raises(UnwritableEvent, match=r"cannot write a 'noted' event: .* no place in an event"):
        draft(Noted(topic="t", facts={"x": [number]}))


EVALUATOR = Evaluator(name="e", version="1")
#: kind, its field that may hold anything, how many levels that field is
FREE = [("noted", ["facts"], 2), ("scored", ["breakdown"], 2), ("run_started", ["config", "agent"], 3)]


@pytest.mark.parametrize(("kind", "path", "levels"), FREE, ids=[kind for kind, _, _ in FREE])
@pytest.mark.parametrize("nested", [63, 64, 65, 66, 150, 500, 5000, 100_000])
def test_nesting_has_a_bound_wherever_data_is_free(kind: str, path: list[str], levels: int, nested: int) -> None:
    """64 levels are written and read, data itself the first; one more is refused by both, and any number more."""
    header = next(line for line in LINES if b'"kind":"run_started"' in line)
    event: Any = {
        "noted": {"topic": "t", "facts": {}},
        "scored": {"success": True, "reward": 1, "evaluator": {"name": "e", "version": "1"}, "breakdown": {}},
        "run_started": json.loads(parse_line(header, "line 7").data),
    }[kind]
    place = event
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = {"text": "[{" * 100, "deep": None}
    inner = b"[" * (nested - levels) + b"]" * (nested - levels)
    recorded = in_place(kind, canonical(event).replace(b'"deep":null', b'"deep":' + inner))
    if nested <= DEEPEST:
        assert draft(decode(recorded)).data == recorded.data
        return
    with pytest.raises(UnreadableEvent, match=f"more than {DEEPEST} lists and objects"):
        decode(recorded)
    deep: list[Any] = []
    for _ in range(nested - levels - 1):
        deep = [deep]
    place[path[-1]] = {"deep": deep}
    with pytest.raises(NestedTooDeep):
        canonical(event)
    place[path[-1]] = {}
    made = msgspec.convert(event, KINDS[kind])
    free: Any = made
    for step in path:
        free = getattr(free, step)
    free["deep"] = deep
    with pytest.raises(UnwritableEvent, match=f"more than {DEEPEST} lists and objects"):
        draft(made)
    while deep:  # taken apart from the outside, for its own end would be as deep
        deep = deep.pop()


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Planned(plan="p", usage=Usage(calls=-1), calls=[]), "usage.calls.*found -1"),
        (Scored(success=True, reward=1.5, evaluator=EVALUATOR, breakdown={}), "reward.*found 1.5"),
        (Scored(success=True, reward=1, evaluator=EVALUATOR, breakdown={"x": object()}), "object is unsupported"),
        (Folded(episode=1, bank_version=BankVersion(3), digest="0" * 64, operations=[]), "bank_version 3: episode 1"),
        (Folded(episode=1, bank_version=BankVersion(2), digest="0", operations=[]), "digest"),
        (
            Retrieved(
                stage="planning", bank_version=BankVersion(0), source="exact", candidates=[],
                query=Query(text="t", vector=of_raw(b"\1\0\0\0")),
            ),
            "not of unit length",
        ),
    ],
)  # fmt: skip
def test_a_draft_is_held_to_the_rules_of_its_readers(event: AnyEvent, reason: str) -> None:
    """A writer's mistake is refused where it is made, by kind, field and value, and never reaches a log."""
    with pytest.raises(UnwritableEvent, match=f"cannot write a '{event.KIND}' event: .*{reason}"):
        draft(event)


@given(made_events.surrogates)
@example("\ud800")
@example("a\udc00\ud800b")
@example("\ud83e\udde0")
@example("\ud800\ud83e\udde0")
def test_clean_text_replaces_lone_surrogates_only(text: str) -> None:
    """A pair is the character it stands for; a lone half is U+FFFD; everything else stays; twice is once."""
    clean = clean_text(text)
    assert clean == without_lone_surrogates(text)
    assert clean_text(clean) == clean
    clean.encode("utf-8")


def test_an_unknown_kind_is_named_with_its_schema() -> None:
    """The error says which event, which kind and which schema."""
    with pytest.raises(UnknownKind, match=r"r/episode-3/6.*'dreamt' \(schema 4\)") as error:
        decode(in_place("dreamt", b"{}", 4))
    assert (error.value.kind, error.value.schema) == ("dreamt", 4)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_newer_schema_is_named_with_its_kind(kind: str) -> None:
    """The error says which event, which kind, its schema and the newest that is known."""
    newer = KINDS[kind].SCHEMA + 1
    with pytest.raises(NewerSchema, match=rf"^cannot read r/[a-z0-9-]+/6.*'{kind}' has schema {newer}") as error:
        decode(in_place(kind, b"{}", newer))
    assert (error.value.kind, error.value.schema, error.value.newest) == (kind, newer, newer - 1)


def test_the_size_cap_is_inclusive() -> None:
    """256 KiB of data fit, one byte more does not, and the error says both sizes and the kind."""
    empty = len(draft(Planned(plan="", usage=Usage(), calls=[])).data)
    assert len(draft(Planned(plan="x" * (EVENT_CAP - empty), usage=Usage(), calls=[])).data) == EVENT_CAP == 262144
    with pytest.raises(EventTooLarge, match=r"'planned' event: 262145 bytes.*262144") as error:
        draft(Planned(plan="ü" + "x" * (EVENT_CAP - empty - 1), usage=Usage(), calls=[]))
    assert (error.value.kind, error.value.size, error.value.cap) == ("planned", 262145, 262144)


@given(
    made_events.events(),
    made_events.runs,
    made_events.streams,
    st.integers(1, 10**9),
    st.integers(1, 10**9),
    st.one_of(st.none(), made_events.texts),
)
def test_an_export_line_reads_back(
    event: AnyEvent, run: str, stream: str, version: int, position: int, cause: str | None
) -> None:
    """The line is one canonical JSON object and a newline; parsing gives the same event in the same place."""
    item = placed(
        draft(event),
        run=RunId(run),
        stream=StreamId(stream),
        version=version,
        position=position,
        at="2026-01-01T00:00:00.000000Z",
        cause=cause,
        attempt=2,
    )
    line = export_line(item)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert line == plain_fold.plain_json(json.loads(line)) + b"\n"
    assert json.loads(line)["id"] == f"{run}/{stream}/{version}"
    assert parse_line(line, "line 1") == item


def test_made_up_logs_go_through_the_codec_unchanged() -> None:
    """Line by line: what the second fold's scribe wrote, decoded and drafted again, is byte for byte the same."""
    for seed in range(60):
        scribe = plain_logs.made_log(seed)
        for event, one in zip(scribe.events, product_fold.recorded_log(scribe.events), strict=True):
            assert draft(decode(one)).data == one.data == plain_fold.plain_json(event["data"])
            assert export_line(one) == plain_fold.plain_json(event) + b"\n"


def refuses(line: bytes) -> None:
    """Reads `line` as far as it goes; nothing but our own errors comes out."""
    try:
        decode(parse_line(line, "line 7"))
    except UnreadableEvent as error:
        assert error.where  # noqa: PT017 - which of our errors it is depends on the line
    except BadInput:
        pass


@given(st.binary(max_size=200))
@example(b"")
@example(b"[" * 100_000)
@example(b'{"id":' + b"[" * 5000 + b"]" * 5000 + b"}")
@example(b"\xff\xfe")
@example(b"null")
def test_bytes_that_are_no_event_are_refused(line: bytes) -> None:
    """Whatever the bytes: an UnreadableEvent or another BadInput."""
    refuses(line)


LINES = [plain_fold.plain_json(event) for seed in (1, 3, 9) for event in plain_logs.made_log(seed).events]


@given(st.sampled_from(LINES), st.data())
def test_a_damaged_line_is_refused_or_read(line: bytes, data: st.DataObject) -> None:
    """A real line with bytes cut out and others put in."""
    start = data.draw(st.integers(0, len(line)))
    stop = data.draw(st.integers(start, min(len(line), start + 40)))
    refuses(line[:start] + data.draw(st.binary(max_size=8)) + line[stop:])


@given(st.sampled_from(LINES), st.data())
def test_a_line_with_another_value_inside_is_refused_or_read(line: bytes, data: st.DataObject) -> None:
    """A real line in which one value, at any depth, is any JSON value."""
    event = json.loads(line)
    place = event
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        break
    hostile = st.one_of(made_events.json_values, st.integers(), made_events.surrogates, st.just(10**400))
    place[key] = data.draw(hostile)
    refuses(json.dumps(event).encode("utf-8", "surrogatepass"))


def skimmed(line: bytes, run: RunId, position: int, kinds: frozenset[str] | None = None) -> Recorded | None:
    """The line between others, skimmed."""
    skim = Skim(run, kinds, lambda raw, _: parse_line(raw, "line 7"), position - 1, position - 1)
    found = list(skim.events(b"cut off\nbefore\n" + line + b"\nbehind", 8))
    assert len(found) <= 1
    return found[0] if found else None


@given(st.sampled_from(LINES), st.data())
def test_skimming_a_line_finds_what_parsing_finds(line: bytes, data: st.DataObject) -> None:
    """A sound line: the same event, or none of the kinds; a damaged one: the same, or refused when decoded."""
    sound = parse_line(line, "line 7")
    run, position = sound.run, sound.position
    assert skimmed(line, run, position) == sound == skimmed(line, run, position + 1)
    assert skimmed(line, run, position, frozenset({sound.kind})) == sound == skimmed(line, RunId("another"), position)
    assert skimmed(line, run, position, frozenset(KINDS) - {sound.kind}) is None
    start = data.draw(st.integers(0, len(line)))
    stop = data.draw(st.integers(start, min(len(line), start + 20)))
    spoiled = line[:start] + data.draw(st.binary(max_size=8)) + line[stop:]
    assume(b"\n" not in spoiled)
    try:
        found = skimmed(spoiled, run, position)
        event = decode(found) if found is not None else None
    except BadInput:
        return
    assert found == parse_line(spoiled, "line 7")
    assert decode(parse_line(spoiled, "line 7")) == event
