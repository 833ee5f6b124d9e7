"""What an endpoint's error says, from whatever shape it comes in: its message, and the names beside it.

Some endpoints repeat the request in their error. What the request said is taken out first, so that no word of a task
is taken for the error's own, and none of it reaches a log line.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from runtime.json_values import too_deep

#: how much of an error is read, characters
MATCHED = 2000
#: as many words in a row as a request has too are its words
_ECHOED = 4
#: what stands in the place of the request's words
_BLANK = "\u2026"

_MESSAGES = ("message", "detail", "msg", "error_msg", "error_message", "status_msg", "errors")
_NAMES = ("code", "type", "param", "status", "error_code", "error_type", "status_code")
#: what llama.cpp counts beside its message
_COUNTS = ("n_prompt_tokens", "n_ctx")
_WORD = re.compile(r"\w+")
#: how deep an error may be packed into other errors
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Told:
    """What an error says, each part of it one line."""

    message: str
    #: its code, type, parameter and the like: words of a fixed list, which no prompt gets into
    names: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """Both."""
        if not self.names:
            return self.message
        return start(f"{self.message} ({', '.join(self.names)})".strip())

    def without(self, sent: bytes) -> "Told":
        """The same less what it repeats of the request's body."""
        return Told(_without_echo(self.message, sent), self.names)


def told_in(body: str) -> Told:
    """What the error in `body` says; the start of `body` where it is none that has a message."""
    plain = _loaded(body.removeprefix("data:"))
    found = _found(plain, _DEEPEST) if isinstance(plain, (dict, list)) else None
    return found or Told(start(body))


def start(text: str) -> str:
    """The first whole words of `text`, white space folded: half of a secret looks like none."""
    line = " ".join(text[: 32 * MATCHED].split())
    return line if len(line) <= MATCHED else line[:MATCHED].rpartition(" ")[0] or line[:MATCHED]


def _loaded(text: str) -> Any:
    """What `text` holds as JSON; None for what is none, or so deep that it would depend on the caller's depth."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if too_deep(plain) else plain


def _found(plain: object, deep: int) -> Told | None:
    """The innermost message, with the names met on the way to it; None where there is none."""
    if isinstance(plain, str):
        inner = _loaded(plain) if plain.lstrip()[:1] in ("{", "[") and deep else None
        found = _found(inner, deep - 1) if isinstance(inner, (dict, list)) else None
        return found or (Told(start(plain)) if plain.strip() else None)
    if not deep:
        return None
    if isinstance(plain, list):
        return _found_in_list(plain, deep)
    if not isinstance(plain, dict):
        return None
    names = tuple(_named(plain))
    for name in ("error", "base_resp", *_MESSAGES):
        if plain.get(name) and (found := _found(plain[name], deep - 1)) is not None:
            message, names = found.message, (*names, *(one for one in found.names if one not in names))
            if raw := _raw(plain, deep):
                message, names = f"{message}: {raw.message}", (*names, *raw.names)
            return Told(start(message), names)
    return Told("", names) if names else None


def _found_in_list(plain: list[Any], deep: int) -> Told | None:
    """Several errors: the one there is, or one a wrong field, whose sense is in `msg` and whose input is beside it."""
    fields = [one for one in plain if isinstance(one, dict) and "msg" in one]
    if fields:
        told = "; ".join(f"{one['loc']}: {one['msg']}" if "loc" in one else f"{one['msg']}" for one in fields)
        return Told(start(told), tuple(name for one in fields for name in _named(one)))
    return next((found for one in plain if (found := _found(one, deep - 1)) is not None), None)


def _named(error: Mapping[str, Any]) -> Iterator[str]:
    for name in _NAMES:
        value = error.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            yield start(str(value))[:100]
    for name in _COUNTS:
        if isinstance(error.get(name), int):
            yield f"{name} {error[name]}"
    inner = error.get("innererror")
    if isinstance(inner, dict):
        yield from _named(inner)


def _raw(error: Mapping[str, Any], deep: int) -> Told | None:
    """What a router was told by the server behind it."""
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return _found(raw, deep - 1) if raw else None


def _without_echo(message: str, sent: bytes) -> str:
    said = list(_WORD.finditer(message))
    runs = _runs([word[0].lower() for word in said])
    if not runs or (plain := _loaded(sent.decode("utf-8", "replace"))) is None:
        return message
    asked = set(runs).intersection(*[chain.from_iterable(_runs(_WORD.findall(text.lower())) for text in _texts(plain))])
    kept, at = "", 0
    for run, first, last in zip(runs, said, said[_ECHOED - 1 :], strict=False):
        if run in asked:
            if first.start() >= at:
                kept += message[at : first.start()] + _BLANK
            at = last.end()
    return kept + message[at:]


def _runs(words: list[str]) -> list[tuple[str, ...]]:
    """All words that stand in a row, as many as make an echo."""
    return list(zip(*(words[at:] for at in range(_ECHOED)), strict=False))


def _texts(plain: object) -> Iterator[str]:
    """Every text of a request."""
    waiting = [plain]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
