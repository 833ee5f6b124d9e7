"""What went over the wire for a call, from the model client to whoever keeps it."""

from typing import Any

from msgspec import Struct

from runtime.ports import CallKey

#: how much of what came back is kept, characters
LONGEST = 256 * 1024
#: calls that are under way in a process, far more than there can be: what nobody takes is forgotten beyond
_MOST = 10_000


class Transcript(Struct, frozen=True, kw_only=True):
    """One call on the wire, without keys; of several tries the last one."""

    #: the body of the request: what it says beside its messages depends on what the endpoint takes
    sent: dict[str, Any]
    #: the body of the answer, or of the error; "" where nothing came
    received: str = ""
    #: until its first byte, milliseconds; None where nothing came
    first_byte_ms: int | None = None
    #: what each try before came to, a line each
    before: list[str] = []


class Transcripts:
    """Transcripts of calls that have ended and are not recorded yet, of one process."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Transcript] = {}

    def put(self, key: CallKey, transcript: Transcript) -> None:
        """The call `key` has ended, with an answer or without."""
        if len(self._held) >= _MOST:
            self._held.pop(next(iter(self._held)))
        self._held[key.run, key.id] = transcript

    def has(self, key: CallKey) -> bool:
        """Whether something went over the wire for the call `key`, and nobody has taken it."""
        return (key.run, key.id) in self._held

    def take(self, key: CallKey) -> Transcript | None:
        """What went over the wire for the call `key`, once; None for one that asked nobody."""
        return self._held.pop((key.run, key.id), None)
