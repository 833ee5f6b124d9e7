"""Policy parameters: exact decimals in, the same decimals in the header, refusals that name what is wrong."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_fold import DEFAULTS

from events import policies
from events.errors import BadInput, UnknownName
from events.kinds import PolicyConfig
from events.parameters import Parameters


def test_the_defaults_are_those_of_the_format() -> None:
    """By name and value as docs/events.md lists them, decimals as strings and whole numbers as integers."""
    assert Parameters().recorded() == {**DEFAULTS, "lint_min": 20, "lint_max": 800}


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "lambda": st.decimals(0, 100, places=6),
            "alpha": st.decimals(0, 9, places=9),
            "beta": st.decimals(0, "0.999", places=3),
            "floor": st.decimals(-1, 1, places=12),
            "theta_merge": st.decimals(-1, 1, places=12),
            "theta_prune": st.decimals(-1, 1, places=1),
            "novelty": st.decimals(0, 2, places=2),
            "top_n": st.integers(1, 50),
            "n_min": st.integers(1, 9),
            "near_tie": st.sampled_from(("score", "off", "similarity")),
            "merge_text": st.sampled_from(("append", "rewrite")),
        },
    )
)
def test_what_a_header_records_reads_back(given_values: dict[str, object]) -> None:
    """recorded() and changed() undo each other exactly, whatever the decimals."""
    given_text = {name: str(value) for name, value in given_values.items()}
    parameters = Parameters().changed(given_text)
    assert Parameters().changed(parameters.recorded()) == parameters
    for name, value in given_text.items():
        if name not in ("near_tie", "merge_text"):
            assert Fraction(parameters.recorded()[name]) == Fraction(value)


def test_a_float_stands_for_the_decimal_it_prints_as() -> None:
    """0.1 in a configuration is one tenth, not the nearest binary fraction."""
    assert Parameters().changed({"floor": 0.1}).floor == Fraction(1, 10)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("floor", "1.01"), ("floor", "nan"), ("floor", "inf"), ("floor", "a third"), ("floor", "1/3"), ("floor", ""),
        ("beta", 1), ("beta", "-0.1"), ("top_n", 0), ("top_n", "2.5"), ("n_min", 0), ("lambda", -1), ("bullets", -1),
        ("margin", True), ("theta_conf", "1.0001"), ("near_tie", "loud"), ("near_tie", 1), ("lint_max", 3),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_by_name(name: str, value: int | str) -> None:
    """Out of range, no decimal, or no mode of that parameter."""
    with pytest.raises(BadInput, match=name):
        Parameters().changed({name: value})


@pytest.mark.parametrize("name", ["theta", "lambda_", "Floor", ""])
def test_an_unknown_parameter_says_what_is_known(name: str) -> None:
    """The error lists the names, `lambda` as it is written."""
    with pytest.raises(UnknownName, match=r"alpha.*lambda, .*theta_prune") as error:
        Parameters().changed({name: 1})
    assert error.value.name == name


def test_policies_are_found_by_name() -> None:
    """`credit` and `outcome` are there, others are refused with the list; a header of another version too."""
    assert {"credit", "outcome"} <= set(policies.names())
    for name in policies.names():
        policy = policies.load(name)
        assert policies.recorded(policy.config()) == policy
        newer = PolicyConfig(name=name, version=policy.version + 1, parameters={})
        with pytest.raises(BadInput, match=rf"policy {name} is version"):
            policies.recorded(newer)
    with pytest.raises(UnknownName, match=r"unknown policy 'praise'.*credit, .*outcome"):
        policies.load("praise")
