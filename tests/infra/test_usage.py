"""What endpoints say of their tokens, by every name in use; what is no count is not said."""

import math
from typing import Any

import pytest

from infra.usage import usage_in
from runtime.ports import TokenUsage


def said(
    prompt: int | None = None, answer: int | None = None, cached: int | None = None, thinking: int | None = None
) -> TokenUsage:
    return TokenUsage(prompt_tokens=prompt, completion_tokens=answer, cached_tokens=cached, reasoning_tokens=thinking)


ROWS: dict[str, tuple[Any, TokenUsage]] = {
    "OpenAI": (
        {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14, "prompt_tokens_details": {"cached_tokens": 4},
         "completion_tokens_details": {"reasoning_tokens": 2}},
        said(9, 5, 4, 2),
    ),
    "OpenAI's other interface": (
        {"input_tokens": 9, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4},
         "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 14},
        said(9, 5, 4, 2),
    ),
    "DeepSeek": (
        {"prompt_tokens": 9, "completion_tokens": 5, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5},
        said(9, 5, 4),
    ),
    "Anthropic: cached ones are not among the input": (
        {"input_tokens": 9, "output_tokens": 5, "cache_read_input_tokens": 400, "cache_creation_input_tokens": 30},
        said(439, 5, 400),
    ),
    "a router: cached ones are among the prompt's": (
        {"prompt_tokens": 439, "completion_tokens": 5, "cache_read_input_tokens": 400, "input_tokens": 9},
        said(439, 5, 400),
    ),
    "Moonshot": ({"prompt_tokens": 9, "completion_tokens": 5, "cached_tokens": 4}, said(9, 5, 4)),
    "Gemini's own": (
        {"promptTokenCount": 9, "candidatesTokenCount": 5, "cachedContentTokenCount": 4, "thoughtsTokenCount": 7,
         "totalTokenCount": 21},
        said(9, 12, 4, 7),
    ),
    "xAI: thinking beside the answer": (
        {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 21,
         "completion_tokens_details": {"reasoning_tokens": 7}},
        said(9, 12, None, 7),
    ),
    "Ollama's own": ({"prompt_eval_count": 9, "eval_count": 5}, said(9, 5)),
    "a fraction without a rest": ({"prompt_tokens": 9.0, "completion_tokens": 5}, said(9, 5)),
    "zero is said": ({"prompt_tokens": 0, "completion_tokens": 0}, said(0, 0)),
    "a null beside another name": ({"prompt_tokens": None, "input_tokens": 9, "output_tokens": 5}, said(9, 5)),
    "negative, huge": ({"prompt_tokens": -1, "completion_tokens": 10**30}, said()),
    "text, a truth": ({"prompt_tokens": "9", "completion_tokens": True}, said()),
    "no numbers": ({"prompt_tokens": math.nan, "completion_tokens": math.inf}, said()),
    "a fraction": ({"prompt_tokens": 1.5, "completion_tokens": 5}, said(None, 5)),
    "details that are none": (
        {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": [], "completion_tokens_details": None},
        said(9, 5),
    ),
    "an empty object": ({}, said()),
    "null": (None, said()),
    "a list": ([{"prompt_tokens": 9}], said()),
    "text": ("many", said()),
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), ROWS.values(), ids=ROWS)
def test_usage_by_every_name(given: Any, expected: TokenUsage) -> None:
    """One row a server, or a mistake of one."""
    assert usage_in(given) == expected
