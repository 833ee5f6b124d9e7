"""A server that many processes ask at once: a share of the requests, chosen by what they say, meets a row."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256

from every_row import ROWS
from hostile_rows import ROLES, Row
from hostile_server import HostileServer, hostile_server
from hostile_wire import Asked, Play, Reply

#: what may be asked for in another way without a word of the messages being changed
_SILENT_CHANGES = frozenset({"max_tokens", "temperature"})


def mixable(row: Row) -> bool:
    """Whether it may be met in the middle of a run whose other calls must not notice.

    Not: what pauses the run; what needs settings of its own, which is what hangs, too; and what teaches the client to
    write other messages, as from then on other requests are made.
    """
    learnt = {one for role in row.roles for one in row.expect(role).get("changed", ())}
    return not (row.pauses or row.endpoint or row.model or row.at_accept or row.unseen or learnt - _SILENT_CHANGES)


MIXABLE: dict[str, list[Row]] = {role: [one for one in ROWS if role in one.roles and mixable(one)] for role in ROLES}


@dataclass
class Mix:
    """A play: `share` of the requests meet a row. Both, and which, are decided by `seed`, role and messages alone."""

    seed: int
    share: float
    #: row -> requests that met it
    met: Counter[str] = field(default_factory=Counter)
    _places: Counter[str] = field(default_factory=Counter)

    def __call__(self, asked: Asked) -> Reply:
        said = json.dumps([self.seed, asked.role, asked.body["messages"]], sort_keys=True).encode()
        name = sha256(said).hexdigest()
        if int(name[:8], 16) >= self.share * 2**32:
            return None
        rows = MIXABLE[asked.role]
        row = rows[int(name[8:16], 16) % len(rows)]
        place, self._places[name] = self._places[name], self._places[name] + 1
        self.met[row.name] += 1
        return row.play(replace(asked, place=place))


@contextmanager
def serving(*plays: Play) -> Iterator[Sequence[HostileServer]]:
    """A server for each of `plays`, all in one thread of this process."""
    ready, servers = threading.Event(), list[HostileServer]()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            for one in plays:
                group.create_task(held(one))

    async def held(play: Play) -> None:
        async with hostile_server(play) as server:
            servers.append(server)
            if len(servers) == len(plays):
                ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(120)
        yield sorted(servers, key=lambda one: plays.index(one.play))
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
