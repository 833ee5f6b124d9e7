"""How fast a run asks its endpoints, in words."""

from infra.pacing import Seen


def pace_said(seen: Seen) -> str:
    """One place in a line."""
    parts = [
        f"{seen.held} under way",
        f"at most {seen.limit} at once (adaptive)" if seen.limit is not None else "",
        f"processes that wait: {seen.waiting}" if seen.waiting else "",
        f"{seen.requests:,} asked in the past minute, {seen.tokens:,} tokens",
        f"held off for {seen.held_off_s:.0f} s by the endpoint" if seen.held_off_s else "",
    ]
    return f"{seen.model}: {', '.join(part for part in parts if part)}"
