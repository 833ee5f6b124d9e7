"""The append script against a model of it: any appends in any order, again, at once, on every kind of server."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any
from uuid import uuid4

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from chaos_budget import limit_s, rounds, searching, told
from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from redis.asyncio import Redis

from events.codec import draft
from events.errors import VersionGap
from events.ids import Position, RunId, StreamId, Version
from events.kinds import Counts, Noted, RunFinished
from events.log import Draft
from infra.clock import SystemClock
from infra.redis_client import client
from infra.redis_log import RedisLog, RedisLogStore
from runtime.errors import RunEnded
from runtime.ports import Appended, Origin, StreamIndex, Taken

STREAMS = ("run", "projector", "episode-1", "episode-10")
RUN = RunId("r-1")
#: what a search on one server may take of the minutes of `make chaos`
SHARE = 0.1

#: the topic that stands for the end of a run; in the run's stream nothing follows it
END = "end"
#: (stream, topic) of every position
Log = list[tuple[str, str]]
#: (stream, first version, topics)
Append = tuple[str, int, Sequence[str]]


def appended(log: Log, stream: str, first: int, topics: Sequence[str]) -> tuple[Any, ...]:
    """The model: what an append answers; `log` grows by what it writes."""
    there = [position for position, (name, _) in enumerate(log, 1) if name == stream]
    if first > len(there) + 1:
        return "gap", len(there) + 1
    for position, topic in zip(there[first - 1 :], topics, strict=False):
        if log[position - 1][1] != topic:
            return "taken", position
    known = there[first - 1 : first - 1 + len(topics)]
    new = topics[len(known) :]
    if new and next((topic for name, topic in reversed(log) if name == "run"), "") == END:
        return ("ended",)
    log += [(stream, topic) for topic in new]
    return "appended", [*known, *range(len(log) - len(new) + 1, len(log) + 1)], len(new)


def made(topic: str) -> Draft:
    """The event that stands for a topic."""
    if topic == END:
        return draft(RunFinished(outcome="completed", counts=Counts(**dict.fromkeys(Counts.__struct_fields__, 0))))
    return draft(Noted(topic=topic, facts={}))


streams = st.sampled_from(STREAMS)
topics = st.lists(st.sampled_from(("a", "b")), min_size=1, max_size=4)
#: how far before the next version of its stream an append begins
steps_back = st.integers(-2, 6)


class Appends(RuleBasedStateMachine):
    """Model and server side by side; `url` and `portal` are set by the test."""

    url: str
    portal: BlockingPortal

    def __init__(self) -> None:
        super().__init__()
        self.model: Log = []
        self.redis: Redis = self.portal.call(client, self.url)
        self.prefix = f"m{uuid4().hex}"
        self.log: RedisLog = RedisLogStore(self.redis, self.prefix, SystemClock(), "here").open(RUN)
        self.last: Append | None = None
        #: whether it was anything but a gap
        self.written = False

    def first(self, stream: str, back: int) -> int:
        return max(1, sum(name == stream for name, _ in self.model) + 1 - back)

    async def answered(self, append: Append) -> tuple[Any, ...]:
        """What the server says, in the model's words."""
        stream, first, new = append
        drafts = [made(topic) for topic in new]
        try:
            done = await self.log.append(StreamId(stream), Version(first), drafts, Origin(cause=None))
        except VersionGap as gap:
            return "gap", gap.expected
        except RunEnded:
            return ("ended",)
        match done:
            case Appended():
                return "appended", done.positions, done.written
            case Taken():
                assert done.stored.stream == stream
                return "taken", done.stored.position

    @rule(stream=streams, back=steps_back, new=topics)
    def append(self, stream: str, back: int, new: list[str]) -> None:
        """At, before or beyond the end of a stream, the same again or something else."""
        self.last = stream, self.first(stream, back), new
        answer = appended(self.model, *self.last)
        assert self.portal.call(self.answered, self.last) == answer
        self.written = answer[0] != "gap"

    @rule()
    def append_again(self) -> None:
        """A command that is sent once more, however long after."""
        if self.last is None:
            return
        length = len(self.model)
        answer = appended(self.model, *self.last)
        assert self.portal.call(self.answered, self.last) == answer
        # Only what was a gap then may be the next version now.
        assert len(self.model) == length or not self.written

    @rule(race=st.lists(st.tuples(streams, steps_back, topics), min_size=2, max_size=3))
    def append_at_once(self, race: list[tuple[str, int, list[str]]]) -> None:
        """Writers at the same time: as if one had come after the other, in some order."""
        appends = [(stream, self.first(stream, back), new) for stream, back, new in race]
        answers: dict[int, tuple[Any, ...]] = {}

        async def write() -> list[str]:
            async def one(place: int) -> None:
                answers[place] = await self.answered(appends[place])

            async with anyio.create_task_group() as tasks:
                for place in range(len(appends)):
                    tasks.start_soon(one, place)
            return [one.stream for one in await self.log.read(Position(0), 10_000)]

        found = self.portal.call(write)
        for order in permutations(range(len(appends))):
            model = list(self.model)
            said = {place: appended(model, *appends[place]) for place in order}
            if said == answers and [stream for stream, _ in model] == found:
                self.model = model
                return
        raise AssertionError(f"no order of {appends} gives {answers}")

    @rule(chance=st.integers(0, 9))
    def end(self, chance: int) -> None:
        """Now and then the run ends; nothing new follows."""
        if chance == 0:
            self.append("run", 0, [END])

    @rule()
    def forget_scripts(self) -> None:
        """A server that was started again knows no script."""
        self.portal.call(self.redis.script_flush)

    @rule(stream=streams)
    def read_stream(self, stream: str) -> None:
        """One stream by itself."""
        found = self.portal.call(self.log.read_stream, StreamId(stream))
        wanted = [(position, topic) for position, (name, topic) in enumerate(self.model, 1) if name == stream]
        assert [(one.version, one.position, one.data) for one in found] == [
            (version, position, made(topic).data) for version, (position, topic) in enumerate(wanted, 1)
        ]

    @rule(after=st.integers(0, 40), limit=st.integers(1, 9))
    def read_from(self, after: int, limit: int) -> None:
        """A page from anywhere; from beyond the end it is refused."""
        if after > len(self.model):
            with pytest.raises(VersionGap):
                self.portal.call(self.log.read, Position(after), limit)
            return
        found = self.portal.call(self.log.read, Position(after), limit)
        assert [(one.stream, one.data) for one in found] == [
            (stream, made(topic).data) for stream, topic in self.model[after : after + limit]
        ]

    @invariant()
    def the_log_is_the_model(self) -> None:
        """Every event once, gapless, and an index that says so."""
        found = self.portal.call(self.log.read, Position(0), 10_000)
        assert [(one.stream, one.data) for one in found] == [(stream, made(topic).data) for stream, topic in self.model]
        assert [one.position for one in found] == list(range(1, len(found) + 1))
        assert self.portal.call(self.log.head) == len(found)
        index: dict[str, list[int]] = {}
        for position, (stream, _) in enumerate(self.model, 1):
            index.setdefault(stream, []).append(position)
        assert self.portal.call(self.log.index) == {
            stream: StreamIndex(positions=positions, last_kind=made(self.model[positions[-1] - 1][1]).kind)
            for stream, positions in index.items()
        }

    def teardown(self) -> None:
        """Nothing stays on the server."""

        async def end() -> None:
            if keys := [key async for key in self.redis.scan_iter(match=f"{self.prefix}:*", count=1000)]:
                await self.redis.unlink(*keys)
            await self.redis.aclose()

        self.portal.call(end)


@pytest.mark.chaos
@pytest.mark.timeout(limit_s(300, SHARE))
def test_the_append_script_is_its_model(each_redis_server: Any) -> None:
    """Appended, known, taken or a gap: answer, log and index are those of ten lines of Python."""
    with start_blocking_portal("asyncio") as portal:
        machine = type("Bound", (Appends,), {"url": each_redis_server.url, "portal": portal})
        for one in rounds(SHARE):
            with told(one):
                run_state_machine_as_test(seed(one)(machine), settings=searching(30, 25))
