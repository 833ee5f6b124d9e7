"""One call's request within its model's window: what is sent of it, how long the answer may be, and what was counted.

Where the window is known (`context_tokens`, or what a refusal has told), a request that is too long is shortened before
it is sent (`infra.model_context`). A refusal over the context shortens it once more, to the window that it tells or to
three quarters of what was sent; the next one is final.
"""

from dataclasses import dataclass, field

from msgspec.structs import replace

from infra.capabilities import Place
from infra.model_context import characters_in, fitted
from infra.model_errors import Failure
from infra.token_estimates import (
    LARGEST_WINDOW,
    SMALLEST_WINDOW,
    TokenEstimates,
    checked,
    shares,
    told_window,
)
from runtime.calls import call_usage
from runtime.logger import Logger
from runtime.ports import CallKey, ChatAnswer, ChatRequest, TokenUsage
from runtime.settings import ModelSettings

_log = Logger("chime.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request as it is sent."""

    request: ChatRequest
    #: of the answer, tokens
    cap: int
    #: characters that were left out
    left_out: int
    #: about
    prompt_tokens: int


@dataclass(slots=True, kw_only=True)
class Fitting:
    """Of one call."""

    request: ChatRequest
    key: CallKey
    model: ModelSettings
    place: Place
    estimates: TokenEstimates
    #: after a refusal: of the prompt, tokens as we estimate them; None = as the window says
    _limit: int | None = field(default=None, init=False)
    _last: Sent | None = field(default=None, init=False)

    def sent(self, window: int) -> Sent:
        """What of the request is sent to a model that holds `window` tokens; 0 = nobody knows."""
        room = shares(window, self.model.max_tokens) if window else None
        limits = [one for one in (self._limit, room.prompt if room else None) if one is not None]
        messages, left_out = self.request.messages, 0
        if limits:
            kept = fitted(messages, self.request.tools, min(limits), self._tokens)
            messages, left_out = kept.messages, kept.left_out
        if left_out and (self._last is None or left_out != self._last.left_out):
            _log.warning(
                "request_shortened", call=self.key.id, run_id=self.key.run, model_role=self.request.role,
                left_out=left_out, limit=min(limits),
            )  # fmt: skip
        self._last = Sent(
            request=replace(self.request, messages=messages),
            cap=room.answer if room else self.model.max_tokens,
            left_out=left_out,
            prompt_tokens=self._tokens(characters_in(messages, self.request.tools)),
        )
        return self._last

    def shorten(self, failure: Failure, window: int) -> int | None:
        """The window to go on with after a refusal over the context; None where less was sent before, or cannot be.

        Args:
            failure: what came back, in the endpoint's own words.
            window: that was fitted to; 0 = unknown.
        """
        last = self._last
        if failure.capability != "context" or self._limit is not None or last is None:
            return None
        told = told_window(failure.reason)
        whole = told.window if told is not None else None
        self._limit = last.prompt_tokens * 3 // 4
        if told is not None and whole is not None and told.prompt:
            # In our tokens what is in theirs the prompt's share; a little less, as neither count is exact.
            share = shares(whole, self.model.max_tokens).prompt / told.prompt
            self._limit = int(last.prompt_tokens * min(share * 0.95, 1.0))
        # With 429 a number is one of a minute. Without any, what is sent now fits, if it is answered.
        if failure.status != 429:
            whole = whole or max(2 * last.cap, (self._limit + last.cap + 16) * 50 // 49)
            window = whole if SMALLEST_WINDOW <= whole <= LARGEST_WINDOW else window
        now = self.sent(window)
        return None if (now.left_out, now.cap) == (last.left_out, last.cap) else window

    def read(self, answer: ChatAnswer, sent: Sent) -> ChatAnswer:
        """`answer` with what was counted and left out, once that was learnt from."""
        length, flags = characters_in(sent.request.messages, sent.request.tools), set(answer.flags)
        written = len(answer.content) + len(answer.reasoning)
        written += sum(len(call.name) + len(call.arguments) for call in answer.tool_calls)
        usage = checked(answer.usage, length, written)
        if (counted := usage.prompt_tokens) is not None:
            if self.estimates.dropped(self.place, length, counted):
                _log.warning(
                    "prompt_dropped", call=self.key.id, run_id=self.key.run, model_role=self.request.role,
                    counted=counted, expected=sent.prompt_tokens,
                )  # fmt: skip
                flags.add("prompt_dropped")
            self.estimates.learn(self.place, length, counted)
        if usage.estimated:
            flags.add("usage_estimated")
        if sent.left_out:
            flags.add("trimmed")
        return replace(answer, usage=usage, left_out=sent.left_out, flags=sorted(flags))

    def _tokens(self, characters: int) -> int:
        return self.estimates.tokens(self.place, characters)


def tokens_of(usage: TokenUsage) -> int:
    """What a call came to, counted or estimated."""
    told = call_usage(usage)
    return (told.prompt_estimate or 0) + (told.completion_estimate or 0)
