"""The JSON object that an answer holds, wherever in its text it stands: certain, or refused with the reason.

An object is read whole or not at all: nothing inside one that is broken or cut off is taken for an answer.
"""

import json
import re
from collections.abc import Collection, Iterator
from decimal import Decimal
from typing import Any

from runtime.errors import UnreadableAnswer

#: how deep an answer may nest
_DEEPEST = 32
#: how many objects an answer may hold
_OBJECTS = 64
#: how many braces of prose around it may stay open; for each, all that follows is looked through
_OPEN_BRACES = 4
#: how deep the answer may stand in objects that hold nothing else
_WRAPPINGS = 4

#: spaces that the model's tokens know and JSON does not
_SPACE = "\\s\u200b\u2060\ufeff"
_STRING = r'"(?:[^"\\]++|\\.?)*+(?:"|\Z)'
_QUOTES = "\"'“”‘’"
#: braces in prose begin differently; quotation marks that JSON does not have, or none, begin an object that is broken
_START = re.compile(rf"\{{(?=[{_SPACE}]*+(?:[{_QUOTES}}}]|\w++[{_SPACE}]*+:))")
#: no prose, though it does not end: a quotation mark, or a name and an object or a list of them
_BEGUN = re.compile(rf"\{{[{_SPACE}]*+(?:[{_QUOTES}]|\w++[{_SPACE}]*+:[{_SPACE}\[]*+\{{)")
_BRACKET = re.compile(rf"{_STRING}|[{{}}\[\]]", re.DOTALL)
_PART = re.compile(rf"{_STRING}|[{_SPACE}]++|,|[^\",{_SPACE}]++", re.DOTALL)
_BLANK = re.compile(rf"[{_SPACE}]++")
#: the end of a value; and the other choice behind it, in the form that our prompts show
_CHOICE = re.compile(
    rf"(?:{_STRING}|[}}\]]|\b(?:null|true|false|[0-9]+)\b)"
    rf'(?P<other>[{_SPACE}]*+(?:\||or\b)[{_SPACE}]*+(?=["{{\[0-9-]|(?:null|true|false)\b))?',
    re.DOTALL,
)
#: how a schema describes a field
_DESCRIBED = frozenset({"type", "anyOf", "enum", "$ref"})


class _Twice(ValueError):
    """A field that stands twice and says different things: nobody can say which is meant."""


class _NoJson(ValueError):
    """What JSON does not have, or more of it than an answer needs."""


def find_object(text: str, *names: str) -> dict[str, Any]:
    """The one object in `text` that has one of `names`; numbers with a point are `Decimal`, as written.

    Beside one that has all of `names`, others may say a part of the same; the form that a prompt shows may stand there,
    but nothing broken that has one of `names`.

    Raises:
        UnreadableAnswer: none or several; `kind` is `empty`, `no_object`, `schema_echo`, `cut`, `broken`, `duplicate`
            or `several`.
    """
    if not text.strip():
        raise UnreadableAnswer("empty", "it is empty.")
    found, none = _candidates(text, names)
    if len(found) > 1:
        whole = [one for one in found if all(name in one for name in names)]
        if len(whole) == 1 and all(_says_a_part(one, whole[0]) for one in found):
            found = whole
    if len(found) > 1:
        raise UnreadableAnswer("several", "it holds several objects that differ.")
    if not found:
        raise none
    return found[0]


