"""The order of stages of one episode, and the only place that appends its events.

retrieved (planning) | planned + retrieved (execution) | executed + scored | diagnosed. A bar is an append: a job reads
the episode's stream, does what is missing and goes on from whatever is stored, its own event or that of another worker
that was faster. So a job that runs twice leaves one event of each. What a job has just written itself it need not read.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

from msgspec import UNSET
from msgspec.structs import replace

from events.bank import Item
from events.codec import DEEPEST, canonical, clean_text, drafted
from events.errors import Mismatch
from events.ids import RUN_STREAM, STAGES, BankVersion, Stage, Version, episode_stream, event_id
from events.kinds import (
    Abandoned,
    AnyEvent,
    Diagnosed,
    Executed,
    Experience,
    MergeProposal,
    MergeProposals,
    Planned,
    Query,
    Retrieved,
    Scored,
    StageExperiences,
    Usage,
)
from events.rules import confident, merges, nearest, text_sha256
from runtime.attempts import asked_by, tried_again
from runtime.calls import failed_usage, usage_of
from runtime.context import Context, Progress, progress
from runtime.diagnosis import Judgement, Lesson, read_merged
from runtime.errors import EmbeddingFailed, ModelRefused, ModelUnavailable, UnreadableAnswer
from runtime.execution import DECLINED_STOPS, ENVIRONMENT_STOPS, MODEL_STOP, Execution, Executor, Lease
from runtime.gate import (
    MERGED_SCHEMA,
    Case,
    Degraded,
    Judged,
    answer_text,
    degraded,
    merge_messages,
    retrieved_ids,
)
from runtime.lint import lint
from runtime.logger import Logger
from runtime.planners import View
from runtime.ports import (
    Basis,
    CallKey,
    ChatRequest,
    Job,
    Origin,
    Taken,
)
from runtime.prompting import experiences, section, task_text
from runtime.schedule import read_version
from runtime.task import Message, Opening, Task

_log = Logger("chime.episode")

#: how much of a query's text is searched for and recorded, characters: about an embedder's 16,384 tokens
_QUERY_CHARS = 48_000
#: how much of a plan is kept, characters
_PLAN_CHARS = 32_000
#: how deep what an environment reports may nest: an event allows a few levels more around it
_LEVELS = DEEPEST - 4
#: a breakdown larger than this goes into a blob, bytes
_BREAKDOWN_BYTES = 64 * 1024


async def act(job: Job, ctx: Context) -> None:
    """Bring the episode to `scored`: retrieve, plan, retrieve, execute, score; whatever of it is missing.

    Raises:
        ModelUnavailable: planner or executor got no answer, and the job will be tried again.
        EnvironmentCrashed, EnvironmentTimeout, EnvironmentFailed: no attempt got as far as the task's text.
        EnvironmentUnavailable, RunStopped, Unreachable: what the episode needs is not there.
    """
    with tried_again():
        await _acted(job, ctx)


async def _acted(job: Job, ctx: Context) -> None:
    stage = _Stages(job, ctx)
    at = await stage.progress()
    if at.ended or at.scored is not None:
        return
    if at.executed is not None:
        # Both are appended at once here, so another program wrote this log. What the environment held is gone.
        reason = "executed without a score; the environment's state is lost"
        await stage.append(at, [Abandoned(stage="scoring", reason=reason, attempts=job.attempt)])
        return
    async with AsyncExitStack() as stack:
        lease = Lease(ctx.environment, stack, stage.task, stage.episode_id, ctx.settings, await stage.options())
        opening = await lease.open()
        while True:
            if at.retrieved("planning") is None:
                at = await stage.append(at, [await stage.recalled("planning", _planning_query(stage.task, opening))])
            elif at.planned is None:
                try:
                    planned = await stage.planned(at, opening)
                except (ModelUnavailable, ModelRefused) as error:
                    await stage.append(at, [stage.unplanned(error)])
                    return
                query = _execution_query(opening, planned.plan)
                at = await stage.append(at, [planned, await stage.recalled("execution", query)])
            elif at.retrieved("execution") is None:
                query = _execution_query(opening, at.planned.plan)
                at = await stage.append(at, [await stage.recalled("execution", query)])
            else:
                at = await stage.append(at, await stage.executed(at, lease, opening))
            if at.ended or at.executed is not None:
                return


async def diagnose(job: Job, ctx: Context) -> None:
    """Bring a scored episode to `diagnosed`: gate, lint, embed. Does nothing for one that is not scored, or has ended.

    Raises:
        MissingBlob: the trajectory is not there.
        ModelUnavailable: the gate got no answer, and the job will be tried again.
        RunStopped, Unreachable: what the gate needs is not there.
    """
    stage = _Stages(job, ctx)
    at = await stage.progress()
    if at.ended or at.scored is None or at.executed is None or at.planned is None:
        return
    with tried_again():
        await stage.append(at, [await stage.diagnosed(at, at.planned, at.executed, at.scored)])


def _planning_query(task: Task, opening: Opening) -> str:
    """Domain and task text (reading 1); the benchmark's own system text stands in for a task without one."""
    return f"{task.domain}\n{task_text(opening.messages) or opening.system}"[:_QUERY_CHARS]


