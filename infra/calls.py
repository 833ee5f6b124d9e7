"""Every model call recorded and answered once: a stage that runs twice pays once.

A call is known by run, stream, stage, ordinal, retry ordinal and the SHA-256 of its request. It is written down before
the stage's event is appended; whoever asks the same again, after a crash or at the same time, gets the stored answer.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Protocol, cast

import anyio
import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from events.codec import canonical
from events.errors import BadInput, ChimeError
from events.ids import RunId
from infra.blobs import get_messages
from infra.model_errors import unsendable
from infra.redis_client import our_errors
from infra.transcripts import Transcripts
from runtime.calls import call_usage, cost_usd
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped, StoreAway
from runtime.logger import Logger
from runtime.ports import Blobs, CallKey, ChatAnswer, ChatModel, ChatRequest, Clock, Role, TokenUsage
from runtime.settings import Price
from runtime.task import Message

_log = Logger("chime.model")

#: how long a cancelled caller waits for its paid answer to be stored, seconds
_STORE_S = 10.0
#: and for the record of a call that it gave up
_GIVEN_UP_S = 2.0


_CANCELLED = "given up before it was answered, as the run was interrupted or somebody else did its work"


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
    #: of that error: name of its class, HTTP status where there was one
    error_class: str = ""
    status: int | None = None
    #: the model that was asked for; "" where only the run's header says
    asked: str = ""
    #: of the server's build and settings, as it names them
    fingerprint: str = ""
    #: what was odd about the answer, and how much of the request was left out, characters (`runtime.ports.ChatAnswer`)
    flags: list[str] = []
    left_out: int = 0
    #: blob: list of the hashes of the messages as they were sent, which differ where the endpoint takes others; blob:
    #: the rest of the body that was sent; blob: the body that came back. "" where nothing was sent, or came
    sent_messages: str = ""
    sent: str = ""
    received: str = ""
    #: requests that were made for it, and what came of those before the last, a line each
    requests: int = 0
    before: list[str] = []
    #: until the first byte of the answer, milliseconds
    first_byte_ms: int | None = None


class UnreadableCall(BadInput):
    """A recorded call, or its answer, that is not of this format."""

    def __init__(self, call: str, reason: str) -> None:
        self.call, self.reason = call, reason
        super().__init__(f"the record of call {call} cannot be read: {reason}")


class CallStore(Protocol):
    """Records by field; the first writer of a field wins."""

    async def get(self, run: RunId, field: str) -> bytes | None:
        """What is stored."""
        ...

    async def put(self, run: RunId, field: str, record: bytes) -> bytes:
        """Store `record` unless the field is taken; what is stored."""
        ...

    async def put_with(self, run: RunId, field: str, record: bytes, bodies: Mapping[str, bytes], blobs: Blobs) -> bytes:
        """As `put`, once the bodies that `record` names are in `blobs`: whoever finds it finds them.

        Args:
            run: whose record.
            field: its name.
            record: what is stored.
            bodies: by name.
            blobs: where they are to be.
        """
        ...

    async def all(self, run: RunId, stream: str | None = None) -> dict[str, bytes]:
        """Every record of the run, or of one of its streams, by its field."""
        ...

    async def discard(self, run: RunId, fields: Collection[str]) -> None:
        """Remove these records, where they are there."""
        ...


class MemoryCalls:
    """`CallStore` in memory."""

    def __init__(self) -> None:
        self._records: dict[RunId, dict[str, bytes]] = {}

    async def get(self, run: RunId, field: str) -> bytes | None:
        return self._records.get(run, {}).get(field)

    async def put(self, run: RunId, field: str, record: bytes) -> bytes:
        return self._records.setdefault(run, {}).setdefault(field, record)

    async def put_with(self, run: RunId, field: str, record: bytes, bodies: Mapping[str, bytes], blobs: Blobs) -> bytes:
        await blobs.put_many(run, list(bodies.values()))
        return await self.put(run, field, record)

    async def all(self, run: RunId, stream: str | None = None) -> dict[str, bytes]:
        return of_stream(self._records.get(run, {}), stream)

    async def discard(self, run: RunId, fields: Collection[str]) -> None:
        for field in fields:
            self._records.get(run, {}).pop(field, None)


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
            stored = cast("bytes | None", await self._redis.hget(self._key(run), field))
        # Gone again where the run was deleted in between.
        return record if stored is None else stored

    async def put_with(self, run: RunId, field: str, record: bytes, bodies: Mapping[str, bytes], blobs: Blobs) -> bytes:
        await blobs.put_many(run, list(bodies.values()))
        return await self.put(run, field, record)

    async def all(self, run: RunId, stream: str | None = None) -> dict[str, bytes]:
        with our_errors(self._where):
            if stream is None:
                found = cast("dict[bytes, bytes]", await self._redis.hgetall(self._key(run)))
            else:
                # The server looks at every name, but sends what belongs to the stream alone.
                found = dict([one async for one in self._redis.hscan_iter(self._key(run), f"{stream}/*", count=1000)])
        return {field.decode(): record for field, record in found.items()}

    async def discard(self, run: RunId, fields: Collection[str]) -> None:
        if fields:
            with our_errors(self._where):
                await self._redis.hdel(self._key(run), *fields)

    def _key(self, run: RunId) -> str:
        return f"{self._prefix}:{{{run}}}:calls"


def of_stream(records: Mapping[str, bytes], stream: str | None) -> dict[str, bytes]:
    """Those of `records` that belong to `stream`; all of them for None."""
    return {field: record for field, record in records.items() if stream is None or field.startswith(f"{stream}/")}


class _Written(Struct, frozen=True):
    """A request in canonical JSON, in the bodies that are kept apart."""

    messages: list[bytes]
    #: tools and schema
    rest: bytes
    #: hex SHA-256 of the whole
    sha256: str


class _Bodies:
    """What is stored with a record."""

    def __init__(self) -> None:
        #: by name
        self.all: dict[str, bytes] = {}

    def named(self, body: bytes) -> str:
        """The name of `body`, now that it is among them."""
        name = sha256(body).hexdigest()
        self.all[name] = body
        return name

    def messages(self, messages: Sequence[bytes]) -> str:
        """The name of the list of `messages`, as `infra.blobs.put_messages` has it."""
        return self.named(canonical([self.named(one) for one in messages]))


class RecordedCalls:
    """A `ChatModel` around another one that remembers; `names` and `prices` are of the model that each role asks."""

    def __init__(
        self,
        model: ChatModel,
        store: CallStore,
        blobs: Blobs,
        clock: Clock,
        names: Mapping[Role, str] | None = None,
        prices: Mapping[Role, Price] | None = None,
        transcripts: Transcripts | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            model: is asked what is not recorded.
            store: of the records.
            blobs: of the bodies.
            clock: of the machine.
            names: the model that each role asks for.
            prices: of those models, where they have one.
            transcripts: where `model` leaves what went over the wire.
        """
        self._model, self._store, self._blobs, self._clock = model, store, blobs, clock
        self._names, self._prices, self._transcripts = names or {}, prices or {}, transcripts or Transcripts()

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        """As `runtime.ports.ChatModel.complete`; asked before, the stored answer.

        Raises:
            MissingBlob: a stored answer whose body is gone.
            UnreadableCall: a stored answer that is not of this format.
            StoreAway: where calls are kept does not answer.
        """
        asked = _written(request)
        if (known := await self._store.get(key.run, f"{key.id} {asked.sha256}")) is not None:
            return await self._stored(key, known)
        began = self._clock.monotonic()
        try:
            answer = await self._model.complete(request, key)
        except (ModelUnavailable, ModelRefused, RunStopped) as error:
            await self._failed(request, asked, key, began, error)
            raise
        except anyio.get_cancelled_exc_class():
            if self._transcripts.has(key):
                # The endpoint was asked, and may want to be paid for it.
                with anyio.move_on_after(_GIVEN_UP_S, shield=True), suppress(ChimeError):
                    await self._failed(request, asked, key, began, ModelUnavailable("cancelled", _CANCELLED))
            raise
        # The answer is paid for: whoever stops now finds it when going on.
        with anyio.move_on_after(_STORE_S, shield=True):
            return await self._kept(request, asked, key, began, answer)
        raise StoreAway(f"the answer of call {key.id} could not be stored within {_STORE_S:g} s")

    async def _kept(
        self, request: ChatRequest, asked: _Written, key: CallKey, began: float, answer: ChatAnswer
    ) -> ChatAnswer:
        """The first answer that was written for this call, ours or another worker's."""
        record, bodies = self._record(request, asked, key, began, answer)
        written = msgspec.json.encode(record)
        kept = await self._store.put_with(key.run, f"{key.id} {asked.sha256}", written, bodies, self._blobs)
        _log.info(
            "model_called", run_id=key.run, call=key.id, model_role=request.role, model=answer.model,
            tokens_in=answer.usage.prompt_tokens, tokens_out=answer.usage.completion_tokens,
            tokens_cached=answer.usage.cached_tokens, duration_ms=record.latency_ms, outcome=answer.finish_reason,
            **_cost(answer.usage, self._prices.get(request.role)),
        )  # fmt: skip
        return answer if kept == written else await self._stored(key, kept)

    async def _stored(self, key: CallKey, written: bytes) -> ChatAnswer:
        record = _read_record(key.id, written)
        answer = await answer_of(self._blobs, key.run, record)
        if answer is None:
            raise UnreadableCall(key.id, "it names no answer")
        _log.info("model_call_known", run_id=key.run, call=key.id, model_role=record.role)
        return answer

    def _record(
        self,
        request: ChatRequest,
        asked: _Written,
        key: CallKey,
        began: float,
        answer: ChatAnswer | None,
    ) -> tuple[CallRecord, dict[str, bytes]]:
        """The record of a call, and the bodies that it names."""
        took_s = self._clock.monotonic() - began
        transcript = self._transcripts.take(key)
        bodies = _Bodies()
        sent = [canonical(message) for message in transcript.sent.get("messages", ())] if transcript else []
        rest = canonical(transcript.sent | {"messages": None}) if transcript and transcript.sent else None
        received = transcript.received.encode() if transcript else b""
        record = CallRecord(
            id=key.id,
            role=request.role,
            model=answer.model if answer else "",
            fingerprint=answer.fingerprint if answer else "",
            usage=answer.usage if answer else TokenUsage(),
            latency_ms=round(1000 * took_s),
            finish_reason=answer.finish_reason if answer else "",
            messages=bodies.messages(asked.messages),
            request=bodies.named(asked.rest),
            answer=bodies.named(msgspec.json.encode(answer)) if answer else "",
            sha256=asked.sha256,
            at=self._clock.utc(),
            asked=self._names.get(request.role, ""),
            flags=answer.flags if answer else [],
            left_out=answer.left_out if answer else 0,
            sent_messages=bodies.messages(sent) if sent else "",
            sent=bodies.named(rest) if rest else "",
            received=bodies.named(received) if received else "",
            requests=len(transcript.before) + 1 if transcript else 0,
            before=transcript.before if transcript else [],
            first_byte_ms=transcript.first_byte_ms if transcript else None,
        )
        return record, bodies.all

    async def _failed(
        self,
        request: ChatRequest,
        asked: _Written,
        key: CallKey,
        began: float,
        error: ModelUnavailable | ModelRefused | RunStopped,
    ) -> None:
        """Kept for the reader, under a field of its own: a failure is never an answer."""
        record, bodies = self._record(request, asked, key, began, None)
        told = msgspec.structs.replace(
            record,
            error=error.kind,
            reason=error.reason,
            error_class=type(error).__name__,
            status=error.status,
            usage=error.usage or TokenUsage(),
        )
        field = f"{key.id} {asked.sha256} failed {record.at}"
        await self._store.put_with(key.run, field, msgspec.json.encode(told), bodies, self._blobs)


