"""The time that a job may take, without what it waits for its turn at an endpoint: a low rate is nobody's slowness.

Kept with the task that runs the job, so that whoever waits deep inside need not know of its limit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

import anyio


class JobTime:
    """Of one job, from now on; its limit is the scope's deadline.

    Args:
        scope: of the job.
    """

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope
        #: who waits now; since when somebody has, and what was left of the limit then
        self._waiting, self._began, self._left_s = 0, 0.0, inf
        #: how long the job has waited for its turn, seconds
        self.waited_s = 0.0

    @contextmanager
    def standing(self) -> Iterator[None]:
        """The body does not count, and what waits beside it is no wait of its own."""
        if self._waiting == 0:
            self._began = anyio.current_time()
            self._left_s = self._scope.deadline - self._began
            self._scope.deadline = inf
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                now = anyio.current_time()
                self.waited_s += now - self._began
                self._scope.deadline = now + self._left_s


_TIME: ContextVar[JobTime] = ContextVar("job_time")


@contextmanager
def job_time(limit_s: float | None) -> Iterator[anyio.CancelScope]:
    """The body is a job that is cancelled after `limit_s` seconds of its own; None = without a limit."""
    with anyio.move_on_after(limit_s) as scope:
        within = _TIME.set(JobTime(scope))
        try:
            yield scope
        finally:
            _TIME.reset(within)


@contextmanager
def waiting_for_turn() -> Iterator[None]:
    """The body does not count as time of the job that it belongs to, where it belongs to one."""
    time = _TIME.get(None)
    if time is None:
        yield
        return
    with time.standing():
        yield


def waited_s() -> float:
    """How long the job that this belongs to has waited for its turn, seconds."""
    time = _TIME.get(None)
    return 0.0 if time is None else time.waited_s
