"""Calls to one Weaviate server: deadlines, tries, what its errors mean, and whether it is there at all.

A search has a deadline that gRPC keeps itself, and runs in a task of its own: a scope around the caller cancels the
waiting and not the call, which would lose the scope's mark. A write runs in a shielded task and is sent once: it is
answered, or nobody knows what it did.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import grpc
import httpx
from anyio.abc import TaskGroup
from grpc.aio import AioRpcError, Channel, UsageError
from weaviate import WeaviateAsyncClient
from weaviate.exceptions import UnexpectedStatusCodeError, WeaviateBaseError
from weaviate.proto.v1 import (
    aggregate_pb2,
    batch_delete_pb2,
    batch_pb2,
    health_weaviate_pb2,
    search_get_pb2,
    tenants_pb2,
    weaviate_pb2_grpc,
)

from infra.banks.errors import AnswerTooLong, BankAway, DoubtfulAnswer, UncleanWrite
from infra.weaviate_address import WeaviateAddress
from infra.weaviate_asking import OLDEST
from runtime.logger import Logger

_log = Logger("chime.weaviate")

T = TypeVar("T")

#: how long one try of a search may take, and how many there are where the connection breaks
READ_S, READ_TRIES = 2.0, 2
#: the same of a search that looks at a whole bank
PATIENT_S = 30.0
#: how long a write may take before nobody waits for its answer any more
_WRITE_S = 20.0
#: how long the server may take to greet us, and to change collections and tenants
_GREET_S, _SCHEMA_S = 3.0, 30.0
#: between tries to reach a server that is away: the first and the longest wait, seconds
_PROBE_S = (0.25, 5.0)
#: of one message, both ways: the server's own limit
_MESSAGE = 104_858_000

#: options of the channel
CHANNEL: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", _MESSAGE),
    ("grpc.max_receive_message_length", _MESSAGE),
    # A batch that was cut and is sent again is not what one that was sent once is.
    ("grpc.enable_retries", 0),
    # Back at once after an outage: gRPC's own waits grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_GONE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
_REFUSED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
#: what gRPC says of an answer that one of both sides does not let through
_TOO_LONG = "message larger than max"
_KEY = "it refuses the API key; put its key into the variable that weaviate.api_key_env names"
#: what a call over REST ends with. What answers there may be no Weaviate at all, and its client believes what it reads
_OF_REST = (
    WeaviateBaseError, httpx.HTTPError, TimeoutError, ValueError, LookupError, TypeError, AttributeError, AssertionError
)  # fmt: skip


class Edge:
    """One server as one process calls it. `watch` has to run as long as it is used."""

    def __init__(
        self, address: WeaviateAddress, client: WeaviateAsyncClient, channel: Channel, tasks: TaskGroup
    ) -> None:
        self.client, self.where = client, address.http_url
        self._channel, self._tasks = channel, tasks
        #: how often the connection has been lost: who is there afterwards may hold something else
        self.losses = 0
        # Neither gRPC nor what it generates has types: each call's own are said where it is made.
        self._stub: Any = weaviate_pb2_grpc.WeaviateStub(channel)  # type: ignore[no-untyped-call]
        self._health: Any = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_weaviate_pb2.WeaviateHealthCheckRequest.SerializeToString,
            response_deserializer=health_weaviate_pb2.WeaviateHealthCheckResponse.FromString,
        )
        self._metadata = (("authorization", f"Bearer {address.api_key}"),) if address.api_key else ()
        self.away: BankAway | None = None
        self._missed = anyio.Event()
        #: before the next try to reach it; the first one again once a search was answered
        self._wait_s = 0.0
        #: writes under way, and whether there are none
        self._writing, self._idle = 0, anyio.Event()
        self._idle.set()

    # -- rows --------------------------------------------------------------------------------------------------------

    async def search(
        self, generation: str, request: search_get_pb2.SearchRequest, *, patient: bool = False
    ) -> search_get_pb2.SearchReply:
        """What the server finds; `patient` where nobody's episode waits for it.

        Raises:
            BankAway: it does not answer in time, however often it was asked.
            DoubtfulAnswer: it has no such generation, or cannot search it.
        """
        within_s = PATIENT_S if patient else READ_S
        return await self._read(
            generation, lambda: self._stub.Search(request, timeout=within_s, metadata=self._metadata)
        )

    async def count(self, generation: str, request: aggregate_pb2.AggregateRequest) -> int:
        """How many rows there are. Raises as `search`."""

        async def ask() -> int:
            reply = await self._stub.Aggregate(request, timeout=PATIENT_S, metadata=self._metadata)
            return int(reply.single_result.objects_count)

        return await self._read(generation, ask)

    async def tenants(self, collection: str) -> list[str]:
        """The names of all tenants. Raises as `search`."""
        request = tenants_pb2.TenantsGetRequest(collection=collection)

        async def ask() -> list[str]:
            reply = await self._stub.TenantsGet(request, timeout=_SCHEMA_S, metadata=self._metadata)
            return [one.name for one in reply.tenants]

        return await self._read(collection, ask)

    async def put(self, generation: str, request: batch_pb2.BatchObjectsRequest) -> None:
        """Every row of `request` is stored.

        Raises:
            BankAway: the server was away before; nothing was sent.
            UncleanWrite: nobody knows what was stored.
        """

        async def send() -> None:
            reply = await self._stub.BatchObjects(request, timeout=_WRITE_S, metadata=self._metadata)
            if reply.errors:
                # One is listed even where none of the rows was stored.
                raise UncleanWrite(generation, reply.errors[0].error)

        await self._write(generation, send)

    async def delete(self, generation: str, request: batch_delete_pb2.BatchDeleteRequest) -> int:
        """Every row that `request` means is gone, ten thousand at most; how many there were. Raises as `put`."""

        async def send() -> int:
            reply = await self._stub.BatchDelete(request, timeout=_WRITE_S, metadata=self._metadata)
            if reply.failed or reply.matches != reply.successful:
                raise UncleanWrite(generation, f"{reply.successful} of {reply.matches} rows were deleted")
            return int(reply.successful)

        return await self._write(generation, send)

    # -- how calls are made ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises: BankAway: the server was away when it was last tried."""
        if self.away is not None:
            raise BankAway(self.where, self.away.kind, self.away.reason)

    async def _read(self, generation: str, ask: Callable[[], Awaitable[T]]) -> T:
        self.check()
        tries_left = READ_TRIES
        while True:
            tries_left -= 1
            try:
                answer = await self._aside(ask)
            except AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE and tries_left:
                    continue
                if _TOO_LONG in (error.details() or ""):
                    raise AnswerTooLong(generation, "an answer that is longer than one message may be") from error
                kind, reason = _meaning(error)
                if kind != "answer" or not await self._ready():
                    raise self.missed(kind, reason) from error
                raise DoubtfulAnswer(generation, reason) from error
            except _Closed as error:
                raise BankAway(self.where, "closed", str(error)) from error
            self._wait_s = 0.0
            return answer

    async def _write(self, generation: str, send: Callable[[], Awaitable[T]]) -> T:
        self.check()

        try:
            return await self._aside(send, shielded=True)
        except AioRpcError as error:
            kind, reason = _meaning(error)
            if kind != "answer":
                self.missed(kind, reason)
            raise UncleanWrite(generation, reason) from error
        except _Closed as error:
            raise UncleanWrite(generation, str(error)) from error

    async def _aside(self, call: Callable[[], Awaitable[T]], *, shielded: bool = False) -> T:
        """The call's result; it goes on by itself where the caller is cancelled, a shielded one in any case."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def carry() -> None:
            try:
                with anyio.CancelScope(shield=shielded):
                    answer = await call()
                    if not result.done():
                        result.set_result(answer)
            except (AioRpcError, UncleanWrite) as error:
                if not result.done():
                    result.set_exception(error)
            except UsageError:
                pass  # as where it is closed during the call
            finally:
                if not result.done():
                    # Whoever waits is not cancelled where the call is.
                    result.set_exception(_Closed("the connection to it was closed"))
                if shielded:
                    self._one_less()

        if shielded:
            self._one_more()
        self._tasks.start_soon(carry)
        return await result

    def _one_more(self) -> None:
        if not self._writing:
            self._idle = anyio.Event()
        self._writing += 1

    def _one_less(self) -> None:
        self._writing -= 1
        if not self._writing:
            self._idle.set()

    @asynccontextmanager
    async def rest(self) -> AsyncIterator[None]:
        """Calls of the client's own within, with our deadline.

        Raises:
            BankAway: no answer in time, or a refusal.
        """
        self.check()
        try:
            async with asyncio.timeout(_SCHEMA_S):
                yield
        except _OF_REST as error:
            raise self.missed(*_of_rest(error)) from error

    # -- whether it is there -----------------------------------------------------------------------------------------

    def missed(self, kind: str, reason: str) -> BankAway:
        """The server counts as away until it greets us again; the error to raise."""
        if self.away is None:
            _log.warning("weaviate_away", where=self.where, kind=kind, reason=reason)
        self.away = BankAway(self.where, kind, reason)
        self._missed.set()
        return BankAway(self.where, kind, reason)

    async def watch(self) -> None:
        """Try to reach the server whenever it is away, until cancelled."""
        while True:
            await self._missed.wait()
            # One that greets us and answers no search is asked less and less often.
            await anyio.sleep(self._wait_s)
            self._wait_s = min(max(2 * self._wait_s, _PROBE_S[0]), _PROBE_S[1])
            await self.greet()

    async def watch_connection(self) -> None:
        """Count in `losses` how often the connection is lost, until cancelled.

        A server that is started again is not always missed: nobody may have asked it meanwhile.
        """
        before = self._channel.get_state()
        while True:
            await self._channel.wait_for_state_change(before)
            before = self._channel.get_state()
            if before is not grpc.ChannelConnectivity.READY:
                self.losses += 1

    async def greet(self) -> None:
        """Find out whether the server is there, of an age that suffices, and takes our key; `away` says so."""
        before = self.away
        try:
            async with asyncio.timeout(_GREET_S):
                if not self.client.is_connected():
                    # Each try makes connections of its own, and forgets those of the last without closing them.
                    await self.client.close()
                    await self.client.connect()
                version = str((await self.client.get_meta())["version"])
                if _numbers(version) < OLDEST:
                    self.missed(
                        "version", f"it is version {version}; chime needs {'.'.join(map(str, OLDEST))} or newer"
                    )
                    return
                if not await self._is_ready():
                    self.missed("unready", "it is starting, or not well")
                    return
        except _OF_REST as error:
            self.missed(*_of_rest(error))
            return
        try:
            request = health_weaviate_pb2.WeaviateHealthCheckRequest()
            await self._aside(lambda: self._health(request, timeout=_GREET_S))
        except AioRpcError as error:
            self.missed("unreached", f"its gRPC port: {_meaning(error)[1]}")
            return
        except _Closed:
            return
        self.away, self._missed = None, anyio.Event()
        if before is not None:
            _log.info("weaviate_back", where=self.where, version=version)

    async def _ready(self) -> bool:
        """Whether an answer is one: a server that starts answers before it knows what it holds."""
        try:
            async with asyncio.timeout(_GREET_S):
                return await self._is_ready()
        except _OF_REST:
            return False

    async def _is_ready(self) -> bool:
        # A client that is being closed answers without being awaited, whatever its types say.
        answer: Any = self.client.is_ready()
        return answer if isinstance(answer, bool) else bool(await answer)

    async def written(self) -> None:
        """No write is under way any more."""
        await self._idle.wait()

    def leave(self) -> None:
        """It is about to be closed: nobody asks it anything any more."""
        self.away = BankAway(self.where, "closed", "the connection to it was closed")


class _Closed(Exception):
    """The connection was closed before the call was answered."""


def _meaning(error: AioRpcError) -> tuple[str, str]:
    """A short word and a sentence; `answer` where the server has understood and refused just this."""
    code, details = error.code(), (error.details() or "").splitlines()[0:1]
    reason = f"{code.name.lower()}: {details[0] if details else 'no reason given'}"
    if code in _REFUSED or "unauthorized" in reason:
        return "key", _KEY
    if code in _GONE:
        return "unreached", reason
    return ("full", reason) if code is grpc.StatusCode.RESOURCE_EXHAUSTED else ("answer", reason)


def _of_rest(error: Exception) -> tuple[str, str]:
    if isinstance(error, UnexpectedStatusCodeError):
        if error.status_code in (401, 403):
            return "key", _KEY
        return "unreached", f"it answers with status {error.status_code}, as no Weaviate that is ready does"
    reason = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, TimeoutError):
        return "unreached", "no answer in time"
    return ("version" if "is not supported" in reason else "unreached"), reason


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("-")[0].split(".")[:2])
