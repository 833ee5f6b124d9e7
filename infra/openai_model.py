"""Any OpenAI-compatible endpoint as a `ChatModel`. Retries are ours; an answer's shape is checked before its sense."""

import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import ip_address
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio
import msgspec
import structlog
from openai import APIConnectionError, APITimeoutError, AsyncOpenAI, DefaultAsyncHttpx2Client, Timeout

from events.codec import canonical
from events.errors import BadInput
from infra.model_errors import (
    LONGEST_PAUSE_S,
    LONGEST_WARM_UP_PAUSE_S,
    MALFORMED_RETRIES,
    Failure,
    malformed,
    of_error_object,
    of_status,
    one_line,
    too_slow,
    unreachable,
)
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped
from runtime.ports import CallKey, ChatAnswer, ChatRequest, Clock, Role, TokenUsage, ToolCall
from runtime.settings import EndpointSettings, ModelSettings, Thinking

_log = structlog.get_logger("chime.model")

#: an answer, or an error, is not read beyond this, bytes
LARGEST_ANSWER, LARGEST_ERROR = 16 * 1024 * 1024, 64 * 1024

#: how each kind of endpoint is told not to think
_THINKING: dict[Thinking, dict[str, Any]] = {
    "none": {},
    "dashscope": {"enable_thinking": False},
    "vllm": {"chat_template_kwargs": {"enable_thinking": False}},
    "deepseek": {"thinking": {"type": "disabled"}},
    "openai": {"reasoning_effort": "none"},
}

#: where the response hook leaves a body for `_exchange`
_BODY = "chime_body"
#: the SDK's own mark on a request: who made it reads the body
_UNREAD = "x-stainless-raw-response"

#: thinking that no parser of the server's has taken out of the answer; without an end where the answer was cut off
_THOUGHT = re.compile(r"\A\s*<think>(.*?)(?:</think>\s*|\Z)", re.DOTALL)

Format = Literal["json_schema", "json_object", "text"]
_WEAKER: dict[Format, Format] = {"json_schema": "json_object", "json_object": "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Abilities:
    """What an endpoint's model takes, as far as its refusals have told."""

    format: Format = "json_schema"
    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True

    def after(self, failure: Failure, request: ChatRequest) -> "_Abilities | None":
        """Without what was refused; None where `request` did not ask for it or nothing is left to leave out."""
        match failure.capability:
            case "schema" if request.schema is not None and self.format in _WEAKER:
                return replace(self, format=_WEAKER[self.format])
            case "max_tokens" if self.max_tokens == "max_tokens":
                return replace(self, max_tokens="max_completion_tokens")
            case "temperature" if self.temperature:
                return replace(self, temperature=False)
            case _:
                return None


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.reason)


