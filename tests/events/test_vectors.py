"""Fixed-point vectors: rounding, refusals, exact products."""

import math
import random

import numpy as np
import plain_fold
import plain_logs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from events.errors import NotAUnitVector
from events.vectors import Vector, fixed_point, of_raw


def test_components_are_rounded_half_to_even() -> None:
    """(0.6, 0.8) x 2^24 = 10066329.6, 13421772.8; a half goes to the even neighbour, on both sides of zero."""
    assert fixed_point([3.0, 4.0]).array().tolist() == [10066330, 13421773]
    half, odd = 2.5 / 2**24, -3.5 / 2**24
    # the length differs from 1 by 2^-46 only, which does not move 2.5 off the tie once rounded to float64 ...
    rest = math.sqrt(1 - half * half - odd * odd)
    assert fixed_point([rest, half, odd]).array().tolist() == [2**24, 2, -4]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300).filter(lambda xs: sum(x * x for x in xs) > 1e-6))
def test_every_embedding_becomes_a_unit_vector(components: list[float]) -> None:
    """Whatever the length: the result passes its own check, and its integers are what a notebook would compute."""
    made = fixed_point(components)
    assert made.exact().tolist() == list(made.array())
    assert made.dim == len(components)
    assert len(made.q24) == 4 * made.dim


@pytest.mark.parametrize("components", [[], [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [1e-200, 0.0]])
def test_what_has_no_direction_is_refused(components: list[float]) -> None:
    """Empty, zero, not finite, or vanishing when squared."""
    with pytest.raises(NotAUnitVector):
        fixed_point(components)


@pytest.mark.parametrize(
    ("dim", "parts"),
    [(2, [2**24]), (0, []), (1, [2**23]), (2, [2**24, 2**22]), (3, [-(2**31)] * 3), (-1, [2**24])],
)
def test_what_is_no_unit_vector_is_refused(dim: int, parts: list[int]) -> None:
    """Another number of bytes than dimensions, none at all, or another length than 1."""
    raw = np.array(parts, dtype="<i4").tobytes()
    with pytest.raises(NotAUnitVector):
        replace(of_raw(raw), dim=dim).exact()


@pytest.mark.parametrize("text", ["*AAA", "AAA", "AAAA====", "AAAAAA=A", "é" * 8])
def test_what_is_no_base64_is_refused(text: str) -> None:
    """Another alphabet, length or padding."""
    with pytest.raises(NotAUnitVector):
        _ = Vector(dim=1, packed=text).q24


@given(st.binary(min_size=4, max_size=40).filter(lambda raw: len(raw) % 4 == 0), st.integers(-1, 1))
def test_a_text_fits_its_dimensions(raw: bytes, more: int) -> None:
    """What is told from the text's length alone: as long as base64 of four bytes a dimension."""
    vector = of_raw(raw)
    assert vector.q24 == raw
    assert replace(vector, dim=vector.dim + 3 * more).fits == (more == 0)


@given(st.integers(2, 400), st.integers(0, 10**6))
def test_a_float64_product_is_the_exact_integer(dim: int, seed: int) -> None:
    """In any order of summation the product of two unit vectors is the integer that Python gets."""
    dice = random.Random(seed)  # noqa: S311 - test data
    a, b = (fixed_point([dice.gauss(0, 1) for _ in range(dim)]) for _ in range(2))
    exact = plain_fold.dot(a.array().tolist(), b.array().tolist())
    assert int(a.exact() @ b.exact()) == exact
    assert int(a.exact()[::-1] @ b.exact()[::-1]) == exact
    assert float(a.exact() @ b.exact()) == exact


def test_the_anchor_is_a_unit_vector_of_the_format() -> None:
    """The vectors that the tables use pass the product's own check."""
    for components in (plain_logs.anchor(), plain_logs.at_dot(plain_logs.MERGE), plain_logs.at_dot(0)):
        of_raw(np.array(components, dtype="<i4").tobytes()).exact()
