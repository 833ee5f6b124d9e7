"""`chime log archive` killed at any instant: nothing is lost, the next one completes it, and nothing is left over."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from archived_runs import made_run, put, read_all, small
from chaos_budget import SEED, limit_s, rounds, told
from dying_commands import Commands, Ended

from events.codec import export_line
from events.fold import replay
from events.log import Recorded
from events.verify import verify
from infra import archive
from infra.archive_index import Archived
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.segments import read_manifest, verify_segments

ROOT = Path(__file__).parents[2]
KILLED = -9
#: commands that die one after the other; at the first so many instants, or some of them when the clock says so
KILLS, LONGEST, BY_THE_CLOCK = 7, 120, 0.3
#: instants that are looked at every time, the last one of each
WANTED = ("half of .N.jsonl.zst.N", "os.rename .checkpoint-N.json.zst.N", "os.rename .manifest.json.N")
#: of the chaos' minutes
SHARE = 0.1


class Place:
    """A made-up run on the tests' server, to be archived again and again by commands that die."""

    def __init__(self, url: str, prefix: str, folder: Path, keys_left: Callable[[], list[str]]) -> None:
        self._url, self._prefix, self.home, self.keys = url, prefix, folder / "home", keys_left
        self.home.mkdir()
        self._folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CHIME_")}
        plain = [str(ROOT / "tests" / part / "plain") for part in ("infra", "events")]
        self.chime = Commands(
            {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT), *plain]), "CHIME_HOME": str(self.home),
             "CHIME_REDIS_URL": url, "CHIME_REDIS_PREFIX": prefix, "OPENBLAS_NUM_THREADS": "1"},
            folder / "commands",
        )  # fmt: skip
        self.events: Sequence[Recorded] = []
        self.run = ""
        self.digest = ""
        #: of an archive that nobody has killed: its instants, how it stands, and what is there then
        self.undisturbed: Ended
        self.stands: Archived
        self.left: tuple[list[str], list[str]]

    def _on_store(self, work: Callable[[RedisLogStore], Any]) -> Any:
        async def working() -> Any:
            async with connected(self._url) as redis:
                return await work(RedisLogStore(redis, self._prefix, SystemClock(), "here", home=self.home))

        return anyio.run(working)

    def take(self, events: Sequence[Recorded]) -> None:
        """A run to be archived, and how that goes where nobody dies."""
        self.events, self.run, self.digest = events, events[0].run, replay(events).banks.digest()
        self.renew()
        self.undisturbed = self.chime("log", "archive", self.run)
        assert self.undisturbed.code == 0, self.undisturbed.err
        self.stands, self.left = self._looked(), self._left()

    def renew(self) -> None:
        """The run as it was before anything was archived."""

        async def work(store: RedisLogStore) -> None:
            await store.delete(self.events[0].run)
            await put(store, self.events)

        self._on_store(work)
        assert not self.folder.exists()

    @property
    def folder(self) -> Path:
        """Where the run is archived."""
        return self.home / "archive" / self.run

    def _looked(self) -> Archived:
        async def look(store: RedisLogStore) -> Archived:
            return await store.archived(self.events[0].run).look()

        found: Archived = self._on_store(look)
        return found

    def _left(self) -> tuple[list[str], list[str]]:
        """Every file below the home, and every key."""
        return sorted(str(one.relative_to(self.home)) for one in self.home.rglob("*")), self.keys()

    def whole(self) -> None:
        """Nothing is lost, whoever asks."""
        found: list[Recorded] = self._on_store(lambda store: read_all(store.open(self.events[0].run)))
        assert [one.position for one in found] == list(range(1, len(found) + 1))
        assert [export_line(one) for one in found[: len(self.events)]] == [export_line(one) for one in self.events]
        assert {one.kind for one in found[len(self.events) :]} <= {"noted"}
        assert verify(found).digest == self.digest

    def read_by_commands(self) -> None:
        """Commands read it as ever."""
        assert self.chime.json("log", "verify", self.run)["data"]["digest"] == self.digest
        assert self.chime.json("memory", "list", self.run)["digest"] == self.digest

    def completed(self) -> None:
        """The next command ends what was cut short, as if it had been the only one."""
        again = self.chime("log", "archive", self.run)
        assert again.code == 0, again.err
        assert self._looked() == self.stands
        assert self._left() == self.left
        problems = [one.problem for one in anyio.run(verify_segments, self.folder)]
        assert problems == [None] * len(read_manifest(self.folder).segments)
        assert read_manifest(self.folder).events == self.stands.last
        exported = self._folder / "exported.jsonl"
        assert self.chime("log", "export", self.run, "-o", str(exported)).code == 0
        lines = exported.read_bytes().splitlines(keepends=True)
        assert lines[: len(self.events)] == [export_line(one) for one in self.events]


@pytest.fixture
def place(
    redis_server: Any, redis_prefix: str, tmp_path: Path, keys_left: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    for name in ("SEGMENT", "ADDITION", "TRIMMED_AT_ONCE"):
        monkeypatch.setattr(archive, name, getattr(archive, name))
    small()
    one = Place(redis_server.url, redis_prefix, tmp_path, keys_left)
    yield one
    one.chime.close()


@pytest.mark.chaos
@pytest.mark.timeout(limit_s(300, SHARE))
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "open"])
def test_killed_again_and_again(place: Place, finished: bool) -> None:
    """By chance, at an instant or a moment, each where the one before was cut short: the log is whole after each."""
    events = made_run(11, 10)
    place.take(events if finished else events[:-1])
    for seed in rounds(SHARE):
        with told(seed):
            place.renew()
            kills = 0
            dice = Random(seed)  # noqa: S311 - chance, no secret
            while kills < KILLS:
                if dice.random() < BY_THE_CLOCK:
                    ended = place.chime("log", "archive", place.run, killed_after_s=dice.uniform(0.05, 0.5))
                else:
                    ended = place.chime("log", "archive", place.run, die_at=(dice.randrange(LONGEST), ""))
                assert ended.code in (0, KILLED), ended.err
                kills += 1
                place.whole()
            place.read_by_commands()
            place.completed()


@pytest.mark.chaos
@pytest.mark.timeout(limit_s(300, SHARE))
def test_killed_at_an_instant(place: Place) -> None:
    """While a file is half written, and between one step and the next; a long test dies at many others too."""
    place.take(made_run(11, 10))
    instants = Counter(place.undisturbed.instants)
    everything = [(nth, kind) for kind, count in instants.items() for nth in range(count)]
    for kind in WANTED:
        dies_at(place, (instants[kind] - 1, kind), SEED)
    for seed in rounds(SHARE):
        dies_at(place, Random(seed).choice(everything), seed)  # noqa: S311 - chance, no secret


def dies_at(place: Place, at: tuple[int, str], seed: int) -> None:
    """The run anew, an archive of it that dies there, and the next one."""
    with told(seed):
        place.renew()
        died = place.chime("log", "archive", place.run, die_at=at)
        try:
            assert died.code == KILLED, died.err
            place.whole()
            place.read_by_commands()
            place.completed()
        except BaseException as error:
            error.add_note(f"it was to die at {at} and has come to {died.instants[-1]}")
            raise
