"""A run's bank on Weaviate, one generation: one row per item, whose vector, id and birth are never rewritten.

So a recall at any version that somebody may read goes by what was there when the row was written. The server finds the
rows that are near; which of them are nearest is decided here, from the integers that come back.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio
import numpy as np

from events.errors import Mismatch, NotAUnitVector, VersionGap
from events.ids import STAGES, BankVersion, MemoryId, Stage, memory_order
from events.vectors import DOT_ONE, ONE, Vector
from infra.banks import weaviate_wire as wire
from infra.banks.checks import check
from infra.banks.errors import AnswerTooLong, BankAway, DoubtfulAnswer, UncleanWrite
from infra.banks.generations import Generation
from infra.banks.prunes import Prunes, stage_of
from infra.banks.weaviate_edge import Edge
from infra.banks.weaviate_schema import remove_tenants
from runtime.bank_store import BankChange, Hit, Row

T = TypeVar("T")

#: rows of one batch, characters of its texts (one row may have more), and batches at once: the server takes long texts
#: apart into words, and takes no message over 100 MB
_BATCH, _BATCH_CHARACTERS, _AT_ONCE = 500, 4_000_000, 2
#: rows of one page where all are read
_PAGE = 100
#: ids of one deletion, and rows that are looked for at once
_IDS, _CHECKED = 2_000, 5_000
#: rows of a large bank that are looked for once the connection was lost
_NEWEST = 1_000
#: rows asked for beyond the limit, so that a tie at the cut shows; and how many more of those that were pruned lately
_SPARE, _PRUNED = 4, 16
#: versions that count as lately
_LATELY = 64


class WeaviateBank:
    """`runtime.bank_store.BankStore` on one tenant. One writer; its reader's `prunes` come from the log."""

    def __init__(self, edge: Edge, generation: Generation, prunes: Prunes, dimension: int) -> None:
        self._edge, self._generation, self._prunes, self._dimension = edge, generation, prunes, dimension
        self._name = generation.name
        self._published: BankVersion | None = None
        #: whether a search has found rows right after they were put: not where a server indexes them later
        self._found = False
        #: the edge's `losses` when all rows were last found; None before
        self._seen_at: int | None = None
        #: of each stage the row that was put last
        self._last: dict[Stage, Row] = {}
        #: why nothing more is written here
        self._lost = ""
        #: rows whose texts or values people see too old
        self._stale: dict[MemoryId, Row] = {}
        #: pruned items whose rows are there, with the version that lacks them
        self._gone: dict[MemoryId, BankVersion] = {}

    async def apply(self, change: BankChange) -> None:
        """As `BankStore.apply`. Raises BankAway where the server was away before; nothing was sent then."""
        newest = await self.newest() if self._published is None else self._published
        if newest is not None and change.version <= newest:
            return
        if change.since is not None and (newest is None or change.since > newest):
            raise VersionGap(f"versions of bank {self._name}", newest or 0, change.since)
        check(change, self._dimension)
        before = self._edge.losses if self._seen_at is None or change.since is None else self._seen_at
        await self._put(change.born)
        if change.since is None:
            await self._check_whole(change.born, change.version)
        elif change.born and not self._found:
            await self._check_found(change.born, change.version)
        self._found = self._found or bool(change.born)
        self._prunes.add(change.pruned)
        self._gone |= change.pruned
        for row in change.born:
            self._stale.pop(row.id, None)
        self._stale.update((row.id, row) for row in change.changed)
        if self._edge.losses != before:
            self._lost = "the connection was lost before the version was published"
            raise UncleanWrite(self._name, self._lost)
        self._seen_at = before
        await self._generation.publish(change.version, change.basis)
        self._published = change.version

    @property
    def unseen(self) -> bool:
        """As `BankStore.unseen`."""
        return self._seen_at != self._edge.losses

    async def recheck(self, held: Mapping[Stage, Sequence[MemoryId]]) -> None:
        """As `BankStore.recheck`."""
        if not self.unseen:
            return
        losses = self._edge.losses
        for stage, wanted in held.items():
            count = await self._count(stage)
            if count < len(wanted):
                raise DoubtfulAnswer(self._name, f"there are {count} {stage} rows, not {len(wanted)}")
            # One writer wrote them in this order: where any is gone, the last is.
            looked_for = wanted if count < wire.MOST else wanted[-_NEWEST:]
            if lost := set(looked_for) - await self._among(stage, looked_for, count):
                first = min(lost, key=memory_order)
                raise DoubtfulAnswer(self._name, f"{len(lost)} {stage} rows are not there any more, {first} first")
        for stage, row in self._last.items():
            # What was pruned and then cleared is gone, and one prune is as late as the other.
            if row.id not in held.get(stage, ()):
                continue
            reply = await self._edge.search(self._name, wire.row_of(stage, self._name, row.id), patient=True)
            if wire.rows(stage, self._name, reply)[0] != [row]:
                raise DoubtfulAnswer(self._name, f"the row of {row.id} is not the one that was written last")
        self._seen_at = losses

    async def _among(self, stage: Stage, wanted: Sequence[MemoryId], count: int) -> set[MemoryId]:
        """The items that a search finds: of all `count`, or where these are too many of those `wanted`."""
        if not wanted:
            return set()
        somewhere = np.eye(1, self._dimension)[0] * ONE
        whole = count < wire.MOST
        limit, filters = (count + 1, None) if whole else (len(wanted) + 1, wire.among(wanted))
        request = wire.nearest_ids(stage, self._name, somewhere, limit, filters)
        return set(wire.ids(await self._edge.search(self._name, request, patient=True)))

    async def search(self, stage: Stage, query: Vector, limit: int, at: BankVersion) -> list[Hit]:
        """As `BankStore.search`. Raises BankAway where the server does not answer in time."""
        exact = query.exact()
        if query.dim != self._dimension:
            raise NotAUnitVector(f"a query of {query.dim} dimensions for a bank of {self._dimension}")
        await self._reach(at)
        asked = limit + _SPARE + min(self._prunes.count(stage, BankVersion(at - _LATELY), at), _PRUNED)
        while limit > 0:
            asked = min(asked, wire.MOST)
            request = wire.near(stage, self._name, exact, asked, wire.born_by(at))
            near = wire.found(self._name, exact, await self._edge.search(self._name, request))
            live = self._live(near, at)
            if len(near.ids) < asked or self._cut_is_clear(near, live, limit):
                return [near.hit(place) for place in live[:limit]]
            if asked == wire.MOST:
                # Nothing is wrong with the bank, and another generation would say the same.
                raise Mismatch(f"more than {asked} rows of {self._name} are as near as the last of {limit}")
            asked *= 4
        return []

    def _live(self, near: wire.Near, at: BankVersion) -> list[int]:
        """Places of the rows that are live at `at`, by (-dot, id)."""
        if len(set(near.ids)) < len(near.ids):
            raise DoubtfulAnswer(self._name, "an item in two rows")
        dots = near.dots.tolist()
        places = [place for place, one in enumerate(near.ids) if not self._prunes.gone(one, at)]
        return sorted(places, key=lambda place: (-dots[place], memory_order(near.ids[place])))

    def _cut_is_clear(self, near: wire.Near, live: Sequence[int], limit: int) -> bool:
        """Whether no row that was not returned can be among the first `limit`.

        The server orders by float32 sums. In whatever order it adds, a sum of d products of unit vectors is off by d
        units of 2^-24 at most, and normalising both sides first by as much again: a row that it left out is at most
        twice that above any row that it returned.
        """
        slack = 2 * (2 * self._dimension + 64) * (DOT_ONE >> 24)
        return len(live) >= limit and float(near.dots.min()) + slack < float(near.dots[live[limit - 1]])

    async def items(self, at: BankVersion) -> list[Row]:
        """As `BankStore.items`."""
        await self._reach(at)
        found: list[Row] = []
        for stage in STAGES:
            found += [row for row in await self._all(stage) if row.born <= at and not self._prunes.gone(row.id, at)]
        return sorted(found, key=lambda row: memory_order(row.id))

    async def _all(self, stage: Stage) -> list[Row]:
        found, after, size = list[Row](), "", _PAGE
        while True:
            try:
                reply = await self._edge.search(self._name, wire.page(stage, self._name, after, size), patient=True)
            except AnswerTooLong:
                if size == 1:
                    raise
                size = max(size // 4, 1)
                continue
            rows, after = wire.rows(stage, self._name, reply)
            found += rows
            if len(rows) < size:
                return found

    async def newest(self) -> BankVersion | None:
        """As `BankStore.newest`."""
        return await self._generation.newest()

    async def refresh(self) -> int:
        """As `BankStore.refresh`."""
        stale = {memory: row for memory, row in self._stale.items() if memory not in self._gone}
        await self._put(list(stale.values()))
        self._stale.clear()
        return len(stale)

    async def clear(self, oldest: BankVersion) -> int:
        """As `BankStore.clear`."""
        gone = [memory for memory, version in self._gone.items() if version <= oldest]
        deleted = 0
        for stage in STAGES:
            for ids in _chunks([one for one in gone if stage_of(one) == stage], _IDS):
                request = wire.deletion(stage, self._name, ids)
                deleted += await self._written(partial(self._edge.delete, self._name, request))
        for memory in gone:
            del self._gone[memory]
        return deleted

    async def drop(self) -> None:
        """As `BankStore.drop`."""
        self._lost = "it was dropped"
        async with self._edge.rest():
            await remove_tenants(self._edge.client, [self._name])

    async def missing(self, rows: Sequence[Row], at: BankVersion) -> list[str]:
        """As `BankStore.missing`.

        A vector or an entry of an index that was lost shortens no answer but one that asks for everything.
        """
        wrong = []
        for stage in STAGES:
            wanted = [row for row in rows if row.bank == stage]
            count = await self._count(stage)
            if count < len(wanted):
                wrong.append(f"the {stage} bank holds {count} rows, not {len(wanted)}")
            whole = count < wire.MOST
            for part in _chunks(wanted, wire.MOST if whole else _CHECKED):
                # What is found by birth has a vector too; of other rows only a search of all tells.
                for born in (None, at) if whole and count != len(wanted) else (at,):
                    filters = wire.filters(born, None if whole else [row.id for row in part])
                    found = await self._ids(stage, part[0], count + 1 if whole else len(part) + 1, filters)
                    how = f"a search{'' if born is None else ' by birth'}"
                    if lost := {row.id for row in part} - set(found):
                        wrong.append(
                            f"{how} does not find {len(lost)} {stage} rows, {min(lost, key=memory_order)} first"
                        )
                    elif whole and born is None and len(found) != count:
                        wrong.append(f"{how} finds {len(found)} of {count} {stage} rows")
        return wrong

    async def _count(self, stage: Stage) -> int:
        return await self._edge.count(self._name, wire.count(stage, self._name))

    async def _ids(self, stage: Stage, near: Row, limit: int, filters: Any) -> list[MemoryId]:
        query = np.frombuffer(near.vector, dtype="<i4").astype(np.float64)
        request = wire.nearest_ids(stage, self._name, query, limit, filters)
        return wire.ids(await self._edge.search(self._name, request, patient=True))

    async def _check_whole(self, rows: Sequence[Row], at: BankVersion) -> None:
        """A generation that was just built holds `rows`, no other, and finds them.

        Raises:
            UncleanWrite: it does not.
        """
        await self._check_found(rows, at)
        if (held := sum([await self._count(stage) for stage in STAGES])) != len(rows):
            self._lost = f"it holds {held} rows, not {len(rows)}"
            raise UncleanWrite(self._name, self._lost)

    async def _check_found(self, rows: Sequence[Row], at: BankVersion) -> None:
        """Raises: UncleanWrite: there are some of `rows`, just put, that no search finds."""
        try:
            wrong = await self.missing(rows, at)
        except DoubtfulAnswer as error:
            wrong = [error.reason]
        if wrong:
            self._lost = wrong[0]
            raise UncleanWrite(self._name, wrong[0])

    async def _put(self, rows: Sequence[Row]) -> None:
        for stage in STAGES:
            if own := [row for row in rows if row.bank == stage]:
                await self._written(partial(self._put_batches, own))
                # The server acknowledges a batch before the last of its vectors is in its log: the next one takes it
                # along. Without it a kill loses vectors for good.
                await self._written(partial(self._edge.put, self._name, wire.batch(self._name, own[:1])))
                self._last[stage] = own[0]

    async def _put_batches(self, rows: Sequence[Row]) -> None:
        """Every row, two batches at once: one is packed while the server takes the other. All are answered."""
        batches = _batches(rows)
        if len(batches) == 1:
            await self._edge.put(self._name, wire.batch(self._name, rows))
            return
        room, failed = anyio.Semaphore(_AT_ONCE), list[BankAway | UncleanWrite]()

        async def put(request: Any) -> None:
            try:
                await self._edge.put(self._name, request)
            except (BankAway, UncleanWrite) as error:
                failed.append(error)
            finally:
                room.release()

        async with anyio.create_task_group() as tasks:
            for part in batches:
                await room.acquire()
                if failed:
                    break
                tasks.start_soon(put, wire.batch(self._name, part))
        if failed:
            raise min(failed, key=lambda error: isinstance(error, BankAway))

    async def _written(self, write: Callable[[], Awaitable[T]]) -> T:
        """What `write` answers; after one that did not end cleanly nothing is written here any more."""
        if self._lost:
            raise UncleanWrite(self._name, self._lost)
        self._lost = "whoever wrote last did not wait for the answer"
        try:
            answer = await write()
        except BankAway:
            self._lost = ""  # nothing was sent
            raise
        except UncleanWrite as error:
            self._lost = error.reason
            raise
        self._lost = ""
        return answer

    async def _reach(self, at: BankVersion) -> None:
        if self._published is None or at > self._published:
            self._published = await self.newest()
        if self._published is None or at > self._published:
            raise Mismatch(f"bank version {at} of {self._name} is not published; the newest is {self._published}")


def _batches(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """`rows` in parts that the server takes at once."""
    found, start, characters = list[Sequence[Row]](), 0, 0
    for place, row in enumerate(rows):
        length = len(row.scenario) + len(row.experience)
        if place - start == _BATCH or (place > start and characters + length > _BATCH_CHARACTERS):
            found.append(rows[start:place])
            start, characters = place, 0
        characters += length
    return [*found, rows[start:]]


def _chunks(rows: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))
