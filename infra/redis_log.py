"""The log on Redis or Valkey: one stream per run with gapless positions, written by one script.

Appends are idempotent by construction: the script compares versions and content hashes, so a reply that was lost and a
command that ran twice leave one event. No WATCH, no ids of the server's making. What was archived and trimmed
(`infra.archive`) is read from the archive.
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import anyio
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from events.checkpoint import Checkpoint
from events.codec import content_sha256
from events.errors import ChimeError, Mismatch, Unreachable, VersionGap
from events.ids import Position, RunId, StreamId, Version, episode_of, run_id
from events.log import Draft, Recorded
from infra.archive_index import ARCHIVED_ROWS, ArchiveIndex, past_field, past_fields
from infra.archive_storage import place_of, storage_at
from infra.archived_past import Past
from infra.overview import overviews
from infra.redis_client import COMMAND_S, Durability, Script, our_errors
from infra.redis_line import SharingRedis
from infra.restored_log import Restored, stretches
from runtime.errors import RunEnded
from runtime.logger import Logger
from runtime.ports import Appended, Clock, LogOverview, Origin, StreamIndex, Taken

_log = Logger("chime.log")

#: entries of one page: small replies stay in the cache
PAGE = 100
#: more of them where they are short: a request costs what reading some fifteen events does; bytes of `data`, entries
_REPLY, _MOST = 1 << 18, 1000
#: after these a foreign server is asked to have written its file
_DURABLE_AFTER = frozenset({"executed", "diagnosed"})
#: how long a server may take to write its file, seconds
_WAITAOF_S = 5.0

_APPEND = Script(ARCHIVED_ROWS + (files("infra") / "append.lua").read_text())
_READ_STREAM = Script(ARCHIVED_ROWS + (files("infra") / "read_stream.lua").read_text())
#: KEYS index: a write that changes nothing, for WAITAOF to wait for where an earlier try has written the events
_TOUCH = """
local head = redis.call('HGET', KEYS[1], '@head')
if head then redis.call('HSET', KEYS[1], '@head', head) end
"""
#: what the server says of a key that does not expire
_FOR_EVER = -1
#: how many ends of earlier reads a log remembers
_REMEMBERED = 64

#: the fields of an entry, as the script writes them
_WRITTEN = [b"kind", b"stream", b"version", b"schema", b"at", b"cause", b"attempt", b"sha", b"data"]
#: without the names of its types, each of which is a call
_made: Callable[..., Recorded] = Recorded

#: one entry as redis-py answers it: id, fields
_Entry = tuple[bytes, dict[bytes, bytes]]
#: one entry as the server sends it: id, and names and values in turn
_Sent = tuple[bytes, list[bytes]]


def log_key(prefix: str, run: RunId) -> str:
    """The run's stream; every key of a run shares its hash tag."""
    return f"{prefix}:{{{run}}}:log"


def index_key(prefix: str, run: RunId) -> str:
    """Where the events of each of the run's streams stand."""
    return f"{prefix}:{{{run}}}:index"


def kept_key(prefix: str, run: RunId) -> str:
    """Where some events stay of those that were trimmed: the run's stream, the newest fold, scores not yet folded."""
    return f"{prefix}:{{{run}}}:kept"


class _Page(Struct, frozen=True, kw_only=True):
    """Events of the kinds asked for, and the last position that was read for them."""

    events: list[Recorded]
    last: Position
    #: of all that was read for them, bytes
    size: int


class _Unbroken:
    """A script's words about a log whose keys do not fit each other, as ours."""

    __slots__ = ("_run",)

    def __init__(self, run: RunId) -> None:
        self._run = run

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ResponseError) and str(error).startswith("BROKEN"):
            raise Mismatch(f"run {self._run}: {str(error).removeprefix('BROKEN ')}") from error


