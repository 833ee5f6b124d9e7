"""What a command prints: tables and lines for people, one envelope for programs; data on stdout, the rest on stderr.

Nothing that a model, a task or a file wrote is interpreted: no markup, no control character reaches the terminal.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec
from rich.cells import cell_len

from events.errors import BadInput
from infra.escapes import json_escaped
from workers import paths
from workers.tables import Column, aligned, draw
from workers.terminal import printable, printable_block

#: version of the envelope
ENVELOPE = 1


def utc_now() -> str:
    """Now, as `YYYY-MM-DDTHH:MM:SS.ffffffZ`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def json_text(value: object, *, indent: int | None = None) -> str:
    """`value` as JSON that is safe to show on a terminal."""
    text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return json_escaped(text)


def _stdout() -> TextIO:
    return sys.stdout


def _stderr() -> TextIO:
    return sys.stderr


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command's words go."""

    json: bool = False
    out: TextIO = field(default_factory=_stdout)
    err: TextIO = field(default_factory=_stderr)
    #: the envelope until `release`, so that a failure after it goes into the same one; None = written at once
    held: list[dict[str, Any]] | None = None

    @property
    def interactive(self) -> bool:
        """Whether a person watches: a terminal, and no --json."""
        return not self.json and self.err.isatty()

    def data(self, data: object = None, **top: object) -> None:
        """The envelope, when asked for; `top` stands beside its own fields."""
        if self.json:
            body: dict[str, Any] = {"schema": ENVELOPE, "as_of": utc_now(), **top}
            if data is not None or not top:
                body["data"] = data
            if self.held is None:
                self._write(json_text(body) + "\n")
            else:
                self.held.append(body)

    def release(self, error: Mapping[str, object] | None = None) -> None:
        """Write the envelope that was held back, with what went wrong after it."""
        bodies = list(self.held or ())
        if self.held is not None:
            self.held.clear()
        if error is not None:
            bodies[-1:] = [{**(bodies[-1] if bodies else {"schema": ENVELOPE, "as_of": utc_now()}), "error": error}]
        for body in bodies:
            self._write(json_text(body) + "\n")
        if bodies:
            self.out.flush()

    def line(self, text: str = "") -> None:
        """One line for a person; not with --json."""
        if not self.json:
            self._write(printable(text) + "\n")

    def block(self, text: str, *, indent: str = "") -> None:
        """Lines for a person; not with --json."""
        if not self.json:
            self._write("".join(f"{indent}{line}\n" for line in printable_block(text).split("\n")))

    def raw(self, text: str) -> None:
        """Text that is the command's product, JSON or a configuration file: as it is, but on a terminal escaped."""
        self._write(json_escaped(text) if self.out.isatty() else text)

    def note(self, text: str) -> None:
        """Progress, hints and warnings: on stderr, with or without --json."""
        self.err.write(printable(text) + "\n")
        self.err.flush()

    @staticmethod
    def write_file(file: str, text: str) -> None:
        """`text` as FILE of -o, whole or not at all."""
        path = paths.output(Path(), file)
        if path.is_dir():
            raise BadInput(f"{file}: this is a folder, not a file")
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(path)
        except OSError as error:
            error.filename, error.filename2 = file, None  # what the user wrote, not our name for it
            raise
        finally:
            with suppress(OSError):  # a file system that is read-only refuses this too: the first error is the one
                unfinished.unlink(missing_ok=True)

    def facts(self, facts: Mapping[str, object]) -> None:
        """Names and values, one a line, values aligned; not with --json."""
        width = max((cell_len(name) for name in facts), default=0)
        for name, value in facts.items():
            self.line(f"{name}{' ' * (width - cell_len(name))}  {value}")

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[object]], *, empty: str = "") -> None:
        """A table on a terminal, aligned text otherwise; not with --json. `empty` is said where there is no row."""
        if self.json:
            return
        if not rows:
            if empty:
                self.note(empty)
            return
        cells = [[printable(str(cell)) for cell in row] for row in rows]
        if self.out.isatty():
            draw(self.out, columns, cells)
        else:
            for line in aligned(columns, cells):
                self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        try:
            self.out.write(text)
        except UnicodeEncodeError:  # a terminal of another encoding
            encoding = self.out.encoding or "ascii"
            self.out.write(text.encode(encoding, "backslashreplace").decode(encoding))
