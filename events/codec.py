"""Events to canonical bytes and back, and the export line around them.

Canonical JSON: UTF-8, keys sorted, no spaces, no ASCII escapes, no NaN or infinity, floats that are integers written
as integers (so -0.0 is 0), lone surrogates replaced by U+FFFD: the bytes of the standard `json.dumps` over that.
"""

import hashlib
import json
import math
import re
from typing import Any, TypeVar

import msgspec

from events.consistency import broken, vectors
from events.errors import (
    EventTooLarge,
    NestedTooDeep,
    NewerSchema,
    NotAUnitVector,
    UnknownKind,
    UnreadableEvent,
    UnwritableEvent,
)
from events.exact_json import TYPED, exact_json, typed_json
from events.ids import Position, RunId, StreamId, Version, event_id, run_id, stream_id
from events.kinds import KINDS, AnyEvent, Event
from events.log import Draft, Recorded
from events.upcasters import upcast

K = TypeVar("K", bound=Event)

#: size cap of one event's data, bytes
EVENT_CAP = 256 * 1024

#: how many lists and objects may stand inside each other in an event's data, which itself is the first: far below
#: what any version of the parsers can follow, so that a log that one machine writes every other one reads
DEEPEST = 64

#: an integral float beyond this is not exact as an integer and stays a float
_EXACT = 2.0**53

