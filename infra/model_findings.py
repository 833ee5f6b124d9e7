"""What was found out about an endpoint's model, and the settings that fit it."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

#: how every probe begins, so that a server can tell it from a task
MARK = "This request is a probe of what this endpoint can do."

Verdict = Literal["yes", "no", "accepted, not enforced", "as text", "dropped", "unknown"]


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was tried."""

    #: what it is about
    ability: str
    verdict: Verdict
    #: in a few words
    sent: str
    #: of the answer; None = there was none
    status: int | None = None
    #: what came back, shortened, without what looks like a secret
    got: str = ""


class Probed(Struct, frozen=True, kw_only=True):
    """What an endpoint's model can do."""

    base_url: str
    model: str
    #: whether a plain question was answered
    answers: bool
    #: what kept it from answering, as for a call; "" where it answers
    kind: str = ""
    reason: str = ""
    #: as the endpoint names them; "" where it does not
    served: str = ""
    fingerprint: str = ""
    #: what the model can hold, tokens; None where it does not say
    context_tokens: int | None = None
    findings: list[Finding] = []
    #: settings of `[models]` that fit it
    settings: dict[str, Any] = {}

    def of(self, ability: str) -> Finding | None:
        return next((one for one in self.findings if one.ability == ability), None)


#: where an endpoint's list of models says how much a model can hold
_WINDOWS = ("max_model_len", "context_length", "n_ctx", "context_window", "max_context_length", "max_context_window")


def window_in(row: Mapping[str, Any]) -> int | None:
    """What one row of a list of models says that the model can hold, tokens; None where it does not."""
    meta = row.get("meta")
    for place in (row, meta if isinstance(meta, dict) else {}):
        for name in _WINDOWS:
            told = place.get(name)
            if isinstance(told, int) and not isinstance(told, bool) and 0 < told < 1 << 40:
                return told
    return None
