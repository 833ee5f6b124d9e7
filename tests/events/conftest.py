"""Both folds, for tables of literal numbers; laws that do not depend on how busy the machine is."""

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from plain_logs import Scribe
from two_folds import FOLDS, Outcome

settings.register_profile(
    "chime",
    deadline=None,  # a busy machine is no failure
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("CHIME_EXAMPLES", "100")),
)
settings.load_profile("chime")


@pytest.fixture(params=sorted(FOLDS))
def fold(request: pytest.FixtureRequest) -> Callable[[Scribe], Outcome]:
    """Each of the two folds in turn: a table's numbers are held against both."""
    return FOLDS[request.param]
