"""Which fault an episode of the rehearsal model gets: a pure function of (seed, task text, memories shown).

Every decision compares one draw in [0, 1), a hash of (seed, task text, what is decided), with a rate. The draw of a
task never changes, only the rates do with the memories in the prompt: arms on the same tasks are paired, and a rerun
gives the same answers. With f = `helped` where a helpful lesson is shown, else 1, a stage goes wrong by itself iff
u_stage < f x rate or u_both < f x both, and is led astray by an item iff u_astray < misled (foreign).
"""

import hashlib
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from events.errors import BadInput
from events.ids import STAGES, Label, Stage
from infra.rehearsal.asking import ShownMemory
from infra.rehearsal.key import KnownTask, folded_text
from infra.rehearsal.lessons import effect

Fault = Literal["none", "wrong_plan", "wrong_execution", "both", "external", "misleading_memory"]


class RehearsalSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often what goes wrong; every rate is a probability in [0, 1]."""

    seed: int = 42
    #: a plan that takes a short cut
    wrong_plan: float = 0.3
    #: an execution that leaves a right plan
    wrong_execution: float = 0.25
    #: plan and execution wrong together, beside what the two rates give
    both: float = 0.05
    #: the outside fails: the tool does not respond, whatever plan and execution are
    external: float = 0.1
    #: a wrong plan is rescued by an execution that does not follow it
    rescued: float = 0.1
    #: factor on a stage's rates where a helpful lesson is shown
    helped: float = 0.15
    #: a misleading lesson that is shown leads its stage astray, whatever stands beside it
    misled: float = 0.25
    #: a lesson about other functions does
    foreign: float = 0.02
    #: a stage that did nothing wrong in a failed episode still gets a lesson that blames it, and a short cut that went
    #: well one that praises it; else the lesson is vague
    superstition: float = 0.8
    #: the gate's label is the planted truth; else one of the other three. Also: a misleading item is named
    reliability: float = 0.9
    #: the gate's first answer is no JSON
    garbled: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name != "seed" and not 0.0 <= value <= 1.0:
                raise BadInput(f"{name} is a probability in [0, 1], not {value!r}")


def draw(seed: int, *parts: str) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    digest = hashlib.sha256("\x1f".join((str(seed), *parts)).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2.0**48


class StagePlanted(Struct, frozen=True, kw_only=True):
    """What was planted in one stage."""

    wrong: bool = False
    #: index of the item that leads it astray, as the prompt names it; None where it goes wrong by itself or not at all
    astray_by: str | None = None
    #: a helpful lesson kept it from going wrong
    averted: bool = False


class Planted(Struct, frozen=True, kw_only=True):
    """What was planted in one episode."""

    planning: StagePlanted = StagePlanted()
    execution: StagePlanted = StagePlanted()
    external: bool = False
    #: the execution did not follow the wrong plan, and did it right
    rescued: bool = False

    def of(self, stage: Stage) -> StagePlanted:
        return self.planning if stage == "planning" else self.execution

    @property
    def fault(self) -> Fault:
        if self.external:
            return "external"
        wrong: list[Stage] = [stage for stage in STAGES if self.of(stage).wrong]
        if any(self.of(stage).astray_by for stage in wrong):
            return "misleading_memory"
        if len(wrong) == len(STAGES):
            return "both"
        if wrong:
            return "wrong_plan" if wrong[0] == "planning" else "wrong_execution"
        return "none"

    @property
    def misleading(self) -> list[str]:
        """The items that led a stage astray, as the prompt names them."""
        return [index for stage in STAGES if (index := self.of(stage).astray_by) is not None]

    def label(self, *, success: bool) -> Label:
        """a_t as it truly is: the stages that earned this outcome.

        A failure is earned by the wrong stages, by none where the outside failed or nothing was wrong. A success is
        earned by the stage that a lesson kept right, where it is one; by the stages that were not wrong otherwise.
        """
        wrong: list[Stage] = [stage for stage in STAGES if self.of(stage).wrong and not self.external]
        if not success:
            return _label(wrong)
        if self.external:
            return "none"
        right: list[Stage] = [stage for stage in STAGES if stage not in wrong]
        averted: list[Stage] = [stage for stage in right if self.of(stage).averted]
        return _label(averted if len(averted) == 1 and len(right) == len(STAGES) else right)


def _label(stages: Sequence[Stage]) -> Label:
    if len(stages) == len(STAGES):
        return "both"
    return stages[0] if stages else "none"


class Planting:
    """The draws of one seed."""

    def __init__(self, settings: RehearsalSettings) -> None:
        self.settings = settings

    def draw(self, known: KnownTask, what: str, *parts: str) -> float:
        return draw(self.settings.seed, folded_text(known.task.text), what, *parts)

    def external(self, known: KnownTask) -> bool:
        """Whether the outside fails, whatever the memories say."""
        return self.draw(known, "external") < self.settings.external

    def rescued(self, known: KnownTask) -> bool:
        """Whether an execution that is right itself would leave a wrong plan."""
        return self.draw(known, "rescued") < self.settings.rescued

    def stage(self, known: KnownTask, stage: Stage, memories: Sequence[ShownMemory]) -> StagePlanted:
        """What happens in `stage` with `memories` (of this stage's bank) in its prompt."""
        if self.external(known):
            return StagePlanted()
        settings = self.settings
        effects = {memory.index: effect(memory, known) for memory in memories}
        factor = settings.helped if any("helpful" in found for found in effects.values()) else 1.0
        rate = settings.wrong_plan if stage == "planning" else settings.wrong_execution
        own, both = self.draw(known, "wrong", stage), self.draw(known, "both")
        unhelped = own < rate or both < settings.both
        if own < factor * rate or both < factor * settings.both:
            return StagePlanted(wrong=True)
        astray = self.draw(known, "astray", stage)
        for kind, chance in (("misleading", settings.misled), ("foreign", settings.foreign)):
            leading = [index for index, found in effects.items() if kind in found]
            if leading and astray < chance:
                return StagePlanted(wrong=True, astray_by=leading[0])
        return StagePlanted(averted=unhelped)

    def episode(
        self,
        known: KnownTask,
        planning: Sequence[ShownMemory],
        execution: Sequence[ShownMemory],
        *,
        wrong_plan: bool | None = None,
    ) -> Planted:
        """What happens in an episode; `wrong_plan` is what the plan itself shows, where it is seen."""
        if self.external(known):
            return Planted(external=True)
        plan = self.stage(known, "planning", planning)
        if wrong_plan is not None and wrong_plan != plan.wrong:
            plan = StagePlanted(wrong=wrong_plan)  # another planner's prompt, or a plan that was written by hand
        act = self.stage(known, "execution", execution)
        return Planted(planning=plan, execution=act, rescued=plan.wrong and not act.wrong and self.rescued(known))
