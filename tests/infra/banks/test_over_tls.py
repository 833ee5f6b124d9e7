"""A Weaviate server of somebody's behind TLS, with a CA of one's own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from anyio.abc import SocketStream
from banked_run import placed
from encrypted import CA, encrypted
from msgspec.structs import replace

from events.errors import Unreachable
from infra.weaviate_address import WeaviateAddress
from infra.weaviate_asking import answering


@asynccontextmanager
async def over_tls(address: WeaviateAddress) -> AsyncIterator[WeaviateAddress]:
    """The server at `address`, with REST and gRPC encrypted."""

    async def to(url: str) -> SocketStream:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        return await anyio.connect_tcp(parts.hostname, parts.port)

    rest, rpc = (lambda: to(address.http_url)), (lambda: to(f"//{address.grpc_url}"))
    async with encrypted(rest) as one, encrypted(rpc, "h2") as other:
        yield replace(address, http_url=f"https://{one}", grpc_url=f"https://{other}")


async def test_a_bank_is_written_and_read(
    redis_server: Any, redis_prefix: str, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch
):
    """Its CA stands in the file that SSL_CERT_FILE names, for whoever asks it, its REST client and gRPC alike."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CA))
    async with over_tls(weaviate_server) as address:
        told = await anyio.to_thread.run_sync(answering, address)
        assert told.version
        async with placed(redis_server.url, redis_prefix, address) as place, anyio.create_task_group() as tasks:
            mirror, reader = place.run.mirrored(place.mirror(), term=1), place.reader()
            tasks.start_soon(mirror.run)
            await place.run.fold(6)
            assert await mirror.settle(120), mirror.view
            asked = place.run.asked()
            found = await reader.recall(asked.stage, asked.query, asked.version)
            assert place.run.right(asked, found)
            assert found.source == "weaviate"
            tasks.cancel_scope.cancel()


async def test_a_certificate_of_a_stranger_is_refused(
    redis_server: Any, redis_prefix: str, weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch
):
    """In one line, before a run is begun; one that goes on counts it as away."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    async with over_tls(weaviate_server) as address:
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED") as error:
            await anyio.to_thread.run_sync(answering, address)
        assert "\n" not in str(error.value)
        async with placed(redis_server.url, redis_prefix, address) as place:
            assert place.server.away is not None
            assert "\n" not in place.server.away