def _execution_query(opening: Opening, plan: str) -> str:
    """Plan and task text (reading 2), the plan first: what an embedder cuts off is the task's end."""
    return f"{plan}\n\n{task_text(opening.messages)}".strip()[:_QUERY_CHARS] or "no plan"


class _Stages:
    """The stages of one job's episode."""

    def __init__(self, job: Job, ctx: Context) -> None:
        self._job, self._ctx = job, ctx
        self._model = asked_by(job, ctx.model)
        self.stream = episode_stream(job.episode)
        self.task = ctx.task(job.episode)
        self.episode_id = f"{ctx.run}/{self.stream}"
        self._began = ctx.clock.monotonic()
        #: what made the version of the last recall
        self._basis: Basis | None = None
        self._log = _log.bind(
            run_id=ctx.run, episode_id=self.stream, task_id=self.task.task_id, attempt=job.attempt, job=job.kind
        )

    async def progress(self) -> Progress:
        return await progress(self._ctx.log, self.stream)

    async def append(self, at: Progress, events: Sequence[AnyEvent]) -> Progress:
        """Put `events` behind `at`, each caused by the one before; the episode as it stands then.

        One log line for each of them, unless another event was there.
        """
        run, first = self._ctx.run, at.next_version
        cause = event_id(run, self.stream, first - 1) if at.events else event_id(run, RUN_STREAM, 1)
        # A recall is of banks that the log has made, the rest is made from what precedes it. A server may have lost its
        # tail, and them with it, and another worker may have written something else since.
        basis = self._basis if any(isinstance(event, Retrieved) for event in events) else None
        if basis is None and at.events:
            basis = Basis(stream=self.stream, version=Version(first - 1), sha256=at.sha256)
        origin = Origin(cause=cause, attempt=self._job.attempt, basis=basis)
        made = [drafted(event) for event in events]
        drafts = [one for one, _ in made]
        result = await self._ctx.log.append(self.stream, first, drafts, origin)
        if isinstance(result, Taken):
            self._log.info("superseded", seq=result.stored.version, stage=result.stored.kind)
            return await self.progress()
        for version, event in enumerate(events, first):
            facts = _facts(event, self._ctx.config.models)
            self._log.info(event.KIND, seq=version, duration_ms=self._lap(), **facts)
        if result.written < len(drafts):
            # Somebody was here before, perhaps this job before its process died, and may have gone on from there.
            return await self.progress()
        # As whoever takes over would read them: that may say less than the objects they were made of.
        return Progress(events=[*at.events, *(read for _, read in made)], sha256=drafts[-1].sha256)

    def _lap(self) -> int:
        """Milliseconds since the last stage of this job."""
        now = self._ctx.clock.monotonic()
        began, self._began = self._began, now
        return round(1000 * (now - began))

    def _key(self, stage: str, ordinal: int = 1) -> CallKey:
        return CallKey(run=self._ctx.run, stream=self.stream, stage=stage, ordinal=ordinal)

    async def options(self) -> dict[str, Any]:
        """What a reset is told: the run's own options, the limits, and what this task's prerequisites left behind."""
        config, settings = self._ctx.config, self._ctx.settings
        options = dict(config.environment.get("options") or {})
        options |= {"max_steps": settings.max_steps, "max_errors": settings.max_errors}
        if artifacts := await self._artifacts(config.depends_on.get(self.task.task_id, ())):
            options["artifacts"] = artifacts
        return options

    async def _artifacts(self, needed: Sequence[str]) -> dict[str, Any]:
        """Task id -> artifact of its episode in this epoch; None for one that left nothing, as after a crash."""
        ctx = self._ctx
        first = self._job.episode - self._job.episode % len(ctx.tasks)
        places = {task.task_id: place for place, task in enumerate(ctx.tasks)} if needed else {}
        artifacts: dict[str, Any] = {}
        for task in needed:
            if task not in places:
                continue
            scored = (await progress(ctx.log, episode_stream(first + places[task]))).scored
            sha256 = scored.breakdown.get("artifact") if scored is not None else None
            body = await ctx.blobs.get(ctx.run, sha256) if isinstance(sha256, str) else b"null"
            artifacts[task] = json.loads(body)
        return artifacts

    async def recalled(self, stage: Stage, text: str) -> Retrieved:
        """M^ret of one stage at the version this episode reads."""
        ctx = self._ctx
        version = read_version(self._job.episode, ctx.config.lag, frozen=ctx.config.frozen)
        if version is None:
            version = await ctx.banks.newest()
        (vector,) = await ctx.embedder.embed([text], "query")
        query = Query(text=text, vector=vector)
        recalled = await ctx.banks.recall(stage, query, version)
        self._basis = recalled.basis
        return Retrieved(
            stage=stage, bank_version=version, query=query, candidates=recalled.candidates, source=recalled.source
        )

    async def memories(self, at: Progress, stage: Stage) -> list[Item]:
        """The chosen items of a stage as of the version that was read."""
        event = at.retrieved(stage)
        ids = retrieved_ids([event]).of(stage) if event is not None else []
        if event is None or not ids:
            return []
        items = await self._ctx.banks.items(ids, event.bank_version)
        if [item.id for item in items] != ids:
            raise Mismatch(
                f"{self.episode_id}: {stage} recalled {ids}, version {event.bank_version} lacks some of them"
            )
        return items

    async def planned(self, at: Progress, opening: Opening) -> Planned:
        """p_t."""
        ctx = self._ctx
        view = View(
            domain=self.task.domain, task=task_text(opening.messages), policy=opening.system, tools=opening.tools
        )
        memories = await self.memories(at, "planning")
        plan = await ctx.planner.plan(view, memories, self._model, self._key("planning"), ctx.prompts)
        return Planned(plan=clean_text(plan.text[:_PLAN_CHARS]), usage=plan.usage, calls=plan.calls)

    def unplanned(self, error: ModelUnavailable | ModelRefused) -> Abandoned:
        """How an episode ends whose planner gets no answer."""
        word = "model_unavailable" if isinstance(error, ModelUnavailable) else error.kind
        return Abandoned(stage="planning", reason=f"{word}: {error.reason}", attempts=self._job.attempt)

    async def executed(self, at: Progress, lease: Lease, opening: Opening) -> list[AnyEvent]:
        """tau_t and s_t, recorded together: a trajectory cannot be taken up again."""
        ctx = self._ctx
        assert at.planned is not None  # noqa: S101 - the caller's case
        guidance = ctx.prompts["executor"].messages(
            {
                "plan": section("plan", at.planned.plan),
                "experiences": experiences("execution", await self.memories(at, "execution")),
            }
        )[0]["content"]
        executor = Executor(
            model=self._model,
            clock=ctx.clock,
            settings=ctx.settings,
            key=self._key("execution"),
            guidance=guidance,
        )
        done = await executor.run(lease, opening)
        trajectory = await ctx.blobs.put(ctx.run, canonical(done.messages))
        executed = Executed(
            trajectory=trajectory,
            steps=done.steps,
            errors=done.errors,
            stop=done.stop,
            attempts=done.attempts,
            usage=done.usage,
            calls=done.calls,
        )
        return [executed, await self._scored(done)]

    async def _scored(self, done: Execution) -> Scored:
        ctx, evaluation = self._ctx, done.evaluation
        if evaluation is None:
            invalid = {"valid": False, "reason": done.reason}
            return Scored(success=False, reward=0.0, evaluator=ctx.evaluator, breakdown=invalid)
        breakdown: dict[str, Any] = _plain(evaluation.breakdown)
        if len(body := canonical(breakdown)) > _BREAKDOWN_BYTES:
            breakdown = {"blob": await ctx.blobs.put(ctx.run, body)}
        breakdown["valid"] = True
        if evaluation.artifact is not None:
            breakdown["artifact"] = await ctx.blobs.put(ctx.run, canonical(_plain(evaluation.artifact)))
        return Scored(
            success=evaluation.success, reward=evaluation.reward, evaluator=ctx.evaluator, breakdown=breakdown
        )

    async def diagnosed(self, at: Progress, planned: Planned, executed: Executed, scored: Scored) -> Diagnosed:
        """g_t with all that the fold needs, or why there is no judgement."""
        ctx = self._ctx
        if reason := self._unjudged(executed):
            return degraded(reason, success=scored.success, retrieved=at.retrievals)
        body = await ctx.blobs.get(ctx.run, executed.trajectory)
        trajectory: list[Message] = json.loads(body)
        case = Case(
            task=task_text(_opening_of(trajectory)),
            planning=await self.memories(at, "planning"),
            execution=await self.memories(at, "execution"),
            plan=planned.plan,
            trajectory=trajectory,
            success=scored.success,
        )
        judged = await ctx.reflection.reflect(
            case,
            self._model,
            self._key("gate"),
            ctx.prompts,
            trajectory_chars=ctx.settings.trajectory_chars,
            usefulness=ctx.parameters.addition == "usefulness",
        )
        if judged.judgement is None:
            return self._without(judged, judged.degraded or "unreadable", at, scored)
        try:
            found = await self._experiences(judged.judgement, case)
        except EmbeddingFailed:
            return self._without(judged, "embedding", at, scored)
        diagnosed = Diagnosed(
            success=scored.success,
            label=judged.judgement.label,
            confidence_e4=judged.judgement.confidence_e4,
            retrieved=retrieved_ids(at.retrievals),
            misleading=judged.judgement.misleading,
            misleading_dropped=judged.judgement.misleading_dropped,
            experiences=found,
            merge_proposals=MergeProposals(),
            degraded=None,
            usage=judged.usage,
            calls=judged.calls,
            unread=judged.unread or UNSET,
        )
        planning = at.retrieved("planning")
        if ctx.parameters.merge_text == "append" or planning is None:
            return diagnosed
        return await self._proposing(diagnosed, planning.bank_version, trajectory)

    def _unjudged(self, executed: Executed) -> Degraded | None:
        """Why the gate is not asked at all; the first that applies."""
        config = self._ctx.config
        if config.frozen:
            return "frozen"
        if config.policy.name == "gate-off":
            return "gate_off"
        if self.task.preparatory or self.task.task_id in config.preparatory:
            return "unscored"
        if executed.stop in ENVIRONMENT_STOPS:
            return "environment"
        if executed.stop in DECLINED_STOPS:
            return cast("Degraded", executed.stop)
        return "model_unavailable" if executed.stop == MODEL_STOP else None

    def _without(self, judged: Judged, reason: Degraded, at: Progress, scored: Scored) -> Diagnosed:
        return degraded(
            reason,
            success=scored.success,
            retrieved=at.retrievals,
            usage=judged.usage,
            calls=judged.calls,
            unread=judged.unread,
        )

    async def _experiences(self, judgement: Judgement, case: Case) -> StageExperiences:
        """Both stages' (c_new, e_new), linted and embedded in one request.

        Raises:
            EmbeddingFailed: a text has no vector.
        """
        ctx = self._ctx
        lessons: list[tuple[Stage, Lesson]] = [
            (stage, lesson) for stage in STAGES if (lesson := judgement.lesson(stage)) is not None
        ]
        if not lessons:
            return StageExperiences()
        texts = [text for _, lesson in lessons for text in (lesson.scenario, lesson.experience)]
        vectors = await ctx.embedder.embed(texts, "document")
        prompt = ctx.prompts["gate"].system
        found: dict[Stage, Experience] = {}
        for place, (stage, lesson) in enumerate(lessons):
            reasons = lint(
                lesson.scenario, lesson.experience, case.trajectory, ctx.parameters, plan=case.plan, prompt=prompt
            )
            found[stage] = Experience(
                scenario=lesson.scenario,
                experience=lesson.experience,
                scenario_vector=vectors[2 * place],
                experience_vector=vectors[2 * place + 1],
                concrete=lesson.concrete,
                actionable=lesson.actionable,
                acceptable=lesson.concrete and lesson.actionable and not reasons,
                lint=reasons,
                usefulness_e4=lesson.usefulness_e4,
            )
        return StageExperiences(planning=found.get("planning"), execution=found.get("execution"))

    async def _proposing(self, diagnosed: Diagnosed, version: BankVersion, trajectory: Sequence[Message]) -> Diagnosed:
        """`diagnosed` with a rewritten text for each stage that would merge (reading 8)."""
        if not confident(diagnosed, self._ctx.parameters):
            return diagnosed
        proposals: dict[Stage, MergeProposal] = {}
        for ordinal, stage in enumerate(STAGES, 2):
            new = diagnosed.experiences.of(stage)
            if diagnosed.label not in (stage, "both") or new is None or not new.acceptable:
                continue
            proposal, usage, calls = await self._proposal(stage, new, version, trajectory, ordinal)
            diagnosed = replace(diagnosed, usage=diagnosed.usage + usage, calls=[*diagnosed.calls, *calls])
            if proposal is not None:
                proposals[stage] = proposal
        found = MergeProposals(planning=proposals.get("planning"), execution=proposals.get("execution"))
        return replace(diagnosed, merge_proposals=found)

    async def _proposal(
        self, stage: Stage, new: Experience, version: BankVersion, trajectory: Sequence[Message], ordinal: int
    ) -> tuple[MergeProposal | None, Usage, list[str]]:
        """A text for the nearest item at `version`, asked for once; None where nothing merges or no text is usable."""
        ctx = self._ctx
        banks = await ctx.banks.at(version)
        stages = STAGES if ctx.config.policy.name == "one-bank" else (stage,)
        target = nearest(banks, stages, new)
        if target is None or not merges(target.dot, ctx.parameters):
            return None, Usage(), []
        messages = merge_messages(ctx.prompts, target.item, new.experience, ctx.parameters.lint_max)
        key = self._key("gate", ordinal)
        try:
            answer = await self._model.complete(ChatRequest(role="gate", messages=messages, schema=MERGED_SCHEMA), key)
        except (ModelUnavailable, ModelRefused) as error:
            told = failed_usage(error)
            return (None, Usage(), []) if told is None else (None, told, [key.id])
        proposal = None
        if answer.finish_reason in DECLINED_STOPS:
            self._log.info("merge_unusable", stage=stage, reason=answer.finish_reason)
            return None, usage_of(answer), [key.id]
        try:
            text = read_merged(answer_text(answer))
        except UnreadableAnswer as error:
            self._log.info("merge_unusable", stage=stage, reason=error.kind)
        else:
            if not lint("", text, trajectory, ctx.parameters, bounded=False):
                sha256 = text_sha256(target.item.experience)
                proposal = MergeProposal(target=target.item.id, target_sha256=sha256, text=text)
        return proposal, usage_of(answer), [key.id]


