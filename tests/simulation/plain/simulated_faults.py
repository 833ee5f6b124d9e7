"""What can go wrong in a simulated world, and how likely it is there: wholly decided by the world's seed.

A fault strikes a *call*: one request of a process through one of its ports, and the reply. Its fates:

- `kill_before`, `kill_after`: the calling process dies before the request is sent, or once it has acted, before a reply
- `lost_request`, `lost_reply`: the caller is told that the server is away; nothing, or everything, was done
- `doubled`: the request acts twice, as when a client repeats what it believes lost; the caller gets the second reply
- `late`: a copy of the request acts once more after up to `LATE_S`, whether its sender lives or not
- `slow`: request and reply take seconds
- `tail`: on its way the server comes back without its last seconds, which the caller has read
- `crash`: the environment's host ends; `full`: no room where bodies are kept

Beside calls, a *storm* lasts for the world's first part: processes are killed at any moment, stopped politely or frozen
for seconds; the server goes away, and may come back without its last seconds; wall clocks jump; new episodes have no
room. Each world has its own mixture. And each one *aims* at one port with one fate, in turn, so that a few hundred
worlds have seen every fate of every port.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Literal

Fate = Literal[
    "kill_before", "kill_after", "lost_request", "lost_reply", "doubled", "late", "slow", "tail", "crash", "full",
]  # fmt: skip

_KILLS: tuple[Fate, ...] = ("kill_before", "kill_after")
_SERVER: tuple[Fate, ...] = (*_KILLS, "lost_request", "lost_reply", "doubled", "slow")

#: port -> what can happen to its calls
FATES: dict[str, tuple[Fate, ...]] = {
    "log.append": (*_SERVER, "late", "tail"),
    "log.read_stream": _SERVER,
    "log.length": _SERVER,
    "log.read": _SERVER,
    "log.head": _SERVER,
    "log.wait": _SERVER,
    "log.checkpoint": _SERVER,
    "store.runs": _SERVER,
    "store.set_aside": _SERVER,
    "queue.enqueue": (*_SERVER, "late"),
    "queue.asked": _SERVER,
    "queue.lost": _SERVER,
    "queue.discard": _SERVER,
    "queue.refused": _SERVER,
    "queue.runs": _SERVER,
    "queue.tidy": _SERVER,
    "queue.take": _SERVER,
    "queue.renew": _SERVER,
    "queue.settle": _SERVER,
    "lease.hold": _SERVER,
    "lease.release": _SERVER,
    "intake.stopped": _SERVER,
    "calls.all": _SERVER,
    "calls.get": _SERVER,
    "calls.put": (*_SERVER, "late"),
    "failures.record": _SERVER,
    "blobs.put": (*_KILLS, "slow", "full"),
    "blobs.get": (*_KILLS, "slow"),
    "model.complete": (*_KILLS, "slow", "doubled"),
    "environment.reset": (*_KILLS, "slow", "crash"),
    "environment.step": (*_KILLS, "slow", "crash"),
    "environment.evaluate": (*_KILLS, "slow", "crash"),
}

#: every fate of every port
AIMS: list[tuple[str, Fate]] = [(port, fate) for port, fates in FATES.items() for fate in fates]
#: how often a world hits what it aims at
_HITS = 3

#: a copy of a request acts within so many seconds
LATE_S = 8.0
#: of an episode, at most; a third would end it without a score
CRASHES = 2


@dataclass(frozen=True, kw_only=True)
class Weather:
    """How bad one world is."""

    #: how long it is bad, virtual seconds
    storm_s: float
    #: fate -> its chance at one call
    chances: dict[Fate, float]
    #: what is bound to happen to some calls of a port, and the chance at each one until it has
    aim: tuple[str, Fate] | None = None
    aim_chance: float = 0.0
    #: mean time between two of them, seconds; 0 = none
    kills_s: float = 0.0
    stops_s: float = 0.0
    pauses_s: float = 0.0
    outages_s: float = 0.0
    #: chance that a server that was away comes back without its last seconds
    tail_lost: float = 0.0
    jumps_s: float = 0.0
    full_s: float = 0.0
    #: chance that a worker takes another job than the first of its queue
    reordered: float = 0.0
    #: how long a job may stay out of sight, seconds
    job_delay_s: float = 0.0


#: a world in which nothing happens
CALM = Weather(storm_s=0.0, chances={})


def weather(seed: int) -> Weather:
    """The weather of world `seed`."""
    dice = Random(f"weather {seed}")  # noqa: S311 - chance, no secret

    def often(*means_s: float) -> float:
        return dice.choice((0.0, 0.0, *means_s))

    fates: list[Fate] = ["lost_request", "lost_reply", "doubled", "late", "slow"]
    chances: dict[Fate, float] = {fate: dice.choice((0.0, 0.005, 0.02)) for fate in fates}
    deadly = dice.choice((0.0, 0.0005, 0.0015))
    chances |= {"kill_before": deadly, "kill_after": deadly, "crash": dice.choice((0.0, 0.01)), "full": 0.005}
    return Weather(
        storm_s=dice.uniform(10, 40),
        chances=chances,
        aim=AIMS[seed % len(AIMS)],
        aim_chance=dice.choice((0.05, 0.3)),
        kills_s=often(6, 15),
        stops_s=often(15),
        pauses_s=often(5, 15),
        outages_s=often(8, 15),
        tail_lost=dice.choice((0.0, 0.5, 1.0)),
        jumps_s=often(5),
        full_s=often(15),
        reordered=dice.choice((0.0, 0.3, 1.0)),
        job_delay_s=dice.choice((0.0, 0.1, 2.0)),
    )


@dataclass
class Faults:
    """Decides the fate of each call, and counts."""

    weather: Weather
    dice: Random
    #: (port, fate) -> how often
    struck: Counter[tuple[str, Fate]] = field(default_factory=Counter)
    #: whether the storm lasts
    storming: bool = True

    def fate(self, port: str) -> Fate | None:
        """What happens to the next call through `port`; None = all goes well."""
        aim = self.weather.aim
        if aim is not None and aim[0] == port and self.struck[aim] < _HITS and self._hits():
            return self._struck(*aim)
        if not self.storming:
            return None
        draw = self.dice.random()
        for fate in FATES[port]:
            draw -= self.weather.chances.get(fate, 0.0)
            if draw < 0:
                return self._struck(port, fate)
        return None

    def _hits(self) -> bool:
        """Whether the world hits what it aims at; where calls of that port are rare, as storms end, the first one."""
        return not self.storming or self.dice.random() < self.weather.aim_chance

    def _struck(self, port: str, fate: Fate) -> Fate:
        self.struck[port, fate] += 1
        return fate

    def delays_s(self, *, slow: bool = False) -> tuple[float, float]:
        """How long a request and its reply are under way; most of them no time at all."""
        if slow:
            return self.dice.uniform(0.2, 4.0), self.dice.uniform(0.2, 4.0)
        draw = self.dice.random()
        if draw < 0.75:
            return 0.0, 0.0
        return ((draw - 0.75) / 10, 0.0) if draw < 0.9 else (0.0, (draw - 0.9) / 5)
