"""The gate's answers: what is read in spite of its form, what is shown to the model once, what is no judgement."""

import json
from typing import Any

from hostile_rows import GATE, Row, degraded, repaired, used
from hostile_wire import Asked, Body, always, answering, first, said


def row(name: str, **given: Any) -> Row:
    return Row(name=name, area="gate", roles=GATE, **given)


_LESSON = {
    "scenario": "An order of fragile goods has to leave the warehouse.",
    "experience": "Open the goods and look at them before anything that lasts is done to the order.",
    "concrete": True, "actionable": True,
}  # fmt: skip
_DIAGNOSIS: dict[str, Any] = {
    "evidence": "The plan was followed.", "label": "both", "confidence": 0.9, "planning": _LESSON, "execution": _LESSON,
    "misleading": [],
}  # fmt: skip


def _text(write: Any) -> Any:
    """The healthy diagnosis as the text that `write` makes of it."""

    def change(plain: Body, asked: Asked) -> None:
        message = plain["choices"][0]["message"]
        given = json.loads(message["content"])
        message["content"] = write(given)

    return answering(change)


def _with(**fields: Any) -> Any:
    """The healthy diagnosis with other fields; `...` takes one away."""

    def write(given: Body) -> str:
        merged = {**given, **fields}
        return json.dumps({name: value for name, value in merged.items() if value is not ...}, ensure_ascii=False)

    return _text(write)


def _raw(old: str, new: str) -> Any:
    return _text(lambda given: json.dumps(given).replace(old, new, 1))


def _confidence(written: str) -> Any:
    """The healthy diagnosis with its confidence in these characters."""
    return _text(lambda given: json.dumps(given | {"confidence": "HERE"}).replace('"HERE"', written))


def _lesson(**fields: Any) -> Any:
    return _with(planning={name: one for name, one in {**_LESSON, **fields}.items() if one is not ...})


READ: dict[str, Any] = {
    "a fence": _text(lambda given: f"```json\n{json.dumps(given)}\n```"),
    "a fence without a word": _text(lambda given: f"```\n{json.dumps(given)}\n```"),
    "a fence that does not close": _text(lambda given: f"```json\n{json.dumps(given)}"),
    "prose before": _text(lambda given: f"Here is my judgement:\n{json.dumps(given)}"),
    "prose behind": _text(lambda given: f"{json.dumps(given)}\nI hope that this helps!"),
    "braces in the prose before": _text(lambda given: f"As {{x}} and {{}} show: {json.dumps(given)}"),
    "another object before": _text(lambda given: '{"thought": "let me see"}\n' + json.dumps(given)),
    "the label in capitals": _with(label="BOTH"),
    "the label with spaces": _with(label=" Both \n"),
    "the confidence as a text": _confidence('"0.85"'),
    "the confidence as a percentage": _confidence('"85%"'),
    "the confidence as 1": _confidence("1"),
    "the confidence as 0": _confidence("0"),
    "the confidence with thirty digits": _confidence("0.123456789012345678901234567890"),
    "the confidence with an exponent": _confidence("8.5e-1"),
    "truths as texts": _lesson(concrete="true", actionable="yes"),
    "no planning experience": _with(planning=None),
    "misleading null": _with(misleading=None),
    "fields that nobody asked for": _with(thoughts="many", score=3),
    "the fields in another order": _text(lambda given: json.dumps(dict(reversed(given.items())))),
    "characters written out": _text(lambda given: json.dumps(given, ensure_ascii=True)),
    "a diagnosis over many lines": _text(lambda given: json.dumps(given, indent=8)),
}  # fmt: skip

