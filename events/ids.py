"""Names of things in a log, and their order.

A memory id is `<stage>-<t>` or `<stage>-<t>-<k>`, with `<origin run>.` before it once it was seeded into another run.
"""

import re
from functools import lru_cache
from typing import Literal, NewType, cast

from events.errors import BadInput

RunId = NewType("RunId", str)
#: `run`, `projector` or `episode-<t>`
StreamId = NewType("StreamId", str)
MemoryId = NewType("MemoryId", str)
#: 1, 2, 3 ... without gaps inside a stream
Version = NewType("Version", int)
#: 1, 2, 3 ... without gaps over the whole run; 0 = before the first event
Position = NewType("Position", int)
#: t: the banks after the diagnoses of episodes 0..t-1
BankVersion = NewType("BankVersion", int)

Stage = Literal["planning", "execution"]
#: a_t of equation (6)
Label = Literal["planning", "execution", "both", "none"]

STAGES: tuple[Stage, Stage] = ("planning", "execution")
RUN_STREAM = StreamId("run")
PROJECTOR_STREAM = StreamId("projector")

_RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
#: up to 18 digits: a number that every reader can hold, whatever a hostile log says
_NUMBER = "0|[1-9][0-9]{0,17}"
_EPISODE = re.compile(rf"episode-({_NUMBER})")
_MEMORY = re.compile(
    rf"(?:(?P<origin>[a-z0-9][a-z0-9-]{{0,62}})\.)?(?P<stage>planning|execution)-(?P<t>{_NUMBER})(?:-(?P<k>{_NUMBER}))?"
)

#: what memory ids sort by: (has origin, origin, stage, t, has k, k)
MemoryOrder = tuple[bool, str, int, int, bool, int]


def run_id(text: str) -> RunId:
    """`text` as a run id.

    Raises:
        BadInput: not of the form `[a-z0-9][a-z0-9-]{0,62}`.
    """
    if not _RUN.fullmatch(text):
        raise BadInput(f"{text!r} is no run id: 1 to 63 of a-z, 0-9 and '-', not starting with '-'")
    return RunId(text)


def episode_stream(t: int) -> StreamId:
    """The stream of episode `t` (from 0)."""
    return StreamId(f"episode-{t}")


def episode_of(stream: str) -> int | None:
    """T of an episode's stream; None for the run's and the projector's."""
    match = _EPISODE.fullmatch(stream)
    return int(match[1]) if match else None


def stream_id(text: str) -> StreamId:
    """`text` as a stream id.

    Raises:
        BadInput: neither `run`, `projector` nor an unpadded `episode-<t>`.
    """
    if text not in (RUN_STREAM, PROJECTOR_STREAM) and episode_of(text) is None:
        raise BadInput(f"{text!r} is no stream: run, projector or episode-<t>")
    return StreamId(text)


def event_id(run: RunId, stream: StreamId, version: int) -> str:
    """`<run>/<stream>/<version>`."""
    return f"{run}/{stream}/{version}"


def memory_id(stage: Stage, t: int, k: int | None = None) -> MemoryId:
    """The id of the item that episode `t` inserts; `k` numbers them where a policy inserts several."""
    return MemoryId(f"{stage}-{t}" if k is None else f"{stage}-{t}-{k}")


def seeded_id(origin: RunId, memory: MemoryId) -> MemoryId:
    """The id under which a run seeded from `origin` holds `memory`; an id that has an origin keeps it."""
    return memory if "." in memory else MemoryId(f"{origin}.{memory}")


# The ids of a bank recur in every event: parsed once each.
@lru_cache(maxsize=1 << 16)
def memory_order(memory: str) -> MemoryOrder:
    """What ids sort by: origin (none first, then code points), planning before execution, t, k (none first).

    Raises:
        BadInput: not a memory id.
    """
    match = _MEMORY.fullmatch(memory)
    if match is None:
        raise BadInput(f"{memory!r} is no memory id: [<run>.]planning|execution-<t>[-<k>]")
    origin, k = match["origin"], match["k"]
    return (
        origin is not None,
        origin or "",
        STAGES.index(cast("Stage", match["stage"])),
        int(match["t"]),
        k is not None,
        int(k or 0),
    )


def attributed(label: Label) -> tuple[Stage, ...]:
    """L(a) of equation (7), planning first."""
    match label:
        case "both":
            return STAGES
        case "none":
            return ()
        case stage:
            return (stage,)
