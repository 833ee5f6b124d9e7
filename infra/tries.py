"""The tries of one call to an endpoint: which failures are tried again, after which pause, and what is the last word.

The table is in `infra.error_table`; what calls in a row come to is counted in `infra.breaker`.
"""

import random
import re

from infra.breaker import ANSWERS_A_TRY, Breaker
from infra.model_errors import Failure
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped
from runtime.ports import Clock
from runtime.settings import ServerSettings

#: kind of the `RunStopped` for an endpoint that can be reached and gives no answer, call after call
DOWN = "endpoint_down"
#: and for one that refuses request after request, whatever they are
REFUSES = "endpoint_refuses"
#: refusals that a request may bring upon itself by what it says; as many as there are say nothing of its endpoint
_ITS_OWN = frozenset({"context", "content_filter", "poisoned"})
#: the longest pause between two tries, seconds; a server that loads its model is asked again sooner
LONGEST_PAUSE_S, LONGEST_WARM_UP_PAUSE_S = 120.0, 5.0

#: what tells one error from the next where they are the same: numbers, ids, times
_NUMBERED = re.compile(r"\b(?:\w+_)?[0-9a-f-]{8,}\b|\d+", re.IGNORECASE)


class Tries:
    """Of one call, from now on.

    Args:
        endpoint: how patiently it is asked.
        key: that was sent to it; "" = none.
        breaker: of the endpoint's model, shared by its calls.
        clock: waits between tries.
        rng: jitter.
        budget: further tries that all calls to the endpoint's model may have spent at once; 0 = no bound.
    """

    def __init__(
        self, endpoint: ServerSettings, key: str, breaker: Breaker, clock: Clock, rng: random.Random, budget: int = 0
    ) -> None:
        self._endpoint, self._key, self._breaker, self._clock, self._rng = endpoint, key, breaker, clock, rng
        self._budget = budget
        self._given_up = breaker.given_up
        self._failures: list[Failure] = []
        self._ends_s = clock.monotonic() + endpoint.deadline_s

    @property
    def limit_s(self) -> float:
        """How long the next try may take, seconds >= 0."""
        return max(0.0, min(self._endpoint.timeout_s, self._ends_s - self._clock.monotonic()))

    @property
    def failed(self) -> int:
        """Tries that have failed."""
        return len(self._failures)

    def waited(self, seconds: float) -> None:
        """The next try had to wait so long for its turn, which is no time of the endpoint's."""
        self._ends_s += seconds

    def answered(self) -> None:
        """The call has its answer."""
        self._breaker.answered()

    def pause_s(self, failure: Failure) -> float:
        """How long to wait after one more try that failed, as `Failure.shown`.

        Raises:
            RunStopped: nothing on this endpoint can work.
            ModelRefused: this request will not be answered.
            ModelUnavailable: no answer within the tries.
        """
        self._failures.append(failure)
        pause_s = self._pause_s(failure)
        final = self._final(in_time=self._clock.monotonic() + pause_s < self._ends_s)
        if final is not None:
            raise self._counted(final, failure)
        return pause_s

    def _final(self, *, in_time: bool) -> RunStopped | ModelRefused | ModelUnavailable | None:
        """What the last failure means after those before it; None: another try, where there is time for one."""
        failure, endpoint = self._failures[-1], self._endpoint
        told = f"{endpoint.base_url}: {failure.reason}"
        if failure.action == "stop":
            if failure.kind == "key" and not self._key:
                told += f" (no key was sent: {endpoint.api_key_env or 'api_key_env'} is empty)"
            return RunStopped(failure.kind, told, failure.status)
        if failure.action in ("refuse", "change"):
            return ModelRefused(failure.kind, failure.reason, failure.status)
        if self._is_poison():
            return ModelRefused(failure.kind, f"twice the same: {failure.reason}", failure.status)
        tries = "1 try" if len(self._failures) == 1 else f"{len(self._failures)} tries"
        # Another call gave the endpoint up after this one began.
        if self._breaker.given_up > self._given_up:
            return RunStopped(DOWN, f"{told} ({tries}; another call gave the endpoint up)", failure.status)
        if failure.action == "give_up" or self._is_last():
            return ModelUnavailable(failure.kind, f"{told} ({tries})", failure.status)
        if not in_time:
            tries += f", and no time for another within {endpoint.deadline_s:g} s"
            return ModelUnavailable(failure.kind, f"{told} ({tries})", failure.status)
        # A try that the server asks for itself, by a time or by loading its model, is no burden to it.
        invited = failure.retry_after_s is not None or failure.kind == "warming_up"
        if not invited and not self._breaker.retry(self._budget):
            tries += f", and none of the {self._budget} that this process may make again is left: "
            tries += f"{ANSWERS_A_TRY} answers earn one"
            return ModelUnavailable(failure.kind, f"{told} ({tries})", failure.status)
        return None

    def _is_poison(self) -> bool:
        """Whether this request, and no other, brings the server to fail: it has said the same twice in a row."""
        failure, before = self._failures[-1], self._failures[-2:-1]
        if failure.status != 500 or not before:
            return False
        same = [one for one in before if one.kind == failure.kind]
        if failure.spent == "refuse":
            return bool(same)
        return any(_NUMBERED.sub("", one.reason) == _NUMBERED.sub("", failure.reason) for one in same)

    def _is_last(self) -> bool:
        """Whether the number of tries is used up: of all, or of those that failed alike."""
        failure = self._failures[-1]
        alike = sum(one.kind == failure.kind for one in self._failures)
        return len(self._failures) > self._endpoint.retries or (failure.further is not None and alike > failure.further)

    def _pause_s(self, failure: Failure) -> float:
        """What the server asked for, and full jitter over a pause that doubles."""
        longest = LONGEST_WARM_UP_PAUSE_S if failure.kind == "warming_up" else LONGEST_PAUSE_S
        doubled = min(longest, self._endpoint.retry_base_s * 2.0 ** min(len(self._failures) - 1, 32))
        return (failure.retry_after_s or 0.0) + self._rng.uniform(0, doubled)

    def _counted(
        self, final: RunStopped | ModelRefused | ModelUnavailable, failure: Failure
    ) -> RunStopped | ModelRefused | ModelUnavailable:
        """What the call came to, beside what others came to: `RunStopped` where the endpoint is given up."""
        if isinstance(final, RunStopped):
            return final
        if isinstance(final, ModelRefused) and (failure.action != "retry" or failure.spent == "refuse"):
            return self._refused(final)
        if failure.unreached:
            self._breaker.give_up()
            return RunStopped(failure.kind, final.reason, failure.status)
        if self._breaker.fail(self._endpoint.stop_after):
            calls = f"{self._breaker.failed} calls in a row got no answer"
            return RunStopped(DOWN, f"{self._endpoint.base_url}: {failure.reason} ({calls})", failure.status)
        return final

    def _refused(self, final: ModelRefused) -> RunStopped | ModelRefused:
        """What one more refusal means beside those before it."""
        if final.kind in _ITS_OWN:
            self._breaker.answered()
            return final
        if self._breaker.given_up > self._given_up and final.kind == self._breaker.refused_as:
            calls = "another call gave the endpoint up"
        elif self._breaker.refuse(final.kind, self._endpoint.stop_after):
            calls = f"{self._endpoint.stop_after} calls in a row were refused"
        else:
            return final
        return RunStopped(REFUSES, f"{self._endpoint.base_url}: {final.reason} ({calls})", final.status)
