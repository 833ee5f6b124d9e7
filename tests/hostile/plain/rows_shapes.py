"""200s that hold no completion, and completions that look odd and are fine."""

import json
from typing import Any

from hostile_rows import GATE, PLANNER, Row, both, changed, of, refused, retried, stopped, unavailable, used
from hostile_wire import DONE, Asked, Body, always, answering, chunk, completion, events, first, http, said, written


def row(name: str, **given: Any) -> Row:
    return Row(name=name, area="shapes", **given)


_UNCOUNTED = used(usage="estimated", flags=("usage_estimated",))
_STREAMING = {"stream": True, "stream_options": {"include_usage": True}}
_OK = {"role": "assistant", "content": "fine"}

NONE: dict[str, bytes] = {
    "a login page": http(200, "<!doctype html><title>Log in</title><form>...</form>", content_type="text/html"),
    "a page that says it is JSON": http(200, "<html>hello</html>"),
    "nothing": http(200, ""),
    "white space": http(200, " \n\t "),
    "204": http(204, "")[: -len("\r\n")] + b"\r\n",
    "null": http(200, "null"),
    "true": http(200, "true"),
    "a number": http(200, "42"),
    "a text": http(200, '"fine"'),
    "a list": http(200, "[]"),
    "an empty object": http(200, "{}"),
    "an answer in a list": http(200, [completion(_OK)]),
    "half an object": http(200, json.dumps(completion(_OK))[:-40]),
    "an object and a half": http(200, json.dumps(completion(_OK)) + '{"id": '),
    "two objects": http(200, json.dumps(completion(_OK)) * 2),
    "bytes that are no text": http(200, b'{"choices": [{"message": {"content": "\xff\xfe\xfa"}}]}'),
    "a hundred thousand brackets": http(200, b"[" * 100_000),
    "a number of ten thousand digits": http(200, b'{"usage": ' + b"9" * 10_000 + b"}"),
    "YAML": http(200, "choices:\n  - message: fine\n"),
    "choices null": http(200, {"choices": None}),
    "choices empty": http(200, {"choices": []}),
    "choices an object": http(200, {"choices": {"message": _OK}}),
    "choices a text": http(200, {"choices": "fine"}),
    "choices with nothing in them": http(200, {"choices": [None]}),
    "choices of texts": http(200, {"choices": ["fine"]}),
    "a choice without a message": http(200, {"choices": [{"index": 0, "finish_reason": "stop"}]}),
    "a message that is null": http(200, {"choices": [{"message": None}]}),
    "a message that is a text": http(200, {"choices": [{"message": "fine"}]}),
    "a message that is a list": http(200, {"choices": [{"message": [_OK]}]}),
    "an answer of the old completions": http(200, {"object": "text_completion", "choices": [{"text": "fine"}]}),
    "an answer of the responses API": http(200, {"object": "response", "output": [{"type": "message", "content": [
        {"type": "output_text", "text": "fine"}]}]}),
    "an answer of Anthropic": http(200, {"type": "message", "content": [{"type": "text", "text": "fine"}]}),
    "an answer of Ollama": http(200, {"model": "m", "message": _OK, "done": True}),
    "lines of Ollama": http(200, '{"message":{"content":"fi"},"done":false}\n{"done":true}\n'),
    "a list of models": http(200, {"object": "list", "data": [{"id": "m"}]}),
    "an answer of Gemini": http(200, {"candidates": [{"content": {"parts": [{"text": "fine"}]}}]}),
    "an answer of TGI": http(200, [{"generated_text": "fine"}]),
    "an answer of Cohere": http(200, {"message": {"content": [{"text": "x"}]}, "finish_reason": "COMPLETE"}),
    "an answer in a field": http(200, {"code": 0, "data": completion(_OK)}),
    "an answer in a text": http(200, json.dumps(json.dumps(completion(_OK)))),
    "an answer behind a guard against scripts": http(200, ")]}',\n" + json.dumps(completion(_OK))),
    "choices by number": http(200, {"choices": {"0": completion(_OK)["choices"][0]}}),
    "content that is false": http(200, completion({"role": "assistant", "content": False})),
    "choices twice": http(200, json.dumps(completion(_OK))[:-1] + ', "choices": []}'),
    "a code and a message": http(200, {"code": 1302, "msg": "busy, try later", "success": False}),
    "MiniMax: a status inside": http(200, {"base_resp": {"status_code": 1000, "status_msg": "unknown error"}}),
    "FastAPI: a detail": http(200, {"detail": "Internal"}),
    "OpenRouter: an error in the choice": http(200, {"choices": [{"error": {"message": "provider failed"},
                                                                  "message": {"content": ""}}]}),
    "an error that is a text": http(200, {"error": "upstream is busy"}),
    "an error without a code": http(200, {"error": {"message": "upstream is busy"}}),
    "an error that is true": http(200, {"error": True}),
    "Gemini: a message that is null and blocked": http(200, {"choices": [{"message": None, "finish_reason": None}]}),
}  # fmt: skip


