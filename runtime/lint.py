"""Deterministic reasons not to keep a text the gate wrote (reading 7). No model is asked; the reasons are recorded.

| reason | what it finds |
|---|---|
| `too_short`, `too_long` | an experience outside lint_min..lint_max code points |
| `copied_id` | an identifier of this episode: an e-mail address, a UUID, a long number, a code such as `W2378156` |
| `copied_argument` | in quotes, a value this episode passed to a tool, when it holds a digit or several words |
| `control_character` | C0, C1 and other characters that show nothing: they can hide or rewrite what is read |
| `bidi_character` | Unicode's direction marks: the text reads otherwise than it is stored |
| `ansi_escape` | terminal control sequences |
| `injection` | words that speak to a model about its instructions instead of about the task |

There is no test for the gold answer: it never reaches this side of the environment.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from events.parameters import Parameters
from runtime.task import Message

_EMAIL = r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
#: letters and digits in one word with four digits or more, or six digits and more
_CODE = r"(?<![\w.])(?=[A-Za-z0-9_-]*[0-9](?:[A-Za-z_-]*[0-9]){3})[A-Za-z0-9_-]{6,}(?![\w])"
_IDENTIFIER = re.compile(f"{_EMAIL}|{_UUID}|{_CODE}")

_QUOTED = re.compile(r"\"([^\"\n]{4,200})\"|`([^`\n]{4,200})`|'([^'\n]{4,200})'(?!\w)|“([^”\n]{4,200})”")
_ANSI = re.compile(r"\x1b|\x9b|\\x1b\[|\\033\[|\\u001b\[")
_INJECTION = re.compile(
    r"""\b(?:ignore|disregard|forget|override)\s+(?:all\s+|any\s+)?(?:of\s+)?(?:the\s+|your\s+|these\s+)?
        (?:previous|prior|earlier|above|preceding|other|system)\s+(?:instructions?|prompts?|rules?|messages?)
      | \byou\s+are\s+now\s+(?:a|an|in|the)\b
      | \b(?:system|developer)\s+prompt\b
      | \b(?:reveal|print|repeat)\s+(?:your|the)\s+(?:instructions|prompt|secrets?|api\s+key)
      | <\|(?:im_start|im_end|endoftext|eot_id|start_header_id|end_header_id)\|>
      | \[/?INST\]
      | ^\s*(?:system|assistant|developer)\s*:""",
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_ALLOWED_CONTROL = frozenset("\n\t")
#: joiners that scripts and emoji need
_ALLOWED_FORMAT = frozenset("\u200c\u200d")


def lint(
    scenario: str, experience: str, trajectory: Sequence[Message], parameters: Parameters, *, bounded: bool = True
) -> list[str]:
    """Why this text must not be kept, in the order of the table; empty when nothing speaks against it.

    Args:
        scenario: c_new; "" where only an experience is at hand.
        experience: e_new.
        trajectory: the episode's messages, as recorded.
        parameters: lint_min and lint_max.
        bounded: whether lint_max counts; a merged text may be longer.
    """
    reasons: list[str] = []
    if len(experience) < parameters.lint_min:
        reasons.append("too_short")
    if bounded and len(experience) > parameters.lint_max:
        reasons.append("too_long")
    text = f"{scenario}\n{experience}"
    reasons += [reason for reason, found in _findings(text, trajectory) if found]
    return reasons


def _findings(text: str, trajectory: Sequence[Message]) -> Iterator[tuple[str, bool]]:
    yield "copied_id", _copies_identifier(text, trajectory)
    yield "copied_argument", _copies_argument(text, trajectory)
    # Of ASCII text, all that may be found here is unprintable.
    suspect = "" if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable() else text
    yield "control_character", any(_is_control(character) for character in suspect)
    yield "bidi_character", any(character in _BIDI for character in suspect)
    yield "ansi_escape", _ANSI.search(text) is not None
    yield "injection", _INJECTION.search(text) is not None


def _is_control(character: str) -> bool:
    category = unicodedata.category(character)
    if category == "Cc":
        return character not in _ALLOWED_CONTROL
    return category == "Cf" and character not in _ALLOWED_FORMAT and character not in _BIDI


def _copies_identifier(text: str, trajectory: Sequence[Message]) -> bool:
    named = {match.group().casefold() for match in _IDENTIFIER.finditer(text)}
    if not named:
        return False
    episode = "\n".join(_texts(trajectory)).casefold()
    return any(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", episode) for one in named)


def _copies_argument(text: str, trajectory: Sequence[Message]) -> bool:
    quoted = {next(part for part in match.groups() if part).strip().casefold() for match in _QUOTED.finditer(text)}
    return any(value.strip().casefold() in quoted for value in _arguments(trajectory) if _particular(value))


def _particular(value: str) -> bool:
    """Whether a value says something about this episode: modes and units (`celsius`, `desc`) do not."""
    return any(character.isdigit() for character in value) or len(value.split()) > 1


def _texts(trajectory: Sequence[Message]) -> Iterator[str]:
    for message in trajectory:
        if message.get("role") == "system":
            continue  # the memories and the benchmark's own rules are no facts of this episode
        content = message.get("content")
        if isinstance(content, str):
            yield content
        for call in message.get("tool_calls") or ():
            yield str(call["function"]["arguments"])


def _arguments(trajectory: Sequence[Message]) -> Iterator[str]:
    """Every string inside the arguments of every tool call."""
    for message in trajectory:
        for call in message.get("tool_calls") or ():
            try:
                yield from _strings(json.loads(call["function"]["arguments"]))
            except ValueError:
                continue


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for one in value.values():
                yield from _strings(one)
        case list():
            for one in value:
                yield from _strings(one)
        case _:
            return
