"""The side file of the rehearsal model: what was planted in each episode that its gate judged. JSON, one line each.

It never enters a log, a prompt or an answer; it exists so that a gate's labels can be compared with it.
"""

import os
from collections import Counter
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from events.errors import BadInput
from events.ids import Label, Stage
from infra.rehearsal.planting import Fault, Planted


class Told(Struct, frozen=True, kw_only=True):
    """What the gate was told to say."""

    label: Label
    confidence_e4: int
    #: as the prompt names them
    misleading: list[str]


class Truth(Struct, frozen=True, kw_only=True):
    """What was planted in an episode."""

    task: str
    #: how many episodes of this task were judged before, from 0
    ordinal: int = 0
    success: bool
    fault: Fault
    #: a_t as it truly is
    label: Label
    #: items that led a stage astray, by their place in the prompt (`P1` = first chosen of the planning bank)
    misleading: list[str]
    planted: Planted
    #: None where the gate was not asked for a label
    told: Told | None
    #: hex SHA-256 of the plan as the gate saw it
    plan: str
    #: stage -> how many memories the gate saw
    shown: dict[Stage, int]


class TruthFile:
    """Appends truths to a file that only its owner can read; without a path it only counts."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._ordinals: Counter[str] = Counter()
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
            except OSError as error:
                raise BadInput(f"cannot write the truth to {path}: {error.strerror or error}") from error

    def add(self, truth: Truth) -> None:
        """Write one truth under the next ordinal of its task; on disk when this returns."""
        numbered = msgspec.structs.replace(truth, ordinal=self._ordinals[truth.task])
        self._ordinals[truth.task] += 1
        if self._file is not None:
            self._file.write(msgspec.json.encode(numbered) + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()


def read_truths(path: Path) -> list[Truth]:
    """Every truth of a side file, in the order it was written.

    Raises:
        BadInput: no such file, or a line that is no truth; says which.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadInput(f"cannot read the truth {path}: {error.strerror or error}") from error
    truths = []
    for number, line in enumerate(lines, 1):
        try:
            truths.append(msgspec.json.decode(line, type=Truth))
        except msgspec.MsgspecError as error:
            raise BadInput(f"{path}, line {number}: not a planted truth: {error}") from error
    return truths