def _cost(usage: TokenUsage, price: Price | None) -> dict[str, Any]:
    """What a log line says of a call's cost: nothing without a price, or where nobody knows the tokens."""
    cost = cost_usd(call_usage(usage), price)
    if cost is None:
        return {}
    return {"cost_usd": round(cost, 9), **({"estimated": True} if usage.estimated else {})}


def _written(request: ChatRequest) -> _Written:
    """`request` in canonical JSON.

    Raises:
        ModelRefused: something that JSON has no form for.
    """
    try:
        messages = [canonical(message) for message in request.messages]
        role, schema, tools = canonical(request.role), canonical(request.schema), canonical(request.tools)
    except (ValueError, TypeError, RecursionError) as error:
        raise unsendable(error) from error
    # Put together from its parts, as `canonical(request)` would write it.
    whole = b'{"messages":[%b],"role":%b,"schema":%b,"tools":%b}' % (b",".join(messages), role, schema, tools)
    rest = b'{"schema":%b,"tools":%b}' % (schema, tools)
    return _Written(messages=messages, rest=rest, sha256=sha256(whole).hexdigest())


async def calls_of(store: CallStore, run: RunId, stream: str | None = None) -> list[CallRecord]:
    """The recorded calls of a run, or of one of its streams, in the order in which they were made.

    Raises:
        UnreadableCall: a record is not of this format.
    """
    found = await store.all(run, stream)
    records = [_read_record(field.split(" ")[0], written) for field, written in found.items()]
    return sorted(records, key=lambda one: (one.at, one.id))


