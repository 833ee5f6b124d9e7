"""The rehearsal model behind an OpenAI-compatible HTTP endpoint on loopback."""

import errno
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typing_extensions import override

from events.errors import BadInput
from infra.rehearsal import MODEL, OWNER
from infra.rehearsal.asking import read_request
from infra.rehearsal.key import AnswerKey
from infra.rehearsal.planting import Planting, RehearsalSettings
from infra.rehearsal.playing import Played, Rehearsal, Reply, UnknownTask
from infra.rehearsal.probed import is_probe, probe_reply
from infra.rehearsal.truth import TruthFile
from runtime.logger import Logger

_log = Logger(service="rehearsal")
_HOST = "127.0.0.1"
#: how long open connections may take to end once the server stops, seconds
_SHUTDOWN_S = 2


def application(key: AnswerKey, settings: RehearsalSettings, truths: TruthFile) -> Starlette:
    """The endpoint as an ASGI application; it keeps no state but the open truth file."""
    model = Rehearsal(Planting(settings))

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "tasks": len(key)})

    async def models(_: Request) -> Response:
        served = {"id": MODEL, "object": "model", "created": 0, "owned_by": OWNER}
        return JSONResponse({"object": "list", "data": [served]})

    async def completions(request: Request) -> Response:
        try:
            body = await request.json()
        except ValueError:
            return _refusal(400, "the body is not JSON", "invalid_json")
        refusal = _unservable(body)
        if refusal is not None:
            return refusal
        if is_probe(body):
            return JSONResponse(_completion(body, Played(reply=probe_reply(body))))
        asked = read_request(body, key)
        try:
            played = model.play(asked)
        except UnknownTask as unknown:
            return _refusal(400, str(unknown), "unknown_task")
        if played.truth is not None:
            truths.add(played.truth)
        _log.debug("answered", part=asked.part, task_id=asked.known.task_id if asked.known else None)
        return JSONResponse(_completion(body, played))

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/chat/completions", completions, methods=["POST"]),
        ]
    )


def _refusal(status: int, message: str, code: str) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": error}, status_code=status)


def _unservable(body: Any) -> JSONResponse | None:
    """What is wrong with a request, as OpenAI would say it; None where it can be answered."""
    if not isinstance(body, dict):
        return _refusal(400, "the body is not an object", "invalid_json")
    if body.get("model") != MODEL:
        return _refusal(404, f"there is no model {body.get('model')!r} here, only {MODEL!r}", "model_not_found")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        return _refusal(400, "messages must be a non-empty list of objects", "invalid_messages")
    if not all(isinstance(tool, dict) for tool in body.get("tools") or []):
        return _refusal(400, "tools must be a list of objects", "invalid_tools")
    if body.get("stream"):
        return _refusal(400, "the rehearsal model does not stream", "unsupported_stream")
    if body.get("n") not in (None, 1):
        return _refusal(400, "the rehearsal model gives one choice", "unsupported_n")
    return None


def _tokens(value: Any) -> int:
    """An estimate: four characters a token."""
    return -(-len(json.dumps(value, ensure_ascii=False)) // 4)


def _completion(body: dict[str, Any], played: Played) -> dict[str, Any]:
    """The answer as OpenAI writes it; its id is a hash of the request, so equal requests get equal bytes."""
    asked = json.dumps(body, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
    message = _message(played.reply)
    prompt = _tokens(body["messages"]) + (_tokens(body["tools"]) if body.get("tools") else 0)
    completion = _tokens([message["content"] or "", *played.reply.tool_calls])
    return {
        "id": f"chatcmpl-{hashlib.sha256(asked).hexdigest()[:24]}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": _finish(played.reply),
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
    }


def _finish(reply: Reply) -> str:
    if reply.is_cut:
        return "length"
    return "tool_calls" if reply.tool_calls else "stop"


def _message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.tool_calls:
        message["tool_calls"] = reply.tool_calls
    return message


class _Server(uvicorn.Server):
    """A server that leaves signals to whoever opened it, and says when it accepts."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = anyio.Event()

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.ready.set()


def _listening(port: int) -> socket.socket:
    """A socket that listens on loopback.

    Raises:
        BadInput: the port is in use or may not be used.
    """
    # The protocol by name: asyncio switches Nagle off only for sockets that say so, and 40 ms a call are at stake.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_HOST, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise BadInput(f"port {port} on {_HOST} is in use; name another one, or 0 for a free one") from error
        raise BadInput(f"cannot listen on {_HOST}:{port}: {error}") from error
    return listener


@asynccontextmanager
async def rehearsal_server(
    key: AnswerKey, settings: RehearsalSettings, *, port: int = 0, truth: Path | None = None
) -> AsyncIterator[str]:
    """The rehearsal model, served while the context is open; its base URL (`http://127.0.0.1:<port>/v1`).

    It accepts connections when the body starts, and is gone when the context is left. Needs asyncio.

    Args:
        key: the tasks it knows.
        settings: rates and seed of the planted faults.
        port: 0 = a free one.
        truth: where the planted truth is appended; None = nowhere.

    Raises:
        BadInput: the port is in use, or `truth` cannot be written.
    """
    truths = TruthFile(truth)
    try:
        listener = _listening(port)
    except BadInput:
        truths.close()
        raise
    base_url = f"http://{_HOST}:{listener.getsockname()[1]}/v1"
    server = _Server(
        uvicorn.Config(
            application(key, settings, truths),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
    )

    async def serve() -> None:
        # Shielded: it ends because it is told to, also when the caller is cancelled, so that no socket stays open.
        with anyio.CancelScope(shield=True):
            await server.serve(sockets=[listener])

    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(serve)
            try:
                await server.ready.wait()
                _log.debug("rehearsal_served", base_url=base_url, tasks=len(key))
                yield base_url
            except Exception as error:  # noqa: BLE001 - raised again below, outside the group that would wrap it
                failure = error
            finally:
                server.should_exit = True
    finally:
        listener.close()
        truths.close()
    if failure is not None:
        raise failure
