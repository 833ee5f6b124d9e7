"""Whether a run is open, paused, cancelled or finished: the last word about it in its own stream."""

from dataclasses import dataclass
from typing import get_args

from events.kinds import AnyEvent, Noted, Operated, Outcome, RunFinished

#: statuses after which nothing is left to do
FINISHED: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands."""

    #: `open`, `paused`, `cancelled`, or the outcome of its end
    status: str = "open"
    #: why it is paused or cancelled
    reason: str = ""
    #: what it stopped over, as in `runtime.errors.RunStopped`; "" where somebody paused it
    kind: str = ""

    def after(self, event: AnyEvent) -> "Standing":
        """How it stands once `event` of its own stream was told."""
        if self.status == "cancelled" and not isinstance(event, RunFinished):
            return self  # for good
        match event:
            case Operated(action="cancel"):
                return Standing("cancelled", event.reason)
            case Operated(action="pause"):
                return Standing("paused", event.reason)
            case Operated(action="resume"):
                return Standing()
            case Noted(topic="run_stopped"):
                return Standing("paused", str(event.facts.get("reason", "")), str(event.facts.get("kind", "")))
            case RunFinished():
                return Standing(event.outcome, self.reason)
            case _:
                return self
