"""Tasks beside a body: they end with it, and its errors come out as they are."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def beside() -> AsyncIterator[TaskGroup]:
    """A task group that is cancelled when the body ends. What the body raises is not wrapped into a group."""
    raised: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
            raised = error
        tasks.cancel_scope.cancel()
    if raised is not None:
        raise raised
