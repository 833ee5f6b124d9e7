"""docs/endpoints.md against the code: the tables of failures, of ends and of odd answers."""

import re
from collections.abc import Callable
from typing import Any

from infra.completion import BROKEN_OFF, FINISHES, FLAGS
from infra.error_table import TABLE, Row

NAME = "docs/endpoints.md"


def test_the_page_shows_the_table(page: Callable[[str], Any]) -> None:
    """Every row, in the order in which they decide."""
    shown = [[cell.strip("`") for cell in row] for row in page(NAME).table("condition")]
    assert shown == [[row.condition, statuses(row), row.kind, action(row), after(row)] for row in TABLE]


def test_the_page_shows_how_answers_end(page: Callable[[str], Any]) -> None:
    """Every word of a server's, in the row of ours."""
    shown = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in page(NAME).table("`finish_reason`")}
    known = {ours: {word for word, end in FINISHES.items() if end == ours} for ours in FINISHES.values()}
    assert shown == {**known, "none": set(BROKEN_OFF)}


def test_the_page_shows_what_is_odd(page: Callable[[str], Any]) -> None:
    """Every flag of a completion, with its meaning."""
    shown = {row[0].strip("`"): row[1] for row in page(NAME).table("flag")}
    assert shown.items() >= FLAGS.items()


def statuses(row: Row) -> str:
    """The statuses of a row, as people write them."""
    if row.statuses in (range(300, 400), range(400, 500)):
        return f"{min(row.statuses) // 100}xx"
    if 599 in row.statuses:
        return ", ".join([*(str(status) for status in sorted(row.statuses) if status < 500), "5xx"])
    return ", ".join(str(status) for status in sorted(row.statuses)) or "none"


def action(row: Row) -> str:
    """What is done, in words."""
    if row.action == "change":
        return f"change {row.capability}"
    if row.action == "retry" and row.further is not None:
        return f"retry, at most {row.further} more"
    return row.action


def after(row: Row) -> str:
    """What it comes to in the end."""
    return "" if row.action == row.spent else row.spent
