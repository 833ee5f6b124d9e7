"""Recorded calls: asked once, answered always the same, told in order, never served from a failure."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from events.codec import canonical
from events.errors import Unreachable
from events.ids import RunId, StreamId
from infra import calls as module
from infra.blobs import FolderBlobs, RedisBlobs
from infra.calls import (
    CallRecord,
    CallStore,
    MemoryCalls,
    RecordedCalls,
    RedisCalls,
    UnreadableCall,
    answer_of,
    calls_of,
    messages_of,
    request_of,
)
from infra.redis_client import WrongType, connected
from infra.spending import CountedCalls
from infra.transcripts import Transcript, Transcripts
from runtime.errors import MissingBlob, ModelRefused, ModelUnavailable, RunStopped
from runtime.ports import Blobs, CallKey, ChatAnswer, ChatModel, ChatRequest, TokenUsage, ToolCall
from runtime.settings import Price

RUN, OTHER = RunId("r"), RunId("other")
STREAM = StreamId("episode-1")
KEY = CallKey(run=RUN, stream=STREAM, stage="execution", ordinal=1)
REQUEST = ChatRequest(role="executor", messages=[{"role": "user", "content": "Grüße"}])


class FakeClock:
    """Each look at it is a millisecond later."""

    def __init__(self) -> None:
        self.looks = 0

    def utc(self) -> str:
        self.looks += 1
        return f"2026-01-01T00:00:00.{self.looks:06}Z"

    def monotonic(self) -> float:
        self.looks += 1
        return self.looks / 1000

    async def sleep(self, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()


class Counting:
    """A model whose nth answer says so, or that fails as told; it answers when `together` callers have asked."""

    def __init__(self, *errors: Exception, together: int = 1) -> None:
        self.asked: list[tuple[ChatRequest, CallKey]] = []
        self._errors = list(errors)
        self._together, self._all_here = together, anyio.Event()

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        self.asked.append((request, key))
        number = len(self.asked)
        if number == self._together:
            self._all_here.set()
        await self._all_here.wait()
        if self._errors:
            raise self._errors.pop(0)
        return ChatAnswer(
            content=f"answer {number}",
            tool_calls=[ToolCall(id="a", name="look", arguments='{"at": "ö"}')],
            finish_reason="tool_calls",
            usage=TokenUsage(prompt_tokens=7),
            model="m-1",
            reasoning="hm",
        )


class Memory:
    """Blobs in memory; full for a body that holds `refuses`."""

    def __init__(self, refuses: bytes | None = None) -> None:
        self.bodies: dict[tuple[RunId, str], bytes] = {}
        self._refuses = refuses
        self.on_put: Callable[[], None] = lambda: None

    async def put(self, run: RunId, body: bytes) -> str:
        self.on_put()
        await anyio.lowlevel.checkpoint()
        if self._refuses is not None and self._refuses in body:
            raise OSError(28, "No space left on device")
        name = sha256(body).hexdigest()
        self.bodies[run, name] = body
        return name

    async def put_many(self, run: RunId, bodies: Sequence[bytes]) -> list[str]:
        return [await self.put(run, body) for body in bodies]

    async def get(self, run: RunId, sha256: str) -> bytes:
        if (run, sha256) not in self.bodies:
            raise MissingBlob(run, sha256, "not there")
        return self.bodies[run, sha256]

    async def hashes(self, run: RunId) -> list[str]:
        return sorted(name for where, name in self.bodies if where == run)

    async def delete(self, run: RunId, *, dry_run: bool = False) -> int:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for some seconds loses no record."""
    monkeypatch.setattr(module, "_STORE_S", 120.0)
    monkeypatch.setattr(module, "_GIVEN_UP_S", 120.0)


Places = Callable[[], Any]


