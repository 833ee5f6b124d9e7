"""The rules that policies are made of: equations (7) to (10) in integers. A policy's `decide` puts them together."""

from collections.abc import Collection, Sequence
from hashlib import sha256

from events.bank import Banks, Item, Nearest
from events.ids import STAGES, MemoryId, Stage, attributed, memory_id, memory_order
from events.kinds import Diagnosed, Experience, MergeProposal
from events.operations import Discarded, Ignored, Inserted, Merged, MergeHow, Operation, Pruned, ValueUpdated
from events.parameters import Parameters
from events.vectors import DOT_ONE

#: gamma = 1 in units of 1e-4
FULL = 10_000


def feedback_e4(memory: MemoryId, stage: Stage, diagnosed: Diagnosed, parameters: Parameters) -> int:
    """delta_{i,t} of equation (8) in units of 1e-4, for a memory retrieved for `stage`."""
    gamma, credited = diagnosed.confidence_e4, stage in attributed(diagnosed.label)
    if parameters.conf_values == "on" and not confident(diagnosed, parameters):
        return 0
    if memory in diagnosed.misleading:
        return -gamma if credited or parameters.misleading == "any" else 0
    return gamma if diagnosed.success and credited else 0


def values(banks: Banks, diagnosed: Diagnosed, parameters: Parameters) -> list[Operation]:
    """Equation (9) for every retrieved item, planning then execution, each by rank; `noop` for one that is gone."""
    operations: list[Operation] = []
    seen: set[MemoryId] = set()
    for stage in STAGES:
        for memory in diagnosed.retrieved.of(stage):
            if memory in seen:
                continue
            seen.add(memory)
            delta = feedback_e4(memory, stage, diagnosed, parameters)
            if delta == 0 and diagnosed.label == "none" and parameters.neutral == "skip_none":
                continue
            item = banks.get(memory)
            if item is None:
                operations.append(Ignored(bank=stage, id=memory))
            else:
                operations.append(
                    ValueUpdated(
                        bank=item.bank, id=memory, delta_e4=delta, delta_sum=item.delta_sum + delta, n=item.n + 1
                    )
                )
    return operations


def prunes(updates: Sequence[Operation], parameters: Parameters) -> list[Pruned]:
    """Items with feedback in this episode that now have n >= n_min and v < theta_prune, in id order."""
    low = parameters.theta_prune
    fallen = [
        one
        for one in updates
        if isinstance(one, ValueUpdated)
        and one.n >= parameters.n_min
        and one.delta_sum * low.denominator < low.numerator * FULL * one.n
    ]
    return [Pruned(bank=one.bank, id=one.id) for one in sorted(fallen, key=lambda one: memory_order(one.id))]


def confident(diagnosed: Diagnosed, parameters: Parameters) -> bool:
    """Gamma >= theta_conf."""
    theta = parameters.theta_conf
    return diagnosed.confidence_e4 * theta.denominator >= theta.numerator * FULL


def merges(dot: int, parameters: Parameters) -> bool:
    """sim(c_new, c_i) > theta_merge, for a dot in units of 2^-48."""
    return dot * parameters.theta_merge.denominator > parameters.theta_merge.numerator * DOT_ONE


def novel(banks: Banks, stages: Sequence[Stage], new: Experience, without: Collection[MemoryId], p: Parameters) -> bool:
    """Whether e_new is worth adding (reading 6): far enough from all there is, or useful by the gate's word."""
    if p.addition == "usefulness":
        usefulness = new.usefulness_e4 or 0
        return usefulness * p.novelty.denominator >= p.novelty.numerator * FULL
    top = banks.most_similar_experience(stages, new.experience_vector.exact(), without)
    limit = 1 - p.novelty
    return top is None or top * limit.denominator <= limit.numerator * DOT_ONE


def nearest(
    banks: Banks, stages: Sequence[Stage], new: Experience, without: Collection[MemoryId] = ()
) -> Nearest | None:
    """m_{i*}: the item most similar to the new scenario."""
    return banks.nearest(stages, new.scenario_vector.exact(), without)


def content(
    banks: Banks,
    stage: Stage,
    t: int,
    new: Experience,
    proposal: MergeProposal | None,
    gone: Collection[MemoryId],
    parameters: Parameters,
) -> Operation:
    """Equation (10) for an accepted experience: merge, insert, or discard as not novel.

    Args:
        banks: M_t before this episode's operations.
        stage: the attributed stage, whose bank changes.
        t: the episode.
        new: (c_new, e_new).
        proposal: the rewritten text for the item that looked nearest when it was made.
        gone: items pruned in this episode.
        parameters: of the policy.
    """
    target = nearest(banks, (stage,), new, gone)
    is_novel = novel(banks, (stage,), new, gone, parameters)
    if target is None or not merges(target.dot, parameters):
        if is_novel:
            return Inserted(bank=stage, id=memory_id(stage, t), source=t)
        return Discarded(bank=stage, reason="not_novel")
    item = target.item
    how: MergeHow
    if not is_novel:
        how = "recorded"
    elif parameters.merge_text == "rewrite" and _fits(proposal, item):
        how = "rewritten"
    else:
        how = "appended" if item.bullets < parameters.bullets else "recorded"
    return Merged(bank=item.bank, id=item.id, dot=target.dot, how=how, source=t)


def _fits(proposal: MergeProposal | None, item: Item) -> bool:
    """Whether the proposal was made for this item as it still is."""
    return (
        proposal is not None and proposal.target == item.id and proposal.target_sha256 == text_sha256(item.experience)
    )


def text_sha256(text: str) -> str:
    """Hex SHA-256 of the UTF-8 bytes."""
    return sha256(text.encode()).hexdigest()
