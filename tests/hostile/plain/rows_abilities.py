"""Servers that take less than the API has: schemas, parameters, roles, tools; and contexts that are too small."""

import re
from typing import Any

from hostile_rows import EXECUTOR, GATE, Row, both, changed, of, refused, used
from hostile_wire import Asked, Reply, always, answering, call, called, failed, http, unless


def row(name: str, area: str = "abilities", **given: Any) -> Row:
    return Row(name=name, area=area, **given)


def _format(asked: Asked) -> str:
    return str((asked.body.get("response_format") or {}).get("type", ""))


def _roles(asked: Asked) -> set[str]:
    return {str(one.get("role")) for one in asked.body["messages"]}


def _no_schema(asked: Asked) -> bool:
    return _format(asked) != "json_schema"


def _no_format(asked: Asked) -> bool:
    return not _format(asked)


def _plain_text(asked: Asked) -> bool:
    return not _format(asked) and not asked.has("tools")


#: how servers word that they take no json_schema
NO_SCHEMA: dict[str, bytes] = {
    "OpenAI": failed(400, "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this "
                     "model.", type="invalid_request_error", param="response_format"),
    "DeepSeek": failed(400, "This response_format type is unavailable now", type="invalid_request_error"),
    "llama.cpp: grammar": failed(400, "Failed to initialize samplers: failed to parse grammar", code=400),
    "llama.cpp: $ref": failed(400, "Error resolving ref #/$defs/x: not in schema", code=400),
    "llama.cpp: type": failed(400, "JSON schema conversion failed: Unrecognized schema: {\"type\":\"x\"}"),
    "ik_llama: 500": failed(500, 'response_format type must be one of "text" or "json_object"'),
    "vLLM: backend": http(400, {"object": "error", "message": "The provided JSON schema contains features not "
                                "supported by xgrammar.", "type": "BadRequestError", "code": 400}),
    "SGLang": failed(400, "Invalid grammar request: json_schema"),
    "DashScope": failed(400, "'messages' must contain the word 'json' in some form, to use 'response_format' of type "
                        "'json_object'.", code="invalid_parameter_error"),
    "Fireworks": failed(422, "Extra inputs are not permitted, field: 'response_format.json_schema'"),
    "FastAPI": http(422, {"detail": [{"loc": ["body", "response_format", "type"], "msg": "unexpected value"}]}),
    "Groq": failed(400, "This model does not support response format `json_schema`.", type="invalid_request_error"),
}  # fmt: skip

