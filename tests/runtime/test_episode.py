"""One episode from wake-up to diagnosis: order, repetition, crashes, races, and every degraded diagnosis."""

import json

import anyio
import pytest
import structlog
from msgspec import UNSET
from msgspec.structs import replace

from events.codec import draft
from events.errors import VersionGap
from events.ids import Version, episode_stream
from events.kinds import Abandoned, Diagnosed, Executed, Planned, Query, Retrieved, Scored
from events.rules import text_sha256
from runtime.episode import act, diagnose
from runtime.errors import (
    EmbeddingFailed,
    EnvironmentCrashed,
    EnvironmentTimeout,
    ModelRefused,
    ModelUnavailable,
    RunStopped,
)
from runtime.ports import Origin
from runtime.task import Evaluation, Task

WHOLE = ["retrieved", "planned", "retrieved", "executed", "scored", "diagnosed"]


async def play(world, t=0):
    """Both jobs of an episode."""
    context = world.context()
    await act(world.job(t=t), context)
    await diagnose(world.job("diagnose", t=t), context)


def found(world, kind, t=0):
    return next(event for event in world.log.events(t) if isinstance(event, kind))


async def test_order_of_events(world):
    """An episode is retrieved, planned, retrieved, executed, scored, diagnosed, each caused by the one before."""
    await play(world)
    assert world.log.kinds() == WHOLE
    recorded = await world.log.read_stream(episode_stream(0))
    assert [one.cause for one in recorded[:2]] == ["test/run/1", "test/episode-0/1"]
    assert recorded[5].cause == "test/episode-0/5"
    events = world.log.events()
    assert [event.stage for event in events if isinstance(event, Retrieved)] == ["planning", "execution"]
    assert events[0].query.text == "home\nSwitch on the light in the kitchen."
    assert events[2].query.text == "1. Switch on the kitchen light.\n\nSwitch on the light in the kitchen."
    assert world.environment.open_sessions == 0


async def test_facts_of_the_events(world):
    """Each event holds what its stage did and what it cost."""
    await play(world)
    planned, executed, scored, diagnosed = (found(world, kind) for kind in (Planned, Executed, Scored, Diagnosed))
    assert (planned.plan, planned.calls) == ("1. Switch on the kitchen light.", ["episode-0/planning/1"])
    assert (planned.usage.prompt_tokens, planned.usage.completion_tokens, planned.usage.calls) == (10, 5, 1)
    assert (executed.steps, executed.errors, executed.stop, executed.attempts) == (1, 0, "done", [])
    assert executed.calls == ["episode-0/execution/1"]
    trajectory = json.loads(world.blobs.bodies[executed.trajectory])
    assert [message["role"] for message in trajectory] == ["system", "user", "assistant"]
    assert (scored.success, scored.reward, scored.breakdown) == (True, 1, {"valid": True})
    assert (diagnosed.label, diagnosed.confidence_e4, diagnosed.degraded) == ("execution", 8000, None)
    assert diagnosed.experiences.planning is None
    assert diagnosed.experiences.execution.acceptable
    assert diagnosed.calls == ["episode-0/gate/1"]


async def test_lines_leave_the_programs_version_alone(world):
    """A recall's line says `bank_version`: `version` in a line is the program's."""
    with structlog.testing.capture_logs() as lines:
        await play(world)
    assert [line["bank_version"] for line in lines if line["event"] == "retrieved"] == [0, 0]
    assert not any("version" in line for line in lines)


async def test_running_twice_leaves_one_of_each(world):
    """A job that runs again adds nothing and asks no model."""
    await play(world)
    contents, asked = world.log.contents(), len(world.model.asked)
    await play(world)
    assert world.log.contents() == contents
    assert len(world.model.asked) == asked


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("append", [1, 2, 3, 4])
async def test_killed_at_every_append(world, killed, append, when):
    """Whatever append a worker dies at, the next one finishes with the events of an undisturbed run."""
    calm = type(world)()
    await play(calm)
    world.log.dies = (append, when)
    with pytest.raises(killed):
        await play(world)
    world.log.dies = None
    await play(world)
    assert world.log.contents() == calm.log.contents()
    # every call was paid once
    assert len(world.model.asked) == len(calm.model.asked)


