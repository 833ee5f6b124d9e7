"""A signal that arrives when a run has ended, while its workers stop."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from workers.commands import run_start


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_signal_while_workers_stop(chime: Any, uploaded: Any, made_run: Any, monkeypatch: Any, is_finished: bool):
    """A run that has ended is told as it ended; one that has not is interrupted and can be resumed."""
    made = made_run()
    uploaded(made)

    @asynccontextmanager
    async def slow_to_stop(*_: Any) -> AsyncIterator[None]:
        if not is_finished:
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep_forever()
        yield
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep_forever()

    async def driven(*_: Any) -> dict[str, str]:
        return {made.run: "running"}

    async def nothing(*_: Any) -> None:
        return None

    monkeypatch.setattr(run_start, "hands", slow_to_stop)
    monkeypatch.setattr(run_start, "drive", driven)
    monkeypatch.setattr(run_start, "_resumed", nothing)
    out = chime("run", "resume", made.run, code=0 if is_finished else 130)
    assert ("succeeded" in out) is is_finished
    assert ("chime run resume" in chime.err) is (not is_finished)
