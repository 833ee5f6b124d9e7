"""The server that holds the logs, and everything of ours on it: opened in one place, closed in one place."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from anyio import to_thread

from events.errors import BadInput
from events.ids import Position, RunId, run_id
from infra.banks.generations import Generations
from infra.banks.serving import BankServer
from infra.blobs import FolderBlobs, RedisBlobs
from infra.calls import CallStore
from infra.clock import SystemClock
from infra.embedding_cache import EmbeddingStore, MemoryEmbeddings, RedisEmbeddings
from infra.failures import LocalFailures, RedisFailures
from infra.intake import Depths, OpenIntake, ServerIntake
from infra.leases import Leases, LocalLeases, RedisLeases
from infra.operations import NoOperations, RedisOperations
from infra.pacing import Counts
from infra.pacing_local import LocalCounts
from infra.pacing_redis import RedisCounts
from infra.redis_client import RETRIES, Durability, connected, durability, redacted
from infra.redis_log import RedisLogStore
from infra.redis_server import embedded_server, revive
from infra.spending import CountedCalls, Ledger
from runtime.logger import Logger
from runtime.ports import Blobs, Clock, EventLog, Failures, LogStore
from runtime.settings import IntakeSettings

_log = Logger("chime.redis")

NO_OPERATIONS = NoOperations()

#: before the first event
START = Position(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One log to read, and its bodies where they are at hand."""

    log: EventLog
    blobs: Blobs | None = None
    calls: CallStore | None = None


class BankWay(Protocol):
    """How a process reaches the bank server, which is opened when somebody first asks for it.

    `workers.bank_access` has it: most commands that open a server look at logs, and load nothing of banks.
    """

    @property
    def current(self) -> BankServer | None:
        """The server as it is reached now; another one once it has moved."""
        ...

    @property
    def revives(self) -> bool:
        """Whether this process starts the server again where it has died."""
        ...

    async def server(self) -> BankServer:
        """The server, which need not answer.

        Raises:
            BadInput: the client is not installed, or an address or key is none.
            Unreachable: the home's own server is not there, or cannot be started.
        """
        ...

    async def reachable(self) -> BankServer | None:
        """As `server`; where there is none, None: it is said once, and a replica answers meanwhile."""
        ...

    async def assert_answering(self) -> None:
        """The server answers, takes the key, and is not too old.

        Raises:
            BadInput: it does not take us; says why.
            Unreachable: it does not answer, or cannot be started.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """All runs of a server, with what belongs to them."""

    store: LogStore
    blobs: Blobs
    calls: CallStore
    #: with its password: for children and rq, never for a line that people see; "" for a home without a server
    url: str
    prefix: str
    #: the address for people: without a password
    where: str
    #: what it promises; None for a home without a server
    promises: Durability | None = None
    leases: Leases = field(default_factory=lambda: LocalLeases(time.monotonic))
    operations: RedisOperations | NoOperations = NO_OPERATIONS
    failures: Failures = field(default_factory=lambda: LocalFailures(SystemClock()))
    #: whether the server has room, by the depths of its queues and these marks
    intake: Callable[[Depths, IntakeSettings], ServerIntake | OpenIntake] = lambda _, __: OpenIntake()
    #: what the calls of runs have come to; None for a home without a server
    ledger: Ledger | None = None
    #: how fast a run asks its endpoints
    pace: Callable[[RunId], Counts] = lambda _: LocalCounts(time.monotonic)
    #: vectors that were made before, by text
    embeddings: EmbeddingStore = field(default_factory=MemoryEmbeddings)
    #: starts the home's own server again where it has died
    revive: Callable[[], Awaitable[None]] | None = None
    #: which generation of each run's bank serves; None for a home without a server
    generations: Generations | None = None
    #: the way to the banks of runs whose store is no replica; None where nobody has opened one
    banks: BankWay | None = None

    @property
    def embedded(self) -> bool:
        """Whether it is the home's own."""
        return self.where.startswith("home ")

    def warn(self) -> None:
        """Say what a foreign server may lose; for commands that write to it."""
        if not self.embedded and self.promises is not None:
            for warning in self.promises.warnings:
                _log.warning("server_may_lose_events", where=self.where, reason=warning)

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
        newest = max(await self.store.overview(), key=lambda seen: (seen.first_at, seen.run), default=None)
        if newest is None:
            raise BadInput(f"there is no run on {self.where}; `chime demo` makes three, `chime run start` one of yours")
        return self.store.open(newest.run)

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


@asynccontextmanager
async def connections(home: Path, url: str, prefix: str, clock: Clock, retries: int = RETRIES) -> AsyncIterator[Server]:
    """The server at `url`, or the home's own where `url` is empty.

    Bodies are files of the home beside its own server, and in Redis beside another one: workers may run elsewhere.

    Args:
        home: of this process.
        url: of a server, or empty.
        prefix: what every key begins with.
        clock: of the machine.
        retries: tries after the first of a command whose connection broke.

    Raises:
        BadInput: no Redis URL, or a server that is too old or refuses us.
        Unreachable: no server, or it does not answer.
    """
    async with AsyncExitStack() as stack:
        own = not url
        if own:
            url = (await stack.enter_async_context(embedded_server(home))).url
        where = f"home {home}" if own else redacted(url)
        redis = await stack.enter_async_context(connected(url, retries))
        promises = await durability(redis, where)
        yield Server(
            # The home's server writes every event to disk before it answers; another one is asked to.
            store=RedisLogStore(redis, prefix, clock, where, None if own else promises, home),
            blobs=FolderBlobs(home) if own else RedisBlobs(redis, prefix, where),
            calls=CountedCalls(redis, prefix, where),
            ledger=Ledger(redis, prefix, where),
            pace=lambda run: RedisCounts(redis, prefix, run, where),
            embeddings=RedisEmbeddings(redis, prefix, where),
            url=url,
            prefix=prefix,
            where=where,
            promises=promises,
            leases=RedisLeases(redis, prefix, where),
            operations=RedisOperations(redis, prefix, clock, where),
            failures=RedisFailures(redis, prefix, clock, where),
            intake=lambda queue, marks: ServerIntake(redis, where, clock, queue, home if own else None, marks),
            revive=(lambda: to_thread.run_sync(revive, home)) if own else None,
            generations=Generations(redis, prefix, where),
        )
