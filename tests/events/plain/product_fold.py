"""The product's fold seen as plain data, to be compared with `plain_fold` or with literal numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import plain_fold
from plain_fold import Data

from events import policies
from events.bank import Banks
from events.codec import canonical, parse_line
from events.fold import Refold
from events.ids import Stage
from events.kinds import RunConfig
from events.log import Recorded
from events.operations import Operation
from events.recall import recall
from events.vectors import Vector


def recorded_log(events: Sequence[Data]) -> list[Recorded]:
    """Export lines as data -> the product's events, through its own parser."""
    return [parse_line(plain_fold.plain_json(event), f"line {at}") for at, event in enumerate(events, 1)]


def as_data(value: Any) -> Any:
    """Structs as the JSON data that the log would hold."""
    return msgspec.json.decode(canonical(value))


def items(banks: Banks) -> list[Data]:
    """Every item in id order, in the form `plain_fold` keeps it."""
    return [
        {
            "bank": item.bank,
            "id": item.id,
            "scenario": item.scenario,
            "experience": item.experience,
            "bullets": item.bullets,
            "scenario_vector": plain_fold.integers(as_data(banks.scenario_vector(item))),
            "experience_vectors": [plain_fold.integers(as_data(one)) for one in banks.experience_vectors(item)],
            "delta_sum": item.delta_sum,
            "n": item.n,
            "sources": list(item.sources),
            "seeded_sources": item.seeded_sources,
            "inserted_at": item.inserted_at,
            "changed_at": item.changed_at,
        }
        for item in banks
    ]


@dataclass
class Folded:
    """What the product makes of a log: `banks[v]` at every version v, `operations[t]` of every episode t."""

    config: RunConfig
    banks: list[Banks]
    operations: list[list[Operation]]

    def recall(self, stage: Stage, bank_version: int, query: Vector) -> list[Data]:
        parameters = policies.recorded(self.config.policy).parameters
        found: list[Data] = as_data(recall(self.banks[bank_version], (stage,), query, parameters))
        return found


def decided(log: Sequence[Recorded]) -> Folded:
    """The log decided again from its diagnoses alone, one version after the other."""
    header, *rest = log
    refold = Refold(policies.load("credit"))
    refold.feed(header)
    config = refold.state.begun().config
    refold = Refold(policies.recorded(config.policy))
    refold.feed(header)
    folded = Folded(config, [refold.banks], [])
    for one in rest:
        done = refold.feed(one)
        if one.kind == "seeded":
            folded.banks = [refold.banks]
        assert len(done) <= 1, "made-up logs end their episodes in stream order"
        for t, operations in done:
            assert t == len(folded.operations)
            folded.operations.append(operations)
            folded.banks.append(refold.banks)
    return folded
