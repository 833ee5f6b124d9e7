"""What models were asked and what that came to: counted, estimated, or unknown, and never 0 for what is not known."""

from collections.abc import Sequence

from msgspec import UNSET, Struct
from msgspec.structs import asdict

from events.kinds import Usage
from runtime.calls import cost_usd
from runtime.ports import Role
from runtime.settings import Price


class Counted(Struct, frozen=True, kw_only=True):
    """Tokens of several calls."""

    calls: int
    #: as the endpoints counted them; None where one did not say
    prompt_tokens: int | None
    completion_tokens: int | None
    #: of the prompts', as far as an endpoint said so; None where none did
    cached_tokens: int | None
    #: beside a None: with our own estimate for the calls whose endpoint did not say; None where nobody counted
    estimated_prompt_tokens: int | None
    estimated_completion_tokens: int | None


class RoleUsage(Counted, frozen=True, kw_only=True):
    """What one role's calls came to."""

    role: Role
    model: str
    #: USD; None = no price for this model, or tokens that nobody counted
    cost_usd: float | None
    #: whether tokens that it is made of are estimated
    cost_estimated: bool = False


class TotalUsage(Counted, frozen=True, kw_only=True):
    """What the calls of all roles came to."""

    #: USD; None as soon as one part has none
    cost_usd: float | None
    #: USD of the parts that have a price
    priced_usd: float
    #: models without a price, or with tokens that nobody counted
    unpriced: list[str]
    cost_estimated: bool = False


def counted(usage: Usage) -> Counted:
    """`usage` as views have it."""
    cached, prompt, completion = usage.cached_tokens, usage.estimated_prompt_tokens, usage.estimated_completion_tokens
    return Counted(
        calls=usage.calls,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=None if cached is UNSET else cached,
        estimated_prompt_tokens=None if prompt is UNSET else prompt,
        estimated_completion_tokens=None if completion is UNSET else completion,
    )


def role_usage(role: Role, model: str, usage: Usage, price: Price | None) -> RoleUsage:
    """One role's row."""
    cost = cost_usd(usage, price)
    estimated = cost is not None and None in (usage.prompt_tokens, usage.completion_tokens)
    return RoleUsage(role=role, model=model, cost_usd=cost, cost_estimated=estimated, **asdict(counted(usage)))


def total_usage(rows: Sequence[RoleUsage], usage: Usage) -> TotalUsage:
    """The row below `rows`, which are those of `usage`."""
    asked = [row for row in rows if row.calls]
    costs = [row.cost_usd for row in asked if row.cost_usd is not None]
    unpriced = list(dict.fromkeys(row.model for row in asked if row.cost_usd is None))
    return TotalUsage(
        cost_usd=None if unpriced else sum(costs),
        priced_usd=sum(costs),
        unpriced=unpriced,
        cost_estimated=any(row.cost_estimated for row in asked),
        **asdict(counted(usage)),
    )


def usage_said(counted: Counted) -> str:
    """Calls and tokens in words, for one line."""
    parts = [
        f"{counted.calls} call{'' if counted.calls == 1 else 's'}",
        f"{prompt_said(counted)} prompt tokens"
        + (f" ({counted.cached_tokens:,} cached)" if counted.cached_tokens is not None else ""),
        f"{completion_said(counted)} completion tokens",
    ]
    return ", ".join(parts)


def prompt_said(counted: Counted) -> str:
    """Tokens of the prompts for people: `~` before an estimate."""
    return _said(counted.prompt_tokens, counted.estimated_prompt_tokens)


def completion_said(counted: Counted) -> str:
    """Tokens of the answers, likewise."""
    return _said(counted.completion_tokens, counted.estimated_completion_tokens)


def _said(tokens: int | None, estimated: int | None) -> str:
    if tokens is not None:
        return f"{tokens:,}"
    return "not counted" if estimated is None else f"~{estimated:,}"


def cost_said(row: RoleUsage | TotalUsage) -> str:
    """A cost for people: what has a price, and that something has none."""
    about = "~" if row.cost_estimated else ""
    if row.cost_usd is not None:
        return f"{about}${row.cost_usd:.4f}"
    if isinstance(row, TotalUsage) and row.priced_usd:
        return f"{about}${row.priced_usd:.4f} + unpriced"
    return "unpriced"
