"""What lies between two banks, as a table."""

from collections.abc import Sequence

from workers.output import Output
from workers.tables import Column
from workers.terminal import clipped
from workers.views.banks import ItemChange

_SHOWN = 60
#: as the format's operations call them
_WORDS = {"added": "added", "text": "merged", "value": "value", "gone": "gone"}


def print_changes(output: Output, changes: Sequence[ItemChange]) -> None:
    """One row for each item that differs."""
    output.table(
        [
            Column("id"),
            Column("change"),
            Column("value", "right"),
            Column("n", "right"),
            Column("experience", wide=True),
        ],
        [
            [
                one.id,
                ", ".join(_WORDS[kind] for kind in one.changes),
                _moved(*[f"{row.value:+.3f}" if row else None for row in (one.before, one.after)]),
                _moved(*[str(row.n) if row else None for row in (one.before, one.after)]),
                _text(one),
            ]
            for one in changes
        ],
    )


def _moved(before: str | None, after: str | None) -> str:
    if before == after or before is None or after is None:
        return after or before or ""
    return f"{before} -> {after}"


def _text(one: ItemChange) -> str:
    """What an item says, or what a merge added to it."""
    row = one.after or one.before
    text = row.experience if row else ""
    if one.before and one.after and one.after.experience.startswith(one.before.experience):
        text = one.after.experience[len(one.before.experience) :] or text
    return clipped(" ".join(text.split()), _SHOWN)
