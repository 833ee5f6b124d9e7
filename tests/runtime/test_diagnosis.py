"""What a reflection's answer says: every row of the tables, any number of them together, and no text that does harm."""

import json
import re
from collections.abc import Iterable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from runtime.diagnosis import (
    REFUSALS,
    TOLERANCES,
    read_diagnosis,
    read_experiences,
    read_merged,
)
from runtime.errors import UnreadableAnswer
from runtime.json_objects import find_object
from runtime.label_words import LABEL_OF, LABEL_WORDS

INDICES = {"P1": "planning-3", "P2": "planning-1", "E1": "execution-3"}
LESSON = {
    "scenario": '"A light has to be switched."',
    "experience": '"Name the room exactly as the user did."',
    "concrete": "true",
    "actionable": "true",
}
#: the answer as asked for, field by field as written
PLAIN = {
    "evidence": '"The plan was followed."',
    "label": '"execution"',
    "confidence": "0.8",
    "planning": "null",
    "execution": None,
    "misleading": '["P1"]',
}


def unread(text: str) -> str:
    """Why no object with the fields of a diagnosis is read from `text`."""
    with pytest.raises(UnreadableAnswer) as error:
        find_object(text, "label", "confidence")
    return error.value.kind


def written(*fragments: str) -> str:
    """The answer as asked for, with fields written or left out as the fragments say."""
    outer, inner = ({name: f'"{name}": {text}' for name, text in fields.items()} for fields in (PLAIN, LESSON))
    for fragment in fragments:
        if left_out := re.fullmatch(r'without "(\w+)"', fragment):
            name, text = left_out[1], ""
        else:
            name, text = re.match(r'"(\w+)"', fragment)[1], fragment
        (inner if name in inner else outer)[name] = text
    if outer["execution"].endswith("None"):
        outer["execution"] = f'"execution": {joined(inner.values())}'
    return joined(outer.values())


def joined(fields: Iterable[str]) -> str:
    return "{" + ", ".join(one for one in fields if one) + "}"


def of_one_field(example: str) -> bool:
    return re.match(r'without "|"(\w+)":', example) is not None


def answer(example: str) -> str:
    """The whole answer that a row's example stands for."""
    return written(example) if of_one_field(example) else example.replace("{…}", written())


def read(text: str):
    return read_diagnosis(text, INDICES)


def test_plain():
    """The answer as asked for says what it says."""
    judgement = read(written())
    assert (judgement.label, judgement.confidence_e4, judgement.misleading) == ("execution", 8000, ["planning-3"])
    assert judgement.misleading_dropped == 0
    assert judgement.planning is None
    assert judgement.execution.experience == "Name the room exactly as the user did."


@pytest.mark.parametrize("row", TOLERANCES, ids=lambda row: row.name)
def test_tolerances(row):
    """Every row of the table of tolerances is read as what was meant."""
    assert answer(row.example) != written()
    assert read(answer(row.example)) == replace(read(written()), **row.reads)


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{row.kind}: {row.what}")
def test_refusals(row):
    """Every row of the table of refusals is refused by its kind, with a sentence for the model."""
    with pytest.raises(UnreadableAnswer) as error:
        read(answer(row.example))
    assert error.value.kind == row.kind
    assert error.value.reason.endswith(".")


def test_rows_have_names_of_their_own():
    """No two tolerances share a name, no two refusals kind and words."""
    assert len({row.name for row in TOLERANCES}) == len(TOLERANCES)
    assert len({(row.kind, row.what) for row in REFUSALS}) == len(REFUSALS)


FIELDS = [row for row in TOLERANCES if of_one_field(row.example)]
# A part is compared as it is written: beside a label in another case it would say something else.
FRAMES = [row for row in TOLERANCES if not of_one_field(row.example) and row.name != "said_in_part"]


def wraps(row) -> bool:
    """Whether the frame is JSON itself, so that it stands inside those of text."""
    try:
        json.loads(row.example.replace("{…}", "{}"))
    except ValueError:
        return False
    return True


