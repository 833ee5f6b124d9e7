"""What the calls of a run have cost, over all its workers, and the bounds of that.

A call is what is recorded as one: its answer with all tries, or that it failed; one that asked nobody costs nothing.
What it came to is counted in the same step that records it, so a call that is repeated after a crash counts once, and
the sum can be made again from the records. Before a call is made it is reserved, so that no more than `max_calls` are
ever made; tokens and cost are known afterwards only, and go beyond their bounds by what is under way then, at most.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any, cast, get_args

import anyio
import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from typing_extensions import override

from events.errors import ChimeError
from events.ids import RunId
from infra.blobs import PUT_BODIES, RedisBlobs
from infra.calls import RedisCalls
from infra.redis_client import Script, our_errors
from infra.transcripts import Transcripts
from runtime.beside import beside
from runtime.calls import call_usage
from runtime.errors import ModelRefused, ModelUnavailable, RunSpent, RunStopped, StoreAway
from runtime.ports import Blobs, CallKey, ChatAnswer, ChatModel, ChatRequest, Role, TokenUsage
from runtime.settings import Budget

_SPENDING = Script(PUT_BODIES + (files("infra") / "spending.lua").read_text())

_ROLES: tuple[Role, ...] = get_args(Role)

#: sums of a run's records that are tried before somebody else is left to do it: calls may be recorded meanwhile
_SUMS = 20
#: how long a reservation outlives the longest that its call may take, seconds: a worker that dies gives it back then
_GRACE_S = 60.0
#: how long giving one back may take, seconds
_RELEASE_S = 5.0


class RoleSpent(Struct, frozen=True, kw_only=True):
    """What one role's calls came to: counted by the endpoint, or estimated where it did not."""

    calls: int = 0
    prompt_tokens: int = 0
    #: of the prompts'
    cached_tokens: int = 0
    completion_tokens: int = 0


class Spent(Struct, frozen=True, kw_only=True):
    """What a run's calls came to, failed ones among them."""

    calls: int = 0
    roles: dict[Role, RoleSpent] = {}
    #: answers whose tokens nobody counted or estimated: they are in no sum
    unknown: int = 0

    @property
    def tokens(self) -> int:
        """Of prompts and answers."""
        return sum(one.prompt_tokens + one.completion_tokens for one in self.roles.values())

    def cost(self, models: Mapping[Role, str], budget: Budget) -> float | None:
        """USD; None where a role that has spent something has a model without a price."""
        total = 0.0
        for role, one in self.roles.items():
            price = budget.prices.get(models.get(role, ""))
            if price is not None:
                total += price.usd(one.prompt_tokens, one.completion_tokens, one.cached_tokens)
            elif one.prompt_tokens or one.completion_tokens:
                return None
        return total


class CountedCalls(RedisCalls):
    """`infra.calls.CallStore` that counts what is recorded in it, under `<prefix>:{<run>}:spent`."""

    @override
    async def put(self, run: RunId, field: str, record: bytes) -> bytes:
        """As `CallStore.put`."""
        with our_errors(self._where):
            reply = await _SPENDING.run(self._redis, _keys(self._prefix, run), _recording(field, record))
        return record if reply == b"ok" else cast("bytes", reply)

    @override
    async def put_with(self, run: RunId, field: str, record: bytes, bodies: Mapping[str, bytes], blobs: Blobs) -> bytes:
        """As `CallStore.put_with`; in one step where the bodies are kept on our server."""
        if not (isinstance(blobs, RedisBlobs) and blobs.on(self._redis)):
            return await super().put_with(run, field, record, bodies, blobs)
        keys, given = _keys(self._prefix, run), _recording(field, record)
        with our_errors(self._where):
            reply = await blobs.put_by(
                run, bodies, lambda key, given_bodies: _SPENDING.run(self._redis, [*keys, key], [*given, *given_bodies])
            )
        return record if reply == b"ok" else cast("bytes", reply)

    @override
    async def discard(self, run: RunId, fields: Collection[str]) -> None:
        """As `CallStore.discard`; what is left is summed when somebody asks."""
        await super().discard(run, fields)
        with our_errors(self._where):
            await self._redis.delete(_keys(self._prefix, run)[1])


