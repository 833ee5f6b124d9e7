"""Which parts of a text are code: what merely shows a mark there does not use it."""

import re

_FENCE = re.compile(r"^[ \t]{0,12}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
#: between equal numbers of back-ticks, on one line
_INLINE = re.compile(r"(?<!`)(`{1,3})(?!`)[^\n]+?(?<!`)\1(?!`)")
_VISIBLE = re.compile(r"[^\n]")


def without_code(text: str) -> str:
    """`text` with every character of fenced and inline code as a space, line ends aside: places stay what they are.

    A fence that is not closed is none.
    """
    if "`" not in text and "~~~" not in text:
        return text
    pieces: list[str] = []
    at = 0
    for begin, end in _fences(text):
        pieces += [_INLINE.sub(_blank, text[at:begin]), _VISIBLE.sub(" ", text[begin:end])]
        at = end
    return "".join([*pieces, _INLINE.sub(_blank, text[at:])])


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _fences(text: str) -> list[tuple[int, int]]:
    """Where each closed fence begins and ends, its marks included."""
    found: list[tuple[int, int]] = []
    opened: re.Match[str] | None = None
    for line in _FENCE.finditer(text):
        mark, rest = line[1], line[2].strip()
        if opened is None:
            # Back-ticks behind the mark: inline code.
            opened = line if mark[0] == "~" or "`" not in rest else None
        elif mark.startswith(opened[1]) and not rest:
            found.append((opened.start(), line.end()))
            opened = None
    return found


def last_fence(text: str) -> tuple[str, str, str] | None:
    """What stands before a fence at the end of the text, its language in lower case, and its code."""
    stripped = text.rstrip()
    if not stripped.endswith(("`", "~")):
        return None
    fences = _fences(stripped)
    if not fences or fences[-1][1] != len(stripped):
        return None
    begin, end = fences[-1]
    first, _, rest = stripped[begin:end].partition("\n")
    return stripped[:begin], first.strip(" \t`~").lower(), rest.rpartition("\n")[0]
