"""What an endpoint can do, found by asking it: short questions side by side, each finding with what came back.

Accepted and done are two things: many servers take a schema, a forced call or tools and do as they like. So each
question asks in words for something else than its parameters demand, and what comes back tells which one was heard.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import anyio
from msgspec.structs import replace

from events.ids import RunId, StreamId
from infra.capabilities import ALL, THINKING, Abilities, parameters, streamed, without
from infra.completion import completion
from infra.model_errors import Failed, Failure, object_in, said
from infra.model_findings import MARK, Finding, Probed, Verdict
from infra.model_list import Listed
from infra.openai_client import Clients
from runtime.ports import CallKey, ChatAnswer, ChatRequest, Clock, TokenUsage
from runtime.settings import EndpointSettings, ModelSettings, Thinking
from runtime.task import Message, Tool
from runtime.text_calls import calls_in

#: profiles that switch thinking off, in the order in which they are tried
_SWITCHES: list[Thinking] = [profile for profile, switch in THINKING.items() if switch]
#: in which order findings are shown; others come behind
_ORDER = (
    "listed", "answer", "usage", "json_schema", "json_object", "forced call", "tools", "several calls", "one at a time",
    "tool history", "temperature", "system role", "max_tokens", "cap kept", "thinking off", "stream",
    "usage in a stream",
)  # fmt: skip

#: questions at once
_AT_ONCE = 6
#: how much of an answer is shown, characters
_SHOWN = 100
#: cap of an answer, tokens; of the one that shows whether caps are kept
_TOKENS, _FEW_TOKENS = 64, 8
#: an answer to a short question that takes more tokens than this was thought over
_THOUGHT_TOKENS = 40
#: a description of tools that reaches the model costs at least so many tokens of the prompt
_TOOL_TOKENS = 20

_SCHEMA: dict[str, Any] = {
    "title": "signal",
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green"]}, "count": {"type": "integer"}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "city_weather",
        "description": "Tells the weather of one city as it is now: temperature, wind, rain, clouds, and how the sky "
        "will look in the next hours. Every question about weather is answered with this function and nothing else.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "name of the city"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
_KEY = CallKey(run=RunId("probe"), stream=StreamId("probe-0"), stage="probe", ordinal=1)


def _asking(text: str, **more: Any) -> ChatRequest:
    messages: list[Message] = [{"role": "system", "content": MARK}, {"role": "user", "content": text}]
    return ChatRequest(role="executor", messages=messages, **more)


_PLAIN = _asking("Answer with the one word: ready")
_BY_SCHEMA = _asking("Say hello in one short sentence of plain prose, not as JSON.", schema=_SCHEMA)
_WITH_TOOL = _asking("What is the weather in Paris? Call city_weather.", tools=[_TOOL])
_WITH_TWO = _asking(
    "What is the weather in Paris, and in Rome? Call city_weather for each one, at once.", tools=[_TOOL]
)
_COUNTING = _asking("Write the numbers from one to fifty in words.")
_HISTORY = ChatRequest(
    role="executor",
    messages=[
        *_WITH_TOOL.messages,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "probe-0-1-0",
                    "type": "function",
                    "function": {"name": "city_weather", "arguments": '{"city": "Paris"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "probe-0-1-0", "content": "18 degrees, light wind"},
    ],
    tools=[_TOOL],
)


@dataclass(slots=True)
class _Got:
    """What one question came to."""

    answer: ChatAnswer | None = None
    streamed: bool = False
    failure: Failure | None = None
    #: the key that was sent, which an answer may repeat
    secret: str = ""

    @property
    def nothing(self) -> Verdict:
        """What follows from no answer: only a refusal says no."""
        refused = self.failure is not None and self.failure.action in ("change", "refuse", "stop")
        return "no" if refused else "unknown"

    @property
    def status(self) -> int | None:
        return self.failure.status if self.failure else 200

    @property
    def text(self) -> str:
        """What came back, in a few words."""
        if self.failure is not None:
            return said(self.failure.reason, self.secret)[:_SHOWN]
        assert self.answer is not None  # noqa: S101 - one of the two is there
        answer = self.answer
        called = [f"{one.name}({one.arguments})" for one in answer.tool_calls]
        parts = [answer.content, *called, f"[thinking] {answer.reasoning}" if answer.reasoning else ""]
        return said(" ".join(part for part in parts if part) or "(empty)", self.secret)[:_SHOWN]


@dataclass(slots=True)
class _Probe:
    """Asks one model at one endpoint."""

    clients: Clients
    endpoint: EndpointSettings
    model: ModelSettings
    clock: Clock
    limit_s: float
    abilities: Abilities = ALL
    #: of the plain question; None = not told
    prompt_tokens: int | None = None
    findings: dict[str, Finding] = field(default_factory=dict)

    async def ask(
        self,
        request: ChatRequest,
        *,
        cap: int = _TOKENS,
        switch: Thinking | None = None,
        extra: Mapping[str, Any] | None = None,
        **stood: Any,
    ) -> _Got:
        """One question, once; `switch` and `extra` parameters take the place of what would be sent."""
        abilities = replace(self.abilities, **(stood if switch is None else {**stood, "thinking": "profile"}))
        endpoint = streamed(self.endpoint, abilities)
        model = replace(self.model, max_tokens=cap, tools="native", thinking=switch or self.model.thinking)
        asked = parameters(request, model, endpoint, abilities) | dict(extra or {})
        secret = self.clients.key(endpoint)
        try:
            exchange = await self.clients.post(endpoint, asked, self.limit_s)
            answer = completion(exchange.body, request, _KEY, datetime.fromisoformat(self.clock.utc()))
        except Failed as failed:
            return _Got(failure=failed.failure.shown(secret), secret=secret)
        return _Got(answer=answer, streamed=exchange.streamed, secret=secret)

    def found(self, ability: str, verdict: Verdict, sent: str, got: _Got) -> None:
        self.findings[ability] = Finding(ability=ability, verdict=verdict, sent=sent, status=got.status, got=got.text)

    def judge_plain(self, got: _Got, answer: ChatAnswer) -> None:
        """What the plain answer tells beside itself."""
        sent, taken = "a plain question", self.abilities
        usage, self.prompt_tokens = answer.usage, answer.usage.prompt_tokens
        counted = f"prompt {usage.prompt_tokens}, answer {usage.completion_tokens} tokens"
        self._told("usage", "yes" if _is_sane(usage) else "no", sent, counted)
        self._told("temperature", "yes", sent, "temperature 0 is taken")
        self._told("system role", "yes", sent, "a system text is taken")
        self._told("max_tokens", "yes", sent, f"{taken.max_tokens} is taken")
        if taken.thinking == "profile":
            switch = f"a plain question, thinking = {self.model.thinking}"
            self.found("thinking off", "accepted, not enforced" if _thinks(answer) else "yes", switch, got)

    def _told(self, ability: str, verdict: Verdict, sent: str, got: str) -> None:
        if ability not in self.findings:
            self.findings[ability] = Finding(ability=ability, verdict=verdict, sent=sent, status=200, got=got)

    def questions(self, plain: ChatAnswer, *, briefly: bool) -> list[Callable[[], Awaitable[None]]]:
        """What is asked side by side, once a plain question is answered; other switches only of a model that thinks."""
        few: list[Callable[[], Awaitable[None]]] = [self.by_schema, self.with_tool]
        if _thinks(plain):
            few += [partial(self.with_switch, profile) for profile in _SWITCHES if profile != self.model.thinking]
        more = [self.by_object, self.by_call, self.with_two, self.one_at_a_time, self.with_history, self.counting]
        return few if briefly else [*few, *more, self.as_stream]

    async def by_schema(self) -> None:
        got = await self.ask(_BY_SCHEMA, format="json_schema")
        self.found("json_schema", _formed(got, _follows_schema), "a schema, and a plea for prose", got)

    async def by_object(self) -> None:
        wanted = {"response_format": {"type": "json_object"}}
        got = await self.ask(replace(_BY_SCHEMA, schema=None), extra=wanted)
        self.found("json_object", _formed(got, lambda text: _object(text) is not None), "the same, json_object", got)

    async def by_call(self) -> None:
        got = await self.ask(_BY_SCHEMA, format="tool")
        verdict = got.nothing
        if got.answer is not None:
            made = [one for one in got.answer.tool_calls if _follows_schema(one.arguments)]
            verdict = "yes" if made else "accepted, not enforced"
        self.found("forced call", verdict, "one forced call, and a plea for prose", got)

    async def with_tool(self) -> None:
        got = await self.ask(_WITH_TOOL)
        self.found("tools", self._tools_verdict(got), "a tool, and a plea to call it", got)

    def _tools_verdict(self, got: _Got) -> Verdict:
        if got.answer is None:
            return got.nothing
        if made := got.answer.tool_calls:
            return "yes" if any(_object(one.arguments) is not None for one in made) else "accepted, not enforced"
        counted, plain = got.answer.usage.prompt_tokens, self.prompt_tokens
        if counted is not None and plain is not None and counted - plain < _TOOL_TOKENS:
            return "dropped"
        return "as text" if calls_in(got.answer.content, ["city_weather"]) else "unknown"

    async def with_two(self) -> None:
        got = await self.ask(_WITH_TWO)
        made = len(got.answer.tool_calls) if got.answer is not None else 0
        verdict: Verdict = got.nothing if got.answer is None else "yes" if made > 1 else "unknown"
        self.found("several calls", verdict, "a tool, and a plea to call it twice", got)

    async def one_at_a_time(self) -> None:
        got = await self.ask(_WITH_TWO, extra={"parallel_tool_calls": False})
        made = len(got.answer.tool_calls) if got.answer is not None else 0
        told: Verdict = "accepted, not enforced" if made > 1 else "yes" if made else "unknown"
        verdict = got.nothing if got.answer is None else told
        self.found("one at a time", verdict, "the same, and parallel_tool_calls false", got)

    async def with_history(self) -> None:
        got = await self.ask(_HISTORY)
        self.found(
            "tool history", "yes" if got.answer else got.nothing, "a call with an id of ours, and its result", got
        )

    async def counting(self) -> None:
        got = await self.ask(_COUNTING, cap=_FEW_TOKENS)
        verdict = got.nothing
        if got.answer is not None:
            counted = got.answer.usage.completion_tokens
            kept = got.answer.finish_reason == "length" and (counted is None or counted <= 2 * _FEW_TOKENS)
            verdict = "yes" if kept else "accepted, not enforced"
        self.found("cap kept", verdict, f"a long answer, {_FEW_TOKENS} tokens at most", got)

    async def as_stream(self) -> None:
        got = await self.ask(_PLAIN, stream="always")
        verdict: Verdict = got.nothing if got.answer is None else "yes" if got.streamed else "accepted, not enforced"
        self.found("stream", verdict, "a plain question, stream", got)
        if got.streamed and got.answer is not None:
            counted = got.answer.usage.completion_tokens
            self._told("usage in a stream", "no" if counted is None else "yes", "include_usage", f"{counted} tokens")

    async def with_switch(self, profile: Thinking) -> None:
        got = await self.ask(_PLAIN, switch=profile)
        off = got.answer is not None and not _thinks(got.answer)
        verdict: Verdict = got.nothing if got.answer is None else "yes" if off else "accepted, not enforced"
        self.found(f"thinking = {profile}", verdict, "a plain question, with this switch", got)

    async def list_models(self) -> int | None:
        """What the list of models says that ours can hold, tokens."""
        try:
            listed = object_in(await self.clients.models(self.endpoint, self.limit_s)).get("data")
        except Failed as failed:
            secret = self.clients.key(self.endpoint)
            got = _Got(failure=failed.failure.shown(secret), secret=secret)
            self.found("listed", got.nothing, "GET /models", got)
            return None
        rows = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        ours = next((one for one in rows if one.get("id") == self.model.model), None)
        names = ", ".join(str(one.get("id")) for one in rows)
        self.findings["listed"] = Finding(
            ability="listed", verdict="yes" if ours else "no", sent="GET /models", status=200,
            got=said(names or "an empty list")[:_SHOWN],
        )  # fmt: skip
        return Listed(rows).window(self.model.model)

    async def plain(self) -> _Got:
        """The plain question, in whatever way it is taken; what was refused on the way is found."""
        while True:
            got = await self.ask(_PLAIN)
            less = without(self.abilities, got.failure, _PLAIN, self.model) if got.failure is not None else None
            if less is None:
                break
            [ability] = less.since(self.abilities)
            self.found(_NAMES.get(ability, ability), "no", "a plain question", got)
            self.abilities = less
        self.found("answer", "yes" if got.answer else "no", "a plain question", got)
        return got

    def probed(self, plain: _Got, window: int | None) -> Probed:
        """All of it."""
        answer, failure = plain.answer, plain.failure
        return Probed(
            base_url=said(self.endpoint.base_url),
            model=self.model.model,
            answers=answer is not None,
            kind=failure.kind if failure else "",
            reason=failure.reason if failure else "",
            served=said(answer.model, plain.secret) if answer else "",
            fingerprint=said(answer.fingerprint, plain.secret) if answer else "",
            context_tokens=window,
            findings=sorted(self.findings.values(), key=lambda one: _order(one.ability)),
            settings=self._settings(window) if answer else {},
        )

    def _settings(self, window: int | None) -> dict[str, Any]:
        """What differs from how it was asked, of the settings that fit it."""
        verdicts = {name: one.verdict for name, one in self.findings.items()}
        wanted: dict[str, Any] = {}
        switch = next((one for one in _SWITCHES if verdicts.get(f"thinking = {one}") == "yes"), None)
        if switch is not None:
            wanted["thinking"] = switch
        elif verdicts.get("thinking off") == "no":
            wanted["thinking"] = "none"
        if verdicts.get("tools") in ("no", "dropped"):
            wanted["tools"] = "text"
        if window is not None and self.endpoint.context_tokens == 0:
            wanted["context_tokens"] = window
        if self.abilities.stream != "setting":
            wanted["stream"] = self.abilities.stream == "always"
        now = {"thinking": self.model.thinking, "tools": self.model.tools, "stream": self.endpoint.stream}
        return {name: value for name, value in wanted.items() if now.get(name) != value}


#: ability of the client -> what is found about it
_NAMES = {"system": "system role", "thinking": "thinking off", "most_tokens": "max_tokens", "stream_usage": "stream"}


async def probe(
    clients: Clients,
    endpoint: EndpointSettings,
    model: ModelSettings,
    clock: Clock,
    *,
    limit_s: float,
    briefly: bool = False,
) -> Probed:
    """What `model` at `endpoint` can do.

    Args:
        clients: connections.
        endpoint: where it is.
        model: its name, and the switch for thinking that is tried.
        clock: for dates.
        limit_s: of one question.
        briefly: the questions whose answers change a configuration, and no other.

    Raises:
        BadInput: an address or a key that no request can be made with.
    """
    one = _Probe(clients, endpoint, model, clock, limit_s)
    window: list[int | None] = []

    async def listed() -> None:
        window.append(await one.list_models())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listed)
        plain = await one.plain()
    if plain.answer is not None:
        one.judge_plain(plain, plain.answer)
        await _side_by_side(one.questions(plain.answer, briefly=briefly))
    return one.probed(plain, window[0])


async def _side_by_side(questions: Sequence[Callable[[], Awaitable[None]]]) -> None:
    room = anyio.Semaphore(_AT_ONCE)

    async def ask(question: Callable[[], Awaitable[None]]) -> None:
        async with room:
            await question()

    async with anyio.create_task_group() as tasks:
        for question in questions:
            tasks.start_soon(ask, question)


def _order(ability: str) -> tuple[int, str]:
    return (_ORDER.index(ability) if ability in _ORDER else len(_ORDER), ability)


def _thinks(answer: ChatAnswer) -> bool:
    return bool(answer.reasoning.strip()) or (answer.usage.completion_tokens or 0) > _THOUGHT_TOKENS


def _is_sane(usage: TokenUsage) -> bool:
    """Whether both are there and can be: of some hundred characters, and of one word."""
    prompt, answer = usage.prompt_tokens, usage.completion_tokens
    return prompt is not None and answer is not None and 5 <= prompt <= 5000 and 1 <= answer <= 2 * _TOKENS


def _formed(got: _Got, is_formed: Callable[[str], bool]) -> Verdict:
    if got.answer is None:
        return got.nothing
    if is_formed(got.answer.content):
        return "yes"
    # Cut off within an object: perhaps the one that was asked for.
    is_cut = got.answer.finish_reason == "length" and got.answer.content.lstrip().startswith("{")
    return "unknown" if is_cut else "accepted, not enforced"


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _follows_schema(text: str) -> bool:
    value = _object(text) or {}
    is_count = isinstance(value.get("count"), int)
    return set(value) == {"colour", "count"} and value["colour"] in ("red", "green") and is_count
