"""Why an answer ends: limits, filters, refusals and words that nobody knows; and thinking in all its places."""

import json
from typing import Any

from hostile_rows import (
    EXECUTOR,
    GATE,
    PLANNER,
    Row,
    abandoned,
    both,
    degraded,
    ending,
    failed_steps,
    of,
    out_of_errors,
    repaired,
    retried,
    unavailable,
    used,
)
from hostile_wire import Asked, Body, always, answering, called, completion, first, said

#: what thinking is marked with in these rows: it must stand in no prompt, event or body but the answer's own
THOUGHT = "THOUGHT-5a1e"


def row(name: str, area: str = "finishes", **given: Any) -> Row:
    return Row(name=name, area=area, **given)


def _thinks(name: str, **given: Any) -> Row:
    return row(name, "reasoning", private=(THOUGHT,), **given)


def _message(plain: Body) -> Body:
    found: Body = plain["choices"][0]["message"]
    return found


def _finish(word: Any) -> Any:
    return answering(lambda plain, asked: plain["choices"][0].update(finish_reason=word))


def _empty(*answers: Body) -> Any:
    """A planner is asked once more, a gate is shown its error, an executor's step fails."""
    return of(planner=lambda role: {"answers": 1 + len(answers)}, executor=failed_steps(len(answers)), gate=repaired())


_CUT = said('{"label": "both", "evidence": "The plan was', finish="length")
_BLANK: dict[str, Body] = {
    "an empty content": said(""),
    "a content that is null": said(None),
    "white space": said(" \n\n\t "),
    "a zero-width space": said("\u200b\u200b"),
    "no content at all": completion({"role": "assistant"}),
    "a content that is an empty list": said([]),
}

_FILTERED: dict[str, Body] = {
    "a content filter with nothing": said("", finish="content_filter"),
    "a content filter with a beginning": said("I would first", finish="content_filter"),
    "a content filter with null": said(None, finish="content_filter"),
}

_REFUSED: dict[str, Body] = {
    "a refusal in its own field": said(None, refusal="I cannot help with that."),
    "a refusal as a part": said([{"type": "refusal", "refusal": "I cannot help with that."}]),
}

#: what other servers call a content filter, a limit and an end
_SYNONYMS = {
    "content_filter": ("SAFETY", "sensitive", "RECITATION", "safety"),
    "length": ("max_tokens", "MAX_TOKENS", "model_length"),
    "stop": ("end_turn", "eos", "eos_token", "STOP", "stop_sequence", "", None, 7, {"reason": "stop"}, "unheard of"),
}


def _thinking_fields(**fields: Any) -> Any:
    return answering(lambda plain, asked: _message(plain).update(fields))


def _around(before: str, after: str = "") -> Any:
    """Text around the healthy content."""

    def change(plain: Body, asked: Asked) -> None:
        message = _message(plain)
        message["content"] = f"{before}{message.get('content') or ''}{after}"

    return answering(change)


def _into(field: str) -> Any:
    """The healthy content in another field, and nothing in its own."""

    def change(plain: Body, asked: Asked) -> None:
        message = _message(plain)
        message[field], message["content"] = message.get("content"), None

    return answering(change)


def _parts_of_mistral(plain: Body, asked: Asked) -> None:
    message = _message(plain)
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}
    message["content"] = [thinking, {"type": "text", "text": message.get("content") or ""}]


#: what a server counts of an answer that is none was paid for all the same
_PAID = of(planner=used(), executor=used(usage="counted"), gate=used(usage="counted"))
_INSIDE = used(flags=("thinking_in_answer",))