async def test_two_workers_at_once(world):
    """Two workers on one episode end with one event of each."""
    context = world.context()
    for kind, run in (("act", act), ("diagnose", diagnose)):
        async with anyio.create_task_group() as group:
            group.start_soon(run, world.job(kind), context)
            group.start_soon(run, world.job(kind, attempt=2), context)
    assert world.log.kinds() == WHOLE


async def test_what_a_job_wrote_it_does_not_read_again(world, monkeypatch):
    """Each job reads its episode once; again only where an append found that somebody had been there."""
    reads = []
    read_stream = world.log.read_stream

    async def counted(stream):
        reads.append(stream)
        return await read_stream(stream)

    monkeypatch.setattr(world.log, "read_stream", counted)
    await play(world)
    assert len(reads) == 2

    async def the_same(stream, first):
        world.log.streams[stream] = list(world.log.streams[episode_stream(0)][:1])

    world.log.before = the_same
    await act(world.job(t=1), world.context())
    assert len(reads) == 4
    assert world.log.kinds(1) == WHOLE[:5]


@pytest.mark.parametrize("kind", ["act", "diagnose"])
async def test_nothing_follows_an_event_it_was_not_made_from(world, kind):
    """A server loses the event before, another worker writes a different one: what it led to is not written."""
    await play(world)
    there = world.log.streams[episode_stream(0)]
    version = {"act": 3, "diagnose": 5}[kind]
    del there[version:]
    other = there[version - 1]

    async def loses(stream, first):
        assert first == version + 1
        data = other.data.replace(b"kitchen", b"hall") if kind == "act" else other.data.replace(b"true", b"false", 1)
        assert data != other.data
        there[version - 1] = replace(other, data=data)

    world.log.before = loses
    with pytest.raises(VersionGap, match="made from"):
        await (act if kind == "act" else diagnose)(world.job(kind), world.context())
    assert len(there) == version


@pytest.mark.parametrize("append", [1, 2])
async def test_whoever_takes_over_asks_the_same(world, killed, says, append):
    """A plan that JSON can hold only in part reaches the executor in the same words before and after a crash."""
    world.model.replies["planner"] = [says("look \ud800 first")]
    calm = type(world)()
    calm.model.replies["planner"] = [says("look \ud800 first")]
    await play(calm)
    world.log.dies = (append, "after")
    with pytest.raises(killed):
        await play(world)
    world.log.dies = None
    await play(world)
    assert world.model.requests("executor") == calm.model.requests("executor")
    assert world.log.contents() == calm.log.contents()


@pytest.mark.parametrize("source", ["fallback", "weaviate"])
async def test_goes_on_from_what_is_stored(world, source):
    """Where another worker's different event came first, the episode goes on from that one."""

    async def faster(stream, first):
        other = Retrieved(stage="planning", bank_version=0, query=query, candidates=[], source=source)
        from_other = [draft(other)]
        await world.log.append(stream, first, from_other, world_origin)

    vector = (await world.embedder.embed(["other"], "query"))[0]
    query, world_origin = Query(text="other", vector=vector), Origin(cause=None)
    world.log.before = faster
    await play(world)
    assert world.log.kinds() == WHOLE
    assert world.log.events()[0].source == source


async def test_abandoned_meanwhile(world):
    """An episode that the conductor ended while a worker was busy stays ended."""

    async def gives_up(stream, first):
        event = Abandoned(stage="planning", reason="worker_lost", attempts=3)
        await world.log.append(stream, first, [draft(event)], Origin(cause=None))

    world.log.before = gives_up
    await play(world)
    assert world.log.kinds() == ["abandoned"]


async def test_executed_without_score(world):
    """A foreign log with a trajectory and no score is abandoned: the environment's state is lost."""
    await act(world.job(), world.context())
    stream = episode_stream(0)
    del world.log.streams[stream][4]
    await act(world.job(attempt=2), world.context())
    assert world.log.kinds()[-1] == "abandoned"
    assert world.log.events()[-1].stage == "scoring"
    assert world.log.events()[-1].attempts == 2
    assert await world.log.append(stream, Version(5), [draft(world.log.events()[-1])], Origin(cause=None))


