"""What each failure of a call means: one table, by condition. Whoever retries, gives up or stops looks here.

The first row that fits decides. A row is recognised by the status and, where several conditions share one, by the
error's names (`code`, `type`, `param`) or by words of its message: endpoints word the same condition differently, put
overflows, refused schemas and poisonous histories under 500, and a spent quota under 429. With 400, where an endpoint
may be repeating a prompt, words of quotas and models count only where they begin a message or stand alone.

`docs/endpoints.md` shows the table as users read it; a test compares the two.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from events.late import late_pattern
from infra.error_text import Told

#: `give_up` = unavailable at once; `change` = ask the same in another way, which is no try
Action = Literal["retry", "give_up", "change", "refuse", "stop"]
#: what a `change` steps down; `context` = the request loses its middle
Capability = Literal[
    "schema",
    "max_tokens",
    "temperature",
    "system",
    "tools",
    "parallel_tools",
    "tool_ids",
    "thinking",
    "stream",
    "context",
]
#: what a failure comes to that no try or change has cured
Spent = Literal["unavailable", "refuse", "stop"]

#: further tries of one request after answers that are no completion, whatever the endpoint's own number is
MALFORMED_RETRIES = 2

_REFUSES = frozenset({400, 422, 500, 501})
_SERVER = range(500, 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One condition."""

    #: the word of counts, log lines, `executed.stop` and a degraded diagnosis
    kind: str
    #: for people
    condition: str
    #: that it comes with; none = it is no status that tells
    statuses: Collection[int] = ()
    #: names of which one is there, in lower case
    names: frozenset[str] = frozenset()
    #: that the error has, besides or instead
    words: re.Pattern[str] | None = None
    #: that it must not have
    never: re.Pattern[str] | None = None
    action: Action
    #: with `change` only
    capability: Capability | None = None
    #: with `retry` only: how many tries more, at most; None = as many as the endpoint's settings say
    further: int | None = None
    spent: Spent = "unavailable"

    def fits(self, status: int, told: Told) -> bool:
        """Whether this is the condition of an error with `status` that says `told`."""
        if status not in self.statuses or (self.never is not None and self.never.search(told.line)):
            return False
        return self.says(told) if self.names or self.words is not None else True

    def says(self, told: Told) -> bool:
        """Whether `told` has one of the names or words."""
        if any(name.lower() in self.names for name in told.names):
            return True
        return self.words is not None and self.words.search(told.line) is not None


def _any(*words: str) -> re.Pattern[str]:
    return late_pattern("|".join(words), re.IGNORECASE)


def _named(*names: str) -> frozenset[str]:
    return frozenset(names)


#: how a parameter is refused, somewhere behind or before its name
_NO = (
    r"(?:(?:un|n.t |not |no longer |cannot |only )support|unknown|unrecogni[sz]ed|invalid(?!_request|_argument)"
    r"|unavailable|failed|unresolved|error resolving"
    r"|not (?:be )?(?:permitted|allowed|enabled|available|implemented|accepted|valid|configured)"
    r"|extra[_ ](?:inputs|forbidden|fields)|unexpected|must (?:be|not|have)|should be|has to be|deprecated|requires?\b"
    r"|only (?:the default|be allowed|be set|allowed)|cannot|can.t|restricted|no endpoints found|missing"
    r"|does not have|passed back|ignored|\u4e0d\u652f\u6301|\u5fc5\u987b)"
)


def _no(parameter: str) -> str:
    """`parameter` in one breath with its refusal."""
    return rf"(?:{parameter})(?s:.{{0,200}}){_NO}|{_NO}(?s:.{{0,120}})(?:{parameter})"


