"""Any OpenAI-compatible endpoint as a `ChatModel`. Retries are ours; an answer's shape is checked before its sense."""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from events.codec import canonical
from infra.model_errors import Failed, Failure, malformed, object_in, of_error_object, said
from infra.openai_client import Abilities, Clients, Format
from infra.tries import Tries
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped
from runtime.logger import Logger
from runtime.ports import CallKey, ChatAnswer, ChatRequest, Clock, Role, TokenUsage, ToolCall
from runtime.settings import EndpointSettings, ModelSettings, Thinking

_log = Logger("chime.model")

#: how each kind of endpoint is told not to think
_THINKING: dict[Thinking, dict[str, Any]] = {
    "none": {},
    "dashscope": {"enable_thinking": False},
    "vllm": {"chat_template_kwargs": {"enable_thinking": False}},
    "deepseek": {"thinking": {"type": "disabled"}},
    "openai": {"reasoning_effort": "none"},
}

#: how much of a name that a server gives is kept, characters
_NAME_CHARS = 200

#: thinking that no parser of the server's has taken out of the answer; without an end where the answer was cut off
_THOUGHT = re.compile(r"\A\s*<think>(.*?)(?:</think>\s*|\Z)", re.DOTALL)

_WEAKER: dict[Format, Format] = {"json_schema": "json_object", "json_object": "text"}


class OpenAIModel:
    """`runtime.ports.ChatModel` over connections that it shares with others."""

    def __init__(
        self,
        models: Mapping[Role, ModelSettings],
        endpoints: Mapping[Role, EndpointSettings],
        clients: Clients,
        clock: Clock,
        rng: random.Random | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            models: what each role is asked with.
            endpoints: where each role's model is.
            clients: connections to them.
            clock: waits between tries.
            rng: jitter.

        Raises:
            BadInput: an address or a key that no request can be made with.
        """
        for endpoint in endpoints.values():
            clients.of(endpoint)
        self._models, self._endpoints, self._clients, self._clock = models, endpoints, clients, clock
        self._rng = rng or random.Random()  # noqa: S311 - jitter is no secret

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        """As `runtime.ports.ChatModel.complete`."""
        request = _sendable(request)
        model, endpoint = self._models[request.role], self._endpoints[request.role]
        place = (endpoint.base_url, model.model)
        known = abilities = self._clients.abilities.get(place, Abilities())
        secret = self._clients.key(endpoint)
        tries = Tries(endpoint, secret, self._clients.breakers[place], self._clock, self._rng)
        while True:
            parameters = _parameters(request, model, abilities)
            try:
                body = await self._clients.post(endpoint, parameters, tries.limit_s)
                answer = _completion(body, request, key, datetime.fromisoformat(self._clock.utc()))
            except Failed as failed:
                failure, cause = failed.failure.shown(secret), failed.__cause__
            else:
                # Only now: what was left out for a request that is refused all the same was not the reason. And only
                # what this call has found out: others may have learnt more since it began.
                if abilities != known:
                    self._clients.abilities[place] = abilities
                tries.answered()
                return answer
            if (weaker := _without(abilities, failure, request)) is not None:
                _log.info("capability_refused", model=model.model, capability=failure.capability, reason=failure.reason)
                abilities = weaker
                continue
            try:
                pause_s = tries.pause_s(failure)
            except (RunStopped, ModelRefused, ModelUnavailable) as final:
                raise final from cause
            _log.warning(
                "model_retried", call=key.id, run_id=key.run, model_role=request.role, kind=failure.kind,
                attempt=tries.failed, pause_s=round(pause_s, 2), reason=failure.reason,
            )  # fmt: skip
            await self._clock.sleep(pause_s)


def _without(abilities: Abilities, failure: Failure, request: ChatRequest) -> Abilities | None:
    """`abilities` less what was refused; None where `request` did not ask for it or nothing is left to leave out."""
    match failure.capability:
        case "schema" if request.schema is not None and abilities.format in _WEAKER:
            return replace(abilities, format=_WEAKER[abilities.format])
        case "max_tokens" if abilities.max_tokens == "max_tokens":
            return replace(abilities, max_tokens="max_completion_tokens")
        case "temperature" if abilities.temperature:
            return replace(abilities, temperature=False)
        case _:
            return None


def _sendable(request: ChatRequest) -> ChatRequest:
    """`request` in characters that UTF-8 has: what tools answer goes into it.

    Raises:
        ModelRefused: something that JSON has no form for.
    """
    try:
        return msgspec.json.decode(canonical(request), type=ChatRequest)
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelRefused("unsendable", f"the request cannot be written as JSON: {said(str(error))}") from error


def _parameters(request: ChatRequest, model: ModelSettings, abilities: Abilities) -> dict[str, Any]:
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
        Failed: it is none; what it is instead.
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
    finish = _text(choice.get("finish_reason"))[:_NAME_CHARS] or ("tool_calls" if calls else "stop")
    if not content and not calls and (refusal := _text(message.get("refusal"))):
        content, finish = refusal, "content_filter"
    return ChatAnswer(
        content=content,
        tool_calls=calls,
        finish_reason=finish,
        usage=_usage(plain.get("usage")),
        model=_text(plain.get("model"))[:_NAME_CHARS],
        reasoning=reasoning,
    )


def _parts(body: bytes, now: datetime) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The completion, its first choice and that choice's message.

    Raises:
        Failed: one of them is missing or of another type, or there is an error in its place.
    """
    plain = object_in(body)
    choices = plain.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if told := plain.get("error") or (isinstance(choice, dict) and choice.get("error")):
        raise Failed(of_error_object(told, now))
    if not isinstance(choice, dict):
        raise Failed(malformed("no choices"))
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Failed(malformed("no message in the first choice"))
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