_DECODERS: dict[str, msgspec.json.Decoder[AnyEvent]] = {
    name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()
}
_OBJECT = msgspec.json.Decoder(dict[str, Any])
#: where an error of the decoder points: `Expected ... - at `$.experiences.planning.lint[0]``
_PATH = re.compile(r" - at `\$(.*)`$")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def clean_text(text: str) -> str:
    """`text` with each lone surrogate as U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def canonical(value: object, deepest: int = DEEPEST) -> bytes:
    """The canonical JSON bytes of `value` (a struct or plain data).

    Args:
        value: what to write.
        deepest: how many lists and objects may stand inside each other.

    Raises:
        ValueError: a NaN or an infinity.
        TypeError: something JSON has no form for.
        NestedTooDeep: more than `deepest` levels.
    """
    if (written := exact_json(value, deepest)) is not None:
        return written
    try:
        plain = _clean(msgspec.to_builtins(value), deepest)
    except RecursionError as error:
        raise NestedTooDeep(deepest) from error
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _clean(value: Any, levels: int) -> Any:
    match value:
        case str():
            return clean_text(value)
        case bool() | None | int():
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{value} has no place in an event")
            return int(value) if value.is_integer() and abs(value) <= _EXACT else value
        case _ if not levels:
            raise RecursionError
        case dict():
            return {clean_text(k): _clean(v, levels - 1) for k, v in value.items()}
        case _:
            return [_clean(v, levels - 1) for v in value]


def _deeper(value: Any, levels: int) -> bool:
    """Whether more than `levels` lists and objects stand inside each other in plain data."""
    match value:
        case dict():
            return not levels or any(_deeper(one, levels - 1) for one in value.values())
        case list():
            return not levels or any(_deeper(one, levels - 1) for one in value)
        case _:
            return False


def _nested_too_deep(data: bytes) -> bool:
    """Whether JSON text has more than `DEEPEST` levels; most has fewer brackets than that."""
    if data.count(b"[") + data.count(b"{") <= DEEPEST:
        return False
    try:
        return _deeper(msgspec.json.decode(data), DEEPEST)
    except RecursionError:
        return True


def content_sha256(kind: str, data: bytes) -> str:
    """Hex SHA-256 of `<kind>` + newline + canonical data: what makes two events the same."""
    return hashlib.sha256(kind.encode() + b"\n" + data).hexdigest()


def draft(event: AnyEvent) -> Draft:
    """`event` ready to be appended: what this lets pass, `decode` reads.

    Raises:
        EventTooLarge: its data is over the size cap.
        UnwritableEvent: a reader would refuse it: a value out of its range, fields that contradict each other, a vector
            that is none, lists and objects nested too deep, or something JSON has no form for.
    """
    return drafted(event)[0]


def drafted(event: AnyEvent) -> tuple[Draft, AnyEvent]:
    """`event` ready to be appended, and as `decode` will read it, which may say less than the objects it was made of.

    Raises:
        EventTooLarge, UnwritableEvent: as `draft`.
    """
    if (made := _drafted_typed(event)) is not None:
        data, read = made
    else:
        try:
            data = canonical(event)
        except (ValueError, TypeError, NestedTooDeep) as error:
            raise UnwritableEvent(event.KIND, str(error)) from error
        if len(data) > EVENT_CAP:
            raise EventTooLarge(event.KIND, len(data), EVENT_CAP)
        read = _read_back(event.KIND, data)
    return Draft(kind=event.KIND, schema=event.SCHEMA, data=data, sha256=content_sha256(event.KIND, data)), read


def _drafted_typed(event: AnyEvent) -> tuple[bytes, AnyEvent] | None:
    """The data, and what is read of it, of an event whose fields say all of how it is written; None of others.

    Raises:
        UnwritableEvent: as `drafted`.
    """
    if type(event) not in TYPED:
        return None
    try:
        # What a field cannot hold is found by reading it, and what was read is written in one way.
        read = _DECODERS[event.KIND].decode(msgspec.json.encode(event))
        data = typed_json(read)
    except (ValueError, TypeError, OverflowError):
        return None
    if data is None or len(data) > EVENT_CAP:
        return None
    _assert_readable(read, data)
    return data, read


def _read_back(kind: str, data: bytes) -> AnyEvent:
    """What a reader makes of canonical data of the newest schema.

    Raises:
        UnwritableEvent: it would refuse it.
    """
    try:
        event = _DECODERS[kind].decode(data)
    except ValueError as error:
        raise UnwritableEvent(kind, f"{error}{_found(str(error), data)}") from error
    _assert_readable(event, data)
    return event


def _assert_readable(event: AnyEvent, data: bytes) -> None:
    """Raises: UnwritableEvent: vectors that are none, or fields that contradict each other."""
    try:
        for vector in vectors(event):
            vector.exact()
    except NotAUnitVector as error:
        raise UnwritableEvent(event.KIND, f"{error}{_found(str(error), data)}") from error
    wrong = broken(event)
    if wrong is not None:
        raise UnwritableEvent(event.KIND, wrong.said())


def decode(recorded: Recorded) -> AnyEvent:
    """The event that `recorded` holds, brought to the newest schema.

    Raises:
        UnknownKind: a kind this code does not know.
        NewerSchema: a schema above the ones this code knows.
        UnreadableEvent: data that does not fit the kind, a value out of its range, fields that contradict each other
            (names the field and the value), or lists and objects nested too deep.
    """
    event = typed(recorded)
    try:
        too_deep = _nested_too_deep(recorded.data)
    except ValueError as error:  # in a field that the kind does not know: its decoder passes over it
        raise UnreadableEvent(recorded.id, str(error)) from error
    if too_deep:
        raise UnreadableEvent(recorded.id, str(NestedTooDeep(DEEPEST)))
    wrong = broken(event)
    if wrong is not None:
        raise UnreadableEvent(recorded.id, wrong.said())
    return event


def typed(recorded: Recorded) -> AnyEvent:
    """As `decode`, but fields are not held against each other: for a replay, whose banks refuse what does not fit.

    Raises:
        As `decode`, contradictions and nesting that can be read aside.
    """
    kind = KINDS.get(recorded.kind)
    if kind is None:
        raise UnknownKind(recorded.id, recorded.kind, recorded.schema)
    if recorded.schema > kind.SCHEMA:
        raise NewerSchema(recorded.id, recorded.kind, recorded.schema, kind.SCHEMA)
    try:
        if recorded.schema == kind.SCHEMA:
            return _DECODERS[recorded.kind].decode(recorded.data)
        return msgspec.convert(upcast(recorded.kind, recorded.schema, _OBJECT.decode(recorded.data)), kind)
    except RecursionError as error:
        raise UnreadableEvent(recorded.id, str(NestedTooDeep(DEEPEST))) from error
    # msgspec's errors are ValueErrors; the others are a step's, whose data may have any shape inside.
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnreadableEvent(recorded.id, f"{error}{_found(str(error), recorded.data)}") from error


def _found(message: str, data: bytes) -> str:
    """What stands where a validation error points, for the message; nothing where that cannot be said."""
    path = _PATH.search(message)
    if path is None:
        return ""
    try:
        value: Any = msgspec.json.decode(data)
        for name, number in _STEP.findall(path[1]):
            value = value[name] if name else value[int(number)]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return f", found {value!r:.80}"


def decode_as(recorded: Recorded, kind: type[K]) -> K:
    """The event that `recorded` holds, which must be a `kind`.

    Raises:
        UnreadableEvent: of another kind, or as `decode`.
    """
    event = decode(recorded)
    if not isinstance(event, kind):
        raise UnreadableEvent(recorded.id, f"expected {kind.KIND}, found {recorded.kind}")
    return event


def export_line(recorded: Recorded) -> bytes:
    """One line of an export, newline included; keys in sorted order, `data` as stored."""
    head = canonical({"at": recorded.at, "attempt": recorded.attempt, "cause": recorded.cause})
    tail = canonical(
        {
            "id": recorded.id,
            "kind": recorded.kind,
            "position": recorded.position,
            "run": recorded.run,
            "schema": recorded.schema,
            "stream": recorded.stream,
            "version": recorded.version,
        }
    )
    return b'%s,"data":%s,%s\n' % (head[:-1], recorded.data, tail[1:])


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    run: str
    stream: str
    version: int
    position: int
    kind: str
    schema: int
    at: str
    cause: str | None
    attempt: int
    data: msgspec.Raw


_LINE = msgspec.json.Decoder(_Line)


def parse_line(line: bytes, where: str) -> Recorded:
    """The event of one export line; `where` names it in errors.

    Raises:
        UnreadableEvent: not such a line, or an id that does not fit its run, stream and version.
    """
    try:
        raw = _LINE.decode(line)
    except (ValueError, RecursionError) as error:
        raise UnreadableEvent(where, str(error)) from error
    run, stream = run_id(raw.run), stream_id(raw.stream)
    if raw.id != event_id(run, stream, raw.version) or min(raw.version, raw.position, raw.schema) < 1:
        raise UnreadableEvent(where, f"id {raw.id!r} does not fit {raw.run}/{raw.stream}/{raw.version}")
    if raw.attempt < 1:
        raise UnreadableEvent(where, f"attempt {raw.attempt}: attempts count from 1")
    return Recorded(
        run=run,
        stream=stream,
        version=Version(raw.version),
        position=Position(raw.position),
        kind=raw.kind,
        schema=raw.schema,
        at=raw.at,
        cause=raw.cause,
        attempt=raw.attempt,
        data=bytes(raw.data),
    )


def recorded(
    item: Draft, *, run: RunId, stream: StreamId, version: int, position: int, at: str, cause: str | None, attempt: int
) -> Recorded:
    """`item` in its place."""
    return Recorded(
        run=run,
        stream=stream,
        version=Version(version),
        position=Position(position),
        kind=item.kind,
        schema=item.schema,
        at=at,
        cause=cause,
        attempt=attempt,
        data=item.data,
    )
