"""`chime call`: every question to a model, what came back, and the same question once more."""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast, get_args

import click
import msgspec
from msgspec import Struct

from events.errors import BadInput
from events.ids import StreamId, episode_stream
from infra.calls import CallRecord, Wire, answer_of, calls_of, messages_of, request_of, wire_of
from infra.clock import SystemClock
from infra.openai_client import Clients
from infra.openai_model import OpenAIModel
from runtime.calls import call_usage
from runtime.ports import Blobs, CallKey, ChatAnswer, Role
from runtime.settings import EndpointSettings, ModelSettings
from runtime.task import Message
from workers.commands.episode import episode_number
from workers.configuration import NOWHERE
from workers.connections import Source
from workers.header import recorded_head
from workers.invocation import Invocation, chime_command, run_async
from workers.operational import operational_of
from workers.output import Output
from workers.sources import opened, split_words
from workers.tables import Column
from workers.terminal import clipped
from workers.views.usage import completion_said, counted, prompt_said, usage_said

#: how much of a body a person is shown, characters
_SHOWN = 4000
#: how many calls a line names that are there instead of the one that was asked for
_NAMED = 8


class ShownCall(Struct, frozen=True, kw_only=True):
    """One call with its bodies."""

    record: CallRecord
    messages: list[Message]
    answer: ChatAnswer | None
    wire: Wire


class Replayed(Struct, frozen=True, kw_only=True):
    """A call that was made once more, beside what is recorded."""

    call: str
    #: that was asked now
    base_url: str
    model: str
    recorded: ChatAnswer | None
    now: ChatAnswer
    #: whether text, calls and the reason for the end are the same
    same: bool


@chime_command("list", short_help="List the model calls of a run.")
@click.argument("run", required=False)
@click.option("--episode", metavar="T", help="Only those of this episode.")
@click.option("--role", type=click.Choice(get_args(Role)), help="Only those of this role.")
@click.option("--failed", is_flag=True, help="Only those that got no answer.")
@click.option("--odd", is_flag=True, help="Only those that failed, took several requests, or had something odd.")
def list_calls(
    invocation: Invocation, run: str | None, episode: str | None, role: str | None, failed: bool, odd: bool
) -> None:
    """List every model call of RUN (a run, an export file or folder; default: the newest run), as it was made."""
    stream = episode_stream(episode_number(episode)) if episode is not None else None

    async def work() -> list[CallRecord]:
        async with opened(invocation, run) as source:
            return await _records(source, stream)

    records = run_async(work)
    shown = [
        one
        for one in records
        if (role is None or one.role == role)
        and not (failed and not one.error)
        and not (odd and not (one.error or one.requests > 1 or one.flags or one.left_out))
    ]
    invocation.output.data(shown)
    invocation.output.table(
        [
            Column("call"), Column("role"), Column("model"), Column("came to"), Column("ms", "right"),
            Column("first byte", "right"), Column("tokens in", "right"), Column("cached", "right"),
            Column("out", "right"), Column("requests", "right"), Column("odd", wide=True),
        ],
        [_cells(one) for one in shown],
        empty="no such calls" if records else "no calls",
    )  # fmt: skip


def _cells(one: CallRecord) -> list[object]:
    usage = counted(call_usage(one.usage))
    told = [*one.flags, *([f"{one.left_out} characters left out"] if one.left_out else []), one.reason]
    return [
        one.id, one.role, clipped(one.model or one.asked, 30), one.error or one.finish_reason, one.latency_ms,
        "" if one.first_byte_ms is None else one.first_byte_ms,
        prompt_said(usage), "" if usage.cached_tokens is None else f"{usage.cached_tokens:,}", completion_said(usage),
        one.requests or "",
        clipped("; ".join(filter(None, told)), 100),
    ]  # fmt: skip


