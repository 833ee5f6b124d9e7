"""Statuses outside 2xx in the words of many servers, and what they ask us to do."""

from typing import Any

from hostile_rows import RETRIES, Row, refused, retried, stopped, unavailable
from hostile_wire import Asked, Reply, always, failed, first, http

_HTML = "<html><head><title>{0}</title></head><body><center><h1>{0}</h1></center><hr>nginx</body></html>"


def row(name: str, **given: Any) -> Row:
    return Row(name=name, area="statuses", **given)


def _html(status: int, title: str) -> bytes:
    return http(status, _HTML.format(title), content_type="text/html")


def _echo(status: int) -> Any:
    """An error that repeats everything that was sent, the key too."""

    def play(asked: Asked) -> Reply:
        return failed(status, f"cannot serve {asked.headers.get('authorization')} {asked.text[:3000]}")

    return play


def _other_words(asked: Asked) -> Reply:
    """A 500 that is never the same twice."""
    return failed(500, f"internal error in {('alpha', 'beta', 'gamma')[asked.place % 3]}")


STOPPING: dict[str, tuple[str, bytes]] = {
    "OpenAI: 401 wrong key": ("key", failed(401, "Incorrect API key provided: sk-7e57***.", code="invalid_api_key")),
    "401 without a body": ("key", http(401, "")),
    "401 as a page": ("key", _html(401, "401 Authorization Required")),
    "401 as a bare word": ("key", http(401, "Unauthorized", content_type="text/plain")),
    "FastAPI: 401 detail": ("key", http(401, {"detail": "Invalid token"})),
    "OpenAI: 403 country": ("key", failed(403, "Country, region, or territory not supported",
                                          code="unsupported_country_region_territory")),
    "403 of a firewall": ("key", _html(403, "403 Forbidden")),
    "Gemini: 400 wrong key": ("key", http(400, [{"error": {"code": 400, "message": "API key not valid. Please pass a "
                                                          "valid API key.", "status": "INVALID_ARGUMENT"}}])),
    "xAI: 400 wrong key": ("key", http(400, {"code": "Client specified an invalid argument", "error": "Incorrect API "
                                            "key provided: xa***aa. You can obtain an API key from https://console.x.ai."})),
    "LiteLLM: 400 budget": ("quota", failed(400, "Budget has been exceeded! Current cost: 10.01, Max budget: 10.0",
                                           type="budget_exceeded", code="400")),
    "SiliconFlow: 403 balance": ("quota", http(403, {"code": 30001, "message": "Sorry, your account balance is "
                                                    "insufficient", "data": None})),
    "xAI: 403 no credits": ("quota", http(403, {"code": "The caller does not have permission", "error": "Your newly "
                                               "created team doesn't have any credits yet."})),
    "Groq: 400 model decommissioned": ("model_not_found", failed(
        400, "The model `executor` has been decommissioned and is no longer supported.", code="model_decommissioned")),
    "Bedrock: 400 model": ("model_not_found", http(400, {"message": "The provided model identifier is invalid."})),
    "SiliconFlow: 400 model": ("model_not_found", http(400, {"code": 20012, "message": "Model does not exist. Please "
                                                            "check it carefully.", "data": None})),
    "Doubao: 404 model not opened": ("model_not_found", failed(
        404, "Your account 21 has not activated the model. Please activate it in the console.", code="ModelNotOpen")),
    "DashScope: 403 access denied": ("key", http(403, {"code": "AccessDenied", "message": "Access denied."})),
    "DashScope: 403 free quota used up": (
        "quota", failed(403, "The free tier of the model has been exhausted. If you wish to continue access the model "
                        "on a paid basis, please disable the \"use free tier only\" mode",
                        code="AllocationQuota.FreeTierOnly")),
    "DeepSeek: 402 balance": ("quota", failed(402, "Insufficient Balance", type="unknown_error")),
    "OpenRouter: 402 credits": ("quota", failed(402, "This request requires more credits, or fewer max_tokens.")),
    "402 as a page": ("quota", _html(402, "Payment Required")),
    "OpenAI: 429 insufficient_quota": (
        "quota", failed(429, "You exceeded your current quota, please check your plan and billing details.",
                        type="insufficient_quota", code="insufficient_quota")),
    "429 billing hard limit": ("quota", failed(429, "Billing hard limit has been reached",
                                               code="billing_hard_limit_reached")),
    "OpenAI: 400 billing hard limit": ("quota", failed(400, "Billing hard limit has been reached",
                                                       code="billing_hard_limit_reached")),
    "DashScope: 400 arrearage": ("quota", failed(400, "Access denied, please make sure your account is in good "
                                                 "standing.", code="Arrearage")),
    "Moonshot: 429 balance": ("quota", failed(429, "Your account is suspended due to insufficient balance, please "
                                              "recharge your account", type="exceeded_current_quota_error")),
    "OpenAI: 404 model": ("model_not_found", failed(404, "The model `executor` does not exist or you do not have "
                                                    "access to it.", code="model_not_found")),
    "vLLM: 404 model": ("model_not_found", http(404, {"object": "error", "message": "The model `executor` does not "
                                                      "exist.", "type": "NotFoundError", "code": 404})),
    "Ollama: 404 model": ("model_not_found", failed(404, 'model "executor" not found, try pulling it first')),
    "DeepSeek: 400 model": ("model_not_found", failed(400, "Model Not Exist", type="invalid_request_error")),
    "OpenRouter: 400 model": ("model_not_found", failed(400, "executor is not a valid model ID", code=400)),
    "DashScope: 404 model": ("model_not_found", failed(404, "The model `executor` does not exist.",
                                                       code="model_not_found")),
    "404 as a page": ("not_found", _html(404, "404 Not Found")),
    "FastAPI: 404 detail": ("not_found", http(404, {"detail": "Not Found"})),
    "Ollama: 404 bare": ("not_found", http(404, "404 page not found", content_type="text/plain")),
    "405 as a page": ("not_found", _html(405, "405 Not Allowed")),
    "410": ("not_found", failed(410, "this version of the API is gone")),
    "501": ("not_found", http(501, "")),
    "301 elsewhere": ("redirect", http(301, "", location="https://elsewhere.example/v1")),
    "302 to a login": ("redirect", http(302, "", location="/login?next=/v1")),
    "303 elsewhere": ("redirect", http(303, "", location="https://elsewhere.example/")),
    "307 to another origin": ("redirect", http(307, "", location="http://127.0.0.1:9/v1/chat/completions")),
    "308 to itself": ("redirect", http(308, "", location="/v1/chat/completions")),
    "307 without a target": ("redirect", http(307, "")),
}  # fmt: skip

