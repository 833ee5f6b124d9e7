"""Where a command reads from: a run of the server (the home's own or one of yours), or an export on disk."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from redis.asyncio import Redis

from events.bank import Banks
from events.errors import BadInput
from events.fold import REPLAY_KINDS, State, step
from events.ids import PROJECTOR_STREAM, BankVersion, Position, RunId, run_id
from infra.blobs import FolderBlobs, RedisBlobs
from infra.calls import CallStore, MemoryCalls, RedisCalls
from infra.clock import SystemClock
from infra.exported_bodies import ExportedBlobs, ExportedCalls
from infra.list_log import ListLogStore
from infra.redis_client import Durability, connected, durability, redacted
from infra.redis_log import RedisLogStore
from infra.redis_server import embedded_server
from infra.segments import SegmentLog
from runtime.ports import Blobs, EventLog, LogStore
from workers.invocation import Invocation
from workers.logs import quiet_logs

#: before the first event
START = Position(0)

#: what makes a word a path rather than a run: run ids have none of these
_PATH_SIGNS = ("/", ".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One log to read, and its bodies where they are at hand."""

    log: EventLog
    blobs: Blobs | None = None
    calls: CallStore | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """All runs of a server, with what belongs to them."""

    store: LogStore
    blobs: Blobs
    calls: CallStore
    url: str
    prefix: str
    #: the address for people: without a password
    where: str

    def source(self, log: EventLog) -> Source:
        """A run of this server with its bodies."""
        return Source(log=log, blobs=self.blobs, calls=self.calls)

    async def existing(self, run: str) -> EventLog:
        """The log of a run that exists.

        Raises:
            BadInput: there is none; names near ones.
        """
        log = self.store.open(run_id(run))
        if await log.head() == 0:
            raise BadInput(await self._unknown(run))
        return log

    async def newest(self) -> EventLog:
        """The log of the run that was started last.

        Raises:
            BadInput: there is no run.
        """
        newest: tuple[str, RunId] | None = None
        for run in await self.store.runs():
            first = await self.store.open(run).read(START, 1)
            if first and (newest is None or (first[0].at, run) > newest):
                newest = (first[0].at, run)
        if newest is None:
            raise BadInput(f"there is no run on {self.where}; `chime demo` makes three, `chime run start` one of yours")
        return self.store.open(newest[1])

    async def _unknown(self, run: str) -> str:
        runs = await self.store.runs()
        close = get_close_matches(run, runs, n=3, cutoff=0.5)
        if close:
            hint = f"did you mean {' or '.join(close)}?"
        elif runs:
            hint = "`chime run list` names those there are"
        else:
            hint = "there are none yet: `chime demo` makes three"
        return f"no run {run!r} on {self.where}; {hint}"

    async def copy_blobs(self, source: Source, run: RunId, hashes: Iterable[str]) -> None:
        """Bodies of `source` for `run` as well.

        Raises:
            BadInput: the source has no blobs at hand.
            MissingBlob: one of them is not there.
        """
        for sha256 in hashes:
            if source.blobs is None:
                raise BadInput("this export has no blobs beside it; export it with --with-blobs")
            await self.blobs.put(run, await source.blobs.get(source.log.run, sha256))


def split_words(words: Sequence[str], names: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """`[RUN] NAME ...`: the run where one is given, and the rest.

    Raises:
        BadInput: too few or too many words.
    """
    if not len(names) <= len(words) <= len(names) + 1:
        raise BadInput(f"expected [RUN] {' '.join(names)}, got {len(words)} words; without RUN it is the newest run")
    return (words[0], tuple(words[1:])) if len(words) > len(names) else (None, tuple(words))


async def newest_version(log: EventLog) -> BankVersion:
    """The newest bank version that the log holds: one `folded` each."""
    index = (await log.index()).get(PROJECTOR_STREAM)
    return BankVersion(len(index.positions) if index else 0)


async def banks_at(log: EventLog, version: BankVersion) -> Banks:
    """The banks at `version`, rebuilt from the log as recorded: no search, no model.

    Raises:
        FoldMismatch: a `folded` that does not fit.
        BadInput: the log does not reach that version.
    """
    state = State()
    async for page in log.pages(START, REPLAY_KINDS):
        for recorded in page:
            if recorded.kind == "folded" and state.banks.version == version:
                return state.banks
            state = step(state, recorded)
    if state.banks.version != version:
        raise BadInput(f"run {log.run} has no bank version {version}; the newest is {state.banks.version}")
    return state.banks


def is_path(word: str) -> bool:
    """Whether `word` names an export rather than a run; write `./exports` for a folder of the working directory."""
    return any(sign in word for sign in _PATH_SIGNS)


@asynccontextmanager
async def server(invocation: Invocation, *, making: bool = False) -> AsyncIterator[Server]:
    """The server of the configuration: yours, or the home's own for as long as the body runs.

    Args:
        invocation: says which.
        making: make a home where there is none; otherwise a home that does not exist is an empty server.

    Raises:
        Unreachable: it does not answer, or no server program is found.
        BadInput: an address that is none, or a home that cannot be used.
    """
    configuration = invocation.configuration
    quiet_logs(configuration.log)
    prefix, url = configuration.redis.prefix, configuration.redis.url
    if url:
        async with connected(url) as redis:
            where = redacted(url)
            promises = await durability(redis, where)
            yield _server(redis, url, prefix, where, RedisBlobs(redis, prefix, where), promises)
        return
    home = invocation.resolved.home
    if not making and not (home / "redis").is_dir():
        clock = SystemClock()
        yield Server(
            store=ListLogStore(clock), blobs=FolderBlobs(home), calls=MemoryCalls(), url="", prefix=prefix,
            where=f"home {home}",
        )  # fmt: skip
        return
    async with embedded_server(invocation.home()) as own, connected(own.url) as redis:
        yield _server(redis, own.url, prefix, f"home {home}", FolderBlobs(home))


def _server(
    redis: Redis, url: str, prefix: str, where: str, blobs: Blobs, promises: Durability | None = None
) -> Server:
    return Server(
        store=RedisLogStore(redis, prefix, SystemClock(), where, promises),
        blobs=blobs,
        calls=RedisCalls(redis, prefix, where),
        url=url,
        prefix=prefix,
        where=where,
    )


@asynccontextmanager
async def opened(invocation: Invocation, target: str | None) -> AsyncIterator[Source]:
    """The log that `target` names: an export's path, a run of the server, or None for its newest run.

    Raises:
        BadInput: there is no such run or export; says how to find one.
        Unreachable: the server does not answer.
    """
    if target is not None and is_path(target):
        yield _export(invocation.folder, target)
        return
    async with server(invocation) as there:
        yield there.source(await there.existing(target) if target is not None else await there.newest())


def export_path(folder: Path, shown: str) -> Path:
    """The export that the user wrote as `shown`, relative to `folder`.

    Raises:
        BadInput: there is none.
    """
    path = folder / Path(shown).expanduser()
    if not path.exists():
        raise BadInput(f"{shown}: no such export; `chime log export RUN -o {shown}` writes one")
    return path


def _export(folder: Path, shown: str) -> Source:
    path = export_path(folder, shown)
    blobs, calls = ExportedBlobs(path), ExportedCalls(path)
    return Source(log=SegmentLog(path), blobs=blobs if blobs.exist else None, calls=calls if calls.exist else None)
