"""What a reflection's answer says: one text in, a judgement out, or the reason why there is none.

An answer is read here and nowhere else. How it may differ from what was asked for is listed at `TOLERANCES`; each row
is certain, none a guess. What else can be wrong is listed at `REFUSALS` by the kind that log lines name; the reason is
shown to the model once, for repair.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, cast, get_args

from msgspec import Struct

from events.codec import clean_text
from events.ids import Label, MemoryId, Stage
from events.rules import FULL
from runtime.errors import UnreadableAnswer
from runtime.json_objects import find_object
from runtime.label_words import LABEL_OF

#: a length beyond which a scenario or experience is cut: the event has a size cap, the lint says `too_long` long before
_TEXT_CAP = 8_000

_PERCENT = re.compile(r"([0-9]{1,9}(?:[.,][0-9]{1,99})?)\s*%")
_FRACTION = re.compile(r"([01])[.,]([0-9]{1,99})|[0-9]{1,9}")
_INDEX = re.compile(r"[\[(#]*+\s*+([PE])\s*+[-#]?\s*+([1-9][0-9]{0,3})\s*+[\])]*+\.?", re.IGNORECASE)
_BETWEEN = re.compile(r"[,;、，；]|\band\b", re.IGNORECASE)
_BOTH = re.compile(r"\band\b|[&+,，、和]", re.IGNORECASE)
_FLAGS = {"true": True, "yes": True, "false": False, "no": False}
_NOTHING = frozenset({"", "none", "null", "n/a", "[]"})
#: how a prompt's own form stands for a text
_DOTS = frozenset({"...", "…"})
#: the names under which an object in `misleading` may hold its index
_HOLDERS = frozenset({"index", "id", "memory"})
_EXACT = Context(prec=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """One way in which an answer may differ from what was asked for and is still read."""

    name: str
    what: str
    #: an answer in which `{…}` is the whole object as asked for; or one field of it, as it was written; or `without`
    #: and a field's name
    example: str
    #: fields of the judgement that then differ from that of the answer as asked for
    reads: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One thing that makes an answer unusable."""

    #: the word for counts, of all rows that the model is told the same about
    kind: str
    what: str
    #: as in `Tolerance`
    example: str


