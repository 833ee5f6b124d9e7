"""A server that many processes ask at once: a share of the requests, chosen by what they say, meets a row."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256

from every_row import ROWS
from hostile_rows import ROLES, Row
from hostile_server import HostileServer, hostile_server
from hostile_wire import Asked, Play, Reply

#: of the requests that meet a row
SHARE = 0.3
#: what may be asked for in another way without a word of the messages being changed
_SILENT_CHANGES = frozenset({"max_tokens", "temperature"})


def mixable(row: Row, settings: frozenset[str] = frozenset()) -> bool:
    """Whether it may be met in the middle of a run whose other calls must not notice.

    Not: what pauses the run; what needs other `settings` of an endpoint than the run has; and what teaches the client
    to write other messages, as from then on other requests are made.
    """
    learnt = {one for role in row.roles for one in row.expect(role).get("changed", ())} - _SILENT_CHANGES
    alone = row.pauses or row.model or row.at_accept or row.unseen
    return not (alone or learnt or set(row.endpoint) - settings)


MIXABLE: dict[str, list[Row]] = {role: [one for one in ROWS if role in one.roles and mixable(one)] for role in ROLES}
#: what is met in a run that streams, and waits only so long: streams of all kinds, and what hangs
STREAMED: dict[str, list[Row]] = {
    role: [
        one
        for one in ROWS
        if one.endpoint and role in one.roles and mixable(one, frozenset({"stream", "timeout_s", "retries"}))
    ]
    for role in ROLES
}


@dataclass
class Mix:
    """A play: `share` of the requests meet a row, and `merging` of those for the text of a merge.

    Both, and which row it is, are decided by `seed`, role and messages alone. What hangs does so once.
    """

    seed: int
    share: float = SHARE
    #: by role
    rows: Mapping[str, Sequence[Row]] = field(default_factory=lambda: MIXABLE)
    merging: float = SHARE
    #: row -> requests that met it
    met: Counter[str] = field(default_factory=Counter)
    #: requests for the text of a merge that met a row
    merges_met: int = 0
    _places: Counter[str] = field(default_factory=Counter)

    def __call__(self, asked: Asked) -> Reply:
        said = json.dumps([self.seed, asked.role, asked.body["messages"]], sort_keys=True).encode()
        name = sha256(said).hexdigest()
        is_merge = "<existing>" in asked.text
        if int(name[:8], 16) >= (self.merging if is_merge else self.share) * 2**32:
            return None
        rows = self.rows[asked.role]
        row = rows[int(name[8:16], 16) % len(rows)]
        place, self._places[name] = self._places[name], self._places[name] + 1
        self.met[row.name] += 1
        self.merges_met += is_merge
        if place and "timeout_s" in row.endpoint:
            return None  # a run waits for it for real, longer than any healthy answer takes
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
