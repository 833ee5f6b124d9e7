"""Budgets: what is recorded counts once, what is reserved bounds what is made, and a lost sum is made again."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
import pytest
from redis.asyncio import Redis

from events.ids import RunId, StreamId
from infra.blobs import FolderBlobs
from infra.calls import CallRecord, RecordedCalls, RedisCalls
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.spending import CountedCalls, Ledger, RoleSpent, SpendingModel, Spent
from infra.transcripts import Transcript, Transcripts
from runtime.errors import ModelUnavailable, RunSpent
from runtime.ports import CallKey, ChatAnswer, ChatModel, ChatRequest, Role, TokenUsage
from runtime.settings import Budget, Price

RUN = RunId("r")
MODELS: dict[Role, str] = {"planner": "p", "executor": "e", "gate": "g"}
PRICES = {
    "p": Price(input=1.0, output=2.0),
    "e": Price(input=10.0, output=20.0, cached=1.0),
    "g": Price(input=0, output=0),
}
USAGE = TokenUsage(prompt_tokens=100, completion_tokens=10)


def key(ordinal: int, stream: str = "episode-1", stage: str = "execution") -> CallKey:
    return CallKey(run=RUN, stream=StreamId(stream), stage=stage, ordinal=ordinal)


def asking(role: Role = "executor", said: str = "hello") -> ChatRequest:
    return ChatRequest(role=role, messages=[{"role": "user", "content": said}])


class Answering:
    """A model that counts who asks, and answers once `together` have asked."""

    def __init__(self, usage: TokenUsage = USAGE, *, together: int = 1, error: Exception | None = None) -> None:
        self.asked: list[str] = []
        self.begun = anyio.Event()
        self._usage, self._error = usage, error
        self._together, self._here = together, anyio.Event()

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        self.asked.append(key.id)
        self.begun.set()
        if len(self.asked) >= self._together:
            self._here.set()
        await self._here.wait()
        if self._error is not None:
            raise self._error
        return ChatAnswer(content="a", tool_calls=[], finish_reason="stop", usage=self._usage, model="m")


async def cancelled_once_asked(model: ChatModel, asked: Answering) -> None:
    """A call that is under way when its worker is stopped."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(model.complete, asking(), key(1))
        await asked.begun.wait()
        tasks.cancel_scope.cancel()


@dataclass(frozen=True)
class Wired:
    """A model that leaves word of each call, as one behind a wire does."""

    model: ChatModel
    transcripts: Transcripts

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        try:
            return await self.model.complete(request, key)
        finally:
            self.transcripts.put(key, Transcript(sent={}))


@dataclass(frozen=True)
class Place:
    """A run's calls and what they came to."""

    redis: Redis
    prefix: str
    calls: CountedCalls
    ledger: Ledger
    blobs: FolderBlobs

    def worker(self, model: ChatModel, budget: Budget) -> RecordedCalls:
        """What one worker process asks."""
        longest_s: dict[Role, float] = dict.fromkeys(MODELS, 60.0)
        transcripts = Transcripts()
        spending = SpendingModel(Wired(model, transcripts), self.ledger, budget, MODELS, longest_s, transcripts)
        return RecordedCalls(spending, self.calls, self.blobs, SystemClock(), transcripts=transcripts)

    def key(self, name: str) -> str:
        return f"{self.prefix}:{{{RUN}}}:{name}"