ROWS: list[Row] = [
    *(row(f"{name}, once", play=first(reply), expect=_empty(reply)) for name, reply in _BLANK.items()),
    row("a content that is a number, once", play=first(said(42)), expect=retried("malformed")),
    *(row(f"{name}, once", play=first(reply), expect=both(_empty(reply), used(flags=("parts",)))) for name, reply in {
        "a content that is an object": said({"text": 1}),
        "parts without a text": said([{"type": "image_url", "image_url": {"url": "x"}}]),
    }.items()),
    row("nothing, for ever", play=always(said("")), roles=PLANNER, expect=abandoned("empty", 2)),
    row("nothing, for ever", play=always(said("")), roles=EXECUTOR, expect=out_of_errors()),
    row("nothing, for ever", play=always(said("")), roles=GATE, expect=degraded()),
    *(row(name, play=always(reply), expect=of(planner=abandoned("content_filter"), executor=ending("content_filter"),
          gate=ending("content_filter"))) for name, reply in _FILTERED.items()),
    *(row(name, play=always(reply), expect=of(planner=abandoned("refusal"), executor=ending("refusal"),
          gate=ending("refusal"))) for name, reply in _REFUSED.items()),
    *(row(f"a filter called {word}", play=always(said("", finish=word)), expect=of(
          planner=abandoned("content_filter"), executor=ending("content_filter"), gate=ending("content_filter")))
      for word in _SYNONYMS["content_filter"]),
    *(row(f"an end called {word!r}", play=_finish(word), expect=used()) for word in _SYNONYMS["stop"]),
    row("a cut answer, once", play=first(_CUT), expect=of(
        planner=lambda role: {"answers": 2}, executor=failed_steps(1), gate=repaired())),
    *(row(f"a limit called {word}, once", play=first(said('{"label": "bo', finish=word)), expect=of(
        planner=lambda role: {"answers": 2}, executor=failed_steps(1), gate=repaired()))
      for word in _SYNONYMS["length"]),
    row("a cut answer, for ever", play=always(_CUT), roles=PLANNER, expect=abandoned("length", 2)),
    row("a cut answer, for ever", play=always(_CUT), roles=EXECUTOR, expect=out_of_errors()),
    row("a cut answer, for ever", play=always(_CUT), roles=GATE, expect=degraded("length")),
    row("white space to the limit", play=always(said(" \n" * 800, finish="length")), roles=EXECUTOR,
        expect=out_of_errors()),
    row("white space to the limit", play=always(said(" \n" * 800, finish="length")), roles=GATE,
        expect=degraded("length")),
    row("a cut tool call, once", play=first(called({"id": "a", "type": "function", "function": {
        "name": "inspect", "arguments": '{"order": "10'}}, finish="length")), roles=EXECUTOR, expect=failed_steps(1)),
    row("tool calls promised, none there", play=first(said("", finish="tool_calls")), roles=EXECUTOR,
        expect=failed_steps(1)),
    row("tool calls under the word stop", play=_finish("stop"), roles=EXECUTOR, expect=used()),
    row("tool calls under the word function_call", play=_finish("function_call"), roles=EXECUTOR, expect=used()),
    row("DeepSeek: insufficient_system_resource, once",
        play=first(said("half an an", finish="insufficient_system_resource")), expect=retried("unavailable")),
    row("DeepSeek: insufficient_system_resource, always",
        play=always(said("half an an", finish="insufficient_system_resource")),
        expect=both(unavailable("unavailable"), _PAID)),
    row("vLLM: abort, once", play=first(said("half an an", finish="abort")), expect=retried("unavailable")),
    row("OpenRouter: error, once", play=first(said("half an an", finish="error")), expect=retried("unavailable")),
    # -- thinking
    _thinks("reasoning_content beside the answer", play=_thinking_fields(reasoning_content=THOUGHT), expect=used()),
    _thinks("reasoning beside the answer", play=_thinking_fields(reasoning=THOUGHT), expect=used()),
    _thinks("reasoning_details beside the answer", play=_thinking_fields(
        reasoning_details=[{"type": "reasoning.text", "text": THOUGHT}]), expect=used()),
    _thinks("reasoning as an object", play=_thinking_fields(reasoning={"content": THOUGHT}), expect=used()),
    _thinks("reasoning as parts", play=_thinking_fields(reasoning_content=[{"text": THOUGHT}]), expect=used()),
    _thinks("both reasoning fields", play=_thinking_fields(reasoning_content=THOUGHT, reasoning=THOUGHT),
            expect=used()),
    _thinks("think tags before the answer", play=_around(f"<think>\n{THOUGHT}\n</think>\n\n"), expect=_INSIDE),
    _thinks("thinking tags before the answer", play=_around(f"<thinking>{THOUGHT}</thinking>"), expect=_INSIDE),
    _thinks("think tags in capitals", play=_around(f"<THINK>{THOUGHT}</THINK>"), expect=_INSIDE),
    _thinks("an end of thinking without a beginning", play=_around(f"{THOUGHT} so I say:\n</think>\n\n"),
            expect=_INSIDE),
    _thinks("two thoughts before the answer",
            play=_around(f"<think>{THOUGHT}</think>\n<think>{THOUGHT} again</think>\n"), expect=_INSIDE),
    _thinks("empty think tags", play=_around("<think>\n\n</think>\n\n"), expect=_INSIDE),
    _thinks("a thought behind the answer", play=_around("", f"\n<think>{THOUGHT}</think>"), expect=_INSIDE),
    _thinks("Kimi: its own think tags", play=_around(f"◁think▷{THOUGHT}◁/think▷"), expect=_INSIDE),
    _thinks("gpt-oss: a channel for thinking", expect=_INSIDE,
            play=_around(f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>")),
    _thinks("Mistral: thinking as a part", play=answering(_parts_of_mistral), expect=used()),
    _thinks("a thought that never ends", play=first(said(f"<think>{THOUGHT} and on and on", finish="length")),
            expect=both(of(planner=lambda role: {"answers": 2}, executor=failed_steps(1), gate=repaired()), _INSIDE)),
    _thinks("thinking only, at the limit", expect=of(
                planner=lambda role: {"answers": 2}, executor=failed_steps(1), gate=repaired()),
            play=first(said("", finish="length", reasoning_content=THOUGHT))),
    _thinks("thinking only, and stop", expect=of(
                planner=lambda role: {"answers": 2}, executor=failed_steps(1), gate=repaired()),
            play=first(said(None, reasoning_content=THOUGHT))),
    row("the diagnosis in reasoning_content", "reasoning", play=_into("reasoning_content"), roles=GATE,
        expect=used(flags=("answer_in_reasoning",))),
    row("the diagnosis in reasoning", "reasoning", play=_into("reasoning"), roles=GATE,
        expect=used(flags=("answer_in_reasoning",))),
    _thinks("a thought in a diagnosis that is in the reasoning", roles=GATE, expect=repaired(),
            play=first(said(None, reasoning_content=f"{THOUGHT} {json.dumps({'plan': 1})}"))),
]  # fmt: skip
