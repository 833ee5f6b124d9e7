"""LangGraph: a graph of five nodes that each return 1 KB, checkpointed after every node, 16 runs at once."""

import asyncio
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, TypedDict

from langgraph.checkpoint.redis.aio import AsyncRedisSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from serving import serve

STAGES = ("retrieved", "planned", "executed", "scored", "diagnosed")
TEXT = "x" * 1000


class State(TypedDict):
    """What a run holds: the last word of each stage."""

    retrieved: str
    planned: str
    executed: str
    scored: str
    diagnosed: str


class Peer:
    """One compiled graph over one saver."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._threads = count()
        self._graph: Any = None

    def answer(self, request: dict[str, Any]) -> Any:
        """`open` a saver, `run` episodes."""
        return self._runner.run(self._answer(request))

    async def _answer(self, request: dict[str, Any]) -> Any:
        match request["do"]:
            case "open":
                self._graph = graph(await self._saver(request["saver"], request["where"]))
            case "run":
                await self._episodes(request["episodes"], request["at_once"])
        return None

    async def _saver(self, name: str, where: str) -> Any:
        if name == "sqlite":
            return await self._stack.enter_async_context(AsyncSqliteSaver.from_conn_string(where))
        saver = await self._stack.enter_async_context(AsyncRedisSaver.from_conn_string(where))
        await saver.asetup()
        return saver

    async def _episodes(self, episodes: int, at_once: int) -> None:
        places = asyncio.Semaphore(at_once)

        async def one() -> None:
            async with places:
                thread = {"configurable": {"thread_id": f"t{next(self._threads)}"}}
                await self._graph.ainvoke({"retrieved": ""}, thread, durability="sync")

        async with asyncio.TaskGroup() as tasks:
            for _ in range(episodes):
                tasks.create_task(one())


def graph(saver: Any) -> Any:
    """Retrieved -> planned -> executed -> scored -> diagnosed."""
    builder = StateGraph(State)
    for stage in STAGES:

        async def node(state: State, stage: str = stage) -> dict[str, str]:
            del state
            return {stage: TEXT}

        builder.add_node(f"{stage}_node", node)
    names = [f"{stage}_node" for stage in STAGES]
    for here, following in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(here, following)
    return builder.compile(checkpointer=saver)


if __name__ == "__main__":
    serve(Peer().answer)