def _odd(change: Any) -> Any:
    """The healthy completion, made odd; `change` alters it in place."""
    return answering(change)


def _message(plain: Body) -> Body:
    found: Body = plain["choices"][0]["message"]
    return found


def _set(**values: Any) -> Any:
    return _odd(lambda plain, asked: plain.update(values))


def _parts(plain: Body, asked: Asked) -> None:
    message = _message(plain)
    if text := message.get("content"):
        half = len(text) // 2
        message["content"] = [{"type": "text", "text": text[:half]}, {"type": "text", "text": text[half:]}]


def _encoded(encoding: str) -> Any:
    return lambda asked: http(200, json.dumps(asked.healthy).encode(encoding))


def _surrogate(plain: Body, asked: Asked) -> None:
    message = _message(plain)
    if message.get("content") and asked.role == "planner":
        message["content"] += "\ud800\udfff\ud83d lone"


def _control(plain: Body, asked: Asked) -> None:
    message = _message(plain)
    if message.get("content") and asked.role == "planner":
        message["content"] += "\x00\x1b[31m\u202e\ufeff\x07"


def _second_choice(plain: Body, asked: Asked) -> None:
    plain["choices"].append({"index": 1, "message": {"role": "assistant", "content": "OTHER"}, "finish_reason": "stop"})


def _long(plain: Body, asked: Asked) -> None:
    _message(plain)["content"] += "\nmore of it" * 100_000


def _other_type(content_type: str) -> Any:
    return lambda asked: http(200, asked.healthy, content_type=content_type)