@st.composite
def framed(draw):
    """Tolerances that can come together: one a field at most, frames of JSON inside frames of text."""
    rows, taken = [], set()
    for row in draw(st.lists(st.sampled_from(FIELDS), unique_by=lambda row: row.name, max_size=6)):
        field = re.search(r'"(\w+)"', row.example)[1]
        if row.name == "stage_missing" or field == "planning":
            field = "planning"
        names = {"execution", *LESSON} if field in ("execution", *LESSON) else {field}
        if not names & taken:
            taken |= names
            rows.append(row)
    frames = draw(st.lists(st.sampled_from(FRAMES), unique_by=lambda row: row.name, max_size=5))
    return rows, [row for row in frames if wraps(row)], [row for row in frames if not wraps(row)]


@given(framed())
def test_any_tolerances_together(chosen):
    """An answer is read through every composition of tolerances, and says what each of them says."""
    fields, inside, outside = chosen
    reads = {name: value for row in fields for name, value in row.reads.items()}
    if reads.get("label") == "both" and any(row.name == "stage_missing" for row in fields):
        fields = [row for row in fields if row.name != "stage_missing"]
    text = written(*[row.example for row in fields])
    for row in (*inside, *outside):
        text = row.example.replace("{…}", text)
    assert read(text) == replace(read(written()), **reads)


PARTS = st.sampled_from(
    [
        '{"label": "execution", ', '"confidence": 0.5', '"misleading": []', '"planning": null', "{", "}", "[", "]", ",",
        ":", '"', "\\", '\\"', '{"', "```json\n", "null", "true", "NaN", "1e999999999999999999999", "9" * 50, "-0",
        '"label"', '"execution": {', '"scenario": "a"', "\ufeff", "\u00a0", "\ud800", "\x00", "<think>", "…",
    ]
)  # fmt: skip


@given(st.text() | st.lists(PARTS | st.text(max_size=3), max_size=30).map("".join))
def test_no_text_does_harm(text):
    """Whatever a model writes is read, or refused as unreadable; nothing else is raised."""
    for reads in (read, read_experiences, read_merged):
        with suppress(UnreadableAnswer):
            reads(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.fixed_dictionaries(dict.fromkeys((*PLAIN, *LESSON), JSON)), st.sets(st.sampled_from([*PLAIN])))
def test_no_value_does_harm(values, kept):
    """Whatever stands in the fields, the answer is read or refused; what is read keeps the bounds of the event."""
    whole = {name: json.loads(text) for name, text in PLAIN.items() if text is not None}
    text = json.dumps({**values, **{name: whole[name] for name in kept if name in whole}})
    try:
        judgement = read(text)
    except UnreadableAnswer:
        return
    assert 0 <= judgement.confidence_e4 <= 10_000
    assert set(judgement.misleading) <= set(INDICES.values())
    for lesson in (judgement.planning, judgement.execution):
        assert lesson is None or (lesson.scenario.strip() and lesson.experience.strip())


@given(st.integers(1, 400))
def test_nothing_inside_half_an_object_is_read(length):
    """An answer that is cut off anywhere is refused."""
    text = f'{{"diagnosis": {written()}}}'
    with pytest.raises(UnreadableAnswer):
        read(text[: min(length, len(text) - 1)])


@pytest.mark.parametrize("word", sorted(LABEL_OF))
def test_label_words(word):
    """Each listed word is read as its label, capitals and the stage's own language aside."""
    both = {"planning": '"planning": null', "both": '"planning": null'}.get(LABEL_OF[word])
    text = written(f'"label": {json.dumps(word.upper(), ensure_ascii=False)}', *([both] if both else []))
    assert read(text).label == LABEL_OF[word]


def test_a_word_has_one_meaning():
    """No word of one language is another label in another."""
    listed = [word for words in LABEL_WORDS.values() for words_of in words.values() for word in words_of]
    assert len(listed) == len(set(listed)) == len(LABEL_OF)


