"""Strict JSON, and values held against a schema: what is wrong is said, what is not understood passes."""

import pytest

from runtime.json_values import misfit, read_json, too_deep

LONG = "k" * 5000


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "Expecting"),
        ("{} {}", "Extra data"),
        ("{'a': 1}", "double quotes"),
        ("NaN", "NaN is no JSON value"),
        ("[" * 65 + "]" * 65, "more than 64 lists and objects"),
        ("[" * 900 + "]" * 900, "more than 64 lists and objects"),
        ("[" * 100_000, "more than 64 lists and objects"),
        ("[-Infinity]", "-Infinity is no JSON value"),
        ('{"a": 1, "a": 1}', "the name 'a' stands twice"),
        ('{"x": {"a": 1, "b": 2, "b": 3}}', "the name 'b' stands twice"),
        (f'{{"{LONG}": 1, "{LONG}": 2}}', "stands twice"),
        ("{" + "".join(f'"k{n}": 1, ' for n in range(200_000)) + '"k199999": 1}', "the name 'k199999' stands twice"),
    ],
)
def test_what_is_no_single_json_value(text, told):
    """It is refused with what is wrong, in a few words."""
    with pytest.raises(ValueError, match=told) as caught:
        read_json(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("levels", "deep"), [(0, False), (1, False), (64, False), (65, True), (1000, True)])
def test_how_deep_is_too_deep(levels, deep):
    """64 lists and objects may stand inside each other, and no more, whatever the parser can follow."""
    value = 3
    for level in range(levels):
        value = [value, 1] if level % 2 else {"a": 1, "b": value}
    assert too_deep(value) is deep


OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["n"]}

WRONG = {
    "a missing field": ({}, OBJECT, "'n' must be given"),
    "several missing": ({}, {"required": ["a", "b"]}, "'a', 'b' must be given"),
    "a field of another type": ({"n": "1"}, OBJECT, "'n' must be an integer, not \"1\""),
    "null where one is required": ({"n": None}, OBJECT, "'n' must be an integer, not null"),
    "a fraction": ({"n": 1.5}, OBJECT, "'n' must be an integer, not 1.5"),
    "true for a number": (True, {"type": "number"}, "the whole must be a number, not true"),
    "a number for true": (1, {"type": "boolean"}, "the whole must be true or false, not 1"),
    "another type than any": ("x", {"type": ["integer", "null"]}, 'the whole must be an integer or null, not "x"'),
    "a list for an object": ([], OBJECT, "the whole must be an object, not []"),
    "a value that is not allowed": (3, {"enum": [1, 2]}, "the whole must be one of 1, 2, not 3"),
    "true for 1": (True, {"enum": [1]}, "the whole must be one of 1, not true"),
    "another constant": ("b", {"const": "a"}, 'the whole must be one of "a", not "b"'),
    "inside an object": ({"a": {"n": "x", "s": "x"}}, {"properties": {"a": OBJECT}}, "'a.n' must"),
    "inside a list": ([1, "x"], {"items": {"type": "integer"}}, "'[1]' must be an integer"),
    "none of several": ("x", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "must be an integer"),
    "not one of several": ("x", {"oneOf": [{"type": "integer"}, {"type": "null"}]}, "must be an integer"),
    "not all": (3, {"allOf": [{"type": "integer"}, {"enum": [1]}]}, "must be one of 1"),
    "a field that is none": (
        {"n": 1, "m": 2},
        OBJECT | {"additionalProperties": False},
        "there is no 'm'; known are: n, s",
    ),
}


@pytest.mark.parametrize(("value", "schema", "told"), WRONG.values(), ids=WRONG)
def test_a_misfit_is_named(value, schema, told):
    """Where it is, what is wanted, and what is there."""
    assert told in misfit(value, schema)


FITTING = {
    "all well": ({"n": 1, "s": "x"}, OBJECT),
    "3.0 for an integer": ({"n": 3.0}, OBJECT),
    "an integer for a number": (3, {"type": "number"}),
    "null for what need not be there": ({"n": 1, "s": None}, OBJECT),
    "null where it is allowed": (None, {"type": "string", "nullable": True}),
    "1.0 for 1": (1.0, {"enum": [1]}),
    "another field": ({"n": 1, "m": 2}, OBJECT),
    "another field that a pattern may allow": (
        {"x_a": 1},
        {"properties": {}, "additionalProperties": False, "patternProperties": {"^x_": {}}},
    ),
    "one of several": (None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    "bounds": (7, {"type": "integer", "maximum": 3}),
    "a pattern": ("x", {"type": "string", "pattern": "^y"}),
    "a reference": ("x", {"$ref": "#/$defs/a", "type": "integer"}),
    "a branch that is a reference": ("x", {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/a"}]}),
    "a type that nobody knows": (3, {"type": "dict"}),
    "types that are no list": (3, {"type": {"a": 1}}),
    "no types": (3, {"type": []}),
    "an empty list of values": (3, {"enum": []}),
    "values that are no list": (3, {"enum": "abc"}),
    "names that are no list": ({}, {"required": "n"}),
    "fields that are no object": ({"n": 3}, {"properties": ["n"]}),
    "a schema that is true": (3, True),
    "no schema": (3, None),
    "an empty schema": (3, {}),
    "items of another form": ([3], {"items": [{"type": "string"}]}),
}


@pytest.mark.parametrize(("value", "schema"), FITTING.values(), ids=FITTING)
def test_never_stricter_than_the_schema(value, schema):
    """What fits, what may be left out, and what is not understood passes."""
    assert misfit(value, schema) is None


def test_a_message_is_short():
    """Whatever the value and the schema hold."""
    told = misfit({"k" * 1000: "v" * 1000}, {"properties": {"k" * 1000: {"enum": ["e" * 1000] * 1000}}})
    assert len(told) < 2000