async def test_diagnose_waits_for_a_score(world):
    """A diagnose job for an episode that is not scored does nothing."""
    await diagnose(world.job("diagnose"), world.context())
    assert world.log.kinds() == []


@pytest.mark.parametrize(
    ("config", "version"), [({"lag": 2}, 4), ({"lag": 9}, 0), ({"frozen": True}, 0), ({"lag": "latest"}, 7)]
)
async def test_version_read(world, config, version):
    """Episode 5 reads max(0, 5+1-L); a frozen run 0; `latest` the newest, and records it."""
    world.config, world.banks.current = config, 7
    await act(world.job(t=5), world.context())
    assert world.banks.read == [("planning", version), ("execution", version)]
    assert [event.bank_version for event in world.log.events(5) if isinstance(event, Retrieved)] == [version] * 2


async def test_memories_reach_their_stage(world, bank):
    """The planner sees the planning bank's memories, the executor the execution bank's, the gate both by index."""
    world.banks.banks = bank(
        ("planning-0", "switch on the light in the kitchen", "Look which rooms have one."),
        ("execution-0", "switch on the light in the kitchen", "Name the room."),
    )
    world.model.replies["gate"] = [
        replace(
            world.model.replies["gate"][0],
            content=json.dumps({**json.loads(world.model.replies["gate"][0].content), "misleading": ["E1", "P7"]}),
        )
    ]
    await play(world)
    planner, executor, gate = (world.model.requests(role)[0] for role in ("planner", "executor", "gate"))
    planning = (
        "<experiences>\n[P1] When: switch on the light in the kitchen\nDo: Look which rooms have one.\n</experiences>"
    )
    execution = "<experiences>\n[E1] When: switch on the light in the kitchen\nDo: Name the room.\n</experiences>"
    task = "<task>\nSwitch on the light in the kitchen.\n</task>"
    assert planning in planner.messages[1]["content"]
    assert task in planner.messages[1]["content"]
    assert execution in executor.messages[0]["content"]
    assert "<plan>\n1. Switch on the kitchen light.\n</plan>" in executor.messages[0]["content"]
    assert all(
        part in gate.messages[1]["content"] for part in (planning, execution, task, "<outcome>success</outcome>")
    )
    assert (planner.tools, planner.schema, gate.schema["title"], bool(executor.tools)) == ([], None, "diagnosis", True)
    diagnosed = found(world, Diagnosed)
    assert diagnosed.retrieved.planning == ["planning-0"]
    assert (diagnosed.misleading, diagnosed.misleading_dropped) == (["execution-0"], 1)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"frozen": True, "preparatory": ["lights-1"]}, "frozen"),
        ({"preparatory": ["lights-1"]}, "unscored"),
    ],
)
async def test_no_gate_is_asked(world, config, reason):
    """Frozen runs and preparatory tasks end with a degraded diagnosis and no call; frozen wins."""
    world.config = config
    await play(world)
    diagnosed = found(world, Diagnosed)
    assert (diagnosed.degraded, diagnosed.label, diagnosed.confidence_e4) == (reason, "none", 0)
    assert diagnosed.success
    assert world.model.requests("gate") == []


@pytest.mark.parametrize(
    ("failure", "stop"),
    [(EnvironmentCrashed(7, "boom"), "env_crashed"), (EnvironmentTimeout("step", 1), "env_timeout")],
)
async def test_environment_fails_for_good(world, failure, stop):
    """When every attempt failed the outcome is recorded as invalid, and no stage is blamed."""
    world.environment.failures = {"step": [failure] * 3}
    await play(world)
    executed, scored = found(world, Executed), found(world, Scored)
    assert (executed.stop, [one.attempt for one in executed.attempts]) == (stop, [1, 2])
    assert (scored.success, scored.reward, scored.breakdown["valid"]) == (False, 0, False)
    assert found(world, Diagnosed).degraded == "environment"
    assert len(world.environment.resets) == 3
    assert world.environment.open_sessions == 0