_CONTEXT = _any(
    r"context[ _]?(?:length|size|window|limit|shift)",
    r"maximum context",
    r"exceed_context",
    r"too many (?:input |prompt |total )?(?:tokens|text bytes)",
    r"\b(?:prompt|input|request|messages?|conversation|string)[ _](?:(?:is|are|tokens)[ _])?too[ _](?:long|large)",
    r"range of input length",
    r"reduce the (?:length|size) of",
    r"input token count",
    r"token (?:count|limit) exceed",
    r"exceed\w* (?:the )?(?:\w+ ){0,2}token limit",
    r"input tokens exceed",
    r"max_model_len|max_seq_len|session_len|maximum model length|max_prompt_tokens|maximum prompt length",
    r"max(?:imum)? (?:allowed |supported )?(?:input|sequence) length|maximum length \d|max(?:imum)? message tokens",
    r"max(?:imum)? (?:input characters|length of current question|tokens of \d+ exceed)",
    r"number of (?:input |prompt )?tokens\b.{0,60}\b(?:exceed|limit|max)",
    r"input length (?:\d+ )?exceed|token length \d+ is longer|prompt token count",
    r"`?inputs`? (?:tokens|must have less)",
    r"tokens in the prompt cannot exceed",
    r"too large to process",
    r"\u8d85\u957f|\u8d85(?:\u51fa|\u8fc7).{0,20}(?:\u957f\u5ea6|\u4e0a\u4e0b\u6587|token)|token.{0,4}\u8d85"
    r"|\u4e0a\u4e0b\u6587.{0,12}\u8d85|\u8f93\u5165.{0,8}\u8fc7\u957f",
)
#: worded like an overflow, and something else: a cap that is larger than the model's, more tools than may be offered
_NO_CONTEXT = _any(r"maximum value for .?max_", r"[`'\"]tools\b.{0,20}array too long")
_TOO_LARGE = _any(r"request too large|\b(?:input|message)[^.]{0,40}tokens must be reduced|reduce your message size")
_FILTER = _any(
    r"content[ _-]?filter",
    r"content management policy",
    r"content[ _]?policy",
    r"data[ _]?inspection[ _]?failed|inappropriate content|sensitive content|sensitive[ _]?content[ _]?detected",
    r"content exists risk|considered high risk|high risk content",
    r"\b(?:was|been|is|input|prompt|content) flagged\b|flagged as potentially",
    r"safety system|usage (?:polic|guideline)|responsible ?ai|prohibited[ _]content",
    r"blocked by (?:our |the )?(?:guardrail|safety)|violated guardrail|\b(?:in|out)put new_sensitive",
    r"\u654f\u611f|\u8fdd\u89c4|\u4e0d\u5b89\u5168",
)
_QUOTA = _any(
    r"insufficient[ _](?:user[ _])?(?:quota|balance|credit|funds)",
    r"exceeded (?:your )?current quota|exceeded_current_quota",
    r"billing[ _](?:hard[ _])?limit|billing[ _]not[ _]active|check your billing|arrearage",
    r"account\b.{0,40}\b(?:not active|deactivated|suspended|overdue|good standing)",
    r"credit balance|(?:out of|no|more|have any) credits|credits? (?:limit|exhausted|depleted)|quota is not enough",
    r"balance is (?:insufficient|too low)|out of call volume quota",
    r"free ?tier ?only|payment required",
    r"(?:\u4f59\u989d|\u989d\u5ea6)\u4e0d\u8db3|\u6b20\u8d39",
)
# A rate of so many a minute is worded like a balance by some, with the seconds until there is room again.
_SOON = re.compile(r"(?:retry|try again) (?:in|after) \d", re.IGNORECASE)
_QUOTA_400 = _any(
    r"billing_hard_limit_reached|arrearage|credit balance is too low",
    r"^insufficient[ _](?:user[ _])?(?:quota|balance|credit|funds)",
    r"^[^.]{0,80}\u4f59\u989d\u4e0d\u8db3|\u6b20\u8d39",
)
#: a key that is wrong, where no status says so
_KEY = _any(
    r"^(?:please pass a valid|incorrect|invalid|missing(?: or invalid)?) (?:x-)?(?:api[ -]?key|authorization)\b",
    r"^(?:your )?api key (?:is )?(?:not valid|invalid|expired|not found|missing)",
    r"^access token (?:is )?(?:invalid|expired)|^login fail|^unauthori[sz]ed\b",
)
#: too many requests, where no status says so
_BUSY = _any(r"^(?:api )?rate limit|\brate limit (?:is )?(?:exceed|reach)|^too many requests|\bqps\b.{0,20}limit")
_MODEL = _any(
    r"model[ _]not[ _]|no such model|\bmodel \S{1,120} (?:does not exist|not found)",
    r"deployment\b.{0,60}\bnot (?:exist|found)|no models? loaded|try pulling it",
)
_MODEL_400 = _any(
    r"model_not_(?:found|exist)|^model (?:does )?not exist|is not a valid model|invalid model name|no models? loaded",
    r"^the provided model identifier is invalid|^could not find real modelid",
    r"^(?:the )?model [`'\"]?[^\s`'\"]{1,120}[`'\"]? (?:does not exist|not found|is not (?:available|found|supported))",
)
_FORMAT = (
    r"response[_ ]?(?:format|mime|schema)|json[_ ](?:schema|object|mode)|structured[_ ]?outputs?|guided_\w+"
    r"|output_(?:format|config)|\bgrammar\b|must contain the word .json"
)
_TOOLS = (
    r"tool_choice|--(?:enable-auto-tool-choice|tool-call-parser)|tools param|[`'\"]tools[`'\"]|\btools\[|^tools\b"
    r"|\btools (?:is|are)\b|\btool[ -]?(?:use|calling|calls)\b|\bfunction[ -]call(?:ing|s)?\b|[`'\"]functions?[`'\"]"
)
_THINKING = (
    r"enable_thinking|chat_template_kwargs|reasoning_(?:effort|content)|thinking_budget|reasoning\.effort"
    r"|[`'\"]thinking[`'\"]|thinking mode|^thinking\b|thinking (?:is|cannot|can.t)|disable thinking"
    r"|^think value|^reasoning is"
)
_STREAM = (
    r"stream_options|[`'\"]stream[`'\"]|\bstream(?:ing)? (?:mode|calls?|responses?|is|must|parameter)"
    r"|enable the stream|to stream this|^stream\b|stream=true"
)
_STREAMS = (
    r"(?:not|only) supports? (?:the )?stream|(?:not|n.t) stream\b|only non-stream"
    r"|\bstream(?:ing)? (?:is )?(?:not |un)(?:support|available|implemented|enabled)"
)
_SYSTEM = (
    r"(?:system|developer)[ _-](?:role|message|prompt|instruction)s?|role:? [`'\"]?(?:system|developer)|roles must"
    r"|[`'\"](?:system|developer)[`'\"]|only user[^.]{0,60}roles"
)
_CAP = r"max_(?:completion_|output_|new_)?tokens|maxOutputTokens|max tokens"
_CAPS = (
    r"max_tokens(?s:.*)max_completion_tokens|max_completion_tokens(?s:.*)max_tokens",
    r"maximum tokens you requested exceeds",
    rf"range of (?:{_CAP})|(?:{_CAP})\W{{0,3}}.{{0,40}}(?:too large|at most|range|less than|\d > \d|maximum)",
    _no(_CAP),
)
_TEMPERATURE = (
    r"[`'\"]temperature\b|temperature[`'\"]|^temperature\b|temperature (?:is|must|should|has|value|does|cannot)"
)


