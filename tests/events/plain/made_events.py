"""Hypothesis strategies for events of every kind, from the structs' own annotations, and for ids and JSON.

What a type cannot say of an event (`events.consistency`) is put right afterwards, by `consistent_events`.
"""

from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from consistent_events import consistent
from hypothesis import strategies as st
from plain_logs import at_dot, vector

from events.ids import MemoryId
from events.kinds import KINDS, AnyEvent
from events.vectors import Vector

#: text with all that is allowed in JSON; without lone surrogates, which `surrogates` adds
texts = st.text(max_size=20)
surrogates = st.text(st.one_of(st.characters(), st.characters(categories=["Cs"])), max_size=20)
integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
#: what JSON can hold
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), integers, floats, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)

runs = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
streams = st.one_of(st.just("run"), st.just("projector"), st.integers(0, 10**6).map(lambda t: f"episode-{t}"))
memories = st.builds(
    lambda origin, stage, t, k: f"{origin}{stage}-{t}{k}",
    st.one_of(st.just(""), st.sampled_from(("a", "a-1", "a1", "b-10")).map("{}.".format), runs.map("{}.".format)),
    st.sampled_from(("planning", "execution")),
    st.integers(0, 120),
    st.one_of(st.just(""), st.integers(0, 12).map("-{}".format)),
)
#: components x 2^24 of unit vectors
units = st.builds(at_dot, st.integers(0, 2**48), dim=st.integers(4, 6), turn=st.integers(0, 3), side=st.integers(0, 3))


@cache
def made(kind: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation: a struct, union, literal, list, dict, new type or plain type."""
    if kind is Vector:
        return units.map(lambda numbers: msgspec.convert(vector(numbers), Vector))
    plain: dict[Any, st.SearchStrategy[Any]] = {
        Any: json_values,
        MemoryId: memories,
        str: texts,
        int: integers,
        float: floats,
        bool: st.booleans(),
        type(None): st.none(),
        msgspec.UnsetType: st.just(msgspec.UNSET),
        dict: st.dictionaries(texts, json_values, max_size=3),
    }
    if kind in plain:
        return plain[kind]
    if hasattr(kind, "__supertype__"):
        return made(kind.__supertype__)
    origin, parts_of = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return within(parts_of[0], parts_of[1])
    if origin is Literal:
        return st.sampled_from(parts_of)
    if origin is list:
        return st.lists(made(parts_of[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(made(parts_of[0]), made(parts_of[1]), max_size=2)
    if origin is Union or parts_of:
        return st.one_of([made(part) for part in parts_of])
    types = {one.name: one.type for one in msgspec.structs.fields(kind)}
    built = st.builds(kind, **{name: made(part) for name, part in types.items()})
    return built.map(consistent) if kind in KINDS.values() else built


def within(kind: Any, meta: msgspec.Meta) -> st.SearchStrategy[Any]:
    """Values of a type inside its plain range."""
    kind = getattr(kind, "__supertype__", kind)
    low, high = meta.ge, meta.le
    if kind is int:
        return st.integers(-(2**63) if low is None else int(low), 2**63 - 1 if high is None else int(high))
    if kind is float:
        return st.floats(low, high, allow_nan=False, allow_infinity=False)
    assert meta.pattern is not None, meta
    return st.from_regex(meta.pattern.replace("$", r"\Z"))


def events() -> st.SearchStrategy[AnyEvent]:
    """An event of any kind."""
    return st.one_of([made(kind) for kind in KINDS.values()])
