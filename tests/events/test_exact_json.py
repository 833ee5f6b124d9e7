"""The short way to canonical JSON gives the bytes of the long one, or nothing."""

import json
from typing import Any

import made_events
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from events.codec import canonical, drafted
from events.exact_json import TYPED, exact_json, typed_json
from events.ids import BankVersion, MemoryId
from events.kinds import AnyEvent, Candidate, Evaluator, Planned, Query, Retrieved, Scored, Usage
from events.vectors import fixed_point

DEEPEST = 64

TEXT = st.text(st.characters(exclude_categories=[]), max_size=6) | st.sampled_from(
    ["", "a", "ab", "b", "\x7f", "\x1f\b\f\n\r\t\"\\/", "é", "\U0001f600", "\uffff", "\ud800", "\u2028"]
)  # fmt: skip
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(TEXT, inner, max_size=5)
    ),
    max_leaves=20,
)


def the_long_way(value: Any) -> bytes:
    """The definition: the standard library's bytes over cleaned data."""
    return json.dumps(cleaned(value), sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def cleaned(value: Any) -> Any:
    """Text without lone surrogates; a whole float as an integer."""
    match value:
        case str():
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case float() if value.is_integer() and abs(value) <= 2.0**53:
            return int(value)
        case dict():
            return {cleaned(name): cleaned(one) for name, one in value.items()}
        case list() | tuple():
            return [cleaned(one) for one in value]
        case _:
            return value


@given(PLAIN)
def test_the_bytes_are_those_of_the_long_way(value: Any) -> None:
    """For any plain data the same bytes or none, and the data stays as it was."""
    before = repr(value)
    found = exact_json(value, DEEPEST)
    assert found is None or found == the_long_way(value)
    assert repr(value) == before


@given(st.floats() | st.floats(1e-5, 1e-3) | st.floats(1e14, 1e17) | st.integers(-9, 9).map(float))
def test_floats_are_written_alike(value: float) -> None:
    """In the digits of the standard library, at every size, or not at all."""
    found = exact_json([value, {"a": -value}], DEEPEST)
    assert found is None or found == the_long_way([value, {"a": -value}])


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), st.integers(-9, 9), max_size=12))
def test_keys_are_in_the_order_of_their_code_points(value: dict[str, int]) -> None:
    """As the standard library sorts them, and this way is taken."""
    assert exact_json(value, DEEPEST) == the_long_way(value)


@pytest.mark.parametrize(
    "value",
    [{"a": float("nan")}, [float("-inf")], {"a": [{"b": 1e-5}]}, [1e300], {1: "a"}, {"a": object()}, {"a": "\ud800"},
     {"\udfff": 1}, 0.5],
)  # fmt: skip
def test_what_has_to_be_cleaned_goes_the_long_way(value: Any) -> None:
    """Floats of another form wherever they stand, surrogates, keys that are no text, what JSON has no form for."""
    assert exact_json(value, DEEPEST) is None


def test_what_is_nested_too_deep_goes_the_long_way() -> None:
    """Which says so."""
    value: Any = "x"
    for _ in range(3):
        value = [value]
    assert exact_json(value, 3) == b'[[["x"]]]'
    assert exact_json(value, 2) is None


@pytest.mark.parametrize("kind", sorted(TYPED, key=str), ids=lambda one: one.KIND)
@given(data=st.data())
def test_typed_events_are_written_as_all_are(kind: type[AnyEvent], data: st.DataObject) -> None:
    """A draft holds the canonical bytes, and what is read of them, where a kind has a way of its own."""
    event = data.draw(made_events.made(kind))
    made, read = drafted(event)
    assert made.data == canonical(event)
    assert read == msgspec.json.decode(made.data, type=kind)
    assert typed_json(read) in (made.data, None)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(1e-5, 1e-3) | st.sampled_from([-0.0, 0.0, 3.0]))
def test_floats_of_candidates_are_written_alike(value: float) -> None:
    """At every size, or not at all."""
    query = Query(text="", vector=fixed_point([0.6, 0.8]))
    one = Candidate(
        id=MemoryId("planning-1"), dot=0, similarity=0.0, delta_sum=0, n=0, adjusted=value, score=-value, rank=1,
        chosen=True,
    )  # fmt: skip
    event = Retrieved(stage="planning", bank_version=BankVersion(0), query=query, candidates=[one, one], source="exact")
    assert typed_json(event) in (canonical(event), None)


def test_only_what_is_known_by_its_type_has_a_way_of_its_own() -> None:
    """No field of those kinds may hold a float, or just anything, but for the floats of candidates."""
    known = (inspect.StrType, inspect.IntType, inspect.BoolType, inspect.NoneType, inspect.LiteralType)
    seen: list[tuple[type, str]] = []

    def look(kind: inspect.Type, place: tuple[type, str]) -> None:
        match kind:
            case inspect.StructType():
                for one in kind.fields:
                    look(one.type, (kind.cls, one.name))
            case inspect.UnionType():
                for part in kind.types:
                    look(part, place)
            case inspect.ListType():
                look(kind.item_type, place)
            case inspect.Metadata():
                look(kind.type, place)
            case _:
                if not isinstance(kind, known):
                    seen.append(place)

    for kind in TYPED:
        look(inspect.type_info(kind), (kind, ""))
    assert sorted(name for _, name in seen) == ["adjusted", "score", "similarity"]
    assert {kind for kind, _ in seen} == {Candidate}


def test_events_go_the_short_way() -> None:
    """With floats and without: the bytes are those of the long way."""
    vector = fixed_point([0.6, 0.8])
    candidate = Candidate(
        id=MemoryId("planning-1"),
        dot=1,
        similarity=0.25,
        delta_sum=0,
        n=0,
        adjusted=0.0,
        score=0.375,
        rank=1,
        chosen=True,
    )
    query = Query(text="ü", vector=vector)
    for event in (
        Planned(plan="ü", usage=Usage(prompt_tokens=1), calls=["a"]),
        Retrieved(stage="planning", bank_version=BankVersion(0), query=query, candidates=[candidate], source="exact"),
        Scored(success=True, reward=1.0, evaluator=Evaluator(name="e", version="1"), breakdown={"a": [0.5, None]}),
    ):
        assert exact_json(event, DEEPEST) == the_long_way(msgspec.to_builtins(event)) == canonical(event)