@pytest.mark.parametrize(
    ("text", "e4"),
    [
        ("0", 0), ("1", 10_000), ("1.0", 10_000), ("0.5", 5000), ("-0.0", 0), ("5e-1", 5000),
        # half to even on the decimal text, where a float would have rounded otherwise
        ("0.00005", 0), ("0.00015", 2), ("0.12345", 1234), ("0.12355", 1236), ("0.49995", 5000),
        ("0.000050000000000000000000000000000000000000001", 1), ("1e-999999999", 0), ("0.9999999", 10_000),
        ("0.5" + "0" * 100_000 + "1", 5000), ('"100%"', 10_000), ('"12,345%"', 1234), ('"1,0"', 10_000),
    ],
)  # fmt: skip
def test_confidence(text, e4):
    """Gamma x 10000 is rounded half to even on the text that the model wrote."""
    assert read(written(f'"confidence": {text}')).confidence_e4 == e4


@pytest.mark.parametrize(
    "text",
    ["80", "null", '"85/100"', '"0.8 or 0.9"', '"1.000.000"', "[]", '{"value": 0.8}', "1e999999999", "1e" + "9" * 30,
     "Infinity", "9" * 5000, '"٠"', '"²"'],
)  # fmt: skip
def test_confidence_outside(text):
    """What is no number from 0 to 1 is not usable, however it is written."""
    with pytest.raises(UnreadableAnswer) as error:
        read(written(f'"confidence": {text}'))
    assert error.value.kind in ("confidence", "broken")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[" * 100_000, "no_object"),
        ("{" * 100_000, "no_object"),
        ('{"a":' * 50_000, "cut"),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, "broken"),
        ('{"' + '\\"' * 100_000, "cut"),
        ('{"a": "' + "\\" * 100_001, "cut"),
        ('{"label": "none"} ' * 10_000, "several"),
        ('{"label": "none"} ' * 64, "misleading"),
        ('{"label": ' + "9" * 5000 + "}", "broken"),
        ('{"label": "a' + " " * 500_000 + 'b"}', "label"),
        ('{"label": "' + "planning and " * 50_000 + 'or"}', "label"),
        ('{"label": "none"', "cut"),
        ('{"label": "none", "x": {"label": "planning", "confidence": 1}', "cut"),
        ('{"label" "none", "x": {"label": "planning", "confidence": 1}}', "broken"),
        ("{x: 1 " * 100_000, "cut"),
        ("{x: 1 " * 5 + '{"label": "none"}', "cut"),
        ('{"a": {"b": {"c": {"d": {"e": {"label": "none"}}}}}}', "no_object"),
        ('{"type": "json_schema", "schema": {"properties": {"label": {"type": "string"}}}}', "schema_echo"),
        ('{"label": {"type": "string", "enum": ["planning"]}, "confidence": {"type": "number"}}', "schema_echo"),
    ],
)  # fmt: skip
def test_hostile_answers(text, kind):
    """A text without one whole answer is refused, however deep or long it is."""
    with pytest.raises(UnreadableAnswer) as error:
        read(text)
    assert error.value.kind == kind


@pytest.mark.parametrize(
    "begun",
    [
        "{label: 'planning', x: 1",
        "{x: {y: 1}, label: 2",
        "{x: 1 {label: 2",
        "{'x': 1",
        "{answer:",
        "{answers: [",
        "{“x”",
    ],
)
def test_nothing_is_read_beside_or_in_what_is_cut(begun):
    """An open brace is prose only where no field of an answer follows, nor anything else that begins an object."""
    whole = '{"label": "none", "confidence": 1}'
    for text in (f"{begun} {whole}", f"{whole} {begun} {whole}"):
        assert unread(text) == "cut"


@pytest.mark.parametrize("prose", ["f{x: 1 and so on.", "f{x: 1 {y} z", "{x: 1 {x: 2 {x: 3 {x: 4"])
def test_an_open_brace_of_prose_hides_no_answer(prose):
    """Before the answer or after it."""
    whole = {"label": "none", "confidence": 1}
    for text in (f"{prose}\n{json.dumps(whole)}", f"{json.dumps(whole)}\n{prose}"):
        assert find_object(text, "label", "confidence") == whole


