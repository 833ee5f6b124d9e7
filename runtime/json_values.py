"""JSON that a model wrote: read strictly, and held against a schema as far as that is plain."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from events.codec import DEEPEST

#: JSON schema's names of types, as a message calls them
_TYPES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_TOO_DEEP = f"more than {DEEPEST} lists and objects stand inside each other"
#: how much of a wrong value, and how many allowed ones, a message shows
_SHOWN_CHARS, _SHOWN_VALUES = 60, 20


def read_json(text: str) -> Any:
    """The value that `text` is, whole.

    Raises:
        ValueError: no JSON, text behind it, NaN or an infinity, a name that stands twice in one object (nobody can say
            which value is meant), or more levels than an event may have.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
    except RecursionError as error:
        # How deep the parser can follow depends on who calls it; what is read must not.
        raise ValueError(_TOO_DEEP) from error
    if too_deep(value):
        raise ValueError(_TOO_DEEP)
    return value


def too_deep(value: Any, levels: int = DEEPEST) -> bool:
    """Whether more than `levels` lists and objects stand inside each other in plain data, however many they are."""
    layer = [value]
    for _ in range(levels):
        layer = [one for outer in layer if isinstance(outer, dict | list) for one in _members(outer)]
        if not layer:
            return False
    return any(isinstance(one, dict | list) for one in layer)


def _members(outer: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return outer.values() if isinstance(outer, dict) else outer


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the name {name[:_SHOWN_CHARS]!r} stands twice")
        fields[name] = value
    return fields


def misfit(value: Any, schema: object, at: str = "") -> str | None:
    """What of `value` does not fit `schema`, in words that a model can act on; None where nothing is known to be wrong.

    Never stricter than the schema: what is not understood (`$ref`, patterns, bounds, unknown types) lets everything
    pass, an integer may be written as 3.0, and null stands for a field that need not be there.

    Args:
        value: as JSON has it.
        schema: a JSON schema.
        at: where `value` stands, for the message; "" = it is the whole.
    """
    # Beside a `$ref` older drafts ignore everything else.
    if not isinstance(schema, Mapping) or "$ref" in schema or (value is None and schema.get("nullable") is True):
        return None
    return (
        _wrong_type(value, schema.get("type"), at)
        or _wrong_choice(value, schema, at)
        or _wrong_branch(value, schema, at)
        or (_wrong_fields(value, schema, at) if isinstance(value, dict) else None)
        or (_wrong_items(value, schema.get("items"), at) if isinstance(value, list) else None)
    )


def _wrong_type(value: Any, types: object, at: str) -> str | None:
    wanted = [types] if isinstance(types, str) else types
    if not isinstance(wanted, list) or not wanted or not all(isinstance(one, str) and one in _TYPES for one in wanted):
        return None
    if any(_is(value, one) for one in wanted):
        return None
    return f"{_named(at)} must be {' or '.join(_TYPES[one] for one in wanted)}, not {_shown(value)}"


def _is(value: Any, type_: str) -> bool:
    match type_:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "integer":
            return _is(value, "number") and (isinstance(value, int) or value.is_integer())
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return value is None


def _wrong_choice(value: Any, schema: Mapping[str, Any], at: str) -> str | None:
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(allowed, list) or not allowed or any(_same(value, one) for one in allowed):
        return None
    shown = ", ".join(map(_shown, allowed[:_SHOWN_VALUES])) + (", ..." if len(allowed) > _SHOWN_VALUES else "")
    return f"{_named(at)} must be one of {shown}, not {_shown(value)}"


def _same(one: Any, other: Any) -> bool:
    # JSON's true is no 1, and its 1.0 is one.
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _wrong_branch(value: Any, schema: Mapping[str, Any], at: str) -> str | None:
    for name in ("anyOf", "oneOf"):
        branches = schema.get(name)
        if isinstance(branches, list) and branches:
            wrong = [misfit(value, branch, at) for branch in branches]
            if all(wrong):
                return wrong[0]
    return _first(misfit(value, branch, at) for branch in _listed(schema.get("allOf")))


def _wrong_fields(value: dict[str, Any], schema: Mapping[str, Any], at: str) -> str | None:
    required = [name for name in _listed(schema.get("required")) if isinstance(name, str)]
    missing = [name for name in required if name not in value]
    if missing:
        return f"{', '.join(_named(_under(at, name)) for name in missing[:_SHOWN_VALUES])} must be given"
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return None
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        for name in value:
            if name not in properties:
                known = ", ".join(list(map(str, properties))[:_SHOWN_VALUES]) or "none"
                return f"there is no {_named(_under(at, name))}; known are: {known}"
    return _first(
        misfit(one, properties[name], _under(at, name))
        for name, one in value.items()
        if name in properties and (one is not None or name in required)
    )


def _wrong_items(value: list[Any], items: object, at: str) -> str | None:
    if not isinstance(items, Mapping):
        return None
    return _first(misfit(one, items, f"{at}[{place}]") for place, one in enumerate(value))


def _first(found: Iterable[str | None]) -> str | None:
    return next((one for one in found if one), None)


def _listed(given: object) -> list[Any]:
    return given if isinstance(given, list) else []


def _under(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _named(at: str) -> str:
    return repr(at[:_SHOWN_CHARS]) if at else "the whole"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
