"""What a worker process knows of runs: whose jobs it takes, when it stops one, and what a resume changes."""

import dataclasses
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from looked_up_logs import LookedUpLogs
from msgspec.structs import replace
from structlog.testing import capture_logs

from events.codec import canonical, decode, decode_as, draft
from events.errors import BadInput
from events.ids import RUN_STREAM, RunId, Version, episode_stream
from events.kinds import Executed, Noted, Operated, Retrieved, RunStarted
from infra.clock import SystemClock
from infra.environments.in_process import InProcessEnvironment
from infra.environments.scratch import Scratch
from infra.environments.toy import Toy
from infra.list_log import ListLog
from runtime.errors import NotServed, RunStopped
from runtime.ports import Job, Origin
from workers.bank_access import BankAccess
from workers.configuration import ROLES
from workers.engine import STOPPED, Engine, engine, listed_tasks, note_stopped
from workers.layers import Flags, Resolved, resolve
from workers.operational import OPERATIONAL
from workers.resuming import refused, resumed_operational
from workers.run_stream import tell

RESUME = Operated(action="resume", target="r", author="me", reason="")


@pytest.fixture
async def begun(made_run: Any) -> ListLog:
    """A log with a head."""
    log = ListLog(RunId("r"), SystemClock())
    await log.append(RUN_STREAM, Version(1), [draft(decode(made_run().events[0]))], Origin(cause=None))
    return log


async def notes(log: ListLog) -> list[Noted]:
    return [decode_as(one, Noted) for one in await log.read_stream(RUN_STREAM) if one.kind == "noted"]


async def test_a_stop_is_noted_once_until_resumed(begun: ListLog):
    """Many workers that find an endpoint unusable leave one note, and another one after a resume."""
    stopped = RunStopped("key", "no such key")
    async with anyio.create_task_group() as workers:
        for _ in range(5):
            workers.start_soon(note_stopped, begun, stopped)
    assert [(one.topic, one.facts) for one in await notes(begun)] == [
        (STOPPED, {"kind": "key", "reason": "no such key"})
    ]
    await tell(begun, RESUME)
    await note_stopped(begun, stopped)
    await note_stopped(begun, stopped)
    assert [one.topic for one in await notes(begun)] == [STOPPED, STOPPED]


async def test_limits_of_a_resume_are_played_with(world: Any, playing: Any):
    """A limit that a resume has changed holds for the episodes that follow."""
    there = world()
    log = await there.begin("r", playing.configured(), limit=2)
    await tell(log, Noted(topic=OPERATIONAL, facts={"limits": {"max_steps": 1}}))
    assert await there.drive("r") == ["finished"]
    events = await there.recorded("r")
    assert [decode_as(one, Executed).steps for one in events if one.kind == "executed"] == [1, 1]


async def test_a_run_that_moves_to_a_store_out_of_reach(world: Any, playing: Any, monkeypatch: pytest.MonkeyPatch):
    """From then on a replica answers in the store's place, and its recalls say so."""

    async def nobody(_: BankAccess) -> None:
        return None

    def moved(advance: Callable[[Job], Any]) -> Callable[[Job], Any]:
        async def advanced(job: Job) -> None:
            if (job.kind, job.episode) == ("act", 1):
                await tell(there.log("r"), Noted(topic=OPERATIONAL, facts={"bank": {"store": "weaviate"}}))
            await advance(job)

        return advanced

    monkeypatch.setattr(BankAccess, "reachable", nobody)
    monkeypatch.setattr("workers.mirroring._AWAY_S", 0.0)
    there = world(around=moved)
    events = await there.play("r", playing.configured(concurrency=1, lag=1), limit=2)
    assert [decode_as(one, Retrieved).source for one in events if one.kind == "retrieved"] == [
        "exact", "exact", "fallback", "fallback",
    ]  # fmt: skip


async def test_a_run_that_comes_again_is_played_as_it_is_now(world: Any, playing: Any, monkeypatch: pytest.MonkeyPatch):
    """A worker that has served a run which was deleted plays the next one of its name by that one's tasks."""
    monkeypatch.setattr("workers.engine._LOOK_S", 0.0)
    there, run = world(), RunId("r")
    server = dataclasses.replace(there.server(), store=LookedUpLogs(there.store))

    async def asked(working: Engine, ordering: int) -> str:
        """What the run's first episode looks for, once somebody has begun the run by that name."""
        await there.store.delete(run)
        log = await there.begin("r", playing.configured(), limit=1, ordering=ordering)
        await working.advance(Job(kind="act", run=run, episode=0))
        return decode_as((await log.read_stream(episode_stream(0)))[0], Retrieved).query.text

    async with AsyncExitStack() as stack:
        one, other = (Engine(server, there.home, {}, there.clock, 1, stack) for _ in range(2))
        before = await asked(one, 1)
        assert await asked(one, 2) == await asked(other, 2) != before


