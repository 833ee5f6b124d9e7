"""What one event must say for itself: the rules between its fields, which no type can hold.

`broken` is asked after a typed decode, which has checked every plain range (`events.ranges`). What takes more than one
event to see is a mismatch of the log: `events.reading` and `events.verify`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from events.errors import BadInput
from events.ids import STAGES, MemoryId, memory_order
from events.kinds import (
    Diagnosed,
    Experience,
    Folded,
    MergeProposal,
    Retrieved,
    RunFinished,
    RunStarted,
    Seeded,
    SeededItem,
)
from events.operations import Discarded, Ignored, Inserted, Merged, Pruned, ValueUpdated
from events.vectors import DOT_ONE, Vector

#: gamma = 1 in units of 1e-4
_FULL = 10_000
#: the largest dot of two vectors whose squared length is within 2^38 of 2^48
_LARGEST_DOT = DOT_ONE + (1 << 38)
#: ids that were found to be of the right form: the same ones recur in every event
_KNOWN: set[str] = set()
_MOST_KNOWN = 1 << 16
#: values and noops, then prunes, then content
_CONTENT = 2
_PHASE: dict[type, int] = {
    ValueUpdated: 0, Ignored: 0, Pruned: 1, Inserted: _CONTENT, Merged: _CONTENT, Discarded: _CONTENT,
}  # fmt: skip


class Broken(NamedTuple):
    """A rule that does not hold."""

    field: str
    value: object
    rule: str

    def said(self) -> str:
        """The field, its value and the rule, for people."""
        return f"{self.field} {self.value!r:.80}: {self.rule}"


def broken(event: object) -> Broken | None:
    """The first rule that `event` breaks by itself; None = it is consistent."""
    rules = _RULES.get(type(event))
    return rules(event) if rules is not None else None


def vectors(event: object) -> Iterator[Vector]:
    """Every vector that `event` records."""
    match event:
        case Seeded():
            for item in event.items:
                yield item.scenario_vector
                yield from item.experience_vectors
        case Retrieved():
            yield event.query.vector
        case Diagnosed():
            for new in (event.experiences.planning, event.experiences.execution):
                if new is not None:
                    yield from (new.scenario_vector, new.experience_vector)
        case _:
            pass


def _started(event: RunStarted) -> Broken | None:
    if event.tasks_total < len(event.tasks):
        return Broken("tasks_total", event.tasks_total, f"fewer than the {len(event.tasks)} tasks listed here")
    return None


def _seeded(event: Seeded) -> Broken | None:
    before = None
    for item in event.items:
        if (wrong := _ids("items.id", [item.id])) is not None:
            return wrong
        order = memory_order(item.id)
        if not order[0] or STAGES[order[2]] != item.bank:
            return Broken("items.id", item.id, f"not <origin run>.{item.bank}-<t>")
        if before is not None and order <= before:
            return Broken("items.id", item.id, "not in id order, each once")
        before = order
        if (wrong := _seeded_item(item)) is not None:
            return wrong
    return None


def _seeded_item(item: SeededItem) -> Broken | None:
    if abs(item.delta_sum) > _FULL * item.n:
        return Broken("items.delta_sum", item.delta_sum, f"beyond what {item.n} uses can add up to")
    if not item.scenario.strip() or not item.experience.strip():
        return Broken("items.experience", item.experience, f"{item.id} has an empty scenario or experience")
    if item.bullets > item.experience.count("\n- "):
        return Broken("items.bullets", item.bullets, "more than the experience holds")
    if not item.sources or not item.experience_vectors:
        return Broken("items.sources", item.sources, f"{item.id} has no source or no experience vector")
    return _vectors("items", [item.scenario_vector, *item.experience_vectors])


def _retrieved(event: Retrieved) -> Broken | None:
    candidates = event.candidates
    ids = [one.id for one in candidates]
    if not event.query.vector.fits:
        return _vectors("query.vector", [event.query.vector])
    if (wrong := _ids("candidates.id", ids)) is not None:
        return wrong
    chosen = True
    for place, one in enumerate(candidates, 1):
        if one.rank != place:
            return Broken("candidates.rank", one.rank, f"the candidate at place {place}")
        if one.chosen and not chosen:
            return Broken("candidates.chosen", one.id, "the chosen ones are the first")
        chosen = one.chosen
        if abs(one.delta_sum) > _FULL * one.n:
            return Broken("candidates.delta_sum", one.delta_sum, f"beyond what {one.n} uses can add up to")
        if abs(one.dot) > _LARGEST_DOT or one.similarity != one.dot / DOT_ONE:
            return Broken("candidates.dot", one.dot, f"no dot of unit vectors with similarity {one.similarity}")
    return None


def _diagnosed(event: Diagnosed) -> Broken | None:
    # The stages of the ids are no concern of one event: where the two banks are one, both queries find both.
    retrieved, news, proposals = event.retrieved, event.experiences, event.merge_proposals
    return (
        _ids("retrieved.planning", retrieved.planning)
        or _ids("retrieved.execution", retrieved.execution)
        or (_misleading(event) if event.misleading else None)
        or (_degraded(event) if event.degraded is not None else None)
        or _experience("experiences.planning", news.planning)
        or _experience("experiences.execution", news.execution)
        or _proposal("merge_proposals.planning", proposals.planning)
        or _proposal("merge_proposals.execution", proposals.execution)
    )


def _misleading(event: Diagnosed) -> Broken | None:
    for memory in event.misleading:
        if memory not in event.retrieved.planning and memory not in event.retrieved.execution:
            return Broken("misleading", memory, "not among the retrieved")
    return _ids("misleading", event.misleading)


def _proposal(field: str, proposal: MergeProposal | None) -> Broken | None:
    if proposal is None:
        return None
    if not proposal.text.strip():
        return Broken(f"{field}.text", proposal.text, f"an empty text for {proposal.target}")
    return _ids(f"{field}.target", [proposal.target])


def _degraded(event: Diagnosed) -> Broken | None:
    """Without a usable judgement there is none in the event."""
    if not event.degraded:
        return Broken("degraded", event.degraded, "null, or a reason")
    news, proposals = event.experiences, event.merge_proposals
    left: dict[str, tuple[object, object]] = {
        "label": (event.label, "none"),
        "confidence_e4": (event.confidence_e4, 0),
        "misleading": (event.misleading, []),
        "misleading_dropped": (event.misleading_dropped, 0),
        "experiences": (news.planning or news.execution, None),
        "merge_proposals": (proposals.planning or proposals.execution, None),
    }
    for field, (value, expected) in left.items():
        if value != expected:
            return Broken(field, value, f"a degraded diagnosis ({event.degraded}) has {expected!r}")
    return None


def _experience(field: str, new: Experience | None) -> Broken | None:
    if new is None:
        return None
    if new.acceptable != (new.concrete and new.actionable and not new.lint):
        return Broken(f"{field}.acceptable", new.acceptable, "not what concrete, actionable and lint say")
    if not new.scenario.strip() or not new.experience.strip():
        return Broken(f"{field}.experience", new.experience, "an empty scenario or experience is null as a whole")
    scenario, experience = new.scenario_vector, new.experience_vector
    if scenario.dim != experience.dim or not scenario.fits or not experience.fits:
        return _vectors(field, [scenario, experience])
    return None


def _folded(event: Folded) -> Broken | None:
    t, last, contents = event.episode, 0, 0
    if event.bank_version != t + 1:
        return Broken("bank_version", event.bank_version, f"episode {t} makes version {t + 1}")
    for one in event.operations:
        phase = _PHASE[type(one)]
        if phase < last:
            return Broken("operations", one, "values come first, then prunes, then content")
        last = phase
        if isinstance(one, ValueUpdated):
            if abs(one.delta_sum) > _FULL * one.n:
                return Broken("operations.delta_sum", one.delta_sum, f"beyond what {one.n} uses can add up to")
        elif phase == _CONTENT:
            contents += 1
            if isinstance(one, Inserted | Merged) and one.source != t:
                return Broken("operations.source", one.source, f"the episode folded is {t}")
    if contents > len(STAGES):
        return Broken("operations", contents, "one content operation for each stage at most")
    return None


def _finished(event: RunFinished) -> Broken | None:
    counts = event.counts
    if counts.degraded > counts.diagnosed:
        return Broken("counts.degraded", counts.degraded, f"of {counts.diagnosed} diagnosed")
    ended = counts.diagnosed + counts.abandoned
    if ended > counts.episodes:
        return Broken("counts.episodes", counts.episodes, f"of which {ended} have ended")
    if counts.folded > ended:
        return Broken("counts.folded", counts.folded, f"of {ended} episodes that have ended")
    return None


def _ids(field: str, ids: Sequence[MemoryId]) -> Broken | None:
    """Memory ids, each once."""
    if not ids:
        return None
    if not _KNOWN.issuperset(ids):
        for one in ids:
            try:
                memory_order(one)
            except BadInput as error:
                return Broken(field, one, str(error))
        if len(_KNOWN) > _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN.update(ids)
    if len(set(ids)) != len(ids):
        return Broken(field, next(one for one in ids if ids.count(one) > 1), "an id stands there more than once")
    return None


def _vectors(field: str, vectors: Sequence[Vector]) -> Broken | None:
    for one in vectors:
        if not one.fits:
            return Broken(f"{field}.dim", one.dim, f"the vector's base64 has {len(one.packed)} characters")
        if one.dim != vectors[0].dim:
            return Broken(f"{field}.dim", one.dim, f"beside a vector of {vectors[0].dim} dimensions")
    return None


_RULES: dict[type, Callable[[Any], Broken | None]] = {
    RunStarted: _started,
    Seeded: _seeded,
    Retrieved: _retrieved,
    Diagnosed: _diagnosed,
    Folded: _folded,
    RunFinished: _finished,
}
