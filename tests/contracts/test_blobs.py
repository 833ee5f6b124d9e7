"""What every store of bodies must do: in a folder, and on real servers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import anyio
import pytest
import zstandard

from events.errors import Unreachable
from events.ids import RunId
from infra.blobs import FolderBlobs, RedisBlobs, get_messages, put_messages
from infra.redis_client import client, connected
from runtime.errors import MissingBlob
from runtime.ports import Blobs

RUN, OTHER = RunId("r-1"), RunId("r-10")


@dataclass(frozen=True)
class Store:
    """A store, and a way to put raw bytes where a body lies."""

    blobs: Blobs
    overwrite: Callable[[str, bytes], Awaitable[None]]


@pytest.fixture(params=["folder", "redis"])
def open_store(request: pytest.FixtureRequest, redis_prefix: str, tmp_path: Path):
    """A way to open an empty store of each kind."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        if request.param == "folder":

            async def write(name: str, stored: bytes) -> None:
                await anyio.Path(tmp_path / "blobs" / RUN / name[:2] / f"{name}.zst").write_bytes(stored)

            yield Store(FolderBlobs(tmp_path), write)
            return
        server = request.getfixturevalue("redis_server")
        async with connected(server.url) as redis:

            async def set_field(name: str, stored: bytes) -> None:
                await redis.hset(f"{redis_prefix}:{{{RUN}}}:blobs", name, stored)

            yield Store(RedisBlobs(redis, redis_prefix, server.url), set_field)

    return opened


@pytest.mark.parametrize("body", [b"", b"x", b"\x00\xff" * 1000, b"a" * 5_000_000])
async def test_a_body_comes_back(body: bytes, open_store) -> None:
    """Under the SHA-256 of its bytes, whatever they are."""
    async with open_store() as store:
        name = await store.blobs.put(RUN, body)
        assert name == sha256(body).hexdigest()
        assert await store.blobs.get(RUN, name) == body


async def test_a_body_is_stored_once(open_store) -> None:
    """Put again, also by many at once, it is one body; hashes are sorted and of one run."""
    async with open_store() as store:
        async with anyio.create_task_group() as tasks:
            for i in range(20):
                tasks.start_soon(store.blobs.put, RUN, f"body {i % 2}".encode())
        await store.blobs.put(OTHER, b"another run's")
        expected = sorted(sha256(body).hexdigest() for body in (b"body 0", b"body 1"))
        assert await store.blobs.hashes(RUN) == expected
        assert len(await store.blobs.hashes(OTHER)) == 1
        assert await store.blobs.hashes(RunId("none")) == []


async def test_many_bodies_are_stored_in_one_go(open_store) -> None:
    """Their hashes in order, doubles too; those that are there already and those that are new."""
    async with open_store() as store:
        for bodies in ([], [b"a"], [b"b", b"a", b"", b"b"], [b"a", b"c" * 100_000], [b"a", b"b"]):
            names = await store.blobs.put_many(RUN, bodies)
            assert names == [sha256(body).hexdigest() for body in bodies]
            assert [await store.blobs.get(RUN, name) for name in names] == bodies
        assert len(await store.blobs.hashes(RUN)) == 4
        assert await store.blobs.hashes(OTHER) == []
        await store.blobs.put_many(OTHER, [b"a"])
        assert len(await store.blobs.hashes(OTHER)) == 1


@pytest.mark.parametrize("way", ["delete", "discard"])
async def test_bodies_that_went_are_stored_again(way: str, open_store) -> None:
    """However often a store has seen a body: it counts what is there, not what was."""
    async with open_store() as store:
        names = await store.blobs.put_many(RUN, [b"a", b"b", b"c"])
        await (store.blobs.delete(RUN) if way == "delete" else store.blobs.discard(RUN, names[:2]))
        assert await store.blobs.put_many(RUN, [b"b", b"a", b"d"]) == [
            names[1], names[0], sha256(b"d").hexdigest(),
        ]  # fmt: skip
        assert await store.blobs.get(RUN, names[0]) == b"a"
        assert len(await store.blobs.hashes(RUN)) == (3 if way == "delete" else 4)


async def test_what_is_not_there_is_missing(open_store) -> None:
    """A hash that nobody put, and one that another run has."""
    async with open_store() as store:
        name = await store.blobs.put(OTHER, b"body")
        for run, missing in ((RUN, name), (OTHER, "0" * 64)):
            with pytest.raises(MissingBlob, match=missing):
                await store.blobs.get(run, missing)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"no zstd",
        zstandard.compress(b"another body"),
        zstandard.compress(b"body")[:-2],
        # A frame that claims 2 GiB: refused before anything of that size is made.
        b"\x28\xb5\x2f\xfd\xa0\x00\x00\x00\x80\x01\x00\x00",
    ],
    ids=["empty", "no-zstd", "another", "cut", "bomb"],
)
async def test_a_damaged_body_is_told(stored: bytes, open_store) -> None:
    """Never other bytes than were put."""
    async with open_store() as store:
        name = await store.blobs.put(RUN, b"body")
        await store.overwrite(name, stored)
        with pytest.raises(MissingBlob, match=f"{name}.*damaged"):
            await store.blobs.get(RUN, name)


