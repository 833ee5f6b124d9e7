"""A log's state at one position as bytes, and back: what lets a reader begin there, without the events before.

Derived from the log and never an input of it: a reader that cannot use one folds the log instead, with the same result.
"""

from collections import Counter
from typing import Any

import msgspec
from msgspec import Struct

from events.bank import Banks, Item, stored
from events.codec import DEEPEST, canonical, decode
from events.errors import FoldMismatch, UnreadableEvent
from events.fold import State
from events.ids import BankVersion, Position, RunId, episode_of
from events.kinds import Abandoned, AnyEvent, Diagnosed, Executed, Planned, RunStarted, Scored, SeededItem
from events.log import Recorded

#: the format that is written, and the only one that is read
FORMAT = 1

#: kinds that `Tally.count` looks into
_COUNTED = frozenset({"planned", "executed", "scored", "diagnosed", "abandoned"})


class Tally(Struct, kw_only=True):
    """What a log's episodes came to, up to one position."""

    #: episode streams
    episodes: int = 0
    #: t of every episode with a valid score, in order of the scores: s_t is true, false
    succeeded: list[int] = msgspec.field(default_factory=list)
    failed: list[int] = msgspec.field(default_factory=list)
    diagnosed: int = 0
    #: of diagnoses with a judgement
    labels: dict[str, int] = msgspec.field(default_factory=dict)
    #: of those without one, by reason
    degraded: dict[str, int] = msgspec.field(default_factory=dict)
    abandoned: int = 0
    #: model calls
    calls: int = 0

    def count(self, recorded: Recorded) -> None:
        """One more event of the log.

        Raises:
            UnreadableEvent: as `events.codec.decode`.
        """
        if (t := episode_of(recorded.stream)) is not None:
            self.episodes += recorded.version == 1
            if recorded.kind in _COUNTED:
                self._count(t, decode(recorded))

    def _count(self, t: int, event: AnyEvent) -> None:
        match event:
            case Planned() | Executed():
                self.calls += event.usage.calls
            case Scored():
                if event.valid:
                    (self.succeeded if event.success else self.failed).append(t)
            case Diagnosed():
                self.diagnosed += 1
                self.calls += event.usage.calls
                if event.degraded is None:
                    self.labels = dict(Counter(self.labels) + Counter([event.label]))
                else:
                    self.degraded = dict(Counter(self.degraded) + Counter([event.degraded]))
            case Abandoned():
                self.abandoned += 1
            case _:
                pass


class Checkpoint(Struct, frozen=True, kw_only=True):
    """What a log says up to a position."""

    state: State
    tally: Tally


class _Waiting(Struct, frozen=True, kw_only=True):
    """An episode that has ended and is not folded; None = abandoned."""

    episode: int
    diagnosed: Diagnosed | None


class _Written(Struct, frozen=True, kw_only=True):
    format: int
    #: kind -> the schema its fields have here
    schemas: dict[str, int]
    run: RunId
    position: Position
    bank_version: BankVersion
    #: of the banks
    digest: str
    header: RunStarted
    tasks: list[str]
    #: in id order
    items: list[SeededItem]
    waiting: list[_Waiting]
    tally: Tally


class _Format(Struct):
    format: int
    schemas: dict[str, int]


def _schemas() -> dict[str, int]:
    return {kind.KIND: kind.SCHEMA for kind in (RunStarted, Diagnosed)}


def written(checkpoint: Checkpoint) -> bytes:
    """Canonical JSON, to be read by `read`.

    Raises:
        UnreadableEvent: the log has not begun.
    """
    state, banks = checkpoint.state, checkpoint.state.banks
    plain: dict[str, Any] = {
        "format": FORMAT,
        "schemas": _schemas(),
        "run": state.run,
        "position": state.position,
        "bank_version": banks.version,
        "digest": banks.digest(),
        "header": state.begun(),
        "tasks": state.tasks,
        "items": [_kept(banks, item) for item in banks],
        "waiting": [_Waiting(episode=t, diagnosed=state.waiting[t]) for t in sorted(state.waiting)],
        "tally": checkpoint.tally,
    }
    # An event's data stands two levels down here: `waiting`, and what is in it.
    return canonical(plain, DEEPEST + 3)


def _kept(banks: Banks, item: Item) -> SeededItem:
    return SeededItem(
        bank=item.bank,
        id=item.id,
        scenario=item.scenario,
        experience=item.experience,
        delta_sum=item.delta_sum,
        n=item.n,
        bullets=item.bullets,
        sources=list(item.sources),
        seeded_sources=item.seeded_sources,
        inserted_at=item.inserted_at,
        changed_at=item.changed_at,
        scenario_vector=banks.scenario_vector(item),
        experience_vectors=banks.experience_vectors(item),
    )


def read(data: bytes, where: str) -> Checkpoint:
    """The checkpoint that `data` holds; its banks have the digest that it names.

    Args:
        data: as `written` makes it.
        where: names it in errors.

    Raises:
        UnreadableEvent: no checkpoint, or one of other code: of another format or schema.
        NotAUnitVector: a vector that is none.
        FoldMismatch: the banks have another digest.
    """
    try:
        made = msgspec.json.decode(data, type=_Format)
        if (made.format, made.schemas) != (FORMAT, _schemas()):
            raise UnreadableEvent(where, f"a checkpoint of other code: format {made.format}, schemas {made.schemas}")
        one = msgspec.json.decode(data, type=_Written)
    except (ValueError, RecursionError) as error:
        raise UnreadableEvent(where, str(error)) from error
    banks = stored(Banks(version=one.bank_version), one.items)
    if (digest := banks.digest()) != one.digest:
        raise FoldMismatch(f"{where}, bank version {one.bank_version}", "digest", one.digest, digest)
    state = State(
        run=one.run,
        header=one.header,
        tasks=tuple(one.tasks),
        banks=banks,
        waiting={waiting.episode: waiting.diagnosed for waiting in one.waiting},
        position=one.position,
    )
    return Checkpoint(state=state, tally=one.tally)
