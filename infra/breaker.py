"""When an endpoint is given up: its failed calls in a row, over all calls of a process.

A count, not a lock: every call is made, and what it comes to decides. So nothing has to be closed again when a run is
resumed: the first answer sets the count back, and until there is one a failed call stops the run at once.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Breaker:
    """How one model at one endpoint fares."""

    #: calls that got no answer, after all their tries, since the last answer
    failed: int = 0
    #: how often it was given up; a call that began before and fails after need not go on trying
    given_up: int = 0

    def answered(self) -> None:
        """The endpoint works: it gave an answer, or refused one request."""
        self.failed = 0

    def fail(self, stop_after: int) -> bool:
        """One more call has failed; whether that is one too many.

        Args:
            stop_after: failed calls in a row that an endpoint is given up for, at least 1.
        """
        self.failed += 1
        if self.failed < stop_after:
            return False
        self.give_up()
        return True

    def give_up(self) -> None:
        """Calls under way may stop trying."""
        self.given_up += 1
