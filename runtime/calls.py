"""What one model call counts for in an event, and what that costs."""

from msgspec import UNSET

from events.kinds import Usage
from runtime.errors import ModelRefused, ModelUnavailable
from runtime.ports import ChatAnswer, TokenUsage
from runtime.settings import Price


def usage_of(answer: ChatAnswer) -> Usage:
    """One call with the tokens its endpoint counted, and our estimate where it did not."""
    return call_usage(answer.usage)


def failed_usage(error: ModelUnavailable | ModelRefused) -> Usage | None:
    """One call that gave no answer, with the tokens that its endpoint has counted; None where it has not, as a rule."""
    if (told := error.usage) is None:
        return None
    return Usage(
        prompt_tokens=told.prompt_tokens or 0,
        completion_tokens=told.completion_tokens or 0,
        calls=1,
        cached_tokens=UNSET if told.cached_tokens is None else told.cached_tokens,
    )


def call_usage(told: TokenUsage) -> Usage:
    """One call's tokens in an event's form."""
    prompt, completion = told.estimated_prompt_tokens, told.estimated_completion_tokens
    return Usage(
        prompt_tokens=told.prompt_tokens,
        completion_tokens=told.completion_tokens,
        calls=1,
        cached_tokens=UNSET if told.cached_tokens is None else told.cached_tokens,
        estimated_prompt_tokens=UNSET if prompt is None else prompt,
        estimated_completion_tokens=UNSET if completion is None else completion,
    )


def cost_usd(usage: Usage, price: Price | None) -> float | None:
    """USD of `usage`; None without a price, or where nobody counted or estimated."""
    prompt, completion = usage.prompt_estimate, usage.completion_estimate
    if price is None or prompt is None or completion is None:
        return None
    return price.usd(prompt, completion, 0 if usage.cached_tokens is UNSET else usage.cached_tokens)
