"""A process's own copy of the banks: which versions it answers, what it waits for, what it does after a loss."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from events import policies
from events.bank import Banks, evolve
from events.codec import content_sha256, draft
from events.errors import BadInput, Mismatch, UnreadableEvent
from events.ids import PROJECTOR_STREAM, RUN_STREAM, BankVersion, RunId, Version, episode_stream
from events.kinds import (
    Diagnosed,
    EmbedderIdentity,
    Experience,
    Folded,
    MergeProposals,
    Query,
    RetrievedIds,
    RunConfig,
    RunStarted,
    Seeded,
    StageExperiences,
    TasksListed,
    Usage,
)
from events.log import Draft, Recorded
from events.recall import recall
from events.seeding import seed_items
from events.vectors import Vector, fixed_point
from infra.banks.replica import Replica
from infra.clock import SystemClock
from infra.list_log import ListLog
from runtime.ports import Origin

RUN = RunId("r")
DIMENSION = 8
NOWHERE = Origin(cause=None)


def unit(axis: int) -> Vector:
    return fixed_point([float(one == axis) for one in range(DIMENSION)])


class Written:
    """A log whose episodes each insert one item, with the banks at every version."""

    def __init__(self, *, lag: Any = 2, concurrency: int = 1, frozen: bool = False) -> None:
        self.policy = policies.load("credit")
        self.log = ListLog(RUN, SystemClock())
        self.config = RunConfig(
            policy=self.policy.config(), lag=lag, frozen=frozen, concurrency=concurrency, epochs=1, models={},
            environment={"name": "toy"}, protocol={}, ordering={}, limits={}, agent={},
        )  # fmt: skip
        self.versions: list[Banks] = [Banks()]

    async def begin(self, tasks: Sequence[str] = ("a", "b")) -> None:
        started = RunStarted(
            config=self.config, tasks=["a"], tasks_total=len(tasks), prompts={}, code="0", seed_bank=None,
            embedder=EmbedderIdentity(fingerprint="made", dimension=DIMENSION),
        )  # fmt: skip
        await self.log.append(RUN_STREAM, Version(1), [draft(started)], NOWHERE)
        await self.log.append(RUN_STREAM, Version(2), [draft(TasksListed(tasks=["b"]))], NOWHERE)

    async def fold(self) -> None:
        """One more version: the next episode diagnosed and folded."""
        banks, t = self.versions[-1], len(self.versions) - 1
        new = Experience(
            scenario=f"scenario {t}", experience="Look before you leap, always.", scenario_vector=unit(t % DIMENSION),
            experience_vector=unit(t % DIMENSION), concrete=True, actionable=True, acceptable=True, lint=[],
        )  # fmt: skip
        diagnosed = Diagnosed(
            success=True, label="planning", confidence_e4=9000, retrieved=RetrievedIds(planning=[], execution=[]),
            misleading=[], misleading_dropped=0, experiences=StageExperiences(planning=new),
            merge_proposals=MergeProposals(), degraded=None, usage=Usage(), calls=[],
        )  # fmt: skip
        operations = self.policy.decide(banks, t, diagnosed)
        self.versions.append(evolve(banks, diagnosed, operations))
        if self.config.frozen:
            operations = []
            self.versions[-1] = evolve(banks, diagnosed, [])
        folded = Folded(
            episode=t, bank_version=BankVersion(t + 1), digest=self.versions[-1].digest(), operations=operations
        )
        await self.log.append(episode_stream(t), Version(1), [draft(diagnosed)], NOWHERE)
        await self.log.append(PROJECTOR_STREAM, Version(t + 1), [draft(folded)], NOWHERE)


@pytest.fixture
def written() -> Callable[..., Written]:
    return Written


async def test_versions_in_the_window(written: Any):
    """Every version that an open episode may read is answered as it was; an older one is an error that names it."""
    made = written(lag=2, concurrency=1)
    await made.begin()
    replica = Replica(made.log)
    for _ in range(8):
        await made.fold()
    assert await replica.newest() == 8
    for version in range(4, 9):
        assert (await replica.at(BankVersion(version))).digest() == made.versions[version].digest()
    for gone in (0, 3):
        with pytest.raises(Mismatch, match=f"bank version {gone} of run r is gone; the oldest held is 4"):
            await replica.at(BankVersion(gone))


async def test_head_and_tasks(written: Any):
    """The header, and the task list over all events that hold it."""
    made = written()
    await made.begin()
    replica = Replica(made.log)
    assert await replica.tasks() == ("a", "b")
    assert (await replica.header()).config == made.config


async def test_recall_at_a_version(written: Any):
    """A recall is equation (5) over that version, with the chosen items; items are those live there, in order."""
    made = written(lag=4, concurrency=2)
    await made.begin()
    for _ in range(5):
        await made.fold()
    replica, query = Replica(made.log), Query(text="q", vector=unit(2))
    for version in (2, 3, 5):
        answer = await replica.recall("planning", query, BankVersion(version))
        assert answer.candidates == recall(made.versions[version], ("planning",), unit(2), made.policy.parameters)
        assert [one.id for one in answer.chosen] == [one.id for one in answer.candidates if one.chosen]
        assert (len(answer.chosen) > 0) == (version > 2), "episode 2 inserted what the query is about"
        assert answer.source == "exact"
    found = await replica.items(["planning-3", "planning-0", "planning-4"], BankVersion(4))
    assert [one.id for one in found] == ["planning-3", "planning-0"]


async def test_frozen_reads_version_0_after_a_restart(written: Any, made_seeds: Sequence[Any]):
    """A replica that is new long after the start still answers version 0 of a frozen run: its seed bank."""
    made = written(lag=2, concurrency=1, frozen=True)
    await made.begin()
    await made.log.append(RUN_STREAM, Version(3), [draft(Seeded(items=list(made_seeds[:1])))], NOWHERE)
    await made.log.append(RUN_STREAM, Version(4), [draft(Seeded(items=list(made_seeds[1:])))], NOWHERE)
    for _ in range(30):
        await made.fold()
    banks = await Replica(made.log).at(BankVersion(0))
    assert [one.id for one in banks] == [one.id for one in made_seeds]


@pytest.fixture
async def made_seeds(written: Any) -> list[Any]:
    made = written()
    for _ in range(3):
        await made.fold()
    return seed_items(made.versions[-1], RunId("other"))


async def test_waits_for_a_version(written: Any):
    """A reader of a version that is not there yet gets it once it is, and several may wait at once."""
    made = written(lag=8, concurrency=4)
    await made.begin()
    replica, read = Replica(made.log), []

    async def reader(version: int) -> None:
        read.append((version, (await replica.at(BankVersion(version))).digest()))

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for version in (3, 1, 2, 3):
                tasks.start_soon(reader, version)
            for _ in range(3):
                await anyio.wait_all_tasks_blocked()
                await made.fold()
    assert sorted(read) == sorted((version, made.versions[version].digest()) for version in (3, 1, 2, 3))


async def test_waits_for_a_head(written: Any):
    """A reader that comes before the log waits for it; the header alone must be there."""
    made = written()
    replica = Replica(made.log)
    with pytest.raises(UnreadableEvent, match="run_started"):
        await replica.header()
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(replica.at, BankVersion(1))
            await anyio.wait_all_tasks_blocked()
            await made.begin()
            await made.fold()


class LosingLog:
    """A log whose server came back without its tail, once."""

    def __init__(self, log: Any) -> None:
        self.log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)


async def shortened(made: Written, length: int) -> ListLog:
    """The first events of the made log, as a server without the others has them."""
    log = ListLog(RUN, SystemClock())
    events: list[Recorded] = [one async for page in made.log.pages(0) for one in page]
    for one in events[:length]:
        item = Draft(kind=one.kind, schema=one.schema, data=one.data, sha256=content_sha256(one.kind, one.data))
        await log.append(one.stream, one.version, [item], NOWHERE)
    return log


async def test_a_lost_tail_is_read_again(written: Any):
    """Where the head went back, what was derived is dropped and the log read anew."""
    made = written(lag=4, concurrency=2)
    await made.begin()
    for _ in range(4):
        await made.fold()
    log = LosingLog(made.log)
    replica = Replica(log)
    assert await replica.newest() == 4
    log.log = await shortened(made, 2 + 2 * 2)
    assert await replica.newest() == 2
    assert (await replica.at(BankVersion(2))).digest() == made.versions[2].digest()


async def test_a_version_older_than_those_of_a_lost_tail(written: Any):
    """More was lost than a reader holds: whoever asks for a version before it gets that, from the log as it is now."""
    made = written(lag=1, concurrency=1)
    await made.begin()
    for _ in range(9):
        await made.fold()
    log = LosingLog(made.log)
    replica = Replica(log)
    assert await replica.newest() == 9
    log.log = await shortened(made, 2 + 2 * 3)
    read: list[str] = []

    async def reader() -> None:
        read.append((await replica.at(BankVersion(2))).digest())

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(reader)
    assert read == [made.versions[2].digest()] * 3


async def test_a_tail_lost_while_waiting(written: Any):
    """A reader that waits while the server loses its tail goes on waiting for its version."""
    made = written(lag=8, concurrency=4)
    await made.begin()
    for _ in range(3):
        await made.fold()
    log = LosingLog(made.log)
    replica, read = Replica(log), []

    async def reader() -> None:
        read.append((await replica.at(BankVersion(4))).digest())

    lost = await shortened(made, 2 + 2)
    wait = log.log.wait

    async def wait_through_the_loss(after: Any, timeout_s: float) -> bool:
        log.log = lost
        return await lost.wait(after, timeout_s)

    made.log.wait = wait_through_the_loss
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader)
            await anyio.wait_all_tasks_blocked()
            made.log.wait = wait
            made.log, made.versions = lost, made.versions[:2]
            for _ in range(3):
                await made.fold()
    assert read == [made.versions[4].digest()]


async def test_latest_holds_what_a_slow_episode_read(written: Any):
    """In `latest` mode the versions behind the newest are there as far as episodes may be ahead of the folds."""
    made = written(lag="latest", concurrency=3)
    await made.begin()
    for _ in range(9):
        await made.fold()
    replica = Replica(made.log)
    assert await replica.newest() == 9
    assert (await replica.at(BankVersion(9 - 2 * 3))).digest() == made.versions[3].digest()


async def test_another_fold_version(written: Any):
    """A run that folds by other rules is refused."""
    made = written()
    made.config = replace(made.config, fold_version=99)
    await made.begin()
    with pytest.raises(BadInput, match="99"):
        await Replica(made.log).header()
