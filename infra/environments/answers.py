"""Reference solutions of a benchmark, for tests and the rehearsal model: gold data that no agent or log may see."""

import json
import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread

from runtime.ports import EnvironmentSession
from runtime.task import Description, Task


class OracleSession(EnvironmentSession, Protocol):
    """A session that can be asked for reference solutions."""

    async def oracle(self, task: Task) -> dict[str, Any]:
        """{`text`: the first user message, `turns`: [[assistant messages] per user turn], `saboteur`: wrong ones,
        `family`: [function names]}, and where the benchmark can tell them apart `saboteur_plan`, `saboteur_both`.

        Raises:
            EnvironmentFailed: none are offered, or not to us.
        """
        ...


class OracleEnvironment(Protocol):
    """An environment with such sessions: a child started with `oracle=True`, or a class in process."""

    async def describe(self) -> Description: ...

    async def tasks(self, domain: str | None = None, split: str | None = None) -> list[Task]: ...

    def session(self) -> AbstractAsyncContextManager[OracleSession]: ...

    async def aclose(self) -> None: ...


async def answer_key(environment: OracleEnvironment, domains: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """The answers of every task: task id -> {`domain`, and what `oracle` says}; of all domains where None.

    Raises:
        EnvironmentFailed: the environment offers no reference solutions, or has no such domain.
        EnvironmentUnavailable, EnvironmentCrashed, EnvironmentTimeout: as any operation.
    """
    names = list((await environment.describe()).domains) if domains is None else domains
    key: dict[str, dict[str, Any]] = {}
    for name in names:
        tasks = await environment.tasks(name)
        async with environment.session() as session:
            for task in tasks:
                key[task.task_id] = {"domain": task.domain, **await session.oracle(task)}
    return key


async def dump_answer_key(environment: OracleEnvironment, path: Path, domains: Sequence[str] | None = None) -> int:
    """Write the answer key as JSON to a file that only its owner can read; how many tasks it has.

    Raises:
        OSError: it cannot be written.
        EnvironmentFailed, EnvironmentUnavailable, EnvironmentCrashed, EnvironmentTimeout: as `answer_key`.
    """
    key = await answer_key(environment, domains)
    await anyio.to_thread.run_sync(_write_private, path, json.dumps(key, ensure_ascii=False))
    return len(key)


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
