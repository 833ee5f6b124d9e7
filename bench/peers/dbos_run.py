"""DBOS on SQLite: a workflow of five steps that each return 1 KB, 16 workflows at once."""

import asyncio
from typing import Any

from dbos import DBOS
from serving import serve

STAGES = ("retrieved", "planned", "executed", "scored", "diagnosed")
TEXT = "x" * 1000


@DBOS.step()
async def stage(name: str) -> str:
    """One stage."""
    return TEXT if name else ""


@DBOS.workflow()
async def episode() -> int:
    """Five stages."""
    for name in STAGES:
        await stage(name)
    return len(STAGES)


class Peer:
    """One DBOS."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def answer(self, request: dict[str, Any]) -> Any:
        """`open` a database, `run` episodes."""
        if request["do"] == "open":
            url = f"sqlite:///{request['where']}"
            DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})
            self._runner.run(self._launched())
            return None
        return self._runner.run(self._episodes(request["episodes"], request["at_once"]))

    async def _launched(self) -> None:
        DBOS.launch()

    async def _episodes(self, episodes: int, at_once: int) -> None:
        places = asyncio.Semaphore(at_once)

        async def one() -> None:
            async with places:
                await episode()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(episodes):
                tasks.create_task(one())


if __name__ == "__main__":
    serve(Peer().answer)
