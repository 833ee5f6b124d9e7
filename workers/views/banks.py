"""The banks as others read them: items, the life of one item, and what lies between two versions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

from msgspec import Struct

from events.bank import Banks, Item
from events.codec import decode
from events.errors import BadInput
from events.fold import REPLAY_KINDS
from events.ids import BankVersion, MemoryId, Stage, attributed, episode_of
from events.kinds import Diagnosed, Folded, RunStarted, Seeded, TasksListed
from events.log import Recorded
from events.operations import Discarded, Ignored, Inserted, Merged, Operation, Pruned, ValueUpdated

#: the kinds a life line reads
HISTORY_KINDS = REPLAY_KINDS


class ItemRow(Struct, frozen=True, kw_only=True):
    """One live item under the names of the format."""

    bank: Stage
    id: MemoryId
    scenario: str
    experience: str
    delta_sum: int
    n: int
    #: nearest float64 of v
    value: float
    bullets: int
    sources: list[int]
    seeded_sources: int
    inserted_at: BankVersion
    changed_at: BankVersion


def item_row(item: Item) -> ItemRow:
    """`item` as `chime memory list` prints it."""
    return ItemRow(
        bank=item.bank,
        id=item.id,
        scenario=item.scenario,
        experience=item.experience,
        delta_sum=item.delta_sum,
        n=item.n,
        value=item.value,
        bullets=item.bullets,
        sources=list(item.sources),
        seeded_sources=item.seeded_sources,
        inserted_at=item.inserted_at,
        changed_at=item.changed_at,
    )


def version_at(text: str | None, newest: int, given: str = "") -> BankVersion:
    """A version as people write it: `17`, `50%` of the newest (rounded down), or nothing for the newest.

    Args:
        text: the version.
        newest: of the run.
        given: what the user wrote, for a complaint; "" = `--at` and the text.

    Raises:
        BadInput: neither, or a version that the log does not have.
    """
    if text is None:
        return BankVersion(newest)
    given = given or f"--at {text}"
    digits = text.removesuffix("%")
    if not digits.isascii() or not digits.isdigit():
        raise BadInput(f"{given}: must be a bank version (0 to {newest}) or a percentage such as 50%")
    number = int(digits)
    if text.endswith("%"):
        if number > 100:
            raise BadInput(f"{given}: more than 100%")
        return BankVersion(newest * number // 100)
    if number > newest:
        raise BadInput(f"{given}: the newest bank version of this run is {newest}")
    return BankVersion(number)


def near_memories(memory: str, known: Sequence[str]) -> str:
    """Which ids a mistyped one may stand for, or how to list them."""
    close = get_close_matches(memory, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else "`chime memory list` names those there are"


class Moment(Struct, frozen=True, kw_only=True):
    """One thing that happened to an item."""

    version: BankVersion
    #: t; None for the seed
    episode: int | None
    task: str
    #: `seeded`, `inserted`, `merged (appended)`, `credited`, `penalised`, `used`, `pruned`, `absent`
    what: str
    success: bool | None
    #: a_t
    label: str
    confidence_e4: int | None
    delta_e4: int | None = None
    #: after this moment
    delta_sum: int | None = None
    n: int | None = None
    value: float | None = None
    #: text that came with it
    text: str = ""


@dataclass(slots=True)
class LifeLine:
    """What happened to one item. Feed it a log in position order (`HISTORY_KINDS` suffice)."""

    memory: MemoryId
    moments: list[Moment] = field(default_factory=list)
    #: every id that any operation named, for near matches
    known: set[MemoryId] = field(default_factory=set)
    _tasks: list[str] = field(default_factory=list)
    _waiting: dict[int, Diagnosed | None] = field(default_factory=dict)

    def feed(self, recorded: Recorded) -> None:
        """One more event.

        Raises:
            UnreadableEvent: data that is none, or an unknown kind or schema.
        """
        if recorded.kind not in HISTORY_KINDS:
            return
        event = decode(recorded)
        t = episode_of(recorded.stream)
        match event:
            case RunStarted() | TasksListed():
                self._tasks.extend(event.tasks)
            case Seeded():
                for item in event.items:
                    self.known.add(item.id)
                    if item.id == self.memory:
                        value = item.delta_sum / (10_000 * item.n) if item.n else 0.0
                        self.moments.append(
                            Moment(
                                version=BankVersion(0), episode=None, task="", what="seeded", success=None, label="",
                                confidence_e4=None, delta_sum=item.delta_sum, n=item.n, value=value,
                                text=item.experience,
                            )
                        )  # fmt: skip
            case Diagnosed() if t is not None:
                self._waiting[t] = event
            case Folded():
                self._fold(event)
            case _:
                pass

    def _fold(self, event: Folded) -> None:
        diagnosed = self._waiting.pop(event.episode, None)
        contents = [one for one in event.operations if isinstance(one, Inserted | Merged | Discarded)]
        for operation in event.operations:
            if isinstance(operation, Discarded):
                continue
            self.known.add(operation.id)
            if operation.id == self.memory:
                stage = _stage(operation, contents, diagnosed)
                self.moments.append(self._moment(event, operation, stage, diagnosed))

    def _moment(self, event: Folded, operation: Operation, stage: Stage | None, diagnosed: Diagnosed | None) -> Moment:
        what, text = _told(operation, stage, diagnosed)
        known = operation if isinstance(operation, ValueUpdated) else None
        return Moment(
            version=event.bank_version,
            episode=event.episode,
            task=self._tasks[event.episode % len(self._tasks)] if self._tasks else "",
            what=what,
            success=diagnosed.success if diagnosed else None,
            label=diagnosed.label if diagnosed else "",
            confidence_e4=diagnosed.confidence_e4 if diagnosed else None,
            delta_e4=known.delta_e4 if known else None,
            delta_sum=known.delta_sum if known else None,
            n=known.n if known else None,
            value=known.delta_sum / (10_000 * known.n) if known else None,
            text=text,
        )


def _stage(
    operation: Operation, contents: Sequence[Inserted | Merged | Discarded], diagnosed: Diagnosed | None
) -> Stage | None:
    """Whose experience a content operation is about: one for each stage, planning first (as `events.bank`)."""
    at = next((at for at, one in enumerate(contents) if one is operation), None)
    if at is None:
        return None
    stages: Sequence[Stage] = ("planning", "execution") if len(contents) > 1 else ()
    if not stages and diagnosed is not None:
        stages = attributed(diagnosed.label)
    return stages[at] if at < len(stages) else operation.bank


def _told(operation: Operation, stage: Stage | None, diagnosed: Diagnosed | None) -> tuple[str, str]:
    new = diagnosed.experiences.of(stage) if diagnosed is not None and stage is not None else None
    match operation:
        case ValueUpdated():
            word = "credited" if operation.delta_e4 > 0 else "penalised" if operation.delta_e4 < 0 else "used"
            return word, ""
        case Pruned():
            return "pruned", ""
        case Inserted():
            return "inserted", new.experience if new else ""
        case Merged():
            return f"merged ({operation.how})", new.experience if new else ""
        case Ignored():
            return "absent", ""
        case Discarded():
            return "discarded", ""


Change = Literal["added", "gone", "text", "value"]


class ItemChange(Struct, frozen=True, kw_only=True):
    """How one item differs between two banks."""

    id: MemoryId
    #: `added`, `gone` (pruned), `text` (merged), `value`; an item may have the last two
    changes: list[Change]
    before: ItemRow | None
    after: ItemRow | None


def difference(before: Banks, after: Banks) -> list[ItemChange]:
    """What lies between two banks, in id order."""
    old, new = {item.order: item for item in before}, {item.order: item for item in after}
    changes: list[ItemChange] = []
    for order in sorted({*old, *new}):
        a, b = old.get(order), new.get(order)
        kinds: list[Change] = []
        if a is None:
            kinds.append("added")
        elif b is None:
            kinds.append("gone")
        else:
            if (a.experience, a.scenario, a.sources) != (b.experience, b.scenario, b.sources):
                kinds.append("text")
            if (a.delta_sum, a.n) != (b.delta_sum, b.n):
                kinds.append("value")
        if kinds:
            one = b or a
            assert one is not None  # noqa: S101 - the order comes from one of the two
            changes.append(
                ItemChange(
                    id=one.id, changes=kinds, before=item_row(a) if a else None, after=item_row(b) if b else None
                )
            )
    return changes