TOLERANCES: tuple[Tolerance, ...] = (
    Tolerance(name="fence", what="the object stands in a code fence, whatever its word", example="```json\n{…}\n```"),
    Tolerance(name="tilde_fence", what="a fence of tildes", example="~~~ diagnosis\n{…}\n~~~"),
    Tolerance(name="open_fence", what="a fence that is not closed, the object whole", example="Here:\n```\n{…}"),
    Tolerance(name="prose", what="text before or after it, braces in it", example="I see {a} here. {…} Hope it helps."),
    Tolerance(
        name="open_brace", what="a brace in that text that is not closed", example="We call f{x: 1 and so on.\n{…}"
    ),
    Tolerance(name="quoted", what="quotation marks around the object", example="“{…}”"),
    Tolerance(name="byte_order_mark", what="a byte order mark before it", example="\ufeff{…}"),
    Tolerance(name="schema_first", what="the schema before the answer", example='{"properties": {"label": {}}} {…}'),
    Tolerance(
        name="form_first", what="the form as the prompt shows it before the answer",
        example='{"label": "planning" | "none", "planning": {} or null} {…}',
    ),
    Tolerance(name="other_first", what="other objects before the answer", example='{"thought": 1}\n{…}'),
    Tolerance(name="said_twice", what="the same answer twice", example="{…}\n{…}"),
    Tolerance(name="said_in_part", what="a part of it beside it, the same", example='{"label": "execution"}\n{…}'),
    Tolerance(name="list_of_one", what="a list of one", example="[{…}]"),
    Tolerance(name="wrapped", what="the object alone in a field of another one", example='{"diagnosis": {…}}'),
    Tolerance(name="called", what="written as a call", example='{"name": "diagnosis", "arguments": {…}}'),
    Tolerance(name="odd_space", what="other spaces than JSON's between its parts", example='"label":\u00a0"execution"'),
    Tolerance(name="trailing_comma", what="a comma after the last element", example='"misleading": ["P1",]'),
    Tolerance(name="raw_break", what="a line break or tab as it is in a text", example='"evidence": "a\n\tb"'),
    Tolerance(
        name="field_twice", what="a field twice, saying the same", example='"label": "execution", "label": "execution"'
    ),
    Tolerance(name="extra_field", what="fields nobody asked for", example='"label": "execution", "mood": "good"'),
    Tolerance(name="no_evidence", what="no evidence: nothing rests on it", example='without "evidence"'),
    Tolerance(name="label_case", what="a label in another case, with spaces", example='"label": " Execution "'),
    Tolerance(name="label_marks", what="emphasis or a full stop around a label", example='"label": "**execution**."'),
    Tolerance(name="label_word", what="another word for a label (listed below)", example='"label": "executor"'),
    Tolerance(name="label_language", what="a label in another language (below)", example='"label": "执行阶段"'),
    Tolerance(name="label_alone", what="a list of one label", example='"label": ["execution"]'),
    Tolerance(
        name="label_list", what="both stages in a list: both", example='"label": ["planning", "execution"]',
        reads={"label": "both"},
    ),
    Tolerance(
        name="label_and", what="both stages joined by and, a plus or a comma: both",
        example='"label": "execution and planning"', reads={"label": "both"},
    ),
    Tolerance(name="confidence_string", what="confidence as a string", example='"confidence": "0.8"'),
    Tolerance(name="confidence_percent", what="as a percentage", example='"confidence": "80 %"'),
    Tolerance(name="confidence_comma", what="with a decimal comma", example='"confidence": "0,80"'),
    Tolerance(name="index_form", what="an index in another form", example='"misleading": ["[p1]", "#P1", "(P-1)"]'),
    Tolerance(name="index_wide", what="an index in full-width characters", example='"misleading": ["Ｐ１"]'),
    Tolerance(name="index_alone", what="one string instead of a list", example='"misleading": "P1"'),
    Tolerance(
        name="index_list", what="several indices in one string", example='"misleading": ["P1, E1"]',
        reads={"misleading": ["planning-3", "execution-3"]},
    ),
    Tolerance(
        name="index_object", what="an object that names one and nothing else",
        example='"misleading": [{"index": "P1"}]',
    ),
    Tolerance(name="index_again", what="an index twice: named once", example='"misleading": ["P1", "P1"]'),
    Tolerance(
        name="index_unknown", what="a memory that was not retrieved: dropped and counted",
        example='"misleading": ["P1", "P9"]', reads={"misleading_dropped": 1},
    ),
    Tolerance(
        name="index_number", what="a number, which may mean either bank: dropped and counted",
        example='"misleading": ["P1", 1]', reads={"misleading_dropped": 1},
    ),
    Tolerance(
        name="index_id", what="a memory's own id, which nobody was shown: dropped and counted",
        example='"misleading": ["P1", "planning-1"]', reads={"misleading_dropped": 1},
    ),
    Tolerance(
        name="index_sentence", what="words around indices, which may deny them: dropped and counted",
        example='"misleading": ["P1", "neither P2 nor E1, and P2"]', reads={"misleading_dropped": 1},
    ),
    Tolerance(
        name="index_object_more", what="an object that says more, which may deny it: dropped and counted",
        example='"misleading": ["P1", {"index": "E1", "misled": false}]', reads={"misleading_dropped": 1},
    ),
    Tolerance(
        name="misleading_null", what="null instead of an empty list", example='"misleading": null',
        reads={"misleading": []},
    ),
    Tolerance(
        name="misleading_none", what="a word for none instead of an empty list", example='"misleading": "None"',
        reads={"misleading": []},
    ),
    Tolerance(
        name="misleading_none_listed", what="that word alone in the list", example='"misleading": ["none"]',
        reads={"misleading": []},
    ),
    Tolerance(name="flag_string", what="concrete, actionable as words", example='"concrete": "Yes"'),
    Tolerance(
        name="stage_null", what="a word for null instead of it", example='"execution": "null"',
        reads={"execution": None},
    ),
    Tolerance(
        name="stage_empty", what="an empty object instead of null", example='"execution": {}',
        reads={"execution": None},
    ),
    Tolerance(
        name="empty_text", what="an experience with an empty text: null", example='"experience": "  "',
        reads={"execution": None},
    ),
    Tolerance(
        name="text_none", what="a word for none, or dots, instead of a text: null", example='"scenario": "N/A"',
        reads={"execution": None},
    ),
    Tolerance(name="stage_missing", what="a stage left out that the label does not name", example='without "planning"'),
)  # fmt: skip

