"""Any OpenAI-compatible endpoint as a `ChatModel`. Retries are ours; an answer's shape is checked before its sense."""

import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import anyio
import structlog
from openai import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    DefaultAsyncHttpx2Client,
    Timeout,
)

from infra.model_errors import FEW, LONGEST_RETRY_AFTER_S, WARM_UP_S, Failure, malformed, of_status, unreachable
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped
from runtime.ports import CallKey, ChatAnswer, ChatRequest, Clock, Role, TokenUsage, ToolCall
from runtime.settings import EndpointSettings, ModelSettings, Thinking

_log = structlog.get_logger("chime.model")

#: an answer larger than this is not read on, bytes
LARGEST_ANSWER = 16 * 1024 * 1024
#: the longest pause between two tries, seconds
LONGEST_PAUSE_S = 120.0

#: how each kind of endpoint is told not to think
_THINKING: dict[Thinking, dict[str, Any]] = {
    "none": {},
    "dashscope": {"enable_thinking": False},
    "vllm": {"chat_template_kwargs": {"enable_thinking": False}},
    "deepseek": {"thinking": {"type": "disabled"}},
    "openai": {"reasoning_effort": "none"},
}

Format = Literal["json_schema", "json_object", "text"]
_WEAKER: dict[Format, Format] = {"json_schema": "json_object", "json_object": "text"}


@dataclass(slots=True)
class _Abilities:
    """What one (endpoint, model) turned out to take; learnt from its refusals, for as long as the process lives."""

    format: Format = "json_schema"
    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True

    def without(self, failure: Failure) -> bool:
        """Step down what was refused; False where there is no step left."""
        match failure.capability:
            case "schema" if self.format in _WEAKER:
                self.format = _WEAKER[self.format]
            case "max_tokens" if self.max_tokens == "max_tokens":
                self.max_tokens = "max_completion_tokens"
            case "temperature" if self.temperature:
                self.temperature = False
            case _:
                return False
        return True


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
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._models, self._endpoints, self._clients = models, endpoints, clients
        self._clock, self._rng = clock, rng
        self._abilities: dict[tuple[str, str], _Abilities] = {}

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        """As `runtime.ports.ChatModel.complete`."""
        model, endpoint = self._models[request.role], self._endpoints[request.role]
        abilities = self._abilities.setdefault((endpoint.base_url, model.model), _Abilities())
        tries = 0
        seen: dict[str, int] = {}
        while True:
            try:
                return await self._ask(request, key, model, endpoint, abilities)
            except _Failed as failed:
                failure = failed.failure
            if failure.action == "change" and abilities.without(failure):
                _log.info("capability_refused", model=model.model, capability=failure.capability, reason=failure.reason)
                continue
            self._raise_final(failure, endpoint)
            tries += 1
            seen[failure.kind] = seen.get(failure.kind, 0) + 1
            few = FEW.get(failure.kind, endpoint.retries)
            if (
                tries > endpoint.retries
                or seen[failure.kind] > few
                or (failure.retry_after_s or 0) > LONGEST_RETRY_AFTER_S
            ):
                raise ModelUnavailable(failure.kind, f"{endpoint.base_url}: {failure.reason} ({tries} tries)")
            pause_s = self._pause_s(failure, tries, endpoint)
            _log.warning(
                "model_retried", call=key.id, run_id=key.run, model_role=request.role, kind=failure.kind,
                attempt=tries, pause_s=round(pause_s, 2), reason=failure.reason,
            )  # fmt: skip
            await self._clock.sleep(pause_s)

    @staticmethod
    def _raise_final(failure: Failure, endpoint: EndpointSettings) -> None:
        if failure.action == "stop":
            raise RunStopped(failure.kind, f"{endpoint.base_url}: {failure.reason}")
        if failure.action in ("refuse", "change"):
            raise ModelRefused(failure.kind, failure.reason)

    def _pause_s(self, failure: Failure, tries: int, endpoint: EndpointSettings) -> float:
        """Full jitter over a doubling pause, never less than the server asked for."""
        longest = WARM_UP_S if failure.kind == "warming_up" else LONGEST_PAUSE_S
        doubled = min(longest, endpoint.retry_base_s * 2 ** (tries - 1))
        return max(self._rng.uniform(0, doubled), failure.retry_after_s or 0.0)

    async def _ask(
        self,
        request: ChatRequest,
        key: CallKey,
        model: ModelSettings,
        endpoint: EndpointSettings,
        abilities: _Abilities,
    ) -> ChatAnswer:
        """One try.

        Raises:
            _Failed: with what it means.
        """
        parameters = _parameters(request, model, abilities)
        try:
            with anyio.fail_after(endpoint.timeout_s):
                body = await self._exchange(self._clients[request.role], parameters)
        except (TimeoutError, APITimeoutError) as error:
            raise _Failed(unreachable("timeout", error)) from error
        except APIConnectionError as error:
            raise _Failed(unreachable("connection", error)) from error
        except APIStatusError as error:
            headers = {name.lower(): value for name, value in error.response.headers.items()}
            raise _Failed(of_status(error.status_code, _error_text(error), headers, datetime.now(UTC))) from error
        except APIError as error:
            raise _Failed(malformed(str(error)[:200])) from error
        return read_completion(body, key, wants_json=request.schema is not None)

    @staticmethod
    async def _exchange(client: AsyncOpenAI, parameters: Mapping[str, Any]) -> bytes:
        async with client.chat.completions.with_streaming_response.create(**parameters) as response:
            if response.status_code != 200:
                headers = {name.lower(): value for name, value in response.headers.items()}
                raise _Failed(of_status(response.status_code, "", headers, datetime.now(UTC)))
            body = bytearray()
            try:
                async for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > LARGEST_ANSWER:
                        break
            except APIError:
                raise
            except Exception as error:  # noqa: BLE001 - the transport's own errors are not in the SDK's tree
                raise _Failed(unreachable("connection", error)) from error
            if len(body) > LARGEST_ANSWER:
                raise _Failed(malformed(f"more than {LARGEST_ANSWER} bytes"))
            return bytes(body)


