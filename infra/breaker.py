"""When an endpoint is given up: its failed calls in a row, and its further tries, over all calls of a process.

A count, not a lock: every call is made, and what it comes to decides. So nothing has to be closed again when a run is
resumed: the first answer sets the count back, and until there is one a failed call stops the run at once. Refusals are
counted anew: each is an answer, and its run may go on to what is not refused.

Further tries are bounded together as well, since an endpoint in trouble gets worse from being asked six times for every
call: what may be spent at once is a number, and answers earn it back.
"""

from dataclasses import dataclass

#: answers that earn one further try back
ANSWERS_A_TRY = 10


@dataclass(slots=True)
class Breaker:
    """How one model at one endpoint fares."""

    #: calls that got no answer, after all their tries, since the last answer
    failed: int = 0
    #: calls that were refused alike since the last answer, or since it was given up for them, and as what
    refused: int = 0
    refused_as: str = ""
    #: how often it was given up; a call that began before and fails after need not go on trying
    given_up: int = 0
    #: further tries that were made and not earned back, at least 0
    retried: int = 0
    #: answers since one was last earned back, in [0, ANSWERS_A_TRY)
    earned: int = 0

    def answered(self) -> None:
        """The endpoint works: it gave an answer, or refused one request for what it says."""
        self.refused, self.refused_as = 0, ""
        self._heard()

    def _heard(self) -> None:
        self.failed = 0
        self.earned += 1
        if self.earned == ANSWERS_A_TRY:
            self.earned = 0
            self.retried = max(0, self.retried - 1)

    def retry(self, budget: int) -> bool:
        """Whether one more further try may be made; it counts as made then.

        Args:
            budget: how many may be made that are not earned back; 0 = no bound.
        """
        if budget and self.retried >= budget:
            return False
        self.retried += 1
        return True

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

    def refuse(self, kind: str, stop_after: int) -> bool:
        """One more call was refused as `kind`, which need not be its own fault; whether that is one too many.

        Args:
            kind: of the refusal; another one begins anew.
            stop_after: refused calls in a row that an endpoint is given up for, at least 1.
        """
        self._heard()
        self.refused = self.refused + 1 if kind == self.refused_as else 1
        self.refused_as = kind
        if self.refused < stop_after:
            return False
        # From the start: a run that is resumed asks the request that was refused last before any other.
        self.refused = 0
        self.give_up()
        return True

    def give_up(self) -> None:
        """Calls under way may stop trying."""
        self.given_up += 1
