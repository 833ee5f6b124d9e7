"""Answer keys: what is read, what is refused, and what lessons are about."""

import json
from pathlib import Path
from typing import Any

import pytest

from events.errors import BadInput
from infra.rehearsal.key import AnswerKey, answer_key, read_key


def task(text: str, *functions: str) -> dict[str, Any]:
    calls = [{"id": "c", "function": {"name": name, "arguments": "{}"}} for name in functions]
    message: dict[str, Any] = {"role": "assistant", "content": "no"} | ({"tool_calls": calls} if calls else {})
    return {"domain": "d", "text": text, "turns": [[message]], "saboteur": [[{"role": "assistant", "content": "x"}]]}


def test_a_key_file_is_read(tmp_path: Path) -> None:
    """A file with further fields gives the same tasks as the data it holds."""
    raw = {"one": {**task("a", "f"), "later": 1}, "two": task("b")}
    path = tmp_path / "key.json"
    path.write_text(json.dumps(raw))
    assert read_key(path).tasks == answer_key(raw, "data").tasks


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "no JSON"),
        ("[]", "no answer key"),
        ("{}", "holds no task"),
        ('{"one": {"domain": "d"}}', "missing required field"),
        (json.dumps({"one": {**task("a"), "turns": [[{"tool_calls": [{"id": "c"}]}]]}}), "task one"),
        (json.dumps({"one": {**task("a"), "saboteur": [[{"tool_calls": [{"name": "f", "arguments": "{"}]}]]}}), "one"),
    ],
)
def test_what_is_no_key_says_where(tmp_path: Path, text: str, reason: str) -> None:
    """Each kind of damage is one line that names the file and the place."""
    path = tmp_path / "key.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=reason) as refused:
        read_key(path)
    assert str(path) in str(refused.value)


def test_no_file_is_named(tmp_path: Path) -> None:
    """A key file that is not there is said to be missing."""
    with pytest.raises(BadInput, match="No such file"):
        read_key(tmp_path / "none.json")


def test_lessons_are_about_the_rarest_function_that_is_shared() -> None:
    """Of a task's functions the one that the fewest tasks have, but at least three; else its commonest."""
    families = [("look", "pay")] * 4 + [("look", "ship")] * 3 + [("look", "once")] + [("alone", "also.once")] + [()]
    raw = {f"t{at}": task(f"text {at}", *family) for at, family in enumerate(families)}
    key: AnswerKey = answer_key(raw, "data")
    topics = [key.named(f"text {at}")[0].topic for at in range(len(families))]
    assert topics == ["pay"] * 4 + ["ship"] * 3 + ["look", "alone", "d"]
    assert key.named("text 8")[0].topics == ["alone", "also_once"]
