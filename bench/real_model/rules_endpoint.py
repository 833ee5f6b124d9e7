"""The rules as an OpenAI-compatible endpoint: a gate that a run is started with like any other."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bench.real_model.rules import calls_in, diagnosis, reference
from infra.rehearsal.asking import read_request
from infra.rehearsal.key import AnswerKey

MODEL = "rules-over-the-reference"
_TRAJECTORY = re.compile(r"<trajectory>\n?(.*?)\n?</trajectory>", re.DOTALL)


def judged(body: dict[str, Any], key: AnswerKey) -> dict[str, Any]:
    """What the rules say to a gate's request."""
    asked = read_request(body, key)
    text = "\n".join(str(message.get("content", "")) for message in body["messages"])
    shown = _TRAJECTORY.search(text)
    right = reference(asked.known.task if asked.known is not None else None)
    return diagnosis(right, list(calls_in(shown[1] if shown else "")), success=bool(asked.success))


@contextmanager
def rules_endpoint(key: AnswerKey) -> Iterator[str]:
    """Serve the rules on loopback; the address."""

    async def completions(request: Request) -> JSONResponse:
        answer = json.dumps(judged(await request.json(), key))
        choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        return JSONResponse({"object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage})

    async def models(_: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "chime"}]})

    routes = [Route("/v1/chat/completions", completions, methods=["POST"]), Route("/v1/models", models)]
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