@pytest.fixture(params=["memory", "redis", "counted"])
def places(request: pytest.FixtureRequest, redis_server: Any, redis_prefix: str, tmp_path: Path) -> Places:
    """Where calls and bodies are kept: in memory and a folder, or both on Redis, there with or without sums."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[CallStore, Blobs]]:
        if request.param == "memory":
            yield MemoryCalls(), FolderBlobs(tmp_path)
            return
        async with connected(redis_server.url) as redis:
            calls = CountedCalls if request.param == "counted" else RedisCalls
            yield calls(redis, redis_prefix, "here"), RedisBlobs(redis, redis_prefix, "here")

    return opened


def recorded(model: ChatModel, store: CallStore, blobs: Blobs) -> RecordedCalls:
    """`model`, remembered in `store`."""
    return RecordedCalls(model, store, blobs, FakeClock())


async def test_the_same_call_is_made_once(places: Places) -> None:
    """The second answer equals the first in every field, in another process too, and the model is not asked."""
    async with places() as (store, blobs):
        model = Counting()
        first = await recorded(model, store, blobs).complete(REQUEST, KEY)
        again = await recorded(model, store, blobs).complete(REQUEST, KEY)
    assert (len(model.asked), first.content) == (1, "answer 1")
    assert again == first


async def test_two_who_race_go_on_with_one_answer(places: Places) -> None:
    """Both ask the model, one record is kept, and both get what it holds."""
    async with places() as (store, blobs):
        model = Counting(together=2)
        answers: list[ChatAnswer] = []

        async def one() -> None:
            answers.append(await recorded(model, store, blobs).complete(REQUEST, KEY))

        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one)
                tasks.start_soon(one)
        [record] = await calls_of(store, RUN)
        kept = await answer_of(blobs, RUN, record)
    assert len(model.asked) == 2
    assert answers == [kept, kept]


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, ordinal=2),
        replace(KEY, retry=1),
        replace(KEY, stage="planning"),
        replace(KEY, stream=StreamId("episode-2")),
        replace(KEY, run=OTHER),
    ],
)
async def test_another_place_is_another_call(places: Places, other: CallKey) -> None:
    """The same words asked at another ordinal, as a repair, in another stage, stream or run."""
    async with places() as (store, blobs):
        calls = recorded(Counting(), store, blobs)
        first, second = await calls.complete(REQUEST, KEY), await calls.complete(REQUEST, other)
        assert (first.content, second.content) == ("answer 1", "answer 2")
        assert await calls.complete(REQUEST, KEY) == first
        assert await calls.complete(REQUEST, other) == second


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, messages=[{"role": "user", "content": "Gruesse"}]),
        replace(REQUEST, messages=[*REQUEST.messages, *REQUEST.messages]),
        replace(REQUEST, tools=[{"type": "function", "function": {"name": "look"}}]),
        replace(REQUEST, schema={"type": "object"}),
        replace(REQUEST, role="gate"),
    ],
)
async def test_another_question_at_the_same_place_is_another_call(places: Places, other: ChatRequest) -> None:
    """Two prompts under one stream, stage and ordinal: two records, and each its own answer."""
    async with places() as (store, blobs):
        calls = recorded(Counting(), store, blobs)
        first, second = await calls.complete(REQUEST, KEY), await calls.complete(other, KEY)
        assert first != second
        assert [await calls.complete(one, KEY) for one in (REQUEST, other)] == [first, second]
        records = await calls_of(store, RUN)
        assert [one.id for one in records] == [KEY.id, KEY.id]
        assert [one.sha256 for one in records] == [sha256(canonical(one)).hexdigest() for one in (REQUEST, other)]


async def test_the_order_of_keys_in_a_message_does_not_matter(places: Places) -> None:
    """A question is its canonical bytes."""
    async with places() as (store, blobs):
        model = Counting()
        calls = recorded(model, store, blobs)
        for message in ({"role": "user", "content": "x"}, {"content": "x", "role": "user"}):
            await calls.complete(replace(REQUEST, messages=[message]), KEY)
    assert len(model.asked) == 1


@pytest.mark.parametrize(
    "error",
    [ModelUnavailable("timeout", "too slow"), ModelRefused("context", "too long", 400), RunStopped("key", "no", 401)],
)
async def test_a_failure_is_kept_and_never_served(places: Places, error: Any) -> None:
    """The caller gets the error, the reader a record of it, and the next caller a new try."""
    async with places() as (store, blobs):
        calls = recorded(Counting(error), store, blobs)
        with pytest.raises(type(error)) as caught:
            await calls.complete(REQUEST, KEY)
        assert caught.value is error
        answer = await calls.complete(REQUEST, KEY)
        assert answer.content == "answer 2"
        failure, success = await calls_of(store, RUN)
        assert (failure.error, failure.reason, failure.finish_reason) == (error.kind, error.reason, "")
        assert (failure.error_class, failure.status) == (type(error).__name__, error.status)
        assert (success.error, success.finish_reason) == ("", "tool_calls")
        assert await answer_of(blobs, RUN, failure) is None
        assert await messages_of(blobs, RUN, failure) == REQUEST.messages


async def test_every_failure_has_its_record(places: Places) -> None:
    """Two failures of one call are two records."""
    async with places() as (store, blobs):
        calls = recorded(Counting(ModelUnavailable("a", ""), ModelUnavailable("b", "")), store, blobs)
        for _ in range(2):
            with pytest.raises(ModelUnavailable):
                await calls.complete(REQUEST, KEY)
        assert [one.error for one in await calls_of(store, RUN)] == ["a", "b"]


async def test_a_record_tells_the_call(places: Places) -> None:
    """Role, model, usage, latency in ms, finish reason; messages and answer as they were."""
    async with places() as (store, blobs):
        calls = RecordedCalls(Counting(), store, blobs, FakeClock(), {"executor": "m"})
        answer = await calls.complete(REQUEST, replace(KEY, retry=1))
        [record] = await calls_of(store, RUN)
        assert (record.id, record.role) == ("episode-1/execution/1.1", "executor")
        assert (record.asked, record.model) == ("m", "m-1")
        assert (record.usage, record.latency_ms, record.finish_reason) == (answer.usage, 1, "tool_calls")
        assert await messages_of(blobs, RUN, record) == REQUEST.messages
        assert await answer_of(blobs, RUN, record) == answer
        assert json.loads(await blobs.get(RUN, record.request)) == {"schema": None, "tools": []}


async def test_calls_are_told_in_order_and_by_stream(places: Places) -> None:
    """As they were made; `episode-1` does not include `episode-10`."""
    async with places() as (store, blobs):
        calls = recorded(Counting(), store, blobs)
        for stream in ("episode-10", "episode-1", "episode-2", "episode-1"):
            made = len(await calls_of(store, RUN))
            await calls.complete(REQUEST, replace(KEY, stream=StreamId(stream), ordinal=made + 1))
        told = [one.id for one in await calls_of(store, RUN)]
        assert told == [
            "episode-10/execution/1",
            "episode-1/execution/2",
            "episode-2/execution/3",
            "episode-1/execution/4",
        ]
        assert [one.id for one in await calls_of(store, RUN, "episode-1")] == [told[1], told[3]]
        assert await calls_of(store, OTHER) == []


async def test_a_record_and_its_bodies_are_one_command(own_redis_server: Any, redis_prefix: str) -> None:
    """Beside sums on the same server; bodies that the server has lost meanwhile come with the next record."""
    async with connected(own_redis_server.url) as redis:  # it counts whosever commands
        store, blobs = CountedCalls(redis, redis_prefix, "here"), RedisBlobs(redis, redis_prefix, "here")

        async def scripts() -> int:
            return int((await redis.info("commandstats"))["cmdstat_evalsha"]["calls"])

        await recorded(Counting(), store, blobs).complete(REQUEST, KEY)
        before = await scripts()
        await recorded(Counting(), store, blobs).complete(REQUEST, replace(KEY, ordinal=2))
        assert await scripts() == before + 1
        await blobs.delete(RUN)
        await recorded(Counting(), store, blobs).complete(REQUEST, replace(KEY, ordinal=3))
        assert await scripts() == before + 3
        record = (await calls_of(store, RUN))[-1]
        assert record.id == "episode-1/execution/3"
        assert await request_of(blobs, RUN, record) == REQUEST
        again = Counting()
        await recorded(again, store, blobs).complete(REQUEST, replace(KEY, ordinal=3))
        assert again.asked == []


async def test_a_message_is_stored_once_per_run() -> None:
    """A history that grows by one message a call adds that message, its list of hashes and the answer."""
    store, blobs = MemoryCalls(), Memory()
    calls = recorded(Counting(), store, blobs)
    history = [{"role": "user", "content": f"{n}"} for n in range(6)]
    await calls.complete(replace(REQUEST, messages=history[:5]), KEY)
    before = len(blobs.bodies)
    await calls.complete(replace(REQUEST, messages=history), replace(KEY, ordinal=2))
    assert len(blobs.bodies) == before + 3
    bodies = list(blobs.bodies.values())
    assert all(bodies.count(canonical(message)) == 1 for message in history)


async def test_a_paid_answer_is_stored_though_the_caller_stops() -> None:
    """Cancelled while its answer is being stored, a call is known to whoever goes on."""
    store, blobs = MemoryCalls(), Memory()
    async with anyio.create_task_group() as tasks:
        blobs.on_put = tasks.cancel_scope.cancel
        tasks.start_soon(recorded(Counting(), store, blobs).complete, REQUEST, KEY)
    again = Counting()
    assert (await recorded(again, store, blobs).complete(REQUEST, KEY)).content == "answer 1"
    assert again.asked == []


class Hanging:
    """A model that never answers; whether it has sent anything is as told."""

    def __init__(self, transcripts: Transcripts, *, sends: bool) -> None:
        self._transcripts, self._sends = transcripts, sends
        self.asked = anyio.Event()

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        self.asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            if self._sends:
                self._transcripts.put(key, Transcript(sent={"model": "m"}, before=["unavailable: 503"]))
        raise AssertionError


@pytest.mark.parametrize("sends", [True, False])
async def test_a_call_that_was_given_up_is_told(places: Places, sends: bool) -> None:
    """Cancelled once something was sent, a call is recorded as failed; before that, it is none."""
    transcripts = Transcripts()
    async with places() as (store, blobs):
        hanging = Hanging(transcripts, sends=sends)
        model = RecordedCalls(hanging, store, blobs, FakeClock(), transcripts=transcripts)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(model.complete, REQUEST, KEY)
            await hanging.asked.wait()
            tasks.cancel_scope.cancel()
        told = [(one.id, one.error, one.requests) for one in await calls_of(store, RUN)]
        assert told == ([(KEY.id, "cancelled", 2)] if sends else [])
        assert (await recorded(Counting(), store, blobs).complete(REQUEST, KEY)).content == "answer 1"


async def test_a_store_that_hangs_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is not kept for ever."""

    class Stuck(MemoryCalls):
        async def put(self, run: RunId, field: str, record: bytes) -> bytes:
            await anyio.sleep_forever()
            raise AssertionError

    monkeypatch.setattr(module, "_STORE_S", 0.05)
    with pytest.raises(Unreachable, match="episode-1/execution/1"):
        await recorded(Counting(), Stuck(), Memory()).complete(REQUEST, KEY)