class RedisLog:
    """`runtime.ports.EventLog` on one server.

    Args:
        redis: the client; whoever made it closes it.
        run: which log.
        prefix: what every key begins with.
        clock: stamps `at`.
        where: the server's address without a password, for errors.
        server: what the server promises; a foreign one with WAITAOF is asked to have written its file.
        home: what an archive's place inside the home is relative to.
    """

    def __init__(
        self,
        redis: Redis,
        run: RunId,
        prefix: str,
        clock: Clock,
        where: str,
        server: Durability | None = None,
        home: Path | None = None,
    ) -> None:
        self._redis, self._run, self._clock, self._where = redis, run, clock, where
        self._log, self._index, self._kept = log_key(prefix, run), index_key(prefix, run), kept_key(prefix, run)
        self._unbroken = _Unbroken(run)
        self._keys = (self._log, self._index, self._kept)
        self._runs, self._at_log = runs_key(prefix), f"{where}, key {self._log}"
        self._waitaof = server is not None and server.waitaof
        #: position -> what the last event of an earlier read was, to notice a server that lost it and went on
        self._ends: dict[int, tuple[bytes, ...]] = {}
        self._past = Past(
            redis, run, [self._log, self._index, self._kept], home, where, lambda entry: _event(run, _flat(entry))
        )

    @property
    def run(self) -> RunId:
        return self._run

    async def append(
        self, stream: StreamId, first: Version, drafts: Sequence[Draft], origin: Origin
    ) -> Appended | Taken:
        """As `runtime.ports.EventLog.append`."""
        known: list[Position] = []
        while True:
            rest = drafts[len(known) :] if known else drafts
            match await self._appended(stream, Version(first + len(known)), rest, origin):
                case int(began):
                    if began == 1 and drafts[0].kind != "run_started":
                        # Not a log of ours, but somebody's: whoever lists the runs should hear of it.
                        with our_errors(self._where):
                            await self._redis.zadd(self._runs, {self._run: 0})
                    positions = [Position(began + place) for place in range(len(rest))]
                    return Appended(positions=[*known, *positions], written=len(rest))
                case [b"ok", written, *positions]:
                    return Appended(
                        positions=[*known, *(Position(int(one)) for one in positions)], written=int(written)
                    )
                case [b"taken", entry]:
                    return Taken(stored=_event(self._run, entry))
                case [b"archived", position, *before]:
                    # A late try of an append that is long done, or of another one: the archive knows which.
                    known += [Position(int(one)) for one in before]
                    stored = (await self._past.at([Position(int(position))]))[Position(int(position))]
                    if content_sha256(stored.kind, stored.data) != drafts[len(known)].sha256:
                        return Taken(stored=stored)
                    known.append(stored.position)
                    if len(known) == len(drafts):
                        return Appended(positions=known, written=0)
                case reply:
                    raise self._refusal(reply, stream, first, origin)

    def _refusal(self, reply: Any, stream: StreamId, first: Version, origin: Origin) -> ChimeError:
        """Why the append script has written nothing."""
        match reply:
            case [b"gap", following]:
                return self._gap(f"append to {self._run}/{stream}", int(following), first)
            case [b"unfounded"] if origin.basis is not None:
                lost = f"{self._run}/{origin.basis.stream}/{origin.basis.version}"
                return self._gap(f"append to {self._run}/{stream}, made from {lost}", origin.basis.version, 0)
            case [b"ended"]:
                return RunEnded(self._run)
            case _:
                return Mismatch(f"the append script answered {reply!r}")

    def _gap(self, where: str, expected: int, got: int) -> VersionGap:
        """The server has lost events that were read here, and may have lost an addition to the archive with them."""
        self._past.forget()
        return VersionGap(where, expected, got)

    async def _appended(self, stream: StreamId, first: Version, drafts: Sequence[Draft], origin: Origin) -> Any:
        """What the append script answers."""
        at, cause, attempt, basis = self._clock.utc(), origin.cause or "", origin.attempt, origin.basis
        arguments: list[Any] = [first, len(drafts), ""]
        if basis is not None:
            arguments[2:] = [f"{basis.stream}/{basis.version}", basis.sha256]
        for one in drafts:
            arguments += [one.kind, one.schema, at, cause, attempt, one.sha256, one.data]
        with our_errors(self._at_log):
            if first == 1 and drafts and drafts[0].kind == "run_started":
                # Before the event: a run in the list without a log is nothing, a log without its run would be lost.
                await self._redis.zadd(self._runs, {self._run: 0})
            if not (self._waitaof and _DURABLE_AFTER & {one.kind for one in drafts}):
                return await self._put(self._redis, stream, arguments)
            # WAITAOF waits for what its own connection has written.
            async with self._redis.client() as one_connection:
                reply = await self._put(one_connection, stream, arguments)
                if isinstance(reply, int) or reply[0] == b"ok":
                    if not isinstance(reply, int) and not reply[1]:
                        await one_connection.eval(_TOUCH, 1, self._index)
                    await _written_to_disk(one_connection, self._run, self._where)
                return reply

    async def _put(self, client: Redis, stream: StreamId, arguments: Sequence[Any]) -> Any:
        with self._unbroken:
            reply = await _APPEND.run_with_others(client, self._keys, stream, arguments)
        if type(reply) is list and reply[0] == b"refused":
            with self._unbroken:
                raise ResponseError(reply[1].decode())
        return reply

    async def read_stream(self, stream: StreamId) -> list[Recorded]:
        """As `runtime.ports.EventLog.read_stream`."""
        with our_errors(self._at_log), self._unbroken:
            entries = cast("list[Any]", await _READ_STREAM.run(self._redis, self._keys, [stream]))
        archived = [Position(one) for one in entries if isinstance(one, int)]
        past = await self._past.at(archived) if archived else {}
        return [past[Position(one)] if isinstance(one, int) else _event(self._run, one) for one in entries]

    async def length(self, stream: StreamId) -> int:
        """As `runtime.ports.EventLog.length`."""
        with our_errors(f"{self._where}, key {self._index}"):
            row = cast("bytes | None", await self._redis.hget(self._index, stream))
            if row is None and (t := episode_of(stream)) is not None:
                field = past_field(t)
                lines = cast("bytes | None", await self._redis.hget(self._index, field))
                row = past_fields({field.encode(): lines or b""}).get(stream.encode())
        return int(row.split(b" ", 1)[0]) if row else 0

    async def read(self, after: Position, limit: int, kinds: frozenset[str] | None = None) -> list[Recorded]:
        """As `runtime.ports.EventLog.read`."""
        found: list[Recorded] = []
        while True:
            page = await self._page(after, limit, kinds)
            found += page.events
            limit -= page.last - after
            if limit <= 0 or page.last == after or after >= self._past.trimmed:
                # What the server still holds comes at once; the archive answers a segment at a time.
                return found
            after = page.last

    async def _page(self, after: Position, limit: int, kinds: frozenset[str] | None) -> _Page:
        """What the server still holds, or what the archive does."""
        if after >= self._past.trimmed and limit > 0:
            entries = await self._entries(after, limit)
            if entries or after >= self._past.trimmed:
                wanted = None if kinds is None else {kind.encode() for kind in kinds}
                run = self._run
                # Without a call for those that are passed over: four of five.
                events = [
                    _event(run, one)
                    for one in entries
                    if wanted is None or (fields[1] if (fields := one[1])[0] == b"kind" else _kind(one)) in wanted
                ]
                # The last field is the longest: what the event says.
                size = sum([len(one[1][-1]) for one in entries if one[1]])
                return _Page(events=events, last=_position(entries[-1]) if entries else after, size=size)
        past = await self._past.read(after, limit) if limit > 0 else []
        last = past[-1].position if past else after
        size = sum([len(one.data) for one in past])
        return _Page(events=[one for one in past if kinds is None or one.kind in kinds], last=last, size=size)

    async def _entries(self, after: Position, limit: int) -> list[_Sent]:
        """Entries above `after`; none at the end, and where they were trimmed since the server was last asked."""
        with our_errors(self._at_log):
            # From the end of an earlier read on: an event that is another one now was lost, and others came after.
            known = self._ends.get(after)
            first, count = (after, limit + 1) if known else (after + 1, limit)
            found = await self._sent(first, count)
        if known and found and _position(found[0]) == after:
            if _identity(found[0]) != known:
                self._ends.clear()
                raise self._gap(
                    f"log of run {self._run}, written anew since position {after} was read", after, after - 1
                )
            del found[0]
        # Where the entry at `after` was trimmed, one more has come than was asked for.
        del found[limit:]
        if found and _position(found[0]) != after + 1 and await self._past.look() > after:
            return []
        if found and _position(found[-1]) != after + len(found):
            expected, got = next((i, at) for i, one in enumerate(found, after + 1) if (at := _position(one)) != i)
            raise self._gap(f"log of run {self._run}", expected, got)
        if not found and after > 0 and (head := await self.head()) < after:
            self._ends.clear()
            raise self._gap(f"head of run {self._run}", after, head)
        if found:
            while len(self._ends) >= _REMEMBERED:
                del self._ends[next(iter(self._ends))]
            self._ends[_position(found[-1])] = _identity(found[-1])
        return found

    async def _sent(self, first: int, count: int) -> list[_Sent]:
        """Up to `count` entries of the log from `first` on."""
        if isinstance(self._redis, SharingRedis):
            return await self._redis.entries(self._log, first, count)
        shaped = cast("list[_Entry]", await self._redis.xrange(self._log, min=f"{first}-0", count=count))
        return [_flat(entry) for entry in shaped]

    async def pages(self, after: Position, kinds: frozenset[str] | None = None) -> AsyncIterator[list[Recorded]]:
        """As `runtime.ports.EventLog.pages`."""
        head = await self.head()
        if head < after:
            raise self._gap(f"head of run {self._run}", after, head)
        count = PAGE
        while after < head:
            page = await self._page(after, min(count, head - after), kinds)
            if page.last == after:
                raise self._gap(f"log of run {self._run}", head, after)
            count = min(_MOST, 2 * count) if page.size < _REPLY else max(PAGE, count // 2)
            after = page.last
            yield page.events

    async def checkpoint(self) -> Checkpoint | None:
        """As `runtime.ports.EventLog.checkpoint`."""
        return await self._past.checkpoint()

    async def wait(self, after: Position, timeout_s: float) -> bool:
        """As `runtime.ports.EventLog.wait`."""
        # The client gives up on a read after COMMAND_S; one wait stays below that, a longer one is several.
        while timeout_s > 0:
            once = min(timeout_s, COMMAND_S / 2)
            timeout_s -= once
            with our_errors(self._at_log):
                found = await self._redis.xread({self._log: f"{after}-0"}, count=1, block=max(1, int(once * 1000)))
            if found:
                return True
        if (head := await self.head()) < after:
            raise self._gap(f"head of run {self._run}", after, head)
        return head > after

    async def index(self) -> dict[StreamId, StreamIndex]:
        """As `runtime.ports.EventLog.index`."""
        with our_errors(f"{self._where}, key {self._index}"):
            there = cast("dict[bytes, bytes]", await self._redis.hgetall(self._index))
        rows = past_fields(there) | there
        found: dict[StreamId, StreamIndex] = {}
        for name, row in rows.items():
            if b"/" not in name and not name.startswith(b"@"):
                count, last_kind = row.decode().split(" ", 1)
                positions = [Position(int(rows[b"%s/%d" % (name, version + 1)])) for version in range(int(count))]
                found[StreamId(name.decode())] = StreamIndex(positions=positions, last_kind=last_kind)
        return found

    async def head(self) -> Position:
        """As `runtime.ports.EventLog.head`."""
        with our_errors(f"{self._where}, key {self._index}"):
            head = await self._redis.hget(self._index, "@head")
        return Position(int(head or 0))


def runs_key(prefix: str) -> str:
    """The names of all runs; derived, rebuilt from the logs where it is missing."""
    return f"{prefix}:runs"


def aside_key(prefix: str) -> str:
    """The names of runs that are records until somebody takes them up."""
    return f"{prefix}:set-aside"


class RedisLogStore:
    """`runtime.ports.LogStore` on one server."""

    def __init__(
        self,
        redis: Redis,
        prefix: str,
        clock: Clock,
        where: str,
        server: Durability | None = None,
        home: Path | None = None,
    ) -> None:
        self._redis, self._prefix, self._clock, self._where, self._server = redis, prefix, clock, where, server
        self.home = home

    def open(self, run: RunId) -> RedisLog:
        """The log of `run`, whether it exists or not."""
        return RedisLog(self._redis, run, self._prefix, self._clock, self._where, self._server, self.home)

    def archived(self, run: RunId) -> ArchiveIndex:
        """How the log of `run` stands with its archive."""
        return ArchiveIndex(self._redis, run, self._keys(run), self._where)

    def _keys(self, run: RunId) -> list[str]:
        return [log_key(self._prefix, run), index_key(self._prefix, run), kept_key(self._prefix, run)]

    async def runs(self) -> list[RunId]:
        """As `runtime.ports.LogStore.runs`."""
        with our_errors(self._where):
            listed = cast("list[bytes]", await self._redis.zrange(runs_key(self._prefix), 0, -1))
            names = [run_id(name.decode()) for name in listed]
            logs = [log_key(self._prefix, name) for name in names]
            # As a rule every one of them is there: one command, however many there are.
            if logs and await self._redis.exists(*logs) < len(logs):
                pipe = self._redis.pipeline(transaction=False)
                for log in logs:
                    _ = pipe.exists(log)
                there = await pipe.execute()
                names = [name for name, exists in zip(names, there, strict=True) if exists]
        return sorted(names)

    async def overview(self) -> list[LogOverview]:
        """As `runtime.ports.LogStore.overview`: a round trip for many runs."""
        keys = {run: self._keys(run) for run in await self.runs()}
        with our_errors(self._where):
            return await overviews(self._redis, keys, _event)

    async def set_aside(self) -> frozenset[RunId]:
        """As `runtime.ports.LogStore.set_aside`."""
        with our_errors(self._where):
            names = cast("set[bytes]", await self._redis.smembers(aside_key(self._prefix)))
        return frozenset(RunId(name.decode()) for name in names)

    async def take_up(self, run: RunId) -> None:
        """As `runtime.ports.LogStore.take_up`."""
        with our_errors(self._where):
            await self._redis.srem(aside_key(self._prefix), run)

    async def delete(self, run: RunId, *, dry_run: bool = False) -> dict[str, int]:
        """As `runtime.ports.LogStore.delete`: every key with the run's hash tag."""
        archived = await self.archived(run).look()
        place = archived.note.storage if archived.note else place_of(run, None)
        # Without a note there may still be files: what an archiving that was cut short has left.
        storage = storage_at(place, self.home) if archived.note or self.home else None
        counts = {"events": int(archived.head), "archived files": len(await storage.names()) if storage else 0}
        pattern = f"{_escaped(self._prefix)}:{{{run}}}:*"
        with our_errors(self._where):
            keys = [key async for key in self._redis.scan_iter(match=pattern, count=1000)]
            kept = await self._kept(keys)
            if not dry_run:
                # The list of runs last: a deletion that is cut short can be asked for again.
                if storage:
                    await storage.clear()
                if keys:
                    await self._redis.unlink(*keys)
                await self._redis.srem(aside_key(self._prefix), run)
                await self._redis.zrem(runs_key(self._prefix), run)
        return counts | {"keys": kept}

    async def without_log(self) -> list[RunId]:
        """Names of runs that have keys and no log: what was still written when they had been deleted. Reads every key.

        What expires by itself counts for nothing.
        """
        ours = re.compile(rf"{re.escape(self._prefix)}:\{{([a-z0-9-]+)\}}:".encode())
        with our_errors(self._where):
            pattern = f"{_escaped(self._prefix)}:{{*}}:*"
            found: dict[RunId, list[bytes]] = {}
            async for key in self._redis.scan_iter(match=pattern, count=1000):
                if name := ours.match(key):
                    found.setdefault(RunId(name[1].decode()), []).append(key)
            gone = {run: keys for run, keys in found.items() if log_key(self._prefix, run).encode() not in keys}
            return sorted([run for run, keys in gone.items() if await self._kept(keys)])

    async def _kept(self, keys: Sequence[bytes]) -> int:
        """How many of `keys` do not expire by themselves: what a dry run counts is there when it is deleted."""
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys:
            _ = pipeline.pttl(key)
        return sum(left_ms == _FOR_EVER for left_ms in await pipeline.execute())

    async def restore(self, run: RunId, pages: AsyncIterator[Sequence[Recorded]]) -> Position:
        """As `runtime.ports.LogStore.restore`: beside the run's own keys first, then under their names in one step."""
        lists = [runs_key(self._prefix), aside_key(self._prefix)]
        restored = Restored(self._redis, run, self._keys(run)[:2], lists, _APPEND, self._where)
        last = Position(0)
        try:
            async for page in pages:
                for place, batch in enumerate(stretches(page)):
                    await restored.put(batch)
                    if place == 0:
                        await restored.keep()
                    last = batch[-1].position
            if last:
                await restored.publish()
        except BaseException:
            with suppress(Unreachable), anyio.move_on_after(COMMAND_S, shield=True):
                await restored.clear()
            raise
        if last and self._server is not None and self._server.waitaof:
            await _written_to_disk(self._redis, run, self._where)
        return last


async def _written_to_disk(redis: Redis, run: RunId, where: str) -> None:
    with our_errors(where):
        reply = await redis.waitaof(1, 0, int(_WAITAOF_S * 1000))
    if not reply or not int(reply[0]):
        _log.warning("append_not_on_disk", run_id=run, waited_s=_WAITAOF_S)


def _escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in "*?[]\\" else char for char in text)


