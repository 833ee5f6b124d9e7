"""The demo from the command line: three arms, their banks rebuilt, and a time limit that is kept."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from events.codec import decode, decode_as, draft
from events.ids import RUN_STREAM, BankVersion, Position, RunId, episode_of
from events.kinds import Diagnosed
from events.verify import verify
from infra.clock import SystemClock
from infra.list_log import ListLog
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.redis_server import embedded_server
from infra.weaviate_address import WeaviateAddress
from runtime.ports import Origin
from runtime.statistics import wilson
from workers.commands.demo import _print
from workers.demo import Arm, Demonstration, _Deadline, _verified
from workers.output import Output
from workers.sources import banks_at

ROOT = Path(__file__).parents[2]


def chime(home: Path, *arguments: str, **variables: str) -> Any:
    """The envelope that a command prints; its stderr under `err`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CHIME_")}
    done = subprocess.run(
        [sys.executable, "-m", "workers", *arguments, "--json", "--home", str(home)],
        env={**kept, "PYTHONPATH": str(ROOT), **variables}, cwd=home, capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "err": done.stderr}


async def verified(home: Path) -> dict[str, tuple[str, int]]:
    """Run -> digest and number of events of its log, decided again here."""
    found = {}
    async with embedded_server(home) as server, connected(server.url) as client:
        store = RedisLogStore(client, "chime", SystemClock(), "here")
        for run in await store.runs():
            report = verify([one async for page in store.open(run).pages(Position(0)) for one in page])
            found[str(run)] = (report.digest, report.events)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


#: what is played once and looked at twice
SIX = ("demo", "--env", "toy", "--limit", "6", "--embedder", "hash")


