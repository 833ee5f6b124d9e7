"""Bodies too large for an event: in a folder of the home, or in Redis where workers run elsewhere; zstd in both."""

import re
import shutil
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio.to_thread
import msgspec
import zstandard
from redis.asyncio import Redis

from events.codec import canonical
from events.ids import RunId
from infra.redis_client import Script, our_errors
from infra.whole_file import whole_file
from runtime.errors import MissingBlob
from runtime.ports import Blobs
from runtime.task import Message

T = TypeVar("T")

#: the name of a body
HASH = re.compile(r"[0-9a-f]{64}")

#: a body that unpacks to more is not ours, bytes
_LARGEST = 1 << 30
_LEVEL = 3
#: bodies that a process remembers having stored; the messages of some hundred episodes at once
_REMEMBERED = 8192

#: for a script: ARGV from `at` on how many names, each of them, then name, body, name, body ...: the bodies are stored
#: where they are not there yet. Gives those of the names alone that have no body.
PUT_BODIES = """
local function put_bodies(blobs, at)
  local missing, known = {}, tonumber(ARGV[at])
  for i = at + 1, at + known do
    if redis.call('HEXISTS', blobs, ARGV[i]) == 0 then missing[#missing + 1] = ARGV[i] end
  end
  for i = at + known + 1, #ARGV, 2 do redis.call('HSETNX', blobs, ARGV[i], ARGV[i + 1]) end
  return missing
end
"""
_PUT_MANY = Script(f"{PUT_BODIES} return put_bodies(KEYS[1], 1)")


