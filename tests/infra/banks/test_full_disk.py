"""A Weaviate server whose disk is full: it refuses until it is started again, and the run goes on."""

from pathlib import Path

import anyio
from banked_run import placed
from weaviate_servers import full

from infra.banks import mirror as mirroring
from infra.banks import weaviate_edge


async def test_a_full_disk(redis_server, redis_prefix: str, own_weaviate_server, small_disk: Path, monkeypatch):
    """Reads stay right while it is full and after there is room again; after a restart the bank is whole."""
    monkeypatch.setattr(mirroring, "_AGAIN_S", (0.05, 0.2))
    monkeypatch.setattr(weaviate_edge, "_PROBE_S", (0.05, 0.2))
    async with (
        placed(redis_server.url, redis_prefix, own_weaviate_server.address, dimension=256) as place,
        anyio.create_task_group() as tasks,
    ):
        run, reader = place.run, place.reader()

        async def read() -> set[str]:
            found = set()
            for _ in range(4):
                asked = run.asked()
                asked = type(asked)(asked.stage, asked.query, run.versions[-1].version)
                recalled = await reader.recall(asked.stage, asked.query, asked.version)
                assert run.right(asked, recalled)
                found.add(recalled.source)
            return found

        mirror = run.mirrored(place.mirror(), term=1)
        tasks.start_soon(mirror.run)
        await run.fold(10)
        assert await mirror.settle(120)
        assert await read() == {"weaviate"}
        filled = full(small_disk)
        with anyio.fail_after(120):
            while not mirror.view.waits_for:
                await run.fold(3)
                await mirror.settle(0.2)
        assert await read() <= {"weaviate", "fallback"}
        filled.unlink()
        await anyio.to_thread.run_sync(own_weaviate_server.restart)
        with anyio.fail_after(120):
            while not await mirror.settle(1) or "weaviate" not in await read():
                pass
        tasks.cancel_scope.cancel()
