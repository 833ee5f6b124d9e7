"""The banks of one Weaviate server, for one process and loop."""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import grpc
import weaviate
from grpc.aio import Channel, insecure_channel, secure_channel
from weaviate import WeaviateAsyncClient
from weaviate.classes.init import AdditionalConfig, Auth, Timeout

from events.errors import BadInput
from events.ids import BankVersion, Stage
from events.vectors import Vector
from infra.banks import weaviate_wire as wire
from infra.banks.errors import DoubtfulAnswer
from infra.banks.generations import Generation
from infra.banks.prunes import Prunes
from infra.banks.serving import Found, Mode
from infra.banks.weaviate_edge import CHANNEL, Edge
from infra.banks.weaviate_schema import add_tenant, ensure, remove_tenants
from infra.banks.weaviate_store import WeaviateBank
from infra.weaviate_address import WeaviateAddress

#: how long writes under way are waited for at the end, seconds
_CLOSE_S = 5.0
#: of the client's own calls, which change collections and tenants, seconds
_TIMEOUT = Timeout(init=3, query=10, insert=10)


@dataclass(frozen=True, slots=True)
class _Place:
    host: str
    port: int
    secure: bool


class Weaviate:
    """`infra.banks.serving.BankServer`. Made by `connected`, inside the loop it is used in."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    @property
    def where(self) -> str:
        return self._edge.where

    @property
    def away(self) -> str | None:
        """As `BankServer.away`."""
        return str(self._edge.away) if self._edge.away is not None else None

    def bank(self, generation: Generation, prunes: Prunes, dimension: int) -> WeaviateBank:
        """As `BankServer.bank`."""
        return WeaviateBank(self._edge, generation, prunes, dimension)

    async def prepare(self) -> None:
        """As `BankServer.prepare`."""
        async with self._edge.rest():
            await ensure(self._edge.client)

    async def create(self, name: str) -> None:
        """As `BankServer.create`."""
        async with self._edge.rest():
            await add_tenant(self._edge.client, name)

    async def remove(self, names: Sequence[str]) -> None:
        """As `BankServer.remove`."""
        async with self._edge.rest():
            await remove_tenants(self._edge.client, names)

    async def names(self) -> list[str]:
        """As `BankServer.names`."""
        found: set[str] = set()
        for collection in wire.COLLECTIONS.values():
            async with self._edge.rest():
                there = await self._edge.client.collections.exists(collection)
            if there:
                # One that is not ours has no tenants.
                with suppress(DoubtfulAnswer):
                    found.update(await self._edge.tenants(collection))
        return sorted(found)

    async def look_up(
        self, name: str, stage: Stage, text: str, query: Vector | None, mode: Mode, limit: int, at: BankVersion
    ) -> list[Found]:
        """As `BankServer.look_up`."""
        if mode == "bm25":
            request = wire.words(stage, name, text, limit, wire.born_by(at))
        elif query is None:
            raise BadInput(f"a search by {mode} needs the embedding of its text")
        elif mode == "hybrid":
            request = wire.both(stage, name, text, query.exact(), limit, wire.born_by(at))
        else:
            request = wire.near(stage, name, query.exact(), limit, wire.born_by(at))
        reply = await self._edge.search(name, request)
        if mode != "vector" or query is None:
            return wire.scored(reply)
        return wire.similar(wire.found(name, query.exact(), reply))


@asynccontextmanager
async def connected(address: WeaviateAddress) -> AsyncIterator[Weaviate]:
    """As `infra.banks.connected`."""
    client, channel = _client(address), _channel(address)
    failed: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            edge, watching = Edge(address, client, channel, tasks), anyio.CancelScope()

            async def watch() -> None:
                with watching:
                    async with anyio.create_task_group() as both:
                        both.start_soon(edge.watch)
                        both.start_soon(edge.watch_connection)

            try:
                await edge.greet()
                tasks.start_soon(watch)
                yield Weaviate(edge)
            except Exception as error:  # noqa: BLE001 - raised below: the group would wrap it
                failed = error
            finally:
                watching.cancel()
                edge.leave()
                with anyio.move_on_after(_CLOSE_S, shield=True):
                    await edge.written()
                with anyio.CancelScope(shield=True):
                    await channel.close()
                tasks.cancel_scope.cancel()
    finally:
        # Nobody greets any more: a greeting that goes on meanwhile would leave its connections open.
        with anyio.CancelScope(shield=True):
            await client.close()
    if failed is not None:
        raise failed


def _client(address: WeaviateAddress) -> WeaviateAsyncClient:
    http, rpc = _place(address.http_url), _place(address.grpc_url)
    if (http.host, http.port) == (rpc.host, rpc.port):
        raise BadInput(f"Weaviate at {address.http_url} cannot speak HTTP and gRPC on one port")
    return weaviate.use_async_with_custom(
        http_host=http.host,
        http_port=http.port,
        http_secure=http.secure,
        grpc_host=rpc.host,
        grpc_port=rpc.port,
        grpc_secure=rpc.secure,
        auth_credentials=Auth.api_key(address.api_key) if address.api_key else None,
        # Over TLS as everywhere else in this process: SSL_CERT_FILE names a CA of one's own.
        additional_config=AdditionalConfig(timeout=_TIMEOUT, trust_env=http.secure),
        # They would ask a package index, and wait two seconds for it.
        skip_init_checks=True,
    )


def _channel(address: WeaviateAddress) -> Channel:
    place = _place(address.grpc_url)
    target = f"[{place.host}]:{place.port}" if ":" in place.host else f"{place.host}:{place.port}"
    if place.secure:
        return secure_channel(target, grpc.ssl_channel_credentials(_roots()), options=CHANNEL)
    return insecure_channel(target, options=CHANNEL)


def _roots() -> bytes | None:
    """The CAs that TLS trusts elsewhere in this process; None = gRPC's own. It reads no SSL_CERT_FILE by itself.

    Raises:
        BadInput: the file cannot be read.
    """
    file = ssl.get_default_verify_paths().cafile
    try:
        return Path(file).read_bytes() if file else None
    except OSError as error:
        raise BadInput(f"{file}, which SSL_CERT_FILE or the system names, cannot be read: {error.strerror}") from error


def _place(url: str) -> _Place:
    """Host and port of `http://host:port`, `https://host:port` or `host:port`.

    Raises:
        BadInput: not of that form.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise BadInput(f"{url!r} is no address of a Weaviate server: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise BadInput(f"{url!r} is no address of a Weaviate server: http(s)://host:port, and host:port for gRPC")
    return _Place(parts.hostname, port, parts.scheme == "https")
