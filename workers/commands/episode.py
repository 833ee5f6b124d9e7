"""`chime episode`."""

import json
from typing import Any

import click
from msgspec import Struct

from events.codec import decode
from events.errors import BadInput
from events.ids import PROJECTOR_STREAM, episode_of, episode_stream
from events.kinds import AnyEvent, Diagnosed, Executed, Folded, Planned, Retrieved, Scored
from events.log import Recorded
from infra.calls import CallRecord, UnreadableCall, answer_of, calls_of, messages_of
from runtime.calls import call_usage
from runtime.gate import MEANT
from runtime.ports import ChatAnswer
from runtime.task import Message
from workers.connections import START, Source
from workers.invocation import Invocation, chime_command, run_async
from workers.output import Output
from workers.sources import opened, split_words
from workers.tables import Column
from workers.terminal import clipped
from workers.views.episodes import EpisodeRow, EpisodeRows, operation_name
from workers.views.usage import counted, usage_said


class Call(Struct, frozen=True, kw_only=True):
    """One recorded call with its bodies."""

    record: CallRecord
    messages: list[Message]
    answer: ChatAnswer | None


@chime_command("list", short_help="List the episodes of a run.")
@click.argument("run", required=False)
@click.option("--failed", is_flag=True, help="Only those that did not succeed; not those whose environment failed.")
@click.option("--label", type=click.Choice(["planning", "execution", "both", "none"]), help="Only this attribution.")
@click.option("--problems", is_flag=True, help="Only degraded, abandoned and cut short ones.")
def list_episodes(invocation: Invocation, run: str | None, failed: bool, label: str | None, problems: bool) -> None:
    """List the episodes of RUN (a run, an export file or folder; default: the newest run)."""

    async def work() -> list[EpisodeRow]:
        rows = EpisodeRows()
        async with opened(invocation, run) as source:
            async for page in source.log.pages(START):
                for recorded in page:
                    rows.feed(recorded)
            done = rows.done()
            for row in done:
                if row.abandoned:
                    row.calls = await _asked(source, row)
        return done

    shown = [
        row
        for row in run_async(work)
        if not (failed and (row.success is not False or not row.valid))
        and (label is None or row.label == label)
        and not (problems and (row.problem is None or row.problem in MEANT))
    ]
    invocation.output.data(shown)
    invocation.output.table(
        [
            Column("episode", "right"), Column("task"), Column("stage"), Column("success"), Column("label"),
            Column("confidence", "right"), Column("steps", "right"), Column("errors", "right"),
            Column("recalled", "right"), Column("calls", "right"), Column("fold"), Column("problem", wide=True),
        ],
        [_cells(row) for row in shown],
        empty="no episodes",
    )  # fmt: skip


async def _asked(source: Source, row: EpisodeRow) -> int:
    """Calls of an episode whose stage has left no event to count them in: those that are on record."""
    if source.calls is None:
        return row.calls
    try:
        records = await calls_of(source.calls, source.log.run, episode_stream(row.episode))
    except UnreadableCall:
        return row.calls
    return max(row.calls, len(records))


def _cells(row: EpisodeRow) -> list[object]:
    success = "not valid" if row.valid is False else {True: "yes", False: "no", None: ""}[row.success]
    confidence = "" if row.confidence_e4 is None else f"{row.confidence_e4 / 10_000:.2f}"
    steps = "" if row.steps is None else row.steps
    errors = "" if row.errors is None else row.errors
    return [
        row.episode, clipped(row.task, 40), row.stage, success, row.label, confidence, steps, errors, row.retrieved,
        row.calls, ", ".join(row.operations), row.problem or "",
    ]  # fmt: skip


@chime_command("show", short_help="Show one episode, stage by stage.")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] EPISODE")
@click.option("--prompts", is_flag=True, help="The messages as they were sent, and the answers.")
def show(invocation: Invocation, words: tuple[str, ...], prompts: bool) -> None:
    """Show one episode: what was recalled and why, plan, execution, score, diagnosis, and what the fold did."""
    run, (name,) = split_words(words, ("EPISODE",))
    t = episode_number(name)

    async def work() -> tuple[list[Recorded], Recorded | None, list[Call]]:
        async with opened(invocation, run) as source:
            events = await source.log.read_stream(episode_stream(t))
            if not events:
                raise BadInput(await _unknown(source, t))
            calls = await _calls(source, t) if prompts else []
            return events, await _fold_of(source, t), calls

    events, fold, calls = run_async(work)
    decoded = [(one, decode(one)) for one in events]
    invocation.output.data(
        {
            "episode": t,
            "events": [_plain(one) for one in events],
            "folded": _plain(fold) if fold else None,
            **({"calls": calls} if prompts else {}),
        }
    )
    _print(invocation.output, decoded, fold)
    for call in calls:
        _print_call(invocation.output, call)


def episode_number(name: str) -> int:
    """The number of an episode as people write it: `17` or `episode-17`.

    Raises:
        BadInput: neither.
    """
    number = episode_of(name) if name.startswith("episode-") else None
    if number is None and name.isascii() and name.isdigit():
        number = int(name)
    if number is None:
        raise BadInput(f"{name!r} is no episode: write its number, such as 17")
    return number


async def _unknown(source: Source, t: int) -> str:
    numbers = [n for n in map(episode_of, await source.log.index()) if n is not None]
    there = f"it has {min(numbers)} to {max(numbers)}" if numbers else "it has none yet"
    return f"run {source.log.run} has no episode {t}; {there} (chime episode list {source.log.run})"


