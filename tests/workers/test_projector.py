"""The projector: folds in stream order, whatever order diagnoses arrive in, and only once."""

from collections.abc import Sequence
from typing import Any

import pytest
from made_banks import grown
from msgspec.structs import replace

from events.bank import Banks
from events.codec import content_sha256, decode, decode_as, draft
from events.errors import FoldMismatch, VersionGap
from events.ids import PROJECTOR_STREAM, RUN_STREAM, RunId, Version, episode_stream
from events.kinds import Abandoned, Diagnosed, Folded, Retrieved, RunStarted, SeedBank, Seeded
from events.log import Draft, Recorded
from events.operations import Operation
from events.seeding import seed_items
from events.window import Window
from infra.clock import SystemClock
from infra.list_log import ListLog
from runtime.gate import degraded
from runtime.ports import Basis, Origin
from workers.projector import Projector

ORDER = ("run_started", "retrieved", "planned", "retrieved", "executed", "scored", "diagnosed")


async def written(log: ListLog, events: Sequence[Recorded]) -> None:
    """Puts events of a made run into `log` at their versions, in the order given."""
    for one in events:
        item = Draft(kind=one.kind, schema=one.schema, data=one.data, sha256=content_sha256(one.kind, one.data))
        await log.append(one.stream, one.version, [item], Origin(cause=one.cause))


async def caught_up(log: ListLog, projector: Projector, after: int = 0) -> int:
    """Lets the projector see what is behind `after` and fold; the position read."""
    async for page in log.pages(after):
        for one in page:
            projector.see(one)
            after = one.position
    await projector.fold()
    return after


async def folds(log: ListLog) -> list[Folded]:
    return [decode_as(one, Folded) for one in await log.read_stream(PROJECTOR_STREAM)]


def new_log(run: str = "made") -> ListLog:
    return ListLog(RunId(run), SystemClock())


def unfolded(made: Any) -> list[Recorded]:
    """The made run without folds and end."""
    return [one for one in made.events if one.kind in ORDER]