@pytest.fixture
def there(each_redis_server: Any, redis_prefix: str, tmp_path: Any) -> Callable[[], Any]:
    """Opens the place under test."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Place]:
        async with connected(each_redis_server.url) as redis:
            yield Place(
                redis, redis_prefix, CountedCalls(redis, redis_prefix, "here"), Ledger(redis, redis_prefix, "here"),
                FolderBlobs(tmp_path),
            )  # fmt: skip

    return opened


async def test_no_more_calls_are_made_than_allowed(there: Any) -> None:
    """Sixteen at once over four workers: exactly ten are asked, the others are told that the budget is spent."""
    async with there() as place:
        model = Answering(together=10)
        workers = [place.worker(model, Budget(max_calls=10)) for _ in range(4)]
        told: list[RunSpent] = []

        async def ask(number: int) -> None:
            try:
                await workers[number % 4].complete(asking(), key(number))
            except RunSpent as spent:
                told.append(spent)

        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                for number in range(16):
                    tasks.start_soon(ask, number)
        assert (len(model.asked), len(told)) == (10, 6)
        assert str(told[0]) == "the budget is spent: 10 of 10 calls (max_calls)"
        spent = await place.ledger.spent(RUN)
        assert spent == Spent(
            calls=10, roles={"executor": RoleSpent(calls=10, prompt_tokens=1000, completion_tokens=100)}, unknown=0
        )
        assert await place.redis.zcard(place.key("spending")) == 0
        with pytest.raises(RunSpent):
            await workers[0].complete(asking(), key(99))
        # What was answered before is no call, whatever the budget.
        await workers[0].complete(asking(), key(int(model.asked[0].rpartition("/")[2])))
        assert len(model.asked) == 10


async def test_a_higher_bound_goes_on(there: Any) -> None:
    """And a lower one stops at once."""
    async with there() as place:
        for number in (1, 2):
            await place.worker(Answering(), Budget(max_calls=2)).complete(asking(), key(number))
        for budget in (Budget(max_calls=2), Budget(max_calls=1)):
            with pytest.raises(RunSpent):
                await place.worker(Answering(), budget).complete(asking(), key(3))
        await place.worker(Answering(), Budget(max_calls=3)).complete(asking(), key(3))
        assert (await place.ledger.spent(RUN)).calls == 3


async def test_a_call_made_twice_counts_once(there: Any) -> None:
    """Two workers that ask the same at once pay twice, and one record is kept."""
    async with there() as place:
        model = Answering(together=2)
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(place.worker(model, Budget(max_calls=1)).complete, asking(), key(1))
        assert (await place.ledger.spent(RUN)).calls == 1
        assert await place.redis.hlen(place.key("calls")) == 1


async def test_tokens_go_over_by_what_is_under_way(there: Any) -> None:
    """The bound is looked at before a call; those under way are finished and counted."""
    async with there() as place:
        model, budget = Answering(together=3), Budget(max_tokens=100)
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(place.worker(model, budget).complete, asking(), key(number))
        with pytest.raises(RunSpent, match="the budget is spent: 330 of 100 tokens"):
            await place.worker(model, budget).complete(asking(), key(9))
        assert len(model.asked) == 3


async def test_cost_counts_by_role_and_what_was_cached(there: Any) -> None:
    """Each role's model has its price; cached tokens have their own, which is the prompt's where none is given."""
    async with there() as place:
        usage = TokenUsage(prompt_tokens=1000, completion_tokens=100, cached_tokens=600)
        free = Budget(max_cost=1e9, prices=PRICES)
        for ordinal, role in enumerate(MODELS):
            await place.worker(Answering(usage), free).complete(asking(role), key(ordinal))
        planner, executor = (1000 * 1 + 100 * 2) / 1e6, (400 * 10 + 600 * 1 + 100 * 20) / 1e6
        spent = await place.ledger.spent(RUN)
        assert spent.cost(MODELS, free) == pytest.approx(planner + executor)
        assert spent.tokens == 3300
        with pytest.raises(RunSpent, match=r"\$0\.0078 of \$0\.0078 \(max_cost"):
            await place.worker(Answering(), Budget(max_cost=0.0078, prices=PRICES)).complete(asking(), key(9))
        await place.worker(Answering(), Budget(max_cost=0.0079, prices=PRICES)).complete(asking(), key(9))
        assert spent.cost({**MODELS, "executor": "unpriced"}, free) is None


async def test_estimates_count_and_what_nobody_knows_is_said(there: Any) -> None:
    """Where an endpoint does not count, our estimate does; an answer without either is counted as unknown."""
    async with there() as place:
        estimated = TokenUsage(estimated_prompt_tokens=70, completion_tokens=5)
        for ordinal, usage in enumerate((estimated, TokenUsage(), TokenUsage(prompt_tokens=1))):
            await place.worker(Answering(usage), Budget()).complete(asking("gate"), key(ordinal))
        spent = await place.ledger.spent(RUN)
        assert spent.roles == {"gate": RoleSpent(calls=3, prompt_tokens=71, completion_tokens=5)}
        assert spent.unknown == 2


async def test_a_failed_call_is_a_call(there: Any) -> None:
    """It was made; what it came to is what was said, which is nothing."""
    async with there() as place:
        failing = Answering(error=ModelUnavailable("timeout", "too slow"))
        for _ in range(2):
            with pytest.raises(ModelUnavailable):
                await place.worker(failing, Budget(max_calls=2)).complete(asking(), key(1))
        with pytest.raises(RunSpent):
            await place.worker(failing, Budget(max_calls=2)).complete(asking(), key(1))
        assert len(failing.asked) == 2
        assert await place.ledger.spent(RUN) == Spent(calls=2, roles={"executor": RoleSpent(calls=2)})


async def test_a_call_that_asked_nobody_costs_nothing(there: Any) -> None:
    """Whether its answer was played from a recording or it was fit for no request."""
    async with there() as place:
        played = RecordedCalls(Answering(), place.calls, place.blobs, SystemClock())
        for number in range(3):
            await played.complete(asking(), key(number))
        assert await place.ledger.spent(RUN) == Spent()
        await place.redis.delete(place.key("spent"))
        await place.worker(Answering(), Budget(max_calls=1)).complete(asking(), key(4))
        assert (await place.ledger.spent(RUN)).calls == 1


async def test_a_call_cancelled_before_it_asked_gives_its_place_back(there: Any) -> None:
    """Nobody will record it, so it was none."""
    async with there() as place:
        budget = Budget(max_calls=1)
        longest_s: dict[Role, float] = dict.fromkeys(MODELS, 60.0)
        asked = Answering(together=2)
        await cancelled_once_asked(SpendingModel(asked, place.ledger, budget, MODELS, longest_s, Transcripts()), asked)
        assert await place.redis.zcard(place.key("spending")) == 0
        await place.worker(Answering(), budget).complete(asking(), key(2))


async def test_a_call_cancelled_after_it_asked_is_a_call(there: Any) -> None:
    """Its endpoint may want to be paid: it is recorded, and no other takes its place in between."""
    async with there() as place:
        budget = Budget(max_calls=1)
        asked = Answering(together=2)
        await cancelled_once_asked(place.worker(asked, budget), asked)
        assert await place.redis.zcard(place.key("spending")) == 0
        assert (await place.ledger.spent(RUN)).calls == 1
        with pytest.raises(RunSpent):
            await place.worker(Answering(), budget).complete(asking(), key(2))


async def test_a_call_that_waits_long_for_its_turn_keeps_its_place(there: Any) -> None:
    """It is reserved anew while it is under way; one that is not reserved any more is not by that."""
    async with there() as place:
        budget = Budget(max_calls=1)
        await place.ledger.reserve(RUN, key(1).id, budget, MODELS, 10.0)
        before = await place.redis.zscore(place.key("spending"), key(1).id)
        await place.ledger.renew(RUN, key(1).id, 1000.0)
        await place.ledger.renew(RUN, key(2).id, 1000.0)
        assert await place.redis.zscore(place.key("spending"), key(1).id) > before + 900_000
        assert await place.redis.zcard(place.key("spending")) == 1


async def test_a_dead_workers_call_can_be_made_again(there: Any) -> None:
    """Its reservation holds the place against others until it expires, and never against the same call."""
    async with there() as place:
        budget = Budget(max_calls=1)
        await place.ledger.reserve(RUN, key(1).id, budget, MODELS, 60.0)
        with pytest.raises(RunSpent):
            await place.worker(Answering(), budget).complete(asking(), key(2))
        await place.worker(Answering(), budget).complete(asking(), key(1))
        assert (await place.ledger.spent(RUN)).calls == 1
        await place.ledger.reserve(RUN, "dead", Budget(max_calls=2), MODELS, -60.0)
        await place.worker(Answering(), Budget(max_calls=2)).complete(asking(), key(3))


async def test_a_lost_sum_is_made_again_from_the_records(there: Any) -> None:
    """Whoever needs it first sums them, while others record more."""
    async with there() as place:
        for number in range(5):
            await place.worker(Answering(), Budget()).complete(asking(), key(number))
        before = await place.ledger.spent(RUN)
        await place.redis.delete(place.key("spent"))
        assert await place.ledger.spent(RUN) == before
        budget = Budget(max_calls=12)
        model = Answering()
        told: list[RunSpent] = []

        async def ask(number: int) -> None:
            try:
                await place.worker(model, budget).complete(asking(), key(number))
            except RunSpent as spent:
                told.append(spent)

        async with anyio.create_task_group() as tasks:
            for number in range(5, 25):
                tasks.start_soon(ask, number)
        assert (len(model.asked), len(told)) == (7, 13)
        assert (await place.ledger.spent(RUN)).calls == 12
        assert await place.redis.hget(place.key("spent"), "calls") == b"12"


async def test_records_from_before_anybody_counted(there: Any) -> None:
    """A run of an earlier version, or an imported one, has its calls summed when a bound is set."""
    async with there() as place:
        plain = RedisCalls(place.redis, place.prefix, "here")
        record = CallRecord(
            id=key(1).id, role="planner", model="m", usage=USAGE, latency_ms=1, finish_reason="stop", messages="",
            request="", answer="", sha256="", at="", requests=1,
        )  # fmt: skip
        old = {name: value for name, value in msgspec.to_builtins(record).items() if name != "requests"}
        await plain.put(RUN, f"{key(1).id} a", msgspec.json.encode(old))
        await plain.put(RUN, f"{key(2).id} a", b"not a record")
        # Counted by nobody yet: it is summed with the others.
        await place.calls.put(RUN, f"{key(3).id} a", msgspec.json.encode(record))
        assert await place.redis.exists(place.key("spent")) == 0
        with pytest.raises(RunSpent, match="3 of 3 calls"):
            await place.worker(Answering(), Budget(max_calls=3)).complete(asking(), key(4))
        await place.worker(Answering(), Budget(max_calls=4)).complete(asking(), key(4))
        spent = await place.ledger.spent(RUN)
        assert (spent.calls, spent.roles["planner"].calls, spent.roles["executor"].calls, spent.unknown) == (4, 2, 1, 1)
        await place.calls.discard(RUN, [f"{key(3).id} a"])
        assert (await place.ledger.spent(RUN)).roles["planner"].calls == 1