ROWS: list[Row] = [
    *(row(f"{name}, always", play=always(reply), expect=unavailable("malformed")) for name, reply in NONE.items()),
    row("a login page, once", play=first(NONE["a login page"]), expect=retried("malformed")),
    row("no choices, twice", play=first(*[NONE["choices empty"]] * 2), expect=retried("malformed", "malformed")),
    row("an event stream that nobody asked for",
        play=lambda asked: written(asked.healthy, asked.body | _STREAMING), expect=used()),
    row("an event stream without an end, unasked", play=always(http(200, events([chunk({"content": "fi"})], done=False),
        content_type="text/event-stream")), expect=unavailable("malformed")),
    row("an event stream of nothing", play=always(http(200, DONE, content_type="text/event-stream")),
        expect=unavailable("malformed")),
    row("an error 429 in a 200", play=always(http(200, {"error": {"message": "slow down", "code": 429}})),
        expect=unavailable("rate_limited")),
    row("an error 401 in a 200", play=always(http(200, {"error": {"message": "No auth", "code": 401}})),
        expect=stopped("key")),
    row("an error 402 in a 200", play=always(http(200, {"error": {"message": "Insufficient credits", "code": 402}})),
        expect=stopped("quota")),
    row("an error 400 in a 200", play=always(http(200, {"error": {"message": "bad request", "code": 400}})),
        expect=refused("refused")),
    row("Anthropic: a limit in a 200", expect=unavailable("rate_limited"), play=always(http(200, {
        "type": "error", "error": {"type": "rate_limit_error", "message": "This would exceed your rate limit"}}))),
    row("Anthropic: a wrong key in a 200", expect=stopped("key"), play=always(http(200, {
        "type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}))),
    row("MiniMax: a wrong key in a 200", expect=stopped("key"), play=always(http(200, {"base_resp": {
        "status_code": 1004, "status_msg": "login fail: Please carry the API secret key in the 'Authorization'"}}))),
    row("MiniMax: a limit in a 200", expect=unavailable("rate_limited"),
        play=always(http(200, {"base_resp": {"status_code": 1002, "status_msg": "rate limit"}}))),
    row("Qianfan: a limit in a 200", expect=unavailable("rate_limited"),
        play=always(http(200, {"error_code": 18, "error_msg": "Open api qps request limit reached"}))),
    row("Spark: a context in a 200", expect=both(changed("context"), of(
            planner=refused("context"), executor=refused("context", stop="context", degraded=""),
            gate=refused("context", degraded="context"))),
        play=always(http(200, {"code": 10907, "message": "token数量超过上限。对话历史+问题的字数太多"}))),
    row("an error 502 in a 200", play=always(http(200, {"error": {"message": "provider is down", "code": 502}})),
        expect=unavailable("unavailable")),
    row("a quota error without a code in a 200", expect=stopped("quota"),
        play=always(http(200, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}))),
    row("a content in parts", play=_odd(_parts), expect=used()),
    row("UTF-8 with a mark in front", play=_encoded("utf-8-sig"), expect=used()),
    row("UTF-16", play=_encoded("utf-16"), expect=used()),
    row("JSON called text", play=_other_type("text/plain; charset=latin-1"), expect=used()),
    row("JSON called HTML", play=_other_type("text/html"), expect=used()),
    row("JSON called nothing", play=_other_type(""), expect=used()),
    row("JSON in lines with white space around",
        play=lambda asked: http(200, "\n\n" + json.dumps(asked.healthy, indent=4) + "\n\n"), expect=used()),
    row("half a surrogate", play=_odd(_surrogate), expect=used(), roles=PLANNER),
    row("control characters in a plan", play=_odd(_control), expect=used(), roles=PLANNER),
    row("a plan of a megabyte", play=_odd(_long), expect=_UNCOUNTED, roles=PLANNER),
    row("a megabyte behind a diagnosis", play=_odd(_long), expect=_UNCOUNTED, roles=GATE),
    row("a second choice", play=_odd(_second_choice), expect=used(flags=("choices",))),
    row("no role", play=_odd(lambda plain, asked: _message(plain).pop("role", None)), expect=used()),
    row("another role", play=_odd(lambda plain, asked: _message(plain).update(role="user")), expect=used()),
    row("a role that is a number", play=_odd(lambda plain, asked: _message(plain).update(role=7)), expect=used()),
    row("no id, object or time", expect=used(),
        play=_odd(lambda plain, asked: [plain.pop(name, None) for name in ("id", "object", "created")])),
    row("an id that is a number", play=_set(id=7, created="yesterday", object=None), expect=used()),
    row("fields that nobody knows", play=_set(x={"y": [1]}, service_tier="gold", citations=["a"]), expect=used()),
    row("numbers that are none", expect=used(), play=lambda asked: http(200, json.dumps({
        "x": float("nan"), "y": float("-inf"), **asked.healthy}).replace('"created": 1', '"created": 1e999'))),
    row("a number of four thousand digits", play=_set(created=10**3999), expect=used()),
    row("a message and a code of success beside it", play=_set(code=0, message="success", success=True), expect=used()),
    row("a first choice with number 1", expect=used(),
        play=_odd(lambda plain, asked: plain["choices"][0].update(index=1))),
    row("an error that is null", play=_set(error=None), expect=used()),
    row("an error that is empty", play=_set(error={}), expect=used()),
    row("tool calls null", play=_odd(lambda plain, asked: _message(plain).setdefault("tool_calls", None)),
        expect=used()),
    row("no model", play=_odd(lambda plain, asked: plain.pop("model")), expect=used()),
    row("a model that is a list", play=_set(model=["m"]), expect=used()),
    row("a model name of 10 kB", play=_set(model="m" * 10_000), expect=used()),
    row("a model name that steers terminals", play=_set(model="m\x1b]0;owned\x07\u202e"), expect=used()),
    row("another model each time", expect=used(),
        play=_odd(lambda plain, asked: plain.update(model=f"m-{asked.place}", system_fingerprint=f"fp-{asked.place}"))),
    row("a fingerprint that is an object", play=_set(system_fingerprint={"a": 1}), expect=used()),
    row("a text where a diagnosis belongs", play=first(said("Everything went well.")), roles=GATE,
        expect=of(gate=lambda role: {"answers": 2})),
]  # fmt: skip
