"""A server whose data somebody has put back to how they were a while ago, under a run that goes on."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from banked_run import Asked, Place, placed
from msgspec.structs import replace

from events.ids import STAGES
from events.kinds import Query
from infra.banks import weaviate_wire as wire
from infra.banks.mirror import Mirror
from infra.banks.stored import StoredBanks
from infra.weaviate_address import WeaviateAddress

#: a server of the tests' own, as its fixture makes it
OwnWeaviate = Any


def _put_aside(server: OwnWeaviate, aside: Path) -> None:
    server.stop()
    shutil.copytree(server.data, aside)
    server.start()


def _put_back(server: OwnWeaviate, aside: Path) -> None:
    server.stop()
    shutil.rmtree(server.data)
    shutil.move(aside, server.data)
    server.start()


async def assert_exact(place: Place, reader: StoredBanks) -> list[str]:
    """Recalls near everything that was born lately find it; where from."""
    banks, found = place.run.versions[-1], []
    for stage in STAGES:
        for item in [item for item in banks if item.bank == stage][-6:]:
            query = Query(text="q", vector=banks.scenario_vector(item))
            recalled = await reader.recall(stage, query, banks.version)
            assert place.run.right(Asked(stage, query, banks.version), recalled)
            found.append(recalled.source)
    return found


async def settled(mirror: Mirror) -> None:
    """All that it was told is there."""
    assert await mirror.settle(120), mirror.view


@pytest.mark.parametrize("readers", ["the same", "another"])
async def test_rows_are_missing(
    redis_server: Any, redis_prefix: str, own_weaviate_server: OwnWeaviate, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, readers: str,
):  # fmt: skip
    """No recall believes it: rows that were found before are looked for once the connection was lost."""
    if readers == "another":
        monkeypatch.setattr(wire, "MOST", 45)  # as a bank of very many rows
    in_thread: Callable[..., Any] = anyio.to_thread.run_sync
    async with placed(redis_server.url, redis_prefix, own_weaviate_server.address, lag=200) as place:
        run = place.run
        await run.fold(60)
        mirror, reader = run.mirrored(place.mirror(), term=1), place.reader()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mirror.run)
            await settled(mirror)
            await in_thread(_put_aside, own_weaviate_server, tmp_path / "aside")
            await run.fold(20)
            await settled(mirror)
            await assert_exact(place, reader)
            begun = mirror.view.begun
            # Nobody is told: what is asked first is a recall.
            await in_thread(_put_back, own_weaviate_server, tmp_path / "aside")
            await assert_exact(place, reader if readers == "the same" else place.reader())
            with anyio.fail_after(120):
                # Recalls that fall back wait for nothing.
                while mirror.view.begun == begun or set(await assert_exact(place, reader)) != {"weaviate"}:  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("most", [wire.MOST, 45], ids=["a small bank", "a large bank"])
async def test_a_connection_is_lost_and_nothing_else(
    redis_server: Any, redis_prefix: str, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch, most: int
):
    """What is looked for is there: the generation stays, and nobody turns to the log."""
    monkeypatch.setattr(wire, "MOST", most)
    async with placed(redis_server.url, redis_prefix, weaviate_server, lag=200) as place:
        await place.run.fold(60)
        mirror, reader = place.run.mirrored(place.mirror(), term=1), place.reader()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mirror.run)
            await settled(mirror)
            assert set(await assert_exact(place, reader)) == {"weaviate"}
            place.server._edge.losses += 1
            await place.run.fold(5)
            await settled(mirror)
            assert set(await assert_exact(place, reader)) == {"weaviate"}
            assert mirror.view.begun == 1
            tasks.cancel_scope.cancel()


async def test_the_row_written_last_is_an_older_one(
    redis_server: Any, redis_prefix: str, weaviate_server: WeaviateAddress
):
    """Every row is there, and no recall is wrong: people would see old values, so the bank is built anew."""
    async with placed(redis_server.url, redis_prefix, weaviate_server, lag=200) as place:
        run = place.run
        await run.fold(30)
        mirror = run.mirrored(place.mirror(), term=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mirror.run)
            await settled(mirror)
            name, store, banks = mirror.view.generation, mirror._store, run.versions[-1]
            written = store._last["planning"]
            assert banks.get(written.id) is not None
            await place.server._edge.put(name, wire.batch(name, [replace(written, n=written.n + 7)]))
            place.server._edge.losses += 1
            with anyio.fail_after(120):
                while mirror.view.begun == 1:
                    await mirror.settle(0.05)
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
