"""A log written anew as it was recorded elsewhere: beside the run's own keys, then under their names in one step."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from redis.asyncio import Redis

from events.codec import content_sha256
from events.errors import Mismatch, VersionGap
from events.ids import RunId
from events.log import Recorded
from infra.redis_client import Script, our_errors

#: how long a log that is being restored outlives whoever restores it, seconds
_RESTORED_S = 600
#: KEYS restored log and index, the run's own, the list of runs, the runs set aside; ARGV run: the names change in one
#: step, unless the run has a log. Where no key is left beside it, an earlier try whose reply was lost has changed them.
_PUBLISH = Script("""
local beside, own = redis.call('EXISTS', KEYS[1], KEYS[2]), redis.call('EXISTS', KEYS[3], KEYS[4])
if beside == 0 and own == 2 then return 1 end
if own > 0 then return 0 end
-- A script that fails undoes nothing: a key of another type has to be found before the first write.
redis.call('ZCARD', KEYS[5])
redis.call('SADD', KEYS[6], ARGV[1])
redis.call('ZADD', KEYS[5], 0, ARGV[1])
for i = 1, 2 do
  redis.call('PERSIST', KEYS[i])
  redis.call('RENAME', KEYS[i], KEYS[i + 2])
end
return 1
""")


class Restored:
    """A log that is being written beside the run's own keys, under names that nobody else has.

    Args:
        redis: the client.
        run: whose.
        own: keys of its log and index.
        lists: keys of the list of runs, and of those set aside.
        append: the script that writes logs.
        where: the server, for errors.
    """

    def __init__(
        self, redis: Redis, run: RunId, own: Sequence[str], lists: Sequence[str], append: Script, where: str
    ) -> None:
        self._redis, self._run, self._append = redis, run, append
        self._own, self._lists, self._where = list(own), list(lists), f"{where}, key {own[0]}"
        mine = uuid4().hex
        self._beside = [f"{key}:restored:{mine}" for key in self._own]

    async def clear(self) -> None:
        with our_errors(self._where):
            await self._redis.unlink(*self._beside)

    async def put(self, batch: Sequence[Recorded]) -> None:
        """Neighbours of one stream, each in its recorded place."""
        arguments: list[Any] = [batch[0].version, len(batch), ""]
        for one in batch:
            sha256 = content_sha256(one.kind, one.data)
            arguments += [one.kind, one.schema, one.at, one.cause or "", one.attempt, sha256, one.data]
        with our_errors(self._where):
            reply = await self._append.run_with_others(self._redis, self._beside, batch[0].stream, arguments)
        match reply:
            case int():
                if reply != batch[0].position:
                    raise VersionGap(f"restore of {batch[0].id}", reply, batch[0].position)
            case [b"ok", _, *positions]:
                for one, position in zip(batch, positions, strict=True):
                    if int(position) != one.position:
                        raise VersionGap(f"restore of {one.id}", int(position), one.position)
            case [b"gap", following]:
                raise VersionGap(f"restore of {batch[0].id}", int(following), batch[0].version)
            case _:
                raise Mismatch(f"restore of {batch[0].id}: another event is there")

    async def keep(self) -> None:
        """Let the server forget it, should this process end here."""
        with our_errors(self._where):
            for key in self._beside:
                await self._redis.expire(key, _RESTORED_S)

    async def publish(self) -> None:
        """Make it the run's own log, in one step."""
        with our_errors(self._where):
            published = await _PUBLISH.run(self._redis, [*self._beside, *self._own, *self._lists], [self._run])
        if not published:
            raise Mismatch(f"run {self._run} is there already; delete it first, or restore under another name")


def stretches(page: Sequence[Recorded]) -> list[list[Recorded]]:
    """Neighbours of one stream together: what one call of the append script takes."""
    found: list[list[Recorded]] = []
    for one in page:
        if found and found[-1][-1].stream == one.stream and found[-1][-1].version + 1 == one.version:
            found[-1].append(one)
        else:
            found.append([one])
    return found
