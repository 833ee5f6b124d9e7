"""Every row, and every case: a row for one of the roles that it is for."""

import rows_abilities
import rows_experiences
import rows_finishes
import rows_gate
import rows_shapes
import rows_statuses
import rows_streams
import rows_tools
import rows_transport
import rows_usage
from hostile_rows import Row

ROWS: list[Row] = [
    row
    for rows in (
        rows_transport, rows_statuses, rows_shapes, rows_finishes, rows_tools, rows_abilities, rows_usage,
        rows_streams, rows_gate, rows_experiences,
    )
    for row in rows.ROWS
]  # fmt: skip

CASES: list[tuple[Row, str]] = [(row, role) for row in ROWS for role in row.roles]


def cases(*areas: str) -> list[tuple[Row, str]]:
    """The cases of these areas."""
    return [(row, role) for row, role in CASES if row.area in areas]


def case_id(part: object) -> str:
    """Half of a test's name."""
    return part.name if isinstance(part, Row) else str(part)