REFUSALS: tuple[Refusal, ...] = (
    Refusal(kind="empty", what="an empty answer", example=" \n"),
    Refusal(kind="no_object", what="no object with a label", example="I cannot say."),
    Refusal(kind="no_object", what="an object about something else", example='{"answer": "execution"}'),
    Refusal(kind="no_object", what="null", example="null"),
    Refusal(kind="no_object", what="the object as a string", example='"{\\"label\\": \\"execution\\"}"'),
    Refusal(kind="schema_echo", what="the schema instead of an answer", example='{"properties": {"label": {}}}'),
    Refusal(kind="schema_echo", what="the form of the prompt instead of one", example='{"label": "planning" | "none"}'),
    Refusal(kind="cut", what="an object that is not complete", example='{"label": "execution", "confidence": 0.'),
    Refusal(kind="cut", what="an object begun after the answer", example='{…} {"label": "execution'),
    Refusal(kind="broken", what="quotation marks that JSON does not have", example='{"label": “execution”}'),
    Refusal(kind="broken", what="single quotation marks", example="{'label': 'execution'}"),
    Refusal(kind="broken", what="names without quotation marks", example='{label: "execution"}'),
    Refusal(kind="broken", what="something broken beside the answer", example='{…} {"label": "none" "confidence": 1}'),
    Refusal(kind="broken", what="a comment", example='"label": "execution" /* sure */'),
    Refusal(kind="broken", what="a constant of another language", example='"planning": None'),
    Refusal(kind="broken", what="a number that is none", example='"confidence": NaN'),
    Refusal(kind="duplicate", what="a field twice, differently", example='"label": "planning", "label": "none"'),
    Refusal(kind="several", what="two different answers", example='{…}\n{"label": "none", "confidence": 1}'),
    Refusal(kind="several", what="a part beside the answer, saying something else", example='{…}\n{"label": "none"}'),
    Refusal(kind="label", what="a label that is none", example='"label": "external"'),
    Refusal(kind="label", what="a choice of labels", example='"label": "planning or execution"'),
    Refusal(kind="label", what="no label", example='"label": null'),
    Refusal(kind="contradiction", what="labels that exclude one another", example='"label": ["execution", "none"]'),
    Refusal(kind="confidence", what="above 1: 85 may be a percentage or an error", example='"confidence": 85'),
    Refusal(kind="confidence", what="the same in a string", example='"confidence": "85"'),
    Refusal(kind="confidence", what="a little above 1", example='"confidence": 1.0001'),
    Refusal(kind="confidence", what="below 0", example='"confidence": -0.1'),
    Refusal(kind="confidence", what="above 100 %", example='"confidence": "120%"'),
    Refusal(kind="confidence", what="in words", example='"confidence": "high"'),
    Refusal(kind="confidence", what="true or false", example='"confidence": true'),
    Refusal(kind="confidence", what="none", example='without "confidence"'),
    Refusal(kind="misleading", what="left out: that may be an oversight", example='without "misleading"'),
    Refusal(kind="misleading", what="neither list nor index", example='"misleading": {"P1": true}'),
    Refusal(kind="experience", what="a stage left out that the label names", example='without "execution"'),
    Refusal(kind="experience", what="a stage that is no object", example='"planning": "Plan first."'),
    Refusal(kind="experience", what="a text that is none", example='"experience": ["First this.", "Then that."]'),
    Refusal(kind="experience", what="a text left out", example='without "scenario"'),
    Refusal(kind="experience", what="a flag that is none", example='"actionable": "perhaps"'),
    Refusal(kind="experience", what="a flag left out", example='without "concrete"'),
)  # fmt: skip


