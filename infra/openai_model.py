"""Any OpenAI-compatible endpoint as a `ChatModel`: the walk of one call. Retries are ours."""

import random
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from events.codec import canonical
from infra.capabilities import (
    ALL,
    NOTHING_LEARNT,
    Abilities,
    Learnt,
    Place,
    as_asked,
    is_particular,
    parameters,
    streamed,
    window_of,
    without,
)
from infra.completion import completion
from infra.fitting import Fitting, Sent, tokens_of
from infra.model_context import characters_in
from infra.model_errors import Failed, Failure, unsendable
from infra.openai_client import Clients, Exchange
from infra.pacing import UNPACED, Pace
from infra.redaction import redacted, without_key
from infra.token_estimates import checked
from infra.transcripts import LONGEST, Transcript, Transcripts
from infra.tries import Tries
from infra.usage import together, usage_told, with_tries
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped
from runtime.logger import Logger
from runtime.ports import CallKey, ChatAnswer, ChatRequest, Clock, Role, TokenUsage
from runtime.settings import EndpointSettings, ModelSettings

_log = Logger("chime.model")

#: how much of a refusal is kept as evidence, characters
_EVIDENCE_CHARS = 160


class OpenAIModel:
    """`runtime.ports.ChatModel` over connections that it shares with others."""

    def __init__(
        self,
        models: Mapping[Role, ModelSettings],
        endpoints: Mapping[Role, EndpointSettings],
        clients: Clients,
        clock: Clock,
        rng: random.Random | None = None,
        *,
        pace: Pace = UNPACED,
        transcripts: Transcripts | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            models: what each role is asked with.
            endpoints: where each role's model is.
            clients: connections to them.
            clock: waits between tries.
            rng: jitter.
            pace: how fast a place is asked.
            transcripts: where what went over the wire is left for whoever records calls.

        Raises:
            BadInput: an address or a key that no request can be made with.
        """
        for endpoint in endpoints.values():
            clients.of(endpoint)
        self._models, self._endpoints, self._clients, self._clock = models, endpoints, clients, clock
        self._rng = rng or random.Random()  # noqa: S311 - jitter is no secret
        self._pace, self._transcripts = pace, transcripts

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        """As `runtime.ports.ChatModel.complete`."""
        exchanges = _Exchanges(self._clients.key(self._endpoints[request.role]))
        try:
            answer = await self._complete(_sendable(request), key, exchanges)
        except (RunStopped, ModelRefused, ModelUnavailable) as final:
            final.usage = together(exchanges.spent)
            raise
        else:
            return replace(answer, usage=with_tries(answer.usage, together(exchanges.spent)))
        finally:
            if self._transcripts is not None and exchanges.sent:
                self._transcripts.put(key, exchanges.transcript())

    async def _complete(self, request: ChatRequest, key: CallKey, exchanges: "_Exchanges") -> ChatAnswer:
        model, endpoint = self._models[request.role], self._endpoints[request.role]
        place, secret = Place(endpoint.base_url, model.model), self._clients.key(endpoint)
        tries = Tries(endpoint, secret, self._clients.breakers[place], self._clock, self._rng, endpoint.retry_budget)
        fitting = Fitting(request=request, key=key, model=model, place=place, estimates=self._clients.estimates)
        found, here = NOTHING_LEARNT, ALL
        while True:
            abilities = self._clients.learnt.get(place, NOTHING_LEARNT).abilities.also(here)
            window = window_of(endpoint, abilities)
            sent = fitting.sent(window)
            try:
                answer = await self._answer(fitting, sent, abilities, tries, exchanges)
            except Failed as failed:
                failure, told, cause = failed.failure, failed.failure.shown(secret), failed.__cause__
                exchanges.failed(told, failed.body, sent)
            else:
                self._learn(place, found)
                tries.answered()
                return answer
            less = without(abilities, failure, request, model)
            if less is None and (shorter := fitting.shorten(failure, window)) is not None:
                less = replace(abilities, window=shorter)
            if less is not None:
                here = here.also(less)
                if less != abilities and not is_particular(failure):
                    evidence = f"{told.capability}: {told.reason}"[:_EVIDENCE_CHARS]
                    found = found.also(Learnt(abilities=less.apart_from(abilities), evidence=(evidence,)))
                _log.info("capability_refused", model=model.model, capability=told.capability, reason=told.reason)
                continue
            try:
                pause_s = tries.pause_s(told)
            except (RunStopped, ModelRefused, ModelUnavailable) as final:
                raise final from cause
            _log.warning(
                "model_retried", call=key.id, run_id=key.run, model_role=request.role, kind=told.kind,
                attempt=tries.failed, pause_s=round(pause_s, 2), reason=told.reason,
            )  # fmt: skip
            await self._clock.sleep(pause_s)

    async def _answer(
        self, fitting: Fitting, sent: Sent, abilities: Abilities, tries: Tries, exchanges: "_Exchanges"
    ) -> ChatAnswer:
        """One try, in its turn.

        Raises:
            Failed: there is no answer; what there is instead.
        """
        request, model, place = sent.request, fitting.model, fitting.place
        endpoint = self._endpoints[request.role]
        asked = parameters(request, model, endpoint, abilities, sent.cap)
        came_s = self._clock.monotonic()
        async with self._pace.request(place, endpoint, sent.prompt_tokens + sent.cap) as turn:
            tries.waited(self._clock.monotonic() - came_s)
            exchanges.begin(asked)
            try:
                exchange = await self._clients.post(streamed(endpoint, abilities), asked, tries.limit_s)
                exchanges.came(exchange)
                now = datetime.fromisoformat(self._clock.utc())
                answer = _keyless(completion(exchange.body, request, fitting.key, now), self._clients.key(endpoint))
            except Failed as failed:
                if failed.failure.status == 429:
                    turn.limited(failed.failure.retry_after_s)
                raise
            answer = fitting.read(as_asked(answer, request, model, abilities), sent)
            turn.answered(tokens_of(answer.usage))
        return answer

    def _learn(self, place: Place, found: Learnt) -> None:
        """Ask so from now on: only after an answer, as what a refused request went without was not the reason."""
        if found is not NOTHING_LEARNT:
            self._clients.learnt[place] = self._clients.learnt.get(place, NOTHING_LEARNT).also(found)


class _Exchanges:
    """What went over the wire for one call so far.

    Args:
        secret: the key that is sent with it, and does not belong here; "" = none.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self.sent: dict[str, Any] = {}
        self._received = ""
        self._first_byte_ms: int | None = None
        self._failed: list[str] = []
        #: what failed tries came to, where the endpoint has said so
        self.spent: list[TokenUsage] = []
        self._requests = 0

    def begin(self, sent: dict[str, Any]) -> None:
        """One more request is made."""
        self.sent, self._received, self._first_byte_ms = sent, "", None
        self._requests += 1

    def came(self, exchange: Exchange) -> None:
        """There is an answer, whatever is made of it."""
        self._received = exchange.body.decode("utf-8", "replace")
        self._first_byte_ms = round(1000 * exchange.first_byte_s)

    def failed(self, failure: Failure, body: str, sent: Sent) -> None:
        """The request has come to nothing; `failure` as it may be shown."""
        self._received = body or self._received
        self._failed.append(f"{failure.kind}: {failure.reason}")
        if (told := usage_told(self._received)) is not None:
            # What cannot be true becomes unknown, and an estimate of what failed is no word of the endpoint's.
            length = characters_in(sent.request.messages, sent.request.tools)
            self.spent.append(checked(told, length, len(self._received)))

    def transcript(self) -> Transcript:
        """Of the call, which has ended."""
        received = redacted(without_key(self._received, self._secret))
        return Transcript(
            sent=self.sent,
            received=received[:LONGEST],
            first_byte_ms=self._first_byte_ms,
            before=self._failed[: self._requests - 1],
        )


def _keyless(answer: ChatAnswer, key: str) -> ChatAnswer:
    """`answer` without the key that was sent with its question: it would come into plans, memories and prompts."""
    written = msgspec.json.encode(answer).decode()
    told = without_key(written, key)
    return answer if told == written else msgspec.json.decode(told, type=ChatAnswer)


def _sendable(request: ChatRequest) -> ChatRequest:
    """`request` in characters that UTF-8 has: what tools answer goes into it.

    Raises:
        ModelRefused: something that JSON has no form for.
    """
    try:
        return msgspec.json.decode(canonical(request), type=ChatRequest)
    except (ValueError, TypeError, RecursionError) as error:
        raise unsendable(error) from error