def _paired(entry: Sequence[Any]) -> _Entry:
    """An entry as a script answers it (id, flat list of fields) in the form redis-py gives it."""
    name, flat = entry
    return name, dict(zip(flat[::2], flat[1::2], strict=True))


def _flat(entry: _Entry) -> _Sent:
    """The other way."""
    name, fields = entry
    return name, [part for pair in fields.items() for part in pair]


def _position(entry: _Entry | _Sent) -> Position:
    return Position(int(entry[0].split(b"-", 1)[0]))


def _identity(entry: _Sent) -> tuple[bytes, ...]:
    """What tells an event from one that was written in its place later: the time too."""
    fields = _paired(entry)[1]
    return fields[b"stream"], fields[b"version"], fields[b"sha"], fields[b"at"]


def _kind(entry: _Sent) -> bytes:
    return _paired(entry)[1][b"kind"]


def _event(run: RunId, entry: _Sent) -> Recorded:
    """Read by the place of the fields, where they stand as the script writes them: without a dictionary of them."""
    fields = entry[1]
    if fields[::2] != _WRITTEN:
        named = _paired(entry)[1]
        fields = [part for name in _WRITTEN for part in (name, named[name])]
    kind, stream, version, schema, at, cause, attempt, _, data = fields[1::2]
    return _made(
        run=run,
        stream=stream.decode(),
        version=int(version),
        position=_position(entry),
        kind=kind.decode(),
        schema=int(schema),
        at=at.decode(),
        cause=cause.decode() or None,
        attempt=int(attempt),
        data=data,
    )