async def test_environment_recovers(world):
    """A crash is recorded and the next attempt, from reset, counts."""
    world.environment.failures = {"step": [EnvironmentCrashed(7, "boom")]}
    await play(world)
    executed = found(world, Executed)
    assert (executed.stop, executed.steps) == ("done", 1)
    assert [(one.attempt, one.reason.split(":")[0]) for one in executed.attempts] == [(1, "env_crashed")]
    assert executed.calls == ["episode-0/execution/1", "episode-0/execution/2"]
    assert found(world, Scored).success
    assert found(world, Diagnosed).degraded is None


async def test_reset_fails_before_the_plan(world):
    """Where no attempt shows the task there is nothing to record: the job fails and the conductor decides."""
    world.environment.failures = {"reset": [EnvironmentCrashed(1, "")] * 3}
    with pytest.raises(EnvironmentCrashed):
        await act(world.job(), world.context())
    assert world.log.kinds() == []


@pytest.mark.parametrize(
    ("reply", "reason", "calls"),
    [
        (ModelUnavailable("timeout", "no answer"), "model_unavailable", 0),
        (ModelRefused("bad_request", "no"), "refused", 0),
    ],
)
async def test_gate_gets_no_answer(world, reply, reason, calls):
    """A gate without an answer degrades the diagnosis in the end; the bank is left alone."""
    world.model.replies["gate"] = [reply] * 3
    await act(world.job(), world.context())
    for attempt in (1, 2) if isinstance(reply, ModelUnavailable) else ():
        with pytest.raises(ModelUnavailable):
            await diagnose(world.job("diagnose", attempt=attempt), world.context())
        assert world.log.kinds()[-1] == "scored"
    await diagnose(world.job("diagnose", attempt=3), world.context())
    diagnosed = found(world, Diagnosed)
    assert (diagnosed.degraded, diagnosed.usage.calls) == (reason, calls)


async def test_gate_is_unreadable(world, says):
    """After one repair turn the diagnosis is degraded, and both calls are counted."""
    world.model.replies["gate"] = [says("I would rather not."), says("Still not.")]
    await play(world)
    diagnosed = found(world, Diagnosed)
    assert diagnosed.degraded == "unreadable"
    assert diagnosed.calls == ["episode-0/gate/1", "episode-0/gate/1.1"]
    assert diagnosed.unread == ["no_object", "no_object"]
    assert diagnosed.usage.calls == 2


async def test_gate_is_read_after_repair(world, says, diagnosis):
    """A judgement after the repair turn counts, beside what was wrong before; else nothing stands there."""
    world.model.replies["gate"] = [says("I would rather not."), says(json.dumps(diagnosis))]
    await play(world)
    assert (found(world, Diagnosed).degraded, found(world, Diagnosed).unread) == (None, ["no_object"])
    other = type(world)()
    await play(other)
    assert found(other, Diagnosed).unread is UNSET


async def test_experience_without_vector(world):
    """An experience that cannot be embedded degrades the diagnosis."""
    world.embedder.error = EmbeddingFailed("zero")
    await play(world)
    assert found(world, Diagnosed).degraded == "embedding"


async def test_executor_without_model(world):
    """An endpoint that does not answer the executor is no fault of a stage; two more attempts are made before."""
    world.model.replies["executor"] = [ModelUnavailable("timeout", "no answer")] * 3
    for attempt in (1, 2):
        with pytest.raises(ModelUnavailable, match="no answer"):
            await act(world.job(attempt=attempt), world.context())
        assert world.log.kinds() == WHOLE[:3]
        assert world.environment.open_sessions == 0
    await act(world.job(attempt=3), world.context())
    await diagnose(world.job("diagnose"), world.context())
    assert found(world, Executed).stop == "model"
    assert found(world, Diagnosed).degraded == "model_unavailable"


