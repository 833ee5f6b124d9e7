"""How many tokens characters come to, by what each endpoint has counted, and how a model's window is divided.

A bound on what may be learnt keeps one absurd count from deciding anything: a token has at least a byte, and no model
packs more than some sixteen characters into one on average.
"""

import re
from math import ceil
from typing import NamedTuple

from msgspec.structs import replace

from events.late import late_pattern
from infra.capabilities import Place
from runtime.ports import TokenUsage

#: tokens of a character before an endpoint has counted any, and what can be believed
TYPICAL, LEAST, MOST = 0.25, 1 / 16, 4.0
#: shorter requests are mostly what is around them, characters
_TELLING = 400
#: how fast a ratio follows what is counted: up fast, since an overflow costs more than a cut
_UP, _DOWN = 0.5, 0.1
#: below this share of what is expected a server has dropped a part of the prompt without a word
_DROPPED = 0.6
#: what a server may put around a prompt, and think beside an answer, tokens
_HIDDEN_PROMPT, _HIDDEN_ANSWER = 20_000, 200_000
#: no text has so few tokens, even where a part of it was cut: one in as many characters
_SPARSEST = 100
#: windows that can be meant, tokens
SMALLEST_WINDOW, LARGEST_WINDOW = 128, 2**27

_N = r"(\d{1,3}(?:,\d{3})+|\d+)"
_WINDOWS = tuple(
    late_pattern(pattern, re.IGNORECASE)
    for pattern in (
        rf"\bn_ctx {_N}",
        rf"\d \+ \d+ > {_N}",
        rf"with {_N} maximum context length",
        rf"(?:maximum (?:context|model|prompt) length|context (?:length|window|size|limit))"
        rf"(?: is| of|:)?(?: only)? \(?{_N}",
        rf"\d(?: tokens)? > {_N} maximum",
        rf"maximum number of tokens allowed \({_N}",
        rf"input length should be \[\d+, {_N}\]",
        rf"must be <= {_N}",
        rf"must have less than {_N} tokens",
        rf"cannot exceed {_N}",
        rf"configured limit of {_N}",
        rf"(?:token limit|configured context size)(?: is| of|:) {_N}",
        rf"maximum (?:supported sequence )?length(?: is just)? {_N}",
        rf"(?:max_seq_len|session_len|is longer than the maximum) \(?{_N}",
        rf"(?:exceeds the limit of|while limit is|context window limit|max size:) \(?{_N}",
        rf"limit:? {_N}, requested",
        rf"batch size \((?:current batch size: )?{_N}",
    )
)
_PROMPTS = tuple(
    late_pattern(pattern, re.IGNORECASE)
    for pattern in (
        rf"\bn_prompt_tokens {_N}",
        rf"\({_N} in the (?:messages|prompt)",
        rf"messages resulted in {_N}",
        rf"(?:request has|passed) {_N} input tokens",
        rf"{_N} tokens from the input",
        rf"too long: {_N} tokens",
        rf"token count \({_N}\)",
        rf"(?:prompt|request) (?:contains|has) {_N} tokens",
        rf"given: {_N}",
        rf"received {_N}",
        rf"(?:request|input) \({_N} tokens\)",
        rf"\(length {_N}\)",
        rf"(?:prompt|token) length {_N}",
        rf"(?:provided prompt|current length) is {_N}",
        rf"(?:token count of|maximum output tokens) \(?{_N}",
        rf"input length {_N} exceed",
        rf"limit: {_N} \+",
        rf"\brequested:? (?:about )?{_N}",
    )
)


class ToldWindow(NamedTuple):
    """What a refusal says, tokens; None = it does not say."""

    window: int | None
    prompt: int | None


class Shares(NamedTuple):
    """How a window is divided, tokens each, at least 1."""

    prompt: int
    answer: int


class TokenEstimates:
    """Of all places that a process asks.

    What it holds depends on who answered first. It decides what is sent, never what an answer is read as.
    """

    def __init__(self) -> None:
        self._ratios: dict[Place, float] = {}
        self._sparsest: dict[Place, float] = {}

    def tokens(self, place: Place, characters: int) -> int:
        """About how many tokens `characters` come to; more characters never to fewer."""
        return _tokens(characters, self._ratios.get(place, TYPICAL))

    def learn(self, place: Place, characters: int, tokens: int) -> None:
        """A request of `characters` had `tokens`, as the endpoint counts; what cannot be true teaches nothing."""
        if characters < _TELLING or not LEAST <= tokens / characters <= MOST or self.dropped(place, characters, tokens):
            return
        seen = tokens / characters
        known = self._ratios.get(place, seen)
        self._ratios[place] = known + (seen - known) * (_UP if seen > known else _DOWN)
        self._sparsest[place] = min(seen, self._sparsest.get(place, seen))

    def dropped(self, place: Place, characters: int, tokens: int) -> bool:
        """Whether the endpoint seems to have read a part only of a request of `characters`, since it counts `tokens`.

        Some servers cut what is too long and answer as if all were well.
        """
        expected = self._sparsest.get(place, TYPICAL) * characters
        return characters >= _TELLING and tokens < _DROPPED * expected


def _tokens(characters: int, ratio: float) -> int:
    return ceil(max(0, characters) * ratio)


def told_window(reason: str) -> ToldWindow | None:
    """What a refusal over the context says of the window and of the prompt; None where it has no numbers."""
    told = ToldWindow(_first(_WINDOWS, reason), _first(_PROMPTS, reason))
    return told if told != (None, None) else None


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    numbers = (int(found[1].replace(",", "")) for one in patterns if (found := one.search(text[:4000])))
    return next((number for number in numbers if 0 < number <= LARGEST_WINDOW), None)


def shares(window: int, max_tokens: int) -> Shares:
    """How much of `window` a prompt may have beside an answer of `max_tokens`, which never gets more than half.

    A fiftieth is left free: estimates are estimates.
    """
    answer = max(1, min(max_tokens, window // 2))
    return Shares(prompt=max(1, window - answer - max(16, window // 50)), answer=answer)


def checked(usage: TokenUsage, characters_in: int, characters_out: int) -> TokenUsage:
    """`usage` with what is missing or cannot be true as unknown, and our estimate beside it.

    Equal answers have equal estimates: they are made by `TYPICAL`, whatever was learnt of the endpoint meanwhile.

    Args:
        usage: as the endpoint gives it.
        characters_in: of the request as it was sent.
        characters_out: of the answer, thinking and calls included.
    """
    prompt = usage.prompt_tokens
    if prompt is not None and not _can_be(prompt, characters_in, _HIDDEN_PROMPT):
        prompt = None
    completion = usage.completion_tokens
    if completion is not None and not _can_be(completion, characters_out, _HIDDEN_ANSWER):
        completion = None
    return replace(
        usage,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=_part(usage.cached_tokens, prompt),
        reasoning_tokens=_part(usage.reasoning_tokens, completion),
        estimated_prompt_tokens=_tokens(characters_in, TYPICAL) if prompt is None else None,
        estimated_completion_tokens=_tokens(characters_out, TYPICAL) if completion is None else None,
    )


def _can_be(tokens: int, characters: int, hidden: int) -> bool:
    fewest = max(bool(characters), characters // _SPARSEST)
    return fewest <= tokens <= MOST * characters + hidden


def _part(tokens: int | None, whole: int | None) -> int | None:
    return tokens if tokens is not None and whole is not None and 0 <= tokens <= whole else None
