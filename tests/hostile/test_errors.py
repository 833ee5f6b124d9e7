"""Every error, in the words of many servers, and what they cannot do, for every role."""

import pytest
from every_row import case_id, cases
from hostile_case import assert_as_expected
from hostile_rows import Row


@pytest.mark.parametrize(("row", "role"), cases("statuses", "abilities", "context", "usage", "warm-up"), ids=case_id)
async def test_a_row(row: Row, role: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What comes of it is what the row says: in the events, in the call record and in the log lines."""
    await assert_as_expected(row, role, tmp_path_factory.getbasetemp())