@chime_command("show", short_help="Show one call: what was sent, what came back.")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] CALL")
@click.option("--whole", is_flag=True, help="Bodies in full, however long.")
def show(invocation: Invocation, words: tuple[str, ...], whole: bool) -> None:
    """Show one call, such as episode-3/planning/1: messages, the body that was sent, the body that came, the answer.

    Of a call that was made again after it had failed, every time is shown.
    """
    run, (name,) = split_words(words, ("CALL",))

    async def work() -> list[ShownCall]:
        async with opened(invocation, run) as source:
            return [await _shown(source, record) for record in await _named(source, name)]

    found = run_async(work)
    invocation.output.data(found)
    for one in found:
        _print(invocation.output, one, None if whole else _SHOWN)


@chime_command("replay", short_help="Ask one call's question again, and compare.")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] CALL")
@click.option("--base-url", metavar="URL", help="Ask this endpoint (default: where the run asks).")
@click.option("--model", metavar="NAME", help="Ask this model (default: the run's).")
@click.option("--api-key-env", metavar="NAME", help="Variable that holds the key (default: the run's).")
@click.option(
    "--timeout",
    "limit_s",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait no longer for the answer, all tries together.",
)
def replay(
    invocation: Invocation,
    words: tuple[str, ...],
    base_url: str | None,
    model: str | None,
    api_key_env: str | None,
    limit_s: float,
) -> int:
    """Send one recorded question again and show how the answer differs; 1 where it does. Nothing is recorded."""
    run, (name,) = split_words(words, ("CALL",))
    asked = {"base_url": base_url, "api_key_env": api_key_env}
    changes = {key: value for key, value in asked.items() if value is not None}

    async def work() -> Replayed:
        async with opened(invocation, run) as source:
            record = (await _named(source, name))[-1]
            return await _again(invocation, source, record, changes | {"deadline_s": limit_s}, model)

    found = run_async(work)
    output = invocation.output
    output.data(found)
    output.line(f"call {found.call} asked again: {found.model} at {found.base_url}")
    if found.recorded is None:
        output.line("the recorded call got no answer; now it did:")
        _print_answer(output, found.now, None)
    elif found.same:
        output.line("the same answer")
    else:
        for line in _differences(found.recorded, found.now):
            output.line(line)
    return 0 if found.same else 1


async def _records(source: Source, stream: StreamId | None = None) -> list[CallRecord]:
    if source.calls is None:
        raise BadInput("this export has no calls; `chime log export RUN -o FILE --with-blobs` writes them along")
    return await calls_of(source.calls, source.log.run, stream)


async def _named(source: Source, name: str) -> list[CallRecord]:
    """Every record of a call, in the order in which they were made.

    Raises:
        BadInput: there is none; names the calls there are.
    """
    stream, sign, _ = name.partition("/")
    records = await _records(source, StreamId(stream) if sign else None)
    found = [one for one in records if one.id == name]
    if not found:
        ids = list(dict.fromkeys(one.id for one in records))
        there = ", ".join(ids[:_NAMED]) + (f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "") or "none"
        where = f"of {stream} " if sign else ""
        raise BadInput(f"run {source.log.run} has no call {name!r}; {where}there is {there} (chime call list)")
    return found


def _bodies(source: Source) -> Blobs:
    if source.blobs is None:
        raise BadInput("this export has no bodies; `chime log export RUN -o FILE --with-blobs` writes them along")
    return source.blobs


async def _shown(source: Source, record: CallRecord) -> ShownCall:
    blobs, run = _bodies(source), source.log.run
    return ShownCall(
        record=record,
        messages=list(await messages_of(blobs, run, record)),
        answer=await answer_of(blobs, run, record),
        wire=await wire_of(blobs, run, record),
    )


