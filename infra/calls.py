"""Every model call recorded and answered once: a stage that runs twice pays once.

A call is known by run, stream, stage, ordinal, retry ordinal and the SHA-256 of its request. It is written down before
the stage's event is appended; whoever asks the same again, after a crash or at the same time, gets the stored answer.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol, cast

import msgspec
import structlog
from msgspec import Struct
from redis.asyncio import Redis

from events.codec import canonical
from events.errors import ChimeError
from events.ids import RunId
from infra.redis_client import our_errors
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped
from runtime.ports import Blobs, CallKey, ChatAnswer, ChatModel, ChatRequest, Clock, TokenUsage
from runtime.task import Message

_log = structlog.get_logger("chime.model")


class CallRecord(Struct, frozen=True, kw_only=True):
    """One call as it is kept; bodies are blobs of the run."""

    #: `<stream>/<stage>/<ordinal>`
    id: str
    role: str
    #: as the server named it; "" for a call that failed
    model: str
    usage: TokenUsage
    latency_ms: int
    finish_reason: str
    #: blob: list of the hashes of the request's messages
    messages: str
    #: blob: tools and schema
    request: str
    #: blob: the answer; "" for a call that failed
    answer: str
    #: hex SHA-256 of the canonical request
    sha256: str
    at: str
    #: why it failed, a short word and a line; "" when it did not
    error: str = ""
    reason: str = ""


class CallStore(Protocol):
    """Records by field; the first writer of a field wins."""

    async def get(self, run: RunId, field: str) -> bytes | None: ...

    async def put(self, run: RunId, field: str, record: bytes) -> bytes:
        """Store `record` unless the field is taken; what is stored."""
        ...

    async def all(self, run: RunId) -> dict[str, bytes]: ...


class MemoryCalls:
    """`CallStore` in memory."""

    def __init__(self) -> None:
        self._records: dict[RunId, dict[str, bytes]] = {}

    async def get(self, run: RunId, field: str) -> bytes | None:
        return self._records.get(run, {}).get(field)

    async def put(self, run: RunId, field: str, record: bytes) -> bytes:
        return self._records.setdefault(run, {}).setdefault(field, record)

    async def all(self, run: RunId) -> dict[str, bytes]:
        return dict(self._records.get(run, {}))


class RedisCalls:
    """`CallStore` as one hash a run, `<prefix>:{<run>}:calls`."""

    def __init__(self, redis: Redis, prefix: str, where: str) -> None:
        self._redis, self._prefix, self._where = redis, prefix, where

    async def get(self, run: RunId, field: str) -> bytes | None:
        with our_errors(self._where):
            return cast("bytes | None", await self._redis.hget(self._key(run), field))

    async def put(self, run: RunId, field: str, record: bytes) -> bytes:
        with our_errors(self._where):
            if await self._redis.hsetnx(self._key(run), field, record):
                return record
            return cast("bytes", await self._redis.hget(self._key(run), field))

    async def all(self, run: RunId) -> dict[str, bytes]:
        with our_errors(self._where):
            found = cast("dict[bytes, bytes]", await self._redis.hgetall(self._key(run)))
        return {field.decode(): record for field, record in found.items()}

    def _key(self, run: RunId) -> str:
        return f"{self._prefix}:{{{run}}}:calls"


class RecordedCalls:
    """A `ChatModel` around another one that remembers."""

    def __init__(self, model: ChatModel, store: CallStore, blobs: Blobs, clock: Clock) -> None:
        self._model, self._store, self._blobs, self._clock = model, store, blobs, clock

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        """As `runtime.ports.ChatModel.complete`; asked before, the stored answer.

        Raises:
            MissingBlob: a stored answer whose body is gone.
        """
        digest = sha256(canonical(request)).hexdigest()
        field = f"{key.id} {digest}"
        if (known := await self._store.get(key.run, field)) is not None:
            return await self._stored(key, known)
        began = self._clock.monotonic()
        try:
            answer = await self._model.complete(request, key)
        except (ModelUnavailable, ModelRefused, RunStopped) as error:
            await self._failed(request, key, digest, began, error)
            raise
        record = await self._record(request, key, digest, began, answer)
        kept = await self._store.put(key.run, field, msgspec.json.encode(record))
        _log.info(
            "model_called", run_id=key.run, call=key.id, model_role=request.role, model=answer.model,
            tokens_in=answer.usage.prompt_tokens, tokens_out=answer.usage.completion_tokens,
            tokens_cached=answer.usage.cached_tokens, duration_ms=record.latency_ms, outcome=answer.finish_reason,
        )  # fmt: skip
        # Another worker may have been first: its answer is the one the episode goes on with.
        return answer if kept == msgspec.json.encode(record) else await self._stored(key, kept)

    async def _stored(self, key: CallKey, record: bytes) -> ChatAnswer:
        known = msgspec.json.decode(record, type=CallRecord)
        _log.info("model_call_known", run_id=key.run, call=key.id, model_role=known.role)
        return msgspec.json.decode(await self._blobs.get(key.run, known.answer), type=ChatAnswer)

    async def _record(
        self, request: ChatRequest, key: CallKey, digest: str, began: float, answer: ChatAnswer | None
    ) -> CallRecord:
        names = [await self._blobs.put(key.run, canonical(message)) for message in request.messages]
        rest = {"tools": request.tools, "schema": request.schema}
        return CallRecord(
            id=key.id,
            role=request.role,
            model=answer.model if answer else "",
            usage=answer.usage if answer else TokenUsage(),
            latency_ms=round(1000 * (self._clock.monotonic() - began)),
            finish_reason=answer.finish_reason if answer else "",
            messages=await self._blobs.put(key.run, canonical(names)),
            request=await self._blobs.put(key.run, canonical(rest)),
            answer=await self._blobs.put(key.run, msgspec.json.encode(answer)) if answer else "",
            sha256=digest,
            at=self._clock.utc(),
        )

    async def _failed(
        self,
        request: ChatRequest,
        key: CallKey,
        digest: str,
        began: float,
        error: ModelUnavailable | ModelRefused | RunStopped,
    ) -> None:
        """Kept for the reader, under a field of its own: a failure is never an answer."""
        record = await self._record(request, key, digest, began, None)
        told = msgspec.structs.replace(record, error=error.kind, reason=error.reason)
        await self._store.put(key.run, f"{key.id} {digest} failed {record.at}", msgspec.json.encode(told))


async def calls_of(store: CallStore, run: RunId, stream: str | None = None) -> list[CallRecord]:
    """The recorded calls of a run, or of one of its streams, in the order in which they were made."""
    records = [msgspec.json.decode(one, type=CallRecord) for one in (await store.all(run)).values()]
    mine = [one for one in records if stream is None or one.id.startswith(f"{stream}/")]
    return sorted(mine, key=lambda one: (one.at, one.id))


async def messages_of(blobs: Blobs, run: RunId, record: CallRecord) -> Sequence[Message]:
    """The messages of a call as they were sent.

    Raises:
        MissingBlob: a body is gone.
    """
    names = msgspec.json.decode(await blobs.get(run, record.messages), type=list[str])
    return [cast("Message", json.loads(await blobs.get(run, name))) for name in names]


async def answer_of(blobs: Blobs, run: RunId, record: CallRecord) -> ChatAnswer | None:
    """What came back; None for a call that failed.

    Raises:
        MissingBlob: the body is gone.
    """
    if not record.answer:
        return None
    try:
        return msgspec.json.decode(await blobs.get(run, record.answer), type=ChatAnswer)
    except ValueError as error:
        raise ChimeError(f"the recorded answer of call {record.id} cannot be read: {error}") from error
