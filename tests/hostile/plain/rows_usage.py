"""Counts that are missing, absurd or of another kind; limits of rate, warm-up, and redirects in the middle."""

from typing import Any

from hostile_rows import Row, retried, used
from hostile_wire import Body, answering, failed, first, http


def row(name: str, area: str = "usage", **given: Any) -> Row:
    return Row(name=name, area=area, **given)


def _usage(value: Any) -> Any:
    return answering(lambda plain, asked: plain.update(usage=value))


def _counts(**counts: Any) -> Any:
    return answering(lambda plain, asked: plain["usage"].update(counts))


def _none(plain: Body, asked: Any) -> None:
    del plain["usage"]


ABSURD: dict[str, Any] = {
    "no usage": answering(_none),
    "usage null": _usage(None),
    "usage an empty object": _usage({}),
    "usage a list": _usage([1, 2]),
    "usage a text": _usage("12 tokens"),
    "usage a number": _usage(12),
    "counts null": _counts(prompt_tokens=None, completion_tokens=None),
    "counts that are texts": _counts(prompt_tokens="300", completion_tokens="20"),
    "counts that are truths": _counts(prompt_tokens=True, completion_tokens=True),
    "counts below zero": _counts(prompt_tokens=-1, completion_tokens=-5),
    "counts beyond a trillion": _counts(prompt_tokens=10**13, completion_tokens=10**13),
    "counts of a hundred digits": _counts(prompt_tokens=10**99, completion_tokens=10**99),
    "counts with a fraction": _counts(prompt_tokens=300.5, completion_tokens=20.5),
    "a prompt of a million tokens": _counts(prompt_tokens=1_000_000),
    "an answer of a million tokens": _counts(completion_tokens=1_000_000),
}


def _named(prompt: str, answer: str) -> Any:
    """The healthy counts under other names."""

    def change(plain: Body, asked: Any) -> None:
        counts = plain["usage"]
        plain["usage"] = {prompt: counts["prompt_tokens"], answer: counts["completion_tokens"]}

    return answering(change)


FINE: dict[str, Any] = {
    "usage in Anthropic's words": _named("input_tokens", "output_tokens"),
    "usage in Ollama's words": _named("prompt_eval_count", "eval_count"),
    "details null": _counts(prompt_tokens_details=None),
    "details a list": _counts(prompt_tokens_details=[]),
    "cached tokens": _counts(prompt_tokens_details={"cached_tokens": 64}),
    "more cached than asked": _counts(prompt_tokens_details={"cached_tokens": 10**6}),
    "cached below zero": _counts(prompt_tokens_details={"cached_tokens": -3}),
    "DeepSeek: cache hits": _counts(prompt_cache_hit_tokens=64, prompt_cache_miss_tokens=100),
    "a total that is wrong": _counts(total_tokens=1),
    "a cost beside the counts": _counts(cost=0.1, is_byok=False),
}

_LOADING = failed(503, "Loading model", type="unavailable_error", code=503)

ROWS: list[Row] = [
    *(row(name, play=play, expect=used(usage="estimated", flags=("usage_estimated",)))
      for name, play in ABSURD.items()),
    row("counts of zero", play=_counts(prompt_tokens=0, completion_tokens=0, total_tokens=0),
        expect=used(usage="estimated", flags=("usage_estimated",))),
    *(row(name, play=play, expect=used()) for name, play in FINE.items()),
    row("loading for a while", "warm-up", play=first(_LOADING, _LOADING), expect=retried("warming_up", "warming_up")),
    row("loading, then a page, then well", "warm-up", expect=retried("warming_up", "unavailable"),
        play=first(_LOADING, http(502, "<html>502</html>", content_type="text/html"))),
    row("loading, then a limit, then well", "warm-up", expect=retried("warming_up", "rate_limited"),
        play=first(_LOADING, failed(429, "slow down", headers={"retry_after": "1"}))),
]  # fmt: skip
