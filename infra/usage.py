"""The tokens that an endpoint says it has counted, by the names that servers give them.

| count | names, the first that holds one |
|---|---|
| prompt | `prompt_tokens`, `input_tokens`, `promptTokenCount`, `prompt_eval_count` |
| answer | `completion_tokens`, `output_tokens`, `candidatesTokenCount`, `eval_count` |
| of the prompt, read before | `cached_tokens` in `prompt_tokens_details` or `input_tokens_details`, `prompt_cache_hit_tokens`, `cache_read_input_tokens`, `cached_tokens`, `cachedContentTokenCount` |
| of the answer, thinking | `reasoning_tokens` in `completion_tokens_details` or `output_tokens_details`, `reasoning_tokens`, `thoughtsTokenCount` |

Where `input_tokens` stands beside what was read from a cache or written into it, these are not among the input tokens and
are added. Where the total says that the thinking is not among the answer's tokens, it is added. What is no count
(negative, a fraction, text, beyond 2^40) is not said. Whether a count can be true is judged by `infra.token_estimates`.
"""  # noqa: E501 - a table

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.ports import TokenUsage

_PROMPT = ("prompt_tokens", "input_tokens", "promptTokenCount", "prompt_eval_count")
_ANSWER = ("completion_tokens", "output_tokens", "candidatesTokenCount", "eval_count")
_CACHED = ("prompt_cache_hit_tokens", "cache_read_input_tokens", "cached_tokens", "cachedContentTokenCount")
_THINKING = ("reasoning_tokens", "thoughtsTokenCount")
_TOTAL = ("total_tokens", "totalTokenCount")
#: more is a slip, or a number that is none
_MOST = 2**40


def usage_in(given: object) -> TokenUsage:
    """What the `usage` of an answer says; None for each count that it does not."""
    if not isinstance(given, dict):
        return TokenUsage()
    prompt, answer = _first(given, _PROMPT), _first(given, _ANSWER)
    cached = _inside(given, ("prompt_tokens_details", "input_tokens_details"), "cached_tokens")
    thinking = _inside(given, ("completion_tokens_details", "output_tokens_details"), "reasoning_tokens")
    cached = _first(given, _CACHED) if cached is None else cached
    thinking = _first(given, _THINKING) if thinking is None else thinking
    if prompt is not None and _first(given, ("prompt_tokens",)) is None and "input_tokens" in given:
        beside = (_count(given.get(name)) for name in ("cache_read_input_tokens", "cache_creation_input_tokens"))
        prompt += sum(one or 0 for one in beside)
    if thinking and answer is not None and _first(given, _TOTAL) == (prompt or 0) + answer + thinking:
        answer += thinking
    return TokenUsage(prompt_tokens=prompt, completion_tokens=answer, cached_tokens=cached, reasoning_tokens=thinking)


def usage_told(body: str) -> TokenUsage | None:
    """What a body says of tokens, whatever else is wrong with it; None where it says nothing."""
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError):
        return None
    told = usage_in(plain.get("usage")) if isinstance(plain, dict) else TokenUsage()
    return told if told != TokenUsage() else None


def together(told: Sequence[TokenUsage]) -> TokenUsage | None:
    """What several tries came to, as far as one said so; None where none did."""

    def total(counts: Sequence[int | None]) -> int | None:
        said = [count for count in counts if count is not None]
        return sum(said) if said else None

    if not told:
        return None
    return TokenUsage(
        prompt_tokens=total([one.prompt_tokens for one in told]),
        completion_tokens=total([one.completion_tokens for one in told]),
        cached_tokens=total([one.cached_tokens for one in told]),
        reasoning_tokens=total([one.reasoning_tokens for one in told]),
    )


def with_tries(usage: TokenUsage, before: TokenUsage | None) -> TokenUsage:
    """`usage` of an answer and what its failed tries came to."""
    if before is None:
        return usage

    def more(count: int | None, told: int | None) -> int | None:
        return None if count is None else count + (told or 0)

    return TokenUsage(
        prompt_tokens=more(usage.prompt_tokens, before.prompt_tokens),
        completion_tokens=more(usage.completion_tokens, before.completion_tokens),
        cached_tokens=more(usage.cached_tokens, before.cached_tokens),
        reasoning_tokens=more(usage.reasoning_tokens, before.reasoning_tokens),
        estimated_prompt_tokens=more(usage.estimated_prompt_tokens, before.prompt_tokens),
        estimated_completion_tokens=more(usage.estimated_completion_tokens, before.completion_tokens),
    )


def _first(given: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((count for name in names if (count := _count(given.get(name))) is not None), None)


def _inside(given: Mapping[str, Any], parts: tuple[str, ...], name: str) -> int | None:
    details = (given.get(part) for part in parts)
    counts = (_count(one.get(name)) for one in details if isinstance(one, dict))
    return next((count for count in counts if count is not None), None)


def _count(value: object) -> int | None:
    """A count that JSON may have written as a fraction without a rest; None for what is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else None
