"""The asyncio client of a Redis or Valkey server, with time-outs of our own, and its errors in our words.

redis-py retries by itself and gives up on a read after 5 s; both are set here, because every command of ours is
harmless when it runs twice, and because a blocking read waits as long as it says.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha1
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
from msgspec import Struct
from redis import __version__ as redis_version
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.driver_info import DriverInfo
from redis.exceptions import AuthenticationError, NoPermissionError, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from events.errors import BadInput, ChimeError
from infra.redis_line import BACKOFF, SharingRedis, packed
from runtime.errors import StoreAway

#: a connection's time to be made and to answer one command, seconds
CONNECT_S, COMMAND_S = 5.0, 15.0
#: of one client at once, where redis-py would refuse the 101st: each run that is waited on holds one, and every episode
#: of a worker may ask at the same time; a server's own default
CONNECTIONS = 10_000
#: tries after the first, for a connection that broke: under a second; and those of a process that can only wait: 7 s
RETRIES, PATIENT_RETRIES = 3, 10
#: what a connection tells the server of its library; left to redis-py, each reads its version from the disk again
DRIVER = DriverInfo(lib_version=redis_version)
#: parameters of a URL that nobody should read
_SECRET = re.compile(r"([?&](?:ssl_)?password=)[^&#]*")
#: what helps a server that is full
MORE_ROOM = "give it more memory (maxmemory) or disk, or delete a run (chime run delete)"
#: the oldest server whose commands suffice
OLDEST = (6, 2)


class WrongType(BadInput):
    """A key of ours holds something that is not ours."""


class ServerFull(StoreAway):
    """The server refuses writes: out of memory or disk."""


def redacted(url: str) -> str:
    """`url` without its passwords, the one before the host and those among the parameters."""
    parts = urlsplit(url)
    if parts.password:
        # Not `parts.port`: it raises where the port is no number, and this is for errors about just that.
        place = f"{parts.username or ''}:***@{parts.netloc.rpartition('@')[2]}"
        url = url.replace(parts.netloc, place, 1)
    return _SECRET.sub(r"\1***", url)


def client(url: str, retries: int = RETRIES) -> Redis:
    """A client for redis://, rediss:// or unix:// with ACL user and password; it connects when first used.

    Args:
        url: where.
        retries: tries after the first, for a connection that broke.

    Raises:
        BadInput: not such a URL, or a parameter in it that redis-py does not know.
    """
    try:
        opened = cast(
            "SharingRedis",
            SharingRedis.from_url(
                url,
                socket_connect_timeout=CONNECT_S,
                socket_timeout=COMMAND_S,
                retry=Retry(BACKOFF, retries),
                health_check_interval=30,
                max_connections=CONNECTIONS,
                driver_info=DRIVER,
            ),
        )
        opened.retries, opened.patience_s = retries, COMMAND_S
        # A parameter that is unknown would come out at the first command, as an error of another kind.
        pool = opened.connection_pool
        pool.connection_class = _packing(pool.connection_class)
        pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py gives it no types
    except (ValueError, TypeError, RedisError) as error:
        raise BadInput(f"{redacted(url)} is no Redis URL: {error}") from error
    return opened


def _packing(base: type[AbstractConnection]) -> type[AbstractConnection]:
    """`base` with commands packed in C: redis-py's asyncio connections do it in Python, argument by argument.

    It greets the server once, without a PING before it is known.
    """

    class Packing(base):  # type: ignore[valid-type,misc]  # TCP, TLS or unix socket, as the URL says
        def pack_command(self, *args: Any) -> list[bytes]:
            return [packed(args)]

        async def on_connect(self) -> None:
            """Nothing: redis-py calls it over unix sockets only, and greets the server a second time after it."""

        async def on_connect_check_health(self, check_health: bool = True) -> None:
            # A PING that is refused connects again, greets, and asks by PING again: without end where a user is wanted.
            del check_health
            await super().on_connect_check_health(check_health=False)

    return Packing


class Script:
    """A script that a server is asked for by its hash, and told once."""

    def __init__(self, text: str) -> None:
        self._text, self._sha1 = text, sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, redis: Redis, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """What it answers."""
        try:
            return await redis.evalsha(self._sha1, len(keys), *keys, *arguments)
        except NoScriptError:
            await redis.script_load(self._text)
            return await redis.evalsha(self._sha1, len(keys), *keys, *arguments)

    async def run_with_others(self, redis: Redis, keys: Sequence[str], name: str, arguments: Sequence[Any]) -> Any:
        """Its answer to one of several who may ask it about the same keys at once.

        It takes their number, the name of each and then their arguments, and answers a list.
        """
        if not isinstance(redis, SharingRedis) or redis.single_connection_client:
            (answer,) = await self.run(redis, keys, [1, name, *arguments])
            return answer
        head = ("EVALSHA", self._sha1, len(keys), *keys)
        try:
            return await redis.ask_with_others(head, name, arguments)
        except NoScriptError:
            await redis.script_load(self._text)
            return await redis.ask_with_others(head, name, arguments)


@asynccontextmanager
async def connected(url: str, retries: int = RETRIES) -> AsyncIterator[Redis]:
    """A client that is closed at the end."""
    opened = client(url, retries)
    try:
        yield opened
    finally:
        # Also where the body was cancelled: a connection that is left open is one more that the server holds.
        with anyio.move_on_after(CONNECT_S, shield=True):
            await opened.aclose()


class our_errors:  # noqa: N801 - it reads as a function; a generator costs more than many a command
    """redis-py's errors as ours; `where` names the server or key.

    Raises:
        WrongType: a key of another type.
        ServerFull: writes are refused.
        BadInput: user, password or rights are refused, the server's certificate is not trusted, or the server cannot do
            what it is asked.
        StoreAway: anything else.
    """

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, RedisError | OSError):
            raise _ours(self._where, error) from error


def _ours(where: str, error: RedisError | OSError) -> ChimeError:
    match error:
        case NoPermissionError():
            # redis-py takes the word NOPERM away.
            told = without_script(str(error))
            return BadInput(f"Redis at {where} refuses: the user's rights do not reach this: {told}")
        case RedisConnectionError() | RedisTimeoutError() | OSError():
            # Over a unix socket redis-py hides the refusal behind a lost connection.
            if isinstance(error, AuthenticationError) or isinstance(error.__cause__, AuthenticationError):
                return BadInput(f"Redis at {where} refuses the user or password: {error}")
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                advice = "is the address the certificate's, and its CA known? (rediss://...?ssl_ca_certs=FILE)"
                return BadInput(f"Redis at {where}: its certificate is not trusted: {error}; {advice}")
            return StoreAway(f"Redis at {where} does not answer: {error}")
        case ResponseError():
            return _of_response(where, str(error))
        case _:
            return StoreAway(f"Redis at {where}: {without_script(str(error))}")


#: what Redis and Valkey put around the error of a command inside a script
_SCRIPT = re.compile(
    r"(?:ERR )?Error running script \(call to f_[0-9a-f]{40}\): |@?user_script: ?\d+: "
    r"|\.? script: (?:[0-9a-f]{40}, )?on @user_script: ?\d+\.?"
)


#: what a server says that is on its way up, elsewhere or back, from a script of ours too
_PASSES = re.compile(
    r"\b(?:LOADING|BUSY|TRYAGAIN|CLUSTERDOWN|READONLY|MASTERDOWN|NOREPLICAS|MOVED|ASK|UNKILLABLE)\b"
    r"|max number of clients|Script killed"
)
#: and what it says every time
_CANNOT = re.compile(
    r"(?:ERR )?(?:unknown (?:sub)?command|wrong number of arguments|syntax error|(?:\S+ )?value is not)", re.IGNORECASE
)


#: what redis-py puts before the error of a command in a pipeline; its asyncio half quotes the error like a tuple
_PIPELINE = re.compile(
    r"\ACommand # \d+ \(.*?\) of pipeline caused error: (?:\((['\"])(?P<quoted>.*)\1,\)\Z)?", re.DOTALL
)


def without_script(message: str) -> str:
    """A server's error without the script or pipeline that it came from, which say nothing to a reader."""
    return _SCRIPT.sub("", _PIPELINE.sub(lambda found: found["quoted"] or "", message))


