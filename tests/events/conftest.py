"""Both folds, for tables of literal numbers."""

from collections.abc import Callable

import pytest
from plain_logs import Scribe
from two_folds import FOLDS, Outcome


@pytest.fixture(params=sorted(FOLDS))
def fold(request: pytest.FixtureRequest) -> Callable[[Scribe], Outcome]:
    """Each of the two folds in turn: a table's numbers are held against both."""
    return FOLDS[request.param]
