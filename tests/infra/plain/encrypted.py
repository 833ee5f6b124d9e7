"""An encrypted way to a server that has none of its own, under a certificate that a CA of the tests' has signed."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener, TLSStream

#: a CA of ours, and a certificate for localhost and 127.0.0.1 that it signed; valid until 2099
TLS = Path(__file__).parents[1] / "tls"
CA = TLS / "ca.pem"


async def _pump(source: ByteReceiveStream, target: ByteSendStream) -> None:
    try:
        async for chunk in source:
            await target.send(chunk)
        await target.aclose()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


@asynccontextmanager
async def encrypted(connect: Callable[[], Awaitable[ByteStream]], *protocols: str) -> AsyncIterator[str]:
    """`127.0.0.1:<port>` where TLS is spoken, and what is said passed on.

    Args:
        connect: to the server.
        protocols: that are offered to whoever connects, such as `h2`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    if protocols:
        context.set_alpn_protocols(list(protocols))

    async def serve(outside: TLSStream) -> None:
        inside = await connect()
        async with outside, inside, anyio.create_task_group() as pumps:
            pumps.start_soon(_pump, outside, inside)
            pumps.start_soon(_pump, inside, outside)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    own = listener.listeners[0].extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
    async with TLSListener(listener, context, standard_compatible=False) as tls, anyio.create_task_group() as tasks:
        tasks.start_soon(tls.serve, serve)
        yield f"127.0.0.1:{own}"
        tasks.cancel_scope.cancel()
