"""The rehearsal model for tests that call commands in their own thread."""

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio
import anyio.to_thread

from infra.rehearsal.key import AnswerKey
from infra.rehearsal.planting import RehearsalSettings
from infra.rehearsal.server import rehearsal_server


@contextmanager
def rehearsal_endpoint(key: Callable[[], Awaitable[AnswerKey]], settings: RehearsalSettings) -> Iterator[str]:
    """The address of the rehearsal model, served in a thread of this process.

    Args:
        key: gives the answers that it knows, once, in that thread.
        settings: of the planted faults.
    """
    there, over = threading.Event(), threading.Event()
    addresses: list[str] = []

    async def serve() -> None:
        async with rehearsal_server(await key(), settings) as url:
            addresses.append(url)
            there.set()
            await anyio.to_thread.run_sync(over.wait)

    thread = threading.Thread(target=anyio.run, args=(serve,))
    thread.start()
    assert there.wait(120)
    try:
        yield addresses[0]
    finally:
        over.set()
        thread.join()