REFUSING: dict[str, bytes] = {
    "OpenAI: 400 bad request": failed(400, "Invalid value for 'messages[0].role'", type="invalid_request_error"),
    "400 without a body": http(400, ""),
    "400 as a page": _html(400, "400 Bad Request"),
    "400 with a list": http(400, [{"error": {"code": 400, "message": "Request contains an invalid argument."}}]),
    "406": http(406, ""),
    "411": http(411, ""),
    "412": http(412, ""),
    "415": failed(415, "Unsupported Media Type"),
    "418": http(418, "I'm a teapot", content_type="text/plain"),
    "FastAPI: 422": http(422, {"detail": [{"loc": ["body", "messages", 0], "msg": "field required", "type": "x"}]}),
    "431": http(431, ""),
    "451": http(451, "unavailable for legal reasons", content_type="text/plain"),
    "400 that is no UTF-8": http(400, b"\xff\xfe\xfa broken"),
    "400 of 300 kB": http(400, "no " * 100_000),
}

LATER: dict[str, tuple[str, bytes]] = {
    "408": ("timeout", http(408, "")),
    "409": ("unavailable", failed(409, "conflict")),
    "425": ("unavailable", http(425, "")),
    "OpenAI: 429 rate": ("rate_limited", failed(429, "Rate limit reached for requests. Limit 3/min. Please try again "
                                                "in 20s.", type="requests", code="rate_limit_exceeded")),
    "DashScope: 429 rate quota": ("rate_limited", failed(429, "Requests rate limit exceeded, please try again later.",
                                                         code="limit_requests")),
    "DashScope: 429 allocation quota": ("rate_limited", failed(429, "Allocated quota exceeded, please increase your "
                                                               "quota limit.", code="Throttling.AllocationQuota")),
    "GitHub: 429 by user and model": ("rate_limited", failed(429, "Rate limit of 10 per 60s exceeded for UserByModel. "
                                                            "Please wait 30 seconds before retrying.",
                                                            code="RateLimitReached")),
    "Groq: 498 flex": ("unavailable", failed(498, "Flex tier capacity exceeded", code="capacity_exceeded")),
    "Bedrock: 424 of a model": ("unavailable", http(424, {"message": "the model failed", "originalStatusCode": 500})),
    "nginx: 499": ("unavailable", http(499, "")),
    "429 as a page": ("rate_limited", _html(429, "429 Too Many Requests")),
    "429 without a body": ("rate_limited", http(429, "")),
    "500 of a proxy that never repeats itself": ("server_error", b""),
    "nginx: 502": ("unavailable", _html(502, "502 Bad Gateway")),
    "503 overloaded": ("unavailable", failed(503, "The server is currently overloaded with other requests.")),
    "504 of a gateway": ("unavailable", _html(504, "504 Gateway Time-out")),
    "Cloudflare: 520": ("unavailable", _html(520, "Web server is returning an unknown error")),
    "Cloudflare: 524": ("unavailable", _html(524, "A timeout occurred")),
    "Anthropic: 529 overloaded": ("unavailable", http(529, {"type": "error", "error": {
        "type": "overloaded_error", "message": "Overloaded"}})),
    "599": ("unavailable", http(599, "")),
    "llama.cpp: 503 loading": ("warming_up", failed(503, "Loading model", type="unavailable_error", code=503)),
    "503 with talk of a balance": ("unavailable", failed(503, "cannot read the insufficient balance of the cache")),
}  # fmt: skip