class _Compressor(threading.local):
    """One for each thread: making one costs as much as a message, and two threads cannot share one."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress


_COMPRESSOR = _Compressor()


def packed(body: bytes) -> bytes:
    """`body` as it is stored."""
    return _COMPRESSOR.compress(body)


def unpacked(run: RunId, name: str, stored: bytes) -> bytes:
    """The body with hash `name` that `stored` holds.

    Raises:
        MissingBlob: damaged, or another body.
    """
    try:
        body = zstandard.ZstdDecompressor().decompress(stored, max_output_size=_LARGEST, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MissingBlob(run, name, f"damaged: {error}") from error
    if sha256(body).hexdigest() != name:
        raise MissingBlob(run, name, "damaged: its bytes have another hash")
    return body


class FolderBlobs:
    """`runtime.ports.Blobs` as files `<home>/blobs/<run>/<2 hex>/<hash>.zst`."""

    def __init__(self, home: Path) -> None:
        self._root = home / "blobs"

    async def put(self, run: RunId, body: bytes) -> str:
        """As `runtime.ports.Blobs.put`."""
        name = sha256(body).hexdigest()
        await anyio.to_thread.run_sync(self._write, self._path(run, name), body)
        return name

    async def put_many(self, run: RunId, bodies: Sequence[bytes]) -> list[str]:
        """As `runtime.ports.Blobs.put_many`."""
        names = [sha256(body).hexdigest() for body in bodies]
        await anyio.to_thread.run_sync(self._write_many, [self._path(run, name) for name in names], bodies)
        return names

    async def get(self, run: RunId, sha256: str) -> bytes:
        """As `runtime.ports.Blobs.get`."""
        path = self._path(run, sha256)
        try:
            stored = await anyio.to_thread.run_sync(path.read_bytes)
        except FileNotFoundError as error:
            raise MissingBlob(run, sha256, "not there") from error
        return unpacked(run, sha256, stored)

    async def hashes(self, run: RunId) -> list[str]:
        """As `runtime.ports.Blobs.hashes`."""
        return await anyio.to_thread.run_sync(lambda: sorted(path.stem for path in self._files(run)))

    async def discard(self, run: RunId, hashes: Collection[str]) -> None:
        """As `runtime.ports.Blobs.discard`."""
        await anyio.to_thread.run_sync(lambda: self._remove([self._path(run, name) for name in hashes]))

    def _remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in dict.fromkeys(one for path in paths for one in path.parents[:2]):
            # Folders that hold nothing any more; another one is in the way of its removal.
            with suppress(OSError):
                folder.rmdir()

    async def delete(self, run: RunId, *, dry_run: bool = False) -> int:
        """As `runtime.ports.Blobs.delete`."""
        count = len(await self.hashes(run))
        if not dry_run:
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(self._root / run, ignore_errors=True))
        return count

    def _path(self, run: RunId, name: str) -> Path:
        if not HASH.fullmatch(name):
            raise MissingBlob(run, name, "no SHA-256")
        return self._root / run / name[:2] / f"{name}.zst"

    def _files(self, run: RunId) -> list[Path]:
        return [path for path in (self._root / run).glob("??/*.zst") if HASH.fullmatch(path.stem)]

    def _write_many(self, paths: Sequence[Path], bodies: Sequence[bytes]) -> None:
        for path, body in zip(paths, bodies, strict=True):
            self._write(path, body)

    @staticmethod
    def _write(path: Path, body: bytes) -> None:
        if path.exists():
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(packed(body))


class RedisBlobs:
    """`runtime.ports.Blobs` as one hash a run, `<prefix>:{<run>}:blobs`."""

    def __init__(self, redis: Redis, prefix: str, where: str) -> None:
        self._redis, self._prefix, self._where = redis, prefix, where
        #: what was stored before, the latest last: a message comes again with every later call of its stage
        self._stored: OrderedDict[tuple[RunId, str], None] = OrderedDict()

    async def put(self, run: RunId, body: bytes) -> str:
        """As `runtime.ports.Blobs.put`."""
        name = sha256(body).hexdigest()
        with our_errors(self._where):
            await self._redis.hsetnx(self._key(run), name, packed(body))
        return name

    async def put_many(self, run: RunId, bodies: Sequence[bytes]) -> list[str]:
        """As `runtime.ports.Blobs.put_many`: one command; a body that is known to be there is sent by its name."""
        names = [sha256(body).hexdigest() for body in bodies]
        with our_errors(self._where):
            wanted = dict(zip(names, bodies, strict=True))
            await self.put_by(run, wanted, lambda key, given: _PUT_MANY.run(self._redis, [key], given))
        return names

    def on(self, redis: Redis) -> bool:
        """Whether a script of `redis` reaches these bodies."""
        return redis is self._redis

    async def put_by(
        self, run: RunId, bodies: Mapping[str, bytes], put: Callable[[str, list[Any]], Awaitable[T | list[bytes]]]
    ) -> T | list[bytes]:
        """What `put` answers, which stores `bodies` by `PUT_BODIES` and says with a list which of them it needs whole.

        It may be asked more than once, for the key and with what follows its own arguments.
        """
        known = dict.fromkeys(name for name in bodies if (run, name) in self._stored)
        while True:
            given: list[Any] = [len(known), *known]
            for name, body in bodies.items():
                if name not in known:
                    given += [name, packed(body)]
            answer = await put(self._key(run), given)
            if not isinstance(answer, list) or not answer:
                break
            # Since then the run may have been deleted, or the server have lost its tail.
            needed = set(answer)
            known = dict.fromkeys(name for name in known if name.encode() not in needed)
        for name in bodies:
            self._stored[run, name] = None
            self._stored.move_to_end((run, name))
        while len(self._stored) > _REMEMBERED:
            self._stored.popitem(last=False)
        return answer

    async def get(self, run: RunId, sha256: str) -> bytes:
        """As `runtime.ports.Blobs.get`."""
        with our_errors(self._where):
            stored = cast("bytes | None", await self._redis.hget(self._key(run), sha256))
        if stored is None:
            raise MissingBlob(run, sha256, "not there")
        return unpacked(run, sha256, stored)

    async def hashes(self, run: RunId) -> list[str]:
        """As `runtime.ports.Blobs.hashes`."""
        with our_errors(self._where):
            names = cast("list[bytes]", await self._redis.hkeys(self._key(run)))
        return sorted(name.decode() for name in names)

    async def discard(self, run: RunId, hashes: Collection[str]) -> None:
        """As `runtime.ports.Blobs.discard`."""
        if hashes:
            with our_errors(self._where):
                await self._redis.hdel(self._key(run), *hashes)

    async def delete(self, run: RunId, *, dry_run: bool = False) -> int:
        """As `runtime.ports.Blobs.delete`."""
        with our_errors(self._where):
            count = int(await self._redis.hlen(self._key(run)))
            if not dry_run:
                await self._redis.unlink(self._key(run))
        return count

    def _key(self, run: RunId) -> str:
        return f"{self._prefix}:{{{run}}}:blobs"


async def put_messages(blobs: Blobs, run: RunId, messages: Sequence[Message]) -> str:
    """Store each message once per run, and the list of their hashes as a body of its own; the list's hash."""
    bodies = [canonical(message) for message in messages]
    listed = message_list(bodies)
    *_, name = await blobs.put_many(run, [*bodies, listed])
    return name


def message_list(messages: Sequence[bytes]) -> bytes:
    """The body that names each of `messages`, which are canonical, by its hash."""
    return canonical([sha256(message).hexdigest() for message in messages])


async def get_messages(blobs: Blobs, run: RunId, sha256: str) -> list[Message]:
    """The messages of a list that `put_messages` stored.

    Raises:
        MissingBlob: the list or a message is not there, or is something else.
    """
    names = _read(run, sha256, await blobs.get(run, sha256), list[str])
    return [_read(run, name, await blobs.get(run, name), dict[str, Any]) for name in names]


def _read(run: RunId, name: str, body: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except ValueError as error:
        raise MissingBlob(run, name, f"it holds no list of messages, or no message: {error}") from error
