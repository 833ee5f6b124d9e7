"""Answers of an experiment in a folder: recorded while endpoints are asked, or played in their place.

    FOLDER/cassette.json                 {"format": 1}
    FOLDER/<2 hex digits>/<sha256>/<call>.json

`<sha256>` is of the model that was asked for and the canonical request, `<call>` the call's id with dots for slashes.
A call is answered by its own file; where the same was asked by another call only, by the first of those in the order
of names. So a run that is started again with the same settings, under whatever name and with whatever timing, has the
same answers. Refusals and calls that got no answer are recorded too: what came of them is part of the experiment.
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec
from anyio import to_thread
from msgspec import Struct

from events.codec import canonical
from events.errors import BadInput
from infra.model_errors import unsendable
from infra.whole_file import whole_file
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped
from runtime.logger import Logger
from runtime.ports import CallKey, ChatAnswer, ChatModel, ChatRequest, Role

_log = Logger("chime.model")

#: of the folder; another one is not read
FORMAT = 1
_HEAD = "cassette.json"
#: answers may quote what nobody else should read
_MODE = 0o600


class _Take(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of one call: an answer, or the error that it ended with."""

    #: `<stream>/<stage>/<ordinal>`
    call: str
    model: str
    answer: ChatAnswer | None = None
    #: of `runtime.errors`: `refused` or `unavailable`
    error: Literal["", "refused", "unavailable"] = ""
    kind: str = ""
    reason: str = ""
    status: int | None = None


class Recorder:
    """A `ChatModel` around the one that a stage asks, which writes down what the stage got.

    Args:
        model: whose answers count: where a call is made twice, the one that the run keeps.
        folder: where they are kept.
        names: the model that each role asks for.
    """

    def __init__(self, model: ChatModel, folder: Path, names: Mapping[Role, str]) -> None:
        self._model, self._folder, self._names = model, folder, names

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        """As `runtime.ports.ChatModel.complete`.

        Raises:
            RunStopped: what came cannot be written down.
        """
        name = self._names.get(request.role, "")
        try:
            answer = await self._model.complete(request, key)
        except (ModelRefused, ModelUnavailable) as error:
            await self._keep(name, request, _failed(key, name, error))
            raise
        await self._keep(name, request, _Take(call=key.id, model=name, answer=answer))
        return answer

    async def _keep(self, name: str, request: ChatRequest, take: _Take) -> None:
        try:
            await to_thread.run_sync(_written, self._folder, _asked(name, request), take)
        except OSError as error:
            raise RunStopped("recording", f"{self._folder}: {error.strerror or error}") from error


class Player:
    """A `ChatModel` in place of one that asks endpoints.

    Args:
        model: is asked where an answer is missing; None = then the run stops.
        folder: where answers are kept.
        names: the model that each role asks for.
    """

    def __init__(self, model: ChatModel | None, folder: Path, names: Mapping[Role, str]) -> None:
        self._model, self._folder, self._names = model, folder, names

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        """As `runtime.ports.ChatModel.complete`.

        Raises:
            RunStopped: the answer is not among the recorded ones, or what stands there is none.
        """
        asked = _asked(self._names.get(request.role, ""), request)
        take = await to_thread.run_sync(_played, self._folder, asked, key)
        if take is not None:
            return _outcome(take)
        if self._model is None:
            name = self._names.get(request.role, "")
            told = f"{self._folder} holds no answer for call {key.id} of the {request.role} ({name})"
            raise RunStopped("not_recorded", told)
        _log.info("call_not_recorded", run_id=key.run, call=key.id, model_role=request.role)
        return await self._model.complete(request, key)


def _asked(name: str, request: ChatRequest) -> str:
    """Hex SHA-256 of the model and the request.

    Raises:
        ModelRefused: something that JSON has no form for.
    """
    try:
        return sha256(canonical([name, request])).hexdigest()
    except (ValueError, TypeError, RecursionError) as error:
        raise unsendable(error) from error


def begin(folder: Path) -> None:
    """Make `folder` fit for recording: a new one, an empty one, or one that holds recorded answers.

    Raises:
        BadInput: it holds something else, or cannot be written.
    """
    head = folder / _HEAD
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not head.exists():
            if any(folder.iterdir()):
                raise BadInput(f"{folder} holds something else than recorded answers; name a folder that is new")
            with whole_file(head, _MODE) as file:
                file.write(msgspec.json.encode({"format": FORMAT}))
    except OSError as error:
        raise BadInput(f"answers cannot be recorded in {folder}: {error.strerror or error}") from error
    assert_recorded(folder)


def assert_recorded(folder: Path) -> None:
    """`folder` holds recorded answers that this version can play.

    Raises:
        BadInput: it does not.
    """
    head = folder / _HEAD
    try:
        told = msgspec.json.decode(head.read_bytes())
    except OSError as error:
        raise BadInput(f"{folder} holds no recorded answers; --record {folder} records a run's") from error
    except msgspec.DecodeError as error:
        raise BadInput(f"{head} is damaged: {error}") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise BadInput(f"{folder} was recorded by another version of chime; this one reads format {FORMAT}")


def _file_of(call: str) -> str:
    return f"{call.replace('/', '.')}.json"


def _folder_of(folder: Path, asked: str) -> Path:
    return folder / asked[:2] / asked


def _played(folder: Path, asked: str, key: CallKey) -> _Take | None:
    """What is recorded of this request, by this call where it is; None for nothing."""
    answers = _folder_of(folder, asked)
    path = answers / _file_of(key.id)
    if not path.exists():
        others = sorted(answers.glob("*.json"))
        if not others:
            return None
        path = others[0]
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Take)
    except (OSError, msgspec.DecodeError) as error:
        raise RunStopped("recording", f"{path} holds no recorded answer: {error}") from error


def _written(folder: Path, asked: str, take: _Take) -> None:
    """Whole or not at all. An answer takes the place of an error, as a later try's does, and never the other way."""
    answers = _folder_of(folder, asked)
    answers.mkdir(parents=True, exist_ok=True)
    path = answers / _file_of(take.call)
    if take.answer is None and path.exists():
        return
    with whole_file(path, _MODE) as file:
        file.write(msgspec.json.encode(take))


def _failed(key: CallKey, name: str, told: ModelRefused | ModelUnavailable) -> _Take:
    word: Literal["refused", "unavailable"] = "refused" if isinstance(told, ModelRefused) else "unavailable"
    return _Take(call=key.id, model=name, error=word, kind=told.kind, reason=told.reason, status=told.status)


def _outcome(take: _Take) -> ChatAnswer:
    """The answer, or the error that came in its place."""
    if take.answer is not None:
        return take.answer
    if take.error == "unavailable":
        raise ModelUnavailable(take.kind, take.reason, take.status)
    raise ModelRefused(take.kind, take.reason, take.status)