FILTERS: dict[str, bytes] = {
    "Azure: a content filter": failed(400, "The response was filtered due to the prompt triggering Azure OpenAI's "
                                      "content management policy.", code="content_filter"),
    "DashScope: data inspection": failed(400, "Input data may contain inappropriate content.",
                                         code="data_inspection_failed"),
    "OpenAI: usage policies": failed(400, "Your request was rejected as a result of our safety system.",
                                     code="content_policy_violation"),
}  # fmt: skip

#: Retry-After as it is written -> whether it is waited for
AFTER: dict[str, dict[str, str]] = {
    "seconds": {"retry_after": "2"},
    "a fraction": {"retry_after": "0.5"},
    "milliseconds": {"retry_after_ms": "1500"},
    "a date": {"retry_after": "Thu, 01 Jan 2026 00:00:09 GMT"},
    "a date that is over": {"retry_after": "Thu, 01 Jan 2015 00:00:09 GMT"},
    "nothing that can be read": {"retry_after": "soon, perhaps"},
    "a negative number": {"retry_after": "-5"},
    "no number": {"retry_after": "nan"},
    "zero": {"retry_after": "0"},
    "an empty word": {"retry_after": ""},
    "a date in years, which nobody means": {"retry_after": "Thu, 01 Jan 2099 00:00:00 GMT"},
    "an endless time": {"retry_after": "inf"},
}

_LONG: dict[str, dict[str, str]] = {
    "a day": {"retry_after": "86400"},
    "x-should-retry: false": {"x_should_retry": "false"},
}


def _later(reply: bytes) -> Any:
    return always(reply) if reply else _other_words


ROWS: list[Row] = [
    *(row(name, play=always(reply), expect=stopped(kind)) for name, (kind, reply) in STOPPING.items()),
    *(row(name, play=always(reply), expect=refused("refused")) for name, reply in REFUSING.items()),
    *(row(f"{name}, always", play=_later(reply), expect=unavailable(kind)) for name, (kind, reply) in LATER.items()),
    *(row(f"{name}, {RETRIES} times", play=first(*[reply] * RETRIES), expect=retried(*[kind] * RETRIES))
      for name, (kind, reply) in LATER.items() if reply),
    *(row(f"429 with Retry-After {name}", play=first(failed(429, "slow down", headers=headers)),
          expect=retried("rate_limited")) for name, headers in AFTER.items()),
    *(row(f"429 with {name}", play=always(failed(429, "slow down", headers=headers)),
          expect=unavailable("rate_limited", tries=1)) for name, headers in _LONG.items()),
    row("500 with the same words for ever", play=always(failed(500, "Internal Server Error")),
        expect=refused("server_error", retried=("server_error",))),
    row("500 once", play=first(failed(500, "Internal Server Error")), expect=retried("server_error")),
    row("a 400 that repeats the key", play=_echo(400), expect=refused("refused")),
    row("a 401 that repeats the key", play=_echo(401), expect=stopped("key")),
    row("a 503 that repeats the key", play=_echo(503), expect=unavailable("unavailable")),
    row("two limits and a break", expect=retried("rate_limited", "unavailable"),
        play=first(failed(429, "slow down"), http(502, ""))),
    *(row(name, play=always(reply), expect=refused("content_filter", stop="content_filter", degraded="content_filter"))
      for name, reply in FILTERS.items()),
    row("llama.cpp: arguments that it cannot read, whatever is sent", expect=refused("poisoned", retried=("poisoned",)),
        play=always(failed(500, "Failed to parse tool call arguments as JSON: unexpected end", code=500))),
    row("nobody listens", play=always(None), unseen=True, endpoint={"base_url": "http://127.0.0.1:9/v1"},
        expect=stopped("unreachable", tries=1 + RETRIES)),
]  # fmt: skip
