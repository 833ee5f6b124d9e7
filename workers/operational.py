"""What may change about a run that goes on: as its header says, and over that as each resume has said since."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from events.codec import decode
from events.errors import BadInput
from events.ids import RUN_STREAM
from events.kinds import Noted, RunConfig, RunStarted
from events.log import Recorded
from runtime.ports import EventLog
from runtime.settings import EpisodeSettings

#: topic of the note that changes addresses, time-outs and limits of a run that goes on
OPERATIONAL = "operational"


class _Shape(Struct, frozen=True):
    """The parts that are read by name; each checks what stands in it where it is used."""

    endpoints: dict[str, dict[str, Any]] = {}
    limits: dict[str, Any] = {}
    embedder: dict[str, Any] = {}
    flags: list[str] = []


class _Timed(Struct, frozen=True):
    budget_s: float | None = None


async def operational_of(log: EventLog, header: RunStarted) -> dict[str, Any]:
    """Addresses, time-outs, slots and limits as the run was last resumed with.

    Raises:
        BadInput: as `operational_in`.
    """
    return operational_in(await log.read_stream(RUN_STREAM), header)


def operational_in(said: Sequence[Recorded], header: RunStarted) -> dict[str, Any]:
    """As `operational_of`, from what the run's own stream says.

    Raises:
        BadInput: the log was made by hand, or by other code.
    """
    operational = dict(header.config.operational)
    for recorded in said:
        if recorded.kind == "noted" and isinstance(event := decode(recorded), Noted) and event.topic == OPERATIONAL:
            operational.update(event.facts)
    try:
        msgspec.convert(operational, _Shape)
    except msgspec.ValidationError as error:
        raise BadInput(f"the run's operational part cannot be read: {error}") from error
    return operational


def episode_settings(config: RunConfig, operational: Mapping[str, Any]) -> EpisodeSettings:
    """The limits of the run's episodes.

    Raises:
        BadInput: the log was made by hand, or by other code.
    """
    try:
        return msgspec.convert({**config.limits, **operational.get("limits", {})}, EpisodeSettings)
    except msgspec.ValidationError as error:
        raise BadInput(f"the run's limits cannot be read: {error}") from error


def budget_s(limits: object, before: float) -> float:
    """The seconds that `limits` give an episode; `before` where they give none: workers refuse what is no time."""
    try:
        given = msgspec.convert(limits, _Timed).budget_s
    except msgspec.ValidationError:
        return before
    return before if given is None else given