CHOICES = ['"label": "a" | "b"', '"label":"a"|"b"', '"label": {} or null', '"label": 0.5 or 1', '"label": true|false']
NO_CHOICES = [
    '"label": "planning" or maybe execution "confidence": 1', '"label": "planning" | because "confidence": 1',
    '"label": "planning", "evidence": a or "b"', '"label": "planning" "evidence": " | "', '"label": planning | "a"',
]  # fmt: skip


@pytest.mark.parametrize("fields", CHOICES)
def test_the_form_has_choices_between_values(fields):
    """It is no answer, and contradicts none."""
    with pytest.raises(UnreadableAnswer) as error:
        find_object(f"{{{fields}}}", "label", "confidence")
    assert error.value.kind == "schema_echo"
    whole = {"label": "none", "confidence": 1}
    assert find_object(f"{{{fields}}} {json.dumps(whole)}", "label", "confidence") == whole


@pytest.mark.parametrize("fields", NO_CHOICES)
def test_a_word_elsewhere_makes_no_form_of_a_broken_answer(fields):
    """It may say something else than the one beside it."""
    for text in (f"{{{fields}}}", f'{{{fields}}} {{"label": "none", "confidence": 1}}'):
        with pytest.raises(UnreadableAnswer) as error:
            find_object(text, "label", "confidence")
        assert error.value.kind == "broken"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["P", "[P", "P-", "P1"])
def test_a_vast_index_is_none(name):
    """Spaces without end behind what begins like an index are looked through once."""
    judgement = read(written(f'"misleading": ["{name}{" " * 500_000}x"]'))
    assert (judgement.misleading, judgement.misleading_dropped) == ([], 1)


def test_misleading():
    """Names are intersected with what was retrieved, each once, in rank order; the others are counted once each."""
    judgement = read(written('"misleading": ["E1", "P9", "P1", "E1", "p9", "planning-1", 1, 1, null, {"P1": 1}]'))
    assert judgement.misleading == ["planning-3", "execution-3"]
    assert judgement.misleading_dropped == 5


def test_experiences_only():
    """A reflection without attribution needs both stages, not a label."""
    assert read_experiences('{"planning": null, "execution": null}').label == "both"
    for text in ('{"label": "both"}', '{"planning": null}'):
        with pytest.raises(UnreadableAnswer):
            read_experiences(text)


def test_usefulness():
    """The gate's own estimate is kept in the same units as gamma, where it was asked for."""
    assert read(written('"concrete": true, "usefulness": 0.25')).execution.usefulness_e4 == 2500


@pytest.mark.parametrize(
    "text", ['{"text": ""}', json.dumps({"text": "a" * 8_001}), '{"text": 1}', '{"a": "b"}', "a", ""]
)
def test_no_merged_text(text):
    """A merged text that is empty or none is refused."""
    with pytest.raises(UnreadableAnswer):
        read_merged(text)


def test_merged_text():
    """The merged text is stripped, and found wherever it stands."""
    assert read_merged('Sure: ```json\n{"text": " a "}\n```') == "a"


def test_lone_surrogates():
    """A lone surrogate becomes U+FFFD before anything is read."""
    assert "\ufffd" in read(written('"experience": "Name the room \\ud800 exactly."')).execution.experience


def test_the_whole_answer_counts():
    """Beside an object that only shares a field and says the same in it, the answer is the one that has all of them."""
    whole = {"label": "none", "confidence": 1, "evidence": "a"}
    for part in ({"label": "none"}, {"confidence": 1, "mood": "good"}):
        assert find_object(f"{json.dumps(part)} {json.dumps(whole)}", "label", "confidence") == whole


@pytest.mark.parametrize(
    "part", ['{"label": "planning"}', '{"confidence": 0.1}', '{"label": "none", "evidence": "b"}', '{"label": "inbox"}']
)
def test_nobody_knows_which_is_meant(part):
    """An example that is whole does not stand for an answer that lacks a field, nor an answer for a later word."""
    whole = '{"label": "none", "confidence": 1, "evidence": "a"}'
    for text in (f"For example {whole}. My answer: {part}", f"{part} No, that is: {whole}"):
        assert unread(text) == "several"
