"""What llama.cpp's server really sends, through our client: shapes only, never words; the model is too small for sense.

The first test waits for the model to be loaded: until then the server answers 503 on every path.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest

from events.ids import RunId, StreamId
from infra.openai_model import OpenAIModel
from runtime.gate import diagnosis_schema
from runtime.ports import CallKey, ChatAnswer, ChatRequest

Opened = Callable[..., AbstractAsyncContextManager[OpenAIModel]]

KEY = CallKey(run=RunId("r"), stream=StreamId("episode-1"), stage="execution", ordinal=1)
SHORT: dict[str, Any] = {"role": "user", "content": "Name one colour."}
CITY = {
    "title": "answer",
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}
pytestmark = pytest.mark.timeout(300)


def request(*messages: dict[str, Any], **more: Any) -> ChatRequest:
    return ChatRequest(role=more.pop("role", "executor"), messages=list(messages), **more)


async def test_a_server_that_loads_its_model_is_waited_for(opened: Opened) -> None:
    """503 while loading is no failure of the endpoint: the same call has its answer when the model is there."""
    async with opened() as model:
        answer = await model.complete(request(SHORT), KEY)
    assert answer.content
    assert answer.finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.completion_tokens
    assert answer.model.endswith(".gguf")
    assert answer.reasoning == ""


async def test_a_schema_is_kept_to(opened: Opened) -> None:
    """Words from a list and a flag: what the server constrains is an object of that form."""
    async with opened(max_tokens=40) as model:
        answer = await model.complete(request(SHORT, schema=CITY, role="gate"), KEY)
    said = json.loads(answer.content)
    assert set(said) == {"city", "warm"}
    assert said["city"] in ("Paris", "Rome")
    assert isinstance(said["warm"], bool)


async def test_the_schema_of_a_diagnosis_is_taken(opened: Opened) -> None:
    """The server compiles our own schema; cut off after a few tokens, the answer is called cut off."""
    async with opened(max_tokens=8) as model:
        answer = await model.complete(request(SHORT, schema=diagnosis_schema(attribution=True), role="gate"), KEY)
    assert answer.finish_reason == "length"
    assert answer.usage.completion_tokens == 8


async def test_equal_requests_have_equal_answers(opened: Opened) -> None:
    """Temperature 0, one slot: twice in a row and two at once."""
    answers: list[ChatAnswer] = []

    async def ask(model: OpenAIModel) -> None:
        answers.append(await model.complete(request(SHORT), KEY))

    async with opened(max_tokens=12) as model:
        await ask(model)
        await ask(model)
        async with anyio.create_task_group() as group:
            group.start_soon(ask, model)
            group.start_soon(ask, model)
    assert len({answer.content for answer in answers}) == 1


async def test_a_stream_says_what_a_whole_answer_says(opened: Opened) -> None:
    """Read as it is written, the answer is the same, and its tokens are counted too."""
    async with opened(max_tokens=12) as whole, opened(max_tokens=12, stream=True) as streamed:
        one, other = await whole.complete(request(SHORT), KEY), await streamed.complete(request(SHORT), KEY)
    counts = (one.usage.prompt_tokens, one.usage.completion_tokens)
    assert (other.content, other.finish_reason) == (one.content, one.finish_reason)
    assert (other.usage.prompt_tokens, other.usage.completion_tokens) == counts


async def test_a_history_that_is_too_long_is_cut_down_once(opened: Opened) -> None:
    """The server says what it holds; with the middle left out it answers, and the answer says how much was missing."""
    long: dict[str, Any] = {"role": "user", "content": "word " * 3000}
    async with opened(max_tokens=4) as model:
        answer = await model.complete(request(long), KEY)
    assert answer.left_out > 0
    assert "trimmed" in answer.flags


async def test_tools_are_taken_and_a_call_is_one_or_a_text(opened: Opened) -> None:
    """This model's template knows no tools and the server drops them without a word: an answer all the same."""
    async with opened() as model:
        answer = await model.complete(request(SHORT, tools=[TOOL]), KEY)
    assert answer.content or answer.tool_calls


async def test_a_history_with_a_call_and_its_answer_is_taken(opened: Opened) -> None:
    """Our own ids and arguments written anew: the form in which calls go back into a history."""
    call = {"id": "episode-1-1-0", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}}
    history = [SHORT, {"role": "assistant", "content": "", "tool_calls": [call]}]
    history.append({"role": "tool", "tool_call_id": "episode-1-1-0", "content": "a wall"})
    async with opened() as model:
        answer = await model.complete(request(*history, tools=[TOOL]), KEY)
    assert answer.content or answer.tool_calls


@pytest.mark.parametrize("thinking", ["dashscope", "vllm", "deepseek"])
async def test_a_thinking_switch_that_the_server_does_not_know_is_harmless(opened: Opened, thinking: str) -> None:
    """The switches of other servers are sent, and the question is answered."""
    async with opened(max_tokens=4, thinking=thinking) as model:
        assert (await model.complete(request(SHORT), KEY)).usage.completion_tokens


def test_the_probe_tells_what_this_server_can_do(llama: str, tmp_path: Path) -> None:
    """`chime model probe` against the real thing: it ends with 0 and says what was asked and what came."""
    chime = str(Path(sys.executable).parent / "chime")
    done = subprocess.run(
        [chime, "model", "probe", llama, "smollm2", "--json"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"]


def test_a_run_survives_a_model_without_sense(llama: str, tmp_path: Path) -> None:
    """A whole episode, planner, executor and gate by this model: whatever it answers is an event, and the log holds."""
    chime = [str(Path(sys.executable).parent / "chime")]
    settings = ["-s", "models.max_tokens=24", "-s", "episode.max_steps=2", "-s", "models.retries=100"]
    words = ["run", "start", "toy", "--limit", "1", "--run", "small", "--base-url", llama, "--model", "smollm2"]
    done = subprocess.run(
        [*chime, *words, "--api-key-env", "", "--in-process", *settings],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    verified = subprocess.run([*chime, "log", "verify", "small"], capture_output=True, text=True, cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
