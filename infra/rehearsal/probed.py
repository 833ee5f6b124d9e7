"""How the rehearsal model answers a probe of what its endpoint can do: as it plays, and as little as is asked for."""

import json
from collections.abc import Mapping
from typing import Any

from infra.model_findings import MARK
from infra.rehearsal.playing import Reply
from runtime.prompting import message_text

#: characters of a token, as its usage counts them
_TOKEN = 4
_CITIES = ("Paris", "Rome")


def is_probe(body: Mapping[str, Any]) -> bool:
    """Whether a request, whose messages are objects, asks what this endpoint can do."""
    return MARK in message_text(body["messages"][0])


def probe_reply(body: Mapping[str, Any]) -> Reply:
    """Objects and calls where they are demanded, a word elsewhere; cut at the request's cap."""
    last, tools = body["messages"][-1], body.get("tools") or []
    if tools and last.get("role") != "tool":
        function = tools[0].get("function", {})
        made = [_instance(function.get("parameters") or {})]
        if not body.get("tool_choice"):
            made = [{"city": city} for city in _CITIES if city in message_text(last)] or made
        if body.get("parallel_tool_calls") is False:
            made = made[:1]
        return Reply(content=None, tool_calls=[_call(n, str(function.get("name")), one) for n, one in enumerate(made)])
    cap = body.get("max_tokens") or body.get("max_completion_tokens")
    text = _text(body, message_text(last))
    if isinstance(cap, int) and len(text) > cap * _TOKEN:
        return Reply(content=text[: cap * _TOKEN], is_cut=True)
    return Reply(content=text)


def _text(body: Mapping[str, Any], asked: str) -> str:
    form = body.get("response_format")
    form = form if isinstance(form, dict) else {}
    if form.get("type") == "json_schema":
        wanted = form.get("json_schema")
        schema = wanted.get("schema") if isinstance(wanted, dict) else {}
        return json.dumps(_instance(schema if isinstance(schema, dict) else {}))
    if form.get("type") == "json_object":
        return json.dumps({"hello": "there"})
    return "one, two, three, four, five, six, seven, eight, nine, ten, and so on" if "numbers" in asked else "ready"


def _instance(schema: Mapping[str, Any]) -> Any:
    """Something that follows `schema`, as far as it is one of objects, choices, integers and texts."""
    if allowed := schema.get("enum"):
        return allowed[0]
    match schema.get("type"):
        case "object":
            return {name: _instance(one) for name, one in (schema.get("properties") or {}).items()}
        case "integer":
            return 0
        case _:
            return "text"


def _call(number: int, name: str, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_probe_{number}", "type": "function", "function": function}
