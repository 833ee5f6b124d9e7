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

from events.consistency import broken
from events.errors import EventTooLarge, NewerSchema, UnknownKind, UnreadableEvent
from events.exact_json import exact_json
from events.ids import Position, RunId, StreamId, Version, event_id, run_id, stream_id
from events.kinds import KINDS, AnyEvent, Event
from events.log import Draft, Recorded
from events.upcasters import upcast

K = TypeVar("K", bound=Event)

#: size cap of one event's data, bytes
EVENT_CAP = 256 * 1024

#: deeper data goes the long way
_SHALLOW = 64

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


def canonical(value: object) -> bytes:
    """The canonical JSON bytes of `value` (a struct or plain data).

    Raises:
        ValueError: a NaN or an infinity.
        TypeError: something JSON has no form for.
    """
    if (written := exact_json(value, _SHALLOW)) is not None:
        return written
    plain = _clean(msgspec.to_builtins(value))
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _clean(value: Any) -> Any:
    match value:
        case str():
            return clean_text(value)
        case bool() | None | int():
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{value} has no place in an event")
            return int(value) if value.is_integer() and abs(value) <= _EXACT else value
        case dict():
            return {clean_text(k): _clean(v) for k, v in value.items()}
        case _:
            return [_clean(v) for v in value]


def content_sha256(kind: str, data: bytes) -> str:
    """Hex SHA-256 of `<kind>` + newline + canonical data: what makes two events the same."""
    return hashlib.sha256(kind.encode() + b"\n" + data).hexdigest()


def draft(event: AnyEvent) -> Draft:
    """`event` ready to be appended.

    Raises:
        EventTooLarge: its data is over the size cap.
    """
    data = canonical(event)
    if len(data) > EVENT_CAP:
        raise EventTooLarge(event.KIND, len(data), EVENT_CAP)
    return Draft(kind=event.KIND, schema=event.SCHEMA, data=data, sha256=content_sha256(event.KIND, data))


def decode(recorded: Recorded) -> AnyEvent:
    """The event that `recorded` holds, brought to the newest schema.

    Raises:
        UnknownKind: a kind this code does not know.
        NewerSchema: a schema above the ones this code knows.
        UnreadableEvent: data that does not fit the kind, a value out of its range, or fields that contradict each
            other; names the field and the value.
    """
    event = _typed(recorded)
    wrong = broken(event)
    if wrong is not None:
        raise UnreadableEvent(recorded.id, wrong.said())
    return event


def _typed(recorded: Recorded) -> AnyEvent:
    kind = KINDS.get(recorded.kind)
    if kind is None:
        raise UnknownKind(recorded.id, recorded.kind, recorded.schema)
    if recorded.schema > kind.SCHEMA:
        raise NewerSchema(recorded.id, recorded.kind, recorded.schema, kind.SCHEMA)
    try:
        if recorded.schema == kind.SCHEMA:
            return _DECODERS[recorded.kind].decode(recorded.data)
        return msgspec.convert(upcast(recorded.kind, recorded.schema, _OBJECT.decode(recorded.data)), kind)
    # msgspec's errors are ValueErrors; the others are a step's, whose data may have any shape inside.
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
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
    except (ValueError, LookupError, TypeError):
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

#: a line as `export_line` writes it, around `data`; whatever looks otherwise goes through the JSON parser
_PLAIN = rb'"([ !#-\[\]-~]*)"'
_HEAD = re.compile(rb'\{"at":%b,"attempt":([1-9][0-9]{0,17}),"cause":(?:null|%b),"data":' % (_PLAIN, _PLAIN))
_TAIL = re.compile(
    rb',"id":%b,"kind":%b,"position":([1-9][0-9]{0,17}),"run":"([a-z0-9][a-z0-9-]{0,62})","schema":([1-9][0-9]{0,17}),'
    rb'"stream":"(run|projector|episode-(?:0|[1-9][0-9]{0,17}))","version":([1-9][0-9]{0,17})\}\n?' % (_PLAIN, _PLAIN)
)


def skim_line(line: bytes, where: str) -> Recorded:
    """As `parse_line`, but `data` goes unread: whoever decodes it finds what is wrong inside, nobody else does.

    For readers who skip kinds: it costs the same however long the line is.

    Raises:
        UnreadableEvent: as `parse_line`, what stands inside `data` aside.
    """
    head, end = _HEAD.match(line), line.rfind(b',"id":"')
    tail = _TAIL.fullmatch(line, end) if end > 0 else None
    if head is None or tail is None or head.end() > end:
        return parse_line(line, where)
    at, attempt, cause = head.groups()
    name, kind, position, run, schema, stream, version = tail.groups()
    if name != b"%b/%b/%b" % (run, stream, version):
        return parse_line(line, where)
    return Recorded(
        run=RunId(run.decode()),
        stream=StreamId(stream.decode()),
        version=Version(int(version)),
        position=Position(int(position)),
        kind=kind.decode(),
        schema=int(schema),
        at=at.decode(),
        cause=None if cause is None else cause.decode(),
        attempt=int(attempt),
        data=line[head.end() : end],
    )


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
