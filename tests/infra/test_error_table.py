"""The table of failures: each endpoint's own words for a condition, and which row decides."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from infra.error_table import TABLE, Row, row_of
from infra.error_text import told_in
from infra.model_errors import of_status

NOW = datetime(2026, 1, 1, tzinfo=UTC)

#: an overflow, by whose words
OVERFLOWS = {
    "OpenAI": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
    "OpenAI with an answer": "This model's maximum context length is 4097 tokens. However, you requested 4120 tokens "
    "(3120 in the messages, 1000 in the completion). Please reduce the length of the messages or completion.",
    "OpenAI responses": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "OpenAI's limit": "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000.",
    "OpenAI in characters": "Invalid 'messages[1].content': string too long. Expected a string with maximum length "
    "10485760, but got a string with length 12000000 instead.",
    "vLLM over a cap": "'max_tokens' or 'max_completion_tokens' is too large: 16384. This model's maximum context "
    "length is 8192 tokens and your request has 200 input tokens",
    "vLLM": "You passed 5000 input tokens, however the model's context length is only 4096 tokens.",
    "vLLM's prompt": "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that "
    "`max_model_len` is no smaller than the number of text tokens.",
    "SGLang": "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "SGLang in total": "Requested token count exceeds the model's maximum context length of 32768 tokens. You "
    "requested a total of 33000 tokens: 32000 tokens from the input messages and 1000 tokens for the completion.",
    "llama.cpp": "the request exceeds the available context size, try increasing it",
    "llama.cpp with numbers": "request (9001 tokens) exceeds the available context size (4096 tokens)",
    "llama.cpp under way": "Context size has been exceeded.",
    "llama.cpp's batch": "input (5000 tokens) is too large to process. increase the physical batch size (2048)",
    "DashScope": "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
    "DeepSeek": "This model's maximum context length is 131072 tokens. Please reduce the length of the messages.",
    "Ollama": "the input length exceeds the context length",
    "Ollama's prompt": "prompt too long; exceeded max context length by 912 tokens",
    "LM Studio": "The number of tokens to keep from the initial prompt is greater than the context length.",
    "TGI": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens "
    "and 20 `max_new_tokens`",
    "TGI's inputs": "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000",
    "Mistral": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "Moonshot": "Invalid request: Your request exceeded model token limit: 8192 (requested: 9000)",
    "MiniMax": "invalid params, context window exceeds limit (2013)",
    "xAI": "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
    "Cohere": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000",
    "Anthropic": "prompt is too long: 210000 tokens > 200000 maximum",
    "Anthropic with an answer": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease "
    "input length or `max_tokens` and try again",
    "Gemini": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Bedrock": "Input is too long for requested model.",
    "OpenRouter": "This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens.",
    "LiteLLM": "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - This model's maximum "
    "context length is 8192 tokens. LiteLLM Retried: 1 times",
    "LiteLLM around JSON": 'litellm.BadRequestError: Hosted_vllmException - {"object":"error","message":"This model\'s '
    'maximum context length is 4096 tokens.","type":"BadRequestError","code":400}',
    "Doubao": "Input length 35000 exceeds the maximum length 32768",
    "Zhipu": "Prompt 超长",
    "one-api": "当前请求超出模型上下文长度限制",
    "Together": "The input token length 40000 is longer than the maximum 32768",
    "Databricks": "Bad request: prompt token count (10000) cannot exceed 4096 - max tokens (1000).",
    "TabbyAPI": "Prompt length 5000 is greater than max_seq_len 4096",
    "LMDeploy": "The input prompt length 5000 exceeds session_len 4096",
    "SiliconFlow": "length of prompt_tokens (40000) must be less than max_seq_len (32768).",
    "SiliconFlow in total": "max_total_tokens (40000) must be less than or equal to max_seq_len (32768)",
    "Qianfan": "the max input characters is 20000",
    "Qianfan's question": "the max length of current question is 11200",
    "Hunyuan": "messages input length exceed the max limit",
    "Spark": "token数量超过上限。对话历史+问题的字数太多，需要精简输入。",
    "Baichuan": "Input tokens too long",
    "SambaNova": "Requested generation length 1024 is not possible! The provided prompt is 16000 tokens long, so "
    "generating 1024 tokens requires a sequence length of 17024, but the maximum supported sequence length is just "
    "16384!",
}

#: what an endpoint does not take: capability, status, message
LACKS: list[tuple[str, int, str]] = [
    (
        "schema",
        400,
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
    ),
    ("schema", 400, "This response_format type is unavailable now"),
    ("schema", 400, "'response_format.type' must be 'text' or 'json_object'"),
    ("schema", 400, "Invalid schema for response_format 'plan': In context=(), 'required' is required"),
    ("schema", 400, "'messages' must contain the word 'json' to use 'response_format' of type 'json_object'"),
    ("schema", 400, "The provided JSON schema contains features not supported by xgrammar."),
    ("schema", 400, "JSON schema conversion failed: Error resolving ref #/x"),
    ("schema", 400, "Failed to initialize samplers: failed to parse grammar"),
    ("schema", 400, "output_config.format.schema: For 'integer' type, property 'maximum' is not supported"),
    ("schema", 400, "JSON mode is not enabled for models/gemma-3-27b-it"),
    ("schema", 400, "Function calling with a response mime type: 'application/json' is unsupported"),
    ("schema", 422, "body.response_format.type: Input should be 'text' or 'json_object'"),
    ("schema", 500, "Unrecognized schema: {}"),
    ("schema", 500, "failed to parse grammar"),
    ("schema", 501, "guided_json is not implemented"),
    ("max_tokens", 400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
    ("max_tokens", 400, "max_tokens is too large: 16384. This model supports at most 4096 completion tokens"),
    ("max_tokens", 400, "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"),
    ("max_tokens", 400, "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]"),
    ("max_tokens", 400, "max_tokens: 16384 > 8192, which is the maximum allowed number of output tokens"),
    ("max_tokens", 400, "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens`"),
    ("max_tokens", 422, "['body', 'max_tokens']: Extra inputs are not permitted"),
    (
        "max_tokens",
        400,
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less "
        "than the `context_window` for this model",
    ),
    (
        "max_tokens",
        400,
        "The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum "
        "tokens value that is lower than 4096.",
    ),
    ("temperature", 400, "Unsupported value: 'temperature' does not support 0 with this model."),
    ("temperature", 400, "Temperature should be in [0.0, 2.0)"),
    ("temperature", 400, "`temperature` is deprecated for this model."),
    ("temperature", 422, "temperature: unsupported"),
    ("temperature", 422, "Input validation error: `temperature` must be strictly positive"),
    ("temperature", 422, "['body', 'temperature']: Input should be greater than 0, must be positive"),
    ("temperature", 400, "`temperature` may only be set to 1 when thinking is enabled."),
    ("system", 400, "System role not supported"),
    ("system", 400, "Developer instruction is not enabled for models/gemma-3-27b-it"),
    ("system", 400, "Unsupported value: 'messages[0].role' does not support 'system' with this model."),
    ("system", 400, "Conversation roles must alternate user/assistant/user/assistant/..."),
    ("system", 400, 'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter'),
    ("system", 500, "After the optional system message, conversation roles must alternate user/assistant"),
    ("system", 500, "Jinja Exception: System role not supported"),
    ("tools", 400, "registry.ollama.ai/library/gemma:2b does not support tools"),
    ("tools", 400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
    ("tools", 400, "Function calling is not enabled for models/gemma-3-27b-it"),
    ("tools", 400, "Unsupported parameter: 'tools' is not supported with this model."),
    ("tools", 400, "Invalid schema for function 'look': schema must be a JSON Schema of 'type: \"object\"'"),
    ("tools", 400, "deepseek-reasoner does not support this tool_choice"),
    ("tools", 400, "The tool_choice parameter does not support being set to required or object in thinking mode"),
    ("tools", 404, "No endpoints found that support tool use. To learn more about provider routing, visit: https://x"),
    ("tools", 422, "['body', 'tools']: Extra inputs are not permitted"),
    ("tools", 500, "tools param requires --jinja flag"),
    ("tools", 501, "tool calling is not implemented"),
    (
        "tools",
        400,
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with "
        "length 200 instead.",
    ),
    ("tools", 400, "Function call is missing a thought_signature in functionCall parts. This is required."),
    ("tool_ids", 400, "Tool call id was episode-0-1-0 but must be a-z, A-Z, 0-9, with a length of 9."),
    ("parallel_tools", 400, "Unsupported parameter: 'parallel_tool_calls' is not supported with this model."),
    ("parallel_tools", 400, "'parallel_tool_calls' is only allowed when 'tools' are specified."),
    ("parallel_tools", 500, "Jinja Exception: This model only supports single tool-calls at once!"),
    ("thinking", 400, "parameter.enable_thinking must be set to false for non-streaming calls"),
    ("thinking", 400, "parameter.enable_thinking only support stream call"),
    ("thinking", 400, "Unrecognized request argument supplied: enable_thinking"),
    ("thinking", 400, "The value of the enable_thinking parameter is restricted to True."),
    ("thinking", 400, "Unknown parameter: 'thinking'."),
    ("thinking", 400, "Unsupported value: 'reasoning_effort' does not support 'none' with this model."),
    ("thinking", 400, "Budget 0 is invalid. This model only works in thinking mode."),
    ("thinking", 400, '"qwen2.5:7b" does not support thinking'),
    ("thinking", 400, "The reasoning_content in the thinking mode must be passed back to the API."),
    ("thinking", 400, "Missing reasoning_content in the assistant message at index 2"),
    ("thinking", 400, 'think value "none" is not supported for this model'),
    ("thinking", 400, "Reasoning is mandatory for this endpoint and cannot be disabled."),
    ("thinking", 422, "['body', 'chat_template_kwargs']: Extra inputs are not permitted"),
    ("stream", 400, "This model only support stream mode, please enable the stream parameter to access the model."),
    ("stream", 400, "Your organization must be verified to stream this model."),
    ("stream", 400, "Unsupported value: 'stream' does not support true with this model."),
    ("stream", 400, "The 'stream_options' parameter is only allowed when 'stream' is enabled; not allowed here"),
    ("stream", 422, "['body', 'stream_options']: Extra inputs are not permitted"),
    ("stream", 501, "Streaming is not supported for this model"),
    ("stream", 400, "the rehearsal model does not stream"),
    ("stream", 400, "Streaming not supported"),
    ("stream", 400, "This deployment cannot stream."),
    ("stream", 400, "Only non-streaming requests are accepted"),
]

#: everything else: status, error, kind, action
OTHERS: list[tuple[int, Any, str, str]] = [
    (400, {"message": "too big", "type": "exceed_context_size_error", "n_ctx": 4096}, "context", "change"),
    (400, {"message": "too big", "code": "context_length_exceeded"}, "context", "change"),
    (413, "<html><h1>413 Request Entity Too Large</h1></html>", "context", "change"),
    (413, "", "context", "change"),
    (
        429,
        {"message": "Request too large for m on tokens per minute (TPM): Limit 10000, Requested 14000."},
        "context",
        "change",
    ),
    (400, {"message": "The response was filtered", "code": "content_filter"}, "content_filter", "refuse"),
    (
        400,
        {"message": "no", "innererror": {"code": "ResponsibleAIPolicyViolation"}},
        "content_filter",
        "refuse",
    ),
    (
        400,
        {"message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy"},
        "content_filter",
        "refuse",
    ),
    (
        400,
        {"message": "Output data may contain inappropriate content.", "code": "data_inspection_failed"},
        "content_filter",
        "refuse",
    ),
    (
        400,
        {"code": "DataInspectionFailed", "message": "Input data may contain sensitive content"},
        "content_filter",
        "refuse",
    ),
    (
        400,
        {"message": "Your request was rejected as a result of our safety system.", "code": "content_policy_violation"},
        "content_filter",
        "refuse",
    ),
    (
        400,
        {"message": "Invalid prompt: your prompt was flagged as potentially violating our usage policy"},
        "content_filter",
        "refuse",
    ),
    (400, {"message": "Content Exists Risk", "type": "invalid_request_error"}, "content_filter", "refuse"),
    (
        400,
        {"message": "The request was rejected because it was considered high risk", "type": "content_filter"},
        "content_filter",
        "refuse",
    ),
    (
        400,
        {"message": "litellm.ContentPolicyViolationError: AzureException - blocked"},
        "content_filter",
        "refuse",
    ),
    (
        403,
        {"message": "Your chosen model requires moderation and your input was flagged for violence", "code": 403},
        "content_filter",
        "refuse",
    ),
    (
        500,
        {"message": "系统检测到输入或生成内容可能包含不安全或敏感内容", "code": "1301"},
        "content_filter",
        "refuse",
    ),
    (403, {"code": "denied", "message": "Content violates usage guidelines."}, "content_filter", "refuse"),
    (403, {"message": "Content moderated", "type": "content_moderated"}, "content_filter", "refuse"),
    (400, {"message": "Violated guardrail policy"}, "content_filter", "refuse"),
    (401, {"message": "Incorrect API key"}, "key", "stop"),
    (400, {"message": "API key not valid. Please pass a valid API key.", "status": "INVALID_ARGUMENT"}, "key", "stop"),
    (400, {"message": "Missing or invalid Authorization header.", "code": 400}, "key", "stop"),
    (400, {"message": "Incorrect API key provided: xa***aa."}, "key", "stop"),
    (400, {"message": "no", "type": "authentication_error"}, "key", "stop"),
    (403, "Forbidden", "key", "stop"),
    (
        403,
        {"message": "Country, region, or territory not supported", "code": "unsupported_country_region_territory"},
        "key",
        "stop",
    ),
    (407, "Proxy Authentication Required", "key", "stop"),
    (401, {"message": "You exceeded your current quota", "type": "insufficient_quota"}, "quota", "stop"),
    (400, {"message": "Budget has been exceeded! Current cost: 10.01", "type": "budget_exceeded"}, "quota", "stop"),
    (429, {"message": "ExceededBudget: over budget", "type": "budget_exceeded"}, "quota", "stop"),
    (403, {"message": "Sorry, your account balance is insufficient"}, "quota", "stop"),
    (403, {"message": "Out of call volume quota. Quota will be replenished in 2 days"}, "quota", "stop"),
    (403, {"message": "Your newly created team doesn't have any credits yet."}, "quota", "stop"),
    (402, {"message": "Insufficient Balance"}, "quota", "stop"),
    (402, "", "quota", "stop"),
    (403, {"message": "user quota is not enough", "code": "insufficient_user_quota"}, "quota", "stop"),
    (403, {"message": "The free tier of the model has been exhausted: FreeTierOnly"}, "quota", "stop"),
    (429, {"message": "You exceeded your current quota, please check your plan and billing details"}, "quota", "stop"),
    (429, {"message": "x", "code": "insufficient_quota"}, "quota", "stop"),
    (429, {"message": "Your account is not active, please check your billing details"}, "quota", "stop"),
    (429, {"message": "余额不足或无可用资源包,请充值。", "code": "1113"}, "quota", "stop"),
    (400, {"message": "Access denied, your account is not in good standing", "code": "Arrearage"}, "quota", "stop"),
    (400, {"message": "Your credit balance is too low to access the API."}, "quota", "stop"),
    (400, {"message": "x", "code": "billing_hard_limit_reached"}, "quota", "stop"),
    (404, {"message": "The model `x` does not exist"}, "model_not_found", "stop"),
    (404, {"message": "model 'qwen2.5:9b' not found"}, "model_not_found", "stop"),
    (404, {"message": 'model "m" not found, try pulling it first'}, "model_not_found", "stop"),
    (404, {"message": "The API deployment for this resource does not exist.", "code": "DeploymentNotFound"},
     "model_not_found", "stop"),
    (404, {"message": "litellm.NotFoundError: The model `x` does not exist"}, "model_not_found", "stop"),
    (400, {"message": "Model Not Exist"}, "model_not_found", "stop"),
    (400, {"message": "Model does not exist. Please check it carefully."}, "model_not_found", "stop"),
    (400, {"message": "The provided model identifier is invalid."}, "model_not_found", "stop"),
    (400, {"message": "no longer supported", "code": "model_decommissioned"}, "model_not_found", "stop"),
    (400, {"message": "Unable to access it", "code": "model_not_available"}, "model_not_found", "stop"),
    (400, {"message": "by no provider", "code": "model_not_supported"}, "model_not_found", "stop"),
    (400, {"message": "Unknown model: x", "code": "unknown_model"}, "model_not_found", "stop"),
    (400, {"message": "模型不存在，请检查模型代码。", "code": "1211"}, "model_not_found", "stop"),
    (400, {"error": "could not find real modelID for x"}, "model_not_found", "stop"),
    (404, {"message": "not activated", "code": "ModelNotOpen"}, "model_not_found", "stop"),
    (400, {"message": "abc is not a valid model ID"}, "model_not_found", "stop"),
    (400, {"message": "/chat/completions: Invalid model name passed in model=x."}, "model_not_found", "stop"),
    (400, {"message": "The model `x` is not supported"}, "model_not_found", "stop"),
    (403, {"message": "Project `p` does not have access to model `x`", "code": "model_not_found"},
     "model_not_found", "stop"),
    (503, {"message": "No available channel for model x under group default", "code": "model_not_found"},
     "model_not_found", "stop"),
    (404, "<html>404 page not found</html>", "not_found", "stop"),
    (404, "", "not_found", "stop"),
    (405, "", "not_found", "stop"),
    (501, "Unsupported method ('POST')", "not_found", "stop"),
    (301, "", "redirect", "stop"),
    (302, "", "redirect", "stop"),
    (307, "<html>moved</html>", "redirect", "stop"),
    (308, "", "redirect", "stop"),
    (429, {"message": "Rate limit reached for requests", "code": "rate_limit_exceeded"}, "rate_limited", "retry"),
    (429, {"message": "Allocated quota exceeded, please increase your quota limit.",
           "code": "Throttling.AllocationQuota"}, "rate_limited", "retry"),
    (429, {"message": "You exceeded your current quota, please check your plan. Please retry in 37.4s."},
     "rate_limited", "retry"),
    (429, "", "rate_limited", "retry"),
    (408, "", "timeout", "retry"),
    (409, "", "unavailable", "retry"),
    (424, {"message": "Model error: failed dependency"}, "unavailable", "retry"),
    (425, "", "unavailable", "retry"),
    (498, {"message": "Flex tier capacity exceeded", "code": "capacity_exceeded"}, "unavailable", "retry"),
    (499, "", "unavailable", "retry"),
    (500, {"message": "internal error"}, "server_error", "retry"),
    (500, "", "server_error", "retry"),
    (500, {"message": "Failed to parse tool call arguments as JSON: [json.exception.parse_error.101]"},
     "poisoned", "retry"),
    (400, {"message": "Failed to generate JSON. Please adjust your prompt.", "code": "json_validate_failed"},
     "malformed", "retry"),
    (500, {"message": "Failed to parse input at pos 12: <tool_call> not closed"}, "malformed", "retry"),
    (500, {"message": "Failed to parse tool calls from the model output"}, "malformed", "retry"),
    (400, {"message": "Failed to call a function.", "code": "tool_use_failed"}, "malformed", "retry"),
    (502, "<html>bad gateway</html>", "unavailable", "retry"),
    (503, {"message": "Loading model"}, "warming_up", "retry"),
    (503, {"error": "Model m is currently loading", "estimated_time": 20.0}, "warming_up", "retry"),
    (503, {"message": "The engine is currently overloaded"}, "unavailable", "retry"),
    (504, "", "unavailable", "retry"),
    (520, "", "unavailable", "retry"),
    (529, {"message": "overloaded_error"}, "unavailable", "retry"),
    (999, "", "unavailable", "retry"),
    (400, {"message": "bad messages"}, "refused", "refuse"),
    (400, {"message": "Function calls and responses of the function call turn differ", "status": "INVALID_ARGUMENT"},
     "refused", "refuse"),
    (400, "", "refused", "refuse"),
    (400, {"message": "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."},
     "refused", "refuse"),
    (400, {"message": "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
           "'tool_call_id'."}, "refused", "refuse"),
    (400, {"message": "Failed to parse tool call arguments as JSON"}, "refused", "refuse"),
    (415, "Unsupported Media Type", "refused", "refuse"),
    (418, "", "refused", "refuse"),
    (422, {"message": "field required"}, "refused", "refuse"),
]  # fmt: skip


def body_of(error: Any) -> str:
    """An OpenAI error, or any other body."""
    return error if isinstance(error, str) else json.dumps({"error": error})


@pytest.mark.parametrize("status", [400, 413, 422, 500])
@pytest.mark.parametrize("message", OVERFLOWS.values(), ids=OVERFLOWS)
def test_a_context_overflow_is_known_in_every_wording(status: int, message: str) -> None:
    """Trimmed once as `context`, never stepped down over `max_tokens`, never tried again as it is over a 500."""
    for body in (
        body_of({"message": message}),
        json.dumps({"object": "error", "message": message}),
        json.dumps({"error": message}),
        json.dumps({"detail": message}),
        json.dumps(
            {"error": {"message": "Provider returned error", "metadata": {"raw": body_of({"message": message})}}}
        ),
        message,
    ):
        failure = of_status(status, body, {}, NOW)
        assert (failure.kind, failure.action, failure.capability) == ("context", "change", "context"), body


@pytest.mark.parametrize(("capability", "status", "message"), LACKS)
def test_what_an_endpoint_does_not_take_is_named(capability: str, status: int, message: str) -> None:
    """The client asks in another way."""
    failure = of_status(status, body_of({"message": message, "type": "invalid_request_error"}), {}, NOW)
    assert (failure.kind, failure.action, failure.capability) == (f"no_{capability}", "change", capability)
    assert of_status(status, json.dumps({"detail": message}), {}, NOW).capability == capability


@pytest.mark.parametrize(("status", "error", "kind", "action"), OTHERS)
def test_each_condition_has_its_row(status: int, error: Any, kind: str, action: str) -> None:
    """Kind and action by condition."""
    failure = of_status(status, body_of(error), {}, NOW)
    assert (failure.kind, failure.action, failure.status) == (kind, action, status)


def test_every_row_decides_something() -> None:
    """No row is hidden behind those before it, and none is without a case here."""
    cases = [(status, body_of({"message": message})) for message in OVERFLOWS.values() for status in (400, 500)]
    cases += [(status, body_of({"message": message})) for _, status, message in LACKS]
    cases += [(status, body_of(error)) for status, error, *_ in OTHERS]
    decided = [row_of(status, told_in(body)) for status, body in cases]
    assert [row.condition for row in TABLE if row.statuses and row not in decided] == []


def test_every_status_has_a_row() -> None:
    """Whatever a server puts into the first line of an error."""
    assert all(isinstance(row_of(status, told_in("")), Row) for status in range(300, 1000))
