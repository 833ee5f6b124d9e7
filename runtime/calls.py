"""What one model call counts for in an event."""

from events.kinds import Usage
from runtime.ports import ChatAnswer


def usage_of(answer: ChatAnswer) -> Usage:
    """One call with the tokens its endpoint counted."""
    return Usage(prompt_tokens=answer.usage.prompt_tokens, completion_tokens=answer.usage.completion_tokens, calls=1)