class Lesson(Struct, frozen=True, kw_only=True):
    """(c_new, e_new) of one stage as the model wrote it."""

    scenario: str
    experience: str
    concrete: bool
    actionable: bool
    #: in units of 1e-4; None where it was not asked for
    usefulness_e4: int | None = None


class Judgement(Struct, frozen=True, kw_only=True):
    """g_t, before embedding and lint."""

    label: Label
    confidence_e4: int
    misleading: list[MemoryId]
    #: distinct names that were not retrieved
    misleading_dropped: int
    planning: Lesson | None
    execution: Lesson | None

    def lesson(self, stage: Stage) -> Lesson | None:
        return self.planning if stage == "planning" else self.execution


def read_diagnosis(text: str, indices: Mapping[str, MemoryId]) -> Judgement:
    """The judgement that `text` holds.

    Raises:
        UnreadableAnswer: there is none; `kind` is one of those of `REFUSALS`.
    """
    given = find_object(clean_text(text), "label", "confidence")
    label = _label(given.get("label"))
    misleading, dropped = _misleading(given, indices)
    return Judgement(
        label=label,
        confidence_e4=_e4(given.get("confidence"), "confidence"),
        misleading=misleading,
        misleading_dropped=dropped,
        planning=_lesson(given, "planning", needed=label in ("planning", "both")),
        execution=_lesson(given, "execution", needed=label in ("execution", "both")),
    )


def read_experiences(text: str) -> Judgement:
    """What a reflection without attribution holds: both stages in full, nothing misleading (reading 23).

    Raises:
        UnreadableAnswer: a stage is not there; `kind` is one of those of `REFUSALS`.
    """
    given = find_object(clean_text(text), "planning", "execution")
    return Judgement(
        label="both",
        confidence_e4=FULL,
        misleading=[],
        misleading_dropped=0,
        planning=_lesson(given, "planning", needed=True),
        execution=_lesson(given, "execution", needed=True),
    )


def read_merged(text: str) -> str:
    """The merged text, stripped.

    Raises:
        UnreadableAnswer: none, an empty one, or one that is far too long.
    """
    merged = find_object(clean_text(text), "text")["text"]
    if not isinstance(merged, str) or not merged.strip() or len(merged) > _TEXT_CAP:
        raise UnreadableAnswer("text", f'"text" must be a text that is not empty, of at most {_TEXT_CAP} characters.')
    return clean_text(merged).strip()


def _label(value: object) -> Label:
    """a_t. A list is what it names; so is what `and` joins, but not what `or` does."""
    named = [_named(one) for one in value] if isinstance(value, list) else [_named(value)]
    if isinstance(value, str) and named == [None]:
        named = [_named(one) for one in _BOTH.split(value)]
    found = set(named)
    if None in found or not found:
        raise UnreadableAnswer("label", f'"label" must be one of {", ".join(get_args(Label))}.')
    if found == {"planning", "execution"}:
        return "both"
    if len(found) > 1:
        told = ", ".join(sorted(str(one) for one in found))
        raise UnreadableAnswer("contradiction", f'"label" names what excludes one another: {told}. Name one label.')
    return cast("Label", named[0])


def _named(value: object) -> Label | None:
    if not isinstance(value, str):
        return None
    word = " ".join(unicodedata.normalize("NFKC", value).casefold().strip(" \t\n\r\"'`*_.。").split())
    return LABEL_OF.get(word)


