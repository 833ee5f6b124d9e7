"""A seeded schedule of what goes wrong: kills, pauses, a server that is away, a line that cuts, delays and swallows."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random

from chaos_budget import LONG
from troupe import RUN, Member, Troupe

#: fault -> how often, among all
WEIGHTS = {
    "kill_act": 5, "kill_diagnose": 3, "kill_coordinator": 4, "kill_host": 3, "kill_server": 2,
    "pause_act": 1, "pause_diagnose": 1, "pause_coordinator": 2, "pause_server": 1,
    "cut": 2, "delay": 1, "swallow_answers": 2, "swallow_commands": 1, "archive": 2 if LONG else 0,
}  # fmt: skip
#: these come first, in some order
FIRST = (
    "kill_act", "kill_diagnose", "kill_coordinator", "kill_host", "kill_server", "pause_coordinator", "cut",
    "swallow_answers",
)  # fmt: skip
#: how long one fault is given to be survived before the next one comes, seconds
_NEWS_S = 6.0
#: faults that are over by themselves: when, and what ends them
_Ends = list[tuple[float, Callable[[], None]]]


class Faults:
    """Plays a schedule against a troupe; the same seed gives the same faults as far as those they hit are there."""

    def __init__(self, troupe: Troupe, seed: int) -> None:
        self._troupe, self._dice = troupe, Random(seed)  # noqa: S311 - chance, no secret
        self._ends: _Ends = []
        self.done: Counter[str] = Counter()
        #: every event that could be read when something was hit: position -> bytes
        self.seen: dict[int, dict[bytes, bytes]] = {}

    @property
    def kills(self) -> int:
        """How many processes were killed or paused, and how often the line failed."""
        return self.done.total()

    def play(self, count: int) -> None:
        """Up to `count` faults, one every 0.5 to 2 s; fewer where the run ends before."""
        names, weights = list(WEIGHTS), list(WEIGHTS.values())
        first = self._dice.sample(FIRST, len(FIRST))
        while self.kills < count and not self._finished():
            self._wait(self._dice.uniform(0.5, 2.0), self._troupe.length)
            name = first.pop(0) if first else self._dice.choices(names, weights)[0]
            self._look()
            if self._hit(name):
                self.done[name] += 1
            elif name in FIRST and not self.done[name]:
                first.append(name)
        self.calm()

    def calm(self) -> None:
        """End every fault that lasts."""
        for _, end in sorted(self._ends, key=lambda one: one[0]):
            end()
        self._ends = []

    def _finished(self) -> bool:
        return self._troupe.finished()

    def _look(self) -> None:
        after = max(self.seen, default=0)
        key = next(iter(self._troupe.server.client.scan_iter(match="*:log", count=1000)), None)
        entries = self._troupe.server.client.xrange(key, min=f"{after + 1}-0") if key else []
        self.seen |= {int(name.split(b"-")[0]): fields for name, fields in entries}

    def _wait(self, seconds: float, length: Callable[[], int]) -> None:
        """For so long, and for news, which on a busy machine take longer; without them too in the end."""
        before, began = length(), time.monotonic()
        while (now := time.monotonic()) < began + seconds or (now < began + _NEWS_S and length() == before):
            for one in [one for one in self._ends if one[0] <= now]:
                self._ends.remove(one)
                one[1]()
            self._troupe.revive()
            time.sleep(0.05)

    def _later(self, seconds: float, end: Callable[[], None]) -> None:
        self._ends.append((time.monotonic() + seconds, end))

    def _one(self, role: str) -> Member | None:
        """A member of that role that is at work."""
        found = [one for one in self._troupe.members if one.name.startswith(role) and one.ready]
        return self._dice.choice(found) if found else None

    def _hit(self, name: str) -> bool:
        """Whether there was something to hit."""
        what, _, whom = name.partition("_")
        match what, whom:
            case _, "server":
                self._hit_server(what)
            case _, "host":
                return self._kill_host()
            case "archive", _:
                self._archive()
            case "kill" | "pause", _:
                return self._hit_member(what, whom)
            case _:
                self._hit_line(what, whom)
        return True

    def _hit_server(self, what: str) -> None:
        server, dice = self._troupe.server, self._dice
        if what == "kill":
            server.restart(dice.choice((0.0, 0.5, 2.0)))
            return
        server.signal(signal.SIGSTOP)
        time.sleep(dice.choice((0.3, 1.0, 3.0)))
        server.signal(signal.SIGCONT)

    def _kill_host(self) -> bool:
        hosts = self._troupe.hosts()
        if hosts:
            with suppress(ProcessLookupError):
                os.kill(self._dice.choice(hosts), signal.SIGKILL)
        return bool(hosts)

    def _hit_member(self, what: str, role: str) -> bool:
        troupe = self._troupe
        if (member := self._one(role)) is None:
            return False
        if what == "kill":
            troupe.kill(member)
        else:
            troupe.pause(member)
            self._later(self._dice.choice((0.3, 2.0, 12.0)), lambda: troupe.go_on(member))
        return True

    def _archive(self) -> None:
        """The log's beginning out of the server, by somebody who is killed at it or not."""
        archiver = self._troupe.once("archive", "log", "archive", RUN)
        self._later(self._dice.choice((1.0, 3.0, 6.0, 60.0)), archiver.kill)

    def _hit_line(self, what: str, which: str) -> None:
        line, dice = self._troupe.line, self._dice
        if what == "cut":
            line.cut()
        elif what == "delay":
            line.delay(dice.choice((0.05, 0.3)))
            self._later(2.0, lambda: line.delay(0))
        else:
            line.swallow(which)
            self._later(dice.choice((0.3, 1.0)), lambda: line.swallow(""))