@pytest.mark.parametrize(
    "name",
    ["", "../../../etc/passwd", "/etc/passwd", "a" * 63, "a" * 65, "." * 64, "../" * 21 + "x", "A" * 64, "ä" * 64],
)
async def test_a_hostile_name_reads_nothing(name: str, open_store) -> None:
    """Names come out of logs and exports of others."""
    async with open_store() as store:
        await store.blobs.put(RUN, b"body")
        with pytest.raises(MissingBlob):
            await store.blobs.get(RUN, name)


async def test_a_run_is_deleted_by_itself(open_store) -> None:
    """A dry run only counts; the other run's bodies stay; deleting again finds nothing."""
    async with open_store() as store:
        names = [await store.blobs.put(RUN, body) for body in (b"a", b"b")]
        other = await store.blobs.put(OTHER, b"a")
        assert await store.blobs.delete(RUN, dry_run=True) == 2
        assert await store.blobs.hashes(RUN) == sorted(names)
        assert await store.blobs.delete(RUN) == 2
        assert await store.blobs.delete(RUN) == 0
        assert await store.blobs.hashes(RUN) == []
        assert await store.blobs.get(OTHER, other) == b"a"


async def test_bodies_are_discarded_one_by_one(open_store) -> None:
    """Those that are named and there; the others stay, and what was discarded can be put again."""
    async with open_store() as store:
        names = [await store.blobs.put(RUN, body) for body in (b"a", b"b", b"c")]
        other = await store.blobs.put(OTHER, b"a")
        await store.blobs.discard(RUN, [names[0], names[2], "0" * 64])
        await store.blobs.discard(RUN, [])
        assert await store.blobs.hashes(RUN) == [names[1]]
        assert await store.blobs.get(OTHER, other) == b"a"
        with pytest.raises(MissingBlob, match="not there"):
            await store.blobs.get(RUN, names[0])
        await store.blobs.discard(RUN, names)
        assert await store.blobs.hashes(RUN) == []
        assert await store.blobs.put(RUN, b"a") == names[0]
        assert await store.blobs.get(RUN, names[0]) == b"a"


async def test_messages_are_stored_once_and_come_back_in_order(open_store) -> None:
    """A list names its messages by hash: two requests that share a beginning share its bodies."""
    async with open_store() as store:
        first = [{"role": "system", "content": "ü"}, {"role": "user", "content": "a"}]
        longer = [*first, {"role": "assistant", "content": None}, first[1]]
        name = await put_messages(store.blobs, RUN, first)
        assert len(await store.blobs.hashes(RUN)) == 3
        assert await put_messages(store.blobs, RUN, first) == name
        other = await put_messages(store.blobs, RUN, longer)
        assert len(await store.blobs.hashes(RUN)) == 5
        assert await get_messages(store.blobs, RUN, name) == first
        assert await get_messages(store.blobs, RUN, other) == longer
        assert await get_messages(store.blobs, RUN, await put_messages(store.blobs, RUN, [])) == []


async def test_a_missing_message_is_told(open_store) -> None:
    """A list whose message is damaged, and a body that is no list of messages."""
    async with open_store() as store:
        message = {"role": "user", "content": "a"}
        name = await put_messages(store.blobs, RUN, [message])
        [inner] = [one for one in await store.blobs.hashes(RUN) if one != name]
        await store.overwrite(inner, b"x")
        with pytest.raises(MissingBlob, match=inner):
            await get_messages(store.blobs, RUN, name)
        with pytest.raises(MissingBlob, match="no list of messages"):
            await get_messages(store.blobs, RUN, await store.blobs.put(RUN, b"text"))


async def test_a_dead_server_is_unreachable() -> None:
    """Every call says so, without the password."""
    redis = client("redis://user:secret@127.0.0.1:1/0")
    try:
        blobs = RedisBlobs(redis, "p", "redis://user:***@127.0.0.1:1/0")
        for ask in (
            blobs.put(RUN, b"x"),
            blobs.put_many(RUN, [b"x"]),
            blobs.get(RUN, "0" * 64),
            blobs.hashes(RUN),
            blobs.delete(RUN),
        ):
            with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1") as caught:
                await ask
            assert "secret" not in str(caught.value)
    finally:
        await redis.aclose()