@pytest.mark.parametrize("attempt", [1, 2, 4, 5])
async def test_planner_without_model(world, attempt):
    """The job fails, and another attempt finds the episode as it was; one in three ends it and says why."""
    no_answer = ModelUnavailable("timeout", "no whole answer within 600 s")
    world.model.replies["planner"] = [no_answer, no_answer]
    with pytest.raises(ModelUnavailable):
        await act(world.job(attempt=attempt), world.context())
    assert world.log.kinds() == WHOLE[:1]
    await act(world.job(attempt=attempt + 3 - attempt % 3), world.context())
    abandoned = found(world, Abandoned)
    assert (abandoned.stage, abandoned.reason) == ("planning", "model_unavailable: no whole answer within 600 s")
    await act(world.job(attempt=7), world.context())
    assert world.log.kinds() == [*WHOLE[:1], "abandoned"]


async def test_planner_is_refused(world):
    """Asking again unchanged is useless: the first attempt ends the episode."""
    world.model.replies["planner"] = [ModelRefused("context", "400 too long", 400)]
    await play(world)
    assert world.log.kinds() == [*WHOLE[:1], "abandoned"]
    assert found(world, Abandoned) == Abandoned(stage="planning", reason="context: 400 too long", attempts=1)
    assert world.environment.open_sessions == 0


@pytest.mark.parametrize("role", ["planner", "executor", "gate"])
async def test_run_stopped_is_passed_on(world, role):
    """A key or quota that is refused stops the job at any stage; nothing half-done is recorded."""
    world.model.replies[role] = [RunStopped("auth", "key refused")]
    with pytest.raises(RunStopped):
        await play(world)
    assert world.environment.open_sessions == 0
    assert world.log.kinds() == {"planner": WHOLE[:1], "executor": WHOLE[:3], "gate": WHOLE[:5]}[role]


async def test_lint_is_recorded(world, diagnosis, says):
    """An experience with a lint reason is kept in the event and is not acceptable."""
    diagnosis["execution"] = {**diagnosis["execution"], "experience": "Too short."}
    world.model.replies["gate"] = [says(json.dumps(diagnosis))]
    await play(world)
    experience = found(world, Diagnosed).experiences.execution
    assert (experience.acceptable, experience.lint) == (False, ["too_short"])


async def test_outcome_reflection(world, diagnosis, says):
    """Without attribution the diagnosis is both, in full, with nothing misleading, whatever the model says."""
    world.reflection = "outcome"
    world.model.replies["gate"] = [says(json.dumps({**diagnosis, "misleading": ["P1"]}))]
    await play(world)
    diagnosed = found(world, Diagnosed)
    assert (diagnosed.label, diagnosed.confidence_e4, diagnosed.misleading) == ("both", 10_000, [])
    assert "label" not in world.model.requests("gate")[0].schema["properties"]


async def test_artifacts_reach_the_dependent(world):
    """What a prerequisite left behind is handed to the reset of the task that needs it, in the same epoch."""
    world.tasks = [Task(task_id="a", domain="home", preparatory=True), Task(task_id="b", domain="home")]
    world.config = {"depends_on": {"b": ["a"]}, "environment": {"options": {"language": "en"}}}
    world.environment.evaluation = Evaluation(reward=0, success=False, artifact={"notes": ["milk"]})
    await play(world, t=2)
    await play(world, t=3)
    assert "artifacts" not in world.environment.resets[0]
    assert world.environment.resets[1]["artifacts"] == {"a": {"notes": ["milk"]}}
    assert world.environment.resets[1]["language"] == "en"
    assert world.environment.resets[1]["max_steps"] == 100
    assert found(world, Diagnosed, 2).degraded == "unscored"


async def test_breakdown_is_made_storable(world):
    """Numbers without a JSON form and vast breakdowns do not keep an episode from being scored."""
    world.environment.evaluation = Evaluation(reward=0.5, success=False, breakdown={"score": float("nan")})
    await play(world)
    assert found(world, Scored).breakdown == {"score": "nan", "valid": True}
    world.environment.evaluation = Evaluation(reward=0.5, success=False, breakdown={"text": "x" * 100_000})
    await play(world, t=1)
    breakdown = found(world, Scored, 1).breakdown
    assert json.loads(world.blobs.bodies[breakdown["blob"]]) == {"text": "x" * 100_000}
    deep: list = []
    for _ in range(5_000):
        deep = [deep]
    world.environment.evaluation = Evaluation(reward=0.5, success=False, breakdown={"deep": deep})
    await play(world, t=2)
    assert "nested too deep" in str(found(world, Scored, 2).breakdown)