def _e4(value: object, name: str) -> int:
    """A number in [0, 1] in units of 1e-4, rounded half to even on the decimal text that was written."""
    if isinstance(value, str):
        value = _number(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not 0 <= value <= 1:
        raise UnreadableAnswer("confidence", f'"{name}" must be a number from 0 to 1.')
    if isinstance(value, Decimal) and value.adjusted() < -6:
        return 0  # below half a unit whatever the digits; a vast exponent must not become a vast number
    return int(Decimal(value).quantize(Decimal("0.0001"), ROUND_HALF_EVEN, _EXACT) * FULL)


def _number(text: str) -> Decimal | None:
    if percent := _PERCENT.fullmatch(text):
        return Decimal(percent[1].replace(",", ".")).scaleb(-2, _EXACT)
    return Decimal(text.replace(",", ".")) if _FRACTION.fullmatch(text) else None


def _lesson(given: Mapping[str, Any], stage: Stage, *, needed: bool) -> Lesson | None:
    """One stage's experience; None where the model wrote null, or nothing for a text.

    Raises:
        UnreadableAnswer: something else than an object with its four fields; nothing, though it is `needed`.
    """
    if needed and stage not in given:
        raise UnreadableAnswer("experience", f'"{stage}" is missing: it must be an object or null.')
    value = given.get(stage)
    if value is None or value == {} or _is_nothing(value):
        return None
    if not isinstance(value, dict):
        raise UnreadableAnswer("experience", f'"{stage}" must be an object or null.')
    texts = [value.get("scenario", ...), value.get("experience", ...)]
    if any(text is not None and not isinstance(text, str) for text in texts):
        raise UnreadableAnswer("experience", f'"scenario" and "experience" of "{stage}" must be texts.')
    # An escape in the JSON may have made a lone surrogate.
    scenario, experience = (clean_text(str(text or "")).strip()[:_TEXT_CAP].strip() for text in texts)
    if any(_is_nothing(text) or text in _DOTS for text in (scenario, experience)):
        return None
    useful = value.get("usefulness")
    return Lesson(
        scenario=scenario,
        experience=experience,
        concrete=_flag(value, "concrete", stage),
        actionable=_flag(value, "actionable", stage),
        usefulness_e4=None if useful is None else _e4(useful, "usefulness"),
    )


def _is_nothing(value: object) -> bool:
    return isinstance(value, str) and value.strip().casefold() in _NOTHING


def _flag(value: Mapping[str, Any], name: str, stage: Stage) -> bool:
    flag = value.get(name)
    if isinstance(flag, str):
        flag = _FLAGS.get(flag.strip().casefold())
    if not isinstance(flag, bool):
        raise UnreadableAnswer("experience", f'"{name}" of "{stage}" must be true or false.')
    return flag


def _misleading(given: Mapping[str, Any], indices: Mapping[str, MemoryId]) -> tuple[list[MemoryId], int]:
    """The retrieved memories that were named, each once, in rank order; how many other names there were."""
    named = given.get("misleading", ...)
    if named is None:
        named = []
    if isinstance(named, str):
        named = [named]
    if isinstance(named, list) and len(named) == 1 and _is_nothing(named[0]):
        named = []
    if not isinstance(named, list):
        raise UnreadableAnswer("misleading", '"misleading" must be a list of memory indices, empty if none misled.')
    found: set[str] = set()
    dropped: set[str] = set()
    for name in _each(named):
        index = _index(name)
        if index in indices:
            found.add(index)
        else:
            dropped.add(index or json.dumps(name, default=str, sort_keys=True))
    # A memory that both stages were given has two indices; it is named once.
    return list(dict.fromkeys(memory for index, memory in indices.items() if index in found)), len(dropped)


def _index(name: object) -> str:
    """The index that `name` is, as prompts write it; "" for anything else."""
    match = _INDEX.fullmatch(unicodedata.normalize("NFKC", name).strip()) if isinstance(name, str) else None
    return f"{match[1].upper()}{match[2]}" if match else ""


def _each(named: Iterable[object]) -> Iterable[object]:
    """Every name by itself: a string may hold several, an object one and nothing else."""
    for name in named:
        if isinstance(name, dict):
            yield next((held for holder, held in name.items() if holder in _HOLDERS and len(name) == 1), name)
        elif isinstance(name, str) and all(map(_index, parts := _BETWEEN.split(name))):
            yield from parts
        else:
            yield name