@pytest.mark.parametrize("arrival", [(0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (2, 0, 1, 5, 3, 4)])
async def test_folds_in_stream_order(made_run: Any, arrival: tuple[int, ...]):
    """Whatever order diagnoses arrive in, they are folded in stream order, each as soon as the order allows."""
    made, log = made_run(), new_log()
    projector, position = Projector(log), 0
    head = [one for one in made.events if one.kind == "run_started"]
    await written(log, head)
    arrived: set[int] = set()
    for t in arrival:
        # Diagnoses alone: in another order than the made one, its recalls could not have read their versions.
        diagnosed = next(one for one in made.events if one.stream == episode_stream(t) and one.kind == "diagnosed")
        item = draft(decode(diagnosed))
        await log.append(episode_stream(t), Version(1), [item], Origin(cause=None))
        arrived.add(t)
        position = await caught_up(log, projector, position)
        expected = next(n for n in range(7) if n not in arrived)
        assert projector.version == expected
    made_folds = [decode_as(one, Folded) for one in made.events if one.kind == "folded"]
    assert await folds(log) == made_folds
    assert projector.state.banks.digest() == made.banks.digest()


async def test_nothing_is_learnt_from_abandoned_and_degraded(made_run: Any):
    """Episodes without a judgement fold to no operations, and the digest stays."""
    made, log = made_run(), new_log()
    first = [one for one in unfolded(made) if one.stream in ("run", "episode-0")]
    await written(log, first)
    await log.append(
        episode_stream(1), Version(1), [draft(Abandoned(stage="planning", reason="worker_lost", attempts=3))],
        Origin(cause=None),
    )  # fmt: skip
    unusable = degraded("unreadable", success=True, retrieved=[])
    await log.append(episode_stream(2), Version(1), [draft(unusable)], Origin(cause=None))
    await caught_up(log, Projector(log))
    zero, one, two = await folds(log)
    assert zero.operations
    assert (one.operations, two.operations) == ([], [])
    assert zero.digest == one.digest == two.digest
    assert (two.episode, two.bank_version) == (2, 3)


@pytest.mark.parametrize("already", range(7))
async def test_resumes_a_half_folded_log(made_run: Any, already: int):
    """A new projector over a log in which some episodes are folded goes on with the next one."""
    made, log = made_run(), new_log()
    kept = [
        one for one in made.events if one.kind != "run_finished" and (one.kind != "folded" or one.version <= already)
    ]
    await written(log, kept)
    await caught_up(log, Projector(log))
    assert await folds(log) == [decode_as(one, Folded) for one in made.events if one.kind == "folded"]


async def test_two_projectors_append_the_same(made_run: Any):
    """Two projectors over one log leave each fold once, whichever is faster."""
    made, log = made_run(), new_log()
    first, second, at_first, at_second = Projector(log), Projector(log), 0, 0
    events = unfolded(made)
    for start in range(0, len(events), 5):
        await written(log, events[start : start + 5])
        at_first = await caught_up(log, first, at_first)
        at_second = await caught_up(log, second, at_second)
    assert [one.episode for one in await folds(log)] == [0, 1, 2, 3, 4, 5]
    assert first.state.banks.digest() == second.state.banks.digest() == made.banks.digest()


async def test_causes(made_run: Any):
    """A fold names the event that ended its episode."""
    made, log = made_run(), new_log()
    await written(log, unfolded(made))
    await caught_up(log, Projector(log))
    assert [one.cause for one in await log.read_stream(PROJECTOR_STREAM)] == [f"made/episode-{t}/6" for t in range(6)]


async def test_a_lost_diagnosis_is_not_folded(made_run: Any):
    """The server loses it after it was read, and another one comes in its place: no fold is made from the first."""
    made, log = made_run(), new_log()
    events = [one for one in unfolded(made) if one.stream in ("run", "episode-0")]
    await written(log, events)
    projector = Projector(log)
    async for page in log.pages(0):
        for one in page:
            projector.see(one)
    log._events.clear()
    log._streams.clear()
    await written(log, events[:-1])
    other = degraded("unreadable", success=True, retrieved=[])
    await log.append(events[-1].stream, events[-1].version, [draft(other)], Origin(cause=None))
    with pytest.raises(VersionGap, match="made from made/episode-0/6"):
        await projector.fold()
    assert await folds(log) == []


async def test_foreign_fold_in_its_place(made_run: Any):
    """A different fold that somebody was faster with is an error that names the event, and is left as it is."""
    made, log = made_run(), new_log()
    await written(log, [one for one in unfolded(made) if one.stream in ("run", "episode-0")])
    projector = Projector(log)
    async for page in log.pages(0):
        for one in page:
            projector.see(one)
    foreign = Folded(episode=0, bank_version=1, digest="0" * 64, operations=[])
    await log.append(PROJECTOR_STREAM, Version(1), [draft(foreign)], Origin(cause=None))
    with pytest.raises(FoldMismatch, match="made/projector/1"):
        await projector.fold()
    assert await folds(log) == [foreign]


async def test_a_fold_with_a_field_more_in_its_place(made_run: Any):
    """Newer code was faster with the same fold and has more to say: it stays, and what follows is made from it."""
    made, log = made_run(), new_log()
    events = [one for one in made.events if one.kind != "run_finished"]
    own = next(one for one in events if one.kind == "folded")
    await written(log, [one for one in unfolded(made) if one.stream in ("run", "episode-0")])
    projector, told = Projector(log), _Listener()
    projector.tell(told)
    async for page in log.pages(0):
        for one in page:
            projector.see(one)
    more = own.data[:-1] + b',"took_ms":3}'
    newer = Draft(kind="folded", schema=1, data=more, sha256=content_sha256("folded", more))
    await log.append(PROJECTOR_STREAM, Version(1), [newer], Origin(cause=None))
    assert await projector.fold() == 1
    assert told.folds[-1] == Basis(stream=PROJECTOR_STREAM, version=Version(1), sha256=newer.sha256)
    await written(log, [one for one in events if one.kind in ORDER])
    await caught_up(log, projector, 7)
    assert (await log.read_stream(PROJECTOR_STREAM))[0].data == more
    assert projector.state.banks.digest() == made.banks.digest()


@pytest.mark.parametrize("what", ["operations", "digest"])
async def test_foreign_fold_that_it_reads(made_run: Any, what: str):
    """A fold in the log that this code would not make is found when it is read, too."""
    made, log = made_run(), new_log()
    await written(log, [one for one in unfolded(made) if one.stream in ("run", "episode-0")])
    own = next(decode_as(one, Folded) for one in made.events if one.kind == "folded")
    foreign = replace(own, operations=[]) if what == "operations" else replace(own, digest="0" * 64)
    await log.append(PROJECTOR_STREAM, Version(1), [draft(foreign)], Origin(cause=None))
    projector = Projector(log)
    with pytest.raises(FoldMismatch, match="made/projector/1"):
        await caught_up(log, projector)


async def test_wrong_recalls_are_found(made_run: Any):
    """A recorded recall that is not what the bank gives is counted; right ones are not."""
    made, log = made_run(), new_log()
    events = list(made.events)
    at = next(
        i for i, one in enumerate(events) if one.kind == "retrieved" and decode_as(one, Retrieved).candidates
    )  # fmt: skip
    await written(log, events[:at])
    wrong = replace(decode_as(events[at], Retrieved), candidates=[])
    await log.append(events[at].stream, events[at].version, [draft(wrong)], Origin(cause=None))
    await written(log, events[at + 1 :])
    projector = Projector(log)
    await caught_up(log, projector)
    assert projector.wrong_recalls == {events[at].id: "exact"}
    assert projector.state.banks.digest() == made.banks.digest()


async def test_frozen_runs_learn_nothing(made_run: Any):
    """A frozen run folds every episode to nothing."""
    made, log = made_run(), new_log()
    started = decode(made.events[0])
    frozen = replace(started, config=replace(started.config, frozen=True))
    await log.append(made.events[0].stream, Version(1), [draft(frozen)], Origin(cause=None))
    for t in range(3):
        event = degraded("frozen", success=True, retrieved=[])
        assert isinstance(event, Diagnosed)
        await log.append(episode_stream(t), Version(1), [draft(event)], Origin(cause=None))
    await caught_up(log, Projector(log))
    assert [one.operations for one in await folds(log)] == [[], [], []]
    assert len({one.digest for one in await folds(log)}) == 1


class _Listener:
    """Whoever is told of versions."""

    def __init__(self) -> None:
        #: rows of the newest version at each beginning, and what made it
        self.begun: list[tuple[int, Basis | None]] = []
        self.folds: list[Basis | None] = []

    def begin(self, window: Window, dimension: int, basis: Basis | None = None) -> None:
        self.begun.append((len(window.newest), basis))

    def folded(self, banks: Banks, operations: Sequence[Operation], basis: Basis | None) -> None:
        self.folds.append(basis)


@pytest.mark.parametrize("counted", [True, False])
async def test_nobody_is_told_of_half_a_seed_bank(made_run: Any, counted: bool):
    """Version 0 comes in several events: it is told when it is whole, or anew where the header does not say when."""
    made, log, listener = made_run(), new_log(), _Listener()
    started = decode_as(made.events[0], RunStarted)
    banks = grown(30, started.embedder.dimension).newest
    items = seed_items(banks, RunId("origin"))
    seed = SeedBank(run="origin", version=30, digest=banks.digest(), items=len(items) if counted else None)
    head = [replace(started, seed_bank=seed), *(Seeded(items=[item]) for item in items)]
    projector, position = Projector(log), 0
    projector.tell(listener)
    for version, event in enumerate(head, 1):
        await log.append(RUN_STREAM, Version(version), [draft(event)], Origin(cause=None))
        position = await caught_up(log, projector, position)
    assert len(items) > 5
    assert listener.begun == [(count, None) for count in ([len(items)] if counted else range(len(items) + 1))]


async def test_who_begins_to_listen_is_told_what_made_the_newest_version(made_run: Any):
    """So that nothing is published which the log has lost since."""
    made, log = made_run(), new_log()
    await written(log, unfolded(made))
    projector, first, second = Projector(log), _Listener(), _Listener()
    projector.tell(first)
    await caught_up(log, projector)
    projector.tell(second)
    newest = (await log.read_stream(PROJECTOR_STREAM))[-1]
    made_by = Basis(stream=PROJECTOR_STREAM, version=newest.version, sha256=content_sha256(newest.kind, newest.data))
    assert first.begun == [(0, None)]
    assert first.folds[-1] == made_by
    assert [basis for _, basis in second.begun] == [made_by]
