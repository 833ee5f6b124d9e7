"""Replies that never come: the command was carried out, the client asks again, and nothing is there twice."""

import json
import re
from collections.abc import Callable
from hashlib import sha1
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis import Redis

from events.codec import content_sha256
from events.errors import Mismatch
from events.ids import PROJECTOR_STREAM, RUN_STREAM, Position, RunId, Version, episode_stream
from events.log import Draft, Recorded
from events.verify import Verifier
from infra.archive_index import ARCHIVED_ROWS
from infra.blobs import RedisBlobs, get_messages, put_messages
from infra.calls import RecordedCalls, RedisCalls, calls_of
from infra.clock import SystemClock
from infra.log_import import import_log
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.rq_keys import QUEUES
from infra.rq_queue import RqQueue
from infra.segments import SegmentLog
from runtime.ports import Appended, CallKey, ChatAnswer, ChatRequest, EventLog, Job, Origin, TokenUsage

GOLDEN = Path(__file__).parent.parent / "golden" / "schema-1" / "outcome.jsonl"
START = Position(0)


class _CountedModel:
    """A model that counts how often each call is paid for."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        self.paid.append(key.id)
        return ChatAnswer(
            content=f"answer to {request.messages[0]['content']}", tool_calls=[], finish_reason="stop",
            usage=TokenUsage(), model="m",
        )  # fmt: skip


class _Run:
    """A run of two episodes as coordinator and workers go through it, with every event of a real one."""

    def __init__(self, redis: Any, queue: RqQueue, prefix: str, events: list[Recorded]) -> None:
        self.events, self._queue = events, queue
        self.id = events[0].run
        self.store = RedisLogStore(redis, prefix, SystemClock(), "here")
        self.log: EventLog = self.store.open(self.id)
        self.blobs = RedisBlobs(redis, prefix, "here")
        self.model = _CountedModel()
        self.calls = RedisCalls(redis, prefix, "here")
        self._model = RecordedCalls(self.model, self.calls, self.blobs, SystemClock())

    async def go(self) -> None:
        """Once through: a coordinator's part, two jobs an episode, and what readers ask."""
        await self._append(RUN_STREAM, lambda one: one.kind == "run_started")
        for t in (0, 1):
            stream = episode_stream(t)
            await self._queue.enqueue(Job(kind="act", run=self.id, episode=t), 60)
            await self._ask(t, "planning")
            await self._append(stream, lambda one: one.version <= 3)
            await self.blobs.put(self.id, f"trajectory {t}".encode())
            await self._append(stream, lambda one: one.version in (4, 5))
            assert await self.log.wait(START, 1)
            await self._queue.enqueue(Job(kind="diagnose", run=self.id, episode=t), 60)
            assert [one.kind for one in await self.log.read_stream(stream)][:5] == [
                "retrieved", "planned", "retrieved", "executed", "scored",
            ]  # fmt: skip
            await self._ask(t, "gate")
            await self._append(stream, lambda one: one.version == 6)
            await self._append(PROJECTOR_STREAM, lambda one, t=t: one.version == t + 1)
            jobs = [Job(kind=kind, run=self.id, episode=t) for kind in QUEUES]
            assert await self._queue.lost(jobs) == []
        assert (await self.log.head(), len(await self.log.index())) == (len(self.events), 4)

    async def _append(self, stream: str, belongs: Callable[[Recorded], bool]) -> None:
        mine = [one for one in self.events if one.stream == stream and belongs(one)]
        drafts = [
            Draft(kind=one.kind, schema=one.schema, data=one.data, sha256=content_sha256(one.kind, one.data))
            for one in mine
        ]
        done = await self.log.append(mine[0].stream, Version(mine[0].version), drafts, Origin(cause=None))
        assert isinstance(done, Appended)

    async def _ask(self, t: int, stage: str) -> None:
        messages = [{"role": "user", "content": f"{stage} of {t}"}]
        assert await get_messages(self.blobs, self.id, await put_messages(self.blobs, self.id, messages)) == messages
        key = CallKey(run=self.id, stream=episode_stream(t), stage=stage, ordinal=1)
        answer = await self._model.complete(ChatRequest(role="planner", messages=messages), key)
        assert answer.content == f"answer to {stage} of {t}"


@pytest.fixture
async def events() -> list[Recorded]:
    """The first two episodes of a golden log, in their order."""
    return await SegmentLog(GOLDEN).read(START, 15)


def _sha(script: str) -> str:
    text = ARCHIVED_ROWS + (files("infra") / script).read_text()
    return sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]


