"""Runs whose bank is in a real Weaviate: the same banks as ever, whatever becomes of the server meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from answering_alike import answering_alike
from stored_worlds import DEADLINE_S, RUN, held_back, recalled, sources, stored, until
from weaviate_servers import full

from events.errors import VersionGap
from events.ids import BankVersion, Position
from events.log import Recorded
from infra.banks import weaviate_edge
from infra.weaviate_address import WeaviateAddress
from runtime.ports import EventLog
from workers import mirroring
from workers.stored_bank import built_again, checked

LIMIT = 10
#: the first episode that waits where something happens in the middle of a run
MIDDLE = 5

#: a server of the tests' own, as its fixture makes it
OwnWeaviate = Any


@pytest.fixture
async def expected(world: Any, playing: Any) -> list[str]:
    """The digest at every version of the same run, recalled from replicas."""
    return list(playing.digests(await world().play(RUN, plan(playing, store="replica"), limit=LIMIT)))


def plan(playing: Any, store: str = "weaviate") -> Any:
    return playing.configured(concurrency=4, lag=4, store=store)


async def test_a_run_recalls_from_weaviate(
    world: Any, playing: Any, redis_server: Any, redis_prefix: str, weaviate_server: WeaviateAddress,
    expected: list[str], patience: None,
):  # fmt: skip
    """Every recall says `weaviate`, every version has the digest of replicas, and the bank holds what the log says."""
    replicas = await world().play(RUN, plan(playing, store="replica"), limit=LIMIT)
    async with stored(world, redis_server.url, redis_prefix, weaviate_server) as here:
        events = await here.world.play(RUN, plan(playing), limit=LIMIT)
        assert sources(events) == {"weaviate": 2 * LIMIT}
        assert playing.digests(events) == expected
        assert playing.contents(events) == playing.contents(replicas)
        serving = await here.of().serving()
        assert serving is not None
        assert serving.version == LIMIT
        assert await here.differences() == []


async def test_each_term_has_a_generation(
    world: Any, playing: Any, redis_server: Any, redis_prefix: str, weaviate_server: WeaviateAddress,
    expected: list[str], patience: None,
):  # fmt: skip
    """A run that is stopped and goes on elsewhere has its bank built anew; both recall from Weaviate."""
    stopped = anyio.Event()
    around = held_back({MIDDLE: stopped})
    async with stored(world, redis_server.url, redis_prefix, weaviate_server, around=around) as here:
        log = await here.world.begin(RUN, plan(playing), limit=LIMIT)

        async def grown() -> bool:
            return bool(await log.head() > 30 and await here.of().serving())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(here.world.drive, RUN)
            await until(grown)
            tasks.cancel_scope.cancel()
        stopped.set()
        first = await here.of().serving()
        assert await here.world.drive(RUN, deadline_s=DEADLINE_S) == ["finished"]
        second = await here.of().serving()
        assert first is not None
        assert second is not None
        assert first.generation != second.generation
        events = await here.world.recorded(RUN)
        assert playing.digests(events) == expected
        assert sources(events)["weaviate"] > 0
        assert await here.differences() == []


async def test_a_run_moves_between_stores(
    world: Any, playing: Any, redis_server: Any, redis_prefix: str, weaviate_server: WeaviateAddress,
    expected: list[str], patience: None,
):  # fmt: skip
    """What is said of the store in the middle of a run counts at once, for its mirror and for its recalls."""
    moved = anyio.Event()
    async with stored(
        world, redis_server.url, redis_prefix, weaviate_server, around=held_back({MIDDLE: moved})
    ) as here:
        log = await here.world.begin(RUN, plan(playing, store="replica"), limit=LIMIT)

        async def disturb() -> None:
            await until(lambda: _beyond(log, 25))
            await playing.told(log, {"bank": {"store": "weaviate"}})
            await until(here.of().serving)
            moved.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(disturb)
            assert await here.world.drive(RUN, deadline_s=DEADLINE_S) == ["finished"]
        events = await here.world.recorded(RUN)
        assert playing.digests(events) == expected
        found = sources(events)
        assert found["exact"] > 0
        assert found["weaviate"] > 0
        assert await here.differences() == []


async def test_a_rebuild_of_a_run_that_goes_on(
    world: Any, playing: Any, redis_server: Any, redis_prefix: str, weaviate_server: WeaviateAddress,
    expected: list[str], patience: None,
):  # fmt: skip
    """Somebody's rebuild of a run under way is made by its coordinator, and checked beside it; the run goes on."""
    rebuilt = anyio.Event()
    async with stored(
        world, redis_server.url, redis_prefix, weaviate_server, around=held_back({MIDDLE: rebuilt})
    ) as here:
        log = await here.world.begin(RUN, plan(playing), limit=LIMIT)
        built = found = None

        async def disturb() -> None:
            nonlocal built, found
            await until(lambda: recalled(log, "weaviate", 0))
            before = await here.of().serving()
            async with here.world.with_banks() as there:
                built = await built_again(there, log, BankVersion(0), apart=False)
                rebuilt.set()
                found = await checked(there, log)
            assert before is not None
            assert built.generation != before.generation

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(disturb)
            assert await here.world.drive(RUN, deadline_s=DEADLINE_S) == ["finished"]
        assert built is not None
        assert found is not None
        assert (found.generation, found.differences) == (built.generation, [])
        events = await here.world.recorded(RUN)
        assert playing.digests(events) == expected
        serving = await here.of().serving()
        assert serving is not None
        assert (serving.generation, serving.version) == (built.generation, LIMIT)