def _of_response(where: str, message: str) -> ChimeError:
    is_scripts, message = _SCRIPT.search(message) is not None, without_script(message)
    if "WRONGTYPE" in message:
        return WrongType(f"a key of ours on Redis at {where} holds another type; is the prefix used by something else?")
    if message.startswith(("OOM", "MISCONF")) or "maxmemory" in message or "No space left" in message:
        return ServerFull(f"Redis at {where} is full and refuses writes: {message.removesuffix('.')}; {MORE_ROOM}")
    if message.startswith(("NOPERM", "NOAUTH", "WRONGPASS")):
        return BadInput(f"Redis at {where} refuses: {message}")
    if _PASSES.search(message) is None and (is_scripts or _CANNOT.match(message)):
        told = f"Redis at {where} cannot do what it is asked: {message}"
        return BadInput(f"{told}; does something else write under the prefix, or is it no Redis?")
    return StoreAway(f"Redis at {where} answers: {message}")


class Durability(Struct, frozen=True, kw_only=True):
    """What a server promises about what it has acknowledged."""

    version: str
    #: `valkey` or `redis`
    product: str
    #: WAITAOF exists
    waitaof: bool
    #: sentences for the user; empty when nothing acknowledged can be lost
    warnings: list[str] = []


async def durability(redis: Redis, where: str) -> Durability:
    """What the server says of itself.

    Raises:
        BadInput: a server that is too old.
        Unreachable: it does not answer.
    """
    with our_errors(where):
        info = await redis.info()
    version = str(info.get("valkey_version") or info.get("redis_version") or "0")
    compatible = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2] if part.isdigit())
    if compatible < OLDEST:
        raise BadInput(f"Redis at {where} is version {version}; chime needs 6.2 or newer")
    warnings = []
    if not info.get("aof_enabled"):
        warnings.append("no append-only file: what is acknowledged is lost when the server dies (appendonly yes)")
    elif (fsync := await _config(redis, "appendfsync")) not in (None, "always"):
        warnings.append(f"appendfsync {fsync}: up to a second of acknowledged events is lost when the server dies")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        warnings.append(f"maxmemory-policy {policy}: the server may evict parts of a log (noeviction)")
    return Durability(
        version=version,
        product="valkey" if "valkey_version" in info else "redis",
        waitaof=compatible >= (7, 2) and bool(info.get("aof_enabled")),
        warnings=warnings,
    )


