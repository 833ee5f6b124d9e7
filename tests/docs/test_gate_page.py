"""docs/gate.md against the tables it shows."""

from collections.abc import Callable
from typing import Any, get_args

from events.ids import Label
from runtime.diagnosis import REFUSALS, TOLERANCES
from runtime.hostile import INJECTIONS
from runtime.label_words import LABEL_WORDS
from runtime.lint import REASONS
from runtime.prompting import defused
from workers.configuration import RunSettings
from workers.gate_rates import FEWEST, WINDOW

NAME = "docs/gate.md"


def shown(text: str) -> str:
    """`text` as the page shows it: on one line, nothing invisible, no end of a cell."""
    marks = {"\n": "⏎", "\t": "⇥", "|": "\\|"}
    cell = "".join(marks.get(one, one if one.isprintable() else f"\\u{{{ord(one):x}}}") for one in text)
    cell = f"{cell[:60]}…" if len(cell) > 120 else cell
    return f"`` {cell} ``" if "`" in cell else f"`{cell}`"


def test_every_tolerance_has_its_row(page: Callable[[str], Any]) -> None:
    """The page lists the tolerances that the code knows, in its order, with its examples."""
    rows = [[f"`{one.name}`", one.what, shown(one.example)] for one in TOLERANCES]
    assert page(NAME).table("tolerance") == rows


def test_every_refusal_has_its_row(page: Callable[[str], Any]) -> None:
    """The page lists what is refused, likewise."""
    assert page(NAME).table("kind") == [[f"`{one.kind}`", one.what, shown(one.example)] for one in REFUSALS]


def test_every_word_for_a_label_is_listed(page: Callable[[str], Any]) -> None:
    """The page lists every word that is read as a label."""
    rows = [
        [language, *[", ".join(words[label]) for label in get_args(Label)]] for language, words in LABEL_WORDS.items()
    ]
    assert page(NAME).table("language") == rows


def test_every_lint_reason_has_its_row(page: Callable[[str], Any]) -> None:
    """The page lists every reason not to keep a text, and names the languages of its phrases."""
    rows = [[f"`{one.name}`", one.what, shown(one.example), shown(one.harmless)] for one in REASONS]
    assert page(NAME).table("reason") == rows
    assert ", ".join(INJECTIONS) in " ".join(page(NAME).text.split())


def test_the_numbers_of_the_warning(page: Callable[[str], Any]) -> None:
    """Window, fewest and share are those of the code."""
    text = " ".join(page(NAME).text.split())
    assert f"the last {WINDOW} diagnoses" in text
    assert f"`run.warn_degraded` ({RunSettings().warn_degraded})" in text
    assert FEWEST == 10
    assert "there are ten at least" in text


def test_the_tokens_it_names_do_not_work(page: Callable[[str], Any]) -> None:
    """Each token that the page names as defused is."""
    for token in ("<|im_start|>", "[INST]", "</s>", "<think>", "</task>"):
        assert f"`{token}`" in page(NAME).text
        assert token not in defused(token)
