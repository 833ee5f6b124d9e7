"""How a run's gate fares: how often it gives no judgement, is asked twice, and names memories nobody was given."""

import re
from collections import Counter, deque
from dataclasses import dataclass, field

from msgspec import UNSET, Struct

from events.kinds import Diagnosed
from runtime.gate import MEANT
from workers.configuration import RunSettings

#: of how many diagnoses, the last ones, the share that warns is taken
WINDOW = 50
#: and of how many at least: one of the first three says nothing
FEWEST = 10
#: share of degraded diagnoses above which a run warns
WARN_DEGRADED = RunSettings().warn_degraded

#: the call of a repair turn
_REPAIR = re.compile(r"/gate/[0-9]+\.[0-9]+")


class GateFigures(Struct, frozen=True, kw_only=True):
    """The counts, of the episodes that were to be judged."""

    to_judge: int
    #: without a usable judgement
    degraded: int
    #: share of those, in [0, 1]; None where there was none
    degraded_rate: float | None
    #: read only after the repair turn
    repaired: int
    #: memories named as misleading
    misleading: int
    #: and names that nobody was given
    misleading_dropped: int
    #: what was wrong with answers that could not be read, repaired ones too: kind -> count
    unread: dict[str, int]


@dataclass(slots=True)
class GateRates:
    """Feed it the diagnoses of a run in order."""

    degraded: int = 0
    repaired: int = 0
    dropped: int = 0
    _to_judge: int = 0
    _misleading: int = 0
    _unread: Counter[str] = field(default_factory=Counter)
    _reasons: deque[str | None] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _warned: bool = False

    def see(self, event: Diagnosed) -> None:
        """One more diagnosis; those that nobody was to make do not count."""
        if event.degraded in MEANT:
            return
        self._to_judge += 1
        self._reasons.append(event.degraded)
        self.degraded += event.degraded is not None
        self.repaired += event.degraded is None and any(_REPAIR.search(one) for one in event.calls)
        self.dropped += event.misleading_dropped
        self._misleading += len(event.misleading)
        if event.unread is not UNSET:
            self._unread.update(event.unread)

    def warning(self, above: float) -> str:
        """Why to look at the gate, once each time the share of degraded diagnoses rises above `above`; else "".

        It has to fall to half of that before it can rise again: a share at the bound does not warn all the time.
        """
        reasons = Counter(one for one in self._reasons if one is not None)
        share = reasons.total() / max(1, len(self._reasons))
        if share <= above / 2:
            self._warned = False
        if self._warned or len(self._reasons) < FEWEST or share <= above:
            return ""
        self._warned = True
        told = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        return f"{reasons.total()} of the last {len(self._reasons)} diagnoses are degraded ({told}), above {above:.0%}"

    def figures(self) -> GateFigures:
        """The counts so far."""
        return GateFigures(
            to_judge=self._to_judge,
            degraded=self.degraded,
            degraded_rate=self.degraded / self._to_judge if self._to_judge else None,
            repaired=self.repaired,
            misleading=self._misleading,
            misleading_dropped=self.dropped,
            unread=dict(sorted(self._unread.items())),
        )
