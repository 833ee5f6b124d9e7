"""A run's figures where the archived part of its log is away: from the checkpoint, and from what the server kept."""

from collections.abc import Mapping

from events.errors import BadInput, Mismatch, UnreadableEvent
from events.ids import RUN_STREAM
from infra.archive_storage import ArchiveAway
from infra.redis_log import RedisLogStore
from runtime.ports import EventLog, LogStore
from runtime.settings import Price
from workers.views.summary import Summarizer, summarized

#: what a line about such figures says, before the reason
NOT_AT_HAND = "the archived part of the log is not at hand, and only what is known without it is shown"
#: what an archive that is not at hand is read with: away, damaged, or of a kind that this installation does not reach
_AWAY = (ArchiveAway, Mismatch, BadInput)


async def summarized_at_hand(prices: Mapping[str, Price], store: LogStore, log: EventLog) -> Summarizer:
    """As `workers.views.summary.summarized`; where the log's archive is not at hand, what is known without it.

    Raises:
        Unreachable: the server does not answer.
        UnreadableEvent, Mismatch: a log that is damaged on the server.
    """
    try:
        return await summarized(prices, log)
    except _AWAY as error:
        if isinstance(error, UnreadableEvent) or not await _is_trimmed(store, log):
            raise
        past = str(error)
    [seen] = [one for one in await store.overview() if one.run == log.run]
    found = Summarizer(prices=prices)
    found.glance(seen, past)
    return await _from_checkpoint(prices, log, found) or found


async def _is_trimmed(store: LogStore, log: EventLog) -> bool:
    return isinstance(store, RedisLogStore) and (await store.archived(log.run).look()).trimmed > 0


async def _from_checkpoint(prices: Mapping[str, Price], log: EventLog, glanced: Summarizer) -> Summarizer | None:
    """The figures of the newest checkpoint and of what follows it; None where one of them is not at hand."""
    checkpoint = await log.checkpoint()
    if checkpoint is None:
        return None
    found = Summarizer(prices=prices)
    found.begin(checkpoint, await log.read_stream(RUN_STREAM), glanced.past)
    try:
        async for page in log.pages(checkpoint.state.position):
            for recorded in page:
                found.feed(recorded)
    except _AWAY:
        return None
    # A checkpoint counts valid scores only.
    found.not_valid = glanced.not_valid
    return found