async def test_a_lost_reply_of_each_kind_of_command_duplicates_nothing(
    lossy_proxy: Any, each_redis_server: Any, redis_prefix: str, events: list[Recorded]
) -> None:
    """Two episodes, twice, each kind of reply lost once: every event, body, call and job is there exactly once."""
    async with connected(lossy_proxy.url) as redis, RqQueue(lossy_proxy.url, redis_prefix) as queue:
        run = _Run(redis, queue, redis_prefix, events)
        await run.go()
        assert await run.store.runs() == [run.id]
        await run.go()
        found = [one async for page in run.log.pages(START) for one in page]

    assert [(one.stream, one.version, one.kind, one.data) for one in found] == [
        (one.stream, one.version, one.kind, one.data) for one in events
    ]
    assert [one.position for one in found] == list(range(1, len(events) + 1))
    verifier = Verifier()
    for one in found:
        verifier.feed(one)
    assert verifier.done().versions == 2
    assert run.model.paid == ["episode-0/planning/1", "episode-0/gate/1", "episode-1/planning/1", "episode-1/gate/1"]
    _check_stored(each_redis_server.url, redis_prefix, run.id)
    _check_lost(lossy_proxy.lost)


def _check_stored(url: str, prefix: str, run: RunId) -> None:
    """One entry of a stream per event, one of a queue per job, asked of the server itself."""
    with Redis.from_url(url) as redis:
        for kind, name in QUEUES.items():
            entries = redis.lrange(f"{prefix}:rq:queue:{name}", 0, -1)
            assert entries == [f"{kind}-{run}-{t}-1".encode() for t in (0, 1)]
        assert redis.xlen(f"{prefix}:{{{run}}}:log") == 15
        assert redis.hlen(f"{prefix}:{{{run}}}:calls") == 4


def _check_lost(lost: list[str]) -> None:
    """Every kind of command that the product sends in a run was among them, once."""
    assert len(lost) == len(set(lost))
    expected = {
        f"EVALSHA {_sha('append.lua')} log", f"EVALSHA {_sha('read_stream.lua')} log", "XRANGE log", "XREAD log",
        "HGET index", "HGETALL index", "ZADD runs", "ZRANGE runs", "EXISTS log", "HSETNX blobs", "HGET blobs",
        "HSETNX calls", "HGET calls",
    }  # fmt: skip
    assert expected <= set(lost)
    # rq enqueues with a script of its own.
    assert any(re.fullmatch("EVALSHA [0-9a-f]{8} job", kind) for kind in lost)
    # And many bodies are stored with one.
    assert any(re.fullmatch("EVALSHA [0-9a-f]{8} blobs", kind) for kind in lost)


async def test_calls_are_listed_once(lossy_proxy: Any, redis_prefix: str, events: list[Recorded]) -> None:
    """What readers ask only after a run survives a lost reply too."""
    async with connected(lossy_proxy.url) as redis, RqQueue(lossy_proxy.url, redis_prefix) as queue:
        run = _Run(redis, queue, redis_prefix, events)
        await run.go()
        assert sorted(one.id for one in await calls_of(run.calls, run.id)) == [
            "episode-0/gate/1", "episode-0/planning/1", "episode-1/gate/1", "episode-1/planning/1",
        ]  # fmt: skip
        assert len(await run.blobs.hashes(run.id)) == len(set(await run.blobs.hashes(run.id))) > 0
        exported = [one.data async for page in run.log.pages(START) for one in page]
        assert [json.loads(one) for one in exported] == [json.loads(one.data) for one in events]
        assert await queue.forget(run.id) == 4
        assert (await run.store.delete(run.id))["events"] == 15
        assert await run.store.runs() == []
    assert {"HGETALL calls", "HKEYS blobs"} <= set(lossy_proxy.lost)


async def test_a_restored_log_is_there_once(lossy_proxy: Any, redis_prefix: str) -> None:
    """An import whose replies are lost, the one to its last step too, is whole; asked again, it is there already."""
    async with connected(lossy_proxy.url) as redis:
        store = RedisLogStore(redis, redis_prefix, SystemClock(), "here")
        assert (await import_log(GOLDEN, store)).written
        assert not (await import_log(GOLDEN, store)).written
        log = SegmentLog(GOLDEN)
        assert await store.open(log.run).read(START, 100) == await log.read(START, 100)
    assert len([kind for kind in lossy_proxy.lost if re.fullmatch("EVALSHA [0-9a-f]{8} restored", kind)]) == 2


async def test_two_restores_of_one_run_never_mix(each_redis_server: Any, redis_prefix: str) -> None:
    """Whoever is first has the run; the other is told, and what is there is one of the two logs."""
    async with connected(each_redis_server.url) as redis:
        store = RedisLogStore(redis, redis_prefix, SystemClock(), "here")
        logs = [SegmentLog(GOLDEN), SegmentLog(GOLDEN.with_name("credit.jsonl"))]
        told: list[str] = []

        async def restore(log: SegmentLog) -> None:
            try:
                await import_log(log.path, store, run=RunId("r"))
            except Mismatch as error:
                told.append(str(error))

        for _ in range(5):
            async with anyio.create_task_group() as tasks:
                for log in logs:
                    tasks.start_soon(restore, log)
            found = [one.data for one in await store.open(RunId("r")).read(START, 100)]
            assert found in [[one.data for one in await log.read(START, 100)] for log in logs]
            keys = [key async for key in redis.scan_iter(match=f"{redis_prefix}:*")]
            assert len(keys) == 4
            assert [await redis.ttl(key) for key in keys] == [-1, -1, -1, -1]
            await store.delete(RunId("r"))
    assert len(told) == 5
