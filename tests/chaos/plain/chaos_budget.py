"""How much chaos: little in `make test`, as much as was asked for in `make chaos`; a failure says how to repeat it.

`CHIME_CHAOS_MINUTES` is the time of the longest search, `CHIME_CHAOS_KILLS` how many faults running processes suffer,
`CHIME_CHAOS_SEED` where all of it begins.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, settings

MINUTES = float(os.environ.get("CHIME_CHAOS_MINUTES", "0"))
KILLS = int(os.environ.get("CHIME_CHAOS_KILLS", "0"))
SEED = int(os.environ.get("CHIME_CHAOS_SEED", "1"))

#: whether this is `make chaos`
LONG = MINUTES > 0 or KILLS > 0


def limit_s(short_s: float, share: float) -> float:
    """The time-out of a test that ends after `share` of the minutes: generous, it is there for what hangs."""
    return short_s + 120 * MINUTES * share


def rounds(share: float) -> Iterator[int]:
    """Seeds until `share` of the minutes is over, at least one."""
    end = time.monotonic() + 60 * MINUTES * share
    seed = SEED
    yield seed
    while time.monotonic() < end:
        seed += 1
        yield seed


@contextmanager
def told(seed: int, kills: int = 1) -> Iterator[None]:
    """A failure in the body says with which variables the same test does the same again."""
    try:
        yield
    except BaseException as error:
        error.add_note(
            f"again: CHIME_CHAOS_SEED={seed} CHIME_CHAOS_KILLS={kills if LONG else 0} CHIME_CHAOS_MINUTES=0 "
            "and this test alone"
        )
        raise


def searching(examples: int, steps: int = 30) -> settings:
    """One round of a search: a seed decides it wholly, whatever earlier ones found."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,  # a busy machine is no failure
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