async def refuses_writes(redis: Redis, where: str) -> str | None:
    """Why the server takes no writes now, as `ServerFull` says it of one; None where it takes them.

    Raises:
        Unreachable: it does not answer.
    """
    with our_errors(where):
        info = await redis.info()
        used, limit = int(info["used_memory"]), int(info.get("maxmemory", 0))
        # Not counted: what the server holds for its replicas and its append-only file.
        counted = used - int(info.get("mem_not_counted_for_evict", 0))
        if limit and counted > limit and info.get("maxmemory_policy", "noeviction") == "noeviction":
            return f"it uses {used >> 20} MiB of its maxmemory {limit >> 20} MiB"
        if info.get("aof_last_write_status", "ok") != "ok":
            return "it cannot write its append-only file"
        if info.get("rdb_last_bgsave_status", "ok") != "ok" and await _config(redis, "save"):
            stops = await _config(redis, "stop-writes-on-bgsave-error") == "yes"
            return "it cannot write its snapshot" if stops else None
    return None


async def _config(redis: Redis, name: str) -> str | None:
    """One setting; None where the server does not let us read it (managed servers forbid CONFIG)."""
    try:
        found = cast("dict[Any, Any]", await redis.config_get(name))
    except ResponseError:
        return None
    values = {_text(key): _text(value) for key, value in found.items()}
    return values.get(name)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
