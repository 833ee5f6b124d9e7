"""Writing to a run's own stream, where several programs may write: after whatever is there."""

from events.codec import draft
from events.ids import RUN_STREAM, Version
from events.kinds import AnyEvent
from runtime.errors import RunEnded
from runtime.ports import EventLog, Origin, Taken


async def tell(log: EventLog, event: AnyEvent, *, cause: str | None = None, length: int | None = None) -> int:
    """Append `event` to the run's stream; the stream's length afterwards.

    Args:
        log: of the run.
        event: what to say. Nothing is written after the end of a run.
        cause: id of the event that led to it.
        length: of the stream, where the caller knows it; a wrong one costs a round trip.
    """
    if length is None:
        stream = await log.read_stream(RUN_STREAM)
        length = len(stream)
        if stream and stream[-1].kind == "run_finished":
            return length
    while True:
        try:
            result = await log.append(RUN_STREAM, Version(length + 1), [draft(event)], Origin(cause=cause))
        except RunEnded:
            return length
        if not isinstance(result, Taken):
            return length + 1
        length = result.stored.version
        if result.stored.kind == "run_finished":
            return length
