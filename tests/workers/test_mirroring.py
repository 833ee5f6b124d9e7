"""How a coordinator and a worker come by the bank server, and what a coordinator does for a bank that was wrong."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from events.codec import decode, draft
from events.errors import BadInput, Unreachable
from events.kinds import Retrieved
from infra.clock import SystemClock
from infra.list_log import ListLog
from infra.local_queue import LocalQueue
from infra.weaviate_server import Start, folder_of
from runtime.beside import beside
from runtime.ports import Origin
from workers.bank_access import BankAccess, address_of
from workers.configuration import WeaviateSettings
from workers.coordinator import RunCoordinator

#: a server of the tests' own, as its fixture makes it
OwnWeaviate = Any


async def test_a_wrong_recall_of_a_store_makes_it_doubtful(made_run: Any, ground: Any, brisk: None):
    """A recall that came from Weaviate and is wrong asks for the next generation, once; one of a replica does not."""
    for source, doubts in (("weaviate", 1), ("exact", 0)):
        log = ListLog(made_run().run, SystemClock())
        for one in made_run().events[:-1]:
            event = decode(one)
            if isinstance(event, Retrieved) and event.candidates:
                event = replace(event, candidates=event.candidates[:-1], source=source)
            await log.append(one.stream, one.version, [draft(event)], Origin(cause=one.cause))
        told: list[str] = []
        for _ in range(2):
            coordinator = RunCoordinator(log, ground(LocalQueue()))
            coordinator.mirroring.doubt = told.append  # type: ignore[method-assign]
            await coordinator.run()
        wrong = len(coordinator.projector.wrong_recalls)
        assert wrong > 1
        assert len(told) == doubts * wrong


async def test_a_run_whose_bank_server_nobody_knows(world: Any, playing: Any):
    """Workers and a coordinator that know no way to Weaviate play a run that is to be recalled from there."""
    plan = playing.configured(store="weaviate")
    events = await world().play("r", plan, limit=4)
    found = Counter(json.loads(one.data)["source"] for one in events if one.kind == "retrieved")
    assert found == {"fallback": 8}


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Any]:
    """Makes ways to a bank server in a task group of the test's."""

    def make(tasks: Any, home: Path = tmp_path, **settings: str) -> BankAccess:
        return BankAccess(
            WeaviateSettings(**settings), {}, home, SystemClock(), tasks, starting=False, start=Start()
        )  # fmt: skip

    return make


async def test_a_home_without_a_server(opened: Any, monkeypatch: pytest.MonkeyPatch):
    """Where the home's own server does not run, a reader is told so at once, and it is said once."""
    with capture_logs() as said:
        async with beside() as tasks:
            access = opened(tasks)
            assert [await access.reachable() for _ in range(3)] == [None, None, None]
            with pytest.raises(Unreachable, match="no Weaviate server of the home"):
                await access.server()
            monkeypatch.setattr("workers.bank_access._AGAIN_S", 0.0)
            assert await access.reachable() is None
    assert [one["event"] for one in said].count("bank_server_missing") == 1


async def test_a_home_whose_server_comes_up_and_moves(
    opened: Any, own_weaviate_server: OwnWeaviate, monkeypatch: pytest.MonkeyPatch, patience: None
):
    """A server that comes up later is found, and again once it is elsewhere, with another key."""
    monkeypatch.setattr("workers.bank_access._AGAIN_S", 0.0)
    await anyio.to_thread.run_sync(own_weaviate_server.stop)
    async with beside() as tasks:
        access = opened(tasks, own_weaviate_server.home)
        assert await access.reachable() is None
        first = await anyio.to_thread.run_sync(own_weaviate_server.start)
        server = await access.server()
        assert server.where == first.http_url
        assert await server.names() == []
        await anyio.to_thread.run_sync(own_weaviate_server.kill)
        shutil.rmtree(folder_of(own_weaviate_server.home))
        second = await anyio.to_thread.run_sync(own_weaviate_server.start)
        assert second.api_key != first.api_key
        with pytest.raises(Unreachable):
            await server.names()
        with anyio.fail_after(120):
            while access.current in (None, server):  # noqa: ASYNC110 - found by a task that tells nobody
                await anyio.sleep(0.05)
        assert await (await access.server()).names() == []


def test_the_address_of_a_server_of_yours():
    """The gRPC address is the same host's, port 50051, unless it is given; a key is what a header can hold."""
    made = address_of(WeaviateSettings(url="https://h.example:8443/"), {"CHIME_WEAVIATE_API_KEY": " k\n"})
    assert (made.http_url, made.grpc_url, made.api_key) == ("https://h.example:8443", "https://h.example:50051", "k")
    made = address_of(WeaviateSettings(url="http://[::1]:8080", grpc_url="[::1]:7"), {})
    assert (made.grpc_url, made.api_key) == ("[::1]:7", "")
    assert address_of(WeaviateSettings(url="http://[::1]:8080"), {}).grpc_url == "[::1]:50051"
    with pytest.raises(BadInput, match="CHIME_WEAVIATE_API_KEY holds characters that no key has"):
        address_of(WeaviateSettings(url="http://h"), {"CHIME_WEAVIATE_API_KEY": "k\u00e9y"})


async def test_errors_of_a_body_are_not_wrapped():
    """What is raised beside tasks comes out as it is, and the tasks end with it."""
    ended = False

    async def task() -> None:
        nonlocal ended
        try:
            await anyio.sleep_forever()
        finally:
            ended = True

    async def body() -> None:
        async with beside() as tasks:
            tasks.start_soon(task)
            await anyio.lowlevel.checkpoint()
            raise BadInput("plain")

    with pytest.raises(BadInput, match=r"^plain$"):
        await body()
    assert ended
