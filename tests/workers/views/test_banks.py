import re

import pytest

from events.errors import BadInput
from events.fold import replay
from events.ids import MemoryId
from workers.views.banks import LifeLine, difference, item_row, version_at


def life(made, memory):
    line = LifeLine(MemoryId(memory))
    for recorded in made.events:
        line.feed(recorded)
    return line


def test_life_of_an_item(made_run):
    """Each moment of an item names the episode, what happened, the label and the value after it."""
    line = life(made_run(), "planning-0")
    assert [(one.version, one.episode, one.what, one.n) for one in line.moments] == [
        (1, 0, "inserted", None),
        (2, 1, "credited", 1),
        (2, 1, "merged (appended)", None),
        (3, 2, "used", 2),
        (4, 3, "penalised", 3),
        (5, 4, "penalised", 4),
        (5, 4, "pruned", None),
    ]
    merged = next(one for one in line.moments if one.what.startswith("merged"))
    assert merged.text == "Another way to look at it, closely."
    assert (merged.label, merged.confidence_e4, merged.task) == ("both", 8000, "task-1")
    assert "execution-1" in line.known


def test_difference_between_versions(made_run):
    """Between two versions items are added, gone, or changed in text or value."""
    made = made_run()
    at = {}
    for end in range(1, len(made.events) + 1):
        state = replay(made.events[:end])
        at[state.banks.version] = state.banks
    assert difference(at[1], at[1]) == []
    first = difference(at[0], at[1])
    assert [(one.id, one.changes, one.before) for one in first] == [("planning-0", ["added"], None)]
    second = {one.id: one.changes for one in difference(at[1], at[2])}
    assert second["planning-0"] == ["text", "value"]
    assert second["execution-1"] == ["added"]
    back = {one.id: one.changes for one in difference(at[2], at[1])}
    assert back["execution-1"] == ["gone"]


def test_row_has_the_names_of_the_format(made_run):
    """An item is printed under the names that the format page fixes."""
    item = next(iter(made_run().banks))
    assert item_row(item).__struct_fields__ == (
        "bank", "id", "scenario", "experience", "delta_sum", "n", "value", "bullets", "sources", "seeded_sources",
        "inserted_at", "changed_at",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "version"), [(None, 50), ("0", 0), ("17", 17), ("50%", 25), ("25%", 12), ("100%", 50), ("0%", 0)]
)
def test_versions_by_number_and_percent(text, version):
    """A version is a number, a percentage of the newest rounded down, or the newest."""
    assert version_at(text, 50) == version


@pytest.mark.parametrize("text", ["51", "101%", "-1", "x", "", "%", "1.5", "²"])
def test_versions_that_are_none(text):
    """What is no version, or beyond the newest, is refused with what would be one."""
    with pytest.raises(BadInput, match=f"^--at {re.escape(text)}: "):
        version_at(text, 50)
    with pytest.raises(BadInput, match=f"^--seed-bank r@{re.escape(text)}: "):
        version_at(text, 50, f"--seed-bank r@{text}")