async def test_a_question_that_json_has_no_form_for_is_refused() -> None:
    """Nothing is asked and nothing written."""
    store, model = MemoryCalls(), Counting()
    with pytest.raises(ModelRefused, match="JSON"):
        await recorded(model, store, Memory()).complete(replace(REQUEST, schema={"default": float("inf")}), KEY)
    assert (model.asked, await store.all(RUN)) == ([], {})


async def test_bodies_are_there_before_the_record() -> None:
    """Whoever finds a record finds what it names: a store that fails on a body leaves no record."""
    store = MemoryCalls()
    with pytest.raises(OSError, match="No space"):
        await recorded(Counting(), store, Memory(refuses=b"answer 1")).complete(REQUEST, KEY)
    assert await store.all(RUN) == {}


async def test_a_body_that_is_gone_is_missed_by_name(places: Places) -> None:
    """Not asked again behind the log's back: the log may already hold what followed from the lost answer."""
    async with places() as (store, blobs):
        model = Counting()
        calls = recorded(model, store, blobs)
        await calls.complete(REQUEST, KEY)
        [record] = await calls_of(store, RUN)
        await blobs.delete(RUN)
        with pytest.raises(MissingBlob, match=record.answer):
            await calls.complete(REQUEST, KEY)
        with pytest.raises(MissingBlob, match=record.answer):
            await answer_of(blobs, RUN, record)
        with pytest.raises(MissingBlob, match=record.messages):
            await messages_of(blobs, RUN, record)
    assert len(model.asked) == 1