class Ledger:
    """What runs have spent, on their server. Every method raises Unreachable where it does not answer."""

    def __init__(self, redis: Redis, prefix: str, where: str) -> None:
        self._redis, self._prefix, self._where = redis, prefix, where

    async def reserve(
        self, run: RunId, call: str, budget: Budget, models: Mapping[Role, str], longest_s: float
    ) -> None:
        """`call` may be made, and counts until it is recorded, released, or `longest_s` have gone by.

        Asked again for the same call, it counts once.

        Args:
            run: whose call.
            call: its id.
            budget: the bounds, with a price for each of `models` where cost is one.
            models: what each role asks.
            longest_s: the longest that the call may take, seconds.

        Raises:
            RunSpent: a bound is reached.
        """
        bounds = [budget.max_calls, budget.max_tokens, budget.max_cost]
        given = ["reserve", call, round(1000 * (longest_s + _GRACE_S)), *bounds, *_priced(budget, models)]
        while (reply := await self._asked(run, given)) == b"uncounted":
            await self._sum(run)
        if reply == b"ok":
            return
        _, what, spent = (one.decode() for one in cast("list[bytes]", reply))
        raise RunSpent(what, float(spent), getattr(budget, f"max_{what}"))

    async def renew(self, run: RunId, call: str, longest_s: float) -> None:
        """`call` is still under way, and counts for as long again, where it was reserved."""
        await self._asked(run, ["renew", call, round(1000 * (longest_s + _GRACE_S))])

    async def release(self, run: RunId, call: str) -> None:
        """`call` is not made, or nobody will record it."""
        await self._asked(run, ["release", call])

    async def spent(self, run: RunId) -> Spent:
        """What the run's calls came to so far."""
        _, spent, _ = _keys(self._prefix, run)
        with our_errors(self._where):
            counts = cast("dict[bytes, bytes]", await self._redis.hgetall(spent))
        if counts:
            return _spent({name.decode(): int(count) for name, count in counts.items()})
        return _spent(_summed(await self._records(run)))

    async def _sum(self, run: RunId) -> None:
        """What was recorded before anybody counted is counted.

        Raises:
            StoreAway: calls are recorded faster than they can be summed.
        """
        for _ in range(_SUMS):
            records = await self._records(run)
            if await self._asked(run, ["sum", len(records), *_flat(_summed(records))]) == b"ok":
                return
        raise StoreAway(f"the recorded calls of run {run} could not be summed: others are recorded all the time")

    async def _records(self, run: RunId) -> list[bytes]:
        return [*(await RedisCalls(self._redis, self._prefix, self._where).all(run)).values()]

    async def _asked(self, run: RunId, given: list[Any]) -> Any:
        with our_errors(self._where):
            return await _SPENDING.run(self._redis, _keys(self._prefix, run), given)


