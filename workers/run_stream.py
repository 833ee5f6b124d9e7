"""Writing to a run's own stream, where several programs may write: after whatever is there."""

from events.codec import draft
from events.ids import RUN_STREAM, Version
from events.kinds import AnyEvent, RunFinished
from events.log import Recorded
from runtime.ports import EventLog, Origin, Taken


async def tell(log: EventLog, event: AnyEvent, *, cause: str | None = None, length: int | None = None) -> int:
    """Append `event` to the run's stream; the stream's length afterwards.

    Args:
        log: of the run.
        event: what to say. A second `run_finished` is not written.
        cause: id of the event that led to it.
        length: of the stream, where the caller knows it; a wrong one costs a round trip.
    """
    if length is None:
        length = len(await log.read_stream(RUN_STREAM))
    while True:
        result = await log.append(RUN_STREAM, Version(length + 1), [draft(event)], Origin(cause=cause))
        if not isinstance(result, Taken):
            return length + 1
        length = result.stored.version
        if _settled(event, result.stored):
            return length


def _settled(event: AnyEvent, stored: Recorded) -> bool:
    """Whether what stands there already says it: nothing comes after the end of a run."""
    return isinstance(event, RunFinished) and stored.kind == "run_finished"
