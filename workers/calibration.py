"""How a run's thresholds sit in its similarities: histograms, and how often each one fires, from the log alone.

Every number is a count over exact integer dots, so two who count the same log count the same. What another threshold
would have done is said of the recalls and decisions as they were made: under it, later banks would have been others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from events import policies
from events.bank import Banks
from events.codec import decode
from events.fold import REPLAY_KINDS, State, step
from events.ids import STAGES, MemoryId, Stage, attributed
from events.kinds import Diagnosed, Experience, Folded, Retrieved
from events.log import Recorded
from events.operations import Discarded, Inserted, Merged, Operation, Pruned
from events.parameters import Parameters
from events.recall import rank
from events.rules import merges, nearest
from events.vectors import DOT_ONE
from events.window import Window
from workers.profiles import THRESHOLDS

RECALL_KIND = "retrieved"
#: the kinds that a calibration reads
KINDS = REPLAY_KINDS | {RECALL_KIND}

#: bars of a histogram in 1, and in -1 to 1
BARS_PER_ONE = 20
BARS = 2 * BARS_PER_ONE

#: threshold -> how far its neighbours are from the run's own
_STEPS: Mapping[str, tuple[str, ...]] = {
    "floor": ("-0.1", "-0.05", "0", "0.05", "0.1"),
    "margin": ("-0.02", "-0.01", "0", "0.01", "0.02"),
    "novelty": ("-0.05", "-0.02", "0", "0.02", "0.05"),
    "theta_merge": ("-0.05", "-0.02", "0", "0.02", "0.05"),
}
_RANGES: Mapping[str, tuple[int, int]] = {"floor": (-1, 1), "margin": (0, 2), "novelty": (0, 2), "theta_merge": (-1, 1)}

Of = Literal["query_scenario", "scenario_scenario", "experience_experience"]
#: every pair of a recall; a new experience and what was nearest to it; a live item and what is nearest to it
Among = Literal["recalls", "decisions", "bank"]


class Histogram(Struct, frozen=True, kw_only=True):
    """Similarities of one kind."""

    of: Of
    among: Among
    #: how many similarities
    count: int
    #: bar k holds those in [-1 + k/20, -1 + (k+1)/20); the last one 1 and what rounding puts above it, too
    bars: list[int]
    #: the nearest float64; None where there is none
    least: float | None
    most: float | None


class Firing(Struct, frozen=True, kw_only=True):
    """How often one threshold fires at one value."""

    threshold: str
    #: a decimal
    value: str
    #: whether it is the run's own
    own: bool
    #: floor: pairs below it; margin: recalls whose order it changes; theta_merge: decisions that merge; novelty:
    #: decisions that are not novel; without a decision live items that would
    fired: int
    #: pairs, recalls, decisions or items
    asked: int
    #: floor: recalls that find nothing; margin: recalls whose chosen items it changes
    recalls: int | None = None


class Calibration(Struct, frozen=True, kw_only=True):
    """What a log says about its thresholds."""

    run: str
    embedder: str
    #: of the banks that were read last
    version: int
    recalls: int
    #: recalls of versions that are no longer held while the log is read (`latest` mode, very late readers)
    unread_recalls: int
    decisions: int
    thresholds: dict[str, int | str]
    histograms: list[Histogram]
    firings: list[Firing]


@dataclass(slots=True)
class _Counted:
    """Dots of one kind as they come in."""

    bars: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BARS, dtype=np.int64))
    least: int | None = None
    most: int | None = None

    def add(self, dots: npt.NDArray[np.int64]) -> None:
        """More dots, units of 2^-48."""
        if not dots.size:
            return
        # Below 2^53, and a shift rounds down also below 0: the bar is exact.
        bars = np.clip((dots * BARS_PER_ONE >> 48) + BARS_PER_ONE, 0, BARS - 1)
        self.bars += np.bincount(bars, minlength=BARS)
        least, most = int(dots.min()), int(dots.max())
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)

    def histogram(self, of: Of, among: Among) -> Histogram:
        """As a row for readers."""
        return Histogram(
            of=of,
            among=among,
            count=int(self.bars.sum()),
            bars=self.bars.tolist(),
            least=None if self.least is None else self.least / DOT_ONE,
            most=None if self.most is None else self.most / DOT_ONE,
        )


@dataclass(slots=True)
class _Fired:
    """One threshold at one value."""

    threshold: str
    parameters: Parameters
    own: bool
    fired: int = 0
    asked: int = 0
    recalls: int = 0

    def row(self) -> Firing:
        """As a row for readers."""
        return Firing(
            threshold=self.threshold,
            value=str(self.parameters.recorded()[self.threshold]),
            own=self.own,
            fired=self.fired,
            asked=self.asked,
            recalls=self.recalls if self.threshold in ("floor", "margin") else None,
        )


def _around(parameters: Parameters) -> dict[str, list[_Fired]]:
    """Each threshold at the run's own value and at its neighbours that are in range, ascending."""
    found: dict[str, list[_Fired]] = {}
    for name, steps in _STEPS.items():
        if name == "novelty" and parameters.addition == "usefulness":
            continue  # then it is compared with the gate's word, not with a similarity
        low, high = _RANGES[name]
        own = Decimal(str(parameters.recorded()[name]))
        values = sorted({own + Decimal(step) for step in steps if low <= own + Decimal(step) <= high})
        found[name] = [_Fired(name, parameters.changed({name: str(one)}), one == own) for one in values]
    return found