async def messages_of(blobs: Blobs, run: RunId, record: CallRecord) -> list[Message]:
    """The messages of a call as they were sent.

    Raises:
        MissingBlob: a body is gone.
    """
    return await get_messages(blobs, run, record.messages)


async def request_of(blobs: Blobs, run: RunId, record: CallRecord) -> ChatRequest:
    """What was asked, as a stage asked it.

    Raises:
        MissingBlob: a body is gone.
        UnreadableCall: a body, or the record, is not of this format.
    """
    messages = await messages_of(blobs, run, record)
    try:
        rest = json.loads(await blobs.get(run, record.request))
        return msgspec.convert({**rest, "role": record.role, "messages": messages}, ChatRequest)
    except (ValueError, TypeError) as error:
        raise UnreadableCall(record.id, str(error)) from error


class Wire(Struct, frozen=True, kw_only=True):
    """The bodies that went over the wire for a call."""

    #: None where nothing was sent
    sent: dict[str, Any] | None
    #: None where nothing came
    received: str | None


async def wire_of(blobs: Blobs, run: RunId, record: CallRecord) -> Wire:
    """What was sent and what came back.

    Raises:
        MissingBlob: a body is gone.
        UnreadableCall: a body is not of this format.
    """
    sent: dict[str, Any] | None = None
    if record.sent:
        try:
            sent = msgspec.json.decode(await blobs.get(run, record.sent), type=dict[str, Any])
        except ValueError as error:
            raise UnreadableCall(record.id, str(error)) from error
        sent["messages"] = await get_messages(blobs, run, record.sent_messages) if record.sent_messages else []
    received = (await blobs.get(run, record.received)).decode("utf-8", "replace") if record.received else None
    return Wire(sent=sent, received=received)


async def answer_of(blobs: Blobs, run: RunId, record: CallRecord) -> ChatAnswer | None:
    """What came back; None for a call that failed.

    Raises:
        MissingBlob: the body is gone.
        UnreadableCall: the body is not of this format.
    """
    if not record.answer:
        return None
    body = await blobs.get(run, record.answer)
    try:
        return msgspec.json.decode(body, type=ChatAnswer)
    except ValueError as error:
        raise UnreadableCall(record.id, str(error)) from error


def _read_record(call: str, written: bytes) -> CallRecord:
    try:
        return msgspec.json.decode(written, type=CallRecord)
    except ValueError as error:
        raise UnreadableCall(call, str(error)) from error
