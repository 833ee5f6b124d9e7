"""The append script against a model of it: any appends in any order, on every kind of server."""

from typing import Any
from uuid import uuid4

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from redis.asyncio import Redis

from events.codec import draft
from events.errors import VersionGap
from events.ids import Position, RunId, StreamId, Version
from events.kinds import Noted
from infra.clock import SystemClock
from infra.redis_client import client
from infra.redis_log import RedisLog, RedisLogStore
from runtime.ports import Appended, Origin, StreamIndex, Taken

STREAMS = ("run", "projector", "episode-1", "episode-10")
RUN = RunId("r-1")


class Model:
    """What the log must be: topics by stream, and the order of all."""

    def __init__(self) -> None:
        self.streams: dict[str, list[tuple[str, int]]] = {}
        self.order: list[tuple[str, str]] = []

    def append(self, stream: str, first: int, topics: list[str]) -> tuple[str, Any]:
        there = self.streams.get(stream, [])
        if first > len(there) + 1:
            return "gap", len(there) + 1
        for (old, position), new in zip(there[first - 1 :], topics, strict=False):
            if old != new:
                return "taken", (old, position)
        known = len(there[first - 1 : first - 1 + len(topics)])
        for topic in topics[known:]:
            self.order.append((stream, topic))
            self.streams.setdefault(stream, []).append((topic, len(self.order)))
        after = self.streams.get(stream, [])[first - 1 : first - 1 + len(topics)]
        return "appended", ([position for _, position in after], len(topics) - known)


class Appends(RuleBasedStateMachine):
    """Model and server side by side; `url` and `portal` are set by the test."""

    url: str
    portal: BlockingPortal

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.prefix = f"m{uuid4().hex}"
        self.redis: Redis = self.portal.call(client, self.url)
        self.store = RedisLogStore(self.redis, self.prefix, SystemClock(), "here")
        self.log: RedisLog = self.store.open(RUN)

    @rule(
        stream=st.sampled_from(STREAMS),
        back=st.integers(-2, 6),
        topics=st.lists(st.sampled_from(("a", "b")), min_size=1, max_size=4),
    )
    def append(self, stream: str, back: int, topics: list[str]) -> None:
        """At, before or beyond the end of a stream, the same again or something else."""
        first = max(1, len(self.model.streams.get(stream, [])) + 1 - back)
        expected = self.model.append(stream, first, topics)
        drafts = [draft(Noted(topic=topic, facts={})) for topic in topics]
        arguments = (StreamId(stream), Version(first), drafts, Origin(cause=None))
        if expected[0] == "gap":
            with pytest.raises(VersionGap) as caught:
                self.portal.call(self.log.append, *arguments)
            assert caught.value.expected == expected[1]
            return
        done = self.portal.call(self.log.append, *arguments)
        match done:
            case Appended():
                assert expected == ("appended", (done.positions, done.written))
            case Taken():
                topic = draft(Noted(topic=expected[1][0], facts={})).data
                assert expected[0] == "taken"
                assert (done.stored.data, done.stored.position) == (topic, expected[1][1])

    @rule()
    def forget_scripts(self) -> None:
        """A server that was started again knows no script."""
        self.portal.call(self.redis.script_flush)

    @rule(stream=st.sampled_from(STREAMS))
    def read_stream(self, stream: str) -> None:
        """One stream by itself."""
        found = self.portal.call(self.log.read_stream, StreamId(stream))
        assert [(one.version, one.position) for one in found] == [
            (version, position) for version, (_, position) in enumerate(self.model.streams.get(stream, []), 1)
        ]

    @invariant()
    def the_log_is_the_model(self) -> None:
        """Every event once, gapless, and an index that says so."""
        found = self.portal.call(self.log.read, Position(0), 10_000)
        assert [(one.stream, one.data) for one in found] == [
            (stream, draft(Noted(topic=topic, facts={})).data) for stream, topic in self.model.order
        ]
        assert [one.position for one in found] == list(range(1, len(found) + 1))
        assert self.portal.call(self.log.head) == len(found)
        assert self.portal.call(self.log.index) == {
            stream: StreamIndex(positions=[Position(position) for _, position in there], last_kind="noted")
            for stream, there in self.model.streams.items()
        }

    def teardown(self) -> None:
        """Nothing stays on the server."""

        async def end() -> None:
            await self.store.delete(RUN)
            await self.redis.aclose()

        self.portal.call(end)


def test_the_append_script_is_its_model(each_redis_server: Any) -> None:
    """Appended, known, taken or a gap: answer, log and index are those of twenty lines of Python."""
    with start_blocking_portal("asyncio") as portal:
        machine = type("Bound", (Appends,), {"url": each_redis_server.url, "portal": portal})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