async def _again(
    invocation: Invocation, source: Source, record: CallRecord, changes: Mapping[str, Any], model: str | None
) -> Replayed:
    """The question of `record` to the run's endpoint, or another one.

    Raises:
        BadInput: the run has no endpoint, or its header says nothing of it.
        ModelUnavailable, ModelRefused, RunStopped: it is not answered.
    """
    blobs = _bodies(source)
    header = (await recorded_head(source.log)).started
    operational = await operational_of(source.log, header)
    role = cast("Role", record.role)
    try:
        settings = msgspec.convert(header.config.models[role], ModelSettings)
        endpoint = msgspec.convert({**operational.get("endpoints", {})[role], **changes}, EndpointSettings)
    except (KeyError, msgspec.ValidationError) as error:
        raise BadInput(f"the run's header does not say how the {role} is asked: {error}") from error
    if endpoint.base_url == NOWHERE:
        raise BadInput("the run was played from recorded answers and has no endpoint: give --base-url URL")
    settings = msgspec.structs.replace(settings, model=model or settings.model)
    request = await request_of(blobs, source.log.run, record)
    recorded = await answer_of(blobs, source.log.run, record)
    stream, stage, ordinal = record.id.split("/")
    key = CallKey(run=source.log.run, stream=StreamId(stream), stage=stage, ordinal=int(ordinal.partition(".")[0]))
    async with AsyncExitStack() as stack:
        clock = SystemClock()
        clients = Clients(invocation.environment, clock, stack)
        answer = await OpenAIModel({role: settings}, {role: endpoint}, clients, clock).complete(request, key)
    same = recorded is not None and not list(_differences(recorded, answer))
    return Replayed(
        call=record.id, base_url=endpoint.base_url, model=settings.model, recorded=recorded, now=answer, same=same
    )


def _differences(recorded: ChatAnswer, now: ChatAnswer) -> Iterator[str]:
    """A unified diff of what two answers come to."""
    yield from difflib.unified_diff(_lines(recorded), _lines(now), "recorded", "now", lineterm="")


def _lines(answer: ChatAnswer) -> Sequence[str]:
    # Ids are the endpoint's whim, and no part of the answer.
    calls = [f"calls {call.name}({call.arguments})" for call in answer.tool_calls]
    return [*answer.content.splitlines(), *calls, f"[{answer.finish_reason}]"]


def _print(output: Output, one: ShownCall, limit: int | None) -> None:
    record = one.record
    output.line(f"call {record.id}  {record.role}  {record.model or record.asked or '-'}  {record.at}")
    output.facts(
        {
            "came to": f"{record.error}: {record.reason}" if record.error else record.finish_reason,
            "took": f"{record.latency_ms} ms"
            + ("" if record.first_byte_ms is None else f", first byte after {record.first_byte_ms} ms"),
            "usage": usage_said(counted(call_usage(record.usage))),
            "requests": record.requests or "not told",
            **({"before": "; ".join(record.before)} if record.before else {}),
            **({"odd": ", ".join(record.flags)} if record.flags else {}),
            **({"left out": f"{record.left_out} characters"} if record.left_out else {}),
        }
    )
    for message in one.messages:
        output.line(f"--- {message.get('role', '')}")
        content = message.get("content")
        output.block(_cut(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), limit))
        for call in message.get("tool_calls") or []:
            output.line(f"    calls {json.dumps(call, ensure_ascii=False)}")
    if one.wire.sent is not None:
        beside = {name: value for name, value in one.wire.sent.items() if name != "messages"}
        output.line("--- sent beside the messages")
        output.block(_cut(json.dumps(beside, ensure_ascii=False), limit))
        if one.wire.sent.get("messages") != one.messages:
            output.line("--- messages as they were sent")
            output.block(_cut(json.dumps(one.wire.sent.get("messages"), ensure_ascii=False), limit))
    if one.wire.received is not None:
        output.line("--- received")
        output.block(_cut(one.wire.received, limit))
    if one.answer is not None:
        _print_answer(output, one.answer, limit)
    output.line()


def _print_answer(output: Output, answer: ChatAnswer, limit: int | None) -> None:
    output.line("--- answer")
    output.block(_cut(answer.content, limit))
    for call in answer.tool_calls:
        output.line(f"    calls {call.name}({call.arguments})")
    if answer.reasoning:
        output.line("--- thinking")
        output.block(_cut(answer.reasoning, limit))


def _cut(text: str, limit: int | None) -> str:
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit} more characters: --whole]"
