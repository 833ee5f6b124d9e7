"""CPU time of a process for one model call, 64 at once, beside the bare SDK on the same endpoint."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from itertools import count
from typing import Any

import anyio
from openai import AsyncOpenAI

from bench.measure import Row, Scale, Subject, compared, rounds
from bench.model_endpoint import ANSWER
from bench.server import server
from events.ids import RunId, StreamId
from infra.blobs import RedisBlobs
from infra.calls import RecordedCalls, RedisCalls
from infra.clock import SystemClock
from infra.openai_client import Clients
from infra.openai_model import OpenAIModel
from infra.redis_client import connected
from infra.transcripts import Transcripts
from runtime.ports import CallKey, ChatModel, ChatRequest
from runtime.settings import EndpointSettings, ModelSettings

AT_ONCE = 64
CALLS = 20
AT_MOST = 1.3
_GROUP = "model"
OURS = f"a call, {AT_ONCE} at once"
RECORDED = f"a call with its record in Redis, {AT_ONCE} at once"
BARE = "openai AsyncOpenAI"
#: what a gate reads, characters
_PROMPT = "The agent was asked to tidy the files of a project and says what it did. " * 80
_MESSAGES = [{"role": "system", "content": "You judge."}, {"role": "user", "content": _PROMPT}]


def rows(scale: Scale) -> Iterator[Row]:
    """Our whole client without a record and with one."""
    calls = scale.of(CALLS)
    with ExitStack() as stack:
        base_url = stack.enter_context(_endpoint())
        there = stack.enter_context(server())
        runner = stack.enter_context(asyncio.Runner())
        held = AsyncExitStack()
        stack.callback(lambda: runner.run(held.aclose()))
        asking = runner.run(_asking(held, base_url, there.url))
        subjects = [_subject(runner, what, ask, calls) for what, ask in asking.items()]
        found = rounds(subjects, scale.repeats)
    yield compared(_GROUP, found, OURS, BARE, at_most=AT_MOST, remark=f"answers of {len(ANSWER):,} characters")
    yield compared(_GROUP, found, RECORDED, BARE, remark="request and answer as blobs, and what went over the wire")


def _subject(runner: asyncio.Runner, what: str, ask: Callable[[], Awaitable[object]], calls: int) -> Subject:
    return Subject(what=what, run=lambda: runner.run(_all(ask, calls)), operations=AT_ONCE * calls)


@contextmanager
def _endpoint() -> Iterator[str]:
    """Its address."""
    command = [sys.executable, "-m", "bench.model_endpoint"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


async def _asking(held: AsyncExitStack, base_url: str, redis_url: str) -> dict[str, Callable[[], Awaitable[object]]]:
    """Name -> what makes one call."""
    bare = await held.enter_async_context(AsyncOpenAI(api_key="none", base_url=base_url, max_retries=0))
    redis = await held.enter_async_context(connected(redis_url))
    clock, transcripts, number = SystemClock(), Transcripts(), count()
    clients = Clients({}, clock, held)
    endpoint = EndpointSettings(base_url=base_url, api_key_env="")
    model = OpenAIModel({"gate": ModelSettings(model="free")}, {"gate": endpoint}, clients, clock)
    noting = OpenAIModel(
        {"gate": ModelSettings(model="free")}, {"gate": endpoint}, clients, clock, transcripts=transcripts
    )
    recorded = RecordedCalls(
        noting, RedisCalls(redis, "b", "here"), RedisBlobs(redis, "b", "here"), clock, transcripts=transcripts
    )
    request = ChatRequest(role="gate", messages=_MESSAGES)
    messages: Any = _MESSAGES

    def asked(one: ChatModel) -> Callable[[], Awaitable[object]]:
        def ask() -> Awaitable[object]:
            key = CallKey(run=RunId("b"), stream=StreamId(f"episode-{next(number)}"), stage="gate", ordinal=1)
            return one.complete(request, key)

        return ask

    def barely() -> Awaitable[object]:
        return bare.chat.completions.create(model="free", messages=messages, max_tokens=1024, temperature=0.0)

    return {BARE: barely, OURS: asked(model), RECORDED: asked(recorded)}


async def _all(ask: Callable[[], Awaitable[object]], calls: int) -> None:
    async def caller() -> None:
        for _ in range(calls):
            await ask()

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(caller)
