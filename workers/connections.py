"""The server that holds the logs, and everything of ours on it: opened in one place, closed in one place."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
from redis.asyncio import Redis

from infra.blobs import FolderBlobs, RedisBlobs
from infra.calls import CallStore, RedisCalls
from infra.redis_client import Durability, connected, durability, redacted
from infra.redis_log import RedisLogStore
from infra.redis_server import embedded_server
from infra.rq_queue import RqQueue
from runtime.ports import Blobs, Clock

_log = structlog.get_logger("chime.redis")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """One server's parts, as this process uses them."""

    redis: Redis
    #: with its password: for children and rq, never for a log line
    url: str
    #: without its password
    where: str
    prefix: str
    server: Durability
    #: started by us for this home
    embedded: bool
    store: RedisLogStore
    blobs: Blobs
    calls: CallStore
    queue: RqQueue


@asynccontextmanager
async def connections(home: Path, url: str, prefix: str, clock: Clock) -> AsyncIterator[Connections]:
    """The server at `url`, or the home's own where `url` is empty.

    Bodies are files of the home beside its own server, and in Redis beside another one: workers may run elsewhere.

    Raises:
        BadInput: no Redis URL, or a server that is too old or refuses us.
        Unreachable: no server, or it does not answer.
    """
    async with AsyncExitStack() as stack:
        embedded = not url
        if embedded:
            url = (await stack.enter_async_context(embedded_server(home))).url
        where = redacted(url)
        redis = await stack.enter_async_context(connected(url))
        server = await durability(redis, where)
        if not embedded:
            for warning in server.warnings:
                _log.warning("server_may_lose_events", where=where, reason=warning)
        queue = await stack.enter_async_context(RqQueue(url, prefix))
        yield Connections(
            redis=redis,
            url=url,
            where=where,
            prefix=prefix,
            server=server,
            embedded=embedded,
            # The home's server writes every event to disk before it answers; another one is asked to.
            store=RedisLogStore(redis, prefix, clock, where, None if embedded else server),
            blobs=FolderBlobs(home) if embedded else RedisBlobs(redis, prefix, where),
            calls=RedisCalls(redis, prefix, where),
            queue=queue,
        )
