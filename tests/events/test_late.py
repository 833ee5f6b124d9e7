import re
import subprocess
import sys
from copy import copy
from pathlib import Path

import pytest

from events.late import Late, late_pattern
from infra import error_table, token_estimates
from runtime import hostile, prompting

PROJECT = Path(__file__).parent.parent.parent


def test_a_module_is_loaded_when_it_is_asked_for_something() -> None:
    """Before the first use it is not imported; what it then gives is the module's own."""
    code = (
        "import sys; from events.late import Late; one = Late('colorsys'); before = 'colorsys' in sys.modules;"
        "used = one.rgb_to_hsv; import colorsys; print(before, used is colorsys.rgb_to_hsv, 'rgb_to_hsv' in vars(one))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "True"], done.stderr


def test_what_a_module_does_not_have_is_named() -> None:
    """An attribute that is not there is the module's own AttributeError."""
    with pytest.raises(AttributeError, match="'math' has no attribute 'none'"):
        _ = Late("math").none


def test_a_pattern_is_compiled_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before, and once; it answers as `re.compile`'s does."""
    compiled = list[str]()
    compile_ = re.compile

    def noted(text: str, flags: int) -> re.Pattern[str]:
        compiled.append(text)
        return compile_(text, flags)

    monkeypatch.setattr(re, "compile", noted)
    pattern = late_pattern("b(.)", re.IGNORECASE)
    assert compiled == []
    found = pattern.search("aBc")
    assert found is not None
    assert (found.group(1), pattern.sub("-", "bcB"), pattern.pattern) == ("c", "-B", "b(.)")
    assert compiled == ["b(.)"]


def test_every_late_pattern_compiles() -> None:
    """None of them is wrong, which would show only once a text is held against it."""
    patterns = [*token_estimates._WINDOWS, *token_estimates._PROMPTS, hostile._INJECTION, prompting._MARK]
    patterns += [one for row in error_table.TABLE for one in (row.words, row.never) if one is not None]
    assert len(patterns) > 50
    assert all(re.compile(one.pattern, one.flags) for one in patterns)
    assert copy(hostile._INJECTION).pattern == hostile._INJECTION.pattern


def test_reading_a_log_loads_no_numpy() -> None:
    """Kinds, codec, fold and checkpoint load without it: a listing decodes events and computes with no vector."""
    code = "import sys, events.checkpoint, events.fold, events.recall; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.split() == ["False"], done.stderr
