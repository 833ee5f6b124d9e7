"""Escapes for what a terminal may obey and a reader not see, in JSON that is shown or logged."""

import json
import re

#: C1 and DEL, direction marks, line and paragraph separators, what shows nothing (joiners aside: scripts need them)
UNSEEN = (
    "\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u2800"
    "\u3164\ufdd0-\ufdef\ufe00-\ufe0d\ufeff\uffa0\ufff9-\ufffb\ufffe\uffff\U00013430-\U00013438\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_RAW = re.compile(f"[{UNSEEN}]")


def json_escaped(text: str) -> str:
    """JSON that says the same as the JSON `text`, in which none of these characters stands as it is."""
    return text if text.isascii() and "\x7f" not in text else _RAW.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return "\\u007f" if found[0] == "\x7f" else json.dumps(found[0])[1:-1]
