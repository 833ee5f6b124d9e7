"""Streams as servers really send them, put together into the completion that they would have been."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_endpoint import ASKING_SCHEMA, OK, REQUEST, Reply, asking, http

from infra.event_stream import Assembly, begins_no_document, is_event_stream, looks_like_events
from infra.model_errors import Failed
from runtime.errors import ModelUnavailable
from runtime.ports import ChatAnswer

DONE = b"data: [DONE]\n\n"


def chunk(delta: Any = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    return {"id": "c-1", "model": "m-1", "choices": [choice]} | more


def events(*chunks: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks)


def assembled(data: bytes, cap: int | None = None, size: int = 0) -> dict[str, Any]:
    assembly = Assembly(cap)
    for at in range(0, len(data), size or len(data) or 1):
        if assembly.is_over:
            break
        assembly.feed(data[at : at + (size or len(data))])
    plain = json.loads(assembly.end())
    assert isinstance(plain, dict)
    return plain


def message(data: bytes, cap: int | None = None, size: int = 0) -> dict[str, Any]:
    [choice] = assembled(data, cap, size)["choices"]
    assert isinstance(choice["message"], dict)
    return choice["message"]


def call(index: object = None, id_: object = None, name: object = None, arguments: object = None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    head = {key: value for key, value in (("index", index), ("id", id_)) if value is not None}
    return chunk({"tool_calls": [head | {"function": function}]})


END = chunk(finish="stop")
HELLO = events(chunk({"role": "assistant", "content": ""}), chunk({"content": "Hel"}), chunk({"content": "lo"}), END)


@pytest.mark.parametrize(
    "data",
    [
        HELLO + DONE,
        HELLO,
        HELLO.replace(b"\n", b"\r\n") + DONE,
        HELLO.replace(b"\n", b"\r") + DONE,
        HELLO.replace(b"data: ", b"data:") + DONE,
        b"\xef\xbb\xbf" + HELLO + DONE,
        (HELLO + DONE).rstrip(b"\n"),
        HELLO.replace(b"\n\n", b"\n"),
        HELLO.replace(b"\n\n", b"\n") + b"data: [DONE]\n",
        HELLO.replace(b'"choices"', b'\ndata: "choices"') + DONE,
        b": waiting\n\n" + HELLO.replace(b"\n\n", b"\n\n: still there\n\n") + DONE,
        HELLO.replace(b"data: ", b"event: message\nid: 7\nretry: 10\nunknown\ndata: ") + DONE,
        events({"object": "ping"}, {"choices": []}, {"choices": None}, {"choices": ["x"]}) + HELLO + DONE,
        events(chunk({"content": "other"}) | {"choices": [{"index": 1, "delta": {"content": "x"}}]}) + HELLO + DONE,
        HELLO + events({"choices": [], "usage": {"prompt_tokens": 3}}, {"choices": [{"index": 0}]}) + DONE,
        events(chunk({"content": "Hel"}), chunk({"content": "lo"})) + DONE,
        events(chunk({"content": "Hello"}, "stop", error=None)) + DONE,
        events(chunk({"content": [{"type": "text", "text": "Hel"}, {"type": "x"}, "lo"]}), END),
        events(chunk({"content": "Hel"}), {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}),
        events({"choices": [{"delta": {"content": "Hello"}, "finish_reason": "stop"}]}),
        HELLO + DONE + b"data: no JSON\n\n" + HELLO,
        b"data:\n\ndata: \n\n" + HELLO + DONE,
        b'event: ping\ndata: {"type": "ping"}\n\n' + HELLO + DONE,
        events({"choices": [{"index": "0", "delta": {"content": "Hello"}, "finish_reason": "stop"}]}),
    ],
    ids=[
        "as it should be", "no end mark", "CRLF", "CR", "no space", "a byte order mark", "no end of the last line",
        "no empty lines", "no empty lines, an end mark", "several data lines", "comments", "other fields",
        "chunks without choices", "another choice", "usage behind the end", "no finish_reason", "error: null",
        "content in parts", "the whole message at the end", "no index, no id", "anything behind the end mark",
        "events without data", "pings", "an index that is a text",
    ],
)  # fmt: skip
def test_an_answer_in_pieces_is_one(data: bytes) -> None:
    """However the pieces are framed, and however they arrive."""
    for size in (0, 1, 7):
        assert message(data, size=size)["content"] == "Hello"


@given(st.lists(st.integers(1, 40), min_size=1), st.sampled_from(["\n", "\r\n", "\r"]))
def test_where_parts_are_cut_does_not_matter(sizes: list[int], line_end: str) -> None:
    """Inside a character, a line's end or a field's name."""
    plain = events(chunk({"content": "Grüße, 世界"}), call(0, "a", "look", '{"x": 1}'), END) + DONE
    data = plain.replace(b"\\u00fc", "ü".encode()).replace(b"\n", line_end.encode())
    assembly, at = Assembly(None), 0
    for number in range(len(data)):
        size = sizes[number % len(sizes)]
        if not assembly.is_over:
            assembly.feed(data[at : at + size])
        at += size
    assert assembly.end() == Assembled(data).body


class Assembled:
    """The same in one part."""

    def __init__(self, data: bytes) -> None:
        assembly = Assembly(None)
        assembly.feed(data)
        self.body = assembly.end()


def test_a_completion_keeps_what_its_chunks_say_of_it() -> None:
    """Model, fingerprint and the last usage; thinking and a refusal in fields of their own; the reason of the end."""
    whole = assembled(
        events(
            chunk({"reasoning_content": "Let"}, system_fingerprint="f", usage={"completion_tokens": 1}),
            chunk({"reasoning": " me"}, model=""),
            chunk({"refusal": "No."}),
            chunk({"content": ""}, "content_filter", usage={"completion_tokens": 2}),
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}},
            {"choices": [], "usage": None},
        )
        + DONE
    )
    assert (whole["model"], whole["system_fingerprint"], whole["usage"]["completion_tokens"]) == ("m-1", "f", 3)
    [choice] = whole["choices"]
    assert choice["finish_reason"] == "content_filter"
    assert choice["message"] == {
        "role": "assistant", "content": None, "reasoning_content": "Let me", "refusal": "No.",
    }  # fmt: skip


A, B = '{"x": 1}', '{"y": 2}'


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([call(0, "a", "look"), call(0, None, None, '{"x"'), call(0, None, None, ": 1}")], [("a", "look", A)]),
        ([call(0, "a", "look", A), call(1, "b", "go", B)], [("a", "look", A), ("b", "go", B)]),
        ([call(0, "a", "look", A), call(0, "b", "go", B)], [("a", "look", A), ("b", "go", B)]),
        (
            [call(0, "a", "look"), call(1, "b", "go"), call(0, None, None, A), call(1, None, None, B)],
            [("a", "look", A), ("b", "go", B)],
        ),
        ([call(None, "a", "look"), call(None, None, None, A)], [("a", "look", A)]),
        ([call(None, "a", "look", A), call(None, "b", "go", B)], [("a", "look", A), ("b", "go", B)]),
        ([call(None, None, "look", A), call(None, None, "go", B)], [("", "look", A), ("", "go", B)]),
        ([call(None, None, "look", A), call(None, None, "look", B)], [("", "look", A), ("", "look", B)]),
        ([call(0, "a", "look", '{"x"'), call(0, "a", "look", ": 1}")], [("a", "look", A)]),
        ([call(0, "a", "look", A), call(0, "a", "look", "")], [("a", "look", A)]),
        ([call(0, "a", "look", A), call(1, "a", "look", B)], [("a", "look", A), ("a", "look", B)]),
        ([call(0, "a", "look", A), call(0, "a", "go", B)], [("a", "look", A), ("a", "go", B)]),
        ([call(0, None, "look"), call(0, "a", None, A)], [("a", "look", A)]),
        ([call(0, "a", "lo"), call(0, None, "ok"), call(0, None, None, A)], [("a", "look", A)]),
        ([call(0, "a", "look", {"x": 1})], [("a", "look", A)]),
        ([call(0, "a", "look"), call(0, "a", "look")], [("a", "look", "")]),
        ([call(0, "", "look", '{"x"'), call(0, "", "", ": 1}")], [("", "look", A)]),
        ([call("0", 7, "look", A)], [("", "look", A)]),
    ],
    ids=[
        "as it should be", "two calls whole", "index always 0", "two calls in turn", "no index", "two without index",
        "neither id nor index", "neither, the same name", "id and name in each piece", "a last piece without anything",
        "an id twice, indices apart", "an id twice, names apart", "an id later", "a name in pieces",
        "arguments as an object", "a name twice and nothing else", "empty ids", "ids and indices of other types",
    ],
)  # fmt: skip
def test_pieces_of_tool_calls_find_each_other(pieces: list[Any], expected: list[tuple[str, str, str]]) -> None:
    """By id, by index, by order."""
    calls = message(events(*pieces, chunk(finish="tool_calls")) + DONE)["tool_calls"]
    assert [(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in calls] == expected


@pytest.mark.parametrize("given_", [None, "x", {"a": 1}, [None, 3, "x"], [{"function": None}, {"function": "look"}]])
def test_what_is_no_tool_call_is_none_with_a_name(given_: object) -> None:
    """Nothing is raised over it."""
    calls = message(events(chunk({"tool_calls": given_, "content": "x"}), END)).get("tool_calls", [])
    assert all(one["function"]["name"] == "" for one in calls)


@pytest.mark.parametrize(
    "data",
    [
        b"", b": only comments\n\n", HELLO[:-90], events(chunk({"content": "Hel"})),
        events(chunk({"content": "Hel"})) + b"data: {\n\n", b"data: no JSON\n\n", b"data: [1]\n\n" + DONE,
        b'data: "x"\n\n', b"data: \xff\xfe\n\n", b"data: " + b"[" * 100_000 + b"\n\n", HELLO[:40],
        events(chunk({"content": "Hel"})) + b"data: null\n\n", events({"choices": [{"text": "Hello"}]}) + DONE,
    ],
    ids=range(13),
)  # fmt: skip
def test_half_an_answer_is_none(data: bytes) -> None:
    """A stream that ends, or errs, before its answer does is a failed try."""
    with pytest.raises(Failed) as caught:
        assembled(data)
    assert caught.value.failure.kind == "malformed"


@pytest.mark.parametrize(
    "error",
    [{"error": {"message": "overloaded", "code": 503}}, {"error": "overloaded"}, chunk() | {"error": "overloaded"},
     {"choices": [{"error": {"message": "overloaded"}, "delta": {"content": ""}}]},
     {"object": "error", "message": "overloaded", "code": 503}],
)  # fmt: skip
def test_an_error_in_a_stream_is_the_answer(error: dict[str, Any]) -> None:
    """Whatever text came before and after it."""
    whole = assembled(events(chunk({"content": "Hel"}), error, chunk({"content": "lo"}), END) + DONE)
    assert "overloaded" in json.dumps(whole["error"])
    assert "choices" not in whole


def test_an_event_that_is_called_an_error_is_one() -> None:
    """Whatever shape it has; the next event is none for that."""
    whole = assembled(events(chunk({"content": "Hel"})) + b'event: error\ndata: {"message": "overloaded"}\n\n')
    assert whole == {"error": {"message": "overloaded"}}
    assert message(b"event: error\n\n" + HELLO)["content"] == "Hello"


ENDLESS = [chunk({"content": "word "}) for _ in range(1000)]


@pytest.mark.parametrize(
    "chunks",
    [
        ENDLESS,
        [chunk({"reasoning_content": "word "}) for _ in range(1000)],
        [call(0, "a", "look", '{"x": "'), *(call(0, None, None, "word ") for _ in range(1000))],
        [call(number, f"id{number}", "look", "{}") for number in range(1000)],
        [chunk({"content": " \n\t"}) for _ in range(1000)],
        [chunk({"content": "=" * 9}) for _ in range(1000)],
        [call(0, "a", "look", "\n" * 9) for _ in range(1000)],
        [chunk({"content": "a"}, usage={"completion_tokens": number}) for number in range(1000)],
        [chunk({"content": "ab" + "!" * 100_000})],
    ],
    ids=[
        "more than the cap", "thinking beyond the cap", "arguments beyond the cap", "calls beyond the cap",
        "white space", "one character", "white space in arguments", "counted beyond the cap", "all at once",
    ],
)  # fmt: skip
def test_an_answer_that_does_not_end_is_ended(chunks: list[Any]) -> None:
    """Closed by us, and said to be cut off; where it was cut does not hang on how it came in pieces."""
    cap = 200
    one, other = (assembled(events(*chunks), cap, size) for size in (0, 97))
    assert one == other
    assert one["choices"][0]["finish_reason"] == "length"
    assert len(json.dumps(one)) < 100_000
    assembly = Assembly(cap)
    assembly.feed(events(*chunks))
    assert assembly.is_over


def test_an_answer_within_its_cap_is_not_cut() -> None:
    """Whole words, long lines and long stretches of blanks are text."""
    text = "x" * 1990 + "\n" + " " * 1900 + "end " * 100
    chunks = [chunk({"content": text[at : at + 11]}) for at in range(0, len(text), 11)]
    assert message(events(*chunks, END), cap=400)["content"] == text
    assert message(events(*ENDLESS, END))["content"] == "word " * 1000


@pytest.mark.parametrize(
    ("content_type", "start", "labelled", "stream"),
    [
        ("text/event-stream; charset=utf-8", b"data: {}", True, True),
        ("TEXT/EVENT-STREAM", b"\n\n: hello", True, True),
        ("text/event-stream", b'{"choices": []}', True, False),
        ("text/event-stream", b"\xef\xbb\xbf <html>", True, False),
        ("application/json", b"data: {}", False, True),
        ("", b"event: error\ndata: {}", False, True),
        ("", b'{"data": 1}', False, False),
        ("", b"", False, False),
    ],
)
def test_a_stream_is_known_by_its_header_and_its_beginning(
    content_type: str, start: bytes, labelled: bool, stream: bool
) -> None:
    """Some servers put one behind the other's header."""
    assert is_event_stream(content_type) is labelled
    assert (begins_no_document(start) if labelled else looks_like_events(start)) is stream