def _says_a_part(part: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Whether the two differ in no field that both have."""
    return all(whole[name] == value for name, value in part.items() if name in whole)


def _candidates(text: str, names: Collection[str]) -> tuple[list[dict[str, Any]], UnreadableAnswer]:
    """The different objects of `text` that have one of `names`; what to say where there is none."""
    found: list[dict[str, Any]] = []
    wanted = " or ".join(f'"{name}"' for name in names)
    none = UnreadableAnswer("no_object", f"it holds no JSON object with {wanted}.")
    broken: UnreadableAnswer | None = None
    for piece in _pieces(text, names):
        try:
            value = _parsed(piece)
        except _Twice as error:
            raise UnreadableAnswer("duplicate", f"the field {str(error)[:40]!r} stands twice and differs.") from error
        except (ValueError, ArithmeticError) as error:
            why = str(error) if isinstance(error, json.JSONDecodeError | _NoJson) else "a number is too large"
            none = UnreadableAnswer("broken", f"the JSON object cannot be read: {why}.")
            if any(choice["other"] for choice in _CHOICE.finditer(piece)):
                none = UnreadableAnswer("schema_echo", "it is the form itself, with choices that are not made.")
            elif _mentions(piece, names):
                broken = none
            continue
        if _is_schema(value, names):
            none = UnreadableAnswer("schema_echo", "it is the schema itself, not an object that fits it.")
        elif (answer := _unwrapped(value, names)) is not None and answer not in found:
            found.append(answer)
    if broken is not None:
        # Nobody knows whether it says the same as what stands beside it.
        return [], broken
    return found, none


def _mentions(piece: str, names: Collection[str]) -> bool:
    """Whether something that is no JSON has a field that is called like one of `names`."""
    return re.search(rf"\b(?:{'|'.join(names)})[{_QUOTES}]?[{_SPACE}]*+:", piece) is not None


def _pieces(text: str, names: Collection[str]) -> Iterator[str]:
    """The outermost objects of `text`, unread; a brace that does not end is prose where nothing says otherwise.

    Raises:
        UnreadableAnswer: one of them does not end, or there are too many to look at.
    """
    at = open_braces = 0
    for _ in range(_OBJECTS):
        start = _START.search(text, at)
        if start is None:
            return
        depth, at = 0, start.start()
        own: list[str] = []
        for bracket in _BRACKET.finditer(text, at):
            if depth == 1:
                own.append(text[at : bracket.end()])
            depth += (bracket[0] == "{") - (bracket[0] == "}")
            at = bracket.end()
            if depth == 0 and bracket[0] == "}":
                yield text[start.start() : at]
                break
        else:
            if depth == 1:
                own.append(text[at:])
            open_braces += 1
            if open_braces > _OPEN_BRACES or _BEGUN.match(text, start.start()) or _mentions("".join(own), names):
                raise UnreadableAnswer("cut", "its JSON object is not complete.")
            at = start.end()
    if _START.search(text, at):
        raise UnreadableAnswer("several", f"it holds more than {_OBJECTS} objects.")


def _parsed(piece: str) -> dict[str, Any]:
    """Raises: ValueError, ArithmeticError: it is no JSON, too deep, or too large a number."""
    depth = deepest = 0
    for bracket in _BRACKET.finditer(piece):
        depth += (bracket[0] in "{[") - (bracket[0] in "}]")
        deepest = max(deepest, depth)
    if deepest > _DEEPEST:
        raise _NoJson(f"it nests deeper than {_DEEPEST} levels")
    # Not strict: a line break inside a text is certain.
    decoder = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_once, strict=False)
    value: dict[str, Any] = decoder.decode(_plain(piece))
    return value


def _plain(piece: str) -> str:
    """`piece` with JSON's own spaces between its parts, and no comma after a last element."""
    parts = [" " if _BLANK.fullmatch(one) else one for one in _PART.findall(piece)]
    solid = [place for place, part in enumerate(parts) if part != " "]
    for before, comma, after in zip(solid, solid[1:], solid[2:], strict=False):
        if parts[comma] == "," and parts[after][0] in "}]" and parts[before][-1] not in ",[{:":
            parts[comma] = ""
    return "".join(parts)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        # 1 is no true.
        if name in fields and (fields[name] != value or isinstance(fields[name], bool) != isinstance(value, bool)):
            raise _Twice(name)
        fields[name] = value
    return fields


def _no_constant(name: str) -> Any:
    raise _NoJson(f"{name} is no JSON value")


def _unwrapped(value: dict[str, Any], names: Collection[str]) -> dict[str, Any] | None:
    """The object with one of `names`: `value`, or what stands in it and nothing beside."""
    for _ in range(_WRAPPINGS):
        if any(name in value for name in names):
            return value
        if len(value) == 1:
            (inner,) = value.values()
        elif "name" in value and len(value) == 2:
            inner = value.get("arguments", value.get("parameters"))
        else:
            return None
        if isinstance(inner, list) and len(inner) == 1:
            (inner,) = inner
        if not isinstance(inner, dict):
            return None
        value = inner
    return None


def _is_schema(value: dict[str, Any], names: Collection[str]) -> bool:
    """Whether `value` describes the fields instead of having them."""
    for _ in range(_WRAPPINGS):
        properties = value.get("properties")
        if isinstance(properties, dict):
            return any(name in properties for name in names)
        if any(isinstance(value.get(name), dict) and _DESCRIBED & value[name].keys() for name in names):
            return True
        inner = [one for one in value.values() if isinstance(one, dict)]
        if len(inner) != 1:
            return False
        value = inner[0]
    return False