SCENARIO = "A light has to be switched in a named room."


@pytest.fixture
def merging(world, bank, says):
    """A world whose policy asks for rewrites, with an item that the new execution experience would join."""
    world.parameters = world.parameters.changed({"merge_text": "rewrite"})
    world.banks.banks = bank(("execution-0", SCENARIO, "Say the room."))
    world.model.replies["gate"] = [
        world.model.replies["gate"][0],
        says('{"text": "Name the room exactly, one light."}'),
    ]
    return world


async def test_rewrite_is_proposed(merging):
    """With `rewrite` the gate writes one text for the item that the experience would join."""
    await play(merging)
    diagnosed = found(merging, Diagnosed)
    proposal = diagnosed.merge_proposals.execution
    assert (proposal.target, proposal.text) == ("execution-0", "Name the room exactly, one light.")
    assert proposal.target_sha256 == text_sha256("Say the room.")
    assert diagnosed.calls == ["episode-0/gate/1", "episode-0/gate/3"]
    assert diagnosed.usage.calls == 2
    assert diagnosed.merge_proposals.planning is None
    request = merging.model.requests("gate")[1]
    assert request.schema["title"] == "merged"
    assert "<existing>\nSay the room.\n</existing>" in request.messages[1]["content"]


@pytest.mark.parametrize("answer", ["", '{"text": "  "}', '{"text": "Too short."}', "no", '{"text": 3}'])
async def test_unusable_rewrite(merging, says, answer):
    """A rewrite that is empty, unreadable or not lint-clean is no proposal; its call counts."""
    merging.model.replies["gate"][1] = says(answer)
    await play(merging)
    diagnosed = found(merging, Diagnosed)
    assert diagnosed.merge_proposals.execution is None
    assert diagnosed.usage.calls == 2


async def test_no_rewrite_without_confidence(merging, diagnosis, says):
    """Below theta_conf nobody is asked for a rewrite."""
    merging.model.replies["gate"] = [says(json.dumps({**diagnosis, "confidence": 0.4999}))]
    await play(merging)
    assert len(merging.model.requests("gate")) == 1


async def test_no_rewrite_without_a_near_item(merging, bank):
    """An item that is not similar enough is left alone."""
    merging.banks.banks = bank(("execution-0", "Bake bread with old flour", "Say the room."))
    await play(merging)
    assert len(merging.model.requests("gate")) == 1


async def test_one_log_line_a_stage(world):
    """Each stage this job wrote is one line with counts, and no body."""
    with structlog.testing.capture_logs() as lines:
        await play(world)
    assert [line["event"] for line in lines] == WHOLE
    assert all(line["log_level"] == "info" and line["run_id"] == "test" for line in lines)
    assert {line["episode_id"] for line in lines} == {"episode-0"}
    assert "kitchen" not in json.dumps(lines)


async def test_lines_say_which_model_and_what_came_of_it(world):
    """Each stage's line has an outcome, and the model that the header names for its role."""
    world.config["models"] = {role: {"model": f"{role}-model"} for role in ("planner", "executor", "gate")}
    with structlog.testing.capture_logs() as lines:
        await play(world)
    assert [line["outcome"] for line in lines] == ["empty", "planned", "empty", "done", "success", "execution"]
    assert [line.get("model") for line in lines] == [
        None, "planner-model", None, "executor-model", None, "gate-model",
    ]  # fmt: skip


async def test_a_recall_that_chose_something_says_so(world, bank):
    """A recall's outcome is whether an item is used."""
    world.banks.banks = bank(("planning-0", "Switch on the light in the kitchen.", "Name the room."))
    with structlog.testing.capture_logs() as lines:
        await play(world)
    assert [line["outcome"] for line in lines[:3]] == ["recalled", "planned", "empty"]
