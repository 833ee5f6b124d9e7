"""Canonical JSON by msgspec's encoder, many times as fast, where both are known to give the same bytes.

They differ in floats that are whole, very small, very large or no number, and in lone surrogates: the first are looked
for, and the encoder itself refuses the others.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from events.kinds import Abandoned, Diagnosed, Executed, Folded, Planned, Retrieved

_ENCODER = msgspec.json.Encoder(order="sorted")
#: plain data that is written alike, text without lone surrogates
_LEAVES = frozenset({str, int, bool, type(None)})
_NAMES = frozenset({str})
#: kinds of events that hold no float, and nothing that may be anything
_FLOATLESS = frozenset({Abandoned, Diagnosed, Executed, Folded, Planned})
#: kinds that `typed_json` can write
TYPED = _FLOATLESS | {Retrieved}
#: a float between them is written in the same digits, without an exponent; up to there a whole one is an integer
_SMALL, _LARGE, _WHOLE = 1e-4, 1e15, 2.0**53


def exact_json(value: Any, deepest: int) -> bytes | None:
    """The canonical bytes of `value`; None where it has to be cleaned first, or cannot be written at all.

    Args:
        value: a struct or plain data.
        deepest: how many lists and objects may stand inside each other.
    """
    try:
        plain = msgspec.to_builtins(value)
        if type(plain) not in _LEAVES and not _settle(plain, deepest):
            return None
        return _ENCODER.encode(plain)
    except (ValueError, OverflowError, TypeError, RecursionError):
        return None


def typed_json(decoded: Any) -> bytes | None:
    """The canonical bytes of an event that a typed decode has made, the encoder's own; None where they may differ.

    Its numbers are what its fields say, so of a kind without a float and without a field for anything nothing is to be
    looked at, and of `retrieved` its candidates' floats.
    """
    if type(decoded) is Retrieved:
        decoded = _with_settled_floats(decoded)
    elif type(decoded) not in _FLOATLESS:
        return None
    return _ENCODER.encode(decoded) if decoded is not None else None


def _with_settled_floats(event: Retrieved) -> Retrieved | None:
    """`event` with whole floats as integers; None where another one is written otherwise."""
    candidates = event.candidates
    for place, one in enumerate(candidates):
        found = [_settled_float(value) for value in (one.similarity, one.adjusted, one.score)]
        if None in found:
            return None
        if int in map(type, found):
            if candidates is event.candidates:
                candidates = list(candidates)
            candidates[place] = replace(one, similarity=found[0], adjusted=found[1], score=found[2])
    return event if candidates is event.candidates else replace(event, candidates=candidates)


def _settled_float(value: float) -> float | None:
    """A whole number as an integer, another one as it is; None where the encoder writes it otherwise."""
    if value.is_integer() and -_WHOLE <= value <= _WHOLE:
        return int(value)
    return value if _SMALL <= abs(value) < _LARGE else None


def _settle(value: Any, levels: int) -> bool:
    """Bring a list or object of plain data, which nobody else holds, into canonical form; False where that fails."""
    inner = value
    if type(value) is dict:
        if not _NAMES.issuperset(map(type, value)):
            return False
        inner = value.values()
    elif type(value) is not list and type(value) is not tuple:
        return False
    if levels > 0 and _LEAVES.issuperset(map(type, inner)):
        return True  # most hold nothing that is to be looked at, which is said without a loop of ours
    return levels > 0 and type(value) is not tuple and _settled(value, levels - 1)


def _settled(value: Any, levels: int) -> bool:
    """Bring what stands in a list or object into canonical form, floats in their places."""
    for place, one in value.items() if type(value) is dict else enumerate(value):
        kind = type(one)
        if kind is float:
            if (settled := _settled_float(one)) is None:
                return False
            value[place] = settled
        elif kind not in _LEAVES and not _settle(one, levels):
            return False
    return True
