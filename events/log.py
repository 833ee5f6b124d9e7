"""One event with its place in a log, and what is handed to an append: data only."""

from msgspec import Struct

from events.ids import Position, RunId, StreamId, Version, event_id


class Draft(Struct, frozen=True, kw_only=True, gc=False):
    """An event before it has a place. Made by `events.codec.draft`."""

    kind: str
    schema: int
    #: canonical JSON
    data: bytes
    #: hex SHA-256 of (kind, data): the same again is the same event
    sha256: str


class Recorded(Struct, frozen=True, kw_only=True, gc=False):
    """An event in its place. `events.codec.decode` reads its `data`."""

    run: RunId
    stream: StreamId
    version: Version
    position: Position
    kind: str
    schema: int
    #: `YYYY-MM-DDTHH:MM:SS.ffffffZ`; informative
    at: str
    #: id of the event that led to this one
    cause: str | None
    #: which attempt of the job wrote it, from 1
    attempt: int
    #: canonical JSON
    data: bytes

    @property
    def id(self) -> str:
        """`<run>/<stream>/<version>`."""
        return event_id(self.run, self.stream, self.version)
