"""Recorded answers as a run has them: in its operational part, and around the model that its stages ask."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from events.errors import BadInput
from infra.cassette import Player, Recorder, assert_recorded, begin
from runtime.ports import ChatModel, Role
from workers.configuration import RecordingSettings

#: label of a run whose answers are played: no endpoint was asked for what it shows
REPLAY = "replay"


def recording_part(recording: RecordingSettings) -> dict[str, Any]:
    """What a run's operational part holds of `recording`: nothing where answers are neither kept nor played."""
    return {"recording": msgspec.to_builtins(recording)} if recording.record or recording.replay else {}


def recording_in(operational: Mapping[str, Any]) -> RecordingSettings:
    """What a run does about recorded answers.

    Raises:
        BadInput: the run's operational part was made by hand, or by other code.
    """
    try:
        return msgspec.convert(operational.get("recording", {}), RecordingSettings)
    except msgspec.ValidationError as error:
        raise BadInput(f"the run's recording cannot be read: {error}") from error


def assert_playable(recording: RecordingSettings) -> None:
    """What is to be played is there.

    Raises:
        BadInput: it is not.
    """
    if recording.replay:
        assert_recorded(Path(recording.replay))


def prepare(recording: RecordingSettings) -> None:
    """Make the folder that answers are written into, where it is wanted; what is to be played is there.

    Raises:
        BadInput: a folder is unfit for what is wanted of it.
    """
    assert_playable(recording)
    if recording.record:
        begin(Path(recording.record))


def played(model: ChatModel, recording: RecordingSettings, names: Mapping[Role, str]) -> ChatModel:
    """What is asked: `model`, or what is recorded in its place."""
    if not recording.replay:
        return model
    return Player(model if recording.loose else None, Path(recording.replay), names)


def kept(model: ChatModel, recording: RecordingSettings, names: Mapping[Role, str]) -> ChatModel:
    """`model`, whose answers are written down where that is wanted."""
    return Recorder(model, Path(recording.record), names) if recording.record else model
