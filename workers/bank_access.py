"""How a process reaches the Weaviate server of its runs' banks: opened when the first run wants it, and only once.

Where the server is belongs to the process: the address of its settings, or the home's own server. What reads and what
writes banks goes on without it, so nothing here waits for a server that is away; `BankServer.away` says that.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from anyio import from_thread, to_thread
from anyio.abc import TaskGroup, TaskStatus

from events.errors import BadInput, ChimeError, Unreachable
from infra import banks
from infra.banks.serving import BankServer
from infra.weaviate_address import WeaviateAddress
from infra.weaviate_asking import answering
from infra.weaviate_server import Start, revive, running, weaviate_server
from runtime.beside import beside
from runtime.logger import Logger
from runtime.ports import Clock
from workers.configuration import Store, WeaviateSettings
from workers.connections import Server

_log = Logger("chime.bank")

#: where a server of yours speaks gRPC unless somebody says otherwise
GRPC_PORT = 50051
#: how long after a server was not found, or did not start, the next one who asks tries again, seconds
_AGAIN_S, _START_AGAIN_S = 5.0, 60.0
#: how often a home's server that does not answer is looked after, seconds
_LOOK_S = 1.0


def address_of(settings: WeaviateSettings, keys: Mapping[str, str]) -> WeaviateAddress:
    """The server of yours that `settings` name.

    Args:
        settings: with a `url`.
        keys: environment variables: the API key by name.

    Raises:
        BadInput: the variable holds what no key can be.
    """
    key = keys.get(settings.api_key_env, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise BadInput(f"{settings.api_key_env} holds characters that no key has; is it a line of something else?")
    parts = urlsplit(settings.url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    secure = "https://" if parts.scheme == "https" else ""
    return WeaviateAddress(
        http_url=settings.url.rstrip("/"),
        grpc_url=settings.grpc_url.rstrip("/") or f"{secure}{host}:{GRPC_PORT}",
        api_key=key,
        version="",
    )


class BankAccess:
    """The one way of a process to its bank server. Made by `with_banks`, inside the loop it is used in.

    Args:
        settings: where it is.
        keys: environment variables: the API key by name.
        home: whose own server it is where `settings` name none.
        starting: start the home's own server; otherwise one that others have started is used.
        start: how it is started.
        clock: of the machine.
        tasks: where the connection lives.
    """

    def __init__(
        self,
        settings: WeaviateSettings,
        keys: Mapping[str, str],
        home: Path,
        clock: Clock,
        tasks: TaskGroup,
        *,
        starting: bool,
        start: Start,
    ) -> None:
        self._settings, self._keys, self._home, self._clock, self._tasks = settings, keys, home, clock, tasks
        self._starting, self._start = starting, start
        self._opening = anyio.Lock()
        self._failed: tuple[float, ChimeError] | None = None
        #: the server as it is reached now; another one once a home's server has moved
        self.current: BankServer | None = None

    @property
    def where(self) -> str:
        """The server, for people."""
        return self._settings.url or f"the home's own ({self._home})"

    @property
    def revives(self) -> bool:
        """Whether this process starts the server again where it has died."""
        return self._starting and not self._settings.url

    async def server(self) -> BankServer:
        """The server, which need not answer.

        Raises:
            BadInput: the client is not installed, or an address or key is none.
            Unreachable: the home's own server is not there, or cannot be started.
        """
        async with self._opening:
            if self.current is None:
                again_s = _START_AGAIN_S if self.revives else _AGAIN_S
                if self._failed is not None and self._clock.monotonic() - self._failed[0] < again_s:
                    raise self._failed[1]
                try:
                    await self._tasks.start(self._held)
                except ChimeError as error:
                    self._failed = (self._clock.monotonic(), error)
                    raise
            assert self.current is not None  # noqa: S101 - `_held` says that it has started once it is there
            return self.current

    async def assert_answering(self) -> None:
        """A server of yours answers, takes the key, and is not too old; the home's own is started by us.

        Raises:
            BadInput: it does not take us; says why.
            Unreachable: it does not answer, or cannot be started.
        """
        if self._settings.url:
            await to_thread.run_sync(answering, address_of(self._settings, self._keys))
        server = await self.server()
        await server.names()

    async def reachable(self) -> BankServer | None:
        """As `server`; where there is none, None: it is said once, and a replica answers meanwhile."""
        before = self._failed
        try:
            return await self.server()
        except ChimeError as error:
            if before is None:
                _log.warning("bank_server_missing", reason=str(error))
            return None

    async def _held(self, *, task_status: TaskStatus[None]) -> None:
        """Keep the connection, in a task of its own: its parts must be closed by whoever has opened them."""
        async with AsyncExitStack() as stack:
            address = await self._found(stack)
            begun = False
            while True:
                # In a thread: the vendor takes seconds to import, and a worker silent for so long is taken for dead.
                async with await to_thread.run_sync(banks.connected, address) as server:
                    self.current, self._failed = server, None
                    if not begun:
                        task_status.started()
                    begun = True
                    address = await self._moved(server, address)
                    _log.warning("bank_server_moved", address=address.http_url)

    async def _found(self, stack: AsyncExitStack) -> WeaviateAddress:
        if self._settings.url:
            return address_of(self._settings, self._keys)
        if self._starting:
            return await stack.enter_async_context(weaviate_server(self._home, self._start))
        found = await to_thread.run_sync(running, self._home)
        if found is None:
            raise Unreachable(f"no Weaviate server of the home {self._home} runs, and weaviate.url names no other")
        return found.address

    async def _moved(self, server: BankServer, address: WeaviateAddress) -> WeaviateAddress:
        """Where the server is once it is elsewhere; a home's server that has died is started again meanwhile."""
        said = ""
        while True:
            await self._clock.sleep(_LOOK_S)
            if self._settings.url or server.away is None:
                said = ""
                continue
            try:
                now = await self._looked_after()
            except ChimeError as error:
                if str(error) != said:
                    said = str(error)
                    _log.warning("bank_server_missing", reason=said)
                await self._clock.sleep(_AGAIN_S)
                continue
            if now is not None and _place(now) != _place(address):
                return now

    async def _looked_after(self) -> WeaviateAddress | None:
        if self._starting:
            # Whoever is cancelled need not wait for a server that takes a minute to start.
            start = replace(self._start, go_on=from_thread.check_cancelled)
            return await to_thread.run_sync(partial(revive, self._home, start))
        found = await to_thread.run_sync(running, self._home)
        return found.address if found is not None else None