@dataclass(frozen=True)
class Shown:
    """A demo that has ended: its home, and the envelope it printed."""

    home: Path
    envelope: Any


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Six tasks in three arms whose banks are in replicas; nobody changes its home."""
    home = tmp_path_factory.mktemp("demonstrated")
    return Shown(home, chime(home, *SIX, "--bank", "replica"))


def test_three_arms(demonstrated: Shown):
    """Every arm plays the same tasks, only those that learn have banks, and verifying a log gives the digest shown."""
    home, shown = demonstrated.home, demonstrated.envelope
    assert shown["schema"] == 1
    data = shown["data"]
    assert (data["environment"], data["episodes_per_arm"], data["labels"]) == ("toy", 6, ["rehearsal"])
    assert data["stopped_after_s"] is None
    arms = {one["arm"]: one for one in data["arms"]}
    assert list(arms) == ["credit", "outcome", "frozen"]
    assert {one["n"] for one in arms.values()} == {6}
    assert sum(arms["frozen"]["banks"].values()) == 0
    assert sum(arms["credit"]["banks"].values()) > 0
    assert [one["arm"] for one in data["differences"]] == ["outcome", "frozen"]
    rebuilt = {one["run"]: one for one in data["rebuilt"]}
    assert set(rebuilt) == {one["run"] for one in arms.values()}
    assert {one["versions"] for one in rebuilt.values()} == {6}
    run = arms["credit"]["run"]
    assert chime(home, "log", "verify", run)["data"]["digest"] == rebuilt[run]["digest"]
    assert anyio.run(verified, home) == {run: (one["digest"], one["events"]) for run, one in rebuilt.items()}
    assert "Traceback" not in shown["err"]


@pytest.mark.timeout(400)
def test_the_store_of_the_banks_changes_nothing_but_where_recalls_come_from(
    home: Path, demonstrated: Shown, weaviate_server: WeaviateAddress, patient_children: Any
):
    """Banks in Weaviate and in replicas end with the same digests; each says which store and embedder it was."""
    given = {
        "CHIME_WEAVIATE_URL": weaviate_server.http_url,
        "CHIME_WEAVIATE_GRPC_URL": weaviate_server.grpc_url,
        "CHIME_WEAVIATE_API_KEY": weaviate_server.api_key,
        "PYTHONPATH": patient_children("publishing", "reading"),
    }
    stored = chime(home, *SIX, "--bank", "weaviate", **given)["data"]
    replica = demonstrated.envelope["data"]
    assert [(one["bank"], one["embedder"]) for one in (stored, replica)] == [("weaviate", "hash"), ("replica", "hash")]
    assert [one["digest"] for one in stored["rebuilt"]] == [one["digest"] for one in replica["rebuilt"]]
    for one in stored["rebuilt"]:
        # A version that is published late is recalled from the full replica meanwhile.
        assert sum(one["sources"].values()) == 12
        assert set(one["sources"]) <= {"weaviate", "fallback"}
        assert one["sources"]["weaviate"] > 0
    assert [one["sources"] for one in replica["rebuilt"]] == [{"exact": 12}] * 3
    assert len({one["digest"] for one in stored["rebuilt"]}) == 3


def test_stops_when_the_time_is_over(home: Path):
    """After its seconds no episode begins any more; the arms end, are compared over what all played, and it says so."""
    data = chime(home, "demo", "--env", "toy", "--limit", "72", "--seconds", "1")["data"]
    assert data["stopped_after_s"] >= 1
    assert 0 < data["episodes_per_arm"] < 72
    assert {one["n"] for one in data["arms"]} == {data["episodes_per_arm"]}
    assert len(data["rebuilt"]) == 3


@pytest.mark.parametrize("late", [lambda view: view(1), lambda view: view(0, "stopped")], ids=["begun", "stopped"])
async def test_the_clock_starts_once_every_arm_has_begun(world: Any, late: Callable[[Any], Any]):
    """Where one is late, the time is not over before it has played anything that could be compared; or never will."""
    there = world()
    limit = _Deadline(there.server(), [RunId("a"), RunId("b")], 0.0, lambda *_: None)  # type: ignore[arg-type]  # no line

    def view(episodes: int, control: str = "running") -> Any:
        progress = SimpleNamespace(episodes=episodes)
        return SimpleNamespace(conductor=SimpleNamespace(progress=progress, control=control))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(limit.watch)
        for run, episodes in (("a", 1), ("b", 0), ("a", 2)):
            limit.seen(RunId(run), view(episodes))
        await anyio.wait_all_tasks_blocked()
        assert limit.stopped_after_s is None
        limit.seen(RunId("b"), late(view))
    assert limit.stopped_after_s is not None
    assert [one.kind for one in await there.log("b").read_stream(RUN_STREAM)] == ["operated"]


@pytest.mark.parametrize(("episodes", "named"), [(1, 0), (6, 5), (50, 7)])
def test_the_episode_to_look_at_is_one_there_is(episodes: int, named: int):
    """What the demo proposes next names an episode that was played."""
    arms = [
        Arm(arm=arm, run=arm, n=episodes, successes=0, score=wilson(0, episodes), calls=0, labels={},
            banks={"planning": 0, "execution": 0})
        for arm in ("credit", "outcome", "frozen")
    ]  # fmt: skip
    shown = Demonstration(
        environment="toy", environment_version="1", labels=[], bank="replica", embedder="hash", differences=[],
        episodes_per_arm=episodes, stopped_after_s=None, arms=arms, rebuilt=[],
    )  # fmt: skip
    out = io.StringIO()
    _print(Output(out=out), shown)
    assert f"chime episode show credit {named} " in out.getvalue()


async def test_an_arm_counts_the_tasks_that_all_have(made_run):
    """Labels, calls and banks stand for the tasks that are compared, not for what an arm has played beside them."""
    made = made_run()
    log = ListLog(made.run, SystemClock())
    for one in made.events:
        await log.append(one.stream, one.version, [draft(decode(one))], Origin(cause=one.cause))
    seen = await _verified(log)
    diagnosed = [decode_as(one, Diagnosed) for one in made.events if one.kind == "diagnosed"]
    for n in (2, 4, 6):
        facts = seen.facts({f"task-{t}" for t in range(n)})
        assert facts["banks"] == (await banks_at(log, BankVersion(n))).sizes()
        assert sum(facts["labels"].values()) == sum(one.degraded is None for one in diagnosed[:n])
        assert facts["calls"] == sum(
            decode(one).usage.calls
            for one in made.events
            if one.kind in ("planned", "executed", "diagnosed") and episode_of(one.stream) < n
        )