def _opening_of(trajectory: Sequence[Message]) -> list[Message]:
    """The messages before the agent's first: where the task's text stands."""
    opening: list[Message] = []
    for message in trajectory:
        if message["role"] == "assistant":
            break
        opening.append(message)
    return opening


def _plain(value: Any, levels: int = _LEVELS) -> Any:
    """`value` with everything an event has a form for; a NaN or an infinity, and what is nested deeper, as text."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict() | list() | tuple() if levels == 0:
            return "nested too deep"
        case dict():
            return {str(name): _plain(one, levels - 1) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one, levels - 1) for one in value]
        case _:
            return value


def _facts(event: AnyEvent, models: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a stage's log line says: counts and words, never a body. `models`: of the header, by role."""
    facts: dict[str, Any] = {}
    match event:
        case Retrieved():
            chosen = sum(one.chosen for one in event.candidates)
            facts = {"stage": event.stage, "bank_version": event.bank_version, "candidates": len(event.candidates)}
            facts |= {"chosen": chosen, "source": event.source, "outcome": "recalled" if chosen else "empty"}
        case Planned():
            facts = {"stage": "planning", "model_role": "planner"}
            facts |= {"outcome": "planned" if event.plan else "empty"}
        case Executed():
            facts = {"stage": "execution", "model_role": "executor", "outcome": event.stop, "steps": event.steps}
            facts |= {"errors": event.errors, "environment_failures": len(event.attempts)}
        case Scored():
            facts = {"stage": "scoring", "outcome": "success" if event.success else "failure", "reward": event.reward}
        case Diagnosed():
            facts = {"stage": "gate", "model_role": "gate", "outcome": event.degraded or event.label}
            facts |= {"confidence_e4": event.confidence_e4, "misleading": len(event.misleading)}
            facts |= {"misleading_dropped": event.misleading_dropped}
            if event.unread is not UNSET:
                facts["unread"] = event.unread
        case Abandoned():
            facts = {"stage": event.stage, "outcome": "abandoned", "reason": event.reason}
        case _:
            pass
    if isinstance(event, Planned | Executed | Diagnosed):
        usage = event.usage
        if (model := models.get(facts["model_role"], {}).get("model")) is not None:
            facts["model"] = model
        facts |= {"calls": usage.calls, "tokens_in": usage.prompt_tokens, "tokens_out": usage.completion_tokens}
    return facts
