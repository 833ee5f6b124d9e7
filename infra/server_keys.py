"""Every key that Chime has on a server, by name: what begins with the prefix and is none of them is a stray."""

import re

from redis.asyncio import Redis

from infra.redis_client import our_errors

#: what follows the prefix; a log that is being restored and the pace of an endpoint have more behind it
_OURS = (
    r"(?:asked|bank-deployment|drain|operations|runs|set-aside|rq:.*|workers:.*"
    r"|\{[a-z0-9-]+\}:(?:asked|bank|blobs|calls|embeddings|failures|kept|lease|spending|spent|term"
    r"|(?:log|index)(?::restored:.*)?|pace(?::.*)?))"
)
#: the list of runs, which every installation with a run has
_RUNS = ":runs"


async def strays(redis: Redis, prefix: str, where: str) -> list[str]:
    """Keys under `prefix` that nothing of Chime's has, by name. Reads every key of the server.

    Those of an installation whose prefix begins with ours and a colon are its own.

    Raises:
        Unreachable: the server does not answer.
    """
    ours = re.compile(f"{re.escape(prefix)}:{_OURS}".encode(), re.DOTALL)
    with our_errors(where):
        # Nothing that a prefix may hold has a meaning in a pattern.
        there = [key async for key in redis.scan_iter(match=f"{prefix}:*", count=1000)]
    names = {key.decode(errors="backslashreplace") for key in there if ours.fullmatch(key) is None}
    others = tuple(name.removesuffix(_RUNS) + ":" for name in names if name.endswith(_RUNS))
    return sorted(name for name in names if not name.startswith(others))
