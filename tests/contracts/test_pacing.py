"""How fast the workers of a run ask an endpoint: on a server, and in one process."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from math import inf
from typing import Any

import anyio
import pytest

from events.ids import RunId
from infra.capabilities import Place
from infra.clock import SystemClock
from infra.pacing import FIRST_LIMIT, UNPACED, Bounds, Counts, Look, Paced
from infra.pacing_local import LocalCounts
from infra.pacing_redis import RedisCounts
from infra.redis_client import connected
from runtime.job_time import job_time
from runtime.settings import EndpointSettings

PLACE = Place("http://there/v1", "m")
#: a minute, or a lease, that a test waits for, seconds
SOON_S = 2.0
RUN = RunId("r")
FREE = Bounds(requests=0, tokens=0, concurrent=0, adaptive=False)


def bounds(requests: int = 0, tokens: int = 0, concurrent: int = 0, *, adaptive: bool = False) -> Bounds:
    return Bounds(requests=requests, tokens=tokens, concurrent=concurrent, adaptive=adaptive)


#: what no test waits for does not end while a machine stands still, seconds
LONG_S = 600.0


@pytest.fixture(autouse=True)
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("infra.pacing._RELEASE_S", "infra.pacing_local.WAIT_S", "infra.pacing_redis.WAIT_S"):
        monkeypatch.setattr(place, LONG_S)


@pytest.fixture(params=["local", "redis"])
def counting(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Opens the counts under test, of another run each time."""
    runs, long = count(), {"minute_s": LONG_S, "lease_s": LONG_S}
    if request.param == "local":

        @asynccontextmanager
        async def local(**given: float) -> AsyncIterator[Counts]:
            yield LocalCounts(anyio.current_time, **(long | given))

        return local
    server, prefix = request.getfixturevalue("redis_server"), request.getfixturevalue("redis_prefix")

    @asynccontextmanager
    async def on_server(**given: float) -> AsyncIterator[Counts]:
        async with connected(server.url) as redis:
            yield RedisCounts(redis, prefix, RunId(f"r-{next(runs)}"), "here", **(long | given))

    return on_server


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What does not hold in the body counts only where that took no longer: else a test begins again.

    Raises:
        Late: it did not hold, and this process or the server stood still meanwhile.
    """
    until_s = anyio.current_time() + seconds
    try:
        yield
    except AssertionError as error:
        if anyio.current_time() < until_s:
            raise
        raise Late from error


class Late(Exception):
    """A minute, or a lease, was over before it was looked at."""


async def in_time(attempt: Callable[[], Awaitable[None]]) -> None:
    """Tries until no minute, and no lease, was over before it was looked at."""
    for _ in range(20):
        with suppress(Late):
            return await attempt()
    raise AssertionError("this machine is too slow for any of it")


async def over(counts: Counts, request: str, given: Bounds, outcome: Any = "answered", look: Look | None = None) -> Any:
    return await counts.end(PLACE, request, given, outcome, None, 0.0, look.halved if look else 0)


async def test_waiting_for_a_turn_is_no_time_of_a_job(counting: Any) -> None:
    """However long it is; what the request itself takes is."""
    async with counting() as counts:
        endpoint = EndpointSettings(base_url="x", max_concurrent=1)
        paced, limits = Paced(counts, SystemClock()), list[float]()
        with anyio.fail_after(120), job_time(1000.0) as limit:
            async with paced.request(PLACE, endpoint, 1):
                limits.append(limit.deadline)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_asking_once, paced, endpoint)
                    while not any(one.waiting for one in await counts.seen()):  # noqa: ASYNC110 - a count on a server
                        await anyio.sleep(0.01)
                    assert limit.deadline == inf
                    tasks.cancel_scope.cancel()
        assert limits[0] < inf


async def _asking_once(paced: Paced, endpoint: EndpointSettings) -> None:
    async with paced.request(PLACE, endpoint, 1):
        pass


async def test_no_more_at_once_than_the_bound(counting: Any) -> None:
    """The third of two waits until one is over; when that will be, nobody knows."""
    async with counting() as counts:
        two = bounds(concurrent=2)
        assert [(await counts.look(PLACE, name, 1, two)).admitted for name in "abc"] == [True, True, False]
        assert (await counts.look(PLACE, "c", 1, two)).wait_s == 0
        [seen] = await counts.seen()
        assert (seen.base_url, seen.model, seen.held, seen.waiting, seen.requests, seen.limit) == (
            *PLACE,
            2,
            1,
            2,
            None,
        )
        await over(counts, "a", two)
        assert (await counts.look(PLACE, "c", 1, two)).admitted
        [seen] = await counts.seen()
        assert (seen.held, seen.waiting, seen.requests) == (2, 0, 3)


async def test_places_do_not_share_a_bound(counting: Any) -> None:
    """Another model at the same address, or the same one elsewhere, has slots of its own."""
    async with counting() as counts:
        one = bounds(concurrent=1)
        for place in (PLACE, PLACE._replace(model="other"), PLACE._replace(base_url="http://elsewhere/v1")):
            assert (await counts.look(place, "a", 1, one)).admitted
        assert len(await counts.seen()) == 3


async def test_who_came_first_goes_first(counting: Any) -> None:
    """A slot that is given back is for the one that has waited longest, whoever asks next."""
    async with counting() as counts:
        one = bounds(concurrent=1)
        for name, admitted in (("a", True), ("b", False), ("c", False)):
            assert (await counts.look(PLACE, name, 1, one)).admitted == admitted
        await over(counts, "a", one)
        assert [(await counts.look(PLACE, name, 1, one)).admitted for name in ("d", "c", "b")] == [False, False, True]
        await over(counts, "b", one)
        await counts.leave(PLACE, "c")
        assert (await counts.look(PLACE, "d", 1, one)).admitted


async def test_no_more_requests_in_a_minute_than_the_bound(counting: Any) -> None:
    """What is over the bound is told to wait, for a minute at most."""
    async with counting(minute_s=30.0) as counts:
        two = bounds(requests=2)
        for name in "ab":
            look = await counts.look(PLACE, name, 1, two)
            assert look.admitted
            await over(counts, name, two, look=look)
        third, fourth = [await counts.look(PLACE, name, 1, two) for name in "cd"]
        assert (third.admitted, fourth.admitted) == (False, False)
        assert 0 < third.wait_s <= 30
        assert 0 < fourth.wait_s <= 30


async def test_a_minute_goes_by(counting: Any) -> None:
    """After the wait that it was told, a request is let through."""

    async def attempt() -> None:
        async with counting(minute_s=SOON_S) as counts:
            one = bounds(requests=1)
            with within(SOON_S):
                assert (await counts.look(PLACE, "a", 1, one)).admitted
                waits = await counts.look(PLACE, "b", 1, one)
                assert not waits.admitted
            await anyio.sleep(waits.wait_s + 0.01)
            assert (await counts.look(PLACE, "b", 1, one)).admitted

    await in_time(attempt)


async def test_a_request_of_no_tokens_is_forgotten_as_others_are(counting: Any) -> None:
    """One that came to nothing, and one that was given up, hold nobody up once a minute has gone by."""

    async def attempt() -> None:
        async with counting(minute_s=SOON_S) as counts:
            two = bounds(requests=2)
            look = await counts.look(PLACE, "a", 5, two)
            await counts.end(PLACE, "a", two, "neither", 0, 0.0, look.halved)
            assert (await counts.look(PLACE, "b", 0, two)).admitted
            await counts.leave(PLACE, "b")
            await anyio.sleep(SOON_S + 0.01)
            with within(SOON_S):
                assert (await counts.look(PLACE, "c", 1, two)).admitted
                [seen] = await counts.seen()
                assert (seen.tokens, seen.requests) == (1, 1)

    await in_time(attempt)


async def test_tokens_are_reserved_and_settled(counting: Any) -> None:
    """A request holds what it was thought to need, then what it came to."""
    async with counting(minute_s=30.0) as counts:
        hundred = bounds(tokens=100)
        look = await counts.look(PLACE, "a", 90, hundred)
        assert look.admitted
        assert not (await counts.look(PLACE, "b", 20, hundred)).admitted
        await counts.end(PLACE, "a", hundred, "answered", 30, 0.0, look.halved)
        assert (await counts.look(PLACE, "b", 20, hundred)).admitted
        [seen] = await counts.seen()
        assert seen.tokens == 50
        await counts.end(PLACE, "b", hundred, "neither", 0, 0.0, 0)
        [seen] = await counts.seen()
        assert (seen.tokens, seen.requests) == (30, 2)


async def test_a_request_larger_than_the_bound_goes_alone(counting: Any) -> None:
    """It would wait for ever otherwise; the smaller ones that came after it do not pass it."""

    async def attempt() -> None:
        async with counting(minute_s=SOON_S) as counts:
            hundred = bounds(tokens=100)
            with within(SOON_S):
                assert (await counts.look(PLACE, "a", 10, hundred)).admitted
                large = await counts.look(PLACE, "b", 5000, hundred)
                small = await counts.look(PLACE, "c", 1, hundred)
                assert (large.admitted, small.admitted) == (False, False)
                assert 0 < large.wait_s <= SOON_S
                assert 0 < small.wait_s <= SOON_S
            await anyio.sleep(SOON_S + 0.01)
            assert (await counts.look(PLACE, "b", 5000, hundred)).admitted

    await in_time(attempt)


async def test_a_look_whose_answer_was_lost_is_repeated(counting: Any) -> None:
    """Whoever has its turn is told so again, and does not wait for itself."""
    async with counting(minute_s=30.0) as counts:
        one = bounds(1, 10, 1)
        for _ in range(2):
            assert (await counts.look(PLACE, "a", 10, one)).admitted
        [seen] = await counts.seen()
        assert (seen.held, seen.waiting, seen.requests, seen.tokens) == (1, 0, 1, 10)


async def test_a_dead_workers_slot_comes_back(counting: Any) -> None:
    """A request that nobody renews is over; one that is renewed is not."""

    async def attempt() -> None:
        async with counting(lease_s=SOON_S) as counts:
            two = bounds(concurrent=2)
            for name in ("dead", "alive"):
                assert (await counts.look(PLACE, name, 1, two)).admitted
            with anyio.fail_after(120):
                while not (await counts.look(PLACE, "next", 1, two)).admitted:
                    await counts.renew(PLACE, "alive")
                    await anyio.sleep(0.02)
            with within(SOON_S):
                await counts.renew(PLACE, "alive")
                await counts.renew(PLACE, "next")
                assert not (await counts.look(PLACE, "another", 1, two)).admitted

    await in_time(attempt)


async def test_who_leaves_without_knowing_that_it_was_let_in_is_over(counting: Any) -> None:
    """A caller may be cancelled while it looks: its slot and its tokens are free at once."""
    async with counting() as counts:
        one = bounds(tokens=100, concurrent=1)
        assert (await counts.look(PLACE, "a", 100, one)).admitted
        await counts.leave(PLACE, "a")
        assert (await counts.look(PLACE, "b", 100, one)).admitted
        await counts.leave(PLACE, "never")
        [seen] = await counts.seen()
        assert (seen.held, seen.waiting, seen.tokens) == (1, 0, 100)


async def test_a_429_holds_everybody(counting: Any) -> None:
    """For as long as it says: others do not run into it."""
    async with counting() as counts:
        many = bounds(concurrent=9)
        look = await counts.look(PLACE, "a", 1, many)
        began_s = anyio.current_time()
        await counts.end(PLACE, "a", many, "limited", 0, LONG_S, look.halved)
        held = await counts.look(PLACE, "b", 1, many)
        [seen] = await counts.seen()
        least_s = LONG_S - 1 - (anyio.current_time() - began_s)
        assert not held.admitted
        assert least_s < held.wait_s <= LONG_S
        assert least_s < seen.held_off_s <= LONG_S


async def test_adaptive_grows_by_one_and_halves(counting: Any) -> None:
    """One more at once per window of answers in use, half after a 429, once for those under way, and at least one."""
    async with counting() as counts:
        given = bounds(adaptive=True)

        async def window(outcome: str, at_once: int) -> list[int]:
            looks = {f"{n}": await counts.look(PLACE, f"{n}", 1, given) for n in range(at_once)}
            assert all(look.admitted for look in looks.values())
            waits = await counts.look(PLACE, "one too many", 1, given)
            assert not waits.admitted
            await counts.leave(PLACE, "one too many")
            changes = [await over(counts, name, given, outcome, look) for name, look in looks.items()]
            return [change for change in changes if change is not None]

        assert FIRST_LIMIT == 4
        # The bound is in use when the first of them is answered only: the others say nothing.
        for _ in range(FIRST_LIMIT - 1):
            assert await window("answered", 4) == []
        assert await window("answered", 4) == [5]
        assert (await counts.seen())[0].limit == 5
        assert await window("limited", 5) == [2]
        assert await window("limited", 2) == [1]
        assert await window("limited", 1) == []
        assert (await counts.seen())[0].limit == 1
        assert await window("answered", 1) == [2]


async def test_adaptive_keeps_to_the_given_bound(counting: Any) -> None:
    """`max_concurrent` is where growth ends, and where it begins when it is lower."""
    async with counting() as counts:
        given = bounds(concurrent=1, adaptive=True)
        for _ in range(5):
            look = await counts.look(PLACE, "a", 1, given)
            assert look.admitted
            assert not (await counts.look(PLACE, "b", 1, given)).admitted
            await counts.leave(PLACE, "b")
            assert await over(counts, "a", given, look=look) is None


async def test_what_it_holds_for_nobody_is_seen_through(counting: Any) -> None:
    """Nothing was asked: nothing is known, and saying the end or the renewal of it again does no harm."""
    async with counting() as counts:
        assert await counts.seen() == []
        look = await counts.look(PLACE, "a", 1, bounds(concurrent=1))
        await over(counts, "a", bounds(concurrent=1), look=look)
        await over(counts, "a", bounds(concurrent=1), look=look)
        assert (await counts.look(PLACE, "b", 1, bounds(concurrent=1))).admitted


ENDPOINT = EndpointSettings(base_url=PLACE[0], max_concurrent=3)


async def test_workers_take_turns(counting: Any) -> None:
    """Forty requests of two processes, three at once and never more; each has its turn."""
    async with counting() as counts:
        under_way, most, done, three = 0, 0, list[int](), anyio.Event()
        paces = [Paced(counts, SystemClock()) for _ in range(2)]

        async def ask(number: int) -> None:
            nonlocal under_way, most
            async with paces[number % 2].request(PLACE, ENDPOINT, 10) as turn:
                under_way += 1
                most = max(most, under_way)
                if under_way == 3:
                    three.set()
                await three.wait()  # on a slow machine the first may be over before the third has its turn
                await anyio.sleep(0.002)
                under_way -= 1
                turn.answered(5)
            done.append(number)

        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                for number in range(40):
                    tasks.start_soon(ask, number)
        assert sorted(done) == list(range(40))
        assert most == 3
        [seen] = await counts.seen()
        assert (seen.held, seen.waiting, seen.requests, seen.tokens) == (0, 0, 40, 200)


async def test_a_slot_is_given_back_however_the_body_ends(counting: Any) -> None:
    """By an error, which comes out as it is, and by cancellation; a request that gives up waiting leaves no trace."""
    async with counting() as counts:
        pace, one = Paced(counts, SystemClock()), EndpointSettings(base_url=PLACE[0], max_concurrent=1)
        with pytest.raises(ValueError, match="as it is"):
            async with pace.request(PLACE, one, 10):
                raise ValueError("as it is")
        with anyio.move_on_after(0.01):
            async with pace.request(PLACE, one, 10):
                await anyio.sleep_forever()
        async with pace.request(PLACE, one, 10):
            with anyio.move_on_after(0.05) as scope:
                async with Paced(counts, SystemClock()).request(PLACE, one, 10):
                    pass
            assert scope.cancelled_caught
            [seen] = await counts.seen()
            assert (seen.held, seen.waiting) == (1, 0)
        [seen] = await counts.seen()
        assert (seen.held, seen.tokens) == (0, 0)


async def test_a_429_is_told_to_the_others(counting: Any) -> None:
    """What one process was told, the other one keeps to; a count that nobody knows stays as reserved."""
    async with counting() as counts:
        here, there = Paced(counts, SystemClock()), Paced(counts, SystemClock())
        async with here.request(PLACE, ENDPOINT, 10) as turn:
            turn.answered(None)
        async with here.request(PLACE, ENDPOINT, 10) as turn:
            turn.limited(60.0)
        with anyio.move_on_after(0.05) as scope:
            async with there.request(PLACE, ENDPOINT, 10):
                pass
        assert scope.cancelled_caught
        [seen] = await counts.seen()
        assert (seen.tokens, seen.requests, seen.waiting) == (10, 2, 0)
        assert seen.held_off_s > 0


class Nobody:
    """Counts that must not be asked."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


async def test_without_bounds_nothing_is_asked() -> None:
    """No look at any server, however many requests there are."""
    free = EndpointSettings(base_url=PLACE[0])
    for pace in (UNPACED, Paced(Nobody(), SystemClock())):  # type: ignore[arg-type]  # that is the point
        async with pace.request(PLACE, free, 10) as turn:
            turn.answered(5)
    assert Bounds.of(free) == FREE
    assert FREE.is_free


async def test_a_pace_is_forgotten(redis_server: Any, redis_prefix: str, keys_left: Callable[[], list[str]]) -> None:
    """Every key is the run's and expires, so that nothing is left of a run that is over."""
    async with connected(redis_server.url) as redis:
        counts = RedisCounts(redis, redis_prefix, RUN, "here")
        for name in "ab":
            await counts.look(PLACE, name, 1, bounds(1, 1, 1, adaptive=True))
        keys = keys_left()
        assert len(keys) == 7
        assert all(key.startswith(f"{redis_prefix}:{{{RUN}}}:pace") for key in keys)
        assert all([0 < await redis.pttl(key) <= 600_000 for key in keys])