def _error_text(error: APIStatusError) -> str:
    body = error.body
    return (
        body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, default=str) if body else error.message
    )


def _parameters(request: ChatRequest, model: ModelSettings, abilities: _Abilities) -> dict[str, Any]:
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


def read_completion(body: bytes, key: CallKey, *, wants_json: bool) -> ChatAnswer:
    """The answer in a completion's bytes, whatever else a server put there.

    Raises:
        _Failed: malformed; what is wrong with it.
    """
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError) as error:
        start = body[:60].decode("utf-8", "replace")
        raise _Failed(malformed(f"no JSON: {start!r}")) from error
    if not isinstance(plain, dict):
        raise _Failed(malformed(f"a JSON {type(plain).__name__}"))
    if plain.get("error"):
        raise _Failed(malformed(f"an error object: {str(plain['error'])[:200]}"))
    choices = plain.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise _Failed(malformed("no choices"))
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise _Failed(malformed("no message in the first choice"))
    content, reasoning = (
        _text(message.get("content")),
        _text(message.get("reasoning_content") or message.get("reasoning")),
    )
    if wants_json and not content.strip() and _is_object(reasoning):
        content = reasoning
    calls = _tool_calls(message, key)
    return ChatAnswer(
        content=content,
        tool_calls=calls,
        finish_reason=str(choices[0].get("finish_reason") or ("tool_calls" if calls else "stop")),
        usage=_usage(plain.get("usage")),
        model=str(plain.get("model") or ""),
        reasoning=reasoning,
    )


def _text(content: object) -> str:
    """Content as text, from a string or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _tool_calls(message: Mapping[str, Any], key: CallKey) -> list[ToolCall]:
    """Every call with a name; an id that is missing or doubled is replaced by one of ours."""
    given = message.get("tool_calls")
    calls: list[ToolCall] = []
    ids: set[str] = set()
    for place, one in enumerate(given if isinstance(given, list) else (), 1):
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            continue
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments if arguments is not None else {}, ensure_ascii=False)
        name = one.get("id")
        if not isinstance(name, str) or not name or name in ids:
            name = f"call-{key.ordinal}-{place}"
        ids.add(name)
        calls.append(ToolCall(id=name, name=function["name"], arguments=arguments))
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
    """
    clients: dict[tuple[str, str, float, float], AsyncOpenAI] = {}
    async with AsyncExitStack() as stack:
        by_role: dict[Role, AsyncOpenAI] = {}
        for role, endpoint in endpoints.items():
            same = (endpoint.base_url, endpoint.api_key_env, endpoint.timeout_s, endpoint.connect_timeout_s)
            if same not in clients:
                http = DefaultAsyncHttpx2Client(
                    follow_redirects=False, timeout=Timeout(endpoint.timeout_s, connect=endpoint.connect_timeout_s)
                )
                client = AsyncOpenAI(
                    api_key=keys.get(endpoint.api_key_env, "") or "none",
                    base_url=endpoint.base_url,
                    max_retries=0,
                    http_client=http,
                )
                clients[same] = await stack.enter_async_context(client)
            by_role[role] = clients[same]
        jitter = rng or random.Random()  # noqa: S311 - jitter is no secret
        yield OpenAIModel(models, endpoints, by_role, clock, jitter)
