"""`chime log archive` given while the run is played, twice at once: never past what somebody needs, nothing lost."""

import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from command_lines import DEADLINE_S, RUN, CommandLine, Endpoint, There, begin_run, until

from events.codec import export_line
from events.ids import PROJECTOR_STREAM, Position, RunId, StreamId, episode_of
from events.log import Recorded
from events.verify import verify
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLog, RedisLogStore
from infra.segments import verify_segments
from runtime.ports import StreamIndex

#: small: so that a short run has many segments, and is archived while it is open
EPISODES, CONCURRENCY, LAG = 16, 2, 2
#: of two that are given at once, one may be told so
OVERTAKEN = 4


@dataclass
class Tail:
    """A reader that reads along from the run's beginning, in a thread of this process."""

    there: There
    home: str
    found: list[Recorded] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read."""
        self._thread = threading.Thread(target=anyio.run, args=(self._read,))
        self._thread.start()

    async def _read(self) -> None:
        try:
            async with connected(self.there.url) as client:
                log = _log(client, self.there, self.home)
                while not self._ended.is_set() or await log.head() > len(self.found):
                    self.found += await log.read(Position(len(self.found)), 5)
                    await log.wait(Position(len(self.found)), 0.05)
        except BaseException as error:  # noqa: BLE001 - told in the test's own thread
            self.failed.append(error)

    def end(self) -> list[Recorded]:
        """Everything, once the log goes on no more."""
        self.stop()
        assert not self.failed, self.failed
        return self.found

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()


def _log(client: Any, there: There, home: str) -> RedisLog:
    return RedisLogStore(client, there.prefix, SystemClock(), "here", home=Path(home)).open(RunId(RUN))


@pytest.fixture
async def undisturbed(world: Any, playing: Any) -> list[str]:
    """The digests of the same run, that nobody archives, in this process."""
    configuration = playing.configured(concurrency=CONCURRENCY, lag=LAG)
    events = await world().play(RUN, configuration, limit=EPISODES, ordering=42)
    return list(playing.digests(events))


@pytest.fixture
def tail(chime: CommandLine, there: There) -> Iterator[Tail]:
    one = Tail(there, chime.environment["CHIME_HOME"])
    yield one
    one.stop()


def test_a_run_is_archived_again_and_again_while_it_is_played(
    chime: CommandLine,
    there: There,
    endpoint: Endpoint,
    undisturbed: list[str],
    tail: Tail,
    patient_children: Any,
    keys_left: Any,
) -> None:
    """What may still be needed stays on the server; a reader along, the banks and every export notice nothing."""
    small = {"infra.archive": {"SEGMENT": 7, "ADDITION": 2, "TRIMMED_AT_ONCE": 3}}
    # A worker that stands still for some seconds would be taken for dead, and its jobs for lost.
    chime.environment["PYTHONPATH"] = patient_children("claims", others=small)
    cast = [chime.begin("coordinator"), chime.begin("worker", "act", "--slots", "2"), chime.begin("worker", "diagnose")]
    endpoint.hold_after(0)
    begin_run(chime, there, endpoint, limit=EPISODES, concurrency=CONCURRENCY, lag=LAG)
    tail.start()
    lasts = []
    for folds in range(CONCURRENCY * 2 + LAG + 1, EPISODES, 3):
        until(lambda folds=folds: there.folds() >= folds or endpoint.step())
        archive_twice(chime)
        lasts.append(archived_of(there, chime))
    endpoint.release()
    until(lambda: there.kinds()[-1:] == ["run_finished"])
    for process in cast:
        process.send_signal(signal.SIGTERM)
    for process in cast:
        assert "Traceback" not in chime.ended(process)[1]
    assert lasts == sorted(set(lasts)), "each time there was more to archive"
    found = tail.end()
    assert [one.position for one in found] == list(range(1, len(found) + 1))
    assert [json.loads(one.data)["digest"] for one in found if one.kind == "folded"] == undisturbed
    assert {one.attempt for one in found} == {1}
    notes = [one.data for one in found if one.kind == "noted"]
    assert len(notes) == len(set(notes)) >= len(lasts)
    archive_twice(chime)
    chime("log", "archive", RUN)
    chime("log", "export", RUN, "-o", "whole.jsonl")
    assert (chime.folder / "whole.jsonl").read_bytes() == b"".join(map(export_line, found))
    assert verify(found).digest == undisturbed[-1] == chime.json("log", "verify", RUN)["data"]["digest"]
    assert chime.json("memory", "list", RUN)["digest"] == undisturbed[-1]
    folder = Path(chime.environment["CHIME_HOME"]) / "archive" / RUN
    assert [one.problem for one in anyio.run(verify_segments, folder) if one.problem] == []
    assert [one.name for one in folder.iterdir() if one.name.startswith(".")] == []
    kept = {f"{there.prefix}:{{{RUN}}}:{name}" for name in ("log", "index", "kept", "term")}
    assert kept <= set(keys_left())


def archive_twice(chime: CommandLine) -> None:
    """Two commands at once: one does it, the other does it too or is told that it was done meanwhile."""
    both = [chime.begin("log", "archive", RUN) for _ in range(2)]
    codes = []
    for one in both:
        one.communicate(timeout=DEADLINE_S)
        codes.append(one.returncode)
        assert one.returncode == 0 or "by another process meanwhile" in chime.said(one), chime.said(one)
    assert set(codes) <= {0, OVERTAKEN}
    assert 0 in codes


def archived_of(there: There, chime: CommandLine) -> Position:
    """The last position that is archived: it lies before all that open episodes are made of, or may read."""

    async def look() -> tuple[Position, dict[StreamId, StreamIndex]]:
        async with connected(there.url) as client:
            store = RedisLogStore(
                client, there.prefix, SystemClock(), "here", home=Path(chime.environment["CHIME_HOME"])
            )
            found = await store.archived(RunId(RUN)).look()
            assert found.trimmed == found.last
            return found.last, await store.open(RunId(RUN)).index()

    last, index = anyio.run(look)
    folds = index[PROJECTOR_STREAM].positions
    for stream, one in index.items():
        if (t := episode_of(stream)) is not None and t >= len(folds):
            assert one.positions[0] > last
    # The oldest version that an episode in flight may read, and twice as many as are in flight.
    assert last < folds[len(folds) - LAG - 2 * CONCURRENCY]
    return last