#: how servers say that a request of 4,000 tokens is too long for a context of 3,000; with which status
CONTEXT: dict[str, tuple[int, str]] = {
    "OpenAI": (400, "This model's maximum context length is 3000 tokens. However, your messages resulted in 4000 "
               "tokens. Please reduce the length of the messages."),
    "vLLM": (400, "This model's maximum context length is 3000 tokens. However, you requested 5024 tokens (4000 in "
             "the messages, 1024 in the completion). Please reduce the length of the messages or completion."),
    "vLLM of 2026": (400, "The prompt (total length 4000) is longer than the maximum model length of 3000."),
    "llama.cpp": (400, "the request exceeds the available context size, try increasing it"),
    "DashScope": (400, "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 3000]"),
    "DeepSeek": (400, "This model's maximum context length is 3000 tokens. However, you requested 4000 tokens (3800 in "
                 "the messages, 200 in the completion). Please reduce the length of the messages or completion."),
    "SGLang": (400, "The input (4000 tokens) is longer than the model's context length (3000 tokens)."),
    "TGI": (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 3000. Given: 4000"),
    "Mistral": (400, "Prompt contains 4000 tokens and 0 draft tokens, too large for model with 3000 maximum context "
                "length"),
    "Anthropic": (400, "prompt is too long: 4000 tokens > 3000 maximum"),
    "Gemini": (400, "The input token count (4000) exceeds the maximum number of tokens allowed (3000)."),
    "OpenRouter": (400, "This endpoint's maximum context length is 3000 tokens. However, you requested about 4000."),
    "LM Studio": (400, "Trying to keep the first 4000 tokens when context the overflows. However, the model is loaded "
                  "with context length of only 3000 tokens"),
    "Groq": (413, "Request too large for model in organization: please reduce the length of the messages."),
    "TabbyAPI": (400, "Prompt length 4000 is greater than max_seq_len 3000"),
    "LMDeploy": (400, "The input prompt length 4000 exceeds session_len 3000"),
    "SiliconFlow": (400, "length of prompt_tokens (4000) must be less than max_seq_len (3000)."),
    "SambaNova": (400, "Requested generation length 1024 is not possible! The provided prompt is 4000 tokens long, so "
                  "generating 1024 tokens requires a sequence length of 5024, but the maximum supported sequence "
                  "length is just 3000!"),
    "Copilot": (400, "prompt token count of 4000 exceeds the limit of 3000"),
    "a 500": (500, "Requested tokens (4000) exceed context window of 3000"),
}  # fmt: skip


def _too_long(status: int, told: str) -> bytes:
    if told.startswith("the request exceeds"):
        more: dict[str, Any] = {"type": "exceed_context_size_error", "n_prompt_tokens": 4000, "n_ctx": 3000}
        return failed(status, told, code=400, **more)
    return failed(status, told, type="invalid_request_error", code="context_length_exceeded" if status == 400 else None)


_CONTEXT = both(
    changed("context"),
    of(planner=refused("context"), executor=refused("context", stop="context", degraded=""),
       gate=refused("context", degraded="context")),
)  # fmt: skip


#: how the episode ends is another matter: the model has lost its middle, too
_TRIMMED = changed("context", trimmed=True, flags=("trimmed",), stop=..., success=..., errors=..., label=...)


def _single(asked: Asked) -> Reply:
    """Two calls at once, and an error for every history in which they stand in one message."""
    if asked.place == 0:
        return called(call("launch_rockets", "{}", "a"), call("launch_rockets", "{}", "b"))
    most = max(len(one.get("tool_calls") or ()) for one in asked.body["messages"])
    return None if most <= 1 else failed(400, "This model only supports single tool-calls at once!")


def _single_unsaid(asked: Asked) -> Reply:
    """The same, and `parallel_tool_calls` is no field that it knows."""
    if "parallel_tool_calls" in asked.body:
        return failed(400, "Unknown parameter: 'parallel_tool_calls'.", param="parallel_tool_calls")
    return _single(asked)


#: an id as Mistral has them
_SHORT = re.compile(r"[a-zA-Z0-9]{9}")


def _ids(asked: Asked) -> list[str]:
    """Of the calls and results in a history."""
    found = [call["id"] for message in asked.body["messages"] for call in message.get("tool_calls") or ()]
    return found + [one["tool_call_id"] for one in asked.body["messages"] if "tool_call_id" in one]


def _long_history(plain: Any, asked: Asked) -> None:
    """Words enough beside each call that a history is soon too long for a small context."""
    message = plain["choices"][0]["message"]
    message["content"] = (message.get("content") or "") + "Let me think about it. " * 400
    plain["usage"]["completion_tokens"] += 2400


def _small(told: bytes, characters: int = 14_000) -> Any:
    """A server whose context holds so many characters; its model is talkative."""
    talk = answering(_long_history)

    def play(asked: Asked) -> Reply:
        return told if len(asked.text) > characters else talk(asked)

    return play


ROWS: list[Row] = [
    *(row(f"no json_schema: {name}", roles=GATE, play=unless(_no_schema, reply), expect=changed("schema"))
      for name, reply in NO_SCHEMA.items()),
    row("no response_format at all", roles=GATE, expect=changed("schema", "schema", flags=("answer_as_call",)),
        play=unless(_no_format, failed(400, "Unrecognized request argument supplied: response_format"))),
    row("no response_format and no tools", roles=GATE, expect=changed("schema", "schema", "schema"),
        play=unless(_plain_text, failed(400, "response_format and tools are not supported by this model"))),
    row("max_completion_tokens instead", expect=changed("max_tokens"), play=unless(
        lambda asked: "max_completion_tokens" in asked.body,
        failed(400, "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
               "'max_completion_tokens' instead.", param="max_tokens", code="unsupported_parameter"))),
    row("Groq: a cap beyond its largest", expect=changed("max_tokens"), play=unless(
        lambda asked: asked.body.get("max_tokens", 0) <= 512,
        failed(400, "`max_tokens` must be less than or equal to `512`, the maximum value for `max_tokens` is less than "
               "the `context_window` for this model", type="invalid_request_error", param="max_tokens"))),
    row("no temperature but the default", expect=changed("temperature"), play=unless(
        lambda asked: "temperature" not in asked.body,
        failed(400, "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value "
               "is supported.", param="temperature", code="unsupported_value"))),
    row("neither temperature nor max_tokens", expect=changed("temperature", "max_tokens"), play=lambda asked: (
        failed(400, "Unsupported value: 'temperature' does not support 0 with this model.", param="temperature")
        if "temperature" in asked.body else
        failed(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", param="max_tokens")
        if "max_tokens" in asked.body else None)),
    row("no system role", expect=changed("system"), play=unless(
        lambda asked: "system" not in _roles(asked),
        failed(400, "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
               param="messages[0].role", code="unsupported_value"))),
    row("vLLM: a template without a system role", expect=changed("system"), play=unless(
        lambda asked: "system" not in _roles(asked), http(400, {"object": "error", "message":
            "System role not supported", "type": "BadRequestError", "code": 400}))),
    row("Gemma: no developer instruction", expect=changed("system"), play=unless(
        lambda asked: "system" not in _roles(asked),
        failed(400, "Developer instruction is not enabled for models/gemma-3"))),
    row("no tools", roles=EXECUTOR, expect=changed("tools", flags=("text_call",)), play=unless(
        lambda asked: "tools" not in asked.body, failed(400, "executor does not support tools"))),
    row("OpenRouter: no endpoint with tools", roles=EXECUTOR, expect=changed("tools", flags=("text_call",)),
        play=unless(lambda asked: "tools" not in asked.body,
                    failed(404, "No endpoints found that support tool use. To learn more about provider routing, visit "
                           "the docs", code=404))),
    row("vLLM: tools need a switch", roles=EXECUTOR, expect=changed("tools", flags=("text_call",)), play=unless(
        lambda asked: "tools" not in asked.body, http(400, {"object": "error", "message":
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', "code": 400}))),
    row("llama.cpp: tools need jinja", roles=EXECUTOR, expect=changed("tools", flags=("text_call",)), play=unless(
        lambda asked: "tools" not in asked.body, failed(500, "tools param requires --jinja flag"))),
    row("no parallel tool calls", roles=EXECUTOR, expect=used(), play=unless(
        lambda asked: "parallel_tool_calls" not in asked.body,
        failed(400, "Unsupported parameter: 'parallel_tool_calls' is not supported with this model.",
               param="parallel_tool_calls"))),
    row("one call at a time", roles=EXECUTOR, expect=changed("parallel_tools", errors=1), play=_single),
    row("one call at a time, and no word for it", roles=EXECUTOR, expect=changed(
        "parallel_tools", "parallel_tools", errors=1), play=_single_unsaid),
    row("Mistral: ids of nine letters and digits", roles=EXECUTOR, expect=changed("tool_ids"), play=unless(
        lambda asked: all(_SHORT.fullmatch(one) for one in _ids(asked)),
        http(400, {"object": "error", "message": "Tool call id was episode-0-1-0 but must be a-z, A-Z, 0-9, with a "
                   "length of 9.", "type": "invalid_function_call", "code": "3280"}))),
    row("Gemini: thoughts that must come back with calls", roles=EXECUTOR,
        expect=changed("tools", flags=("text_call",)), play=unless(lambda asked: not _ids(asked), http(400, [{"error": {
            "code": 400, "message": "Function call is missing a thought_signature in functionCall parts. This is "
            "required for tools to work correctly.", "status": "INVALID_ARGUMENT"}}]))),
    row("thinking cannot be switched by enable_thinking", model={"thinking": "dashscope"}, expect=changed("thinking"),
        play=unless(lambda asked: "enable_thinking" not in asked.body,
                    failed(400, "Unrecognized request argument supplied: enable_thinking"))),
    row("no reasoning_effort none", model={"thinking": "openai"}, expect=changed("thinking"),
        play=unless(lambda asked: "reasoning_effort" not in asked.body,
                    failed(400, "Unsupported value: 'reasoning_effort' does not support 'none' with this model.",
                           param="reasoning_effort", code="unsupported_value"))),
    row("no chat_template_kwargs", model={"thinking": "vllm"}, expect=changed("thinking"),
        play=unless(lambda asked: "chat_template_kwargs" not in asked.body,
                    http(422, {"detail": [{"loc": ["body", "chat_template_kwargs"], "msg": "Extra inputs are not "
                                           "permitted", "type": "extra_forbidden"}]}))),
    row("thinking must be off", expect=changed("thinking"),
        play=unless(lambda asked: asked.body.get("enable_thinking") is False,
                    failed(400, "parameter.enable_thinking must be set to false for non-streaming calls",
                           code="invalid_parameter_error"))),
    row("streams only", expect=changed("stream"), play=unless(
        lambda asked: bool(asked.body.get("stream")),
        failed(400, "This model only support stream mode, please enable the stream parameter to access the model.",
               code="invalid_parameter_error"))),
    row("does not stream", expect=changed("stream"), endpoint={"stream": True}, play=unless(
        lambda asked: not asked.body.get("stream"), failed(400, "Streaming is not supported by this model",
                                                           param="stream"))),
    # -- contexts
    *(row(f"{name}: too long, always", "context", play=always(_too_long(*told)), expect=_CONTEXT)
      for name, told in CONTEXT.items()),
    *(row(f"{name}: too long in the middle", "context", roles=EXECUTOR, play=_small(_too_long(*told)),
          expect=_TRIMMED) for name, told in CONTEXT.items()),
    row("Ollama: a prompt without its middle", "context", expect=used(flags=("prompt_dropped",)), play=answering(
        lambda plain, asked: plain["usage"].update(prompt_tokens=plain["usage"]["prompt_tokens"] // 3))),
]  # fmt: skip
