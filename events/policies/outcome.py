"""No gate (reading 23): success credits every stage in full, failure credits none; every experience is accepted."""

from collections.abc import Sequence

from msgspec.structs import replace

from events.bank import Banks
from events.ids import STAGES
from events.kinds import Diagnosed
from events.operations import Discarded, Operation
from events.parameters import Parameters
from events.rules import FULL, content, prunes, values

VERSION = 1


def decide(banks: Banks, t: int, diagnosed: Diagnosed, parameters: Parameters) -> Sequence[Operation]:
    """As `credit` with a = both, gamma = 1, nothing misleading, and no acceptance test.

    The judgement is set here again, so that a log made under another policy can be refolded.
    """
    judged = replace(diagnosed, label="both", confidence_e4=FULL, misleading=[])
    updates = values(banks, judged, parameters)
    fallen = prunes(updates, parameters)
    gone = frozenset(one.id for one in fallen)
    contents: list[Operation] = []
    for stage in STAGES:
        new = judged.experiences.of(stage)
        if new is None:
            contents.append(Discarded(bank=stage, reason="missing"))
        else:
            proposal = judged.merge_proposals.of(stage)
            contents.append(content(banks, stage, t, new, proposal, gone, parameters))
    return [*updates, *fallen, *contents]
