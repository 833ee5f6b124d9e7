"""What was found out about an endpoint's model, and the settings that fit it."""

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