async def test_lines_of_an_episode_name_its_configuration(world: Any, playing: Any):
    """Every line of a run's episodes has the start of its header's hash, and two configurations differ in it."""
    there, found = world(), []
    for run, concurrency in (("a", 1), ("b", 2)):
        with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
            log = await there.begin(run, playing.configured(concurrency=concurrency), limit=1)
            await there.drive(run)
        config = decode_as((await log.read_stream(RUN_STREAM))[0], RunStarted).config
        told = {line.get("config_hash") for line in lines if line["event"] in ("retrieved", "executed", "diagnosed")}
        assert told == {sha256(canonical(config)).hexdigest()[:12]}
        found += told
    assert found[0] != found[1]


@pytest.mark.parametrize(
    "what", ["fold", "embedder", "environment", "tasks", "nameless", "unnamed", "limits", "models", "endpoints"]
)
async def test_runs_that_it_cannot_serve(world: Any, playing: Any, what: str):
    """A run of other code, another embedder, an environment or task that is not here, is left to others, untouched."""
    there = world()
    beginning = await there.head(playing.configured(), limit=2)
    await beginning.prompts.store(there.blobs, RunId("r"))
    started = beginning.head.started
    config = started.config
    endpoints = config.operational["endpoints"]
    newer = {**config.operational, "endpoints": {**endpoints, "gate": {**endpoints["gate"], "hurry": True}}}
    other = {
        "limits": replace(started, config=replace(config, limits={**config.limits, "max_tools": 3})),
        "models": replace(started, config=replace(config, models={**config.models, "gate": {"depth": 9}})),
        "endpoints": replace(started, config=replace(config, operational=newer)),
        "fold": replace(started, config=replace(config, fold_version=99)),
        "embedder": replace(started, embedder=replace(started.embedder, fingerprint="another")),
        "environment": replace(started, config=replace(config, environment={**config.environment, "name": "none"})),
        "nameless": replace(started, config=replace(config, agent={})),
        "unnamed": replace(started, config=replace(config, environment={})),
        "tasks": replace(started, tasks=["gone", "warehouse-frozen-0"]),
    }[what]
    log = there.log("r")
    await log.append(RUN_STREAM, Version(1), [draft(other)], Origin(cause=None))
    async with AsyncExitStack() as stack:
        serving = Engine(there.server(), there.home, {}, there.clock, 1, stack)
        with pytest.raises(NotServed, match="run r:"):
            await serving.advance(Job(kind="act", run=RunId("r"), episode=0))
    assert await log.head() == 1


async def test_a_run_that_older_code_began_is_served(world: Any, playing: Any):
    """Which release began a run does not matter, as long as its fold and policy versions are those of this code."""
    there = world()
    begun = (await there.head(playing.configured(), limit=2)).head
    log = there.log("r")
    await (await there.head(playing.configured(), limit=2)).prompts.store(there.blobs, RunId("r"))
    await log.append(RUN_STREAM, Version(1), [draft(replace(begun.started, code="0.0.1"))], Origin(cause=None))
    assert await there.drive("r") == ["finished"]
    assert [one.kind for one in await there.recorded("r")].count("folded") == 2


async def test_tasks_that_are_gone():
    """A task list that changed names the first task that is missing, and how many are."""
    environment = InProcessEnvironment(Toy)
    chosen = {"name": "toy", "domains": ["shop"]}
    found = await listed_tasks(environment, chosen, ("shop-gift-1", "shop-gift-0"))
    assert [one.task_id for one in found] == ["shop-gift-1", "shop-gift-0"]
    with pytest.raises(BadInput, match=r"toy has no task 'warehouse-bulk-0' any more \(1 of 2 are missing\)"):
        await listed_tasks(environment, chosen, ("shop-gift-1", "warehouse-bulk-0"))


def resolved(*sets: str, file: str = "", folder: Path) -> Resolved:
    """A configuration from -s flags and a chime.toml."""
    if file:
        (folder / "chime.toml").write_text(file)
    return resolve(Flags(sets=sets), {}, folder)


