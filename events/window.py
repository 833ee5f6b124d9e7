"""The versions of a run's banks that somebody may still read."""

from collections import deque

from events.bank import Banks
from events.ids import BankVersion
from events.kinds import RunConfig

#: more versions than any run has, and what a deque can count
_MOST = 1 << 60


class Window:
    """The newest ones: an open episode t reads max(0, t+1-L), and t is not folded yet. A frozen run reads version 0."""

    def __init__(self, config: RunConfig, seed: Banks) -> None:
        lag = config.lag if config.lag != "latest" else 0
        # Twice the concurrency: in `latest` mode a slow episode's version may be that far behind.
        held = min(lag + 2 * config.concurrency + 1, _MOST)
        self._newest: deque[Banks] = deque([seed], maxlen=held)
        self._seed = seed if config.frozen else None

    def add(self, banks: Banks) -> None:
        """The next version; or the newest one again, for a seed bank that comes in several events."""
        if banks.version == self._newest[-1].version:
            self._newest[-1] = banks
            if self._seed is not None and banks.version == self._seed.version:
                self._seed = banks
        else:
            self._newest.append(banks)

    @property
    def newest(self) -> Banks:
        """The newest version."""
        return self._newest[-1]

    @property
    def oldest(self) -> BankVersion:
        """The oldest of the newest versions held."""
        return self._newest[0].version

    def at(self, version: BankVersion) -> Banks | None:
        """The banks at `version`, where they are still held."""
        if self._seed is not None and version == self._seed.version:
            return self._seed
        place = version - self.oldest
        return self._newest[place] if 0 <= place < len(self._newest) else None