async def _beyond(log: EventLog, position: int) -> bool:
    return await log.head() > position


@dataclass(frozen=True)
class Trouble:
    """What becomes of a server in the middle of a run, and how it comes back before the run's last episodes."""

    name: str
    begins: Callable[[OwnWeaviate], None]
    ends: Callable[[OwnWeaviate], None] | None
    #: what stands at its address meanwhile
    instead: Callable[[OwnWeaviate], AbstractContextManager[Any]] = nullcontext


def _with_another_key(server: OwnWeaviate) -> None:
    server.stop()
    server.start(api_key="another-key-than-before")


#: what a Weaviate of long ago says of itself
_OLD = b'{"version": "1.19.0"}'


def _old_one(server: OwnWeaviate) -> AbstractContextManager[WeaviateAddress]:
    return answering_alike(_OLD, urlsplit(server.address.http_url).port or 0)


TROUBLES = (
    Trouble("kill-9", lambda server: server.kill(), lambda server: server.start()),
    Trouble("wiped", lambda server: server.wipe(), lambda server: server.start()),
    Trouble("hung", lambda server: server.pause(), lambda server: server.resume()),
    Trouble("stopped", lambda server: server.stop(), lambda server: server.start()),
    Trouble("gone", lambda server: server.stop(), None),
    Trouble("old-version", lambda server: server.stop(), lambda server: server.start(), _old_one),
    Trouble("other-key", _with_another_key, None),
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
async def test_trouble_in_the_middle_of_a_run(
    trouble: Trouble, world: Any, playing: Any, redis_server: Any, redis_prefix: str, own_weaviate_server: OwnWeaviate,
    expected: list[str], monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """The run goes on from full replicas, recalls from Weaviate again once that is back, and ends with its digest."""
    address = await anyio.to_thread.run_sync(own_weaviate_server.start)
    served, begun, over = anyio.Event(), anyio.Event(), anyio.Event()
    # The first episodes find their bank served, and are answered however late; the last are played once it is back.
    around = held_back({0: served, MIDDLE: begun, LIMIT - 2: over})
    read_s = weaviate_edge.READ_S
    monkeypatch.setattr(weaviate_edge, "READ_S", 15.0)
    async with stored(world, redis_server.url, redis_prefix, address, around=around) as here:
        log = await here.world.begin(RUN, plan(playing), limit=LIMIT)

        async def disturb() -> None:
            await until(here.of().serving)
            served.set()
            await until(lambda: recalled(log, "weaviate", 0))
            await anyio.to_thread.run_sync(trouble.begins, own_weaviate_server)
            monkeypatch.setattr(weaviate_edge, "READ_S", read_s)
            with trouble.instead(own_weaviate_server):
                before = await log.head()
                begun.set()
                await until(lambda: recalled(log, "fallback", before))
                if trouble.ends is None:
                    over.set()
                    return
            await anyio.to_thread.run_sync(trouble.ends, own_weaviate_server)
            for limit in ("_SETTLE_S", "_AWAY_S"):
                monkeypatch.setattr(mirroring, limit, DEADLINE_S / 2)
            over.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(disturb)
            assert await here.world.drive(RUN, deadline_s=DEADLINE_S) == ["finished"]
        events = await here.world.recorded(RUN)
        assert playing.digests(events) == expected
        found = sources(events)
        assert set(found) == {"weaviate", "fallback"}
        assert {one.attempt for one in events} == {1}, "no job was lost over it"
        if trouble.ends is not None:
            assert await here.differences() == []


@pytest.mark.timeout(300)
async def test_a_disk_that_is_full_in_the_middle_of_a_run(
    world: Any, playing: Any, redis_server: Any, redis_prefix: str, own_weaviate_server: OwnWeaviate, small_disk: Path,
    expected: list[str], monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """As other troubles: it is refused what it writes until it is started again with room."""

    def room(server: OwnWeaviate) -> None:
        (small_disk / "full").unlink()
        server.restart()

    trouble = Trouble("full", lambda server: full(small_disk), room)
    here = (world, playing, redis_server, redis_prefix)
    await test_trouble_in_the_middle_of_a_run(trouble, *here, own_weaviate_server, expected, monkeypatch)


async def test_a_shard_that_is_read_only_in_the_middle_of_a_run(
    world: Any, playing: Any, redis_server: Any, redis_prefix: str, own_weaviate_server: OwnWeaviate,
    expected: list[str], patience: None,
):  # fmt: skip
    """The next generation is built beside it, and the run ends with its digest."""
    address, changed = own_weaviate_server.address, anyio.Event()
    async with stored(world, redis_server.url, redis_prefix, address, around=held_back({MIDDLE: changed})) as here:
        log = await here.world.begin(RUN, plan(playing), limit=LIMIT)
        before = ""

        async def disturb() -> None:
            nonlocal before
            await until(lambda: recalled(log, "weaviate", 0))
            before = (await until(here.of().serving)).generation
            headers = {"Authorization": f"Bearer {address.api_key}"}
            async with httpx.AsyncClient(base_url=address.http_url, headers=headers) as http:
                for collection in ("PlanningMemory", "ExecutionMemory"):
                    url = f"/v1/schema/{collection}/shards/{before}"
                    (await http.put(url, json={"status": "READONLY"})).raise_for_status()
            changed.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(disturb)
            assert await here.world.drive(RUN, deadline_s=DEADLINE_S) == ["finished"]
        events, serving = await here.world.recorded(RUN), await here.of().serving()
        assert playing.digests(events) == expected
        assert set(sources(events)) <= {"weaviate", "fallback"}
        assert serving is not None
        assert (serving.generation != before, serving.version) == (True, LIMIT)
        assert await here.differences() == []


@pytest.fixture
def old_server() -> Iterator[WeaviateAddress]:
    """An address where a server of an old version answers on REST."""
    with answering_alike(_OLD) as address:
        yield address


async def test_a_server_of_an_old_version(
    world: Any, playing: Any, redis_server: Any, redis_prefix: str, old_server: WeaviateAddress, expected: list[str]
):
    """A run that meets a server which is too old is recalled from replicas, and nothing is published."""
    async with stored(world, redis_server.url, redis_prefix, old_server) as here:
        events = await here.world.play(RUN, plan(playing), limit=LIMIT)
        assert sources(events) == {"fallback": 2 * LIMIT}
        assert playing.digests(events) == expected
        assert await here.of().serving() is None


async def test_a_lost_tail_begins_another_generation(
    world: Any, playing: Any, redis_server: Any, redis_prefix: str, weaviate_server: WeaviateAddress,
    expected: list[str], monkeypatch: pytest.MonkeyPatch, patience: None,
):  # fmt: skip
    """Where the log is read again the bank is built again: what was mirrored before belongs to banks that went."""
    async with stored(world, redis_server.url, redis_prefix, weaviate_server) as here:
        log = await here.world.begin(RUN, plan(playing), limit=LIMIT)
        gaps = 0

        async def read(self: Any, after: Position, limit: int, kinds: frozenset[str] | None = None) -> list[Recorded]:
            nonlocal gaps
            if not gaps and after > 30 and await here.of().serving():
                gaps += 1
                raise VersionGap("head of run r", int(after), 3)
            found: list[Recorded] = await whole(self, after, limit, kinds)
            return found

        whole = type(log).read
        monkeypatch.setattr(type(log), "read", read)
        assert await here.world.drive(RUN, deadline_s=DEADLINE_S) == ["finished"]
        events = await here.world.recorded(RUN)
        assert gaps == 1
        assert playing.digests(events) == expected
        serving = await here.of().serving()
        assert serving is not None
        assert "_2-" in serving.generation, "the second one that was begun"
        assert await here.differences() == []
