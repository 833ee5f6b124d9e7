"""The rows as a whole: enough of them, each with a name of its own, none put off."""

from collections import Counter

from every_row import CASES, ROWS
from hostile_rows import ROLES

from infra.error_table import TABLE

#: rows that do not hold yet -> whose they are; they are named here, and nowhere skipped
NOT_YET: dict[str, str] = {}


def test_rows_are_many_and_each_is_one() -> None:
    """At least 200 rows; no two cases share a name; each role meets every area but those of one role."""
    assert len(ROWS) >= 200
    assert [name for name, count in Counter((row.name, role) for row, role in CASES).items() if count > 1] == []
    met = {role: {row.area for row, one in CASES if one == role} for role in ROLES}
    assert met["planner"] <= met["executor"]
    assert met["executor"] - met["planner"] == set()
    assert met["gate"] - met["executor"] == {"gate", "experiences"}


def test_every_kind_of_failure_is_met() -> None:
    """Each word of the table of errors is what comes of some row."""
    met: set[str] = set()
    for row, role in CASES:
        came = row.expect(role)
        met.update(
            came.get("unanswered", ()), came.get("retried", ()), (f"no_{one}" for one in came.get("changed", ()))
        )
    assert {row.kind for row in TABLE} - met == set()


def test_no_row_is_put_off() -> None:
    """What does not hold is said."""
    assert NOT_YET == {}, NOT_YET