UNREADABLE: dict[str, Any] = {
    "prose": said("I think that the plan was good and the execution too."),
    "the schema": said(json.dumps({"type": "object", "title": "diagnosis", "properties": {
        "label": {"type": "string", "enum": ["planning", "execution", "both", "none"]},
        "confidence": {"type": "number"}}, "required": ["label"]})),
    "the schema with words of a label": said(json.dumps({**_DIAGNOSIS, "label": "planning|execution|both|none"})),
    "a number": said("0.9"),
    "a list": said("[]"),
    "null": said("null"),
    "an empty object": said("{}"),
    "half an object": said(json.dumps(_DIAGNOSIS)[:-20]),
    "single quotes": said(str(_DIAGNOSIS)),
    "YAML": said("label: both\nconfidence: 0.9\n"),
    "XML": said("<diagnosis><label>both</label></diagnosis>"),
    "a field twice": said('{"label": "both", "label": "none", "confidence": 0.9}'),
    "no label": said(json.dumps({name: one for name, one in _DIAGNOSIS.items() if name != "label"})),
    "a label that is none of them": said(json.dumps({**_DIAGNOSIS, "label": "retrieval"})),
    "labels that exclude one another": said(json.dumps({**_DIAGNOSIS, "label": ["planning", "none"]})),
    "a label that is null": said(json.dumps({**_DIAGNOSIS, "label": None})),
    "two labels in one": said(json.dumps({**_DIAGNOSIS, "label": "planning or execution"})),
    "no confidence": said(json.dumps({name: one for name, one in _DIAGNOSIS.items() if name != "confidence"})),
    "a confidence above 1": said(json.dumps({**_DIAGNOSIS, "confidence": 1.01})),
    "a confidence of 85": said(json.dumps({**_DIAGNOSIS, "confidence": 85})),
    "a confidence below 0": said(json.dumps({**_DIAGNOSIS, "confidence": -0.1})),
    "a confidence of 150 %": said(json.dumps({**_DIAGNOSIS, "confidence": "150%"})),
    "a confidence in words": said(json.dumps({**_DIAGNOSIS, "confidence": "high"})),
    "a confidence that is true": said(json.dumps({**_DIAGNOSIS, "confidence": True})),
    "a confidence that is NaN": said(json.dumps({**_DIAGNOSIS, "confidence": float("nan")})),
    "a confidence that is infinite": said(json.dumps({**_DIAGNOSIS, "confidence": float("inf")})),
    "a confidence of a vast exponent": said(json.dumps(_DIAGNOSIS).replace("0.9", "1e999999")),
    "an experience that is a text": said(json.dumps({**_DIAGNOSIS, "planning": "look first"})),
    "an experience that is a list": said(json.dumps({**_DIAGNOSIS, "planning": [_LESSON]})),
    "an experience without its flags": said(json.dumps({**_DIAGNOSIS, "planning": {"scenario": "s",
                                                                                   "experience": "e"}})),
    "misleading that is a number": said(json.dumps({**_DIAGNOSIS, "misleading": 1})),
    "misleading that is an object": said(json.dumps({**_DIAGNOSIS, "misleading": {"P1": True}})),
    "no misleading": said(json.dumps({name: one for name, one in _DIAGNOSIS.items() if name != "misleading"})),
    "two thousand braces": said("{" * 2_000),
    "a refusal in words": said("I'm sorry, but I can't help with that."),
}  # fmt: skip

ROWS: list[Row] = [
    *(row(f"read: {name}", play=play, expect=used()) for name, play in READ.items()),
    *(row(f"not read: {name}, once", play=first(reply), expect=repaired()) for name, reply in UNREADABLE.items()),
    *(row(f"not read: {name}, twice", play=always(reply), expect=degraded()) for name, reply in UNREADABLE.items()),
    row("ids of memories that nobody was shown", expect=used(dropped=3),
        play=_with(misleading=["P1", "E99", "planning-0"])),
    row("the same unknown id twice", expect=used(dropped=1), play=_with(misleading=["P7", "p7", "[P7]"])),
    row("ids that are no texts", expect=used(dropped=3), play=_with(misleading=[1, None, {"id": "P1"}])),
    row("a thousand unknown ids", expect=used(dropped=1000), play=_with(misleading=[f"P{n}" for n in range(1, 1001)])),
    row("empty experiences", expect=used(), play=_with(
        planning={**_LESSON, "scenario": "", "experience": ""}, execution={**_LESSON, "experience": "  \n"})),
    row("experiences that are not concrete", expect=used(), play=_lesson(concrete=False, actionable=False)),
]  # fmt: skip
