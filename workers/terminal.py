"""Text from models, tasks and files on its way to a terminal: shown, never obeyed."""

import re

from infra.escapes import UNSEEN

#: what a terminal may obey and a reader not see, and lone surrogates
_HOSTILE = re.compile(f"[\x00-\x1f{UNSEEN}\ud800-\udfff]")


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def printable(text: str) -> str:
    """`text` on one line, with every control and direction character as its escape."""
    return _HOSTILE.sub(_escaped, text)


def printable_block(text: str) -> str:
    """As `printable`, but lines stay lines."""
    return "\n".join(printable(line) for line in text.split("\n"))


def clipped(text: str, width: int) -> str:
    """The first `width` characters of `text`, the last of them an ellipsis where something is missing."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