def _place(address: WeaviateAddress) -> tuple[str, str, str]:
    return address.http_url, address.grpc_url, address.api_key


@asynccontextmanager
async def with_banks(
    there: Server,
    home: Path,
    settings: WeaviateSettings,
    keys: Mapping[str, str],
    clock: Clock,
    *,
    starting: bool,
    start: Start | None = None,
) -> AsyncIterator[Server]:
    """`there` with a way to the banks of its runs, for as long as the body runs; nothing is opened until it is used.

    Args:
        there: the server with the logs.
        home: of this process.
        settings: where the bank server is.
        keys: environment variables: the API key by name.
        clock: of the machine.
        starting: whether this process starts the home's own bank server where there is none.
        start: how.
    """
    async with beside() as tasks:
        access = BankAccess(settings, keys, home, clock, tasks, starting=starting, start=start or Start())
        yield replace(there, banks=access)


async def assert_bank_there(there: Server, store: Store) -> None:
    """The server of a run that is to recall from `store` answers and takes us, before anything is begun.

    Raises:
        BadInput: the client is not installed, or the server does not take us.
        Unreachable: it does not answer, or cannot be started.
    """
    if store != "weaviate" or there.banks is None:
        return
    try:
        await there.banks.assert_answering()
    except Unreachable as away:
        raise Unreachable(f"{away}; once it answers give the same command again, or add --bank replica") from away