class Calibrator:
    """Feed it a log in position order: the kinds of a replay, and `retrieved`."""

    def __init__(self) -> None:
        self._state = State()
        self._window: Window | None = None
        self._parameters = Parameters()
        self._fired: dict[str, list[_Fired]] = {}
        self._queries, self._scenarios, self._experiences = _Counted(), _Counted(), _Counted()
        self._recalls = self._unread = self._decisions = 0

    def feed(self, recorded: Recorded) -> None:
        """One more event.

        Raises:
            FoldMismatch, UnreadableEvent: as `events.fold.step`.
            UnknownName, BadInput: as `events.policies.of_run`.
        """
        if recorded.kind == RECALL_KIND:
            event = decode(recorded)
            assert isinstance(event, Retrieved)  # noqa: S101 - by kind
            self._recall(event)
            return
        if recorded.kind == "folded":
            self._decided(recorded)
        self._state = step(self._state, recorded)
        if self._window is None:
            self._parameters = policies.of_run(self._state.begun().config).parameters
            self._fired = _around(self._parameters)
            self._window = Window(self._state.begun().config, self._state.banks)
        elif recorded.kind in ("seeded", "folded"):
            self._window.add(self._state.banks)

    def done(self) -> Calibration:
        """What was counted; call it once, at the end. Without a decision, live items are held against each other."""
        among: Among = "decisions" if self._decisions else "bank"
        if not self._decisions:
            self._look_into(self._state.banks)
        return Calibration(
            run=str(self._state.run),
            embedder=self._state.begun().embedder.fingerprint,
            version=self._state.banks.version,
            recalls=self._recalls,
            unread_recalls=self._unread,
            decisions=self._decisions,
            thresholds={name: self._parameters.recorded()[name] for name in THRESHOLDS},
            histograms=[
                self._queries.histogram("query_scenario", "recalls"),
                self._scenarios.histogram("scenario_scenario", among),
                self._experiences.histogram("experience_experience", among),
            ],
            firings=[one.row() for rows in self._fired.values() for one in rows],
        )

    def _recall(self, event: Retrieved) -> None:
        banks = self._window.at(event.bank_version) if self._window is not None else None
        if banks is None:
            self._unread += 1
            return
        self._recalls += 1
        dots = banks.shelf(event.stage).scenarios.dots(event.query.vector.exact())
        live = dots[np.isfinite(dots)].astype(np.int64)
        self._queries.add(live)
        for one in self._fired["floor"]:
            passed = int(np.count_nonzero(live >= _least(one.parameters.floor)))
            one.asked += int(live.size)
            one.fired += int(live.size) - passed
            one.recalls += passed == 0
        self._near_ties(banks, event)

    def _near_ties(self, banks: Banks, event: Retrieved) -> None:
        """The recorded candidates ranked anew; their dots are the exact ones, which `events.verify` checks."""
        pairs = [(item, one.dot) for one in event.candidates if (item := banks.get(one.id)) is not None]
        bare = rank(pairs, self._parameters.changed({"near_tie": "off"}))
        for one in self._fired["margin"]:
            ranked = rank(pairs, one.parameters)
            one.asked += 1
            one.fired += [each.id for each in ranked] != [each.id for each in bare]
            one.recalls += {each.id for each in ranked if each.chosen} != {each.id for each in bare if each.chosen}

    def _decided(self, recorded: Recorded) -> None:
        """The decisions of one fold, each against the bank that it was made on."""
        event = decode(recorded)
        assert isinstance(event, Folded)  # noqa: S101 - by kind
        diagnosed = self._state.waiting.get(event.episode)
        if diagnosed is None:
            return
        gone = [one.id for one in event.operations if isinstance(one, Pruned)]
        for stage in _decided_stages(event.operations, diagnosed):
            new = diagnosed.experiences.of(stage)
            if new is not None:
                self._decisions += 1
                self._decide(stage, new, gone)

    def _decide(self, stage: Stage, new: Experience, gone: Sequence[MemoryId]) -> None:
        banks = self._state.banks
        target = nearest(banks, (stage,), new, gone)
        top = banks.most_similar_experience((stage,), new.experience_vector.exact(), gone)
        self._merged(target.dot if target is not None else None)
        self._known(top)

    def _merged(self, dot: int | None) -> None:
        """A scenario, and the dot of the nearest one; None where there was none."""
        self._scenarios.add(np.array([dot] if dot is not None else [], dtype=np.int64))
        for one in self._fired["theta_merge"]:
            one.asked += 1
            one.fired += dot is not None and merges(dot, one.parameters)

    def _known(self, dot: int | None) -> None:
        """An experience, and the dot of the nearest one; None where there was none."""
        self._experiences.add(np.array([dot] if dot is not None else [], dtype=np.int64))
        for one in self._fired.get("novelty", ()):
            limit = 1 - one.parameters.novelty
            one.asked += 1
            one.fired += dot is not None and dot * limit.denominator > limit.numerator * DOT_ONE

    def _look_into(self, banks: Banks) -> None:
        """Each live item against the others of its bank, where nothing was decided."""
        for item in banks:
            shelf = banks.shelf(item.bank)
            top, at = shelf.scenarios.largest(banks.scenario_vector(item).exact(), [item.scenario_row])
            self._merged(top if at else None)
            for vector in banks.experience_vectors(item):
                top, at = shelf.experiences.largest(vector.exact(), list(item.experience_rows))
                self._known(top if at else None)


def _least(threshold: Fraction) -> int:
    """The least integer dot that is at or above `threshold`."""
    return -(-threshold.numerator * DOT_ONE // threshold.denominator)


def _decided_stages(operations: Sequence[Operation], diagnosed: Diagnosed) -> list[Stage]:
    """The stages whose new experience came before the thresholds: not missing, not refused before them."""
    contents = [one for one in operations if isinstance(one, Inserted | Merged | Discarded)]
    # One content operation for each attributed stage, planning first (`events.bank`); without a gate for both.
    stages: Sequence[Stage] = STAGES if len(contents) == len(STAGES) else attributed(diagnosed.label)
    return [
        stage
        for stage, one in zip(stages, contents, strict=False)
        if not (isinstance(one, Discarded) and one.reason != "not_novel")
    ]
