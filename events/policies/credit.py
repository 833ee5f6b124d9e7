"""CHIME: attribute before memorise (equations (7) to (10)). Only the attributed stages' banks gain content."""

from collections.abc import Sequence

from events.bank import Banks
from events.ids import MemoryId, Stage, attributed
from events.kinds import Diagnosed
from events.operations import Discarded, Operation
from events.parameters import Parameters
from events.rules import confident, content, prunes, values

VERSION = 1


def decide(banks: Banks, t: int, diagnosed: Diagnosed, parameters: Parameters) -> Sequence[Operation]:
    """Values of what was retrieved, then prunes, then one content operation for each stage in L(a)."""
    updates = values(banks, diagnosed, parameters)
    fallen = prunes(updates, parameters)
    gone = frozenset(one.id for one in fallen)
    contents = [_content(banks, stage, t, diagnosed, gone, parameters) for stage in attributed(diagnosed.label)]
    return [*updates, *fallen, *contents]


def _content(
    banks: Banks, stage: Stage, t: int, diagnosed: Diagnosed, gone: frozenset[MemoryId], parameters: Parameters
) -> Operation:
    new = diagnosed.experiences.of(stage)
    if new is None:
        return Discarded(bank=stage, reason="missing")
    if not confident(diagnosed, parameters):
        return Discarded(bank=stage, reason="confidence")
    if not new.acceptable:
        return Discarded(bank=stage, reason="unacceptable")
    return content(banks, stage, t, new, diagnosed.merge_proposals.of(stage), gone, parameters)
