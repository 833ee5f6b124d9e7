"""Thinking told apart from the answer: a table of forms, and of answers that keep every word."""

from typing import Any

import pytest

from infra.thinking import Spoken, thought_in, told_apart

#: what is said, the answer in it, the thinking in it
FORMS = {
    "a block in front": ("<think>\nhm <b>\n</think>\n\nyes", "yes", "hm <b>"),
    "an empty block": ("<think></think>yes", "yes", ""),
    "a block that is not ended": ("\n<think>cut o", "", "cut o"),
    "an end that has no beginning": ("hm\n</think>\n\nyes", "yes", "hm"),
    "an end at the very start": ("</think>yes", "yes", ""),
    "two ends": ("hm</think>hm again</think>yes", "yes", "hm\n\nhm again"),
    "a block in a block": ("<think>a<think>b</think>c</think>yes", "yes", "a<think>b\n\nc"),
    "several blocks": ("<think>a</think>\n<think>b</think>yes", "yes", "a\n\nb"),
    "a block further on": ("First.\n<think>hm</think>\nThen.", "First.\nThen.", "hm"),
    "a block inside a line": ("First <think>hm</think>then.", "First then.", "hm"),
    "a block further on that is not ended": ("First.\n<think>hm", "First.\n", "hm"),
    "an attribute": ('<think time="3">hm</think>yes', "yes", "hm"),
    "capitals": ("<THINK>hm</Think>yes", "yes", "hm"),
    "a longer tag": ("<thinking>hm</thinking>yes", "yes", "hm"),
    "another tag": ("<reasoning>hm</reasoning>yes", "yes", "hm"),
    "a thought": ("<thought>hm</thought>yes", "yes", "hm"),
    "thoughts": ("<thoughts>hm</thoughts>yes", "yes", "hm"),
    "a scratchpad": ("<scratchpad>hm</scratchpad>yes", "yes", "hm"),
    "Seed": ("<seed:think>hm</seed:think>yes", "yes", "hm"),
    "Magistral": ("[THINK]hm[/THINK]yes", "yes", "hm"),
    "thought tokens": ("<|begin_of_thought|>hm<|end_of_thought|>yes", "yes", "hm"),
    "Command": ("<|START_THINKING|>hm<|END_THINKING|>yes", "yes", "hm"),
    "Kimi": ("◁think▷hm◁/think▷yes", "yes", "hm"),
    "Gemma": ("<|channel>thought\nhm<channel|>yes", "yes", "hm"),
    "MedGemma": ("<unused94>hm<unused95>yes", "yes", "hm"),
    "code in the thinking": ("<think>try `x` and\n```\ny\n```\n</think>yes `z`", "yes `z`", "try `x` and\n```\ny\n```"),
    "the tag in the thinking's code": ("<think>the tag `</think>` ends it</think>yes", "yes", "the tag `\n\n` ends it"),
    "JSON behind it": ('<think>hm</think>{"a": 1}', '{"a": 1}', "hm"),
    "a tool call behind it": ("<think>hm</think><tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", "hm"),
    "two kinds": ("<think>a</think><reasoning>b</reasoning>yes", "yes", "a\n\nb"),
    "gpt-oss": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>",
        "yes",
        "hm",
    ),
    "gpt-oss, cut off": ("<|channel|>analysis<|message|>hm, so", "", "hm, so"),
    "gpt-oss, cut off at once": ("<|channel|>analysis", "", ""),
    "gpt-oss with a word before a call": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>",
        "One moment.",
        "hm",
    ),
    "gpt-oss that calls a tool": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.look "
        "<|constrain|>json<|message|>{}<|call|>",
        "<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{}<|call|>",
        "hm",
    ),
    "gpt-oss that names the tool first": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.look<|channel|>commentary json"
        "<|message|>{}<|call|>",
        "<|start|>assistant to=functions.look<|channel|>commentary json<|message|>{}<|call|>",
        "hm",
    ),
    "gpt-oss without its tokens": ("analysisWe need a yes.assistantfinalyes", "yes", "We need a yes."),
}


@pytest.mark.parametrize(("said", "answer", "thought"), FORMS.values(), ids=FORMS)
def test_thinking_is_taken_out(said: str, answer: str, thought: str) -> None:
    """Of the answer nothing is lost but white space around a block."""
    assert told_apart(said) == Spoken(answer, thought)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "yes",
        "  yes\n",
        "Use `<think>x</think>` for it.",
        "So:\n```xml\n<think>x</think>\n```\nDone.",
        "So:\n~~~\n</think>\n~~~",
        "Close it with `</think>`.",
        "Open it with <think> and go on.",
        '{"evidence": "it wrote <think>x</think>"}',
        '["<think>x</think>"]',
        '```json\n{"evidence": "<think>x</think>"}\n```',
        "a < b and b > c, I think> so",
        "<thinker>x</thinker>",
        "analysis of the assistantfinal word",
        "The token `<|channel|>analysis` begins it.",
    ],
)
def test_an_answer_keeps_every_word(said: str) -> None:
    """A mark in code, in JSON, or in a sentence about it is the answer's own."""
    assert told_apart(said) == Spoken(said, "")


@pytest.mark.parametrize(
    ("message", "thought"),
    [
        ({"reasoning_content": "hm"}, "hm"),
        ({"reasoning": "hm"}, "hm"),
        ({"reasoning": "hm", "reasoning_content": "hm"}, "hm"),
        ({"reasoning": "a", "reasoning_content": "b"}, "b\n\na"),
        ({"reasoning": None, "reasoning_content": ""}, ""),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}]}, "hm"),
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}]}, "hm"),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "QUJD"}]}, ""),
        ({"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}, "hm"),
        ({"thinking": "hm"}, "hm"),
        ({"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}, "hm"),
        ({"reasoning": {"content": [{"text": "hm"}]}}, "hm"),
        ({"reasoning_content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
        ({"reasoning_content": 3, "reasoning": True}, ""),
        ({"content": "yes"}, ""),
    ],
)
def test_a_message_has_fields_for_thinking(message: dict[str, Any], thought: str) -> None:
    """Each text once, in whichever field and form it comes."""
    assert thought_in(message) == thought


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "said",
    [
        "<think>" * 100_000,
        "</think>" * 100_000,
        "x <think> " * 100_000,
        "<think " * 200_000,
        "<|channel|>" * 100_000,
        "x" * 1_000_000 + "<|channel|>final<|message|>yes",
        "`" * 500_000 + "</think>",
        "```\n" * 200_001 + "</think>",
        "<" * 1_000_000 + "</think>",
        "analysis" * 100_000,
        "`a` <think>a</think>\n" * 300 + "`b` ``c``\n" * 50_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_vast_text_is_told_apart_in_time(said: str) -> None:
    """Work grows with the length, not with its square."""
    spoken = told_apart(said)
    assert len(spoken.answer) + len(spoken.thought) <= len(said)


@pytest.mark.parametrize(("thought", "blocks"), [("marker", 300), ("`marker`", 31)])
def test_very_many_blocks_leave_no_thinking_behind(thought: str, blocks: int) -> None:
    """What is beyond the bound counts as thinking too: an answer is lost rather than a thought let through."""
    said = f"<think>{thought}</think>" * blocks + "yes"
    assert told_apart(f"<think>{thought}</think>" * (blocks - 1) + "yes").answer == "yes"
    assert told_apart(said).answer == ""