# -- both ways -------------------------------------------------------------------------------------------------------

CALLS = [{"id": "a", "type": "function", "function": {"name": "look", "arguments": A}}]
MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"content": "fine"}, "stop"),
    ({"content": "Grüße, 世界 \U0001f600"}, "stop"),
    ({"content": ""}, "stop"),
    ({"content": None, "tool_calls": CALLS}, "tool_calls"),
    ({"content": "I look.", "tool_calls": [*CALLS, {**CALLS[0], "id": "b"}]}, "tool_calls"),
    ({"content": "42", "reasoning_content": "six times seven"}, "stop"),
    ({"content": "<think>six times seven</think>42"}, "stop"),
    ({"content": None, "reasoning": '{"plan": "go"}'}, "stop"),
    ({"content": '{"plan": "go'}, "length"),
    ({"content": None, "refusal": "I will not."}, "stop"),
    ({"content": ""}, "content_filter"),
]
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}


def streamed(said: dict[str, Any], finish: str) -> bytes:
    """The same answer, letter by letter."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name, value in said.items():
        if isinstance(value, str):
            deltas += [{name: letter} for letter in value]
    for index, one in enumerate(said.get("tool_calls", ())):
        head = {"index": index, "id": one["id"], "function": {"name": one["function"]["name"], "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        for letter in one["function"]["arguments"]:
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": letter}}]})
    last = {"id": "c-1", "model": "m-1", "choices": [], "usage": USAGE}
    return events(*map(chunk, deltas), chunk(finish=finish), last) + DONE


async def answered(reply: Reply, **changes: Any) -> ChatAnswer | str:
    async with asking(reply, retries=0, **changes) as asked:
        try:
            return await asked.complete(ASKING_SCHEMA)
        except ModelUnavailable as error:
            return error.kind


@pytest.mark.parametrize(("said", "finish"), MESSAGES, ids=range(len(MESSAGES)))
async def test_an_answer_is_the_same_streamed_and_whole(said: dict[str, Any], finish: str) -> None:
    """And also where a server streams unasked, without the header for it, or answers whole although asked to stream."""
    plain = {"model": "m-1", "choices": [{"message": said, "finish_reason": finish}], "usage": USAGE}
    whole = await answered(http(200, plain))
    stream = streamed(said, finish)
    sse = http(200, stream, content_type="text/event-stream")
    assert await answered(sse, stream=True) == whole
    assert await answered(sse) == whole
    assert await answered(http(200, stream)) == whole
    assert await answered(http(200, plain), stream=True) == whole
    assert await answered(http(200, json.dumps(plain), content_type="text/event-stream"), stream=True) == whole


async def test_a_stream_is_asked_for_with_its_usage() -> None:
    """Nothing else of the request differs."""
    async with asking(OK) as plain, asking(OK, stream=True) as stream:
        await plain.complete(REQUEST)
        await stream.complete(REQUEST)
    assert stream.bodies == [plain.bodies[0] | {"stream": True, "stream_options": {"include_usage": True}}]


async def test_an_answer_that_does_not_end_is_closed() -> None:
    """Long before the server is done; what was read so far is an answer cut off."""
    endless = events(*(chunk({"content": "word "}) for _ in range(100_000)))
    async with asking(http(200, endless, content_type="text/event-stream"), stream=True) as asked:
        answer = await asked.complete(REQUEST)
    assert answer.finish_reason == "length"
    assert len(answer.content) == 1024 * 12


async def test_a_stream_that_breaks_is_a_failed_try() -> None:
    """Another one is made; half an answer is nowhere."""
    half = http(200, HELLO, content_type="text/event-stream")[:-100]
    broken = half.replace(b"content-length", b"connection: close\r\nx-length")
    async with asking(broken, OK, stream=True) as asked:
        assert (await asked.complete(REQUEST)).content == "fine"
    assert len(asked.server.requests) == 2


async def test_a_stream_that_breaks_behind_its_end_is_whole() -> None:
    """Only the count of its tokens can be missing."""
    cut = http(200, HELLO + b"data: {", content_type="text/event-stream")[:-5]
    whole = cut.replace(b"HTTP/1.1 200 Said\r\n", b"HTTP/1.1 200 Said\r\nconnection: close\r\n")
    async with asking(whole, stream=True) as asked:
        assert (await asked.complete(REQUEST)).content == "Hello"
