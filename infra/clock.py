"""The machine's clock as a port."""

import time
from datetime import UTC, datetime
from functools import lru_cache

import anyio


class SystemClock:
    """`runtime.ports.Clock` on the machine's time."""

    def utc(self) -> str:
        """Now, as `YYYY-MM-DDTHH:MM:SS.ffffffZ`."""
        second, rest_ns = divmod(time.time_ns(), 1_000_000_000)
        return f"{_until_second(second)}.{rest_ns // 1000:06d}Z"

    def monotonic(self) -> float:
        """Seconds from some fixed moment."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await anyio.sleep(seconds)


@lru_cache(maxsize=2)
def _until_second(second: int) -> str:
    """Many events are stamped in the same one."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
