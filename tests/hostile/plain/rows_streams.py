"""Answers that are read as they are written: odd streams that are fine, and streams that are none."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from hostile_rows import (
    EXECUTOR,
    PLANNER,
    Row,
    abandoned,
    both,
    failed_steps,
    of,
    refused,
    repaired,
    retried,
    stopped,
    unavailable,
    used,
)
from hostile_wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Asked,
    Body,
    Reply,
    always,
    chunk,
    chunks_of,
    cut,
    dripping,
    event,
    events,
    first,
    flooding,
    hanging,
    http,
    piece,
    reset,
    streamed,
)

_STREAM = {"stream": True}
_SOON = {"stream": True, "timeout_s": 20.0, "retries": 1}
THOUGHT = "THOUGHT-5a1e"


def row(name: str, **given: Any) -> Row:
    return Row(name=f"stream: {name}", area="streams", **{"endpoint": _STREAM, **given})


def _stream(write: Callable[[Body], bytes]) -> Any:
    """The healthy completion as the body of a stream that `write` gives."""

    def play(asked: Asked) -> Reply:
        return streamed(write(asked.healthy))

    return play


def _chunks(change: Callable[[list[Body]], Sequence[Any]], *, usage: bool = True, done: bool = True) -> Any:
    """The healthy stream with other chunks."""
    return _stream(lambda plain: events(change(chunks_of(plain, usage=usage)), done=done))


def _each(change: Callable[[Body], Any]) -> Any:
    """The healthy stream with each chunk changed in place."""

    def all_of(found: list[Body]) -> list[Body]:
        for one in found:
            change(one)
        return found

    return _chunks(all_of)


def _delta(one: Body) -> Body:
    found: Body = one["choices"][0]["delta"] if one.get("choices") else {}
    return found


def _each_call(change: Callable[[Body], Any]) -> Any:
    def do(one: Body) -> None:
        for call in _delta(one).get("tool_calls") or ():
            change(call)

    return _each(do)


def _usage_everywhere(found: list[Body]) -> list[Body]:
    return [one | {"usage": {"prompt_tokens": 900, "completion_tokens": place, "total_tokens": 900 + place}}
            for place, one in enumerate(found)]  # fmt: skip


def _no_choices(found: list[Body]) -> list[Body]:
    """Chunks without `choices` among the others, as some servers send them."""
    last = found[-1]
    last.pop("choices")
    return [{"object": "chat.completion.chunk", "id": "x"}, {"object": "x", "choices": None}, *found]


def _whole_calls(plain: Body) -> bytes:
    """Each call in one chunk, all at index 0, told apart by their ids."""
    message = plain["choices"][0]["message"]
    found = [chunk({"role": "assistant", "content": message.get("content")})]
    for number, one in enumerate(message.get("tool_calls") or ()):
        found.append(chunk({"tool_calls": [one | {"index": 0, "id": f"call_{number}"}]}))
    found.append(chunk({}, plain["choices"][0]["finish_reason"]))
    return events([*found, {"choices": [], "usage": plain["usage"]}])


def _thinking(plain: Body) -> bytes:
    thoughts = [chunk({"reasoning_content": THOUGHT[:4]}), chunk({"reasoning_content": THOUGHT[4:]})]
    return events([*thoughts, *chunks_of(plain)])


def _pieces(size: int) -> Any:
    """The healthy stream in pieces of `size` bytes, so that characters and lines are cut."""

    def play(asked: Asked) -> Reply:
        data = events(chunks_of(asked.healthy))
        cuts = [data[start : start + size] for start in range(0, len(data), size)]
        return STREAM_HEAD + b"".join(map(piece, cuts)) + LAST_CHUNK

    return play


def _in_the_middle(*sent: bytes) -> bytes:
    """A stream that begins well, and then has these."""
    return STREAM_HEAD + b"".join(map(piece, (event(chunk({"role": "assistant", "content": "half "})), *sent)))


def _error(error: Any) -> bytes:
    return _in_the_middle(event({"error": error})) + LAST_CHUNK


_HALF = events([chunk({"content": "half of it"})], done=False)

_UNCOUNTED = used(usage="estimated", flags=("usage_estimated",))

FINE: dict[str, Any] = {
    "as it should be": always(None),
    "usage with every chunk": _chunks(_usage_everywhere),
    "chunks without choices": _chunks(_no_choices),
    "no [DONE]": _chunks(lambda found: found, done=False),
    "words behind [DONE]": _stream(lambda plain: events(chunks_of(plain)) + event(chunk({"content": "MORE"}))),
    "comments and empty lines": _stream(lambda plain: b": ping\n\n\n" + b": ping\n\n".join(
        event(one) for one in chunks_of(plain)) + DONE),
    "names, ids and times of events": _stream(lambda plain: b"retry: 10\n\n" + b"".join(
        b"event: message\nid: 7\n" + event(one) for one in chunks_of(plain)) + DONE),
    "lines that end as Windows ends them": _stream(lambda plain: events(chunks_of(plain)).replace(b"\n", b"\r\n")),
    "lines that end in returns": _stream(lambda plain: events(chunks_of(plain)).replace(b"\n", b"\r")),
    "no space behind the colon": _stream(lambda plain: events(chunks_of(plain)).replace(b"data: ", b"data:")),
    "a mark in front": _stream(lambda plain: b"\xef\xbb\xbf" + events(chunks_of(plain))),
    "events of several lines": _stream(lambda plain: b"".join(
        b"".join(b"data: %b\n" % line for line in json.dumps(one, indent=1).encode().split(b"\n")) + b"\n"
        for one in chunks_of(plain)) + DONE),
    "byte by byte": _pieces(1),
    "in pieces that cut characters": _pieces(7),
    "the whole answer as one chunk": _stream(lambda plain: events(chunks_of(plain, size=10**9))),
    "a completion in place of a stream": lambda asked: http(200, asked.healthy),
    "a completion inside one event": _stream(lambda plain: event(plain) + DONE),
    "JSON that is called an event stream": lambda asked: http(200, asked.healthy, content_type="text/event-stream"),
    "an event stream that is called JSON": lambda asked: streamed(events(chunks_of(asked.healthy)), "application/json"),
    "deltas with nulls": _each(lambda one: _delta(one).setdefault("tool_calls", None)),
    "a role with every delta": _each(lambda one: _delta(one).update(role="assistant")),
    "another id with every chunk": _chunks(lambda found: [one | {"id": f"x{n}"} for n, one in enumerate(found)]),
    "calls told apart by ids alone": _stream(_whole_calls),
    "calls without an index": _each_call(lambda call: call.pop("index", None)),
    "an id with every piece of a call": _each_call(lambda call: call.update(id=f"call_{call['index']}")),
    "empty ids in later pieces": _each_call(lambda call: call.setdefault("id", "")),
    "empty names in later pieces": _each_call(lambda call: call["function"].setdefault("name", "")),
    "thinking before the answer": _stream(_thinking),
    "events without data": _stream(lambda plain: b"data:\n\ndata: \n\n" + events(chunks_of(plain))),
    "Anthropic: pings as events": _stream(lambda plain: b'event: ping\ndata: {"type": "ping"}\n\n'
                                          + events(chunks_of(plain))),
    "indexes that are texts": _each(lambda one: [choice.update(index="0") for choice in one.get("choices") or ()]),
    "Azure: a filter's word first": _stream(lambda plain: event({"choices": [], "prompt_filter_results": [
        {"prompt_index": 0, "content_filter_results": {}}]}) + events(chunks_of(plain))),
    "an end that is said twice": _chunks(lambda found: [*found[:-1], found[-2], found[-1]]),
}  # fmt: skip

ROWS: list[Row] = [
    *(row(name, play=play, expect=used(), private=(THOUGHT,)) for name, play in FINE.items()),
    row("no usage", play=_chunks(lambda found: found, usage=False), expect=_UNCOUNTED),
    row("an end without a word why", play=_chunks(lambda found: found[:-2] + found[-1:]), expect=used()),
    *(row(f"{name}, always", play=always(reply), expect=unavailable("malformed")) for name, reply in {
        "nothing at all": streamed(b""),
        "[DONE] alone": streamed(DONE),
        "comments alone": streamed(b": ping\n\n: ping\n\n"),
        "events that are no JSON": streamed(b"data: hello\n\ndata: world\n\n" + DONE),
        "an event that breaks off": streamed(_HALF + b'data: {"choices": [{"del'),
        "events that are lists": streamed(events([[1], [2]])),
        "a page": streamed(b"<html><body>Log in</body></html>"),
        "bytes that are no text": streamed(b"data: \xff\xfe\xfa\n\n" + DONE),
        "half an answer and a clean end": streamed(_HALF),
        "null in the middle": streamed(_HALF + b"data: null\n\n"),
        "completions of the older kind": streamed(events([{"choices": [{"text": "fine", "finish_reason": "stop"}]}])),
        "events of Anthropic": streamed(b"".join(b"event: %b\ndata: %b\n\n" % (one, json.dumps({"type": one.decode()})
            .encode()) for one in (b"message_start", b"content_block_delta", b"message_stop"))),
        "an event a hundred thousand deep": streamed(b"data: " + b"[" * 100_000 + b"\n\n" + DONE),
    }.items()),
    *(row(f"{name}, always", play=always(doing), expect=unavailable("connection")) for name, doing in {
        "breaks off in the middle": cut(_in_the_middle()),
        "resets in the middle": reset(_in_the_middle()),
        "breaks off inside an event": cut(_in_the_middle(b'data: {"choices": [{"de')),
    }.items()),
    row("breaks off in the middle, once", play=first(cut(_in_the_middle())), expect=retried("connection")),
    *(row(name, play=always(doing), expect=unavailable("timeout", tries=2), endpoint=_SOON) for name, doing in {
        "stops in the middle": hanging(_in_the_middle()),
        "pings for ever": dripping(STREAM_HEAD, piece(b": ping\n\n")),
        "drips one letter after the other": dripping(STREAM_HEAD, piece(event(chunk({"content": "a"})))),
        "never ends its connection": hanging(_in_the_middle(event(chunk({"content": "b"})))),
    }.items()),
    row("floods with one line", expect=unavailable("malformed"),
        play=always(flooding(STREAM_HEAD + piece(b"data: "), piece(b"x" * (1 << 20))))),
    row("floods with words", expect=both(_UNCOUNTED, abandoned("length", 2)), roles=PLANNER,
        play=always(flooding(STREAM_HEAD, piece(event(chunk({"content": "word " * 10_000})))))),
    row("an error in the middle: upstream", play=first(_error({"message": "upstream went away"})),
        expect=retried("malformed")),
    row("an error in the middle: 429", play=first(_error({"message": "slow down", "code": 429})),
        expect=retried("rate_limited")),
    row("an error in the middle: 401", play=always(_error({"message": "key revoked", "code": 401})),
        expect=stopped("key")),
    row("an error in the middle: 400", play=always(_error({"message": "bad request", "code": 400})),
        expect=refused("refused")),
    row("an error event", play=first(streamed(b'event: error\ndata: {"message": "overloaded"}\n\n')),
        expect=retried("malformed")),
    row("vLLM: an error as a chunk", play=first(streamed(_HALF + event({"object": "error", "message": "engine is dead",
        "type": "InternalServerError", "code": 503}))), expect=retried("unavailable")),
    row("an error event: 429", play=first(streamed(b'event: error\ndata: {"message": "slow", "code": 429}\n\n')),
        expect=retried("rate_limited")),
    row("a 503 in place of a stream", play=first(http(503, "busy")), expect=retried("unavailable")),
    row("cut at the limit, once", expect=both(_UNCOUNTED, of(planner=used(answers=2), executor=failed_steps(1),
                                                             gate=repaired())),
        play=first(streamed(events([chunk({"content": '{"label": "bo'}), chunk({}, "length")])))),
    row("arguments that end early", roles=EXECUTOR, expect=both(_UNCOUNTED, failed_steps(1)), play=first(
        streamed(events([
        chunk({"tool_calls": [{"index": 0, "id": "a", "type": "function",
                               "function": {"name": "inspect", "arguments": '{"order'}}]}),
        chunk({}, "tool_calls")])))),
]  # fmt: skip
