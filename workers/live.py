"""What a person sees while runs go on: one line on a terminal that is kept current, a line now and then elsewhere."""

import shutil
from dataclasses import dataclass, field

from events.ids import RunId
from runtime.gate import MEANT
from runtime.ports import Clock
from runtime.statistics import wilson
from workers.coordinator import RunView
from workers.output import Output
from workers.terminal import clipped, printable

#: how often a line is printed where none can be kept current, seconds
_EVERY_S = 10.0
#: how often the current line is drawn anew, seconds
_REDRAW_S = 0.1


def told(view: RunView) -> str:
    """A run in one line: episodes, score with its interval, banks, labels, calls."""
    progress = view.conductor.progress
    scores = list(progress.scores.values())
    rate = wilson(sum(scores), len(scores))
    sizes = view.projector.state.banks.sizes()
    labels = " ".join(f"{name} {count}" for name, count in sorted(progress.labels.items()))
    unjudged = sum(count for reason, count in progress.degraded.items() if reason not in MEANT)
    parts = [
        f"{progress.folded}/{view.conductor.total}",
        f"success {rate.estimate:.0%} [{rate.low:.0%}, {rate.high:.0%}]" if scores else "success -",
        f"banks {sizes['planning']}+{sizes['execution']}",
        f"labels {labels}" if labels else "",
        f"degraded {unjudged}" if unjudged else "",
        f"repaired {progress.gate.repaired}" if progress.gate.repaired else "",
        f"ids dropped {progress.gate.dropped}" if progress.gate.dropped else "",
        f"abandoned {progress.abandoned}" if progress.abandoned else "",
        f"calls {progress.calls}",
        f"bank {view.mirror.behind} behind: {view.mirror.waits_for}" if view.mirror and view.mirror.waits_for else "",
        _waits_for(view),
    ]
    return "  ".join(part for part in parts if part)


def _waits_for(view: RunView) -> str:
    """Why nothing new begins, where that is so."""
    if view.conductor.control == "paused":
        return f"paused: {view.conductor.reason} (chime ops resume {view.run})"
    if view.conductor.control == "stopped":
        return f"stops: {view.conductor.reason}"
    if view.waits_for is not None:
        return f"waits: {view.waits_for}"
    return "" if view.acting else "another process coordinates it"


@dataclass(slots=True)
class LiveLine:
    """Draws the latest view of each run on stderr."""

    output: Output
    clock: Clock
    #: what a run is called in the line; empty for a single one
    names: dict[RunId, str] = field(default_factory=dict)
    _views: dict[RunId, str] = field(default_factory=dict)
    _drawn: float = float("-inf")
    _lines: int = 0

    def __call__(self, run: RunId, view: RunView) -> None:
        """A round of `run` has ended."""
        name = self.names.get(run, "")
        self._views[run] = f"{name:<8} {told(view)}" if name else told(view)
        # Where stderr is nobody's, the log line stands there.
        if view.warning and (self.output.interactive or self.output.json):
            self.done()
            self.output.note(f"warning: run {run}: {view.warning}; see: chime run show {run}")
        now = self.clock.monotonic()
        if now - self._drawn >= (_REDRAW_S if self.output.interactive else _EVERY_S):
            self._drawn = now
            self.draw()

    def draw(self) -> None:
        """Put the current lines there, over the last ones on a terminal."""
        lines = list(self._views.values())
        if not self.output.interactive:
            if not self.output.json:
                for line in lines:
                    self.output.note(line)
            return
        back = f"\x1b[{self._lines}F" if self._lines else ""
        self.output.err.write(back + "".join(f"\x1b[2K{_fitting(line)}\n" for line in lines))
        self.output.err.flush()
        self._lines = len(lines)

    def done(self) -> None:
        """The last state, and nothing is drawn over any more."""
        self.draw()
        self._lines = 0


def _fitting(line: str) -> str:
    """`line` cut to the terminal's width: a wrapped line could not be drawn over."""
    return clipped(printable(line), _width())


def _width() -> int:
    return max(20, shutil.get_terminal_size().columns - 1)