class OpenAIModel:
    """`runtime.ports.ChatModel`; made by `openai_model`, inside the loop it is used in."""

    def __init__(
        self,
        models: Mapping[Role, ModelSettings],
        endpoints: Mapping[Role, EndpointSettings],
        clients: Mapping[Role, AsyncOpenAI],
        keys: Mapping[str, str],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._models, self._endpoints, self._clients, self._keys = models, endpoints, clients, keys
        self._clock, self._rng = clock, rng
        #: (base_url, model) -> what the last answered request went without
        self._abilities: dict[tuple[str, str], _Abilities] = {}

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        """As `runtime.ports.ChatModel.complete`."""
        request = _sendable(request)
        model, endpoint = self._models[request.role], self._endpoints[request.role]
        place = (endpoint.base_url, model.model)
        abilities = self._abilities.get(place, _Abilities())
        failures: list[Failure] = []
        began = self._clock.monotonic()
        while True:
            left_s = began + endpoint.deadline_s - self._clock.monotonic()
            try:
                answer = await self._ask(request, key, model, endpoint, abilities, min(endpoint.timeout_s, left_s))
            except _Failed as failed:
                failure, cause = failed.failure.without(self._keys.get(endpoint.api_key_env, "")), failed.__cause__
            else:
                # Only now: what was left out for a request that is refused all the same was not the reason.
                self._abilities[place] = abilities
                return answer
            if (weaker := abilities.after(failure, request)) is not None:
                _log.info("capability_refused", model=model.model, capability=failure.capability, reason=failure.reason)
                abilities = weaker
                continue
            failures.append(failure)
            if (final := self._final(failures, endpoint)) is not None:
                raise final from cause
            pause_s = self._pause_s(failure, len(failures), endpoint)
            if self._clock.monotonic() + pause_s >= began + endpoint.deadline_s:
                told = f"{len(failures)} tries, and no time for another within {endpoint.deadline_s:g} s"
                reason = f"{endpoint.base_url}: {failure.reason} ({told})"
                raise ModelUnavailable(failure.kind, reason, failure.status) from cause
            _log.warning(
                "model_retried", call=key.id, run_id=key.run, model_role=request.role, kind=failure.kind,
                attempt=len(failures), pause_s=round(pause_s, 2), reason=failure.reason,
            )  # fmt: skip
            await self._clock.sleep(pause_s)

    def _final(
        self, failures: list[Failure], endpoint: EndpointSettings
    ) -> RunStopped | ModelRefused | ModelUnavailable | None:
        """What the last failure means after those before it; None: another try."""
        failure = failures[-1]
        told = f"{endpoint.base_url}: {failure.reason}"
        if failure.action == "stop":
            if failure.kind == "key" and not self._keys.get(endpoint.api_key_env):
                told += f" (no key was sent: {endpoint.api_key_env or 'api_key_env'} is empty)"
            return RunStopped(failure.kind, told, failure.status)
        if failure.action in ("refuse", "change"):
            return ModelRefused(failure.kind, failure.reason, failure.status)
        if failure.status == 500 and failure in failures[-2:-1]:
            return ModelRefused(failure.kind, f"twice the same: {failure.reason}", failure.status)
        spent = sum(one.kind == "malformed" for one in failures) > MALFORMED_RETRIES
        if failure.action == "give_up" or spent or len(failures) > endpoint.retries:
            return ModelUnavailable(failure.kind, f"{told} ({len(failures)} tries)", failure.status)
        return None

    def _pause_s(self, failure: Failure, tries: int, endpoint: EndpointSettings) -> float:
        """What the server asked for, and full jitter over a pause that doubles."""
        longest = LONGEST_WARM_UP_PAUSE_S if failure.kind == "warming_up" else LONGEST_PAUSE_S
        doubled = min(longest, endpoint.retry_base_s * 2.0 ** min(tries - 1, 32))
        return (failure.retry_after_s or 0.0) + self._rng.uniform(0, doubled)

    async def _ask(
        self,
        request: ChatRequest,
        key: CallKey,
        model: ModelSettings,
        endpoint: EndpointSettings,
        abilities: _Abilities,
        limit_s: float,
    ) -> ChatAnswer:
        """One try of `limit_s` at most.

        Raises:
            _Failed: with what it means.
        """
        client = self._clients[request.role]
        parameters = _parameters(request, model, abilities)
        parameters["timeout"] = Timeout(None, connect=endpoint.connect_timeout_s)
        try:
            # The whole exchange: a read time-out would start anew with every byte of a slow answer.
            with anyio.fail_after(limit_s):
                async with client.chat.completions.with_streaming_response.create(**parameters) as response:
                    body: bytes = response.http_response.extensions[_BODY]
        except TimeoutError as error:
            raise _Failed(too_slow(limit_s)) from error
        except APITimeoutError as error:
            raise _Failed(unreachable("timeout", error)) from error
        except APIConnectionError as error:
            raise _Failed(unreachable("connection", error)) from error
        return _completion(body, request, key, _now(self._clock))


def _sendable(request: ChatRequest) -> ChatRequest:
    """`request` in characters that UTF-8 has: what tools answer goes into it.

    Raises:
        ModelRefused: something that JSON has no form for.
    """
    try:
        return msgspec.json.decode(canonical(request), type=ChatRequest)
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelRefused("unsendable", f"the request cannot be written as JSON: {one_line(str(error))}") from error


def _now(clock: Clock) -> datetime:
    return datetime.fromisoformat(clock.utc())


def _parameters(request: ChatRequest, model: ModelSettings, abilities: _Abilities) -> dict[str, Any]:
    """What the SDK is called with."""
    parameters: dict[str, Any] = {
        "model": model.model,
        "messages": request.messages,
        abilities.max_tokens: model.max_tokens,
    }
    if abilities.temperature:
        parameters["temperature"] = model.temperature
    if request.tools:
        parameters["tools"] = request.tools
    if request.schema is not None and abilities.format == "json_schema":
        name = str(request.schema.get("title", "answer"))
        wanted = {"name": name, "strict": True, "schema": request.schema}
        parameters["response_format"] = {"type": "json_schema", "json_schema": wanted}
    elif request.schema is not None and abilities.format == "json_object":
        parameters["response_format"] = {"type": "json_object"}
    if extra := _THINKING[model.thinking]:
        parameters["extra_body"] = extra
    return parameters


def _completion(body: bytes, request: ChatRequest, key: CallKey, now: datetime) -> ChatAnswer:
    """The answer in a completion's bytes, whatever else a server put there.

    Raises:
        _Failed: it is none; what it is instead.
    """
    plain, choice, message = _parts(body, now)
    content = _text(message.get("content"))
    reasoning = _text(message.get("reasoning_content") or message.get("reasoning"))
    if thought := _THOUGHT.match(content):
        content, reasoning = content[thought.end() :], reasoning + thought[1].strip()
    if request.schema is not None and not content.strip() and _is_object(reasoning):
        _log.info("answer_in_reasoning", call=key.id, run_id=key.run)
        content = reasoning
    calls = _tool_calls(message.get("tool_calls"), key)
    finish = _text(choice.get("finish_reason")) or ("tool_calls" if calls else "stop")
    if not content and not calls and (refusal := _text(message.get("refusal"))):
        content, finish = refusal, "content_filter"
    return ChatAnswer(
        content=content,
        tool_calls=calls,
        finish_reason=finish,
        usage=_usage(plain.get("usage")),
        model=_text(plain.get("model")),
        reasoning=reasoning,
    )


def _parts(body: bytes, now: datetime) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The completion, its first choice and that choice's message.

    Raises:
        _Failed: one of them is missing or of another type, or there is an error in its place.
    """
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _Failed(malformed(f"no JSON: {one_line(body[:80].decode('utf-8', 'replace'))!r}")) from error
    if not isinstance(plain, dict):
        raise _Failed(malformed(f"a JSON {type(plain).__name__}"))
    choices = plain.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if told := plain.get("error") or (isinstance(choice, dict) and choice.get("error")):
        raise _Failed(of_error_object(told, now))
    if not isinstance(choice, dict):
        raise _Failed(malformed("no choices"))
    message = choice.get("message")
    if not isinstance(message, dict):
        raise _Failed(malformed("no message in the first choice"))
    return plain, choice, message


def _text(given: object) -> str:
    """Text from a string or a list of parts, in characters that UTF-8 has; "" for anything else."""
    if isinstance(given, list):
        parts = (one.get("text") if isinstance(one, dict) else one for one in given)
        given = "".join(part for part in parts if isinstance(part, str))
    return given.encode("utf-8", "replace").decode() if isinstance(given, str) else ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _tool_calls(given: object, key: CallKey) -> list[ToolCall]:
    """Every call with a name; an id that is missing or doubled is replaced by one of ours."""
    calls: list[ToolCall] = []
    ids: set[str] = set()
    for place, one in enumerate(given if isinstance(given, list) else (), 1):
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict) or not (name := _text(function.get("name"))):
            continue
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments if arguments is not None else {}, ensure_ascii=False)
        id_ = _text(one.get("id"))
        if not id_ or id_ in ids:
            id_ = f"call-{key.ordinal}-{place}"
            while id_ in ids:
                id_ += "+"
        ids.add(id_)
        calls.append(ToolCall(id=id_, name=name, arguments=_text(arguments)))
    return calls


def _usage(given: object) -> TokenUsage:
    """Counts that can be counts; None for the others."""
    if not isinstance(given, dict):
        return TokenUsage()
    details = given.get("prompt_tokens_details")

    def count(value: object) -> int | None:
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else None

    return TokenUsage(
        prompt_tokens=count(given.get("prompt_tokens")),
        completion_tokens=count(given.get("completion_tokens")),
        cached_tokens=count(details.get("cached_tokens")) if isinstance(details, dict) else None,
    )


# -- connections -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def openai_model(
    models: Mapping[Role, ModelSettings],
    endpoints: Mapping[Role, EndpointSettings],
    keys: Mapping[str, str],
    clock: Clock,
    rng: random.Random | None = None,
) -> AsyncIterator[OpenAIModel]:
    """A model whose connections are closed at the end: one client per endpoint and key.

    Args:
        models: what each role is asked with.
        endpoints: where each role's model is.
        keys: name of an environment variable -> the key it holds.
        clock: waits between tries.
        rng: jitter.

    Raises:
        BadInput: an address or a key that no request can be made with.
    """
    sent = {name: key.strip() for name, key in keys.items()}
    clients: dict[tuple[str, str], AsyncOpenAI] = {}
    async with AsyncExitStack() as stack:
        by_role: dict[Role, AsyncOpenAI] = {}
        for role, endpoint in endpoints.items():
            same = (endpoint.base_url, endpoint.api_key_env)
            if same not in clients:
                clients[same] = await stack.enter_async_context(
                    _client(endpoint, sent.get(endpoint.api_key_env, ""), clock)
                )
            by_role[role] = clients[same]
        jitter = rng or random.Random()  # noqa: S311 - jitter is no secret
        yield OpenAIModel(models, endpoints, by_role, sent, clock, jitter)


def _client(endpoint: EndpointSettings, key: str, clock: Clock) -> AsyncOpenAI:
    """A client that sends what we say and nothing of the environment, and reads a body with a bound.

    Raises:
        BadInput: as `openai_model`.
    """
    host = _host(endpoint.base_url)
    if not (key.isascii() and key.isprintable()):
        raise BadInput(f"{endpoint.api_key_env} holds characters that no key has; is it a line of something else?")
    http = DefaultAsyncHttpx2Client(
        follow_redirects=False,
        # Proxies of the environment are for the network, not for this machine.
        trust_env=not _is_loopback(host),
        event_hooks={"request": [_headers_of(key)], "response": [_reader(clock)]},
    )
    return AsyncOpenAI(api_key=key or "none", base_url=endpoint.base_url, max_retries=0, http_client=http)


def _host(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        # Reading the port checks it.
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise BadInput(f"base_url {base_url!r}: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise BadInput("base_url holds a user or password; put the key into the variable that api_key_env names")
    if not usable:
        raise BadInput(f"base_url {base_url!r} is no address that begins with http:// or https://")
    return parts.hostname or ""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# The hooks' arguments are an httpx2.Request and an httpx2.Response: types of the SDK's dependency, which is not ours.


def _headers_of(key: str) -> Callable[[Any], Awaitable[None]]:
    """A request hook that writes the header anew.

    The SDK adds organization, project and any header at all from `OPENAI_*` variables, and facts about this machine;
    the HTTP client adds cookies that another answer has set.
    """

    async def rewrite(request: Any) -> None:
        headers = {
            "host": request.url.netloc.decode("ascii"),
            "accept": "application/json",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "content-length": request.headers["content-length"],
            "user-agent": "chime",
            _UNREAD: request.headers[_UNREAD],
        }
        if key:
            headers["authorization"] = f"Bearer {key}"
        request.headers = type(request.headers)(headers)

    return rewrite


def _reader(clock: Clock) -> Callable[[Any], Awaitable[None]]:
    """A response hook that reads the body.

    Here, because whatever breaks inside a hook reaches us as the SDK's own error, and because the SDK reads errors
    without a bound.
    """

    async def read(response: Any) -> None:
        longest = LARGEST_ANSWER if response.is_success else LARGEST_ERROR
        body = bytearray()
        async with aclosing(response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > longest:
                    break
        if not response.is_success:
            headers = {name.lower(): value for name, value in response.headers.items()}
            text = body[:longest].decode("utf-8", "replace")
            raise _Failed(of_status(response.status_code, text, headers, _now(clock)))
        if len(body) > longest:
            raise _Failed(malformed(f"more than {longest} bytes"))
        response.extensions[_BODY] = bytes(body)

    return read
