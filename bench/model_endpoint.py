"""A model's endpoint that answers at once, in a process of its own: `python -m bench.model_endpoint`; says its port."""

import asyncio
import json

#: what a plan is made of, characters
ANSWER = "First look at what there is, then change as little as possible. " * 25
_BODY = json.dumps(
    {
        "id": "c-1", "object": "chat.completion", "created": 1, "model": "free",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1500, "completion_tokens": 400, "total_tokens": 1900},
    }
).encode()  # fmt: skip
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
#: how long it thinks, seconds: so that all callers wait at once
_THINKS_S = 0.02


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One answer for each request."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            await asyncio.sleep(_THINKS_S)
            writer.write(_ANSWER)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    """Until it is killed."""
    listening = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
