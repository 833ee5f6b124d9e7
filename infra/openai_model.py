"""Any OpenAI-compatible endpoint as a `ChatModel`. Retries are ours; an answer's shape is checked before its sense."""

import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from events.codec import canonical
from infra.completion import completion
from infra.model_errors import Failed, Failure, said
from infra.openai_client import Abilities, Clients, Format
from infra.tries import Tries
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped
from runtime.logger import Logger
from runtime.ports import CallKey, ChatAnswer, ChatRequest, Clock, Role
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
                answer = completion(body, request, key, datetime.fromisoformat(self._clock.utc()))
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