async def _fold_of(source: Source, t: int) -> Recorded | None:
    index = (await source.log.index()).get(PROJECTOR_STREAM)
    if index is None or len(index.positions) <= t:
        return None
    position = index.positions[t]
    found = await source.log.read(type(position)(position - 1), 1)
    return found[0] if found else None


async def _calls(source: Source, t: int) -> list[Call]:
    if source.blobs is None or source.calls is None:
        raise BadInput("this export has no prompts; `chime log export RUN -o FILE --with-blobs` writes them along")
    records = await calls_of(source.calls, source.log.run, episode_stream(t))
    return [
        Call(
            record=record,
            messages=list(await messages_of(source.blobs, source.log.run, record)),
            answer=await answer_of(source.blobs, source.log.run, record),
        )
        for record in records
    ]


def _plain(recorded: Recorded) -> dict[str, Any]:
    """The event without the numbers of its vectors."""
    return {
        "id": recorded.id,
        "position": recorded.position,
        "kind": recorded.kind,
        "at": recorded.at,
        "attempt": recorded.attempt,
        "data": _without_vectors(json.loads(recorded.data)),
    }


def _without_vectors(value: Any) -> Any:
    match value:
        case {"dim": dim, "q24": _}:
            return {"dim": dim}
        case dict():
            return {name: _without_vectors(one) for name, one in value.items()}
        case list():
            return [_without_vectors(one) for one in value]
        case _:
            return value


def _print(output: Output, events: list[tuple[Recorded, AnyEvent]], fold: Recorded | None) -> None:
    for recorded, event in events:
        output.line(f"{recorded.version}. {recorded.kind}  {recorded.at}")
        match event:
            case Retrieved():
                _print_recall(output, event)
            case Planned():
                output.block(event.plan, indent="   ")
                output.line(f"   {usage_said(counted(event.usage))}")
            case Executed():
                crashes = "".join(f"; attempt {one.attempt} ended by {one.reason}" for one in event.attempts)
                output.line(f"   {event.steps} steps, {event.errors} errors, ended by {event.stop}{crashes}")
                output.line(f"   {usage_said(counted(event.usage))}")
            case Scored():
                word = "success" if event.success else "failure" if event.valid else "not valid: the environment failed"
                output.line(f"   {word}, reward {event.reward:g} ({event.evaluator.name} {event.evaluator.version})")
                if event.breakdown:
                    output.line(f"   {clipped(json.dumps(event.breakdown, ensure_ascii=False), 400)}")
            case Diagnosed():
                _print_diagnosis(output, event)
                if event.usage.calls:
                    output.line(f"   {usage_said(counted(event.usage))}")
            case _:
                output.line(f"   {recorded.data.decode()}")
    if fold is not None:
        _print_fold(output, fold)


def _print_recall(output: Output, event: Retrieved) -> None:
    output.line(f"   {event.stage} bank at version {event.bank_version}, {len(event.candidates)} candidates")
    output.table(
        [
            Column("   rank", "right"), Column("id"), Column("chosen"), Column("similarity", "right"),
            Column("n", "right"), Column("adjusted value", "right"), Column("score", "right"),
        ],
        [
            [one.rank, one.id, "yes" if one.chosen else "", f"{one.similarity:.4f}", one.n, f"{one.adjusted:+.4f}",
             f"{one.score:.4f}"]
            for one in event.candidates
        ],
    )  # fmt: skip


def _print_diagnosis(output: Output, event: Diagnosed) -> None:
    if event.degraded is not None:
        output.line(f"   no usable judgement: {event.degraded}; no bank changes")
        return
    output.line(f"   earned by {event.label}, confidence {event.confidence_e4 / 10_000:.2f}")
    if event.misleading:
        output.line(f"   misleading: {', '.join(event.misleading)}")
    for stage in ("planning", "execution"):
        new = event.experiences.planning if stage == "planning" else event.experiences.execution
        if new is not None:
            lint = f" (not acceptable: {', '.join(new.lint) or 'not concrete or not actionable'})"
            output.line(f"   {stage} experience{'' if new.acceptable else lint}: when {new.scenario}")
            output.block(new.experience, indent="     ")


def _print_fold(output: Output, recorded: Recorded) -> None:
    event = decode(recorded)
    assert isinstance(event, Folded)  # noqa: S101 - the projector's stream holds nothing else
    output.line(f"folded into version {event.bank_version}  digest {event.digest[:16]}")
    for operation in event.operations:
        facts = {name: getattr(operation, name) for name in operation.__struct_fields__}
        told = ", ".join(f"{name} {value}" for name, value in facts.items())
        output.line(f"   {operation_name(operation)}: {told}")


def _print_call(output: Output, call: Call) -> None:
    record = call.record
    output.line()
    failed = f"failed: {record.error}: {record.reason}" if record.error else record.finish_reason
    model = record.model or record.asked or "-"  # nobody answered a call that failed: the one that was asked
    output.line(f"call {record.id}  {record.role}  {model}  {record.latency_ms} ms  {failed}")
    if not record.error:
        output.line(f"   {usage_said(counted(call_usage(record.usage)))}")
    for message in call.messages:
        output.line(f"--- {message.get('role', '')}")
        content = message.get("content")
        output.block(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
        for tool_call in message.get("tool_calls") or []:
            output.line(f"    calls {json.dumps(tool_call, ensure_ascii=False)}")
    if call.answer is not None:
        output.line("--- answer")
        output.block(call.answer.content)
        for asked in call.answer.tool_calls:
            output.line(f"    calls {asked.name}({asked.arguments})")
