"""A JSON Schema for each kind of event, made from the structs, so that page and code cannot drift."""

from typing import Any

import msgspec

from events.errors import UnknownName
from events.kinds import KINDS

#: JSON Schema's dialect
_DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: the line around an event's data, field by field (docs/events.md)
_LINE: dict[str, Any] = {
    "id": {"type": "string", "description": "<run>/<stream>/<version>"},
    "run": {"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,62}$"},
    "stream": {"type": "string", "pattern": "^(run|projector|episode-(0|[1-9][0-9]*))$"},
    "version": {"type": "integer", "minimum": 1},
    "position": {"type": "integer", "minimum": 1},
    "at": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z$"},
    "cause": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "attempt": {"type": "integer", "minimum": 1},
}


def kind_schema(kind: str) -> dict[str, Any]:
    """The schema of one export line of `kind`, complete in itself.

    Raises:
        UnknownName: no such kind.
    """
    if kind not in KINDS:
        raise UnknownName("kind", kind, KINDS)
    struct = KINDS[kind]
    (data,), components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    properties = {
        **_LINE,
        "kind": {"const": kind},
        "schema": {"const": struct.SCHEMA},
        "data": data,
    }
    return {
        "$schema": _DIALECT,
        "title": kind,
        "description": (struct.__doc__ or "").strip(),
        "type": "object",
        "properties": properties,
        "required": sorted(properties),
        "additionalProperties": False,
        "$defs": components,
    }


def kind_schemas() -> dict[str, dict[str, Any]]:
    """Every kind's schema."""
    return {kind: kind_schema(kind) for kind in KINDS}
