"""Many runs at a glance: one script a run, many runs a round trip, and no large event on the way."""

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from events.ids import Position, RunId
from events.log import Recorded
from infra.archive_index import ARCHIVED_ROWS
from infra.redis_client import without_script
from runtime.ports import LogOverview

_OVERVIEW = ARCHIVED_ROWS + (files("infra") / "overview.lua").read_text()
#: runs in one round trip: their answers are in memory together
_RUNS = 100


async def overviews(
    redis: Redis, keys: Mapping[RunId, list[str]], recorded: Callable[[RunId, Any], Recorded]
) -> list[LogOverview]:
    """As `runtime.ports.LogStore.overview`.

    Args:
        redis: the client.
        keys: run -> its log, its index, and where some archived events stay.
        recorded: makes an event of an entry as a script answers it.
    """
    script = redis.register_script(_OVERVIEW)
    runs = list(keys)
    found: list[LogOverview] = []
    for start in range(0, len(runs), _RUNS):
        some = runs[start : start + _RUNS]
        pipe = redis.pipeline(transaction=False)
        for run in some:
            await script(keys=keys[run], client=pipe)  # puts it into the pipeline
        replies = await pipe.execute(raise_on_error=False)
        found += [_overview(run, reply, recorded) for run, reply in zip(some, replies, strict=True)]
    return found


def _overview(run: RunId, reply: Any, recorded: Callable[[RunId, Any], Recorded]) -> LogOverview:
    if isinstance(reply, RedisError):
        said = without_script(str(reply))
        wrong_type = "a key of ours holds another type; is the prefix used by something else?"
        return LogOverview(run=run, damage=f"its keys cannot be read: {wrong_type if 'WRONGTYPE' in said else said}")
    head, (first_kind, first_at), (last, last_at), own, folded, folds, episodes, *scored = reply
    scores: dict[int, bool | None] = {}
    for outcome, numbers in zip((True, False, None), scored, strict=True):
        scores |= dict.fromkeys(map(int, numbers.split()), outcome)
    end, damage = int(last.split(b"-", 1)[0]), ""
    if end != int(head):
        damage = f"its index ends at position {int(head)}, its log at {end}"
    return LogOverview(
        run=run,
        head=Position(int(head)),
        first_kind=first_kind.decode(),
        first_at=first_at.decode(),
        last_at=last_at.decode(),
        told=[recorded(run, entry) for entry in own],
        folded=recorded(run, folded) if folded else None,
        folds=folds,
        episodes=episodes,
        scores=scores,
        damage=damage,
    )