@pytest.mark.parametrize("written", [b"", b"{", b"[]", b'{"id": 1}', b"\xff"])
async def test_a_record_that_cannot_be_read_is_named(places: Places, written: bytes) -> None:
    """By the id of its call, to the caller and to the reader."""
    async with places() as (store, blobs):
        await store.put(RUN, f"{KEY.id} {sha256(canonical(REQUEST)).hexdigest()}", written)
        model = Counting()
        with pytest.raises(UnreadableCall, match=KEY.id):
            await recorded(model, store, blobs).complete(REQUEST, KEY)
        with pytest.raises(UnreadableCall, match=KEY.id):
            await calls_of(store, RUN)
    assert model.asked == []


async def test_an_answer_that_cannot_be_read_is_named(places: Places) -> None:
    """A body of another format, and a record without one in the place of an answer."""
    async with places() as (store, blobs):
        calls = recorded(Counting(), store, blobs)
        await calls.complete(REQUEST, KEY)
        [record] = await calls_of(store, RUN)
        odd = replace(record, answer=await blobs.put(RUN, b'{"content": 3}'))
        with pytest.raises(UnreadableCall, match=KEY.id):
            await answer_of(blobs, RUN, odd)
        second = replace(KEY, ordinal=2)
        field = f"{second.id} {record.sha256}"
        await store.put(RUN, field, msgspec.json.encode(replace(record, id=second.id, answer="")))
        with pytest.raises(UnreadableCall, match="names no answer"):
            await calls.complete(REQUEST, second)


