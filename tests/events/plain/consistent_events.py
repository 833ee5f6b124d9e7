"""Events drawn field by field, made to say the same in all their fields: what `events.consistency` asks of one."""

from functools import singledispatch
from typing import Any, TypeVar

from msgspec.structs import replace

from events.ids import BankVersion, MemoryId, memory_order
from events.kinds import (
    Candidate,
    Counts,
    Diagnosed,
    Experience,
    Folded,
    MergeProposal,
    MergeProposals,
    Retrieved,
    RunFinished,
    RunStarted,
    Seeded,
    SeededItem,
    StageExperiences,
)
from events.operations import Inserted, Merged, Pruned, ValueUpdated
from events.vectors import DOT_ONE

T = TypeVar("T")


@singledispatch
def consistent(event: Any) -> Any:
    """`event` with every rule between its fields kept."""
    return event


@consistent.register
def _started(event: RunStarted) -> RunStarted:
    return replace(event, tasks_total=max(event.tasks_total, len(event.tasks)))


@consistent.register
def _seeded(event: Seeded) -> Seeded:
    items = {item.id: item for item in map(_seeded_item, event.items)}
    return Seeded(items=sorted(items.values(), key=lambda item: memory_order(item.id)))


def _seeded_item(item: SeededItem) -> SeededItem:
    return replace(
        item,
        id=MemoryId(f"a.{item.bank}-{memory_order(item.id)[3]}"),
        scenario=f"c{item.scenario}",
        experience=f"e{item.experience}" + "\n- b" * (bullets := item.bullets % 4),
        bullets=bullets,
        delta_sum=_sum(item.delta_sum, item.n),
        sources=item.sources or [0],
        experience_vectors=[item.scenario_vector] * (1 + len(item.experience_vectors)),
    )


def _sum(total: int, n: int) -> int:
    return max(-10_000 * n, min(10_000 * n, total))


@consistent.register
def _retrieved(event: Retrieved) -> Retrieved:
    candidates = {one.id: one for one in event.candidates}.values()
    return replace(event, candidates=[_candidate(one, place) for place, one in enumerate(candidates, 1)])


def _candidate(one: Candidate, place: int) -> Candidate:
    dot = one.dot % (DOT_ONE + 1)
    return replace(
        one,
        rank=place,
        chosen=place == 1,
        delta_sum=_sum(one.delta_sum, one.n),
        dot=dot,
        similarity=dot / DOT_ONE,
    )


@consistent.register
def _diagnosed(event: Diagnosed) -> Diagnosed:
    retrieved = replace(
        event.retrieved,
        planning=_each_once(event.retrieved.planning),
        execution=_each_once(event.retrieved.execution),
    )
    if event.degraded:
        return replace(
            event,
            label="none",
            confidence_e4=0,
            retrieved=retrieved,
            misleading=[],
            misleading_dropped=0,
            experiences=StageExperiences(),
            merge_proposals=MergeProposals(),
        )
    news, proposals = event.experiences, event.merge_proposals
    return replace(
        event,
        retrieved=retrieved,
        misleading=_each_once([*retrieved.execution[:1], *retrieved.planning[1:]]),
        experiences=StageExperiences(planning=_experience(news.planning), execution=_experience(news.execution)),
        merge_proposals=MergeProposals(
            planning=_proposal(proposals.planning), execution=_proposal(proposals.execution)
        ),
        degraded=None,
    )


def _each_once(ids: list[T]) -> list[T]:
    return list(dict.fromkeys(ids))


def _experience(new: Experience | None) -> Experience | None:
    return new and replace(
        new,
        scenario=f"c{new.scenario}",
        experience=f"e{new.experience}",
        experience_vector=new.scenario_vector,
        acceptable=new.concrete and new.actionable and not new.lint,
    )


def _proposal(proposal: MergeProposal | None) -> MergeProposal | None:
    return proposal and replace(proposal, text=f"m{proposal.text}")


@consistent.register
def _folded(event: Folded) -> Folded:
    values = [
        replace(one, delta_sum=_sum(one.delta_sum, one.n)) for one in event.operations if type(one) is ValueUpdated
    ]
    prunes = [one for one in event.operations if isinstance(one, Pruned)]
    contents = [replace(one, source=event.episode) for one in event.operations if isinstance(one, Inserted | Merged)]
    return replace(event, bank_version=BankVersion(event.episode + 1), operations=[*values, *prunes, *contents[:2]])


@consistent.register
def _finished(event: RunFinished) -> RunFinished:
    abandoned, folded = event.counts.abandoned % 1000, event.counts.folded % 1000
    diagnosed = event.counts.diagnosed % 1000 + folded
    return replace(
        event,
        counts=Counts(
            episodes=diagnosed + abandoned,
            diagnosed=diagnosed,
            degraded=event.counts.degraded % (diagnosed + 1),
            abandoned=abandoned,
            folded=folded,
        ),
    )
