"""A job's time stands still while it waits for its turn."""

from contextlib import ExitStack
from functools import partial
from itertools import count
from math import inf

import anyio
import pytest

from runtime.job_time import job_time, waited_s, waiting_for_turn


async def test_time_stands_still() -> None:
    """Nothing is cancelled meanwhile, and what is left of it is left afterwards."""
    with job_time(1000.0) as limit:
        before, began = limit.deadline, anyio.current_time()
        with waiting_for_turn():
            assert limit.deadline == inf
            await anyio.sleep(0.02)
        assert limit.deadline == pytest.approx(before + waited_s())
        assert 0 < waited_s() <= anyio.current_time() - began
    assert not limit.cancelled_caught
    assert waited_s() == 0


async def test_what_was_waited_is_what_the_limit_is_later_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, by a clock on which each look takes a second: many short waits eat nothing of a job's time."""
    monkeypatch.setattr(anyio, "current_time", partial(next, count(0.0)))
    with job_time(1000.0) as limit:
        before = limit.deadline
        with waiting_for_turn():
            pass
        assert (limit.deadline, waited_s()) == (before + 1, 1)


async def test_time_goes_on() -> None:
    """Behind a wait a limit is one as before it."""
    with anyio.fail_after(120), job_time(0.05) as limit:
        with waiting_for_turn():
            pass
        await anyio.sleep_forever()
    assert limit.cancelled_caught


async def test_several_may_wait_side_by_side() -> None:
    """What is left is as much as before the first of them, once the last of them is through, whichever that is."""
    with job_time(1000.0) as limit:
        first, last = ExitStack(), ExitStack()
        first.enter_context(waiting_for_turn())
        last.enter_context(waiting_for_turn())
        first.close()
        assert (limit.deadline, waited_s()) == (inf, 0)
        last.close()
        assert limit.deadline < inf


async def test_no_job_and_no_limit() -> None:
    """Whoever waits need not know."""
    with waiting_for_turn():
        assert waited_s() == 0
    with job_time(None) as limit, waiting_for_turn():
        assert limit.deadline == inf


async def test_a_wait_counts_without_a_limit_too() -> None:
    """An episode's own budget is without it."""
    with job_time(None) as limit:
        with waiting_for_turn(), waiting_for_turn():
            began = anyio.current_time()
            await anyio.sleep(0.02)
            least = anyio.current_time() - began
        assert waited_s() >= least
        assert limit.deadline == inf