async def test_the_first_writer_of_a_field_wins(places: Places) -> None:
    """`put` answers with what is stored; runs are apart."""
    async with places() as (store, _):
        assert await store.get(RUN, "f") is None
        assert await store.put(RUN, "f", b"1") == b"1"
        assert await store.put(RUN, "f", b"2") == b"1"
        assert await store.put(OTHER, "f", b"3") == b"3"
        assert await store.get(RUN, "f") == b"1"
        assert await store.all(RUN) == {"f": b"1"}


async def test_a_key_of_another_type_is_our_error(redis_server: Any, redis_prefix: str) -> None:
    """Not the vendor's."""
    async with connected(redis_server.url) as redis:
        store = RedisCalls(redis, redis_prefix, "here")
        await redis.set(f"{redis_prefix}:{{{RUN}}}:calls", "x")
        for asked in (store.get(RUN, "f"), store.put(RUN, "f", b"1"), store.all(RUN)):
            with pytest.raises(WrongType):
                await asked


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (TokenUsage(prompt_tokens=1000, completion_tokens=10), {"cost_usd": 0.00102}),
        (TokenUsage(prompt_tokens=1000, completion_tokens=10, cached_tokens=600), {"cost_usd": 0.00048}),
        (
            TokenUsage(estimated_prompt_tokens=1000, completion_tokens=10), {"cost_usd": 0.00102, "estimated": True},
        ),
        (TokenUsage(prompt_tokens=1000), {}),
    ],
    ids=["counted", "cached ones are cheaper", "estimated", "nobody knows"],
)  # fmt: skip
async def test_a_calls_line_says_what_it_cost(usage: TokenUsage, told: dict[str, Any]) -> None:
    """Where the model has a price and somebody knows the tokens; never 0 for what is not known."""

    class Answering:
        async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
            return ChatAnswer(content="a", tool_calls=[], finish_reason="stop", usage=usage, model="m")

    price = Price(input=1.0, output=2.0, cached=0.1)
    lines: list[Any] = []
    for prices in ({"executor": price}, {"gate": price}):
        with capture_logs() as found:
            await RecordedCalls(Answering(), MemoryCalls(), Memory(), FakeClock(), {}, prices).complete(REQUEST, KEY)  # type: ignore[arg-type]  # roles as text
        lines += [{name: line[name] for name in ("cost_usd", "estimated") if name in line} for line in found]
    assert lines == [told, {}]


async def test_records_keep_their_form() -> None:
    """What earlier runs have stored is read: the record's JSON is a contract."""
    written = (
        b'{"id":"episode-1/gate/1","role":"gate","model":"m","usage":{"prompt_tokens":1,"completion_tokens":null,'
        b'"cached_tokens":null},"latency_ms":5,"finish_reason":"stop","messages":"a","request":"b","answer":"c",'
        b'"sha256":"d","at":"2026-01-01T00:00:00.000000Z","error":"","reason":""}'
    )
    store = MemoryCalls()
    await store.put(RUN, "episode-1/gate/1 d", written)
    [record] = await calls_of(store, RUN)
    assert record == CallRecord(
        id="episode-1/gate/1", role="gate", model="m", usage=TokenUsage(prompt_tokens=1), latency_ms=5,
        finish_reason="stop", messages="a", request="b", answer="c", sha256="d", at="2026-01-01T00:00:00.000000Z",
    )  # fmt: skip
    counted = b',"reasoning_tokens":null,"estimated_prompt_tokens":null,"estimated_completion_tokens":null}'
    more = (
        b',"error_class":"","status":null,"asked":"","fingerprint":"","flags":[],"left_out":0,"sent_messages":"",'
        b'"sent":"","received":"","requests":0,"before":[],"first_byte_ms":null}'
    )
    assert msgspec.json.encode(record) == written[:-1].replace(b"}", counted, 1) + more