class SpendingModel:
    """A `ChatModel` around another one that is asked only within a run's budget; its answers are recorded outside."""

    def __init__(
        self,
        model: ChatModel,
        ledger: Ledger,
        budget: Budget,
        models: Mapping[Role, str],
        longest_s: Mapping[Role, float],
        transcripts: Transcripts | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            model: that is asked.
            ledger: where the run's calls are counted.
            budget: its bounds.
            models: what each role asks.
            longest_s: the longest that a call of each role may take, seconds.
            transcripts: where `model` leaves what went over the wire: such a call is recorded, however it ended.
        """
        self._model, self._ledger, self._budget = model, ledger, budget
        self._models, self._longest_s, self._transcripts = models, longest_s, transcripts or Transcripts()

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        """As `runtime.ports.ChatModel.complete`.

        Raises:
            RunSpent: a bound of the budget is reached, and the call was not made.
            StoreAway: where calls are counted does not answer.
        """
        longest_s = self._longest_s[request.role]
        await self._ledger.reserve(key.run, key.id, self._budget, self._models, longest_s)
        try:
            async with beside() as tasks:
                tasks.start_soon(self._renewed, key, longest_s)
                return await self._model.complete(request, key)
        except (ModelUnavailable, ModelRefused, RunStopped):
            raise  # recorded as failed, which ends the reservation
        except BaseException:
            if self._transcripts.has(key):
                raise  # asked and cancelled: recorded likewise
            # Where that fails, it ends by itself.
            with anyio.move_on_after(_RELEASE_S, shield=True), suppress(ChimeError):
                await self._ledger.release(key.run, key.id)
            raise

    async def _renewed(self, key: CallKey, longest_s: float) -> None:
        """While a call waits for its turn, which may be longer than it may take."""
        while True:
            await anyio.sleep(longest_s)
            # An outage need not end a call that is under way.
            with suppress(ChimeError):
                await self._ledger.renew(key.run, key.id, longest_s)


def _keys(prefix: str, run: RunId) -> list[str]:
    return [f"{prefix}:{{{run}}}:{name}" for name in ("calls", "spent", "spending")]


def _recording(field: str, record: bytes) -> list[Any]:
    """What the script is told of a record."""
    counts = _flat(_counts(record))
    return ["record", field, field.split(" ")[0], record, len(counts), *counts]


class _Told(Struct, frozen=True, kw_only=True):
    """What counts of an `infra.calls.CallRecord`."""

    role: str
    usage: TokenUsage
    error: str = ""
    #: absent in records from before they were counted
    requests: int | None = None


def _counts(written: bytes) -> Counter[str]:
    """What a record adds to the sums; a record that cannot be read is a call all the same."""
    try:
        record = msgspec.json.decode(written, type=_Told)
    except ValueError:
        return Counter(calls=1, unknown=1)
    if record.requests == 0:
        return Counter()  # answered from a recording, or fit for no request: nobody was asked
    usage, role = call_usage(record.usage), record.role
    prompt, completion = usage.prompt_estimate, usage.completion_estimate
    return Counter({
        "calls": 1,
        f"{role}:calls": 1,
        f"{role}:prompt": prompt or 0,
        f"{role}:cached": min(record.usage.cached_tokens or 0, prompt or 0),
        f"{role}:completion": completion or 0,
        # A call that failed came to what its endpoint said, which as a rule is nothing.
        "unknown": int(not record.error and (prompt is None or completion is None)),
    })  # fmt: skip


def _summed(records: Sequence[bytes]) -> Counter[str]:
    return sum(map(_counts, records), Counter[str]())


def _spent(counts: Mapping[str, int]) -> Spent:
    return Spent(
        calls=counts.get("calls", 0),
        roles={
            role: RoleSpent(
                calls=counts[f"{role}:calls"],
                prompt_tokens=counts.get(f"{role}:prompt", 0),
                cached_tokens=counts.get(f"{role}:cached", 0),
                completion_tokens=counts.get(f"{role}:completion", 0),
            )
            for role in _ROLES
            if counts.get(f"{role}:calls")
        },
        unknown=counts.get("unknown", 0),
    )


def _flat(counts: Mapping[str, int]) -> list[str | int]:
    return [part for name, count in counts.items() if count for part in (name, count)]


def _priced(budget: Budget, models: Mapping[Role, str]) -> list[str | float]:
    """For each role its name and prices; 0 where cost is no bound."""
    found: list[str | float] = []
    for role in _ROLES:
        price = budget.prices.get(models.get(role, ""))
        if price is None:
            found += [role, 0, 0, 0]
        else:
            found += [role, price.input, price.usd(1_000_000, 0, 1_000_000), price.output]
    return found
