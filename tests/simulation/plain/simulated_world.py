"""One world: two coordinators, act and gate workers and a server, all of it the product's code behind doubles of ports.

A world is a function of its seed. trio schedules it, with a seeded order and a clock that jumps to the next deadline as
soon as everybody waits; nothing in it reads the machine's clock, starts a thread or iterates in the order of hashes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from random import Random
from typing import Any, Literal

import trio
from simulated_faults import CALM, Faults, Weather, weather
from simulated_ports import IntakeClient, Killed, LeasesClient, Process, ProcessClock, QueueClient, StoreClient
from simulated_server import CLOCK, RUN, SimulatedServer
from simulated_worker import Parts, Worker

from events.errors import ChimeError
from events.log import Recorded
from runtime.ports import Job, JobKind
from workers.coordinator import Coordinator, Ground
from workers.header import begin

Role = Literal["coordinator", "act", "diagnose"]

#: who takes part
CAST: tuple[tuple[Role, int], ...] = (("coordinator", 2), ("act", 3), ("diagnose", 2))
#: a dead process comes back after so many seconds
_BACK_S = (0.2, 6.0)
#: the world goes on for so long after the run's end: late copies and frozen processes have their say
_AFTER_S = 9.0
#: a world that is not through by then stands still, virtual seconds
DEADLINE_S = 400.0
#: bounds that hold for processes that nothing disturbs meanwhile, seconds
REISSUE_S, TAKEOVER_S = 5.0, 3.0
#: for so long before a death a coordinator must have been undisturbed: it waits after an outage, then judges nobody
_SETTLED_S = 1.5


@dataclass(kw_only=True)
class World:
    """Play it once with `played`, then look at what is left."""

    seed: int
    parts: Parts
    weather: Weather
    #: episodes whose jobs fail whenever they are tried
    hopeless: frozenset[int] = frozenset()
    #: work that kills whoever touches it, and with `contagious` every coordinator too
    poison: tuple[JobKind, int] | None = None
    contagious: bool = False
    #: what went wrong while it ran
    wrong: list[str] = field(default_factory=list)
    #: how long it took from a death to the reissue or takeover, where the bound applied, seconds
    reissues_s: list[float] = field(default_factory=list)
    takeovers_s: list[float] = field(default_factory=list)
    deaths: int = 0
    #: when the run had finished, virtual seconds
    finished_s: float = float("inf")

    def __post_init__(self) -> None:
        dice = Random(f"world {self.seed}")  # noqa: S311 - chance, no secret
        self.faults = Faults(weather=self.weather, dice=dice, storming=self.weather.storm_s > 0)
        self._dice = dice
        self._living: list[Process] = []
        self._incarnations = count(1)

    @property
    def events(self) -> list[Recorded]:
        return self.server.log.events

    def fingerprint(self) -> str:
        """Equal for worlds in which the same happened: every call with its moment and fate, every event."""
        found = sha256()
        for one in self.server.trace:
            found.update(repr(one).encode())
        for event in self.events:
            found.update(repr((event.id, event.position, event.at, event.attempt, event.cause, event.data)).encode())
        return found.hexdigest()

    # -- the play ------------------------------------------------------------------------------------------------------

    async def play(self) -> None:
        async with trio.open_nursery() as self._tasks:
            self.server = SimulatedServer(start=self._tasks.start_soon, faults=self.faults)
            for prompt in self.parts.beginning.prompts.by_name.values():
                self.server.blobs[prompt.sha256] = prompt.text.encode()
            await begin(self.server.log, self.parts.beginning.head)
            for role, number in CAST:
                for _ in range(number):
                    self._tasks.start_soon(self._live, role)
            self._storm()
            await self._until_finished()
            self.faults.storming = False
            if not self.wrong:
                await trio.sleep(_AFTER_S)
            self._tasks.cancel_scope.cancel()

    async def _until_finished(self) -> None:
        while not (self.events and self.events[-1].kind == "run_finished"):
            if self.wrong:
                return
            if CLOCK.now > DEADLINE_S:
                self.wrong.append(f"the run stands still: {len(self.events)} events after {DEADLINE_S:g} s")
                return
            await trio.sleep(0.5)
        self.finished_s = CLOCK.now

    def _process(self, name: str) -> Process:
        now = CLOCK.now
        origin = self._dice.uniform(0, 1e6)
        return Process(name=name, server=self.server, faults=self.faults, on_death=self._died, born=now,
                       disturbed_at=now, origin=origin)  # fmt: skip

    async def _live(self, role: Role) -> None:
        """A process that is started again whenever it has ended."""
        while True:
            process = self._process(f"{role}-{next(self._incarnations)}")
            self._living.append(process)
            try:
                with process.scope:
                    if role == "coordinator":
                        await self._coordinate(process)
                    else:
                        await Worker(process, role, self.parts, self._touched).work()
            except* Killed:
                pass
            except* Exception as problems:  # noqa: BLE001 - the edge of a process: that it ends so is what is looked for
                if not process.dead:
                    self.wrong.append(f"{process.name} ended with {problems.exceptions!r}")
            finally:
                self._living.remove(process)
            await trio.sleep(self._dice.uniform(*_BACK_S))

    async def _coordinate(self, process: Process) -> None:
        clock = ProcessClock(process)
        ground = Ground(queue=QueueClient(process), leases=LeasesClient(process), intake=IntakeClient(process),
                        clock=clock, holder=process.name)  # fmt: skip
        await Coordinator(StoreClient(process), ground).serve()

    def _touched(self, process: Process, job: Job) -> None:
        """A worker has taken a job."""
        if job.episode in self.hopeless:
            raise ChimeError("hopeless")
        if (job.kind, job.episode) == self.poison:
            self._tasks.start_soon(self._poisoned, process, 0.0 if self.contagious else self._dice.uniform(0, 2))

    async def _poisoned(self, process: Process, after_s: float) -> None:
        await trio.sleep(after_s)
        process.die()
        if self.contagious:
            for one in [one for one in self._living if one.name.startswith("coordinator")]:
                one.die()

    # -- the storm -----------------------------------------------------------------------------------------------------

    def _storm(self) -> None:
        chances: list[tuple[float, Callable[[], None]]] = [
            (self.weather.kills_s, self._kill_one), (self.weather.stops_s, self._stop_one),
            (self.weather.pauses_s, self._freeze_one), (self.weather.outages_s, self._take_server_away),
            (self.weather.jumps_s, self._jump), (self.weather.full_s, self._fill),
        ]  # fmt: skip
        for mean_s, strike in chances:
            if mean_s:
                self._tasks.start_soon(self._now_and_then, mean_s, strike)
        self._tasks.start_soon(self._calm_down)

    async def _now_and_then(self, mean_s: float, strike: Callable[[], None]) -> None:
        while True:
            await trio.sleep(self._dice.expovariate(1 / mean_s))
            if not self.faults.storming:
                return
            strike()

    async def _calm_down(self) -> None:
        await trio.sleep(self.weather.storm_s)
        self.faults.storming = False

    def _kill_one(self) -> None:
        if self._living:
            self._note("killed", process := self._dice.choice(self._living))
            process.die()

    def _stop_one(self) -> None:
        if self._living:
            self._note("stopped", process := self._dice.choice(self._living))
            process.disturbed_at = float("inf")
            process.scope.cancel()

    def _freeze_one(self) -> None:
        if not self._living:
            return
        self._note("frozen", process := self._dice.choice(self._living))
        now = CLOCK.now
        # What is under way slowly arrives while its sender is frozen, and may renew a lease.
        slow = process.disturbed_at > now
        # Frozen once more it does not wake sooner.
        process.frozen_until = max(process.frozen_until, now + self._dice.uniform(1, 20))
        process.disturbed_at = max(process.disturbed_at, process.frozen_until)
        if process.frozen_until > now + TAKEOVER_S and not slow:
            self._expect_takeover(process, now)

    def _take_server_away(self) -> None:
        server, now = self.server, CLOCK.now
        if self.finished_s < now or (self.events and self.events[-1].kind == "run_finished"):
            return
        server.away_until = server.disturbed_at = now + self._dice.uniform(0.3, 8)
        if self._dice.random() < self.weather.tail_lost:
            server.lose(self._dice.uniform(0.1, 2))

    def _jump(self) -> None:
        self.server.jumped_s += self._dice.choice((-1, 1)) * self._dice.uniform(1, 1e5)

    def _fill(self) -> None:
        self.server.full_until = CLOCK.now + self._dice.uniform(1, 6)

    def _note(self, what: str, process: Process) -> None:
        self.server.trace.append((round(CLOCK.now, 6), process.name, what, ""))

    # -- bounds --------------------------------------------------------------------------------------------------------

    def _died(self, process: Process) -> None:
        self.deaths += 1
        now = CLOCK.now
        # A hash dies with its key only: the claims stay until they expire.
        for job in sorted(self.server.queue.held_by(process.name), key=lambda one: (one.kind, one.episode)):
            self._tasks.start_soon(self._reissued, job, now)
        self._expect_takeover(process, now)

    def _expect_takeover(self, process: Process, now: float) -> None:
        holder = self.server.leases.now(RUN)
        if holder is not None and holder.name == process.name:
            standby = [one for one in self._living if one.name.startswith("coordinator") and one is not process
                       and self._settled(one, now, 3.0)]  # fmt: skip
            if standby:
                self._tasks.start_soon(self._taken_over, standby, now)

    def _settled(self, process: Process, at: float, for_s: float = _SETTLED_S) -> bool:
        """Nothing has happened to the process, or to the server, since `for_s` before `at`."""
        return not process.dead and max(process.disturbed_at, self.server.disturbed_at) < at - for_s

    async def _taken_over(self, standby: list[Process], died: float) -> None:
        await trio.sleep(TAKEOVER_S)
        taken = [at - died for at, _ in self.server.leases.taken if at > died]
        if taken:
            self.takeovers_s.append(taken[0])
        elif self.finished_s == float("inf") and any(self._settled(one, died, 3.0) for one in standby):
            self.wrong.append(f"at {died:.3f} the lease's holder was gone, and nobody took it within {TAKEOVER_S:g} s")

    async def _reissued(self, job: Job, died: float) -> None:
        holder = self.server.leases.now(RUN)
        office = next((one for one in self._living if holder is not None and one.name == holder.name), None)
        since = self.server.leases.taken[-1][0] if self.server.leases.taken else died
        if office is None or since > died - _SETTLED_S or not self._settled(office, died):
            return
        await trio.sleep(REISSUE_S)
        queue, now_holder = self.server.queue, self.server.leases.now(RUN)
        again = [at - died for at, one in queue.entered if at > died and _work_of(one) == _work_of(job)]
        if again:
            self.reissues_s.append(again[0])
            return
        entered = [one for _, one in queue.entered if _work_of(one) == _work_of(job)]
        known = any(queue.there(one) for one in entered)
        steady = now_holder is not None and now_holder.name == office.name and self._settled(office, died)
        # A server that has forgotten what came before an episode that had not begun: those come first again.
        begun = any(one.stream == f"episode-{job.episode}" for one in self.events)
        early = not begun and max(at for at, one in queue.entered if one == entered[-1]) < self.server.lost_at
        if steady and not known and entered[-1] == job and not self._done(job) and not early:
            self.wrong.append(f"at {died:.3f} {job} was lost, and not reissued within {REISSUE_S:g} s")

    def _done(self, job: Job) -> bool:
        ends = ("diagnosed", "abandoned") if job.kind == "diagnose" else ("scored", "diagnosed", "abandoned")
        stream = f"episode-{job.episode}"
        return any(
            one.kind in ends or one.kind == "run_finished" for one in self.events if one.stream in (stream, "run")
        )


def _work_of(job: Job) -> tuple[JobKind, int]:
    return job.kind, job.episode


def played(seed: int, parts: Parts, *, sky: Weather | None = None, **given: Any) -> World:
    """World `seed`, played to its end; with `sky` in another weather than its own."""
    world = World(seed=seed, parts=parts, weather=sky if sky is not None else weather(seed), **given)
    # trio's own tests of determinism do the same: the order in which ready tasks run comes from this generator.
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio._core._run._r.seed(seed)
    CLOCK.reset()
    trio.run(world.play, clock=CLOCK.trio)
    return world


def undisturbed(parts: Parts, hopeless: frozenset[int] = frozenset()) -> World:
    """The same run where nothing goes wrong but the jobs of `hopeless` episodes."""
    return played(0, parts, sky=CALM, hopeless=hopeless)
