"""The machine's clock as a port."""

import time
from datetime import UTC, datetime

import anyio


class SystemClock:
    """`runtime.ports.Clock` on the machine's time."""

    def utc(self) -> str:
        """Now, as `YYYY-MM-DDTHH:MM:SS.ffffffZ`."""
        return datetime.now(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"

    def monotonic(self) -> float:
        """Seconds from some fixed moment."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await anyio.sleep(seconds)