def test_a_resume_changes_what_is_given(made_run: Any, tmp_path: Path):
    """A key variable alone keeps the address; a role's own setting wins; slots and limits are taken, others stay."""
    endpoint = {"base_url": "http://a/v1", "api_key_env": "A", "timeout_s": 5.0}
    there = {"slots": 4, "endpoints": {role: dict(endpoint) for role in ROLES}, "limits": {"max_errors": 2}}
    config = decode_as(made_run().events[0], RunStarted).config
    assert resumed_operational(resolved(folder=tmp_path), there, config) == there
    now = resumed_operational(
        resolved(
            "models.api_key_env=B", "roles.gate.base_url=http://b/v1", "episode.max_steps=7",
            file="[run]\nslots = 9\n", folder=tmp_path,
        ),
        there,
        config,
    )  # fmt: skip
    assert now["endpoints"]["planner"] == {**endpoint, "api_key_env": "B"}
    assert now["endpoints"]["gate"] == {**endpoint, "api_key_env": "B", "base_url": "http://b/v1"}
    assert (now["slots"], now["limits"]) == (9, {"max_errors": 2, "max_steps": 7})
    elsewhere = resumed_operational(resolved("bank.store=weaviate", folder=tmp_path), there, config)
    assert elsewhere == {**there, "slots": 9, "bank": {"store": "weaviate"}}, "the file still says 9 slots"
    assert resumed_operational(resolved("bank.store=replica", folder=tmp_path), elsewhere, config)["bank"] == {
        "store": "replica"
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("policy.name=outcome", "policy.name: credit -> outcome"),
        ("policy.theta_merge=0.9", "policy.theta_merge: 0.88 -> 0.9"),
        ("run.concurrency=3", "run.concurrency: 1 -> 3"),
        ("run.lag=7", "run.lag: 1 -> 7"),
        ("models.model=other", "models.model: made-model -> other"),
    ],
)
def test_a_resume_refuses_flags_that_change_the_run(made_run: Any, tmp_path: Path, given: str, said: str):
    """A flag that means something else than the header is refused; one that says the same is not, nor is a file where
    nobody knows what the run was started with.
    """
    header = decode_as(made_run().events[0], RunStarted)
    assert refused(resolved(given, folder=tmp_path), header).count(said) == 1
    assert (
        refused(resolved("policy.theta_merge=0.88", "run.slots=3", "episode.max_steps=4", folder=tmp_path), header)
        == []
    )
    assert refused(resolved(file='[policy]\nname = "outcome"\n', folder=tmp_path), header) == []


@pytest.mark.parametrize(
    ("flags", "file", "said"),
    [
        ([], "[policy]\ntheta_merge = 0.9\n", ["policy.theta_merge: 0.88 -> 0.9 (file chime.toml:2)"]),
        (["policy.theta_merge"], "[policy]\ntheta_merge = 0.9\n", []),
        ([], "[policy]\ntheta_merge = 0.88\nbeta = 0.20\n[models]\nmodel = 'made-model'\ntimeout_s = 9\n", []),
        ([], "[models]\nmodel = 'b'\n", ["models.model: made-model -> b (file chime.toml:2)"]),
        (["models.model"], "[models]\nmodel = 'b'\n", []),
        (["roles.gate.model"], "[models]\nmodel = 'b'\n[roles.gate]\nmodel = 'made-model'\n",
         ["models.model: made-model -> b (file chime.toml:2)"]),
        (["models.model"], "[roles.gate]\nmodel = 'b'\n",
         ["roles.gate.model: made-model -> b (file chime.toml:2)"]),
        (["roles.gate.model"], "[roles.gate]\nmodel = 'b'\n", []),
        ([], "[run]\nlag = 'auto'\nconcurrency = 4\nslots = 2\n",
         ["run.concurrency: 1 -> 4 (file chime.toml:3)", "run.lag: 1 -> 2 (file chime.toml:2)"]),
        (["run.concurrency", "run.lag"], "[run]\nlag = 'auto'\nconcurrency = 4\n", []),
    ],
)  # fmt: skip
def test_a_resume_refuses_a_file_that_has_changed(
    made_run: Any, tmp_path: Path, flags: list[str], file: str, said: list[str]
):
    """What stands in the file now and the run has not: but for what a flag stood over when the run was started."""
    header = decode_as(made_run().events[0], RunStarted)
    config = replace(header.config, operational={"flags": flags})
    begun = replace(header, config=config)
    assert refused(resolved(file=file, folder=tmp_path), begun) == said


async def test_a_process_that_ends_sweeps_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: Any):
    """Temporary folders of hosts whose worker was killed go with whoever ends last, also where it played nothing."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, there = Scratch(), world()
    async with engine(there.server(), there.home, {}, there.clock, hosts=1):
        os.close(left.fd)
        assert left.path.is_dir()
    assert not left.path.exists()
