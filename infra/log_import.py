"""An export into a store: checked line by line before anything is written, then whole or not at all."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from events.codec import EVENT_CAP, canonical
from events.errors import ChimeError, EventTooLarge, Mismatch, UnreadableEvent
from events.ids import Position, RunId
from events.log import Recorded
from events.reading import Reading
from infra.calls import CallStore
from infra.exported_bodies import ExportedBlobs, ExportedCalls
from infra.segments import SegmentLog
from runtime.ports import Blobs, EventLog, LogStore

_START = Position(0)
_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
#: how long a failed import may take to remove what it wrote, seconds
_UNDO_S = 30.0
_JSON = msgspec.json.Decoder()


class ImportReport(Struct, frozen=True, kw_only=True):
    """What an import checked and wrote."""

    run: RunId
    events: int
    #: False = the very same events were there already
    written: bool
    #: None = the export has none, or there is no store for them
    blobs: int | None
    calls: int | None


async def import_log(
    path: Path,
    store: LogStore,
    blobs: Blobs | None = None,
    calls: CallStore | None = None,
    run: RunId | None = None,
) -> ImportReport:
    """Put an export into `store` with every position, time, cause and attempt as recorded.

    Everything is read and checked before the first write; the log appears whole, after its bodies, and set aside: no
    coordinator goes on with it until it is resumed. The same export again changes nothing; one that is refused leaves
    nothing.

    Args:
        path: the export.
        store: where to.
        blobs: takes the export's bodies, where it has some.
        calls: takes the export's recorded calls, where it has some.
        run: another name for the run; ids and causes follow it.

    Raises:
        UnreadableExport, CorruptSegment, UnreadableEvent, VersionGap: a line is damaged, out of place, of an unknown
            kind or a newer schema, or not in canonical bytes; names it.
        MissingBlob: a body is damaged.
        FoldMismatch: an event says something else than its header or earlier events do.
        Mismatch: the store has another log under that name.
        Unreachable: the server does not answer.
    """
    log = SegmentLog(path, exact=True)
    target = run or log.run
    reading = Reading()
    async for page in log.pages(_START):
        await anyio.to_thread.run_sync(_check_page, page, reading)
    bodies, records = ExportedBlobs(path), ExportedCalls(path)
    names = await bodies.hashes(log.run) if blobs is not None and bodies.exist else None
    for name in names or ():
        await bodies.get(log.run, name)
    recorded = await records.all(log.run) if calls is not None and records.exist else None
    already = await _same(log, store.open(target))
    async with AsyncExitStack() as stack:
        if blobs is not None and names:
            await stack.enter_async_context(_undone(store, target, blobs.discard, await blobs.hashes(target), names))
            for name in names:
                await blobs.put(target, await bodies.get(log.run, name))
        if calls is not None and recorded:
            await stack.enter_async_context(_undone(store, target, calls.discard, await calls.all(target), recorded))
            for field, record in recorded.items():
                await calls.put(target, field, record)
        if not already:
            await store.restore(target, _as(log.pages(_START), target))
    return ImportReport(
        run=target,
        events=reading.events,
        written=not already,
        blobs=None if names is None else len(names),
        calls=None if recorded is None else len(recorded),
    )


@asynccontextmanager
async def _undone(
    store: LogStore,
    run: RunId,
    discard: Callable[[RunId, Collection[str]], Awaitable[None]],
    there: Iterable[str],
    names: Iterable[str],
) -> AsyncIterator[None]:
    """What the body writes of `names` goes again where it fails; what was `there` before stays."""
    new = set(names).difference(there)
    try:
        yield
    except BaseException:
        # Not where the run has a log: somebody else's import of it came first, and needs these bodies.
        with suppress(ChimeError), anyio.move_on_after(_UNDO_S, shield=True):
            if await store.open(run).head() == 0:
                await discard(run, new)
        raise


def _check_page(page: Sequence[Recorded], reading: Reading) -> None:
    """Each event is readable, fits those before it, and is in its one canonical form."""
    for one in page:
        if len(one.data) > EVENT_CAP:
            raise EventTooLarge(one.kind, len(one.data), EVENT_CAP)
        reading.feed(one)
        where = f"{one.id} at position {one.position}"
        try:
            exact = canonical(_JSON.decode(one.data)) == one.data
        except ValueError as error:  # in a field that no kind knows: decoding passes over it
            raise UnreadableEvent(where, str(error)) from error
        if not exact:
            raise UnreadableEvent(where, "its data is not in canonical form (sorted keys, no spaces, no escapes)")
        if not _AT.fullmatch(one.at) or one.attempt < 1:
            raise UnreadableEvent(where, f"at {one.at!r}, attempt {one.attempt}")


async def _same(log: SegmentLog, there: EventLog) -> bool:
    """Whether the store has these very events already, and perhaps more since; False = it has none.

    Raises:
        Mismatch: it has others, or only some of them.
    """
    if await there.head() == 0:
        return False
    advice = "delete it first, or import under another name"
    async for page in log.pages(_START):
        found = await there.read(Position(page[0].position - 1), len(page))
        for one, other in zip(page, found, strict=False):
            if _renamed(one, there.run) != other:
                raise Mismatch(f"run {there.run} is there with another log: position {one.position} differs; {advice}")
        if len(found) < len(page):
            last = page[0].position - 1 + len(found)
            raise Mismatch(f"run {there.run} is there with the first {last} of these events only; {advice}")
    return True


async def _as(pages: AsyncIterator[Sequence[Recorded]], run: RunId) -> AsyncIterator[Sequence[Recorded]]:
    async for page in pages:
        yield [_renamed(one, run) for one in page]


def _renamed(one: Recorded, run: RunId) -> Recorded:
    """`one` as an event of `run`; a cause in the same run follows."""
    if one.run == run:
        return one
    cause = one.cause
    if cause is not None and cause.startswith(f"{one.run}/"):
        cause = f"{run}/{cause.removeprefix(f'{one.run}/')}"
    return msgspec.structs.replace(one, run=run, cause=cause)