def _lacks(
    capability: Capability,
    condition: str,
    *words: str,
    also: frozenset[int] = frozenset(),
    never: re.Pattern[str] | None = None,
) -> Row:
    """A row of something that is asked for in another way."""
    return Row(
        kind=f"no_{capability}", condition=condition, statuses=_REFUSES | also, words=_any(*words), never=never,
        action="change", capability=capability, spent="refuse",
    )  # fmt: skip


TABLE: tuple[Row, ...] = (
    Row(
        kind="context", condition="the request is longer than the model's context", action="change",
        capability="context", spent="refuse", statuses=frozenset({400, 413, 422, 500}), words=_CONTEXT,
        never=_NO_CONTEXT,
        names=_named(
            "context_length_exceeded", "exceed_context_size_error", "string_above_max_length", "tokens_too_long",
            "1261",
        ),
    ),
    Row(
        kind="context", condition="the request is larger than what may be sent at once", action="change",
        capability="context", spent="refuse", statuses=frozenset({429}), words=_TOO_LARGE,
    ),
    Row(
        kind="context", condition="content too large", action="change", capability="context", spent="refuse",
        statuses=frozenset({413}),
    ),
    Row(
        kind="content_filter", condition="a content filter", action="refuse", spent="refuse",
        statuses=frozenset({400, 403, 422, 451, 500}), words=_FILTER,
        names=_named(
            "content_filter", "content_policy_violation", "data_inspection_failed", "datainspectionfailed",
            "responsibleaipolicyviolation", "moderation_blocked", "invalid_prompt", "prohibited_content",
            "content_moderated", "1301",
        ),
    ),
    Row(
        kind="quota", condition="a quota or balance that is used up", action="stop", spent="stop",
        statuses=frozenset({400, 401, 402, 403, 429, 500, 503}), words=_QUOTA_400,
        names=_named(
            "insufficient_quota", "insufficient_user_quota", "billing_hard_limit_reached", "billing_not_active",
            "arrearage", "exceeded_current_quota_error", "insufficient_balance", "account_deactivated", "1113",
            "allocationquota.freetieronly", "budget_exceeded",
        ),
    ),
    Row(
        kind="quota", condition="a quota or balance that is used up, in words", action="stop", spent="stop",
        statuses=frozenset({403, 429}), words=_QUOTA, never=_SOON,
    ),
    Row(
        kind="quota", condition="payment required", action="stop", spent="stop", statuses=frozenset({402}),
    ),
    Row(
        kind="model_not_found", condition="a model that the endpoint does not have", action="stop", spent="stop",
        statuses=frozenset({400, 403, 404, 422, 500, 503}), words=_MODEL_400,
        names=_named(
            "model_not_found", "model_not_exist", "modelnotfound", "deploymentnotfound", "invalid_model",
            "model_decommissioned", "model_not_available", "model_not_supported", "unknown_model", "modelnotopen",
            "invalidendpointormodel.notfound", "1211",
        ),
    ),
    Row(
        kind="model_not_found", condition="a model that the endpoint does not have, in words", action="stop",
        spent="stop", statuses=frozenset({404}), words=_MODEL,
    ),
    Row(
        kind="key", condition="a key that is wrong, in words", action="stop", spent="stop",
        statuses=frozenset({400}), words=_KEY,
        names=_named("invalid_api_key", "api_key_invalid", "authentication_error", "unauthenticated"),
    ),
    Row(
        kind="malformed", condition="what the model wrote, which the server could not read", action="retry",
        further=MALFORMED_RETRIES, statuses=frozenset({400, 422, 500}),
        words=_any(
            r"failed to generate (?:a )?json|failed to call a function",
            r"failed to parse (?:input at pos|(?:the )?(?:model|tool)\b.{0,40}\b(?:output|response))",
        ),
        names=_named("json_validate_failed", "tool_use_failed"),
    ),
    Row(
        kind="poisoned", condition="tool calls of the history that the server cannot read", action="retry", further=1,
        spent="refuse", statuses=frozenset({500}),
        words=_any(r"failed to parse (?:tool|function)[ _]?call|(?:tool|function)[ _]call arguments"),
    ),
    _lacks("tools", "a tool's schema, or a choice among tools", r"schema for (?:function|tool)", _no("tool_choice")),
    _lacks(
        "thinking", "the switch for thinking, or its absence", r"not support thinking", _no(_THINKING),
        never=_any(r"^[`'\"]?temperature\b"),
    ),
    _lacks("stream", "a stream, or an answer in one piece", _STREAMS, _no(_STREAM)),
    _lacks("parallel_tools", "several calls at once", r"single tool[- ]calls?", _no(r"parallel[_ ]tool[_ ]calls?")),
    _lacks("tool_ids", "ids of tool calls", r"tool[ _]call[ _]ids? (?:was|were|must|should|has to)\b"),
    _lacks("max_tokens", "the cap of an answer, its name or its size", *_CAPS),
    _lacks("schema", "a schema, or JSON at all", _FORMAT),
    _lacks(
        "tools", "tools at all", r"not support (?:the use of )?tools?\b", r"missing a thought_signature", _no(_TOOLS),
        also=frozenset({404}),
    ),
    _lacks("schema", "a schema, in other words", _no(r"\bschema")),
    _lacks("system", "the role `system`, or where it stands", r"roles must alternate", _no(_SYSTEM)),
    _lacks("temperature", "a temperature", _no(_TEMPERATURE)),
    Row(
        kind="key", condition="a key that is missing, wrong or without rights", action="stop", spent="stop",
        statuses=frozenset({401, 403, 407}),
    ),
    Row(
        kind="not_found", condition="an address at which nothing answers chat completions", action="stop", spent="stop",
        statuses=frozenset({404, 405, 410, 501}),
    ),
    Row(
        kind="redirect", condition="a redirect, never followed", action="stop", spent="stop", statuses=range(300, 400),
    ),
    Row(kind="timeout", condition="request time-out", action="retry", statuses=frozenset({408})),
    Row(kind="rate_limited", condition="too many requests", action="retry", statuses=frozenset({429})),
    Row(
        kind="warming_up", condition="a server that loads its model: asked again within seconds", action="retry",
        statuses=frozenset({503}), words=_any(r"\bloading\b|\bwarming\b|\bstarting\b|not ready"),
    ),
    Row(
        kind="server_error", condition="an error inside the server; the same twice in a row refuses the request",
        action="retry", statuses=frozenset({500}),
    ),
    Row(
        kind="unavailable", condition="a server or gateway that is overloaded or away", action="retry",
        statuses=frozenset({409, 424, 425, 498, 499, *_SERVER}),
    ),
    Row(
        kind="refused", condition="any other refusal", action="refuse", spent="refuse", statuses=range(400, 500),
    ),
    Row(
        kind="rate_limited", condition="too many requests, in the words of an error inside a 200", action="retry",
        words=_BUSY, names=_named("rate_limit_error", "rate_limit_exceeded", "rate_limited"),
    ),
    Row(
        kind="unreachable", condition="no connection: refused, no such host, TLS, a proxy, too slow to connect",
        action="retry", spent="stop",
    ),
    Row(kind="connection", condition="a connection that breaks", action="retry"),
    Row(kind="first_byte", condition="no answer begun in time", action="retry"),
    Row(kind="timeout", condition="no whole answer in time", action="retry"),
    Row(
        kind="malformed", condition="200 without a completion: HTML, no choices, half an object, too large",
        action="retry", further=MALFORMED_RETRIES,
    ),
)  # fmt: skip


def row_of(status: int, told: Told) -> Row:
    """The row of an error with `status` from 300 on that says `told`."""
    return next(row for row in TABLE if row.fits(status, told))


def row_of_words(told: Told) -> Row | None:
    """The row of an error without a status, by its words alone; None where they say nothing."""
    return next((row for row in TABLE if row.says(told) and not (row.never and row.never.search(told.line))), None)


def row_without_status(kind: str) -> Row:
    """The row of a failure that came without a status."""
    return next(row for row in TABLE if row.kind == kind and not row.statuses)
